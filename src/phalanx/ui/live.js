/* The cluster as it is now: an informer for each collection, while somebody looks.
   A browser grants a host six connections in all its windows, so there are four watches and none when hidden. */

import { Informer } from "./informer.js";

const COLLECTIONS = {
  nodes: { path: "/api/v1/nodes" },
  pods: { path: "/api/v1/pods" },
  groups: { path: "/apis/scheduling.k8s.io/v1beta1/podgroups" },
  // Of the past only what conditions do not tell; from now on every bind too.
  events: {
    path: "/api/v1/events",
    listed: "reason!=SuccessfulCreate,reason!=Scheduled",
    watched: "reason!=SuccessfulCreate",
  },
};

export class Live {
  /** `heard(state)` is told how it goes: `{missing, trouble}`; `refused(error)` that the token ended. */
  constructor(api, cluster, { heard, refused }) {
    Object.assign(this, { heard, refused });
    this.missing = new Set(Object.keys(COLLECTIONS));
    this.troubles = new Map();
    const sinks = cluster.sinks();
    this.informers = Object.entries(COLLECTIONS).map(([name, place]) => new Informer(api, place, this.#sink(name, sinks[name])));
  }

  #sink(name, { replace, apply }) {
    return {
      apply,
      replace: (items) => { replace(items); this.missing.delete(name); this.#tell(); },
      troubled: (error) => { this.troubles.set(name, `${name}: ${error.message}`); this.#tell(); },
      recovered: () => { if (this.troubles.delete(name)) this.#tell(); },
    };
  }

  #tell() {
    this.heard({ missing: [...this.missing], trouble: [...this.troubles.values()][0] ?? "" });
  }

  start() {
    if (this.stopper && !this.stopper.signal.aborted) return;
    this.stopper = new AbortController();
    const { signal } = this.stopper;
    this.#tell();
    for (const informer of this.informers) {
      informer.run(signal).catch((error) => { this.stop(); this.refused(error); });
    }
  }

  stop() {
    this.stopper?.abort();
  }
}
