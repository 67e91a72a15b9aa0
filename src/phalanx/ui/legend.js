/* The legend: the gangs on the map and their colours, those with the most pods there first. */

import { compare } from "./cluster.js";
import { gangTitle } from "./decisions.js";
import { make } from "./element.js";
import { hrefOf } from "./route.js";

const MAX_ROWS = 40;

export function legendRows(cluster, matches, theme) {
  const counts = [...cluster.inGroup].map(([key, pods]) => [key, countPlaced(pods)]).filter(([, count]) => count);
  const found = counts.filter(([key]) => matches(key) || matches(gangTitle(cluster, key)));
  found.sort(([a, x], [b, y]) => y - x || compare(a, b));
  return found.slice(0, MAX_ROWS).map(([key, count]) => ({
    key, stamp: `${count}|${gangTitle(cluster, key)}|${theme}`,
    draw: () => [make("a", { title: key, href: hrefOf("gang", key) },
      make("span", { class: "swatch", tint: cluster.colours.of(key, theme) }), `${gangTitle(cluster, key)} ${count}`)],
  }));
}

/** Returns how many pods are on a node and have not ended. */
function countPlaced(pods) {
  let count = 0;
  for (const pod of pods.values()) if (pod.node && !pod.ended) count++;
  return count;
}
