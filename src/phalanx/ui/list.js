/* A list that changes in place: rows that stay are not touched, so focus and selection stay too.
   One stop of the tab key; arrow keys, Home and End go through its buttons. */

const STEPS = { ArrowDown: (at) => at + 1, ArrowUp: (at) => at - 1, Home: () => 0, End: () => Infinity };

export class List {
  constructor(element) {
    this.element = element;
    this.rows = new Map();
    element.addEventListener("keydown", (event) => this.#step(event));
    element.addEventListener("focusin", (event) => this.#enter(event.target));
  }

  /** Rows `{key, stamp, draw}`: one is drawn anew only when its stamp is another. */
  show(rows) {
    const kept = new Set(rows.map((row) => row.key));
    for (const [key, { item }] of this.rows) {
      if (kept.has(key)) continue;
      item.remove();
      this.rows.delete(key);
    }
    rows.forEach((row, at) => this.#put(row, at));
    this.#anchor();
  }

  #put({ key, stamp, draw }, at) {
    const old = this.rows.get(key);
    if (old?.stamp !== stamp) {
      const item = document.createElement("li");
      item.append(...draw());
      for (const button of item.querySelectorAll("button")) button.tabIndex = -1;
      this.#replace(old?.item, item);
      this.rows.set(key, { stamp, item });
    }
    const { item } = this.rows.get(key);
    if (this.element.children[at] !== item) this.element.insertBefore(item, this.element.children[at] ?? null);
  }

  #replace(old, item) {
    if (!old) return;
    const focused = old.contains(document.activeElement);
    old.replaceWith(item);
    if (focused) item.querySelector("button")?.focus();
  }

  #buttons() {
    return [...this.element.querySelectorAll("button")];
  }

  #anchor() {
    const buttons = this.#buttons();
    if (buttons.length && !buttons.some((one) => one.tabIndex === 0)) buttons[0].tabIndex = 0;
  }

  #enter(target) {
    for (const one of this.#buttons()) one.tabIndex = one === target ? 0 : -1;
  }

  #step(event) {
    const step = STEPS[event.key];
    const buttons = this.#buttons();
    const at = buttons.indexOf(document.activeElement);
    if (!step || at < 0) return;
    event.preventDefault();
    buttons[Math.max(0, Math.min(step(at), buttons.length - 1))].focus();
  }
}
