/* Colours of gangs: derived from the name, distinct from those of other gangs, readable in both themes. */

const HUES = 24;
/** Degrees of hue: without red, which is kept for what needs a person. */
const FIRST_HUE = 22;
const HUE_RANGE = 318;
const SATURATION = 0.72;
/** Steps of hue that are easy to tell apart, and how many of them a step of brightness is worth. */
const CLEAR_DISTANCE = 4;
const SHADE_DISTANCE = 2;
/** Step of the search for a free place: the next place would have nearly the same colour. */
const STRIDE = 29;

/** Relative luminance of the shades: in contrast to the background of each theme. */
const SHADES = { dark: [0.26, 0.4, 0.58], light: [0.09, 0.16, 0.25] };

/** The other colours of the map. */
export const INKS = {
  dark: { ground: "#181d24", node: "#262e38", line: "#3f4a58", text: "#c5cedb", alone: "#6f7b8b", focus: "#7fb8f5", bad: "#ff9a8d", closed: "#f0c274" },
  light: { ground: "#ffffff", node: "#eceff3", line: "#c3cad4", text: "#3a4453", alone: "#8b95a3", focus: "#0b5cad", bad: "#a3261b", closed: "#7a4f00" },
};

/** Hashes a text (FNV-1a): the same number on every visit. */
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

/** Returns the colour of a hue with a luminance: yellow needs less lightness for it than blue. */
function withLuminance(hue, wanted) {
  let [low, high] = [0, 1];
  for (let step = 0; step < 20; step++) {
    const middle = (low + high) / 2;
    if (luminance(rgb(hue, middle)) < wanted) low = middle;
    else high = middle;
  }
  return rgb(hue, low);
}

const hex = (parts) => `#${parts.map((part) => Math.round(part * 255).toString(16).padStart(2, "0")).join("")}`;

/** Returns all colours of a theme: every hue in every shade. */
function palette(theme) {
  return Array.from({ length: HUES * 3 }, (_, at) => hex(withLuminance(FIRST_HUE + (at % HUES) * (HUE_RANGE / HUES), SHADES[theme][Math.floor(at / HUES)])));
}

export const PALETTES = { dark: palette("dark"), light: palette("light") };

/** Returns the distance of two places of the palette, in hue and brightness. */
function distance(one, other) {
  const hue = Math.abs((one % HUES) - (other % HUES));
  return Math.min(hue, HUES - hue) + SHADE_DISTANCE * Math.abs(Math.floor(one / HUES) - Math.floor(other / HUES));
}

/** Assigns places of the palette to gangs: the place of the name's hash, or one far from those in use. */
export class Colours {
  #places = new Map();

  /** Returns the colour of a gang, the same until it is released; grey for pods without a gang. */
  of(group, theme) {
    return group ? PALETTES[theme][this.assign(group)] : INKS[theme].alone;
  }

  assign(group) {
    if (!this.#places.has(group)) this.#places.set(group, this.#place(hash(group) % (HUES * SHADES.dark.length)));
    return this.#places.get(group);
  }

  release(group) {
    this.#places.delete(group);
  }

  /** Finds a place with the largest distance to all places in use, starting at `first`. */
  #place(first) {
    const [count, taken] = [HUES * SHADES.dark.length, [...new Set(this.#places.values())]];
    for (let least = CLEAR_DISTANCE; least > 0; least--) {
      for (let step = 0; step < count; step++) {
        const place = (first + step * STRIDE) % count;
        if (taken.every((one) => distance(place, one) >= least)) return place;
      }
    }
    return first;
  }
}
