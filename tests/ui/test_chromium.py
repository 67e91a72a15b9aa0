"""The page in Chromium, with a real control plane.

Screenshots go to the directory in PHALANX_PICTURES, if it is set.
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

from tests.controllers.job_sets.job_set_harness import job_set, role
from tests.controllers.leader_worker_sets.lws_cluster import leader_worker_set
from tests.ui.browser import browsing, chromium
from tests.ui.devtools import DevTools
from tools.control_plane import Access, ControlPlane

JOBS = "/apis/batch/v1/namespaces/default/jobs"
SHAPE = "cpu=8,memory=8Gi,example.com/gpu=4"
#: Milliseconds from opening the page of a large cluster to the first complete map.
FIRST_MAP = 6000
#: The 95th percentile of milliseconds between two frames while a tenth of the pods changes.
FRAME = 100
#: Script that records the milliseconds between frames, and their 95th percentile.
RECORD_FRAMES = (
    "window.frames_ = []; let last = performance.now();"
    "(function next(now) {"
    " frames_.push(now - last); last = now; requestAnimationFrame(next);"
    " })(last)"
)
SLOW_FRAME = "frames_.sort((a, b) => a - b)[Math.floor(frames_.length * 0.95)]"


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    chromium()
    options = ("--data", ":memory:", "--nodes", "8", "--shape", SHAPE, "--topology", "block=2")
    with ControlPlane(*options) as found:
        yield found


def request(access: Access, method: str, path: str, body: object = None) -> None:
    message = urllib.request.Request(
        f"https://{access.host}:{access.port}{path}",
        method=method,
        data=json.dumps(body).encode() if body else None,
        headers={"authorization": f"Bearer {access.token}", "content-type": "application/json"},
    )
    context: ssl.SSLContext = access.tls()
    with urllib.request.urlopen(message, context=context) as answer:
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


def delete_job(access: Access, name: str) -> None:
    request(access, "DELETE", f"{JOBS}/{name}?propagationPolicy=Background")


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


def click_button(page: DevTools, part: str, text: str) -> None:
    page.evaluate(
        f"[...document.querySelectorAll('#{part} button')]"
        f".find((one) => one.textContent.includes({json.dumps(text)})).click()"
    )


def take_screenshot(page: DevTools, name: str) -> None:
    """Write a screenshot if PHALANX_PICTURES is set."""
    if folder := os.environ.get("PHALANX_PICTURES"):
        page.screenshot(Path(folder) / f"{name}.png")


def has_no_errors(page: DevTools) -> bool:
    """Return whether there is no script error, no policy violation and no horizontal overflow."""
    wide = page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    return bool(wide) and page.errors == []


def test_page_shows_gangs_while_they_run_wait_and_end(plane: ControlPlane) -> None:
    access = plane.access
    with browsing() as page:
        sign_in(page, access)
        shows(page, "counts", "8 nodes")
        request(access, "POST", JOBS, job("fits", 4, 4))
        request(access, "POST", JOBS, job("large", 6, 4))
        shows(page, "legend", "default/fits 4")
        shows(page, "waiting", "minCount (6) cannot be satisfied")
        shows(page, "waiting", "capacity for 2 more members")
        page.evaluate("document.querySelector('#legend button').click()")
        shows(page, "chain", "Nodes (")
        take_screenshot(page, "followed")
        # A selected gang is read again after a change; a read of a deleted Job would be an error.
        page.evaluate("document.getElementById('close').click()")
        delete_job(access, "large")
        hides(page, "waiting", "default/large")
        delete_job(access, "fits")
        shows(page, "counts", "0 pods")
        assert has_no_errors(page), page.errors


def test_page_follows_sets_down_to_their_pods(plane: ControlPlane) -> None:
    access = plane.access
    job_sets, lws = (
        f"/apis/{group}/namespaces/default/{plural}"
        for group, plural in (
            ("jobset.x-k8s.io/v1alpha2", "jobsets"),
            ("leaderworkerset.x-k8s.io/v1", "leaderworkersets"),
        )
    )
    with browsing() as page:
        sign_in(page, access)
        request(access, "POST", job_sets, job_set(role("driver"), role("workers", 1, 3)))
        request(access, "POST", lws, leader_worker_set(2, 2))
        for gang, owner, sibling in (
            ("default/train 1", "driver: 1 Jobs, 1 ready", "3 of 3 pods placed"),
            ("default/llm 2", "2 replicas wanted, 2 exist, 2 ready", "2 of 2 pods placed"),
        ):
            shows(page, "legend", gang)
            click_button(page, "legend", gang)
            shows(page, "chain", owner)
            shows(page, "chain", sibling)
            take_screenshot(page, f"followed-{gang[8:11]}")
            before = page.evaluate("document.getElementById('chosen-title').textContent")
            click_button(page, "chain", sibling)
            hides(page, "chosen-title", before)
            shows(page, "chain", owner)
            page.evaluate("document.getElementById('close').click()")
        assert has_no_errors(page), page.errors
        request(access, "DELETE", f"{job_sets}/train?propagationPolicy=Background")
        request(access, "DELETE", f"{lws}/llm?propagationPolicy=Background")
        shows(page, "counts", "0 pods")


def test_page_says_that_no_scheduler_is_running() -> None:
    chromium()
    options = ("--data", ":memory:", "--nodes", "2", "--shape", SHAPE, "--without", "scheduler")
    with ControlPlane(*options) as plane, browsing() as page:
        sign_in(page, plane.access)
        request(plane.access, "POST", JOBS, job("waits", 2, 1))
        page.until("document.body.textContent.includes('no scheduler is running')")
        take_screenshot(page, "no-scheduler")
        # Chromium reports the 404 of the Lease that no scheduler holds.
        assert all("404" in error for error in page.errors), page.errors


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_page_follows_the_colour_scheme_and_its_switch(plane: ControlPlane, theme: str) -> None:
    with browsing() as page:
        scheme = {"name": "prefers-color-scheme", "value": theme}
        page.send("Emulation.setEmulatedMedia", features=[scheme])
        sign_in(page, plane.access)
        background = "getComputedStyle(document.body).backgroundColor"
        first = page.evaluate(background)
        assert page.evaluate("document.documentElement.dataset.theme") == theme
        take_screenshot(page, theme)
        page.evaluate("document.getElementById('theme').click()")
        assert page.evaluate(background) != first
        assert has_no_errors(page), page.errors


def test_page_is_usable_by_keyboard(plane: ControlPlane) -> None:
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
        shows(page, "focused", "node-0")
        page.press("ArrowRight")
        page.press("Enter")
        shows(page, "chosen-title", "Node node-")
        page.press("Escape")
        assert page.evaluate("document.getElementById('chosen').hidden")
        assert has_no_errors(page), page.errors


@pytest.mark.soak
def test_page_of_a_large_cluster_is_fast() -> None:
    chromium()
    topology = ("--nodes", "1000", "--shape", SHAPE, "--topology", "block=4,rack=16")
    with ControlPlane("--data", ":memory:", *topology, limit=60) as plane, browsing() as page:
        access = plane.access
        for at in range(100):
            request(access, "POST", JOBS, job(f"job-{at:03}", 100, 0))
        sign_in(page, access)
        shows(page, "counts", "10000 pods")
        page.send("Page.reload")
        page.until("document.readyState === 'complete'")
        took = page.until("Number(document.documentElement.dataset.picture)")
        take_screenshot(page, "large")
        assert took < FIRST_MAP
        page.evaluate(RECORD_FRAMES)
        for at in range(5):
            request(access, "POST", JOBS, job(f"more-{at}", 100, 0))
            delete_job(access, f"job-{at:03}")
        shows(page, "decisions", "default/more-4")
        assert page.evaluate(SLOW_FRAME) < FRAME
        assert has_no_errors(page), page.errors
