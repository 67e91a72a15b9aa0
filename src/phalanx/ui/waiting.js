/* Waiting gangs as rows of a list, each with its reason and what would help. */

import { make } from "./element.js";
import { FreeCapacity, gangCapacity, waitingSentences } from "./capacity.js";
import { formatResources } from "./quantity.js";
import { placementCondition } from "./rows.js";
import { hrefOf } from "./route.js";

export const MAX_ROWS = 50;
/** Kinds of owners that `phalanx why` accepts. */
const OWNERS = ["Job", "JobSet", "LeaderWorkerSet"];

export function waitingRows(cluster, groups, theme) {
  const shown = groups.slice(0, MAX_ROWS);
  const capacity = shown.length ? new FreeCapacity(cluster) : null;
  return shown.map((group) => waitingRow(cluster, group, capacity, theme));
}

function waitingRow(cluster, group, capacity, theme) {
  const found = gangCapacity(cluster, group, capacity);
  const { status, reason, message: written } = placementCondition(group);
  const isPreempted = group.conditions.some((one) => one.type === "Preempted" && one.status === "True");
  // A gang that was placed and lost members keeps the message about its placement.
  const message = status === "True" ? "" : written;
  // The message of a member, unless it repeats that of the gang.
  const why = cluster.members(group.key).find((pod) => pod.why && !(message && pod.why.includes(message)))?.why ?? "";
  const texts = waitingSentences(found, group, [message, why]);
  const stamp = JSON.stringify([status, reason, isPreempted, texts, theme]);
  const draw = () => [
    make("a", { class: "link", href: hrefOf("gang", group.key) },
      make("span", { class: "swatch", tint: cluster.colours.of(group.key, theme) }), `${group.namespace}/${group.title}`),
    make("span", { class: "reason" }, isPreempted ? "Preempted" : status === "True" ? "PartlyPlaced" : reason),
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
