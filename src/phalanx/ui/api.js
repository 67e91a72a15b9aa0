/* Client of the public API: get an object, list a collection, watch its changes. */

/** An error response. `code` is the HTTP status, or the code of the Status in a watch. */
export class ApiError extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

/** Objects per page of a list. */
const PAGE_SIZE = 2000;

/** Seconds that a watch lasts: a browser has six connections per server, which all windows share. */
const WATCH_SECONDS = 45;

export class Api {
  constructor(token, fetcher = (...args) => fetch(...args)) {
    this.token = token;
    this.fetcher = fetcher;
  }

  async request(path, options = {}) {
    const headers = { authorization: `Bearer ${this.token}`, accept: "application/json", ...options.headers };
    const response = await this.fetcher(path, { ...options, headers, credentials: "omit", cache: "no-store" });
    if (!response.ok) throw await readError(response);
    return response;
  }

  async get(path, signal) {
    return (await this.request(path, { signal })).json();
  }

  /** Returns the name of the user that the token authenticates. */
  async whoami() {
    const body = JSON.stringify({ apiVersion: "authentication.k8s.io/v1", kind: "SelfSubjectReview" });
    const headers = { "content-type": "application/json" };
    const response = await this.request("/apis/authentication.k8s.io/v1/selfsubjectreviews", { method: "POST", headers, body });
    return (await response.json()).status.userInfo.username;
  }

  /** Returns all objects of a collection and their resource version. */
  async list(path, fields, signal) {
    const items = [];
    let next = "";
    do {
      const query = { limit: PAGE_SIZE, ...(fields && { fieldSelector: fields }), ...(next && { continue: next }) };
      const found = await this.get(`${path}?${new URLSearchParams(query)}`, signal);
      items.push(...found.items);
      next = found.metadata.continue;
      if (!next) return { items, version: found.metadata.resourceVersion };
    } while (true);
  }

  /** Returns the watch events after a resource version, as an async iterator, once the server accepts the watch. */
  async watch(path, fields, version, signal) {
    const query = { watch: 1, allowWatchBookmarks: true, resourceVersion: version, timeoutSeconds: WATCH_SECONDS };
    if (fields) query.fieldSelector = fields;
    const response = await this.request(`${path}?${new URLSearchParams(query)}`, { signal });
    return readEvents(response.body);
  }
}

/** Returns the token of the code of a sign-in link; the code is used up. */
export async function exchangeCode(code, fetcher = (...args) => fetch(...args)) {
  const headers = { "content-type": "application/json" };
  const options = { method: "POST", headers, body: JSON.stringify({ code }), credentials: "omit", cache: "no-store" };
  const response = await fetcher("/phalanx/v1/sign-in", options);
  if (!response.ok) throw await readError(response);
  return (await response.json()).token;
}

/** Yields the events of a watch; throws the error event that ends it. */
async function* readEvents(body) {
  for await (const line of lines(body)) {
    const event = JSON.parse(line);
    if (event.type === "ERROR") throw new ApiError(event.object.code, event.object.message);
    yield event;
  }
}

async function readError(response) {
  const text = await response.text();
  try {
    return new ApiError(response.status, JSON.parse(text).message);
  } catch {
    return new ApiError(response.status, text.trim() || response.statusText);
  }
}

/** Yields the lines of a body as they arrive; drops a last line without a newline. */
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
