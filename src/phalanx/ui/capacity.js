/* How many members of a waiting gang would fit, by free resources alone; `phalanx why` evaluates all constraints. */

const NONE = { fit: 0, limit: "" };

/** Returns the free resources of a node. */
export function free(cluster, node) {
  const left = { ...node.allocatable };
  for (const pod of cluster.running(node.name)) {
    for (const [name, value] of Object.entries(pod.requests)) left[name] = (left[name] ?? 0) - value;
    left.pods = (left.pods ?? Infinity) - 1;
  }
  return left;
}

/** Returns how many pods with these requests fit into free resources, and the resource that limits them. */
export function countFits(requests, left) {
  let [fit, limit] = [left.pods ?? Infinity, "pods"];
  for (const [name, value] of Object.entries(requests)) {
    if (value <= 0) continue;
    const times = Math.floor((left[name] ?? 0) / value + 1e-9);
    if (times < fit) [fit, limit] = [times, name];
  }
  return Number.isFinite(fit) ? { fit: Math.max(0, fit), limit } : NONE;
}

/**
 * For a waiting gang: how many members are placed, waiting and needed; how many more fit now on all nodes
 * and in the best domain if it has a topology constraint; and the resource that most nodes lack.
 * `freeByNode` has the free resources of each node.
 */
export function gangCapacity(cluster, group, freeByNode) {
  const members = cluster.members(group.key).filter((pod) => !pod.ended && !pod.terminating);
  const waiting = members.filter((pod) => !pod.node);
  const placed = members.length - waiting.length;
  const needed = Math.max(0, group.minCount - placed) || Math.min(1, waiting.length);
  const requests = waiting[0]?.requests ?? {};
  return { placed, waiting: waiting.length, needed, requests, ...countFreeSlots(cluster, group, requests, freeByNode) };
}

function countFreeSlots(cluster, group, requests, freeByNode) {
  const [limits, domains] = [new Map(), new Map()];
  let all = 0;
  for (const node of cluster.nodes.values()) {
    if (!node.ready || node.closed) continue;
    const { fit, limit } = countFits(requests, freeByNode.get(node.name));
    all += fit;
    if (!fit) limits.set(limit, (limits.get(limit) ?? 0) + 1);
    const domain = group.topology.map((key) => node.labels[key]);
    if (domain.every(Boolean)) domains.set(domain.join(", "), (domains.get(domain.join(", ")) ?? 0) + fit);
  }
  const [limit = ""] = [...limits].sort(([, a], [, b]) => b - a)[0] ?? [];
  const [best = "", inBest = 0] = group.topology.length ? [...domains].sort(([, a], [, b]) => b - a)[0] ?? [] : [];
  return { all, limit, best, inBest, full: limits.get(limit) ?? 0 };
}

/** Formats the numbers as sentences. */
export function capacitySentences({ placed, waiting, needed, all, limit, best, inBest, full }, { topology, minCount }) {
  const texts = [`${placed} placed, ${waiting} waiting${minCount ? `, at least ${minCount} at once` : ""}.`];
  if (!waiting) return texts;
  const [have, where] = topology.length ? [inBest, inBest ? `in ${best}, which has the most` : "in any one domain"] : [all, "on all nodes"];
  texts.push(`Resources free for ${have} more ${where}; ${needed} needed.`);
  if (have < needed) {
    const lack = limit ? ` ${full} ${full === 1 ? "node lacks" : "nodes lack"} ${limit}.` : "";
    texts.push(`Free or add capacity for ${needed - have} more ${needed - have === 1 ? "member" : "members"}.${lack}`);
  }
  return texts;
}
