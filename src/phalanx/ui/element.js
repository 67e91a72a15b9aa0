/* Elements of the page. Text is only set as text: data of the cluster never becomes markup. */

/** `make("p", {class: "quiet"}, "text", child)`; an attribute `onclick` is a listener, `tint` a colour. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "tint") element.style.background = value;
    else if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** Sets the text of an element if it differs: screen readers announce every change. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export const formatTime = (time) => new Date(time).toLocaleTimeString([], { hour12: false });
