/* The theme: dark or light as the system prefers, or as the switch says. */

const STORAGE_KEY = "phalanx.theme";
const OTHER = { dark: "light", light: "dark" };

export class Theme {
  constructor(button, changed) {
    this.system = matchMedia("(prefers-color-scheme: dark)");
    this.button = button;
    this.changed = changed;
    this.system.addEventListener("change", () => this.#apply());
    button.addEventListener("click", () => {
      localStorage.setItem(STORAGE_KEY, OTHER[this.name]);
      this.#apply();
    });
    this.#apply();
  }

  #apply() {
    const stored = localStorage.getItem(STORAGE_KEY);
    this.name = stored in OTHER ? stored : this.system.matches ? "dark" : "light";
    document.documentElement.dataset.theme = this.name;
    this.button.textContent = this.name === "dark" ? "Light" : "Dark";
    this.button.setAttribute("aria-label", `Switch to ${OTHER[this.name]} colours`);
    this.changed();
  }
}
