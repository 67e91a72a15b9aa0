/* Nodes as a tree of domains, by the labels that say where they stand. */

import { compare } from "./cluster.js";

/** Labels that say where a node stands, by their end; others count if a gang insists on them. */
const PLACES = /(^|[./-])(region|zone|hall|row|superpod|block|spine|rack|leaf|cell)$/;
const DEEPEST = 3;
const NOWHERE = "elsewhere";

/** The labels that divide these nodes, the widest first. A label that all nodes share divides nothing. */
export function levels(nodes, insisted = []) {
  const values = new Map();
  for (const { labels } of nodes) {
    for (const [key, value] of Object.entries(labels)) {
      if (!PLACES.test(key) && !insisted.includes(key)) continue;
      if (!values.has(key)) values.set(key, new Set());
      values.get(key).add(value);
    }
  }
  const dividing = [...values].filter(([, found]) => found.size > 1 && found.size < nodes.length);
  dividing.sort(([a, x], [b, y]) => x.size - y.size || compare(a, b));
  return dividing.slice(0, DEEPEST).map(([key]) => key);
}

/** A tree `{title, nodes}` or `{title, parts}`; titles and nodes in the order people count. */
export function tree(nodes, keys, title = "") {
  if (!keys.length) return { title, nodes: [...nodes].sort((a, b) => counted(a.name, b.name)) };
  const parts = new Map();
  for (const node of nodes) {
    const value = node.labels[keys[0]] ?? NOWHERE;
    if (!parts.has(value)) parts.set(value, []);
    parts.get(value).push(node);
  }
  const names = [...parts.keys()].sort(counted);
  return { title, parts: names.map((name) => tree(parts.get(name), keys.slice(1), name)) };
}

const order = new Intl.Collator("en", { numeric: true });
const counted = (a, b) => order.compare(a, b);

export const short = (key) => key.slice(key.lastIndexOf("/") + 1);
