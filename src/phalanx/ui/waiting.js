/* Gangs that wait, each with its reason and what would help, as rows of a list. */

import { make } from "./element.js";
import { free, room, sentences } from "./room.js";
import { spelled } from "./quantity.js";
import { standing } from "./rows.js";

export const MOST = 50;
/** Makers of gangs that `phalanx why` can be asked about. */
const OWNERS = ["Job", "JobSet", "LeaderWorkerSet"];

export function waitingRows(cluster, groups, theme, choose) {
  const shown = groups.slice(0, MOST);
  const rest = shown.length ? new Map([...cluster.nodes.values()].map((node) => [node.name, free(cluster, node)])) : null;
  return shown.map((group) => waitingRow(cluster, group, rest, theme, choose));
}

function waitingRow(cluster, group, rest, theme, choose) {
  const found = room(cluster, group, rest);
  const { status, reason, message } = standing(group);
  // What is said of a member, unless it only says again what is said of the gang.
  const why = cluster.members(group.key).find((pod) => pod.why && !(message && pod.why.includes(message)))?.why ?? "";
  const told = [message, why, ...sentences(found, group)].filter(Boolean);
  const stamp = JSON.stringify([status, reason, told, theme]);
  const draw = () => [
    make("button", { class: "link", type: "button", onclick: () => choose("gang", group.key) },
      make("span", { class: "swatch", tint: cluster.colours.of(group.key, theme) }), `${group.namespace}/${group.title}`),
    make("span", { class: "reason", "data-good": status === "True" ? "yes" : "no" }, status === "True" ? "PartlyPlaced" : reason),
    ...told.map((text) => make("p", {}, text)),
    make("p", { class: "quiet" }, `Each asks for ${spelled(found.asks)}. All of it: `, make("code", {}, command(group))),
  ];
  return { key: group.key, stamp, draw };
}

/** How to have every cure tried out on a copy of the cluster: by the name that its maker goes by, if it is known there. */
export function command({ owner, name, namespace }) {
  const what = OWNERS.includes(owner?.kind) ? `${owner.kind.toLowerCase()}/${owner.name}` : `podgroup/${name}`;
  return `phalanx why ${what} -n ${namespace}`;
}
