/* The life of a gang as steps: created, complete, attempts, decided, bound, running, preempted, ended. */

import { compare } from "./cluster.js";
import { groupNamer } from "./decisions.js";
import { formatDuration, plural } from "./format.js";

const ATTEMPTS = new Set(["FailedScheduling", "Preempted", "Degraded"]);
const MAX_ATTEMPTS = 12;

/**
 * Returns steps `{time, title, text, tone}`, oldest first; a step without a time has not happened yet. `owner` is the Job
 * of the gang if it is known.
 */
export function gangTimeline(group, members, events, owner = null) {
  const attempts = attemptSteps(events);
  const steps = [...lifeSteps(group, members, owner, preemptionTime(group, attempts)), ...conditionSteps(group, attempts), ...attempts];
  const happened = steps.filter((one) => one.time).sort((a, b) => compare(a.time, b.time) || a.rank - b.rank);
  const missing = steps.filter((one) => !one.time);
  happened.forEach((one, at) => { one.after = at ? gap(happened[at - 1].time, one.time) : ""; });
  return [...happened, ...missing];
}

/** Returns when a gang was preempted last; "" if it is not known that it was. */
function preemptionTime({ conditions }, attempts) {
  const found = [...attempts.filter(({ title }) => title === "Preempted"), ...conditions.filter(({ type, status }) => type === "Preempted" && status === "True")];
  return found.map(({ time }) => time).sort().at(-1) ?? "";
}

function lifeSteps(group, members, owner, preempted) {
  const needed = Math.max(1, group.minCount);
  const created = members.map((pod) => pod.created).filter(Boolean).sort();
  const placed = members.filter((pod) => pod.node);
  const decided = group.conditions.find((one) => one.type === "PodGroupInitiallyScheduled" && one.status === "True");
  const bound = placed.map((pod) => pod.scheduled).filter(Boolean).sort();
  const running = members.filter((pod) => pod.phase === "Running" || pod.ended);
  const started = running.map((pod) => pod.started).filter(Boolean).sort();
  // The condition keeps the time of the first decision. Members that were created later replace preempted or failed ones.
  const complete = created[needed - 1];
  const isReplaced = complete > decided?.time || (preempted && complete >= preempted);
  const isAgain = Boolean(decided && (!complete || isReplaced));
  const again = isAgain ? " again" : "";
  const found = "the scheduler found nodes for the gang";
  const steps = [
    { rank: 0, time: group.created, title: "Created", text: `PodGroup ${group.name}`, tone: "quiet" },
    ...(isAgain ? [step(0, decided.time, "Decided", found)] : []),
    step(isAgain ? 7 : 1, complete, `Complete${again}`, `${plural(created.length, "member")} of ${needed} needed`, `waits for ${plural(needed - created.length, "more member")}`),
    step(isAgain ? 7 : 3, (isAgain ? "" : decided?.time) || bound[needed - 1], `Decided${again}`, found, "no nodes found yet"),
    step(isAgain ? 7 : 4, bound[needed - 1] && bound.at(-1), `Bound${again}`, `${plural(placed.length, "member")} on ${plural(new Set(placed.map((pod) => pod.node)).size, "node")}`, "not bound yet"),
    step(isAgain ? 7 : 5, started[needed - 1] && started.at(-1), `Running${again}`, `${plural(running.length, "member")} started`, "not running yet", "good"),
  ];
  const end = endStep(group, members, owner);
  if (!end) return steps;
  return [...steps.filter((one) => one.time), end];
}

const step = (rank, time, title, text, missing, tone = "plan") => ({ rank, time: time ?? "", title, text: time ? text : missing, tone: time ? tone : "none" });

function endStep(group, members, owner) {
  const isOver = members.length > 0 && members.every((pod) => pod.ended);
  if (!group.finished && !isOver) return null;
  const failed = members.filter((pod) => pod.phase === "Failed").length;
  const isFailed = group.finished ? group.finished.startsWith("Failed") : failed > 0;
  const times = members.map((pod) => pod.finished).filter(Boolean).sort();
  const ending = (owner?.status?.conditions ?? []).find((one) => ["Complete", "Failed"].includes(one.type) && one.status === "True");
  const text = [group.finished, failed && `${plural(failed, "pod")} failed`, isFailed && ending?.message].filter(Boolean).join("; ");
  return { rank: 9, time: owner?.status?.completionTime ?? ending?.lastTransitionTime ?? times.at(-1) ?? "", title: isFailed ? "Failed" : "Done", text, tone: isFailed ? "bad" : "good" };
}

const CONDITION_STEPS = {
  Preempted: { title: "Preempted", tone: "wait" },
  Reserved: { title: "Nodes reserved", tone: "plan" },
  Degraded: { title: "Degraded", tone: "wait" },
};

/** Steps from the conditions that are True, and the last refusal; not again what events have told already. */
function conditionSteps({ conditions }, attempts) {
  const steps = [];
  const isAttempt = (message) => attempts.some(({ text }) => text.includes(message));
  const isPreemptionKnown = attempts.some(({ title }) => title === "Preempted");
  for (const { type, status, reason, message, time } of conditions) {
    const known = CONDITION_STEPS[type];
    if (known && status === "True" && !(type === "Preempted" && isPreemptionKnown)) steps.push({ rank: 6, time, text: message || reason, ...known });
    if (type === "PodGroupScheduled" && status === "False" && !isAttempt(message)) steps.push({ rank: 2, time, title: "Refused", text: `${reason}: ${message}`, tone: "wait" });
  }
  return steps;
}

/** Steps from events; equal messages of many members are one step, with how many members and how often. */
function attemptSteps(events) {
  const found = new Map();
  for (const { reason, message, time, count, about } of events) {
    if (!ATTEMPTS.has(reason)) continue;
    const key = `${reason}|${message}`;
    const step = found.get(key) ?? { time, reason, message, counts: new Map() };
    step.counts.set(about, (step.counts.get(about) ?? 0) + count);
    if (step.time < time) step.time = time;
    found.set(key, step);
  }
  const newest = [...found.values()].sort((a, b) => compare(b.time, a.time)).slice(0, MAX_ATTEMPTS);
  return newest.map(({ time, reason, message, counts }) => ({
    rank: 2, time, title: reason === "FailedScheduling" ? "Attempt failed" : reason, text: `${message}${countText(counts)}`, tone: "wait",
  }));
}

/** Says of how many members a message is, and how often at most of one: six preempted pods are one preemption. */
function countText(counts) {
  const times = Math.max(...counts.values());
  const parts = [counts.size > 1 && plural(counts.size, "member"), times > 1 && `${times} times`].filter(Boolean);
  return parts.length ? ` (${parts.join(", ")})` : "";
}

function gap(from, to) {
  const seconds = (Date.parse(to) - Date.parse(from)) / 1000;
  return seconds >= 1 ? `+${formatDuration(seconds)}` : "";
}

/** Returns the events about a gang: of its members, of the group, and of members that are gone. Gangs in messages have titles. */
export function gangEvents(cluster, group, members) {
  const names = new Set([group.key, ...members.map((pod) => pod.key)]);
  const [prefix, nameGroups] = [`${group.namespace}/${group.title}-`, groupNamer(cluster)];
  return [...cluster.events.values()].filter(({ about, kind }) =>
    names.has(about) || (kind === "Pod" && about.startsWith(prefix) && !cluster.pods.has(about)))
    .map((one) => ({ ...one, message: nameGroups(one.message) }));
}
