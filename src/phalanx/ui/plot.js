/* A plot of a share over time, as a drawing: an area between 0 and 100 %, with the hours below it. */

import { makeSvg } from "./element.js";

const WIDTH = 600;
const HEIGHT = 100;
/** A longer pause between two points is a gap: the server was away. */
const MAX_GAP = 5 * 60;

/** Returns the outlines of the runs of points without a gap: `points` are `[seconds, share]`. */
export function outlines(points, from, to) {
  const runs = [];
  let last = -Infinity;
  for (const [time, share] of points) {
    if (time < from || time > to) continue;
    if (time - last > MAX_GAP) runs.push([]);
    runs.at(-1).push([((time - from) / (to - from)) * WIDTH, HEIGHT - Math.min(1, Math.max(0, share)) * HEIGHT]);
    last = time;
  }
  return runs;
}

const number = (value) => String(Math.round(value * 10) / 10);
const line = (run) => run.map(([x, y], at) => `${at ? "L" : "M"}${number(x)} ${number(y)}`).join("");
const area = (run) => `${line(run)}L${number(run.at(-1)[0])} ${HEIGHT}L${number(run[0][0])} ${HEIGHT}Z`;

/** Draws shares between two times; `label` describes the plot to screen readers. */
export function drawPlot(points, { from, to, label }) {
  const runs = outlines(points, from, to);
  return makeSvg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", class: "plot", role: "img", "aria-label": label },
    ...[0.25, 0.5, 0.75].map((share) => makeSvg("line", { class: "grid", x1: 0, x2: WIDTH, y1: HEIGHT * share, y2: HEIGHT * share })),
    ...runs.map((run) => makeSvg("path", { class: "area", d: area(run) })),
    ...runs.map((run) => makeSvg("path", { class: "curve", d: line(run.length > 1 ? run : [[run[0][0] - 2, run[0][1]], run[0]]) })));
}
