/* Who looks: a token, asked for once and kept until the tab is closed. */

import { Api } from "./api.js";

const KEPT = "phalanx.token";

export class Session {
  /** `entered(api, user)` hears of a token that counts, `left()` of the end. */
  constructor({ form, field, refusal, leave }, entered, left) {
    Object.assign(this, { form, field, refusal, leave, entered, left });
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#try(field.value.trim());
    });
    leave.addEventListener("click", () => this.end(""));
  }

  begin() {
    const token = sessionStorage.getItem(KEPT);
    if (token) this.#try(token);
    else this.#ask("");
  }

  /** Back to the question, with the reason if there is one. */
  end(reason) {
    sessionStorage.removeItem(KEPT);
    this.left();
    this.#ask(reason);
  }

  #ask(reason) {
    this.form.hidden = false;
    this.leave.hidden = true;
    this.refusal.textContent = reason;
    this.field.focus();
  }

  async #try(token) {
    const api = new Api(token);
    let user;
    try {
      user = await api.whoami();
    } catch (error) {
      if (error.code === 401) this.end("This token does not count, or no longer.");
      else this.#ask(`It did not work: ${error.message}`);
      return;
    }
    sessionStorage.setItem(KEPT, token);
    this.field.value = "";
    this.refusal.textContent = "";
    this.form.hidden = true;
    this.leave.hidden = false;
    this.entered(api, user);
  }
}
