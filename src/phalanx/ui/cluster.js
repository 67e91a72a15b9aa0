/* The cluster as the page knows it: rows by name, and pods by node and by group. */

import { Colours } from "./colour.js";
import * as rows from "./rows.js";

/** Number of events to keep; the oldest are dropped first. */
const MAX_EVENTS = 5000;

export class Cluster {
  constructor(changed = () => {}) {
    this.nodes = new Map();
    this.pods = new Map();
    this.groups = new Map();
    this.events = new Map();
    this.onNode = new Map();
    this.inGroup = new Map();
    /** Changes with every change of a node that is shown: the map must be laid out again. */
    this.nodeVersion = 0;
    /** Nodes whose pods have changed since the map was drawn. */
    this.dirtyNodes = new Set();
    this.colours = new Colours();
    this.changed = changed;
  }

  /** Returns a sink for the informer of each collection. */
  sinks() {
    const full = ({ metadata }) => rows.keyOf(metadata.namespace, metadata.name);
    return {
      nodes: this.#sink((obj) => obj.metadata.name, rows.node, this.nodes, (now, old) => this.#changeNode(now, old)),
      pods: this.#sink(full, rows.pod, this.pods, (now, old) => this.#indexPod(now, old)),
      groups: this.#sink(full, rows.group, this.groups, (now, old) => this.#assignColour(now, old)),
      events: this.#sink((obj) => obj.metadata.uid, rows.event, this.events, () => this.#dropOldEvents()),
    };
  }

  #sink(keyOf, read, table, after = () => {}) {
    const put = (key, row) => {
      const old = table.get(key);
      if (row) table.set(key, row);
      else table.delete(key);
      after(row, old);
    };
    return {
      replace: (items) => {
        const kept = new Set(items.map(keyOf));
        for (const key of [...table.keys()]) if (!kept.has(key)) put(key, null);
        for (const obj of items) put(keyOf(obj), read(obj));
        this.changed();
      },
      apply: (type, obj) => {
        put(keyOf(obj), type === "DELETED" ? null : read(obj));
        this.changed();
      },
    };
  }

  /** Nodes report their status often, mostly the same as before. */
  #changeNode(now, old) {
    if (JSON.stringify(now) !== JSON.stringify(old)) this.nodeVersion++;
  }

  /** Updates the indexes; the pod's node must be drawn again. */
  #indexPod(now, old) {
    for (const pod of [now, old]) if (pod?.node) this.dirtyNodes.add(pod.node);
    removeFrom(this.onNode, old?.node, old);
    removeFrom(this.inGroup, old?.group, old);
    addTo(this.onNode, now?.node, now);
    addTo(this.inGroup, now?.group, now);
  }

  #assignColour(now, old) {
    if (now) this.colours.assign(now.key);
    else if (old) {
      this.colours.release(old.key);
      for (const pod of this.members(old.key)) if (pod.node) this.dirtyNodes.add(pod.node);
    }
  }

  #dropOldEvents() {
    if (this.events.size > MAX_EVENTS) this.events.delete(this.events.keys().next().value);
  }

  /** Returns the pods of a node that have not ended, grouped by gang. */
  running(name) {
    const found = [...(this.onNode.get(name)?.values() ?? [])].filter((pod) => !pod.ended);
    return found.sort((a, b) => compare(a.group, b.group) || compare(a.key, b.key));
  }

  members(group) {
    return [...(this.inGroup.get(group)?.values() ?? [])];
  }

  /** Returns the groups of a CompositePodGroup. */
  childrenOf(key) {
    return [...this.groups.values()].filter(({ namespace, parent }) => parent && rows.keyOf(namespace, parent) === key);
  }

  /** Returns the key of the gang that is named so: a group, a tree, or else the newest group of the owner with this name. */
  findGang(key) {
    if (this.groups.has(key) || this.inGroup.has(key) || this.childrenOf(key).length) return key;
    const owned = [...this.groups.values()].filter(({ namespace, owner }) => owner && rows.keyOf(namespace, owner.name) === key);
    return owned.sort((a, b) => compare(b.created, a.created) || compare(a.key, b.key))[0]?.key ?? key;
  }

  /** Returns groups with members without a node or with a False condition, by priority, then by age. */
  waiting() {
    const found = [...this.groups.values()].filter((one) => this.#isWaiting(one));
    return found.sort((a, b) => b.priority - a.priority || compare(a.created, b.created) || compare(a.key, b.key));
  }

  #isWaiting(group) {
    const members = this.members(group.key);
    if (members.some((pod) => !pod.node && !pod.ended)) return true;
    return !members.length && rows.placementCondition(group).status === "False";
  }
}

export const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);

function addTo(index, key, pod) {
  if (!key) return;
  if (!index.has(key)) index.set(key, new Map());
  index.get(key).set(pod.key, pod);
}

function removeFrom(index, key, pod) {
  const found = key && index.get(key);
  if (!found) return;
  found.delete(pod.key);
  if (!found.size) index.delete(key);
}
