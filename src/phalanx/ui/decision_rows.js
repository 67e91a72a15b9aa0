/* Decisions as rows of a list, newest first. */

import { decisions } from "./decisions.js";
import { formatTime, make } from "./element.js";
import { hrefOf } from "./route.js";

const MAX_ROWS = 60;

export function decisionRows(cluster, matches, theme) {
  const found = decisions(cluster, 4 * MAX_ROWS).filter((one) => matches(one.title) || matches(one.group));
  const seen = new Map();
  return found.slice(0, MAX_ROWS).map((one) => {
    const name = [one.time, one.title, one.reason, one.message].join("|");
    seen.set(name, (seen.get(name) ?? 0) + 1);
    return { key: `${name}|${seen.get(name)}`, stamp: `${one.pods}|${theme}`, draw: () => drawDecision(cluster, one, theme) };
  });
}

function drawDecision(cluster, { time, title, reason, message, good, group, pods }, theme) {
  const swatch = make("span", { class: "swatch", tint: cluster.colours.of(group, theme) });
  const name = group
    ? make("a", { class: "link", href: hrefOf("gang", group) }, swatch, title)
    : make("span", {}, title);
  const many = pods > 1 ? `${pods} pods: ` : "";
  return [
    make("time", { datetime: time }, formatTime(time)), name,
    make("span", { class: "reason", "data-tone": reason === "Preempted" ? "wait" : good ? "good" : "" }, reason),
    make("p", { class: "quiet" }, `${many}${message}`),
  ];
}
