import assert from "node:assert/strict";
import test from "node:test";

import { Colours, INKS, PALETTES, luminance } from "../../src/phalanx/ui/colour.js";
import { NodeMap } from "../../src/phalanx/ui/map.js";
import { cellAt, neighbour, plan } from "../../src/phalanx/ui/plan.js";
import { formatAmount, parseQuantity } from "../../src/phalanx/ui/quantity.js";
import { levels, tree } from "../../src/phalanx/ui/topology.js";
import { clusterOf, node, pod } from "./objects.mjs";

const BLOCK = "topology.kubernetes.io/block";
const RACK = "topology.kubernetes.io/rack";

const nodesOf = (count, blocks, racks) => Array.from({ length: count }, (_, at) => ({
  name: `node-${at}`,
  labels: { [BLOCK]: `b-${at % blocks}`, [RACK]: `r-${at % blocks}-${Math.floor(at / blocks) % racks}`, "kubernetes.io/hostname": `node-${at}`, os: "linux" },
}));

const bright = (text) => luminance([1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16) / 255));
const contrast = (a, b) => (Math.max(bright(a), bright(b)) + 0.05) / (Math.min(bright(a), bright(b)) + 0.05);

for (const theme of ["dark", "light"]) {
  test(`every colour has enough contrast in the ${theme} theme`, () => {
    for (const one of [...PALETTES[theme], INKS[theme].alone]) {
      assert.ok(contrast(one, INKS[theme].ground) >= 3, `${one} on the ground`);
      assert.ok(contrast(one, INKS[theme].node) >= 2.4, `${one} on a node`);
    }
    assert.ok(contrast(INKS[theme].text, INKS[theme].ground) >= 4.5);
    assert.equal(new Set(PALETTES[theme]).size, PALETTES[theme].length);
  });
}

test("a gang has the same colour in every window", () => {
  const [one, other] = [new Colours(), new Colours()];
  assert.equal(one.of("default/train", "dark"), other.of("default/train", "dark"));
  one.of("default/next", "dark");
  assert.equal(one.of("default/train", "dark"), other.of("default/train", "dark"));
  assert.equal(one.of("", "dark"), INKS.dark.alone);
});

test("gangs get distinct colours", () => {
  const colours = new Colours();
  const used = (count) => new Set(Array.from({ length: count }, (_, at) => colours.assign(`default/job-${at}`)));
  const hues = [...used(6)].map((place) => place % 24);
  const gaps = hues.flatMap((a, at) => hues.slice(at + 1).map((b) => Math.min(Math.abs(a - b), 24 - Math.abs(a - b))));
  assert.ok(gaps.filter((gap) => gap >= 2).length >= gaps.length - 3, `${hues}`);
  assert.equal(used(PALETTES.dark.length).size, PALETTES.dark.length);
  assert.ok(used(500).size === PALETTES.dark.length);
});

test("a released colour is assigned again", () => {
  const colours = new Colours();
  const all = Array.from({ length: PALETTES.dark.length }, (_, at) => colours.assign(`g${at}`));
  colours.release("g7");
  assert.equal(colours.assign("new"), all[7]);
});

test("the labels that divide the nodes are returned, the widest first", () => {
  assert.deepEqual(levels(nodesOf(64, 2, 4)), [BLOCK, RACK]);
  assert.deepEqual(levels(nodesOf(64, 1, 4)), [RACK]);
  assert.deepEqual(levels(nodesOf(64, 1, 1)), []);
  assert.deepEqual(levels([{ name: "a", labels: { odd: "1" } }, { name: "b", labels: { odd: "2" } }, { name: "c", labels: { odd: "2" } }], ["odd"]), ["odd"]);
});

test("domains and nodes are in numeric order", () => {
  const found = tree(nodesOf(44, 11, 2), [BLOCK]);
  assert.deepEqual(found.parts.map((one) => one.title).slice(-2), ["b-9", "b-10"]);
  assert.deepEqual(found.parts[0].nodes.map((one) => one.name), ["node-0", "node-11", "node-22", "node-33"]);
});

for (const [count, blocks, racks, width] of [[1, 1, 1, 860], [16, 2, 4, 860], [1000, 4, 16, 860], [1000, 1, 1, 860], [300, 40, 7, 320]]) {
  test(`${count} nodes in ${blocks} blocks of ${racks} racks are laid out without overlap`, () => {
    const nodes = nodesOf(count, blocks, racks);
    const found = plan(tree(nodes, levels(nodes)), width, 520);
    assert.equal(new Set(found.cells.map((one) => one.node.name)).size, count);
    assert.ok(found.width <= width, `${found.width} wide`);
    const taken = new Set();
    for (const { x, y } of found.cells) {
      assert.ok(x >= 0 && x + found.wide <= found.width && y >= 0 && y + found.size <= found.height);
      assert.ok(!taken.has(`${x},${y}`));
      taken.add(`${x},${y}`);
    }
    found.cells.forEach((cell, at) => assert.equal(cellAt(found, cell.x + 1, cell.y + 1), at));
  });
}

test("few nodes fill the width of a large window", () => {
  for (const [count, blocks, racks] of [[52, 2, 8], [16, 1, 1], [1000, 4, 16]]) {
    const nodes = nodesOf(count, blocks, racks);
    const found = plan(tree(nodes, levels(nodes)), 1440, 1080);
    assert.ok(found.width <= 1440 && found.width >= 0.9 * 1440, `${count} nodes: ${found.width} of 1440`);
    assert.ok(found.height <= 1080);
  }
});

test("arrow keys reach every node, and stop at the edge", () => {
  const nodes = nodesOf(48, 2, 4);
  const found = plan(tree(nodes, levels(nodes)), 600, 400);
  const [seen, open] = [new Set([0]), [0]];
  while (open.length) {
    const at = open.pop();
    for (const way of [[1, 0], [-1, 0], [0, 1], [0, -1]]) {
      const next = neighbour(found, at, way);
      if (!seen.has(next)) { seen.add(next); open.push(next); }
    }
  }
  assert.equal(seen.size, 48);
  assert.equal(neighbour(found, 0, [-1, 0]), 0);
});

test("when pods change only the cells of their nodes are drawn", () => {
  globalThis.document ??= { activeElement: null };
  let rects = 0;
  const context = { setTransform() {}, strokeRect() {}, fillText() {}, fillRect() { rects++; } };
  const canvas = { getContext: () => context, addEventListener() {}, style: {}, parentElement: { clientWidth: 860, clientHeight: 520 } };
  const nodes = Array.from({ length: 100 }, (_, at) => node(`n${at}`));
  const cluster = clusterOf({ nodes, pods: [pod("a", { node: "n1" })] });
  const map = new NodeMap(canvas, cluster, { theme: { name: "dark" }, announce() {}, choose() {}, shows: () => true });
  const countRects = (work) => { rects = 0; work(); return rects; };
  assert.equal(countRects(() => map.refresh()), 1 + 100 + 1);
  assert.equal(countRects(() => map.refresh()), 0);
  cluster.sinks().pods.apply("MODIFIED", pod("a", { node: "n2" }));
  assert.equal(countRects(() => map.refresh()), 2 + 2 + 1);
  cluster.sinks().nodes.apply("ADDED", node("n100"));
  assert.equal(countRects(() => map.refresh()), 1 + 101 + 1);
});

test("quantities are parsed and formatted", () => {
  assert.deepEqual(["500m", "32Gi", "1e3", "8", "2k", "nonsense"].map(parseQuantity), [0.5, 32 * 2 ** 30, 1000, 8, 2000, 0]);
  assert.deepEqual([formatAmount("memory", 32 * 2 ** 30), formatAmount("cpu", 0.1 + 0.2), formatAmount("memory", 0)], ["32Gi", "0.3", "0"]);
});
