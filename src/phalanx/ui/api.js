/* The public API as the page asks it: one object, a whole list, or a stream of changes. */

/** An answer that is not what was asked for. `code` is that of HTTP, or of the Status in a watch. */
export class Refusal extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

const PAGE = 2000;

/** How many seconds a watch lasts, so that windows that share six connections take turns. */
const LAST = 45;

export class Api {
  constructor(token, ask = (...words) => fetch(...words)) {
    this.token = token;
    this.ask = ask;
  }

  async answer(path, options = {}) {
    const headers = { authorization: `Bearer ${this.token}`, accept: "application/json", ...options.headers };
    const answer = await this.ask(path, { ...options, headers, credentials: "omit", cache: "no-store" });
    if (!answer.ok) throw await refusal(answer);
    return answer;
  }

  async get(path, signal) {
    return (await this.answer(path, { signal })).json();
  }

  /** Who the token is. */
  async whoami() {
    const body = JSON.stringify({ apiVersion: "authentication.k8s.io/v1", kind: "SelfSubjectReview" });
    const headers = { "content-type": "application/json" };
    const answer = await this.answer("/apis/authentication.k8s.io/v1/selfsubjectreviews", { method: "POST", headers, body });
    return (await answer.json()).status.userInfo.username;
  }

  /** All objects of a collection, and the version that they are of. */
  async list(path, fields, signal) {
    const items = [];
    let next = "";
    do {
      const words = { limit: PAGE, ...(fields && { fieldSelector: fields }), ...(next && { continue: next }) };
      const found = await this.get(`${path}?${new URLSearchParams(words)}`, signal);
      items.push(...found.items);
      next = found.metadata.continue;
      if (!next) return { items, version: found.metadata.resourceVersion };
    } while (true);
  }

  /** What changes after a version: comes when the server begins to tell, goes on for as long as it does. */
  async watch(path, fields, version, signal) {
    const words = { watch: 1, allowWatchBookmarks: true, resourceVersion: version, timeoutSeconds: LAST };
    if (fields) words.fieldSelector = fields;
    const answer = await this.answer(`${path}?${new URLSearchParams(words)}`, { signal });
    return changes(answer.body);
  }
}

/** The events of a watch; throws what the server ends it with. */
async function* changes(body) {
  for await (const line of lines(body)) {
    const event = JSON.parse(line);
    if (event.type === "ERROR") throw new Refusal(event.object.code, event.object.message);
    yield event;
  }
}

async function refusal(answer) {
  const text = await answer.text();
  try {
    return new Refusal(answer.status, JSON.parse(text).message);
  } catch {
    return new Refusal(answer.status, text.trim() || answer.statusText);
  }
}

/** The lines of a body as they come; an unfinished last one was cut off and is no line. */
export async function* lines(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    while (true) {
      const { done, value } = await reader.read();
      if (done) return;
      const parts = (rest + decoder.decode(value, { stream: true })).split("\n");
      rest = parts.pop();
      yield* parts.filter(Boolean);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
