/* The log of a pod: its last lines, read again while the page shows them. */

import { make, setText } from "./element.js";
import { sleep } from "./informer.js";

const TAIL = 500;
/** Milliseconds between two reads. */
const INTERVAL = 3000;
/** Escape sequences of terminals: colours, cursor moves, titles. */
const ESCAPES = /\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)|[ -/]*[0-~])/g;
/** What a later part of the same line overwrites: progress bars end with a carriage return only. */
const OVERWRITTEN = /^.*\r(?!\n|$)/gm;

/** Returns the text that a terminal would show, without colours. */
export const plainText = (text) => text.replace(ESCAPES, "").replace(/\r+/g, "\r").replaceAll("\r\n", "\n").replace(OVERWRITTEN, "");

export class LogView {
  constructor({ section, text, containers, note }) {
    Object.assign(this, { section, text, containers, note, shown: "" });
    // Not a listener: the view of another namespace replaces this one.
    containers.onchange = () => this.#follow(containers.value);
  }

  /** Shows the log of a pod; nothing changes if it is shown already. */
  show(api, { key, containers }) {
    this.section.hidden = false;
    if (this.shown === key) return;
    Object.assign(this, { api, shown: key });
    setText(this.text, "");
    this.text.hidden = true;
    this.containers.replaceChildren(...containers.map((name) => make("option", { value: name }, name)));
    this.containers.parentElement.hidden = containers.length < 2;
    this.#follow(containers[0]);
  }

  close() {
    this.section.hidden = true;
    this.shown = "";
    this.stopper?.abort();
  }

  async #follow(container) {
    this.stopper?.abort();
    const { signal } = (this.stopper = new AbortController());
    const [namespace, name] = this.shown.split("/").map(encodeURIComponent);
    const path = `/api/v1/namespaces/${namespace}/pods/${name}/log?${new URLSearchParams({ container, tailLines: TAIL })}`;
    while (!signal.aborted) {
      await this.#read(path, signal).catch((error) => signal.aborted || setText(this.note, `The log cannot be read: ${error.message}`));
      await sleep(INTERVAL, signal);
    }
  }

  async #read(path, signal) {
    const response = await this.api.request(path, { signal, headers: { accept: "*/*" } });
    const text = plainText(await response.text());
    if (signal.aborted) return;
    const isAtEnd = this.text.scrollTop + this.text.clientHeight >= this.text.scrollHeight - 4;
    setText(this.text, text);
    this.text.hidden = !text;
    setText(this.note, text ? `The last ${TAIL} lines, renewed every ${INTERVAL / 1000} s.` : "The log is empty.");
    if (isAtEnd) this.text.scrollTop = this.text.scrollHeight;
  }
}
