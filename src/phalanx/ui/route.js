/* Addresses inside the page: `#/gangs?state=waiting`, `#/gang/NAMESPACE/NAME`, `#/node/NAME`. Everything that the page
   shows has one, so that it can be sent to others and the browser's back button works. */

/** Views without an object. */
const VIEWS = ["gangs", "forecast"];
/** Kinds with a page of their own: whether their objects are in namespaces. */
const NAMESPACED = { gang: true, job: true, jobset: true, lws: true, pod: true, node: false };
/** Kind of an owner or entity in the API -> kind in addresses. */
const KINDS = { Job: "job", JobSet: "jobset", LeaderWorkerSet: "lws", PodGroup: "gang", CompositePodGroup: "gang", Pod: "pod", Node: "node" };

export const OVERVIEW = { view: "overview", kind: "", key: "", query: {} };

/** Parses the fragment of an address; anything unknown is the overview. */
export function parseRoute(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
  const [first, ...rest] = path.split("/").map(decode);
  const words = Object.fromEntries(new URLSearchParams(query));
  if (VIEWS.includes(first) && !rest.length) return { view: first, kind: "", key: "", query: words };
  const isNamed = Object.hasOwn(NAMESPACED, first) && rest.length === (NAMESPACED[first] ? 2 : 1) && rest.every(Boolean);
  return isNamed ? { view: "detail", kind: first, key: rest.join("/"), query: words } : OVERVIEW;
}

/** Returns the address of an object: `hrefOf("gang", "default/train")`. */
export function hrefOf(kind, key) {
  return `#/${[kind, ...key.split("/")].map(encodeURIComponent).join("/")}`;
}

/** Returns the address of an object of the API; "" if the page does not show that kind. */
export function hrefOfObject(kind, namespace, name) {
  const found = Object.hasOwn(KINDS, kind) && KINDS[kind];
  if (!found) return "";
  return hrefOf(found, NAMESPACED[found] ? `${namespace}/${name}` : name);
}

/** Returns the address of a view with a query; empty values are left out. */
export function hrefOfView(view, query = {}) {
  const words = new URLSearchParams(Object.entries(query).filter(([, value]) => value));
  return `#/${view === "overview" ? "" : view}${words.size ? `?${words}` : ""}`;
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return "";
  }
}
