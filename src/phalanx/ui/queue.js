/* The queue: what `phalanx queue --ended` lists, read from the server while the page is visible. */

import { sleep } from "./informer.js";

const PATH = "/phalanx/v1/queue";
/** Milliseconds between two reads, and while the first report is being made. */
const INTERVAL = 2000;
const FIRST_INTERVAL = 400;
const PENDING = 202;
/** Milliseconds after which a report is called old: a busy machine makes the next one later than usual. */
const MAX_AGE = 30000;

export class Queue {
  /** Calls `changed()` after every new report or error. */
  constructor(api, changed, { pause = sleep, now = Date.now } = {}) {
    Object.assign(this, { api, changed, pause, now });
    /** Entries; null before the first report. */
    this.items = null;
    this.at = "";
    this.since = 0;
    /** Whether the page must say from when the report is. */
    this.isOld = false;
    this.problem = "";
    this.namespace = "";
  }

  /** Reads until the signal. */
  async run(signal) {
    while (!signal.aborted) {
      await this.#read(signal).catch((error) => signal.aborted || this.#report(error.message));
      await this.pause(this.items || this.problem ? INTERVAL : FIRST_INTERVAL, signal);
    }
  }

  async #read(signal) {
    const query = this.namespace ? `?${new URLSearchParams({ namespace: this.namespace })}` : "";
    const response = await this.api.request(`${PATH}${query}`, { signal });
    if (response.status === PENDING) return;
    const { at, items, error = "" } = await response.json();
    if (error) return this.#report(error);
    // Two clocks may differ: the age is counted from when the page first got the report.
    const now = this.now();
    if (at !== this.at) this.since = now;
    const isOld = now - this.since > MAX_AGE;
    if (at === this.at && isOld === this.isOld && !this.problem) return;
    this.isOld = isOld;
    [this.items, this.at] = [items, at];
    this.#report("");
  }

  #report(problem) {
    if (problem && problem === this.problem) return;
    this.problem = problem;
    this.changed();
  }

  /** Returns the entry of a gang or pod; undefined if it has none. */
  find(namespace, name) {
    return this.items?.find((one) => one.namespace === namespace && one.name === name);
  }
}
