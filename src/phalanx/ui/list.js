/* A list that is updated in place: unchanged rows keep their elements, so focus and selection stay.
   The list is one tab stop; arrow keys, Home and End move between its buttons. */

const STEPS = { ArrowDown: (at) => at + 1, ArrowUp: (at) => at - 1, Home: () => 0, End: () => Infinity };

export class List {
  constructor(element) {
    this.element = element;
    this.rows = new Map();
    element.addEventListener("keydown", (event) => this.#moveFocus(event));
    element.addEventListener("focusin", (event) => this.#setTabStop(event.target));
  }

  /** Shows rows `{key, stamp, draw}`: a row is drawn again only when its stamp has changed. */
  show(rows) {
    const kept = new Set(rows.map((row) => row.key));
    for (const [key, { item }] of this.rows) {
      if (kept.has(key)) continue;
      item.remove();
      this.rows.delete(key);
    }
    rows.forEach((row, at) => this.#put(row, at));
    this.#ensureTabStop();
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

  #ensureTabStop() {
    const buttons = this.#buttons();
    if (buttons.length && !buttons.some((one) => one.tabIndex === 0)) buttons[0].tabIndex = 0;
  }

  #setTabStop(target) {
    for (const one of this.#buttons()) one.tabIndex = one === target ? 0 : -1;
  }

  #moveFocus(event) {
    const step = STEPS[event.key];
    const buttons = this.#buttons();
    const at = buttons.indexOf(document.activeElement);
    if (!step || at < 0) return;
    event.preventDefault();
    buttons[Math.max(0, Math.min(step(at), buttons.length - 1))].focus();
  }
}
