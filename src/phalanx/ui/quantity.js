/* Converts quantities of Kubernetes (`500m`, `32Gi`) to numbers and back. */

const FACTORS = {
  "": 1, n: 1e-9, u: 1e-6, m: 1e-3, k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, E: 1e18,
  Ki: 2 ** 10, Mi: 2 ** 20, Gi: 2 ** 30, Ti: 2 ** 40, Pi: 2 ** 50, Ei: 2 ** 60,
};

export function parseQuantity(text) {
  const [, number, suffix] = /^([+-]?[\d.]+(?:[eE][+-]?\d+)?)([A-Za-z]*)$/.exec(String(text)) ?? [];
  return number === undefined ? 0 : Number(number) * (FACTORS[suffix] ?? 1);
}

/** Parses all quantities of a resource list. */
export function parseResources(table) {
  return Object.fromEntries(Object.entries(table ?? {}).map(([name, text]) => [name, parseQuantity(text)]));
}

/** Formats an amount: bytes in binary units, others as they are. */
export function formatAmount(name, value) {
  if (name !== "memory" && !name.includes("storage")) return String(Math.round(value * 1000) / 1000);
  const unit = ["Ti", "Gi", "Mi", "Ki"].find((one) => value >= FACTORS[one]) ?? "";
  return `${Math.round((value / FACTORS[unit]) * 10) / 10}${unit}`;
}

/** Formats a resource list in one line. */
export function formatResources(table) {
  return Object.entries(table).map(([name, value]) => `${name} ${formatAmount(name, value)}`).join(", ") || "nothing";
}
