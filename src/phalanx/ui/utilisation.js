/* Utilisation: the present shares from the watched objects, those of the last hours from the samples of the server. */

import { make } from "./element.js";
import { formatMoment } from "./format.js";
import { sleep } from "./informer.js";
import { drawPlot } from "./plot.js";
import { formatAmount } from "./quantity.js";

const PATH = "/phalanx/v1/utilisation";
/** Milliseconds between two reads. */
const INTERVAL = 15000;
const FORBIDDEN = 403;
const MAX_POINTS = 1700;
const MAX_CARDS = 4;
/** Seconds that a plot shows at least. */
const MIN_SPAN = 300;
/** Hours that can be shown. */
export const RANGES = [1, 6, 24];
const GPU = /gpu|accelerator|tpu/i;
const TITLES = { cpu: "CPU", memory: "Memory", devices: "Devices" };

/** The samples of the server. */
export class Utilisation {
  constructor(api, changed, pause = sleep) {
    Object.assign(this, { api, changed, pause, resources: [], points: [], problem: "" });
  }

  /** Reads until the signal; only samples that are not known yet. */
  async run(signal) {
    while (!signal.aborted) {
      await this.#read(signal).catch((error) => {
        if (signal.aborted) return;
        this.problem = error.code === FORBIDDEN ? "no right to list nodes and pods of all namespaces" : error.message;
        this.changed();
      });
      await this.pause(INTERVAL, signal);
    }
  }

  async #read(signal) {
    const { resources, points } = await this.api.get(`${PATH}?since=${this.points.at(-1)?.[0] ?? 0}`, signal);
    // A restarted server may have the resources in another order: rows of before would be misread.
    const isContinued = this.resources.every((name, at) => name === resources[at]);
    this.problem = "";
    this.resources = resources;
    this.points = [...(isContinued ? this.points : []), ...points].slice(-MAX_POINTS);
    this.changed();
  }

  /** Returns `[time, used, total]` of a resource. */
  series(name) {
    const at = this.resources.indexOf(name);
    return at < 0 ? [] : this.points.map((row) => [row[0], row[1 + 2 * at] ?? 0, row[2 + 2 * at] ?? 0]);
  }
}

/** Sums up what the nodes have and what their pods request now: name -> `{used, total}`. */
export function currentUse(cluster) {
  const sums = new Map();
  const sum = (name) => sums.get(name) ?? sums.set(name, { used: 0, total: 0 }).get(name);
  for (const node of cluster.nodes.values()) {
    for (const name in node.allocatable) sum(name).total += node.allocatable[name];
  }
  for (const pod of cluster.pods.values()) {
    if (!pod.node || pod.ended) continue;
    for (const name in pod.requests) sum(name).used += pod.requests[name];
  }
  return sums;
}

/** Returns the resources that are shown: accelerators first, then CPU and memory, then other extended resources. */
export function shownResources(names) {
  const rank = (name) => (GPU.test(name) ? 0 : name === "cpu" ? 1 : name === "memory" ? 2 : name === "devices" ? 3 : 4);
  return names.filter((name) => name in TITLES || name.includes("/")).sort((a, b) => rank(a) - rank(b) || (a < b ? -1 : 1)).slice(0, MAX_CARDS);
}

/** Draws a card per resource. */
export class UtilisationView {
  constructor({ cards, ranges, note }) {
    Object.assign(this, { cards, ranges, note, hours: RANGES[0], stamp: "" });
    ranges.replaceChildren(...RANGES.map((hours) =>
      make("button", { type: "button", class: "chip", "aria-pressed": String(hours === this.hours), onclick: () => this.#choose(hours) }, `${hours} h`)));
  }

  #choose(hours) {
    this.hours = hours;
    this.ranges.querySelectorAll("button").forEach((button, at) => button.setAttribute("aria-pressed", String(RANGES[at] === hours)));
    this.draw(...this.last);
  }

  draw(cluster, history, now = Date.now() / 1000) {
    this.last = [cluster, history];
    const sums = currentUse(cluster);
    const latest = history.points.length ? history.series("devices").at(-1) : null;
    if (latest?.[2]) sums.set("devices", { used: latest[1], total: latest[2] });
    const names = shownResources([...sums].filter(([, { total }]) => total).map(([name]) => name));
    const cards = names.map((name) => cardOf(name, sums.get(name), history.series(name)));
    const stamp = JSON.stringify([cards.map(({ now: present }) => present), history.points.length, history.points.at(-1)?.[0], this.hours, Math.floor(now / 15)]);
    this.note.textContent = history.problem ? `No history: ${history.problem}.` : "";
    if (stamp === this.stamp) return;
    this.stamp = stamp;
    this.cards.replaceChildren(...cards.map((card) => drawCard(card, axisStart(history, now, this.hours), now, this.hours)));
  }
}

/** Returns where the axis begins: at the first sample if the history is shorter than the chosen hours. */
function axisStart(history, now, hours) {
  const first = Math.min(history.points[0]?.[0] ?? now, now - MIN_SPAN);
  return Math.max(now - hours * 3600, first);
}

function cardOf(name, { used, total }, series) {
  const shares = series.filter(([, , all]) => all).map(([time, part, all]) => [time, part / all]);
  return { name, now: [name, Math.round((100 * used) / total), formatAmount(name, used), formatAmount(name, total)], shares };
}

function drawCard({ name, now: [, percent, used, total], shares }, from, to, hours) {
  const shown = shares.filter(([time]) => time >= from).map(([, share]) => Math.round(100 * share));
  const span = shown.length ? `${Math.min(...shown)} to ${Math.max(...shown)} %` : "no samples yet";
  const title = TITLES[name] ?? name;
  const label = `${title}: ${percent} % used now; ${span} in the last ${hours} h`;
  return make("div", { class: "card" },
    make("h3", { title: name }, title),
    make("p", { class: "big" }, make("b", {}, `${percent} %`), make("span", { class: "quiet" }, `${used} of ${total}`)),
    drawPlot([...shares, [to, percent / 100]], { from, to, label }),
    make("p", { class: "axis quiet" }, make("span", {}, formatMoment(from * 1000, to * 1000).slice(0, -3)), make("span", {}, span), make("span", {}, "now")));
}
