/* The largest gangs and their colours. */

import { compare } from "./cluster.js";
import { titled } from "./decisions.js";
import { make } from "./element.js";

const MOST = 40;

export function legendRows(cluster, matches, theme, choose) {
  const found = [...cluster.inGroup].filter(([key]) => matches(key) || matches(titled(cluster, key)));
  found.sort(([a, x], [b, y]) => y.size - x.size || compare(a, b));
  return found.slice(0, MOST).map(([key, pods]) => ({
    key, stamp: `${pods.size}|${titled(cluster, key)}|${theme}`,
    draw: () => [make("button", { type: "button", title: key, onclick: () => choose("gang", key) },
      make("span", { class: "swatch", tint: cluster.colours.of(key, theme) }), `${titled(cluster, key)} ${pods.size}`)],
  }));
}
