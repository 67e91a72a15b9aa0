/* The forecast: gangs that wait, in the order in which the scheduler tries them, with their expected starts on one axis. */

import { badge, make, setText } from "./element.js";
import { formatDuration, formatMoment, plural, secondsSince } from "./format.js";
import { hrefOfObject } from "./route.js";
import { stateLabel, stateTone } from "./states.js";

const WAITING = new Set(["waiting", "reserved", "preempted", "held", "never"]);
const MAX_ROWS = 200;
const MIN_HORIZON = 10 * 60;
/** Lengths of the axis, in seconds; the first one that is long enough is used. */
const HORIZONS = [10 * 60, 30 * 60, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 24 * 3600, 3 * 24 * 3600, 7 * 24 * 3600];

/** Returns what waits, by position; what has none (held, never) is last. */
export function waitingInOrder(items) {
  const found = items.filter((one) => WAITING.has(one.state));
  return found.sort((a, b) => (a.position ?? Infinity) - (b.position ?? Infinity) || (a.since < b.since ? -1 : 1));
}

/** Returns seconds until the expected start; null if it is unknown. */
export function secondsToStart({ expectedStart }, now) {
  return expectedStart ? Math.max(0, -secondsSince(expectedStart, now)) : null;
}

/** Returns the length of the axis: it contains the last expected start. */
export function horizonOf(starts) {
  const last = Math.max(MIN_HORIZON, ...starts.filter((one) => one !== null));
  return HORIZONS.find((one) => one >= last) ?? last;
}

/** Returns the sentence above the axis. */
export function forecastSummary(items, now) {
  if (!items.length) return "Nothing waits.";
  const known = items.filter((one) => one.expectedStart).sort((a, b) => (a.expectedStart < b.expectedStart ? -1 : 1));
  const never = items.filter((one) => one.state === "never").length;
  const parts = [`${plural(items.length, "gang")} wait${items.length === 1 ? "s" : ""}`, `${known.length} with an expected start`];
  if (never) parts.push(`${never} cannot fit on these nodes`);
  if (!known.length) return `${parts.join(", ")}.`;
  const seconds = secondsToStart(known[0], now);
  return `${parts.join(", ")}. Next: ${known[0].argument} ${seconds ? `in ${formatDuration(seconds)}` : "now"}.`;
}

export class ForecastView {
  constructor({ summary, axis, list }, cluster, { theme }) {
    Object.assign(this, { summary, axis, list, cluster, theme, stamp: "" });
  }

  draw(queue, matches, now = Date.now()) {
    const all = waitingInOrder(queue.items ?? []);
    const shown = all.filter((one) => matches(`${one.namespace}/${one.argument} ${one.name}`));
    const text = queue.items ? forecastSummary(all, now) : queue.problem ? `The queue cannot be read: ${queue.problem}` : "Reading the queue…";
    setText(this.summary, text);
    const stamp = JSON.stringify([queue.at, shown.map((one) => one.name), this.theme.name]);
    if (stamp === this.stamp) return;
    this.stamp = stamp;
    const horizon = horizonOf(shown.map((one) => secondsToStart(one, now)));
    this.axis.hidden = !shown.length;
    this.axis.replaceChildren(make("span", { class: "ticks" }, ...[0, 0.25, 0.5, 0.75, 1].map((part) =>
      make("span", {}, part ? formatMoment(now + part * horizon * 1000, now).slice(0, -3) : "now"))));
    const focused = this.list.contains(document.activeElement) && document.activeElement.getAttribute("href");
    this.list.replaceChildren(...shown.slice(0, MAX_ROWS).map((one) => this.#row(one, horizon, now)));
    if (shown.length > MAX_ROWS) this.list.append(make("li", { class: "quiet" }, `and ${shown.length - MAX_ROWS} more`));
    if (focused) [...this.list.querySelectorAll("a")].find((one) => one.getAttribute("href") === focused)?.focus();
  }

  #row(one, horizon, now) {
    const seconds = secondsToStart(one, now);
    const share = seconds === null ? null : Math.min(100, (100 * seconds) / horizon);
    const key = `${one.namespace}/${one.name}`;
    const tint = this.cluster.colours.of(one.kind === "Pod" ? "" : key, this.theme.name);
    return make("li", {},
      make("span", { class: "position number" }, one.position ? String(one.position) : "–"),
      make("span", { class: "who" },
        make("a", { class: "link", href: hrefOfObject(one.kind, one.namespace, one.name) }, make("span", { class: "swatch", tint }), one.argument),
        make("span", { class: "quiet" }, `${one.namespace}, ${plural(one.members, "pod")}, priority ${one.priority}`)),
      badge(stateTone(one.state), stateLabel(one.state)),
      make("span", { class: "track", "aria-hidden": "true" },
        share === null ? null : make("i", { class: "wait", wide: share }), share === null ? null : make("i", { class: "start", tint })),
      make("span", { class: "when" }, make("b", {}, startPhrase(one, seconds)), make("span", { class: "quiet" }, causeText(one, this.cluster.groups.get(key)))));
  }
}

function startPhrase({ state }, seconds) {
  if (state === "never") return "never on these nodes";
  if (state === "held") return "when it is complete";
  if (seconds === null) return "unknown";
  return seconds ? `in ${formatDuration(seconds)}` : "now";
}

/** Says for what an entry waits: as planned for the queue, else as the scheduler has written it when it reserved nodes. */
export function causeText({ waitsFor, message, reason, state }, group) {
  if (state === "never") return "does not fit even if nothing else ran";
  return endsText({ waitsFor, state }, group) || message || reason;
}

/** Says which gangs must end first; "" if that is not known. */
function endsText({ waitsFor, state }, group) {
  if (waitsFor?.length) {
    const names = waitsFor.length > 3 ? [...waitsFor.slice(0, 3), `${waitsFor.length - 3} more`] : waitsFor;
    return `when ${names.join(", ")} ${waitsFor.length === 1 ? "ends" : "end"}`;
  }
  const reserved = state === "reserved" && group?.conditions.find((one) => one.type === "Reserved" && one.status === "True");
  return /, (when .* ends?)$/.exec(reserved?.message ?? "")?.[1] ?? "";
}

/** Says when a waiting gang is expected to start, and whether nodes are reserved for it; "" if nothing is known. */
export function startSentence(entry, group, now = Date.now()) {
  const reserved = entry?.state === "reserved" ? "Nodes are reserved." : "";
  if (!entry?.expectedStart) return reserved;
  const [seconds, ends] = [secondsToStart(entry, now), endsText(entry, group)];
  const start = `Expected to start ${seconds ? `in ${formatDuration(seconds)}` : "now"}${ends && `, ${ends}`}.`;
  return [reserved, start].filter(Boolean).join(" ");
}
