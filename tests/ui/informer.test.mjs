import assert from "node:assert/strict";
import test from "node:test";

import { Api, Refusal, lines } from "../../src/phalanx/ui/api.js";
import { Informer } from "../../src/phalanx/ui/informer.js";

const made = (name, version) => ({ metadata: { name, resourceVersion: version } });

/** An informer over a server that answers by a script, one step per question; stops at its end. */
async function informed(script) {
  const told = [];
  const stopper = new AbortController();
  const next = (asked) => {
    told.push(asked);
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
    replace: (items) => told.push(`has ${items.map((one) => one.metadata.name)}`),
    apply: (type, object) => told.push(`${type} ${object.metadata.name}`),
    troubled: (error) => told.push(`trouble ${error.message}`),
    recovered: () => {},
  };
  const waits = [];
  await new Informer(api, { path: "/x" }, sink, async (wait) => waits.push(wait)).run(stopper.signal);
  return { told, waits };
}

test("a watch goes on where it was cut", async () => {
  const { told } = await informed([
    { items: [made("a", "1")], version: "5" },
    [{ type: "ADDED", object: made("b", "6") }, { type: "BOOKMARK", object: made("", "9") }],
    new Error("network"),
    [{ type: "DELETED", object: made("b", "10") }],
    [],
  ]);
  assert.deepEqual(told, ["list", "has a", "watch 5", "ADDED b", "watch 9", "trouble network", "watch 9", "DELETED b", "watch 10"]);
});

for (const [whose, code] of [["too far behind", 410], ["ahead of a server that began anew", 504]]) {
  test(`who is ${whose} lists anew`, async () => {
    const { told } = await informed([
      { items: [], version: "5" }, new Refusal(code, "no"), { items: [made("c", "8")], version: "8" }, [],
    ]);
    assert.deepEqual(told, ["list", "has ", "watch 5", "trouble no", "list", "has c", "watch 8"]);
  });
}

test("a server that is away is asked less and less often", async () => {
  const { waits } = await informed([{ items: [], version: "1" }, ...Array(8).fill(new Error("away")), []]);
  assert.ok(waits[0] >= 250 && waits[0] <= 500);
  assert.ok(waits.at(-1) >= 7500 && waits.at(-1) <= 15000);
});

test("a token that has ended is not tried again", async () => {
  await assert.rejects(informed([{ items: [], version: "1" }, new Refusal(401, "no"), []]), { code: 401 });
});

const answer = (text, status = 200) => new Response(text, { status });

test("a list comes in pages and a watch in lines, with the token", async () => {
  const asked = [];
  const replies = [
    '{"items":[1],"metadata":{"continue":"more"}}', '{"items":[2],"metadata":{"resourceVersion":"7"}}',
    '{"type":"ADDED","object":1}\n{"type":"ERROR","object":{"code":410,"message":"too old"}}\n',
  ];
  const api = new Api("secret", async (path, { headers }) => { asked.push([path, headers.authorization]); return answer(replies.shift()); });
  assert.deepEqual(await api.list("/p", "a!=b"), { items: [1, 2], version: "7" });
  assert.deepEqual(asked[1], ["/p?limit=2000&fieldSelector=a%21%3Db&continue=more", "Bearer secret"]);
  const seen = [];
  await assert.rejects(async () => { for await (const one of await api.watch("/p", "", "7")) seen.push(one.type); }, { code: 410 });
  assert.deepEqual(seen, ["ADDED"]);
});

test("a refusal says what the server says, whatever it sends", async () => {
  const replies = [answer('{"kind":"Status","message":"you may not"}', 403), answer("bad gateway", 502)];
  const api = new Api("x", async () => replies.shift());
  await assert.rejects(api.get("/p"), { code: 403, message: "you may not" });
  await assert.rejects(api.get("/p"), { code: 502, message: "bad gateway" });
});

test("lines are whole, however the bytes come", async () => {
  const bytes = new TextEncoder().encode('"é"\n\n"b"\n"cut');
  const body = new ReadableStream({ start(out) { for (const one of bytes) out.enqueue(Uint8Array.of(one)); out.close(); } });
  const found = [];
  for await (const line of lines(body)) found.push(line);
  assert.deepEqual(found, ['"é"', '"b"']);
});
