/* Decisions of the scheduler, newest first: from events of pods (one line per gang and message) and conditions of gangs. */

import { compare } from "./cluster.js";
import { placementCondition } from "./rows.js";

const REASONS = new Set(["Scheduled", "FailedScheduling", "Preempted"]);

/** Returns the newest decisions: `{time, reason, message, good, group, title, pods}`. */
export function decisions(cluster, most) {
  const lines = [...fromEvents(cluster), ...fromConditions(cluster)];
  lines.sort((a, b) => compare(b.time, a.time) || compare(a.title, b.title) || compare(a.reason, b.reason));
  return lines.slice(0, most);
}

function fromEvents(cluster) {
  const lines = new Map();
  for (const event of cluster.events.values()) {
    if (!REASONS.has(event.reason)) continue;
    const group = event.kind === "Pod" ? cluster.pods.get(event.about)?.group ?? "" : "";
    const [title, message] = [gangTitle(cluster, group) || event.about, decisionMessage(event)];
    const key = `${title}|${event.reason}|${message}|${event.reason === "FailedScheduling" ? "" : event.time}`;
    const line = lines.get(key) ?? { time: event.time, reason: event.reason, message, good: event.good, group, title, pods: 0 };
    line.pods += 1;
    if (event.time > line.time) line.time = event.time;
    lines.set(key, line);
  }
  return lines.values();
}

/** Members that are bound to different nodes at once are one decision, so their messages must be equal. */
function decisionMessage({ reason, message }) {
  return reason === "Scheduled" ? "assigned to nodes" : message;
}

function* fromConditions(cluster) {
  for (const group of cluster.groups.values()) {
    const { status, reason, message, time } = placementCondition(group);
    if (status === "Unknown") continue;
    yield { time, reason, message, good: status === "True", group: group.key, title: gangTitle(cluster, group.key), pods: 0 };
  }
}

/** Returns the title of a gang: the name of its Job, if it has one. */
export function gangTitle(cluster, key) {
  const group = cluster.groups.get(key);
  return group ? `${group.namespace}/${group.title}` : key;
}
