/* Dark or light: as the system has it, or as the switch says. */

const KEPT = "phalanx.theme";
const OTHER = { dark: "light", light: "dark" };

export class Theme {
  constructor(button, changed) {
    this.system = matchMedia("(prefers-color-scheme: dark)");
    this.button = button;
    this.changed = changed;
    this.system.addEventListener("change", () => this.#apply());
    button.addEventListener("click", () => {
      localStorage.setItem(KEPT, OTHER[this.name]);
      this.#apply();
    });
    this.#apply();
  }

  #apply() {
    const kept = localStorage.getItem(KEPT);
    this.name = kept in OTHER ? kept : this.system.matches ? "dark" : "light";
    document.documentElement.dataset.theme = this.name;
    this.button.textContent = this.name === "dark" ? "Light" : "Dark";
    this.button.setAttribute("aria-label", `Switch to ${OTHER[this.name]} colours`);
    this.changed();
  }
}
