/* As much of a browser as the page needs, for engines without one: elements, focus, events, frames, a pen that counts. */

import { readFileSync } from "node:fs";

const VOID = new Set(["meta", "link", "input", "br"]);

class Node {
  constructor(tag, text = "") {
    Object.assign(this, { tagName: tag.toUpperCase(), text, childNodes: [], parentElement: null, attributes: {} });
    Object.assign(this, { dataset: {}, style: {}, listeners: {}, hidden: false, tabIndex: 0, value: "" });
    Object.assign(this, { clientWidth: 860, clientHeight: 520, scrollTop: 0 });
    if (tag === "canvas") this.pen = new Pen();
  }

  get children() { return this.childNodes.filter((one) => one.tagName !== "#TEXT"); }
  get textContent() { return this.text + this.childNodes.map((one) => one.textContent).join(""); }
  set textContent(text) { this.replaceChildren(...(text ? [text] : [])); }
  getContext() { return this.pen; }
  setAttribute(name, value) {
    this.attributes[name] = value;
    if (name === "hidden") this.hidden = true;
    if (name.startsWith("data-")) this.dataset[name.slice(5)] = value;
  }
  addEventListener(type, heard) { (this.listeners[type] ??= []).push(heard); }
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
  /** An event here and, as events do, everywhere above. */
  fire(type, more = {}) {
    const event = { target: this, preventDefault: () => { event.prevented = true; }, ...more };
    for (let node = this; node; node = node.parentElement) for (const heard of node.listeners[type] ?? []) heard(event);
    return event;
  }
}

/** Draws nothing, and knows which rectangles can be seen: those that no later one covers. */
class Pen {
  constructor() { Object.assign(this, { painted: [], texts: [], pictures: 0 }); }
  setTransform() { Object.assign(this, { painted: [], texts: [] }); this.pictures++; }
  fillRect(x, y, w, h) {
    const covered = (one) => one.x >= x && one.y >= y && one.x + one.w <= x + w && one.y + one.h <= y + h;
    this.painted = [...this.painted.filter((one) => !covered(one)), { x, y, w, h, colour: this.fillStyle }];
  }
  /** How many of a colour there are. */
  count(colour) { return this.painted.filter((one) => one.colour === colour).length; }
  strokeRect() {}
  fillText(text) { this.texts.push(text); }
}

function parsed(html) {
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
  const kept = new Map();
  return { getItem: (k) => kept.get(k) ?? null, setItem: (k, v) => kept.set(k, v), removeItem: (k) => kept.delete(k) };
}

/** Makes this engine look like a browser that has opened the page of a server. */
export function open(url, folder) {
  const { root, ids } = parsed(readFileSync(new URL("index.html", folder), "utf8"));
  const ask = globalThis.fetch;
  Object.assign(globalThis, {
    document: Object.assign(root, {
      activeElement: null, documentElement: root.children[0], getElementById: (id) => ids.get(id),
      createElement: (tag) => new Node(tag),
    }),
    fetch: (path, options) => ask(url + path, options),
    matchMedia: () => ({ matches: false, addEventListener() {} }),
    requestAnimationFrame: (work) => setTimeout(work, 1),
    ResizeObserver: class { observe() {} },
    sessionStorage: storage(), localStorage: storage(),
  });
  return (id) => ids.get(id);
}

/** Until something is so; throws what is the case instead. */
export async function until(what, says = () => "", limit = 15000) {
  const end = performance.now() + limit;
  while (!what()) {
    if (performance.now() > end) throw new Error(`never came: ${what} ${says()}`);
    await new Promise((done) => setTimeout(done, 10));
  }
}
