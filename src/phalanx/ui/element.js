/* Elements of the page. Text is only set as text: data of the cluster never becomes markup. */

const SVG = "http://www.w3.org/2000/svg";

/** `make("p", {class: "quiet"}, "text", child)`; an attribute `onclick` is a listener, `tint` a colour, `wide` a width in percent. */
export function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for an element of a drawing. */
export function makeSvg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "tint") element.style.background = value;
    else if (name === "wide") element.style.width = `${value}%`;
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

/** Sets the text of an element if it differs: screen readers announce every change. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A state as a coloured word. */
export const badge = (tone, text) => make("span", { class: "badge", "data-tone": tone }, text);

export const formatTime = (time) => new Date(time).toLocaleTimeString([], { hour12: false });
