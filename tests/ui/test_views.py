"""The views of the page in Chromium: addresses, labels, sizes, rights and sign-in links."""

from __future__ import annotations

import json
import re
import time
import urllib.error
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.cli.commands import phalanx
from tests.ui.browser import browsing, chromium
from tests.ui.demo_cluster import gang_job, jobs_path, request, wait_for_states
from tests.ui.devtools import DevTools
from tests.ui.page_driver import (
    clipped_elements,
    has_no_errors,
    hides,
    open_view,
    resize,
    settle,
    shows,
    sign_in,
)
from tools.control_plane import Access, ControlPlane

#: Each test starts a browser.
pytestmark = pytest.mark.slow
SHAPE = "cpu=8,memory=8Gi,example.com/gpu=4"
#: How many of the gangs are in each state.
STATES = {"running": 2, "completed": 1, "failed": 1, "waiting": 1, "never": 1}
LONG = "a-gang-with-the-longest-name-that-a-job-may-have-on-this-cluster"[:55]
RBAC = "/apis/rbac.authorization.k8s.io/v1"
READS = ["get", "list", "watch"]
#: Interactive elements without an accessible name, and images without a text.
UNLABELLED = (
    "[...document.querySelectorAll('a, button, input, select, canvas, svg, table, section, nav')]"
    ".filter((one) => one.checkVisibility() && !(one.getAttribute('aria-label') "
    "|| one.getAttribute('aria-labelledby') || one.labels?.length || one.textContent.trim()))"
    ".map((one) => one.outerHTML.slice(0, 100))"
)


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    chromium()
    with ControlPlane("--data", ":memory:", "--nodes", "4", "--shape", SHAPE) as found:
        create_gangs(found.access)
        yield found


def create_gangs(access: Access) -> None:
    """Create gangs in several states and namespaces."""
    request(access, "POST", "/api/v1/namespaces", {"metadata": {"name": "team"}})
    failing = {"phalanx.dev/stages": "{run: 0, failure: 1, exitCode: 42}"}
    for namespace, job in (
        ("default", gang_job("done", 2, 1, seconds=0)),
        ("default", gang_job("broken", 1, 1, annotations=failing, backoff_limit=0)),
        ("default", gang_job("fits", 2, 4)),
        ("team", gang_job("other", 1, 4)),
        ("team", gang_job(LONG, 3, 4)),
        ("default", gang_job("giant", 20, 4)),
    ):
        request(access, "POST", jobs_path(namespace), job)
        if job["metadata"]["name"] == "other":
            wait_for_states(access, running=2, completed=1, failed=1)
    wait_for_states(access, **STATES)


def entry(access: Access, argument: str) -> dict[str, str]:
    """Return the entry of a gang in the queue."""
    items = request(access, "GET", "/phalanx/v1/queue")["items"]
    return next(item for item in items if item["argument"] == argument)


def delete_gang(access: Access, job: str) -> None:
    """Delete a Job and wait until the queue, on which the page relies, has none of its gangs."""
    request(access, "DELETE", f"{jobs_path()}/{job}?propagationPolicy=Background")
    end = time.monotonic() + 60
    while any(
        item["argument"] == f"job/{job}"
        for item in request(access, "GET", "/phalanx/v1/queue")["items"]
    ):
        assert time.monotonic() < end, f"job/{job} stays in the queue"
        time.sleep(0.2)


def test_every_object_has_an_address_and_the_back_button_works(plane: ControlPlane) -> None:
    access = plane.access
    gang = entry(access, "job/fits")["name"]
    pod = request(access, "GET", "/api/v1/namespaces/default/pods")["items"][0]["metadata"]["name"]
    with browsing() as page:
        sign_in(page, access, "#/gangs?state=never")
        shows(page, "gang-table", "job/giant")
        hides(page, "gang-table", "job/fits")
        for address, title, part, text in (
            (f"#/gang/default/{gang}", "Gang default/fits", "detail", "2 members on 2 nodes"),
            ("#/gang/default/fits", "Gang default/fits", "detail", "2 at once, 2 active"),
            ("#/job/default/broken", "Job default/broken", "detail", "exit code 42"),
            ("#/job/default/done", "Job default/done", "chosen-state", "Done"),
            ("#/job/default/giant", "Job default/giant", "detail", "Why it can never run here"),
            ("#/node/node-0", "Node node-0", "detail", "example.com/gpu"),
            (f"#/pod/default/{pod}", f"Pod default/{pod}", "log-text", "simulated node"),
            ("#/job/default/none", "Job default/none", "detail", "There is no Job default/none"),
        ):
            open_view(page, address)
            shows(page, "chosen-title", title)
            shows(page, part, text)
            assert page.evaluate("document.activeElement.id") == "chosen-title"
            assert title.rpartition(" ")[2] in page.evaluate("document.title")
        page.evaluate("history.back()")
        shows(page, "chosen-title", f"Pod default/{pod}")
        page.evaluate("history.back()")
        shows(page, "chosen-title", "Node node-0")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        # Chromium reports the 404 of the Job that does not exist.
        assert all("404" in error for error in page.errors), page.errors


def test_counts_of_the_table_agree_with_the_command(plane: ControlPlane) -> None:
    listed = phalanx("queue", "-A", "--ended", "-o", "json", "--kubeconfig", str(plane.kubeconfig))
    states = Counter(item["state"] for item in json.loads(listed.stdout)["items"])
    with browsing() as page:
        sign_in(page, plane.access, "#/gangs")
        shows(page, "gang-table", "job/fits")
        chips = page.evaluate(
            "Object.fromEntries([...document.querySelectorAll('#gang-states button')]"
            ".map((one) => [one.dataset.state, Number(one.querySelector('b').textContent)]))"
        )
        assert chips.pop("") == sum(states.values())
        assert chips == dict(states)
        rows = "document.querySelectorAll('#gang-table tbody tr').length"
        assert page.evaluate(rows) == sum(states.values())
        page.evaluate("document.querySelector('[data-state=running]').click()")
        page.until(f"{rows} === {states['running']}")
        page.evaluate("document.getElementById('gang-namespace').value = 'team'")
        page.evaluate(
            "document.getElementById('gang-namespace').dispatchEvent(new Event('change'))"
        )
        page.until(f"{rows} === 1")
        assert page.evaluate("location.hash") == "#/gangs?state=running&ns=team"


def first_gangs(page: DevTools) -> list[str]:
    """Return the names in the first column."""
    found: list[str] = page.evaluate(
        "[...document.querySelectorAll('#gang-table tbody th')].map((one) => one.textContent)"
    )
    return found


def test_the_table_is_sorted_and_moved_through_by_keyboard(plane: ControlPlane) -> None:
    with browsing() as page:
        sign_in(page, plane.access, "#/gangs?sort=gang")
        shows(page, "gang-table", "job/fits")
        names = first_gangs(page)
        assert names == sorted(names)
        page.evaluate("document.querySelector('#gang-table thead button').focus()")
        page.press("Enter")
        page.until("location.hash.includes('sort=-gang')")
        first = "document.querySelector('#gang-table tbody th').textContent"
        page.until(f"{first} === {json.dumps(names[-1])}")
        assert first_gangs(page) == names[::-1]
        order = "document.querySelector('#gang-table thead th').getAttribute('aria-sort')"
        assert page.evaluate(order) == "descending"
        page.evaluate("document.querySelector('#gang-table tbody a').focus()")
        page.press("ArrowDown")
        focused = page.evaluate("document.activeElement.textContent")
        assert focused == names[-2]
        page.press("Enter")
        page.until("document.getElementById('main').dataset.view === 'detail'")
        page.press("Escape")
        page.until("document.getElementById('main').dataset.view === 'overview'")
        assert has_no_errors(page), page.errors


#: Parts of detail pages that a user must scroll sideways, and names of one or two letters a line.
SQUEEZED = """
[...document.querySelectorAll('#detail .scroll, #detail a, #detail button')].filter((one) => {
  const [most, isWide] = [one.matches('button') ? 30 : 101, one.scrollWidth > one.clientWidth + 1];
  return one.checkVisibility() && (one.matches('.scroll') ? isWide : one.offsetHeight > most);
}).map((one) => one.outerHTML.slice(0, 120))
"""


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_views_fit_every_width_in_both_themes(plane: ControlPlane, theme: str) -> None:
    gang = entry(plane.access, f"job/{LONG}")["name"]
    views = ("#/", "#/gangs", "#/forecast", f"#/gang/team/{gang}", "#/node/node-0")
    with browsing() as page:
        scheme = {"name": "prefers-color-scheme", "value": theme}
        page.send("Emulation.setEmulatedMedia", features=[scheme])
        sign_in(page, plane.access)
        for width, height in ((390, 844), (768, 1024), (1366, 768), (2560, 1440)):
            resize(page, width, height)
            for view in views:
                open_view(page, view)
                page.until("document.querySelector('main').innerText.length > 100")
                settle(page)
                assert clipped_elements(page) == [], (width, view)
                assert page.evaluate(SQUEEZED) == [], (width, view)
                assert page.evaluate(UNLABELLED) == [], (width, view)
                assert has_no_errors(page), (width, view, page.errors)
        used = page.evaluate("document.querySelector('main').getBoundingClientRect().width")
        assert used == 2560


#: Roles of what a user operates.
CONTROLS = {"button", "link", "textbox", "searchbox", "combobox", "checkbox", "application"}


def accessible_nodes(page: DevTools) -> list[tuple[str, str]]:
    """Return role and name of every part that a screen reader meets."""
    found = page.send("Accessibility.getFullAXTree")["nodes"]
    return [
        (one["role"]["value"], one.get("name", {}).get("value", "").strip())
        for one in found
        if not one["ignored"]
    ]


def test_the_accessibility_tree_names_controls_and_heads_of_tables(plane: ControlPlane) -> None:
    gang = entry(plane.access, "job/fits")["name"]
    pods = request(plane.access, "GET", "/api/v1/namespaces/default/pods")["items"]
    pod = next(one for one in pods if one["status"]["phase"] == "Running")["metadata"]["name"]
    with browsing() as page:
        page.send("Accessibility.enable")
        sign_in(page, plane.access)
        for view, heads in (
            ("#/", 0), ("#/gangs", 10), ("#/forecast", 0), (f"#/gang/default/{gang}", 4),
            ("#/node/node-0", 5), (f"#/pod/default/{pod}", 0),
        ):  # fmt: skip
            open_view(page, view)
            page.until("document.querySelector('main').innerText.length > 100")
            nodes = accessible_nodes(page)
            unnamed = [role for role, name in nodes if role in CONTROLS and not name]
            assert unnamed == [], (view, nodes)
            assert sum(role == "columnheader" and bool(name) for role, name in nodes) >= heads, view
            assert sum(role in CONTROLS for role, _ in nodes) > 5, view
        assert has_no_errors(page), page.errors


def test_focus_stays_while_the_lists_change(plane: ControlPlane) -> None:
    access = plane.access
    with browsing() as page:
        sign_in(page, access, "#/gangs")
        shows(page, "gang-table", "job/fits")
        page.evaluate(
            "[...document.querySelectorAll('#gang-table tbody a')]"
            ".find((one) => one.textContent === 'job/fits').focus()"
        )
        request(access, "POST", jobs_path(), gang_job("late", 20, 4))
        shows(page, "gang-table", "job/late")
        delete_gang(access, "late")
        hides(page, "gang-table", "job/late")
        assert page.evaluate("document.activeElement.textContent") == "job/fits"
        outline = "getComputedStyle(document.activeElement).outlineStyle"
        page.press("ArrowDown")
        assert page.evaluate(outline) == "solid"
        assert has_no_errors(page), page.errors


MARKUP = "<img src=x onerror=document.title=1><script>document.title=2</script>"


def test_markup_in_objects_is_shown_as_text(plane: ControlPlane) -> None:
    access = plane.access
    job = gang_job("markup", 20, 4, annotations={"example.com/note": MARKUP})
    request(access, "POST", jobs_path(), job)
    wait_for_states(access, never=2)
    name = entry(access, "job/markup")["name"]
    about = {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "name": name}
    event = {
        "metadata": {"name": "markup"}, "reason": "FailedScheduling", "message": MARKUP,
        "type": "Warning", "involvedObject": {**about, "namespace": "default"},
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    request(access, "POST", "/api/v1/namespaces/default/events", event)
    with browsing() as page:
        sign_in(page, access)
        shows(page, "decisions", MARKUP)
        open_view(page, "#/job/default/markup")
        shows(page, "detail", MARKUP)
        open_view(page, "#/gangs?state=%3Cimg%3E&ns=%3Cscript%3E")
        shows(page, "gang-namespace", "<script>")
        open_view(page, "#/gang/%3Cimg%20src=x%3E/a")
        shows(page, "chosen-title", "<img src=x>/a")
        assert page.evaluate("document.querySelectorAll('body img, body script').length") == 0
        assert page.evaluate("document.title") == "<img src=x>/a · Phalanx"
        assert has_no_errors(page), page.errors
    delete_gang(access, "markup")


CONTRAST = """
(() => {
  const parse = (text) => text.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255);
  const light = (rgb) => {
    const [r, g, b] = rgb.map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (one) => {
    for (let node = one; node; node = node.parentElement) {
      const colour = getComputedStyle(node).backgroundColor;
      if (!/, 0\\)$|transparent/.test(colour)) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const texts = [...document.querySelectorAll("body *")].filter((one) => one.checkVisibility()
    && [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim()));
  return texts.map((one) => {
    const [a, b] = [light(parse(getComputedStyle(one).color)), light(parse(ground(one)))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    return [one.textContent.trim().slice(0, 40), ratio];
  }).filter(([, ratio]) => ratio < 4.5);
})()
"""


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_texts_have_enough_contrast(plane: ControlPlane, theme: str) -> None:
    with browsing() as page:
        scheme = {"name": "prefers-color-scheme", "value": theme}
        page.send("Emulation.setEmulatedMedia", features=[scheme])
        sign_in(page, plane.access)
        for view in ("#/", "#/gangs", "#/forecast", "#/job/default/broken"):
            open_view(page, view)
            page.until("document.querySelector('main').innerText.length > 100")
            settle(page)
            assert page.evaluate(CONTRAST) == [], view


# ---- rights --------------------------------------------------------------------------------------


def create_reader(access: Access, name: str, kubeconfig: str, namespace: str) -> str:
    """Create a user that may read one namespace only; return its token."""
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}
    body = {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]}
    request(access, "POST", f"{RBAC}/namespaces/{namespace}/rolebindings", body)
    account = {"metadata": {"name": name}}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    request(access, "POST", path, account)
    subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    body = {"metadata": {"name": f"{name}-account"}, "roleRef": role, "subjects": [subject]}
    request(access, "POST", f"{RBAC}/namespaces/{namespace}/rolebindings", body)
    token = request(access, "POST", f"{path}/{name}/token", {"spec": {}})
    return str(token["status"]["token"])


def test_rights_in_one_namespace_show_it_and_say_what_is_missing(plane: ControlPlane) -> None:
    access = plane.access
    token = create_reader(access, "reader", str(plane.kubeconfig), "team")
    with browsing() as page:
        sign_in(page, access, "#/gangs", token=token)
        shows(page, "rights-text", "Only the namespace team is shown")
        shows(page, "rights-text", "You may not list nodes")
        shows(page, "gang-table", "job/other")
        hides(page, "gang-table", "job/fits")
        open_view(page, "#/")
        shows(page, "map-empty", "You may not list nodes.")
        shows(page, "utilisation-note", "no right to list nodes and pods")
        shows(page, "waiting", f"team/{LONG}")
        shows(page, "waiting", "0 placed, 3 waiting")
        waiting = page.evaluate("document.getElementById('waiting').textContent")
        assert "fit" not in waiting
        assert "add capacity" not in waiting
        page.evaluate("document.getElementById('rights-namespace').value = 'default'")
        page.evaluate("document.querySelector('#rights button').click()")
        shows(page, "rights-text", "You may not list pods, PodGroups and events in the namespace")
        shows(page, "waiting-empty", "You may not list pods and PodGroups: waiting gangs cannot be")
        shows(page, "decisions-empty", "You may not list PodGroups and events: decisions cannot be")
        open_view(page, "#/gangs")
        shows(page, "gangs-empty", "cannot list resource")
        assert all("403" in error for error in page.errors), page.errors


# ---- sign-in links -------------------------------------------------------------------------------


def test_a_sign_in_link_works_once(plane: ControlPlane) -> None:
    access = plane.access
    link = phalanx("page", "--kubeconfig", str(plane.kubeconfig)).stdout.strip()
    assert re.fullmatch(rf"https://127\.0\.0\.1:{access.port}/ui/#/sign-in/[\w-]{{32}}", link)
    with browsing() as page:
        page.send("Page.navigate", url=link)
        page.until("document.getElementById('state')?.textContent.startsWith('live')")
        assert page.evaluate("location.hash") == "#/"
        assert "sign-in" not in page.evaluate("document.body.textContent")
        assert has_no_errors(page), page.errors
    with browsing() as page:
        page.send("Page.navigate", url=link)
        page.until("document.getElementById('login')?.hidden === false")
        shows(page, "error", "used up or expired")
    code = {"code": link.rpartition("/")[2]}
    with pytest.raises(urllib.error.HTTPError, match="403"):
        request(access, "POST", "/phalanx/v1/sign-in", code)
