/* Waiting gangs as rows of a list, each with its reason and what would help. */

import { FreeCapacity, gangCapacity, waitingSentences } from "./capacity.js";
import { badge, make } from "./element.js";
import { startSentence } from "./forecast.js";
import { formatResources } from "./quantity.js";
import { placementCondition } from "./rows.js";
import { hrefOf } from "./route.js";
import { stateLabel, stateTone } from "./states.js";

export const MAX_ROWS = 50;
/** Kinds of owners that `phalanx why` accepts. */
const OWNERS = ["Job", "JobSet", "LeaderWorkerSet"];
/** States that say more than that a gang waits. */
const SHOWN = new Set(["reserved", "never"]);

export function waitingRows(cluster, groups, { queue, theme }) {
  const shown = groups.slice(0, MAX_ROWS);
  const capacity = shown.length ? new FreeCapacity(cluster) : null;
  return shown.map((group) => waitingRow(cluster, group, { capacity, theme, entry: queue.find(group.namespace, group.name) }));
}

function waitingRow(cluster, group, { capacity, theme, entry }) {
  const found = gangCapacity(cluster, group, capacity);
  const { status, reason, message: written } = placementCondition(group);
  const isPreempted = group.conditions.some((one) => one.type === "Preempted" && one.status === "True");
  // A gang that was placed and lost members keeps the message about its placement.
  const message = status === "True" ? "" : written;
  // The message of a member, unless it repeats that of the gang.
  const why = cluster.members(group.key).find((pod) => pod.why && !(message && pod.why.includes(message)))?.why ?? "";
  const texts = [startSentence(entry, group), ...waitingSentences(found, group, [message, why])].filter(Boolean);
  const state = SHOWN.has(entry?.state) ? entry.state : "";
  const stamp = JSON.stringify([status, reason, isPreempted, state, texts, theme]);
  const draw = () => [
    make("a", { class: "link", href: hrefOf("gang", group.key) },
      make("span", { class: "swatch", tint: cluster.colours.of(group.key, theme) }), `${group.namespace}/${group.title}`),
    make("span", { class: "reason" }, isPreempted ? "Preempted" : status === "True" ? "PartlyPlaced" : reason),
    ...(state ? [" ", badge(stateTone(state), stateLabel(state))] : []),
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
