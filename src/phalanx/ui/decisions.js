/* Decisions of the scheduler, newest first: from events of pods (one line per gang and message) and conditions of gangs. */

import { compare } from "./cluster.js";
import { placementCondition } from "./rows.js";

const REASONS = new Set(["Scheduled", "FailedScheduling", "Preempted"]);

/** Returns the newest decisions: `{time, reason, message, good, group, title, pods}`. */
export function decisions(cluster, most) {
  const events = [...fromEvents(cluster)];
  const lines = [...events, ...fromConditions(cluster, refusals(events))];
  lines.sort((a, b) => compare(b.time, a.time) || compare(a.title, b.title) || compare(a.reason, b.reason));
  return lines.slice(0, most);
}

function fromEvents(cluster) {
  const lines = new Map();
  const [groupOf, nameGroups] = [groupFinder(cluster), groupNamer(cluster)];
  for (const event of cluster.events.values()) {
    if (!REASONS.has(event.reason)) continue;
    const group = groupOf(event);
    const [title, message] = [gangTitle(cluster, group) || event.about, decisionMessage(event, nameGroups)];
    const key = `${title}|${event.reason}|${message}|${event.reason === "FailedScheduling" ? "" : event.time.slice(0, 16)}`;
    const line = lines.get(key) ?? { time: event.time, reason: event.reason, message, good: event.good, group, title, pods: 0 };
    line.pods += 1;
    if (event.time > line.time) line.time = event.time;
    lines.set(key, line);
  }
  return lines.values();
}

/** Name of a pod of a Job without what was added to the name of the Job. */
const POD_SUFFIX = /(-\d+)?-[a-z0-9]{5}$/;

/** Returns a function from events to gangs: of the pod, of the group, or of the Job of a pod that is gone. */
function groupFinder(cluster) {
  const byTitle = new Map([...cluster.groups.values()].map((one) => [`${one.namespace}/${one.title}`, one.key]));
  return ({ kind, about }) => {
    if (kind === "PodGroup") return cluster.groups.has(about) ? about : "";
    return cluster.pods.get(about)?.group ?? byTitle.get(about.replace(POD_SUFFIX, "")) ?? "";
  };
}

/** Members that are bound to different nodes at once are one decision, so their messages must be equal. */
function decisionMessage({ reason, message }, nameGroups) {
  return reason === "Scheduled" ? "assigned to nodes" : nameGroups(message);
}

/** Returns a function that replaces the uid of a gang in a message by its title. */
export function groupNamer(cluster) {
  const names = new Map([...cluster.groups.values()].map((one) => [one.uid, `${one.namespace}/${one.title}`]));
  return (message) => message.replace(/\bpodgroup ([0-9a-f-]{36})( on node cluster)?/, (text, uid) => names.get(uid) ?? text);
}

/** Returns the messages of refusals by gang; the condition of a gang that only repeats one is not another decision. */
function refusals(events) {
  const found = new Map();
  for (const { reason, group, message } of events) {
    if (reason === "FailedScheduling" && group) found.set(group, [...(found.get(group) ?? []), message]);
  }
  return found;
}

function* fromConditions(cluster, refused) {
  for (const group of cluster.groups.values()) {
    const { status, reason, message, time } = placementCondition(group);
    const isRepeated = status === "False" && refused.get(group.key)?.some((one) => one.includes(message));
    if (status === "Unknown" || isRepeated) continue;
    yield { time, reason, message, good: status === "True", group: group.key, title: gangTitle(cluster, group.key), pods: 0 };
  }
}

/** Returns the title of a gang: the name of its Job, if it has one. */
export function gangTitle(cluster, key) {
  const group = cluster.groups.get(key);
  return group ? `${group.namespace}/${group.title}` : key;
}
