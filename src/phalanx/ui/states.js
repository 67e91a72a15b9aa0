/* The states of gangs, as `phalanx queue` names them, with their label and tone. A tone is a colour of the style sheet:
   only what needs a person is "bad". */

export const STATES = {
  running: { label: "Running", tone: "good" },
  waiting: { label: "Waiting", tone: "wait" },
  reserved: { label: "Reserved", tone: "plan" },
  preempted: { label: "Preempted", tone: "wait" },
  held: { label: "Held", tone: "quiet" },
  never: { label: "Never fits", tone: "bad" },
  completed: { label: "Done", tone: "quiet" },
  failed: { label: "Failed", tone: "bad" },
};

/** Order of the states when a table is sorted by them: what needs a person first. */
export const STATE_ORDER = ["never", "failed", "waiting", "reserved", "preempted", "held", "running", "completed"];

export const ENDED = new Set(["completed", "failed"]);

export const stateLabel = (state) => STATES[state]?.label ?? state;
export const stateTone = (state) => STATES[state]?.tone ?? "quiet";

/** Returns how many entries are in each state that occurs, in the order of the table. */
export function countStates(items) {
  const counts = new Map(Object.keys(STATES).map((state) => [state, 0]));
  for (const { state } of items) counts.set(state, (counts.get(state) ?? 0) + 1);
  return [...counts].filter(([, count]) => count);
}
