/* The check whether a scheduler runs, with a server made of plain responses. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Api } from "../../src/phalanx/ui/api.js";
import { SchedulerCheck } from "../../src/phalanx/ui/scheduler.js";

const NOW = Date.parse("2027-01-15T08:00:00Z");
const PLAIN = "[+]ping ok\nreadyz check passed\n";

/** Returns the outages that are reported; `lease` is a response or the spec of the Lease. */
async function outages(...rounds) {
  const found = [];
  let round = 0;
  const stopper = new AbortController();
  const fetcher = async (path) => {
    const { readyz = PLAIN, code = 200, lease } = rounds[round];
    if (path.startsWith("/readyz")) return new Response(readyz, { status: code });
    return lease instanceof Response ? lease : Response.json({ spec: lease });
  };
  const pause = async () => { if (++round === rounds.length) stopper.abort(); };
  await new SchedulerCheck(new Api("t", fetcher), (outage) => found.push(outage), { pause, now: () => NOW }).run(stopper.signal);
  return found;
}

const failed = { readyz: "[+]ping ok\n[-]scheduler failed: no scheduler is running\nreadyz check failed\n", code: 500 };
const passed = { readyz: "[+]ping ok\n[+]scheduler ok\nreadyz check passed\n" };
const held = { holderIdentity: "a", renewTime: "2027-01-15T07:59:55Z", leaseDurationSeconds: 15 };

test("the server says whether its scheduler runs, and changes are reported once", async () => {
  assert.deepEqual(await outages(passed, failed, failed, passed), ["no scheduler is running", ""]);
});

test("else the Lease of the scheduler says it", async () => {
  assert.deepEqual(await outages({ lease: held }), []);
  assert.deepEqual(await outages({ lease: { ...held, renewTime: "2027-01-15T07:59:00Z" } }),
    ["no scheduler is running: a has not renewed the Lease kube-system/default-scheduler for 60 s"]);
  assert.deepEqual(await outages({ lease: { ...held, holderIdentity: undefined } }),
    ["no scheduler is running: nothing holds the Lease kube-system/default-scheduler"]);
  assert.deepEqual(await outages({ lease: Response.json({ message: "gone" }, { status: 404 }) }),
    ["no scheduler is running: there is no Lease kube-system/default-scheduler"]);
});

test("nothing is reported if the Lease may not be read", async () => {
  assert.deepEqual(await outages({ lease: Response.json({ message: "no" }, { status: 403 }) }), []);
});
