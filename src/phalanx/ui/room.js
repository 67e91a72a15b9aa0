/* How many members of a gang there would be room for: numbers for people, from what nodes have and pods ask.
   Only resources are counted; `phalanx why` knows the rest. */

const NONE = { fit: 0, limit: "" };

/** What is left of a node. */
export function free(cluster, node) {
  const left = { ...node.allocatable };
  for (const pod of cluster.running(node.name)) {
    for (const [name, value] of Object.entries(pod.asks)) left[name] = (left[name] ?? 0) - value;
    left.pods = (left.pods ?? Infinity) - 1;
  }
  return left;
}

/** How often something fits in what is left, and what runs out first. */
export function fits(asks, left) {
  let [fit, limit] = [left.pods ?? Infinity, "pods"];
  for (const [name, value] of Object.entries(asks)) {
    if (value <= 0) continue;
    const times = Math.floor((left[name] ?? 0) / value + 1e-9);
    if (times < fit) [fit, limit] = [times, name];
  }
  return Number.isFinite(fit) ? { fit: Math.max(0, fit), limit } : NONE;
}

/**
 * For a gang that waits: how many members are placed, wait and are missing, how many more fit now, in all
 * and in the best domain if it insists on one, and what runs out on most nodes. `rest` is what is left of
 * each node, by name.
 */
export function room(cluster, group, rest) {
  const members = cluster.members(group.key).filter((pod) => !pod.ended && !pod.leaving);
  const waiting = members.filter((pod) => !pod.node);
  const placed = members.length - waiting.length;
  const needed = Math.max(0, group.minCount - placed) || Math.min(1, waiting.length);
  const asks = waiting[0]?.asks ?? {};
  return { placed, waiting: waiting.length, needed, asks, ...counted(cluster, group, asks, rest) };
}

function counted(cluster, group, asks, rest) {
  const [limits, domains] = [new Map(), new Map()];
  let all = 0;
  for (const node of cluster.nodes.values()) {
    if (!node.ready || node.closed) continue;
    const { fit, limit } = fits(asks, rest.get(node.name));
    all += fit;
    if (!fit) limits.set(limit, (limits.get(limit) ?? 0) + 1);
    const domain = group.topology.map((key) => node.labels[key]);
    if (domain.every(Boolean)) domains.set(domain.join(", "), (domains.get(domain.join(", ")) ?? 0) + fit);
  }
  const [limit = ""] = [...limits].sort(([, a], [, b]) => b - a)[0] ?? [];
  const [best = "", inBest = 0] = group.topology.length ? [...domains].sort(([, a], [, b]) => b - a)[0] ?? [] : [];
  return { all, limit, best, inBest, full: limits.get(limit) ?? 0 };
}

/** The numbers as sentences. */
export function sentences({ placed, waiting, needed, all, limit, best, inBest, full }, { topology, minCount }) {
  const said = [`${placed} placed, ${waiting} waiting${minCount ? `, at least ${minCount} at once` : ""}.`];
  if (!waiting) return said;
  const [have, where] = topology.length ? [inBest, inBest ? `in ${best}, the roomiest` : "in any one domain"] : [all, "on all nodes"];
  said.push(`Resources free for ${have} more ${where}; ${needed} needed.`);
  if (have < needed) {
    const lack = limit ? ` ${full} ${full === 1 ? "node lacks" : "nodes lack"} ${limit}.` : "";
    said.push(`It would help to free or add room for ${needed - have} ${needed - have === 1 ? "member" : "members"}.${lack}`);
  }
  return said;
}
