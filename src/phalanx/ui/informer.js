/* Keeps a collection up to date: lists it once, then watches it. A broken watch resumes; the collection is
   listed again when the server does not have the resource version any more, or not yet. */

/** Milliseconds of back-off. */
const MIN_BACKOFF = 500;
const MAX_BACKOFF = 15000;
/** Codes for an unknown resource version: expired (410), or ahead of a restarted server (504). */
const VERSION_UNKNOWN = new Set([410, 504]);
const UNAUTHORIZED = 401;
/** Milliseconds of changes after which frames and keys get their turn: many changes may have arrived at once. */
const MAX_WORK = 8;

/** Calls `sink.replace(items)` after a list, `sink.apply(type, object)` for each change, `sink.failed(error)` and `sink.recovered()`. */
export class Informer {
  constructor(api, { path, listed = "", watched = listed }, sink, pause = sleep) {
    Object.assign(this, { api, path, listed, watched, sink, pause });
    this.version = "";
    this.backoff = MIN_BACKOFF;
  }

  /** Runs until the signal; run again, it resumes. Throws if the token is rejected. */
  async run(signal) {
    while (!signal.aborted) {
      try {
        await this.#listAndWatch(signal);
      } catch (error) {
        if (signal.aborted) return;
        if (error.code === UNAUTHORIZED) throw error;
        if (VERSION_UNKNOWN.has(error.code)) this.version = "";
        this.sink.failed(error);
        await this.pause(this.backoff * (0.5 + Math.random() / 2), signal);
        this.backoff = Math.min(this.backoff * 2, MAX_BACKOFF);
      }
    }
  }

  async #listAndWatch(signal) {
    if (!this.version) {
      const { items, version } = await this.api.list(this.path, this.listed, signal);
      this.sink.replace(items);
      this.version = version;
    }
    const changes = await this.api.watch(this.path, this.watched, this.version, signal);
    this.backoff = MIN_BACKOFF;
    this.sink.recovered();
    let begin = performance.now();
    for await (const { type, object } of changes) {
      this.version = object.metadata.resourceVersion;
      if (type !== "BOOKMARK") this.sink.apply(type, object);
      if (performance.now() - begin < MAX_WORK) continue;
      await nextTask();
      begin = performance.now();
    }
  }
}

/** Lets the browser draw and handle input. */
const nextTask = () => new Promise((done) => setTimeout(done));

/** Waits for some milliseconds, or until the signal. */
export function sleep(milliseconds, signal) {
  return new Promise((done) => {
    const timer = setTimeout(done, milliseconds);
    signal.addEventListener("abort", () => { clearTimeout(timer); done(); }, { once: true });
  });
}
