/* Times and durations as text. */

const MINUTE = 60;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** Formats seconds as kubectl does: `45s`, `12m`, `3h20m`, `5d`. */
export function formatDuration(seconds) {
  const all = Math.max(0, Math.floor(seconds));
  if (all < 2 * MINUTE) return `${all}s`;
  if (all < 10 * MINUTE) return `${Math.floor(all / MINUTE)}m${all % MINUTE ? `${all % MINUTE}s` : ""}`;
  if (all < 3 * HOUR) return `${Math.floor(all / MINUTE)}m`;
  if (all < DAY) return `${Math.floor(all / HOUR)}h${Math.floor((all % HOUR) / MINUTE) ? `${Math.floor((all % HOUR) / MINUTE)}m` : ""}`;
  return `${Math.floor(all / DAY)}d${all < 8 * DAY && Math.floor((all % DAY) / HOUR) ? `${Math.floor((all % DAY) / HOUR)}h` : ""}`;
}

/** Formats a time of today as `14:03:20`, of another day with its date. */
export function formatMoment(time, now = Date.now()) {
  const at = new Date(time);
  if (Number.isNaN(at.getTime())) return "";
  const clock = at.toLocaleTimeString([], { hour12: false });
  return at.toDateString() === new Date(now).toDateString() ? clock : `${at.toLocaleDateString([], { day: "numeric", month: "short" })} ${clock}`;
}

export const secondsSince = (time, now = Date.now()) => (now - Date.parse(time)) / 1000;

/** Returns `1 pod`, `3 pods`. */
export const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
