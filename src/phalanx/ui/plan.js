/* Layout of the map: nested boxes for topology domains, a cell for each node. */

const PAD = 4;
/** Height of a title, by depth. */
const TITLES = [15, 15, 12];
const LARGEST = 96;
const SMALLEST = 8;
/** Ratio of width to height of a cell: it shows its pods side by side. */
const SHAPE = 1.5;
/** The largest such ratio: cells become wider until the map has the width of the window. */
const WIDEST = 4;
/** Ratios of width to height of a domain; the one with the largest cells is used. */
const ASPECTS = [1, 2, 4, 8];

/** Returns the layout with the largest cells that needs no scrolling, or the lowest one with the smallest cells. */
export function plan(tree, width, height) {
  let best = null;
  for (const aspect of ASPECTS) {
    const found = largest(tree, width, height, aspect, best?.size ?? SMALLEST);
    if (!best || found.size > best.size || (found.size === best.size && found.height < best.height)) best = found;
  }
  return widen(tree, width, best);
}

/** Returns a layout with cells as wide as the width allows, without more rows. */
function widen(tree, width, found) {
  let [low, high] = [found.wide, found.size * WIDEST];
  let best = found;
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    const wider = layOut(tree, width, found.size, found.aspect, middle);
    if (wider.width <= width && wider.height <= found.height) [low, best] = [middle, wider];
    else high = middle - 1;
  }
  return best;
}

/** Returns the layout of one aspect with the largest cells that fit, at least `least`. */
function largest(tree, width, height, aspect, least) {
  let [low, high] = [least, LARGEST];
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    const found = layOut(tree, width, middle, aspect);
    if (found.height <= height && found.width <= width) low = middle;
    else high = middle - 1;
  }
  return layOut(tree, width, low, aspect);
}

function layOut(tree, width, size, aspect, wide = Math.round(size * SHAPE)) {
  const sheet = { boxes: [], cells: [], size, aspect, gap: size < 16 ? 2 : 3, wide };
  const { w, h } = place(sheet, tree, 0, 0, width, 0);
  return { ...sheet, width: w, height: h };
}

function place(sheet, part, x, y, available, depth) {
  const titled = part.title ? TITLES[Math.min(depth, 2)] : 0;
  const [left, top] = [x + PAD, y + PAD + titled];
  const box = { x, y, title: part.title, depth };
  sheet.boxes.push(box);
  const inner = available - 2 * PAD;
  const { w, h } = part.parts ? flow(sheet, part.parts, left, top, inner, depth) : grid(sheet, part.nodes, left, top, inner);
  box.w = Math.max(w, Math.min(part.title.length * (depth > 1 ? 5.4 : 6.6), inner)) + 2 * PAD;
  box.h = h + 2 * PAD + titled;
  return box;
}

/** Places parts from left to right; a part that does not fit begins a new row. */
function flow(sheet, parts, left, top, available, depth) {
  let [x, y, row, widest] = [left, top, 0, 0];
  for (const part of parts) {
    const from = [sheet.boxes.length, sheet.cells.length];
    let box = place(sheet, part, x, y, available, depth + 1);
    if (x > left && x + box.w > left + available) {
      [sheet.boxes.length, sheet.cells.length] = from;
      [x, y, row] = [left, y + row + sheet.gap, 0];
      box = place(sheet, part, x, y, available, depth + 1);
    }
    x += box.w + sheet.gap;
    row = Math.max(row, box.h);
    widest = Math.max(widest, x - left - sheet.gap);
  }
  return { w: widest, h: y + row - top };
}

/** Places nodes in rows whose width and height are about the aspect. */
function grid(sheet, nodes, left, top, available) {
  const { size, wide, gap, cells, aspect } = sheet;
  const fitting = Math.max(1, Math.floor((available + gap) / (wide + gap)));
  const columns = Math.max(1, Math.min(fitting, Math.ceil(Math.sqrt((nodes.length * aspect) / SHAPE))));
  nodes.forEach((node, at) => cells.push({
    node, x: left + (at % columns) * (wide + gap), y: top + Math.floor(at / columns) * (size + gap),
  }));
  const rows = Math.ceil(nodes.length / columns);
  return { w: Math.min(columns, nodes.length) * (wide + gap) - gap, h: rows * (size + gap) - gap };
}

/** Returns the index of the cell at a point, or -1. */
export function cellAt(found, x, y) {
  return found.cells.findIndex((cell) => x >= cell.x && x < cell.x + found.wide && y >= cell.y && y < cell.y + found.size);
}

/** Returns the nearest cell in a direction; sideways distance counts double, so that the focus stays in its row. */
export function neighbour(found, at, [dx, dy]) {
  const here = found.cells[at];
  let [best, nearest] = [at, Infinity];
  found.cells.forEach((cell, index) => {
    const [x, y] = [cell.x - here.x, cell.y - here.y];
    const along = x * dx + y * dy;
    const away = along + 2 * Math.abs(x * dy + y * dx);
    if (along > 0 && away < nearest) [best, nearest] = [index, away];
  });
  return best;
}
