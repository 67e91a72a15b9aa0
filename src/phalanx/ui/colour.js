/* The colour of a gang: from its name, unlike that of the others, as visible in the dark as in the light. */

const HUES = 24;
const SATURATION = 0.72;
/** Steps of hue that nobody mistakes, and how many of them another shade is worth. */
const FAR = 4;
const SHADE = 2;
/** How a free place is looked for: not next to the one that is taken. */
const STRIDE = 29;

/** How bright the shades are, as relative luminance: away from the ground of each theme. */
const SHADES = { dark: [0.26, 0.4, 0.58], light: [0.09, 0.16, 0.25] };

/** What the map is drawn with besides. */
export const INKS = {
  dark: { ground: "#1a1f26", node: "#262e38", line: "#3f4a58", text: "#c5cedb", alone: "#6f7b8b", focus: "#7fb8f5", bad: "#ff9a8d" },
  light: { ground: "#ffffff", node: "#eceff3", line: "#c3cad4", text: "#3a4453", alone: "#8b95a3", focus: "#0b5cad", bad: "#a3261b" },
};

/** A number of a text that does not change from one visit to the next (FNV-1a). */
export function hash(text) {
  let value = 0x811c9dc5;
  for (let at = 0; at < text.length; at++) value = Math.imul(value ^ text.charCodeAt(at), 0x01000193);
  value ^= value >>> 15;
  return Math.imul(value, 0x2c1b3c6d) >>> 0;
}

export function luminance([red, green, blue]) {
  const [r, g, b] = [red, green, blue].map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function rgb(hue, lightness) {
  const reach = SATURATION * Math.min(lightness, 1 - lightness);
  return [0, 8, 4].map((n) => {
    const k = (n + hue / 30) % 12;
    return lightness - reach * Math.max(-1, Math.min(k - 3, 9 - k, 1));
  });
}

/** The colour of a hue that is as bright as wanted: yellow needs less light for it than blue. */
function toned(hue, wanted) {
  let [low, high] = [0, 1];
  for (let step = 0; step < 20; step++) {
    const middle = (low + high) / 2;
    if (luminance(rgb(hue, middle)) < wanted) low = middle;
    else high = middle;
  }
  return rgb(hue, low);
}

const hex = (parts) => `#${parts.map((part) => Math.round(part * 255).toString(16).padStart(2, "0")).join("")}`;

/** All colours of a theme: neighbours in the table differ in hue and in brightness. */
function palette(theme) {
  return Array.from({ length: HUES * 3 }, (_, at) => hex(toned((at % HUES) * (360 / HUES), SHADES[theme][Math.floor(at / HUES)])));
}

export const PALETTES = { dark: palette("dark"), light: palette("light") };

/** How far two places of the palette are from each other: in hue, or in brightness. */
function distance(one, other) {
  const hue = Math.abs((one % HUES) - (other % HUES));
  return Math.min(hue, HUES - hue) + SHADE * Math.abs(Math.floor(one / HUES) - Math.floor(other / HUES));
}

/** Who has which place in the palette: the one that the name leads to, unless a neighbour is taken. */
export class Colours {
  #places = new Map();

  /** The colour of a gang, the same until it is let go; a pod in none is grey. */
  of(group, theme) {
    return group ? PALETTES[theme][this.give(group)] : INKS[theme].alone;
  }

  give(group) {
    if (!this.#places.has(group)) this.#places.set(group, this.#place(hash(group) % (HUES * SHADES.dark.length)));
    return this.#places.get(group);
  }

  free(group) {
    this.#places.delete(group);
  }

  /** As far from the others as can be had without going far from the first. */
  #place(first) {
    const [count, taken] = [HUES * SHADES.dark.length, [...new Set(this.#places.values())]];
    for (let least = FAR; least > 0; least--) {
      for (let step = 0; step < count; step++) {
        const place = (first + step * STRIDE) % count;
        if (taken.every((one) => distance(place, one) >= least)) return place;
      }
    }
    return first;
  }
}
