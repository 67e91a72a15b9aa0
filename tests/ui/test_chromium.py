"""The page in a real browser, against a real control plane: what is seen, and that all is well.

Pictures go to the folder that PHALANX_PICTURES names, if it names one.
"""

from __future__ import annotations

import json
import os
import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ui.browser import browsing, chromium
from tests.ui.devtools import DevTools
from tools.control_plane import Access, ControlPlane

JOBS = "/apis/batch/v1/namespaces/default/jobs"
SHAPE = "cpu=8,memory=8Gi,example.com/gpu=4"
#: Milliseconds from opening the page of a large cluster to its whole picture.
PICTURE = 6000
#: Milliseconds between two frames while a tenth of its pods changes: of twenty the slowest.
FRAME = 100
#: Counts the milliseconds between frames, and of those that were the slowest of twenty.
COUNTING = (
    "window.frames_ = []; let last = performance.now();"
    "(function next(now) {"
    " frames_.push(now - last); last = now; requestAnimationFrame(next);"
    " })(last)"
)
SLOW = "frames_.sort((a, b) => a - b)[Math.floor(frames_.length * 0.95)]"


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    chromium()
    options = ("--data", ":memory:", "--nodes", "8", "--shape", SHAPE, "--topology", "block=2")
    with ControlPlane(*options) as found:
        yield found


def ask(access: Access, method: str, path: str, body: object = None) -> None:
    request = urllib.request.Request(
        f"https://{access.host}:{access.port}{path}",
        method=method,
        data=json.dumps(body).encode() if body else None,
        headers={"authorization": f"Bearer {access.token}", "content-type": "application/json"},
    )
    context: ssl.SSLContext = access.tls()
    with urllib.request.urlopen(request, context=context) as answer:
        answer.read()


def job(name: str, members: int, gpus: int) -> dict[str, Any]:
    limits = {"cpu": "100m", "example.com/gpu": str(gpus)}
    container = {"name": "main", "image": "registry.example/x:1", "resources": {"limits": limits}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "parallelism": members,
            "completions": members,
            "completionMode": "Indexed",
            "scheduling": {"schedulingPolicy": {"gang": {"minCount": members}}},
            "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
        },
    }


def end(access: Access, name: str) -> None:
    ask(access, "DELETE", f"{JOBS}/{name}?propagationPolicy=Background")


def sign_in(page: DevTools, access: Access) -> None:
    page.send("Page.navigate", url=f"https://{access.host}:{access.port}/ui/")
    page.until("document.getElementById('login')?.hidden === false")
    token = json.dumps(access.token)
    page.evaluate(
        f"document.getElementById('token').value = {token};"
        "document.querySelector('#login button').click()"
    )
    page.until("document.documentElement.dataset.picture")


def shows(page: DevTools, part: str, text: str) -> None:
    page.until(f"document.getElementById('{part}').textContent.includes({json.dumps(text)})")


def hides(page: DevTools, part: str, text: str) -> None:
    page.until(f"!document.getElementById('{part}').textContent.includes({json.dumps(text)})")


def keep(page: DevTools, name: str) -> None:
    """A picture, for whoever wants to look at it."""
    if folder := os.environ.get("PHALANX_PICTURES"):
        page.picture(Path(folder) / f"{name}.png")


def is_quiet(page: DevTools) -> bool:
    """Whether there is no error so far, no violation of the policy, and nothing beyond the edge."""
    wide = page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    return bool(wide) and page.complaints == []


def test_gangs_come_wait_and_go_before_the_eyes(plane: ControlPlane) -> None:
    access = plane.access
    with browsing() as page:
        sign_in(page, access)
        shows(page, "counts", "8 nodes")
        ask(access, "POST", JOBS, job("fits", 4, 4))
        ask(access, "POST", JOBS, job("large", 6, 4))
        shows(page, "legend", "default/fits 4")
        shows(page, "waiting", "minCount (6) cannot be satisfied")
        shows(page, "waiting", "room for 2 members")
        page.evaluate("document.querySelector('#legend button').click()")
        shows(page, "chain", "Nodes (")
        keep(page, "followed")
        end(access, "large")
        hides(page, "waiting", "default/large")
        end(access, "fits")
        shows(page, "counts", "0 pods")
        assert is_quiet(page), page.complaints


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_the_page_is_as_dark_as_the_system_and_as_the_switch(
    plane: ControlPlane, theme: str
) -> None:
    with browsing() as page:
        scheme = {"name": "prefers-color-scheme", "value": theme}
        page.send("Emulation.setEmulatedMedia", features=[scheme])
        sign_in(page, plane.access)
        ground = "getComputedStyle(document.body).backgroundColor"
        first = page.evaluate(ground)
        assert page.evaluate("document.documentElement.dataset.theme") == theme
        keep(page, theme)
        page.evaluate("document.getElementById('theme').click()")
        assert page.evaluate(ground) != first
        assert is_quiet(page), page.complaints


def test_everything_is_reached_by_keys(plane: ControlPlane) -> None:
    with browsing() as page:
        sign_in(page, plane.access)
        page.evaluate("document.body.focus()")
        page.press("/")
        assert page.evaluate("document.activeElement.id") == "search"
        assert page.evaluate("document.activeElement.value") == ""
        seen = []
        for _ in range(4):
            page.press("Tab")
            seen.append(page.evaluate("document.activeElement.id"))
        assert seen[:3] == ["theme", "leave", "map"]
        page.evaluate("document.getElementById('map').focus()")
        shows(page, "spot", "node-0")
        page.press("ArrowRight")
        page.press("Enter")
        shows(page, "chosen-title", "Node node-")
        page.press("Escape")
        assert page.evaluate("document.getElementById('chosen').hidden")
        assert is_quiet(page), page.complaints


@pytest.mark.soak
def test_a_thousand_nodes_and_ten_thousand_pods_are_seen_soon() -> None:
    chromium()
    topology = ("--nodes", "1000", "--shape", SHAPE, "--topology", "block=4,rack=16")
    with ControlPlane("--data", ":memory:", *topology, limit=60) as plane, browsing() as page:
        access = plane.access
        for at in range(100):
            ask(access, "POST", JOBS, job(f"job-{at:03}", 100, 0))
        sign_in(page, access)
        shows(page, "counts", "10000 pods")
        page.send("Page.reload")
        page.until("document.readyState === 'complete'")
        took = page.until("Number(document.documentElement.dataset.picture)")
        keep(page, "large")
        assert took < PICTURE
        page.evaluate(COUNTING)
        for at in range(5):
            ask(access, "POST", JOBS, job(f"more-{at}", 100, 0))
            end(access, f"job-{at:03}")
        shows(page, "decisions", "default/more-4")
        assert page.evaluate(SLOW) < FRAME
        assert is_quiet(page), page.complaints
