/* Informers for all collections, while the page is visible.
   A browser has six connections per server for all windows, so there are four watches, and none when hidden. */

import { Informer } from "./informer.js";
import { SchedulerCheck } from "./scheduler.js";

const FORBIDDEN = 403;
/** Paths around the namespace, if one is chosen. */
const COLLECTIONS = {
  nodes: { root: "/api/v1", plural: "nodes", isNamespaced: false },
  pods: { root: "/api/v1", plural: "pods", isNamespaced: true },
  groups: { root: "/apis/scheduling.k8s.io/v1beta1", plural: "podgroups", isNamespaced: true },
  // Conditions show earlier bindings: only new ones are needed as events.
  events: {
    root: "/api/v1", plural: "events", isNamespaced: true,
    listed: "reason!=SuccessfulCreate,reason!=Scheduled", watched: "reason!=SuccessfulCreate",
  },
};

export class Live {
  /**
   * Calls `stateChanged({missing, denied, failure, outage})`, and `rejected(error)` when the token is rejected. `denied` are
   * the collections that the user may not list. With a `namespace` only its objects are listed.
   */
  constructor(api, cluster, { namespace = "", stateChanged, rejected }) {
    Object.assign(this, { stateChanged, rejected });
    this.missing = new Set(Object.keys(COLLECTIONS));
    this.failures = new Map();
    this.denied = new Set();
    this.scheduler = new SchedulerCheck(api, () => this.#report());
    const sinks = cluster.sinks();
    this.informers = Object.entries(COLLECTIONS).map(([name, { root, plural, isNamespaced, listed, watched }]) => {
      const within = namespace && isNamespaced ? `/namespaces/${encodeURIComponent(namespace)}` : "";
      return new Informer(api, { path: `${root}${within}/${plural}`, listed, watched }, this.#sink(name, sinks[name]));
    });
  }

  #sink(name, { replace, apply }) {
    return {
      apply,
      replace: (items) => { replace(items); this.missing.delete(name); this.denied.delete(name); this.#report(); },
      failed: (error) => this.#fail(name, error, replace),
      recovered: () => { if (this.failures.delete(name)) this.#report(); },
    };
  }

  /** A missing right is no failure: it stays until an administrator grants it. */
  #fail(name, error, replace) {
    if (error.code === FORBIDDEN) {
      if (!this.denied.has(name)) replace([]);
      this.denied.add(name);
      this.missing.delete(name);
    } else this.failures.set(name, `${name}: ${error.message}`);
    this.#report();
  }

  #report() {
    this.stateChanged({
      missing: [...this.missing], denied: [...this.denied], failure: [...this.failures.values()][0] ?? "", outage: this.scheduler.outage,
    });
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
