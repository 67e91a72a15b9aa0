/* Blocks of a detail page as data, and their elements. A page is a list of blocks; equal data is not drawn again. */

import { badge, make } from "./element.js";
import { formatMoment } from "./format.js";

const MAX_ROWS = 250;
const MAX_SHORT = 26;

const DRAW = {
  /** `{rows: [[label, value]]}`; a value is a text or a cell. */
  facts: ({ rows }) => [make("dl", { class: "facts" }, ...rows.filter(([, value]) => value !== "" && value !== null && value !== undefined)
    .flatMap(([label, value]) => [make("dt", {}, label), make("dd", {}, ...cell(value))]))],
  /** `{steps: [{time, title, text, tone, after}]}` */
  timeline: ({ steps }) => [make("ol", { class: "timeline" }, ...steps.map(({ time, title, text, tone, after }) =>
    make("li", { "data-tone": tone },
      make("time", time ? { datetime: time } : {}, time ? formatMoment(time) : "–"),
      make("div", {}, make("b", {}, title), after ? make("span", { class: "quiet" }, ` ${after}`) : null, text ? make("p", {}, text) : null))))],
  /** `{columns: [title], rows: [[cell]]}`; a column without a value is not drawn. */
  table: ({ columns, rows, empty = "None." }) => {
    if (!rows.length) return [make("p", { class: "quiet" }, empty)];
    const used = columns.map((_, at) => at).filter((at) => rows.some((cells) => isUsed(cells[at])));
    const drawCell = (value, label) => make("td", { "data-label": label, class: isShort(value) ? "short" : null }, ...(isUsed(value) ? cell(value) : []));
    return [
      make("div", { class: "scroll" }, make("table", { class: "data" },
        make("thead", {}, make("tr", {}, ...used.map((at) => make("th", { scope: "col" }, columns[at])))),
        make("tbody", {}, ...rows.slice(0, MAX_ROWS).map((cells) => make("tr", {}, ...used.map((at) => drawCell(cells[at], columns[at]))))))),
      rows.length > MAX_ROWS ? make("p", { class: "quiet" }, `and ${rows.length - MAX_ROWS} more`) : null,
    ];
  },
  /** `{nodes: [{cells, children}]}` */
  tree: ({ nodes }) => [drawTree(nodes)],
  /** `{lines: [text], tone}` */
  text: ({ lines, tone }) => lines.map((line) => make("p", { "data-tone": tone }, line)),
  /** `{text}`: a command to copy. */
  command: ({ text }) => [make("p", { class: "command" }, make("code", {}, text),
    make("button", { type: "button", "aria-label": `Copy ${text}`, onclick: (event) => copy(event.target, text) }, "Copy"))],
};

/** Returns the element of a block. */
export function drawBlock(block) {
  const heading = block.title ? [make("h3", {}, block.title)] : [];
  return make("div", { class: "block", "data-area": block.area }, ...heading, ...DRAW[block.type](block));
}

function drawTree(nodes) {
  return make("ul", { class: "tree" }, ...nodes.map(({ cells, children = [] }) =>
    make("li", {}, make("span", { class: "branch" }, ...cells.flatMap(cell)), children.length ? drawTree(children) : null)));
}

/** Returns whether a cell has a value. */
const isUsed = (value) => value !== "" && value !== null && value !== undefined;

/** Returns whether a cell stays on one line. */
const isShort = (value) => String(value?.text ?? value ?? "").length <= MAX_SHORT;

/** A cell is a text, or `{text, href, tone, tint, share, code}`. */
function cell(value) {
  if (value === null || value === undefined) return [];
  if (typeof value !== "object") return [String(value)];
  const { text, href, tone, tint, share, quiet } = value;
  if (tone) return [badge(tone, text)];
  const swatch = tint ? [make("span", { class: "swatch", tint })] : [];
  const bar = share === undefined ? [] : [make("span", { class: "share wide", "aria-hidden": "true" }, make("i", { wide: Math.min(100, share) }))];
  if (href) return [...bar, make("a", { class: "link", href }, ...swatch, text)];
  return [...bar, ...swatch, quiet ? make("span", { class: "quiet" }, text) : text];
}

async function copy(button, text) {
  await navigator.clipboard.writeText(text).then(() => { button.textContent = "Copied"; }, () => { button.textContent = "Not copied"; });
}
