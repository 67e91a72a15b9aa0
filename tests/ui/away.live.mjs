/* The page while its server restarts: prints a line for each state, which the test waits for. */

import { open, until } from "./dom.mjs";

const FOLDER = new URL("../../src/phalanx/ui/", import.meta.url);
const $ = open(process.env.SERVER, FOLDER);
const state = (text) => until(() => $("state").textContent.startsWith(text), () => $("state").textContent);

sessionStorage.setItem("phalanx.token", process.env.TOKEN);
await import(new URL("page.js", FOLDER));
for (const text of ["live", "not up to date", "live"]) {
  await state(text);
  console.log(text);
}
await until(() => $("counts").textContent.startsWith("3 nodes"), () => $("counts").textContent);
console.log($("counts").textContent);
process.exit(0);
