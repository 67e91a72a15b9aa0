/* The page of a gang: state, timeline, members, tree. Pure: from rows to blocks. */

import { FreeCapacity, gangCapacity, waitingSentences } from "./capacity.js";
import { compare } from "./cluster.js";
import { startSentence } from "./forecast.js";
import { formatMoment, plural } from "./format.js";
import { startText } from "./gangs.js";
import { gangEvents, gangTimeline } from "./gang_timeline.js";
import { formatResources } from "./quantity.js";
import { hrefOf, hrefOfObject } from "./route.js";
import { placementCondition } from "./rows.js";
import { stateLabel, stateTone } from "./states.js";
import { whyCommand } from "./waiting.js";

/** Returns `{title, state, blocks}` of a gang; `about` has its owner and Workload if they could be read. */
export function gangDetail(cluster, queue, name, { about = {}, theme = "light" } = {}) {
  const key = cluster.findGang(name);
  const group = cluster.groups.get(key);
  const children = group ? [] : cluster.childrenOf(key);
  if (children.length) return compositeDetail(cluster, queue, key, { children, about });
  const members = cluster.members(key).sort((a, b) => compareNames(a.name, b.name));
  if (!group) {
    const text = members.length ? `The PodGroup ${key} does not exist: its pods wait for it.` : `There is no gang ${key} (any more), or you may not see it.`;
    return { title: `Gang ${key}`, state: null, blocks: [{ type: "text", lines: [text] }, ...(members.length ? [memberBlock(members)] : [])] };
  }
  const entry = entryOf(queue, group);
  const state = entry?.state ?? deriveState(group, members);
  return {
    title: `Gang ${gangTitle(group)}`, state: { label: stateLabel(state), tone: stateTone(state) },
    blocks: [
      ...reasonBlocks(cluster, group, entry, state, members),
      { type: "timeline", title: "Timeline", area: "main", steps: gangTimeline(group, members, gangEvents(cluster, group, members), about.owner) },
      factBlock(group, entry, members, about, cluster.colours.of(key, theme)),
      ...treeBlocks(cluster, group),
      memberBlock(members),
      nodeBlock(members),
    ],
  };
}

/** A gang of a Job is named by the Job, others by their group. */
const gangTitle = ({ namespace, name, title, owner }) => `${namespace}/${owner?.kind === "Job" ? title : name}`;

const order = new Intl.Collator("en", { numeric: true });
const compareNames = (a, b) => order.compare(a, b);

/** Returns the entry of a gang in the queue: its own, or that of the tree that it is scheduled with. */
function entryOf(queue, group) {
  return queue.find(group.namespace, group.name) ?? (group.parent ? queue.find(group.namespace, group.parent) : undefined);
}

/** Returns the state of a gang from its objects alone, until the queue is known. */
export function deriveState(group, members) {
  if (group.finished) return group.finished.startsWith("Failed") ? "failed" : "completed";
  if (members.some((pod) => !pod.node && !pod.ended)) return members.length < group.minCount ? "held" : "waiting";
  if (members.some((pod) => !pod.ended)) return "running";
  return members.some((pod) => pod.phase === "Failed") ? "failed" : members.length ? "completed" : "held";
}

function reasonBlocks(cluster, group, entry, state, members) {
  if (state === "failed") return [{ type: "text", tone: "bad", lines: failureLines(group, members) }];
  if (["running", "completed"].includes(state)) return [];
  const { status, message: written } = placementCondition(group);
  const message = status === "True" ? "" : written;
  const why = members.find((pod) => pod.why && !(message && pod.why.includes(message)))?.why;
  const messages = [entry?.message || message, why];
  const capacity = new FreeCapacity(cluster, { isEmpty: state === "never" });
  const lines = [startSentence(entry, group), ...waitingSentences(gangCapacity(cluster, group, capacity), group, messages)];
  return [
    { type: "text", title: state === "never" ? "Why it can never run here" : "Why it waits", lines: lines.filter(Boolean) },
    { type: "command", text: whyCommand(group) },
  ];
}

function failureLines(group, members) {
  const failures = new Map();
  for (const { failure } of members.filter((pod) => pod.failure)) failures.set(failure, (failures.get(failure) ?? 0) + 1);
  return [group.finished ? `Its Job has ended: ${group.finished}.` : "Members have failed.",
    ...[...failures].map(([text, count]) => `${plural(count, "pod")}: ${text}`)];
}

function factBlock(group, entry, members, { owner, workload }, tint) {
  const { namespace } = group;
  const within = group.topology.length ? `, within one ${group.topology.join(" and one ")}` : "";
  const templates = (workload?.spec?.podGroupTemplates ?? []).map((one) => `${one.name} (${Object.keys(one.schedulingPolicy ?? {}).join(", ")})`);
  const requests = members.find((pod) => !pod.ended)?.requests ?? members[0]?.requests;
  return {
    type: "facts", title: "About", area: "side", rows: [
      [group.owner?.kind ?? "Owner", group.owner ? { text: group.owner.name, href: hrefOfObject(group.owner.kind, namespace, group.owner.name) } : "none"],
      ["Status", owner ? ownerLines(group.owner.kind, owner).join("; ") : ""],
      ["Workload", group.workload ? [group.workload, ...templates.map((one) => `template ${one}`)].join(", ") : ""],
      ["Tree", group.parent ? { text: group.parent, href: hrefOf("gang", `${namespace}/${group.parent}`) } : ""],
      ["PodGroup", { text: group.name, tint }],
      ["Policy", `${group.minCount ? `at least ${group.minCount} at once` : "no minimum"}${within}`],
      ["Priority", group.priority],
      ["Position", entry?.position],
      ["Expected start", entry?.expectedStart ? `${startText(entry)} (${formatMoment(entry.expectedStart)})` : entry?.reserved ? "unknown" : ""],
      ["Waits for", (entry?.waitsFor ?? []).join(", ")],
      ["Preempted", entry?.preempted],
      ["Scheduler", entry?.scheduler],
      ["Each requests", requests ? formatResources(requests) : ""],
    ],
  };
}

/** Describes the status of an owner. */
export function ownerLines(kind, { spec = {}, status = {} }) {
  if (kind === "JobSet") {
    const counts = new Map((status.replicatedJobsStatus ?? []).map((one) => [one.name, one]));
    const roles = (spec.replicatedJobs ?? []).map(({ name, replicas = 1 }) => {
      const { ready = 0, succeeded = 0, failed = 0 } = counts.get(name) ?? {};
      return `${name}: ${replicas} Jobs, ${ready} ready, ${succeeded} succeeded, ${failed} failed`;
    });
    return [...roles, `${status.terminalState || "running"}, ${status.restarts ?? 0} restarts`];
  }
  if (kind === "LeaderWorkerSet") {
    const { replicas = 0, readyReplicas = 0, updatedReplicas = 0 } = status;
    return [`${spec.replicas ?? 1} replicas wanted, ${replicas} exist, ${readyReplicas} ready, ${updatedReplicas} updated`];
  }
  const { active = 0, succeeded = 0, failed = 0 } = status;
  return [`${spec.parallelism ?? 1} at once, ${active} active, ${succeeded} succeeded, ${failed} failed`];
}

/** The other groups of a tree: below the same composite, or of the same JobSet or LeaderWorkerSet. */
function treeBlocks(cluster, group) {
  const { namespace, owner, parent } = group;
  const isTree = parent || (owner && owner.kind !== "Job");
  if (!isTree) return [];
  const found = [...cluster.groups.values()].filter((one) => one.namespace === namespace
    && (parent ? one.parent === parent : one.owner?.kind === owner.kind && one.owner.name === owner.name));
  const leaves = found.sort((a, b) => compareNames(a.name, b.name)).map((one) => ({ cells: groupCells(cluster, one, one.key === group.key) }));
  const root = parent
    ? { cells: ["CompositePodGroup ", { text: parent, href: hrefOf("gang", `${namespace}/${parent}`) }], children: leaves } : null;
  const top = owner && owner.kind !== "Job"
    ? [{ cells: [`${owner.kind} `, { text: owner.name, href: hrefOfObject(owner.kind, namespace, owner.name) }], children: root ? [root] : leaves }]
    : [root];
  return [{ type: "tree", title: "Tree", area: "side", nodes: top }];
}

/** Returns the cells of a group in a tree: its link, how many pods are placed, its state. */
export function groupCells(cluster, group, isOwn = false) {
  const members = cluster.members(group.key);
  const state = deriveState(group, members);
  const name = isOwn ? { text: `${group.name} (this gang)` } : { text: group.name, href: hrefOf("gang", group.key) };
  return [name, { text: ` ${members.filter((pod) => pod.node).length} of ${plural(members.length, "pod")} placed `, quiet: true }, { tone: stateTone(state), text: stateLabel(state) }];
}

export function memberBlock(members, title = `Pods (${members.length})`) {
  return {
    type: "table", title, area: "wide", columns: ["Pod", "State", "Node", "Bound", "Restarts", "Message"],
    rows: members.map((pod) => [
      { text: pod.name, href: hrefOf("pod", pod.key) }, podState(pod),
      pod.node ? { text: pod.node, href: hrefOf("node", pod.node) } : pod.nominated ? { text: `nominated ${pod.nominated}`, quiet: true } : "",
      pod.scheduled ? formatMoment(pod.scheduled) : "", pod.restarts || "", pod.failure || pod.why]),
  };
}

const PHASE_TONES = { Running: "good", Pending: "wait", Succeeded: "quiet", Failed: "bad" };

export function podState(pod) {
  if (pod.terminating) return { tone: "quiet", text: "Terminating" };
  if (pod.phase === "Pending" && pod.node) return { tone: "plan", text: "Starting" };
  return { tone: PHASE_TONES[pod.phase] ?? "quiet", text: pod.phase === "Pending" ? "Waiting" : pod.phase };
}

function nodeBlock(members) {
  const counts = new Map();
  for (const pod of members) if (pod.node && !pod.ended) counts.set(pod.node, (counts.get(pod.node) ?? 0) + 1);
  const rows = [...counts].sort(([a], [b]) => compareNames(a, b)).map(([name, count]) => [{ text: name, href: hrefOf("node", name) }, plural(count, "pod")]);
  return { type: "table", title: `Nodes (${counts.size})`, area: "side", columns: ["Node", "Pods"], rows, empty: "No member is on a node." };
}

function compositeDetail(cluster, queue, key, { children, about }) {
  const [namespace, name] = key.split("/");
  const entry = queue.find(namespace, name);
  const members = children.flatMap((one) => cluster.members(one.key)).sort((a, b) => compareNames(a.name, b.name));
  const { owner } = children[0];
  const leaves = children.sort((a, b) => compareNames(a.name, b.name)).map((one) => ({ cells: groupCells(cluster, one) }));
  const top = owner ? [{ cells: [`${owner.kind} `, { text: owner.name, href: hrefOfObject(owner.kind, namespace, owner.name) }], children: leaves }] : leaves;
  const created = children.map((one) => one.created).sort(compare)[0];
  return {
    title: `Gang ${key}`, state: entry ? { label: stateLabel(entry.state), tone: stateTone(entry.state) } : null,
    blocks: [
      ...(entry?.message ? [{ type: "text", lines: [entry.message] }] : []),
      { type: "facts", title: "About", area: "side", rows: [["CompositePodGroup", name], ["Status", about.owner ? ownerLines(owner.kind, about.owner).join("; ") : ""], ["Created", formatMoment(created)], ["Priority", entry?.priority], ["Position", entry?.position], ["Expected start", entry ? startText(entry) : ""]] },
      { type: "tree", title: "Tree", area: "side", nodes: top },
      memberBlock(members),
      nodeBlock(members),
    ],
  };
}
