/* The legend: the largest gangs and their colours. */

import { compare } from "./cluster.js";
import { gangTitle } from "./decisions.js";
import { make } from "./element.js";
import { hrefOf } from "./route.js";

const MAX_ROWS = 40;

export function legendRows(cluster, matches, theme) {
  const found = [...cluster.inGroup].filter(([key]) => matches(key) || matches(gangTitle(cluster, key)));
  found.sort(([a, x], [b, y]) => y.size - x.size || compare(a, b));
  return found.slice(0, MAX_ROWS).map(([key, pods]) => ({
    key, stamp: `${pods.size}|${gangTitle(cluster, key)}|${theme}`,
    draw: () => [make("a", { title: key, href: hrefOf("gang", key) },
      make("span", { class: "swatch", tint: cluster.colours.of(key, theme) }), `${gangTitle(cluster, key)} ${pods.size}`)],
  }));
}
