/* A collection kept up to date: listed once, then watched; resumed after a cut, listed anew when
   the server no longer knows, or does not know yet, what was seen last. */

const SHORTEST = 500;
const LONGEST = 15000;
/** Refusals of a version: too old, or, of a server that began anew, not yet. */
const LOST = new Set([410, 504]);
const UNKNOWN = 401;

/** Tells `sink.replace(items)` what there is, and `sink.apply(type, object)` what becomes of it. */
export class Informer {
  constructor(api, { path, listed = "", watched = listed }, sink, pause = rest) {
    Object.assign(this, { api, path, listed, watched, sink, pause });
    this.version = "";
    this.wait = SHORTEST;
  }

  /** Runs until the signal; comes back to what it had when run again. Throws if the token ends. */
  async run(signal) {
    while (!signal.aborted) {
      try {
        await this.#turn(signal);
      } catch (error) {
        if (signal.aborted) return;
        if (error.code === UNKNOWN) throw error;
        if (LOST.has(error.code)) this.version = "";
        this.sink.troubled(error);
        await this.pause(this.wait * (0.5 + Math.random() / 2), signal);
        this.wait = Math.min(this.wait * 2, LONGEST);
      }
    }
  }

  async #turn(signal) {
    if (!this.version) {
      const { items, version } = await this.api.list(this.path, this.listed, signal);
      this.sink.replace(items);
      this.version = version;
    }
    const changes = await this.api.watch(this.path, this.watched, this.version, signal);
    this.wait = SHORTEST;
    this.sink.recovered();
    for await (const { type, object } of changes) {
      this.version = object.metadata.resourceVersion;
      if (type !== "BOOKMARK") this.sink.apply(type, object);
    }
  }
}

/** A while, or until the signal. */
function rest(milliseconds, signal) {
  return new Promise((done) => {
    const timer = setTimeout(done, milliseconds);
    signal.addEventListener("abort", () => { clearTimeout(timer); done(); }, { once: true });
  });
}
