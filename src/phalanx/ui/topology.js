/* The tree of topology domains, derived from the labels of the nodes. */

import { compare } from "./cluster.js";

/** Suffixes of topology labels; other labels count if a gang has a constraint on them. */
const TOPOLOGY_LABELS = /(^|[./-])(region|zone|hall|row|superpod|block|spine|rack|leaf|cell)$/;
const MAX_DEPTH = 3;
const NO_DOMAIN = "elsewhere";

/** Returns the labels that divide the nodes into domains, the widest first. */
export function levels(nodes, required = []) {
  const values = new Map();
  for (const { labels } of nodes) {
    for (const [key, value] of Object.entries(labels)) {
      if (!TOPOLOGY_LABELS.test(key) && !required.includes(key)) continue;
      if (!values.has(key)) values.set(key, new Set());
      values.get(key).add(value);
    }
  }
  const dividing = [...values].filter(([, found]) => found.size > 1 && found.size < nodes.length);
  dividing.sort(([a, x], [b, y]) => x.size - y.size || compare(a, b));
  return dividing.slice(0, MAX_DEPTH).map(([key]) => key);
}

/** Returns a tree `{title, nodes}` or `{title, parts}`; titles and nodes in numeric order. */
export function tree(nodes, keys, title = "") {
  if (!keys.length) return { title, nodes: [...nodes].sort((a, b) => compareNames(a.name, b.name)) };
  const parts = new Map();
  for (const node of nodes) {
    const value = node.labels[keys[0]] ?? NO_DOMAIN;
    if (!parts.has(value)) parts.set(value, []);
    parts.get(value).push(node);
  }
  const names = [...parts.keys()].sort(compareNames);
  return { title, parts: names.map((name) => tree(parts.get(name), keys.slice(1), name)) };
}

const order = new Intl.Collator("en", { numeric: true });
const compareNames = (a, b) => order.compare(a, b);

export const short = (key) => key.slice(key.lastIndexOf("/") + 1);
