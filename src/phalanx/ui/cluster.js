/* What the page knows of the cluster: rows by name, and which pods are where and whose. */

import { Colours } from "./colour.js";
import * as rows from "./rows.js";

/** Events are news: older ones make room. */
const NEWS = 5000;

export class Cluster {
  constructor(changed = () => {}) {
    this.nodes = new Map();
    this.pods = new Map();
    this.groups = new Map();
    this.events = new Map();
    this.onNode = new Map();
    this.inGroup = new Map();
    this.labelled = 0;
    /** Nodes whose pods have changed since the map was drawn. */
    this.touched = new Set();
    this.colours = new Colours();
    this.changed = changed;
  }

  /** Sinks for informers: how each collection is kept. */
  sinks() {
    const full = ({ metadata }) => rows.keyOf(metadata.namespace, metadata.name);
    return {
      nodes: this.#sink((obj) => obj.metadata.name, rows.node, this.nodes, () => this.#relabel()),
      pods: this.#sink(full, rows.pod, this.pods, (now, old) => this.#move(now, old)),
      groups: this.#sink(full, rows.group, this.groups, (now, old) => this.#paint(now, old)),
      events: this.#sink((obj) => obj.metadata.uid, rows.event, this.events, () => this.#forget()),
    };
  }

  #sink(keyed, read, table, after = () => {}) {
    const put = (key, row) => {
      const old = table.get(key);
      if (row) table.set(key, row);
      else table.delete(key);
      after(row, old);
    };
    return {
      replace: (items) => {
        const kept = new Set(items.map(keyed));
        for (const key of [...table.keys()]) if (!kept.has(key)) put(key, null);
        for (const obj of items) put(keyed(obj), read(obj));
        this.changed();
      },
      apply: (type, obj) => {
        put(keyed(obj), type === "DELETED" ? null : read(obj));
        this.changed();
      },
    };
  }

  /** Nodes came, went or changed: the map is to be laid out anew. */
  #relabel() {
    this.labelled++;
  }

  /** A pod came, went or changed: its node is to be drawn anew. */
  #move(now, old) {
    for (const pod of [now, old]) if (pod?.node) this.touched.add(pod.node);
    leave(this.onNode, old?.node, old);
    leave(this.inGroup, old?.group, old);
    enter(this.onNode, now?.node, now);
    enter(this.inGroup, now?.group, now);
  }

  #paint(now, old) {
    if (now) this.colours.give(now.key);
    else if (old) {
      this.colours.free(old.key);
      for (const pod of this.members(old.key)) if (pod.node) this.touched.add(pod.node);
    }
  }

  #forget() {
    if (this.events.size > NEWS) this.events.delete(this.events.keys().next().value);
  }

  /** The pods on a node that still take room, those of one gang side by side. */
  running(name) {
    const found = [...(this.onNode.get(name)?.values() ?? [])].filter((pod) => !pod.ended);
    return found.sort((a, b) => compare(a.group, b.group) || compare(a.key, b.key));
  }

  members(group) {
    return [...(this.inGroup.get(group)?.values() ?? [])];
  }

  /** Groups with members that have no node, and those that the scheduler refused: important first, then old. */
  waiting() {
    const found = [...this.groups.values()].filter((one) => this.#waits(one));
    return found.sort((a, b) => b.priority - a.priority || compare(a.created, b.created) || compare(a.key, b.key));
  }

  #waits(group) {
    const members = this.members(group.key);
    if (members.some((pod) => !pod.node && !pod.ended)) return true;
    return !members.length && rows.standing(group).status === "False";
  }
}

export const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);

function enter(index, key, pod) {
  if (!key) return;
  if (!index.has(key)) index.set(key, new Map());
  index.get(key).set(pod.key, pod);
}

function leave(index, key, pod) {
  const found = key && index.get(key);
  if (!found) return;
  found.delete(pod.key);
  if (!found.size) index.delete(key);
}
