/* The whole page with a running control plane (SERVER, TOKEN), under node --test with a stub of the browser. */

import assert from "node:assert/strict";
import test, { after } from "node:test";

import { open, until } from "./dom.mjs";

const { SERVER, TOKEN } = process.env;
const FOLDER = new URL("../../src/phalanx/ui/", import.meta.url);
const JOBS = "/apis/batch/v1/namespaces/default/jobs";

const $ = open(SERVER, FOLDER);
const textOf = (id) => $(id).textContent;
const showing = (id, text) => until(() => textOf(id).includes(text), () => `${text}: ${textOf(id)} | ${textOf("state")}`);
const gone = (id, text) => until(() => !textOf(id).includes(text), () => `${text}: ${textOf(id)} | ${textOf("state")}`);
const rejections = [];
process.on("unhandledRejection", (error) => rejections.push(error));

async function api(method, path, body) {
  const headers = { authorization: `Bearer ${TOKEN}`, "content-type": "application/json" };
  const answer = await fetch(path, { method, headers, body: body && JSON.stringify(body) });
  assert.ok(answer.ok, `${method} ${path}: ${await answer.clone().text()}`);
  return answer.json();
}

const gang = (name, members) => ({
  apiVersion: "batch/v1", kind: "Job", metadata: { name },
  spec: {
    parallelism: members, completions: members, completionMode: "Indexed",
    scheduling: { schedulingPolicy: { gang: { minCount: members } } },
    template: {
      spec: {
        restartPolicy: "Never",
        containers: [{ name: "main", image: "registry.example/x:1", resources: { limits: { cpu: "1", "example.com/gpu": "4" } } }],
      },
    },
  },
});

const end = (name) => api("DELETE", `${JOBS}/${name}?propagationPolicy=Background`);

async function signIn(token) {
  $("token").value = token;
  assert.ok($("login").fire("submit").prevented);
}

after(() => setTimeout(() => process.exit(), 100));

test("the page, from signing in to signing out", async (t) => {
  await import(new URL("page.js", FOLDER));

  await t.test("an invalid token is rejected and not stored", async () => {
    assert.equal($("login").hidden, false);
    await signIn("wrong");
    await showing("error", "The token is not valid");
    assert.equal(sessionStorage.getItem("phalanx.token"), null);
    assert.equal($("main").hidden, true);
  });

  await t.test("a valid token opens the cluster", async () => {
    await signIn(TOKEN);
    await showing("state", "live, as");
    await showing("counts", "4 nodes");
    assert.equal($("login").hidden, true);
    await until(() => document.documentElement.dataset.picture);
    assert.ok($("map").context.texts.includes("block-0"));
  });

  await t.test("a gang appears in its colour, with the decision", async () => {
    await api("POST", JOBS, gang("fits", 2));
    await showing("legend", "default/fits 2");
    await showing("decisions", "default/fits");
    await showing("decisions", "Scheduled");
    const { background } = $("legend").querySelector("span").style;
    await until(() => $("map").context.count(background) === 2, () => JSON.stringify($("map").context.painted));
  });

  await t.test("a waiting gang shows its reason and what would help", async () => {
    await api("POST", JOBS, gang("large", 6));
    await showing("waiting", "default/large");
    await showing("waiting", "Unschedulable");
    await showing("waiting", "minCount (6) cannot be satisfied");
    await showing("waiting", "2 of 6 members fit: 2 nodes without enough example.com/gpu.");
    await showing("waiting", "capacity for 4 more members");
    await showing("waiting", "phalanx why job/large");
    await showing("waiting-title", "Waiting: 1");
  });

  await t.test("the page of a gang leads from its Job to its nodes", async () => {
    $("legend").querySelectorAll("a").find((one) => one.textContent.includes("fits")).fire("click");
    await showing("chosen-title", "Gang default/fits");
    assert.match(location.hash, /^#\/gang\/default\/fits-/);
    await showing("detail", "2 at once, 2 active");
    for (const text of ["Job", "Workload", "template fits-pgt-0 (gang)", "PodGroup", "at least 2 at once", "Pods (2)", "Nodes (2)"]) {
      assert.ok(textOf("detail").includes(text), `${text}: ${textOf("detail")}`);
    }
    for (const text of ["Created", "Complete", "2 members of 2 needed", "Decided", "Bound", "2 members on 2 nodes", "Running"]) await showing("detail", text);
    await showing("chosen-state", "Running");
    const node = $("detail").querySelectorAll("a").find((one) => one.attributes.href.startsWith("#/node/"));
    node.fire("click");
    await showing("chosen-title", "Node node-");
    await showing("detail", "example.com/gpu");
    document.fire("keydown", { key: "Escape", target: $("map") });
    await until(() => $("chosen").hidden);
    assert.equal($("main").dataset.view, "overview");
  });

  await t.test("the table of gangs shows what the queue lists", async () => {
    location.hash = "#/gangs";
    await showing("gang-table", "job/fits");
    await showing("gang-table", "job/large");
    await showing("gang-states", "Running 1");
    await showing("gang-states", "Never fits 1");
    $("gang-states").querySelectorAll("button").find((one) => one.textContent.includes("Never")).fire("click");
    await gone("gang-table", "job/fits");
    assert.equal(location.hash, "#/gangs?state=never");
    await showing("gangs-title", "Gangs: 1 of 2");
    location.hash = "#/forecast";
    await showing("forecast-list", "never on these nodes");
    location.hash = "#/";
    await until(() => $("main").dataset.view === "overview");
  });

  await t.test("keys move the focus and open", async () => {
    $("map").focus();
    const first = textOf("focused");
    assert.match(first, /^node-0 · block block-0/);
    $("map").fire("keydown", { key: "ArrowRight" });
    assert.notEqual(textOf("focused"), first);
    $("map").fire("keydown", { key: "Enter" });
    await showing("chosen-title", "Node node-");
    document.fire("keydown", { key: "/", target: $("map") });
    assert.equal(document.activeElement, $("search"));
    $("search").value = "large";
    $("search").fire("input");
    $("search").fire("keydown", { key: "Enter" });
    await showing("chosen-title", "Gang default/large");
    await gone("legend", "default/fits");
    $("search").value = "";
    $("search").fire("input");
    location.hash = "#/";
    await showing("legend", "default/fits");
  });

  await t.test("the switch changes the colours", async () => {
    const before = $("legend").querySelector("span").style.background;
    $("theme").fire("click");
    assert.equal(document.documentElement.dataset.theme, "dark");
    await until(() => $("legend").querySelector("span").style.background !== before);
  });

  await t.test("a page that becomes visible again catches up", async () => {
    document.hidden = true;
    document.fire("visibilitychange");
    await end("large");
    await api("POST", JOBS, gang("later", 1));
    document.hidden = false;
    document.fire("visibilitychange");
    await showing("legend", "default/later 1");
    await gone("waiting", "default/large");
  });

  await t.test("deleted gangs disappear", async () => {
    await end("fits");
    await gone("legend", "default/fits");
    await end("later");
    await showing("counts", "0 pods");
  });

  await t.test("signing out clears the page", async () => {
    $("leave").fire("click");
    assert.equal(sessionStorage.getItem("phalanx.token"), null);
    assert.equal($("main").hidden, true);
    assert.equal(textOf("state"), "signed out");
    assert.equal(textOf("legend"), "");
    assert.deepEqual(rejections, []);
  });
});
