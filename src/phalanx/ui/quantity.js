/* Quantities as Kubernetes writes them (`500m`, `32Gi`), as numbers and back. */

const FACTORS = {
  "": 1, n: 1e-9, u: 1e-6, m: 1e-3, k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, E: 1e18,
  Ki: 2 ** 10, Mi: 2 ** 20, Gi: 2 ** 30, Ti: 2 ** 40, Pi: 2 ** 50, Ei: 2 ** 60,
};

export function parsed(text) {
  const [, number, suffix] = /^([+-]?[\d.]+(?:[eE][+-]?\d+)?)([A-Za-z]*)$/.exec(String(text)) ?? [];
  return number === undefined ? 0 : Number(number) * (FACTORS[suffix] ?? 1);
}

/** All quantities of a table of resources. */
export function amounts(table) {
  return Object.fromEntries(Object.entries(table ?? {}).map(([name, text]) => [name, parsed(text)]));
}

/** A number as people read it: bytes in binary units, the rest as it is. */
export function shown(name, value) {
  if (name !== "memory" && !name.includes("storage")) return String(Math.round(value * 1000) / 1000);
  const unit = ["Ti", "Gi", "Mi", "Ki"].find((one) => value >= FACTORS[one]) ?? "";
  return `${Math.round((value / FACTORS[unit]) * 10) / 10}${unit}`;
}

/** A table of numbers in one line. */
export function spelled(table) {
  return Object.entries(table).map(([name, value]) => `${name} ${shown(name, value)}`).join(", ") || "nothing";
}
