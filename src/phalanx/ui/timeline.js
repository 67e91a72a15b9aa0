/* Decisions as rows of a list, the newest first. */

import { decisions } from "./decisions.js";
import { clock, make } from "./element.js";

const MOST = 60;

export function decisionRows(cluster, matches, theme, choose) {
  const found = decisions(cluster, 4 * MOST).filter((one) => matches(one.title) || matches(one.group));
  const seen = new Map();
  return found.slice(0, MOST).map((one) => {
    const name = [one.time, one.title, one.reason, one.message].join("|");
    seen.set(name, (seen.get(name) ?? 0) + 1);
    return { key: `${name}|${seen.get(name)}`, stamp: `${one.pods}|${theme}`, draw: () => drawn(cluster, one, theme, choose) };
  });
}

function drawn(cluster, { time, title, reason, message, good, group, pods }, theme, choose) {
  const swatch = make("span", { class: "swatch", tint: cluster.colours.of(group, theme) });
  const name = group
    ? make("button", { class: "link", type: "button", onclick: () => choose("gang", group) }, swatch, title)
    : make("span", {}, title);
  const many = pods > 1 ? `${pods} pods: ` : "";
  return [
    make("time", { datetime: time }, clock(time)), name,
    make("span", { class: "reason", "data-good": good ? "yes" : "no" }, reason),
    make("p", { class: "quiet" }, `${many}${message}`),
  ];
}
