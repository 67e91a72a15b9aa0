/* The part of a browser that the page needs, for node: elements, focus, events, frames, and a canvas that counts rectangles. */

import { readFileSync } from "node:fs";

const VOID = new Set(["meta", "link", "input", "br"]);

class Node {
  constructor(tag, text = "") {
    Object.assign(this, { tagName: tag.toUpperCase(), text, childNodes: [], parentElement: null, attributes: {} });
    Object.assign(this, { dataset: {}, style: {}, listeners: {}, hidden: false, tabIndex: 0, value: "" });
    Object.assign(this, { clientWidth: 860, clientHeight: 520, scrollTop: 0 });
    if (tag === "canvas") this.context = new CanvasContext();
  }

  get children() { return this.childNodes.filter((one) => one.tagName !== "#TEXT"); }
  get textContent() { return this.text + this.childNodes.map((one) => one.textContent).join(""); }
  set textContent(text) { this.replaceChildren(...(text ? [text] : [])); }
  getContext() { return this.context; }
  setAttribute(name, value) {
    this.attributes[name] = value;
    if (name === "hidden") this.hidden = true;
    if (name.startsWith("data-")) this.dataset[name.slice(5)] = value;
  }
  getAttribute(name) { return this.attributes[name] ?? null; }
  removeAttribute(name) { delete this.attributes[name]; }
  addEventListener(type, listener) { (this.listeners[type] ??= []).push(listener); }
  append(...nodes) { for (const one of nodes) this.insertBefore(one, null); }
  replaceChildren(...nodes) { for (const one of [...this.childNodes]) one.remove(); this.append(...nodes); }
  insertBefore(child, before) {
    const node = typeof child === "string" ? new Node("#text", child) : child;
    node.remove();
    const at = before ? this.childNodes.indexOf(before) : this.childNodes.length;
    this.childNodes.splice(at, 0, node);
    node.parentElement = this;
  }
  remove() {
    if (this.parentElement) this.parentElement.childNodes = this.parentElement.childNodes.filter((one) => one !== this);
    this.parentElement = null;
  }
  replaceWith(node) { this.parentElement.insertBefore(node, this); this.remove(); }
  contains(node) { return node === this || this.childNodes.some((one) => one.contains(node)); }
  querySelectorAll(tag) {
    return this.children.flatMap((one) => [...(one.tagName === tag.toUpperCase() ? [one] : []), ...one.querySelectorAll(tag)]);
  }
  querySelector(tag) { return this.querySelectorAll(tag)[0] ?? null; }
  focus() {
    document.activeElement?.fire("blur");
    document.activeElement = this;
    this.fire("focus");
    this.fire("focusin");
  }
  /** Dispatches an event on this element and its ancestors. */
  fire(type, more = {}) {
    const event = { target: this, preventDefault: () => { event.prevented = true; }, ...more };
    for (let node = this; node; node = node.parentElement) for (const listener of node.listeners[type] ?? []) listener(event);
    if (type === "click" && !event.prevented && this.attributes.href?.startsWith("#")) location.hash = this.attributes.href;
    return event;
  }
}

/** Draws nothing; records the visible rectangles: those that no later one covers. */
class CanvasContext {
  constructor() { Object.assign(this, { painted: [], texts: [], pictures: 0 }); }
  setTransform() { Object.assign(this, { painted: [], texts: [] }); this.pictures++; }
  fillRect(x, y, w, h) {
    const covered = (one) => one.x >= x && one.y >= y && one.x + one.w <= x + w && one.y + one.h <= y + h;
    this.painted = [...this.painted.filter((one) => !covered(one)), { x, y, w, h, colour: this.fillStyle }];
  }
  /** Returns the number of visible rectangles of a colour. */
  count(colour) { return this.painted.filter((one) => one.colour === colour).length; }
  strokeRect() {}
  fillText(text) { this.texts.push(text); }
}

function parseHtml(html) {
  const root = new Node("document");
  const ids = new Map();
  let open = root;
  for (const [, text, close, tag, rest] of html.matchAll(/([^<]*)<(\/?)(!?\w+)([^>]*)>/g)) {
    if (text.trim()) open.append(text);
    if (tag.startsWith("!")) continue;
    if (close) { open = open.parentElement; continue; }
    const node = new Node(tag);
    for (const [, name, value] of rest.matchAll(/([\w-]+)(?:="([^"]*)")?/g)) node.setAttribute(name, value ?? "");
    if (node.attributes.id) ids.set(node.attributes.id, node);
    open.append(node);
    if (!VOID.has(tag)) open = node;
  }
  return { root, ids };
}

function storage() {
  const items = new Map();
  return { getItem: (k) => items.get(k) ?? null, setItem: (k, v) => items.set(k, v), removeItem: (k) => items.delete(k) };
}

/** The address: setting another fragment is an event, replacing it is none. */
function address() {
  const listeners = [];
  let hash = "";
  return {
    location: {
      get hash() { return hash; },
      set hash(value) { if (value !== hash) { hash = value; setTimeout(() => listeners.forEach((one) => one()), 0); } },
    },
    history: { replaceState: (state, title, value) => { hash = value; } },
    addEventListener: (type, listener) => { if (type === "hashchange") listeners.push(listener); },
  };
}

/** Defines the globals of a browser that has opened the page of a server. */
export function open(url, folder) {
  const { root, ids } = parseHtml(readFileSync(new URL("index.html", folder), "utf8"));
  const originalFetch = globalThis.fetch;
  Object.assign(globalThis, {
    document: Object.assign(root, {
      activeElement: null, documentElement: root.children[0], getElementById: (id) => ids.get(id),
      createElement: (tag) => new Node(tag), createElementNS: (space, tag) => new Node(tag),
    }),
    ...address(),
    fetch: (path, options) => originalFetch(url + path, options),
    matchMedia: () => ({ matches: false, addEventListener() {} }),
    requestAnimationFrame: (work) => setTimeout(work, 1),
    ResizeObserver: class { observe() {} },
    sessionStorage: storage(), localStorage: storage(),
  });
  return (id) => ids.get(id);
}

/** Waits until a condition is true; throws a description of the state after the limit, which is for hangs only. */
export async function until(condition, describe = () => "", limit = 120000) {
  const end = performance.now() + limit;
  while (!condition()) {
    if (performance.now() > end) throw new Error(`never true: ${condition} ${describe()}`);
    await new Promise((done) => setTimeout(done, 10));
  }
}
