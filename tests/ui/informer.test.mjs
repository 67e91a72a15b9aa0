import assert from "node:assert/strict";
import test from "node:test";

import { Api, ApiError, lines } from "../../src/phalanx/ui/api.js";
import { Informer } from "../../src/phalanx/ui/informer.js";

const made = (name, version) => ({ metadata: { name, resourceVersion: version } });

/** Runs an informer with a server that follows a script, one step per request, until the script ends. */
async function runScript(script) {
  const calls = [];
  const stopper = new AbortController();
  const next = (request) => {
    calls.push(request);
    const step = script.shift();
    if (!script.length) stopper.abort();
    if (step instanceof Error) throw step;
    return step;
  };
  const api = {
    list: async () => next("list"),
    watch: async (path, fields, version) => next(`watch ${version}`),
  };
  const sink = {
    replace: (items) => calls.push(`has ${items.map((one) => one.metadata.name)}`),
    apply: (type, object) => calls.push(`${type} ${object.metadata.name}`),
    failed: (error) => calls.push(`failed ${error.message}`),
    recovered: () => {},
  };
  const waits = [];
  await new Informer(api, { path: "/x" }, sink, async (wait) => waits.push(wait)).run(stopper.signal);
  return { calls, waits };
}

test("a broken watch resumes at its resource version", async () => {
  const { calls } = await runScript([
    { items: [made("a", "1")], version: "5" },
    [{ type: "ADDED", object: made("b", "6") }, { type: "BOOKMARK", object: made("", "9") }],
    new Error("network"),
    [{ type: "DELETED", object: made("b", "10") }],
    [],
  ]);
  assert.deepEqual(calls, ["list", "has a", "watch 5", "ADDED b", "watch 9", "failed network", "watch 9", "DELETED b", "watch 10"]);
});

for (const [state, code] of [["expired", 410], ["ahead of a restarted server", 504]]) {
  test(`a resource version that is ${state} leads to a new list`, async () => {
    const { calls } = await runScript([
      { items: [], version: "5" }, new ApiError(code, "no"), { items: [made("c", "8")], version: "8" }, [],
    ]);
    assert.deepEqual(calls, ["list", "has ", "watch 5", "failed no", "list", "has c", "watch 8"]);
  });
}

test("the back-off grows while the server is unreachable", async () => {
  const { waits } = await runScript([{ items: [], version: "1" }, ...Array(8).fill(new Error("away")), []]);
  assert.ok(waits[0] >= 250 && waits[0] <= 500);
  assert.ok(waits.at(-1) >= 7500 && waits.at(-1) <= 15000);
});

test("a rejected token ends the informer", async () => {
  await assert.rejects(runScript([{ items: [], version: "1" }, new ApiError(401, "no"), []]), { code: 401 });
});

const answer = (text, status = 200) => new Response(text, { status });

test("a list is read in pages and a watch in lines, with the token", async () => {
  const requests = [];
  const replies = [
    '{"items":[1],"metadata":{"continue":"more"}}', '{"items":[2],"metadata":{"resourceVersion":"7"}}',
    '{"type":"ADDED","object":1}\n{"type":"ERROR","object":{"code":410,"message":"too old"}}\n',
  ];
  const api = new Api("secret", async (path, { headers }) => { requests.push([path, headers.authorization]); return answer(replies.shift()); });
  assert.deepEqual(await api.list("/p", "a!=b"), { items: [1, 2], version: "7" });
  assert.deepEqual(requests[1], ["/p?limit=2000&fieldSelector=a%21%3Db&continue=more", "Bearer secret"]);
  const seen = [];
  await assert.rejects(async () => { for await (const one of await api.watch("/p", "", "7")) seen.push(one.type); }, { code: 410 });
  assert.deepEqual(seen, ["ADDED"]);
});

test("an error has the message of the server, in JSON or text", async () => {
  const replies = [answer('{"kind":"Status","message":"you may not"}', 403), answer("bad gateway", 502)];
  const api = new Api("x", async () => replies.shift());
  await assert.rejects(api.get("/p"), { code: 403, message: "you may not" });
  await assert.rejects(api.get("/p"), { code: 502, message: "bad gateway" });
});

test("lines are complete, whatever the chunks are", async () => {
  const bytes = new TextEncoder().encode('"é"\n\n"b"\n"cut');
  const body = new ReadableStream({ start(out) { for (const one of bytes) out.enqueue(Uint8Array.of(one)); out.close(); } });
  const found = [];
  for await (const line of lines(body)) found.push(line);
  assert.deepEqual(found, ['"é"', '"b"']);
});
