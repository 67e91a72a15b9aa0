/* What was decided, newest first: from events about pods, one line per gang and message; and from conditions of gangs. */

import { compare } from "./cluster.js";
import { standing } from "./rows.js";

const TOLD = new Set(["Scheduled", "FailedScheduling", "Preempted"]);

/** The newest decisions: `{time, reason, message, good, group, title, pods}`. */
export function decisions(cluster, most) {
  const lines = [...fromEvents(cluster), ...fromConditions(cluster)];
  lines.sort((a, b) => compare(b.time, a.time) || compare(a.title, b.title) || compare(a.reason, b.reason));
  return lines.slice(0, most);
}

function fromEvents(cluster) {
  const lines = new Map();
  for (const event of cluster.events.values()) {
    if (!TOLD.has(event.reason)) continue;
    const group = event.kind === "Pod" ? cluster.pods.get(event.about)?.group ?? "" : "";
    const [title, message] = [titled(cluster, group) || event.about, plural(event)];
    const key = `${title}|${event.reason}|${message}|${event.reason === "FailedScheduling" ? "" : event.time}`;
    const line = lines.get(key) ?? { time: event.time, reason: event.reason, message, good: event.good, group, title, pods: 0 };
    line.pods += 1;
    if (event.time > line.time) line.time = event.time;
    lines.set(key, line);
  }
  return lines.values();
}

/** Members that go to different nodes at once are one decision. */
function plural({ reason, message }) {
  return reason === "Scheduled" ? "assigned to nodes" : message;
}

function* fromConditions(cluster) {
  for (const group of cluster.groups.values()) {
    const { status, reason, message, time } = standing(group);
    if (status === "Unknown") continue;
    yield { time, reason, message, good: status === "True", group: group.key, title: titled(cluster, group.key), pods: 0 };
  }
}

/** What people call a gang: its Job, where it has one. */
export function titled(cluster, key) {
  const group = cluster.groups.get(key);
  return group ? `${group.namespace}/${group.title}` : key;
}
