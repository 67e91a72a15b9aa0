/* The sign-in: a token, kept in the session storage until the tab is closed. A link with a code brings the token. */

import { Api, exchangeCode } from "./api.js";

const STORAGE_KEY = "phalanx.token";
const SIGN_IN = /^#\/sign-in\/([\w-]+)$/;

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

  async begin() {
    const code = SIGN_IN.exec(location.hash)?.[1];
    const token = sessionStorage.getItem(STORAGE_KEY);
    if (code) await this.#redeem(code, token);
    else if (token) await this.#signIn(token);
    else this.#showForm("");
  }

  /** Exchanges the code of a link for a token; the address bar and the history must not keep the code. */
  async #redeem(code, token) {
    history.replaceState(null, "", "#/");
    try {
      await this.#signIn(await exchangeCode(code));
    } catch (error) {
      if (token) await this.#signIn(token);
      else this.#showForm(error.message);
    }
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
