/* Elements of the page. Text is only ever set as text: nothing that the cluster says becomes markup. */

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

/** Says something, unless it says so already: nobody is told twice. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export const clock = (time) => new Date(time).toLocaleTimeString([], { hour12: false });
