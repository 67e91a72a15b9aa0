/* The table of gangs: what `phalanx queue --ended` lists, with filters that are part of the address. */

import { FreeCapacity, gangCapacity, shortageSentence } from "./capacity.js";
import { badge, make, setText } from "./element.js";
import { formatDuration, plural, secondsSince } from "./format.js";
import { hrefOfObject, hrefOfView } from "./route.js";
import { countStates, ENDED, STATE_ORDER, stateLabel, stateTone } from "./states.js";
import { Table } from "./table.js";

const DEFAULT_SORT = "state";
const NO_POSITION = Infinity;
/** States in which what the nodes lack is the reason. */
const WAITING = new Set(["waiting", "reserved", "preempted", "never"]);
const keyOf = ({ kind, namespace, name }) => `${kind}/${namespace}/${name}`;

export class GangsView {
  /** `parts` are the elements; `navigate(href)` replaces the address. */
  constructor({ table, states, namespace, empty, title }, cluster, { theme, navigate }) {
    Object.assign(this, { parts: { table, states, namespace, empty, title }, cluster, theme, navigate, query: {} });
    this.table = new Table(table, columnsOf(cluster, theme), { sort: DEFAULT_SORT, sorted: (sort) => this.#filter({ sort }) });
    // Not a listener: the view of another namespace replaces this one.
    namespace.onchange = () => this.#filter({ ns: namespace.value });
  }

  /** Removes the table; another view may use its elements. */
  close() {
    this.table.close();
  }

  /** Takes over the filters of an address. */
  follow(query) {
    this.query = query;
    this.table.setSort(query.sort || DEFAULT_SORT);
  }

  #filter(change) {
    this.navigate(hrefOfView("gangs", { ...this.query, ...change }));
  }

  /** Draws the entries of the queue that the filters and the search let through. */
  draw(queue, matches) {
    const { parts: { empty, title, table }, query } = this;
    const all = queue.items ?? [];
    const shortages = this.#shortagesOf(queue);
    const inNamespace = all.filter((one) => !query.ns || one.namespace === query.ns)
      .map((one) => ({ ...one, shortage: shortages.get(keyOf(one)) }));
    const chosen = new Set((query.state ?? "").split(",").filter(Boolean));
    const shown = inNamespace.filter((one) => (!chosen.size || chosen.has(one.state)) && matches(`${one.namespace}/${one.argument} ${one.name}`));
    this.#drawNamespaces(all);
    this.#drawStates(countStates(inNamespace), chosen, inNamespace.length);
    this.table.show(shown, keyOf, (one) => JSON.stringify([one, this.theme.name]));
    setText(title, shown.length === all.length ? `Gangs: ${all.length}` : `Gangs: ${shown.length} of ${all.length}`);
    table.hidden = !shown.length;
    setText(empty, emptyText(queue, all, shown));
  }

  /** Returns what waiting gangs lack, by their key; counted once per report. */
  #shortagesOf({ at, items }) {
    const { cluster } = this;
    if (at === this.shortageStamp || !items) return this.shortages ?? new Map();
    [this.shortageStamp, this.shortages] = [at, new Map()];
    if (!cluster.nodes.size) return this.shortages;
    const [now, ever] = [new FreeCapacity(cluster), new FreeCapacity(cluster, { isEmpty: true })];
    for (const one of items) {
      const group = WAITING.has(one.state) && cluster.groups.get(`${one.namespace}/${one.name}`);
      if (group) this.shortages.set(keyOf(one), shortageSentence(gangCapacity(cluster, group, one.state === "never" ? ever : now), group));
    }
    return this.shortages;
  }

  #drawNamespaces(all) {
    const names = [...new Set([...all.map((one) => one.namespace), this.query.ns].filter(Boolean))].sort();
    const stamp = JSON.stringify([names, this.query.ns]);
    if (stamp === this.namespaceStamp) return;
    this.namespaceStamp = stamp;
    const options = ["", ...names].map((name) => make("option", { value: name }, name || "All namespaces"));
    this.parts.namespace.replaceChildren(...options);
    this.parts.namespace.value = this.query.ns ?? "";
  }

  #drawStates(counts, chosen, total) {
    const stamp = JSON.stringify([counts, [...chosen], total, this.query]);
    if (stamp === this.stateStamp) return;
    this.stateStamp = stamp;
    const focused = this.parts.states.contains(document.activeElement) && document.activeElement.dataset.state;
    const toggle = (state) => [...(chosen.has(state) ? [...chosen].filter((one) => one !== state) : [...chosen, state])].join(",");
    const known = new Set(counts.map(([state]) => state));
    const gone = [...chosen].filter((state) => !known.has(state)).map((state) => [state, 0]);
    this.parts.states.replaceChildren(
      chip("All", "", total, !chosen.size, () => this.#filter({ state: "" })),
      ...[...counts, ...gone].map(([state, count]) =>
        chip(stateLabel(state), state, count, chosen.has(state), () => this.#filter({ state: toggle(state) }))));
    if (typeof focused === "string") [...this.parts.states.querySelectorAll("button")].find((one) => one.dataset.state === focused)?.focus();
  }
}

const chip = (label, state, count, pressed, onclick) =>
  make("button", { type: "button", class: "chip", "data-state": state, "data-tone": state ? stateTone(state) : "", "aria-pressed": String(pressed), onclick },
    `${label} `, make("b", {}, String(count)));

function emptyText(queue, all, shown) {
  if (shown.length) return "";
  if (queue.problem) return `The gangs cannot be listed: ${queue.problem}`;
  if (!queue.items) return "Listing the gangs…";
  return all.length ? "No gang matches the filters and the search." : "No gang runs or waits, and none has ended. The overview shows how to create one.";
}

/** The columns; a gang is named by its owner, as in commands. */
function columnsOf(cluster, theme) {
  return [
    { name: "gang", title: "Gang", value: (one) => `${one.argument} ${one.name}`, cells: (one) => gangCells(cluster, one, theme) },
    { name: "ns", title: "Namespace", optional: true, value: (one) => one.namespace, cells: (one) => [one.namespace] },
    { name: "state", title: "State", value: (one) => `${STATE_ORDER.indexOf(one.state)} ${String(one.position ?? NO_POSITION).padStart(8)}`,
      cells: (one) => [badge(stateTone(one.state), stateLabel(one.state))] },
    { name: "position", title: "Position", number: true, optional: true, value: (one) => one.position ?? NO_POSITION, cells: (one) => [one.position ? String(one.position) : ""] },
    { name: "priority", title: "Priority", number: true, optional: true, value: (one) => one.priority, cells: (one) => [String(one.priority)] },
    { name: "since", title: "Since", number: true, value: (one) => one.since, cells: (one) => [make("time", { datetime: one.since, title: one.since }, formatDuration(one.seconds))] },
    { name: "pods", title: "Pods", number: true, value: (one) => one.members, cells: podCells },
    { name: "nodes", title: "Nodes", number: true, optional: true, value: (one) => one.nodes.length, cells: (one) => [one.nodes.length ? String(one.nodes.length) : ""] },
    { name: "start", title: "Expected start", number: true, optional: true, value: (one) => one.expectedStart ?? "~", cells: (one) => [startText(one)] },
    { name: "reason", title: "Reason", optional: true, value: (one) => one.reason, cells: (one) => [reasonText(one)] },
  ];
}

function gangCells(cluster, one, theme) {
  const key = `${one.namespace}/${one.name}`;
  return [make("a", { class: "link", href: hrefOfObject(one.kind, one.namespace, one.name), title: `${one.kind} ${key}` },
    make("span", { class: "swatch", tint: cluster.colours.of(one.kind === "Pod" ? "" : key, theme.name) }), one.argument)];
}

/** Pods with a node of all pods; of a gang that has ended, those that succeeded. */
function podCells({ state, placed, members, needed, ended, failed }) {
  const done = ENDED.has(state) ? ended - failed : placed;
  const share = members ? Math.round((100 * (ENDED.has(state) ? done : placed + ended)) / members) : 0;
  return [
    make("span", { class: "share", "aria-hidden": "true" }, make("i", { wide: share })),
    make("span", { title: `${placed} placed, ${plural(members, "member")}, ${needed} needed at once${ended ? `, ${ended} ended, ${failed} failed` : ""}` }, `${done}/${members}`),
  ];
}

export function startText({ expectedStart, state }, now = Date.now()) {
  if (!expectedStart) return state === "reserved" ? "unknown" : "";
  const seconds = -secondsSince(expectedStart, now);
  return seconds <= 0 ? "now" : `in ${formatDuration(seconds)}`;
}

function reasonText({ state, reason, preempted, message, failed, ended, shortage }) {
  if (state === "preempted" && preempted) return preempted;
  if (state === "failed" && failed) return `${reason || "Failed"}, ${failed} of ${ended} ended pods failed`;
  return state === "running" || state === "completed" ? reason : shortage || message || reason;
}
