/* The sign-in: a token, kept in the session storage until the tab is closed. */

import { Api } from "./api.js";

const STORAGE_KEY = "phalanx.token";

export class Session {
  /** Calls `signedIn(api, user)` with a valid token, and `signedOut()` at the end. */
  constructor({ form, field, error, leave }, signedIn, signedOut) {
    Object.assign(this, { form, field, error, leave, signedIn, signedOut });
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#signIn(field.value.trim());
    });
    leave.addEventListener("click", () => this.end(""));
  }

  begin() {
    const token = sessionStorage.getItem(STORAGE_KEY);
    if (token) this.#signIn(token);
    else this.#showForm("");
  }

  /** Signs out and shows the form, with a reason if there is one. */
  end(reason) {
    sessionStorage.removeItem(STORAGE_KEY);
    this.signedOut();
    this.#showForm(reason);
  }

  #showForm(reason) {
    this.form.hidden = false;
    this.leave.hidden = true;
    this.error.textContent = reason;
    this.field.focus();
  }

  async #signIn(token) {
    const api = new Api(token);
    let user;
    try {
      user = await api.whoami();
    } catch (error) {
      if (error.code === 401) this.end("The token is not valid.");
      else this.#showForm(`Sign-in failed: ${error.message}`);
      return;
    }
    sessionStorage.setItem(STORAGE_KEY, token);
    this.field.value = "";
    this.error.textContent = "";
    this.form.hidden = true;
    this.leave.hidden = false;
    this.signedIn(api, user);
  }
}
