"""The page in Chromium, with a real control plane.

Screenshots go to the directory in PHALANX_PICTURES, if it is set.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.controllers.job_sets.job_set_harness import job_set, role
from tests.controllers.leader_worker_sets.lws_cluster import leader_worker_set
from tests.ui.browser import browsing, chromium
from tests.ui.demo_cluster import gang_job, request
from tests.ui.page_driver import (
    click_link,
    has_no_errors,
    hides,
    shows,
    sign_in,
    take_screenshot,
)
from tools.control_plane import Access, ControlPlane

#: Each test starts a browser.
pytestmark = pytest.mark.slow
JOBS = "/apis/batch/v1/namespaces/default/jobs"
SHAPE = "cpu=8,memory=8Gi,example.com/gpu=4"


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    chromium()
    options = ("--data", ":memory:", "--nodes", "8", "--shape", SHAPE, "--topology", "block=2")
    with ControlPlane(*options) as found:
        yield found


def delete_job(access: Access, name: str) -> None:
    request(access, "DELETE", f"{JOBS}/{name}?propagationPolicy=Background")


def test_page_shows_gangs_while_they_run_wait_and_end(plane: ControlPlane) -> None:
    access = plane.access
    with browsing() as page:
        sign_in(page, access)
        shows(page, "counts", "8 nodes")
        request(access, "POST", JOBS, gang_job("fits", 4, 4))
        request(access, "POST", JOBS, gang_job("large", 6, 4))
        shows(page, "legend", "default/fits 4")
        shows(page, "waiting", "minCount (6) cannot be satisfied")
        shows(page, "waiting", "capacity for 2 more members")
        page.evaluate("document.querySelector('#legend a').click()")
        shows(page, "detail", "Nodes (")
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
            click_link(page, "legend", gang)
            shows(page, "detail", owner)
            shows(page, "detail", sibling)
            take_screenshot(page, f"followed-{gang[8:11]}")
            before = page.evaluate("document.getElementById('chosen-title').textContent")
            page.evaluate("document.querySelector('#detail .tree .tree a').click()")
            hides(page, "chosen-title", before)
            shows(page, "detail", owner)
            page.evaluate("document.getElementById('close').click()")
        assert has_no_errors(page), page.errors
        request(access, "DELETE", f"{job_sets}/train?propagationPolicy=Background")
        request(access, "DELETE", f"{lws}/llm?propagationPolicy=Background")
        shows(page, "counts", "0 pods")


def test_page_says_that_no_scheduler_is_running() -> None:
    chromium()
    options = ("--data", ":memory:", "--nodes", "2", "--shape", SHAPE, "--without", "scheduler")
    with ControlPlane(*options) as plane, browsing() as page:
        sign_in(page, plane.access, state="no scheduler is running")
        request(plane.access, "POST", JOBS, gang_job("waits", 2, 1))
        shows(page, "counts", "2 pods")
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
        assert seen[:2] == ["theme", "leave"]
        page.evaluate("document.getElementById('map').focus()")
        shows(page, "focused", "node-0")
        page.press("ArrowRight")
        page.press("Enter")
        shows(page, "chosen-title", "Node node-")
        page.press("Escape")
        page.until("document.getElementById('chosen').hidden")
        assert has_no_errors(page), page.errors
