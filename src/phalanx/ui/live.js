/* Informers for all collections, while the page is visible.
   A browser has six connections per server for all windows, so there are four watches, and none when hidden. */

import { Informer } from "./informer.js";
import { SchedulerCheck } from "./scheduler.js";

const COLLECTIONS = {
  nodes: { path: "/api/v1/nodes" },
  pods: { path: "/api/v1/pods" },
  groups: { path: "/apis/scheduling.k8s.io/v1beta1/podgroups" },
  // Conditions show earlier bindings: only new ones are needed as events.
  events: {
    path: "/api/v1/events",
    listed: "reason!=SuccessfulCreate,reason!=Scheduled",
    watched: "reason!=SuccessfulCreate",
  },
};

export class Live {
  /** Calls `stateChanged({missing, failure, outage})`, and `rejected(error)` when the token is rejected. */
  constructor(api, cluster, { stateChanged, rejected }) {
    Object.assign(this, { stateChanged, rejected });
    this.missing = new Set(Object.keys(COLLECTIONS));
    this.failures = new Map();
    this.scheduler = new SchedulerCheck(api, () => this.#report());
    const sinks = cluster.sinks();
    this.informers = Object.entries(COLLECTIONS).map(([name, place]) => new Informer(api, place, this.#sink(name, sinks[name])));
  }

  #sink(name, { replace, apply }) {
    return {
      apply,
      replace: (items) => { replace(items); this.missing.delete(name); this.#report(); },
      failed: (error) => { this.failures.set(name, `${name}: ${error.message}`); this.#report(); },
      recovered: () => { if (this.failures.delete(name)) this.#report(); },
    };
  }

  #report() {
    this.stateChanged({ missing: [...this.missing], failure: [...this.failures.values()][0] ?? "", outage: this.scheduler.outage });
  }

  start() {
    if (this.stopper && !this.stopper.signal.aborted) return;
    this.stopper = new AbortController();
    const { signal } = this.stopper;
    this.#report();
    this.scheduler.run(signal);
    for (const informer of this.informers) {
      informer.run(signal).catch((error) => { this.stop(); this.rejected(error); });
    }
  }

  stop() {
    this.stopper?.abort();
  }
}
