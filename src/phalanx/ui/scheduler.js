/* Whether a scheduler runs: `/readyz` says so if the server runs with one, else the scheduler's Lease. */

import { sleep } from "./informer.js";

/** Milliseconds between two checks. */
const INTERVAL = 5000;
const LEASE = "kube-system/default-scheduler";
const LEASE_PATH = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/default-scheduler";
const NOT_FOUND = 404;

/** Calls `changed(outage)` with why no scheduler runs; "" if one does, or if that is unknown. */
export class SchedulerCheck {
  constructor(api, changed, { pause = sleep, now = Date.now } = {}) {
    Object.assign(this, { api, changed, pause, now });
    this.outage = "";
  }

  /** Checks until the signal. */
  async run(signal) {
    while (!signal.aborted) {
      const outage = await this.#findOutage(signal).catch(() => "");
      if (outage !== this.outage && !signal.aborted) this.changed((this.outage = outage));
      await this.pause(INTERVAL, signal);
    }
  }

  async #findOutage(signal) {
    // A failed check is an error response with the same lines.
    const text = await this.api.request("/readyz?verbose", { signal }).then((response) => response.text(), (error) => error.message);
    const check = /^\[[+-]\]scheduler (?:ok|failed: (.*))$/m.exec(text);
    if (check) return check[1] ?? "";
    const found = await this.#lease(signal);
    return found && `no scheduler is running: ${found}`;
  }

  /** Returns why the Lease is not held; "" if it is. Throws if it may not be read. */
  async #lease(signal) {
    let lease;
    try {
      lease = await this.api.get(LEASE_PATH, signal);
    } catch (error) {
      if (error.code === NOT_FOUND) return `there is no Lease ${LEASE}`;
      throw error;
    }
    const { holderIdentity, renewTime, leaseDurationSeconds } = lease.spec;
    if (!holderIdentity || !renewTime) return `nothing holds the Lease ${LEASE}`;
    const seconds = Math.round((this.now() - Date.parse(renewTime)) / 1000);
    return seconds > leaseDurationSeconds ? `${holderIdentity} has not renewed the Lease ${LEASE} for ${seconds} s` : "";
  }
}
