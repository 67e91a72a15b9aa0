/* A list that is updated in place: unchanged rows keep their elements, so focus and selection stay.
   The list is one tab stop; arrow keys, Home and End move between its links. */

const STEPS = { ArrowDown: (at) => at + 1, ArrowUp: (at) => at - 1, Home: () => 0, End: () => Infinity };

export class List {
  constructor(element) {
    this.element = element;
    this.rows = new Map();
    element.addEventListener("keydown", (event) => moveFocus(event, this.#links()));
    element.addEventListener("focusin", (event) => setTabStop(event.target, this.#links()));
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
      for (const link of item.querySelectorAll("a")) link.tabIndex = -1;
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
    if (focused) item.querySelector("a")?.focus();
  }

  #links() {
    return [...this.element.querySelectorAll("a")];
  }

  #ensureTabStop() {
    const links = this.#links();
    if (links.length && !links.some((one) => one.tabIndex === 0)) links[0].tabIndex = 0;
  }
}

/** Makes one of some links the tab stop. */
export function setTabStop(target, links) {
  if (links.includes(target)) for (const one of links) one.tabIndex = one === target ? 0 : -1;
}

/** Moves the focus between links, if the key of an event says so. */
export function moveFocus(event, links) {
  const step = STEPS[event.key];
  const at = links.indexOf(document.activeElement);
  if (!step || at < 0) return;
  event.preventDefault();
  links[Math.max(0, Math.min(step(at), links.length - 1))].focus();
}
