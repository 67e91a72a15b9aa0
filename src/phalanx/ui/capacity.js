/* How many members of a waiting gang would fit, by free resources alone; `phalanx why` evaluates all constraints. */

import { plural } from "./format.js";
import { short } from "./topology.js";

const NONE = { fit: 0, lacking: [] };

/** Returns the free resources of a node. */
export function free(cluster, node) {
  const left = { ...node.allocatable };
  for (const pod of cluster.onNode.get(node.name)?.values() ?? []) {
    if (pod.ended) continue;
    for (const name in pod.requests) left[name] = (left[name] ?? 0) - pod.requests[name];
    left.pods = (left.pods ?? Infinity) - 1;
  }
  return left;
}

/** Returns how many pods with these requests fit into free resources, and every resource that is too scarce for one. */
export function countFits(requests, left) {
  let fit = left.pods ?? Infinity;
  const lacking = fit < 1 ? ["pods"] : [];
  for (const name in requests) {
    const value = requests[name];
    if (value <= 0) continue;
    const times = Math.floor((left[name] ?? 0) / value + 1e-9);
    fit = Math.min(fit, times);
    if (times < 1) lacking.push(name);
  }
  return Number.isFinite(fit) ? { fit: Math.max(0, fit), lacking } : NONE;
}

/**
 * The free resources of all nodes at one moment, or all of them, as if nothing ran (`isEmpty`). Gangs whose members request
 * the same are counted once.
 */
export class FreeCapacity {
  constructor(cluster, { isEmpty = false } = {}) {
    Object.assign(this, { cluster, isEmpty });
    this.left = new Map([...cluster.nodes.values()].map((node) => [node.name, isEmpty ? node.allocatable : free(cluster, node)]));
    this.slots = new Map();
  }

  /** Returns how many such pods fit on all nodes and in the best domain, and the resource that most full nodes lack. */
  slotsFor(requests, topology) {
    const key = JSON.stringify([requests, topology]);
    if (!this.slots.has(key)) this.slots.set(key, this.#countSlots(requests, topology));
    return this.slots.get(key);
  }

  #countSlots(requests, topology) {
    const [limits, domains] = [new Map(), new Map()];
    let [all, nodes] = [0, 0];
    for (const node of this.cluster.nodes.values()) {
      if (!node.ready || node.closed) continue;
      const { fit, lacking } = countFits(requests, this.left.get(node.name));
      all += fit;
      nodes += 1;
      for (const name of lacking) limits.set(name, (limits.get(name) ?? 0) + 1);
      const domain = topology.map((key) => node.labels[key]);
      if (domain.every(Boolean)) domains.set(domain.join(", "), (domains.get(domain.join(", ")) ?? 0) + fit);
    }
    const [limit = ""] = [...limits].sort(([, a], [, b]) => b - a)[0] ?? [];
    const [best = "", inBest = 0] = topology.length ? [...domains].sort(([, a], [, b]) => b - a)[0] ?? [] : [];
    return { all, limit, best, inBest, nodes, full: limits.get(limit) ?? 0 };
  }
}

/** For a waiting gang: how many members are placed, waiting and needed, what each requests, and the slots for them. */
export function gangCapacity(cluster, group, capacity) {
  const members = cluster.members(group.key).filter((pod) => !pod.ended && !pod.terminating);
  const waiting = members.filter((pod) => capacity.isEmpty || !pod.node);
  const placed = members.length - waiting.length;
  const needed = Math.max(0, group.minCount - placed) || Math.min(1, waiting.length);
  const requests = waiting[0]?.requests ?? {};
  return { placed, waiting: waiting.length, needed, requests, isEmpty: capacity.isEmpty, isKnown: cluster.nodes.size > 0, ...capacity.slotsFor(requests, group.topology) };
}

/** Says how many members fit and what the nodes lack; "" if free resources are not what a gang waits for. */
export function shortageSentence({ placed, waiting, needed, all, limit, best, inBest, full, nodes, isEmpty }, { topology }) {
  const fit = topology.length ? inBest : all;
  if (!waiting || fit >= needed) return "";
  const where = topology.length ? (inBest ? ` in ${best}, which has the most room` : ` in any ${topology.map(short).join(" and ")}`) : "";
  const lack = !limit ? "" : full === nodes ? `: every node lacks ${limit}` : `: ${plural(full, "node")} without enough ${limit}`;
  return `${fit} of ${needed}${placed ? " more" : ""} ${needed === 1 ? "member fits" : "members fit"}${where}${isEmpty ? " even if nothing else ran" : ""}${lack}.`;
}

/**
 * Says why a gang waits: the shortage first, else what the scheduler has written (`messages`), and the numbers. Without
 * nodes, which the user may not be allowed to list, nothing is said about free resources.
 */
export function waitingSentences(found, group, messages) {
  if (found.isKnown === false) return [...new Set([...messages, placedSentence(found, group)])].filter(Boolean);
  const [shortage, numbers] = [shortageSentence(found, group), capacitySentences(found, group)];
  return [...new Set(shortage ? [shortage, ...numbers, ...messages] : [...messages, ...numbers])].filter(Boolean);
}

const placedSentence = ({ placed, waiting }, { minCount }) => `${placed} placed, ${waiting} waiting${minCount ? `, at least ${minCount} at once` : ""}.`;

/** Formats the other numbers as sentences. */
export function capacitySentences({ placed, waiting, needed, all, inBest, isEmpty }, { topology, minCount }) {
  const texts = [placedSentence({ placed, waiting }, { minCount })];
  if (!waiting) return texts;
  const fit = topology.length ? inBest : all;
  if (fit < needed) texts.push(`${isEmpty ? "Add" : "Free or add"} capacity for ${plural(needed - fit, "more member")}.`);
  else texts.push(`Resources are free for ${fit} more; ${needed} needed.`);
  return texts;
}
