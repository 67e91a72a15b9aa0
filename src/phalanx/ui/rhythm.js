/* Work that many changes ask for and that is done once: at an animation frame, no oftener than every so often. */

export class Rhythm {
  constructor(work, interval = 0) {
    Object.assign(this, { work, interval, asked: false, last: -Infinity });
  }

  ask() {
    if (this.asked) return;
    this.asked = true;
    const wait = this.last + this.interval - performance.now();
    if (wait > 0) setTimeout(() => this.#frame(), wait);
    else this.#frame();
  }

  #frame() {
    requestAnimationFrame(() => {
      this.asked = false;
      this.last = performance.now();
      this.work();
    });
  }
}
