/* A table that is sorted by its column heads and updated in place: unchanged rows keep their elements. The rows are one
   tab stop; arrow keys, Home and End move between their links. */

import { make } from "./element.js";
import { moveFocus, setTabStop } from "./list.js";

const MAX_ROWS = 300;

export class Table {
  /**
   * A column is `{name, title, value(item), cells(item), number, optional}`: `value` sorts, `cells` returns the children of
   * the cell. `sort` is `name` or `-name`; `sorted(sort)` is called when the user chooses another.
   */
  constructor(element, columns, { sort, sorted }) {
    Object.assign(this, { element, columns, sort, sorted });
    this.isWhole = false;
    this.rows = new Map();
    this.body = make("tbody");
    this.more = make("button", { type: "button", class: "more", onclick: () => { this.isWhole = true; this.show(...this.last); } });
    this.head = make("tr");
    element.append(make("thead", {}, this.head), this.body);
    element.parentElement.append(this.more);
    this.body.addEventListener("keydown", (event) => moveFocus(event, this.#links()));
    this.body.addEventListener("focusin", (event) => setTabStop(event.target, this.#links()));
    this.#drawHead();
  }

  /** Removes what the table has added to the page. */
  close() {
    this.element.replaceChildren();
    this.more.remove();
  }

  setSort(sort) {
    if (sort === this.sort) return;
    this.sort = sort;
    this.#drawHead();
  }

  #drawHead() {
    const [by, isDown] = [this.sort.replace(/^-/, ""), this.sort.startsWith("-")];
    this.head.replaceChildren(...this.columns.map(({ name, title, number, optional }) => {
      const order = name === by ? (isDown ? "descending" : "ascending") : "none";
      const next = name === by && !isDown ? `-${name}` : name;
      return make("th", { scope: "col", "aria-sort": order, class: classOf(number, optional) },
        make("button", { type: "button", onclick: () => this.sorted(next) }, title,
          name === by ? make("span", { class: "order", "aria-hidden": "true" }, isDown ? "▼" : "▲") : null));
    }));
  }

  /** Shows items, sorted; `keyOf` and `stampOf` say which row is which, and whether it has changed. */
  show(items, keyOf, stampOf) {
    this.last = [items, keyOf, stampOf];
    const sorted = this.#sort(items);
    const shown = this.isWhole ? sorted : sorted.slice(0, MAX_ROWS);
    const kept = new Set(shown.map(keyOf));
    for (const [key, { row }] of this.rows) {
      if (kept.has(key)) continue;
      row.remove();
      this.rows.delete(key);
    }
    shown.forEach((item, at) => this.#put(item, keyOf(item), stampOf(item), at));
    this.more.hidden = shown.length === sorted.length;
    this.more.textContent = `Show all ${sorted.length}`;
    const links = this.#links();
    if (links.length && !links.some((one) => one.tabIndex === 0)) links[0].tabIndex = 0;
  }

  #sort(items) {
    const [name, sign] = this.sort.startsWith("-") ? [this.sort.slice(1), -1] : [this.sort, 1];
    const column = this.columns.find((one) => one.name === name) ?? this.columns[0];
    const keyed = items.map((item, at) => [column.value(item), at, item]);
    return keyed.sort(([a, x], [b, y]) => sign * (a < b ? -1 : a > b ? 1 : 0) || x - y).map(([, , item]) => item);
  }

  #put(item, key, stamp, at) {
    const old = this.rows.get(key);
    if (old?.stamp !== stamp) {
      const row = make("tr", {}, ...this.columns.map((column, place) =>
        make(place ? "td" : "th", { class: classOf(column.number, column.optional), ...(place ? {} : { scope: "row" }) }, ...column.cells(item))));
      for (const link of row.querySelectorAll("a")) link.tabIndex = -1;
      if (old) {
        const focused = old.row.contains(document.activeElement);
        old.row.replaceWith(row);
        if (focused) row.querySelector("a")?.focus();
      }
      this.rows.set(key, { stamp, row });
    }
    const { row } = this.rows.get(key);
    if (this.body.children[at] !== row) this.body.insertBefore(row, this.body.children[at] ?? null);
  }

  #links() {
    return [...this.body.querySelectorAll("th")].map((cell) => cell.querySelector("a")).filter(Boolean);
  }
}

const classOf = (number, optional) => [number && "number", optional && "optional"].filter(Boolean).join(" ") || null;
