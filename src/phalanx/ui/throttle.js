/* Runs work once for many requests: at an animation frame, at most once per interval. */

export class Throttle {
  constructor(work, interval = 0) {
    Object.assign(this, { work, interval, isRequested: false, last: -Infinity });
  }

  request() {
    if (this.isRequested) return;
    this.isRequested = true;
    const wait = this.last + this.interval - performance.now();
    if (wait > 0) setTimeout(() => this.#frame(), wait);
    else this.#frame();
  }

  #frame() {
    requestAnimationFrame(() => {
      this.isRequested = false;
      this.last = performance.now();
      this.work();
    });
  }
}
