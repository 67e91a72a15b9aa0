/* Where everything is on the map: boxes of domains within each other, a cell for each node. */

const GAP = 3;
const PAD = 4;
/** Room for a title, by depth. */
const TITLES = [15, 15, 12];
const LARGEST = 60;
const SMALLEST = 9;
/** Cells are wider than high: pods stand side by side in them. */
const SHAPE = 1.5;

/** The plan with the largest cells that need no scrolling, or with the smallest of all. */
export function plan(tree, width, height) {
  let [low, high] = [SMALLEST, LARGEST];
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    const found = laid(tree, width, middle);
    if (found.height <= height && found.width <= width) low = middle;
    else high = middle - 1;
  }
  return laid(tree, width, low);
}

function laid(tree, width, size) {
  const sheet = { boxes: [], cells: [], size, wide: Math.round(size * SHAPE) };
  const { w, h } = place(sheet, tree, 0, 0, width, 0);
  return { ...sheet, width: w, height: h };
}

function place(sheet, part, x, y, room, depth) {
  const titled = part.title ? TITLES[Math.min(depth, 2)] : 0;
  const [left, top] = [x + PAD, y + PAD + titled];
  const box = { x, y, title: part.title, depth };
  sheet.boxes.push(box);
  const inner = room - 2 * PAD;
  const { w, h } = part.parts ? flow(sheet, part.parts, left, top, inner, depth) : grid(sheet, part.nodes, left, top, inner);
  box.w = Math.max(w, Math.min(part.title.length * (depth > 1 ? 5.4 : 6.6), inner)) + 2 * PAD;
  box.h = h + 2 * PAD + titled;
  return box;
}

/** Parts from left to right, then below. */
function flow(sheet, parts, left, top, room, depth) {
  let [x, y, row, widest] = [left, top, 0, 0];
  for (const part of parts) {
    const from = [sheet.boxes.length, sheet.cells.length];
    let box = place(sheet, part, x, y, left + room - x, depth + 1);
    if (x > left && (x + box.w > left + room || box.h > tall(part, sheet, room))) {
      [sheet.boxes.length, sheet.cells.length] = from;
      [x, y, row] = [left, y + row + GAP, 0];
      box = place(sheet, part, x, y, room, depth + 1);
    }
    x += box.w + GAP;
    row = Math.max(row, box.h);
    widest = Math.max(widest, x - left - GAP);
  }
  return { w: widest, h: y + row - top };
}

/** How high a part is where it has all the room: higher than that it is squeezed. */
function tall(part, sheet, room) {
  return place({ ...sheet, boxes: [], cells: [] }, part, 0, 0, room, 0).h;
}

/** Nodes in rows that make about a square. */
function grid(sheet, nodes, left, top, room) {
  const { size, wide, cells } = sheet;
  const fitting = Math.max(1, Math.floor((room + GAP) / (wide + GAP)));
  const columns = Math.max(1, Math.min(fitting, Math.ceil(Math.sqrt(nodes.length / SHAPE))));
  nodes.forEach((node, at) => cells.push({
    node, x: left + (at % columns) * (wide + GAP), y: top + Math.floor(at / columns) * (size + GAP),
  }));
  const rows = Math.ceil(nodes.length / columns);
  return { w: Math.min(columns, nodes.length) * (wide + GAP) - GAP, h: rows * (size + GAP) - GAP };
}

/** The cell at a point, if any. */
export function cellAt(found, x, y) {
  return found.cells.findIndex((cell) => x >= cell.x && x < cell.x + found.wide && y >= cell.y && y < cell.y + found.size);
}

/** The nearest cell in a direction; sideways steps count double, so that rows are kept. */
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
