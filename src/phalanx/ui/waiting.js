/* Waiting gangs as rows of a list, each with its reason and what would help. */

import { make } from "./element.js";
import { capacitySentences, free, gangCapacity } from "./capacity.js";
import { formatResources } from "./quantity.js";
import { placementCondition } from "./rows.js";

export const MAX_ROWS = 50;
/** Kinds of owners that `phalanx why` accepts. */
const OWNERS = ["Job", "JobSet", "LeaderWorkerSet"];

export function waitingRows(cluster, groups, theme, choose) {
  const shown = groups.slice(0, MAX_ROWS);
  const freeByNode = shown.length ? new Map([...cluster.nodes.values()].map((node) => [node.name, free(cluster, node)])) : null;
  return shown.map((group) => waitingRow(cluster, group, freeByNode, theme, choose));
}

function waitingRow(cluster, group, freeByNode, theme, choose) {
  const found = gangCapacity(cluster, group, freeByNode);
  const { status, reason, message } = placementCondition(group);
  // The message of a member, unless it repeats that of the gang.
  const why = cluster.members(group.key).find((pod) => pod.why && !(message && pod.why.includes(message)))?.why ?? "";
  const texts = [message, why, ...capacitySentences(found, group)].filter(Boolean);
  const stamp = JSON.stringify([status, reason, texts, theme]);
  const draw = () => [
    make("button", { class: "link", type: "button", onclick: () => choose("gang", group.key) },
      make("span", { class: "swatch", tint: cluster.colours.of(group.key, theme) }), `${group.namespace}/${group.title}`),
    make("span", { class: "reason", "data-good": status === "True" ? "yes" : "no" }, status === "True" ? "PartlyPlaced" : reason),
    ...texts.map((text) => make("p", {}, text)),
    make("p", { class: "quiet" }, `Each requests ${formatResources(found.requests)}. Full diagnosis: `, make("code", {}, whyCommand(group))),
  ];
  return { key: group.key, stamp, draw };
}

/** Returns the command that explains a gang, by its owner if `phalanx why` accepts that kind. */
export function whyCommand({ owner, name, namespace }) {
  const what = OWNERS.includes(owner?.kind) ? `${owner.kind.toLowerCase()}/${owner.name}` : `podgroup/${name}`;
  return `phalanx why ${what} -n ${namespace}`;
}
