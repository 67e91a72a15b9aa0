/* The map: nodes as cells in boxes of their topology domains, pods as strips in the colour of their gang.
   One canvas: ten thousand pods are ten thousand rectangles instead of as many elements. */

import { INKS } from "./colour.js";
import { cellAt, neighbour, plan } from "./plan.js";
import { levels, short, tree } from "./topology.js";

const ARROWS = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };
const FAINT = 0.18;
const FONTS = ["", "600 12px system-ui, sans-serif", "10px system-ui, sans-serif"];

export class NodeMap {
  /** Calls `announce(text)` with the node under the pointer or the focus, and `choose(kind, key)` with the selection. */
  constructor(canvas, cluster, { theme, announce, choose, shows }) {
    Object.assign(this, { canvas, cluster, theme, announce, choose, shows });
    this.context = canvas.getContext("2d");
    this.chosen = { kind: "", key: "" };
    this.focus = -1;
    this.layoutKey = "";
    canvas.addEventListener("pointermove", (event) => this.#hover(event));
    canvas.addEventListener("pointerleave", () => this.announce(""));
    canvas.addEventListener("click", (event) => this.#pick(event));
    canvas.addEventListener("keydown", (event) => this.#key(event));
    canvas.addEventListener("focus", () => this.#move(Math.max(0, this.focus)));
    canvas.addEventListener("blur", () => this.draw());
  }

  /** Draws the whole map. */
  draw() {
    this.#updateLayout();
    this.cluster.dirtyNodes.clear();
    const { context, plan: found } = this;
    const ink = INKS[this.theme.name];
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.globalAlpha = 1;
    context.fillStyle = ink.ground;
    context.fillRect(0, 0, found.width, found.height);
    for (const box of found.boxes) this.#box(box, ink);
    for (const cell of found.cells) this.#cell(cell, ink);
    if (document.activeElement === this.canvas) this.#ring(ink);
  }

  /** Draws only the nodes whose pods have changed, if the layout has not. */
  refresh() {
    if (this.#updateLayout() || document.activeElement === this.canvas) return this.draw();
    const { context, plan: { wide, size } } = this;
    const ink = INKS[this.theme.name];
    for (const name of this.cluster.dirtyNodes) {
      const cell = this.places.get(name);
      if (!cell) continue;
      context.fillStyle = ink.ground;
      context.fillRect(cell.x - 1, cell.y - 1, wide + 2, size + 2);
      this.#cell(cell, ink);
    }
    return this.cluster.dirtyNodes.clear();
  }

  /** Lays out the map again if nodes or size have changed; returns whether it did. */
  #updateLayout() {
    const { clientWidth: width, clientHeight: height } = this.canvas.parentElement;
    this.ratio = globalThis.devicePixelRatio || 1;
    const layoutKey = [this.cluster.nodeVersion, width, height, this.ratio].join();
    if (layoutKey === this.layoutKey) return false;
    this.layoutKey = layoutKey;
    const nodes = [...this.cluster.nodes.values()];
    const required = [...new Set([...this.cluster.groups.values()].flatMap((group) => group.topology))];
    this.levels = levels(nodes, required);
    this.plan = plan(tree(nodes, this.levels), Math.max(200, width - 24), Math.max(160, height - 8));
    this.places = new Map(this.plan.cells.map((cell) => [cell.node.name, cell]));
    this.focus = Math.min(this.focus, this.plan.cells.length - 1);
    this.canvas.width = Math.ceil(this.plan.width * this.ratio);
    this.canvas.height = Math.ceil(this.plan.height * this.ratio);
    this.canvas.style.width = `${this.plan.width}px`;
    this.canvas.style.height = `${this.plan.height}px`;
    return true;
  }

  #box({ x, y, w, h, title, depth }, ink) {
    const { context } = this;
    if (!title) return;
    context.strokeStyle = ink.line;
    context.lineWidth = 1;
    context.strokeRect(x + 0.5, y + 0.5, w - 1, h - 1);
    context.fillStyle = ink.text;
    context.font = FONTS[Math.min(depth, 2)];
    context.textBaseline = "top";
    context.fillText(title, x + 4, y + 3, w - 6);
  }

  #cell(cell, ink) {
    const { context, plan: { wide, size } } = this;
    const { node, x, y } = cell;
    const shown = this.shows(node);
    context.globalAlpha = shown ? 1 : FAINT;
    context.fillStyle = ink.node;
    context.fillRect(x, y, wide, size);
    cell.strips = strips(this.cluster.running(node.name), node, wide);
    for (const { pod, from, width } of cell.strips) {
      context.globalAlpha = shown && this.#isHighlighted(pod) ? (pod.terminating ? 0.45 : 1) : FAINT;
      context.fillStyle = this.cluster.colours.of(pod.group, this.theme.name);
      context.fillRect(x + from, y, width > 3 ? width - 1 : width, size);
    }
    context.globalAlpha = 1;
    const { kind, key } = this.chosen;
    const holds = kind === "gang" && cell.strips.some(({ pod }) => pod.group === key);
    if (holds) this.#frame(cell, this.cluster.colours.of(key, this.theme.name), 1);
    if (!node.ready) this.#frame(cell, ink.bad, 1);
    else if (node.closed) this.#frame(cell, ink.closed, 1);
    if (kind === "node" && key === node.name) this.#frame(cell, ink.focus, 2);
  }

  #isHighlighted(pod) {
    const { kind, key } = this.chosen;
    return kind !== "gang" || pod.group === key;
  }

  #frame({ x, y }, ink, width) {
    const { wide, size } = this.plan;
    this.context.strokeStyle = ink;
    this.context.lineWidth = width;
    this.context.strokeRect(x - 0.5, y - 0.5, wide + 1, size + 1);
  }

  #ring(ink) {
    const cell = this.plan.cells[this.focus];
    if (cell) this.#frame(cell, ink.focus, 3);
  }

  #hit(event) {
    const at = cellAt(this.plan, event.offsetX, event.offsetY);
    const cell = this.plan.cells[at];
    const within = cell && event.offsetX - cell.x;
    return { at, cell, pod: cell?.strips.find(({ from, width }) => within >= from && within < from + width)?.pod };
  }

  #hover(event) {
    const { cell, pod } = this.#hit(event);
    this.announce(cell ? this.describe(cell.node, pod) : "");
  }

  #pick(event) {
    const { at, cell, pod } = this.#hit(event);
    if (!cell) return this.choose("", "");
    this.focus = at;
    return pod?.group ? this.choose("gang", pod.group) : this.choose("node", cell.node.name);
  }

  #key(event) {
    const cell = this.plan.cells[this.focus];
    if (event.key in ARROWS && cell) this.#move(neighbour(this.plan, this.focus, ARROWS[event.key]));
    else if (event.key === "Home") this.#move(0);
    else if (event.key === "End") this.#move(this.plan.cells.length - 1);
    else if ((event.key === "Enter" || event.key === " ") && cell) this.choose("node", cell.node.name);
    else return;
    event.preventDefault();
  }

  #move(at) {
    this.focus = at;
    this.draw();
    const cell = this.plan.cells[at];
    if (!cell) return;
    this.announce(this.describe(cell.node));
    const scroll = this.canvas.parentElement;
    const { size } = this.plan;
    if (cell.y < scroll.scrollTop) scroll.scrollTop = cell.y - size;
    else if (cell.y + size > scroll.scrollTop + scroll.clientHeight) scroll.scrollTop = cell.y + 2 * size - scroll.clientHeight;
  }

  /** Describes a node in one line: its domains, pods and problems. */
  describe(node, pod) {
    const place = this.levels.map((key) => `${short(key)} ${node.labels[key] ?? "none"}`);
    const pods = this.cluster.running(node.name).length;
    const problems = [!node.ready && "not ready", node.closed && "cordoned", ...node.taints].filter(Boolean);
    const owner = pod ? [`${pod.key}${pod.group ? ` of ${pod.group}` : ""}, ${pod.phase}`] : [];
    return [node.name, ...place, `${pods} ${pods === 1 ? "pod" : "pods"}`, ...problems, ...owner].join(" · ");
  }
}

/** Returns the strips of a node's pods, each as wide as its largest share of the node's resources. */
export function strips(pods, node, wide) {
  const shares = pods.map((pod) => share(pod, node));
  const total = Math.max(1, shares.reduce((sum, one) => sum + one, 0));
  let from = 0;
  return pods.map((pod, at) => {
    const width = (shares[at] / total) * wide;
    const strip = { pod, from, width };
    from += width;
    return strip;
  });
}

function share(pod, node) {
  let largest = 1 / (node.allocatable.pods || 110);
  for (const name in pod.requests) {
    const has = node.allocatable[name];
    if (has) largest = Math.max(largest, pod.requests[name] / has);
  }
  return largest;
}
