"""The page of a large cluster in Chromium: how fast it is, and an operator's walk through it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.cli.commands import phalanx
from tests.ui.browser import browsing, chromium
from tests.ui.demo_cluster import CONFIG, gang_job, jobs_path, request, wait_for_states
from tests.ui.devtools import DevTools
from tests.ui.page_driver import (
    click_link,
    has_no_errors,
    open_view,
    shows,
    sign_in,
    take_screenshot,
)
from tools.control_plane import ControlPlane

SHAPE = "cpu=64,memory=512Gi,example.com/gpu=8"
NODES = ("--nodes", "1000", "--shape", SHAPE, "--topology", "block=4,rack=16")
#: Milliseconds of CPU time in the page until the first complete map: in all, and of one task.
LOAD_TIME, LOAD_TASK = 2000, 150
#: The same while a tenth of the pods changes; a longer task would delay frames and keys.
CHANGE_TIME, CHANGE_TASK = 1000, 50
#: Milliseconds between two frames meanwhile: the median.
MEDIAN_FRAME = 20
#: Script that records the milliseconds between frames.
RECORD_FRAMES = (
    "window.frames_ = []; let last = performance.now();"
    "(function next(now) {"
    " frames_.push(now - last); last = now; requestAnimationFrame(next);"
    " })(last)"
)


def frame(page: DevTools, share: float) -> float:
    """Return the milliseconds that this share of the frames does not exceed."""
    sorted_frames = "frames_.sort((a, b) => a - b)"
    return float(page.evaluate(f"{sorted_frames}[Math.floor(frames_.length * {share})]"))


@pytest.mark.soak
def test_page_of_a_large_cluster_is_fast() -> None:
    chromium()
    with ControlPlane("--data", ":memory:", *NODES) as plane, browsing() as page:
        access = plane.access
        for at in range(100):
            request(access, "POST", jobs_path(), gang_job(f"job-{at:03}", 100, 0))
        sign_in(page, access)
        shows(page, "counts", "10000 pods")
        with page.task_times() as loading:
            page.send("Page.reload")
            page.until("document.readyState === 'complete'")
            took = page.until("Number(document.documentElement.dataset.picture)")
        take_screenshot(page, "large")
        page.evaluate(RECORD_FRAMES)
        with page.task_times() as changing:
            for at in range(5):
                request(access, "POST", jobs_path(), gang_job(f"more-{at}", 100, 0))
                path = f"{jobs_path()}/job-{at:03}?propagationPolicy=Background"
                request(access, "DELETE", path)
            shows(page, "decisions", "default/more-4")
        times = {"load": loading, "change": changing}
        found = {name: (round(sum(each)), round(max(each))) for name, each in times.items()}
        figures = {**found, "first map": took, "frames": (frame(page, 0.5), frame(page, 0.95))}
        assert found["load"][0] < LOAD_TIME, figures
        assert found["load"][1] < LOAD_TASK, figures
        assert found["change"][0] < CHANGE_TIME, figures
        assert found["change"][1] < CHANGE_TASK, figures
        assert frame(page, 0.5) <= MEDIAN_FRAME, figures
        assert has_no_errors(page), page.errors


def create_jobs(plane: ControlPlane) -> None:
    """Create 300 Jobs: most run, one never fits, the last ones wait for room, one has failed."""
    access = plane.access
    failing = {"phalanx.dev/stages": "{run: 0, failure: 1, exitCode: 42}"}
    broken = gang_job("broken", 2, 1, annotations=failing, backoff_limit=0)
    request(access, "POST", jobs_path(), broken)
    request(access, "POST", jobs_path(), gang_job("too-large", 1200, 8))
    for at in range(298):
        job = gang_job(f"train-{at:03}", 4, 8, deadline=3600 + 10 * at)
        request(access, "POST", jobs_path(), job)


@pytest.mark.slow
def test_operator_walks_through_a_thousand_nodes_and_300_jobs(tmp_path: Path) -> None:
    chromium()
    # Without reservations no gang changes its state while the page and the command are compared.
    (tmp_path / "scheduler.yaml").write_text(CONFIG.replace("Conservative", '"Off"'))
    options = ("--data", ":memory:", "--config", str(tmp_path / "scheduler.yaml"), *NODES)
    with ControlPlane(*options) as plane, browsing() as page:
        create_jobs(plane)
        items = wait_for_states(plane.access, running=249, waiting=48, never=1, failed=1)
        config = ("--kubeconfig", str(plane.kubeconfig))
        # The link of the terminal signs in; the overview shows the whole cluster.
        link = phalanx("page", *config).stdout.strip()
        page.send("Page.navigate", url=link)
        page.until("document.getElementById('state')?.textContent.startsWith('live')")
        shows(page, "counts", "1000 nodes")
        page.until("document.querySelectorAll('#cards .card').length >= 3")
        shows(page, "waiting-title", "Waiting: ")
        take_screenshot(page, "walk-overview")
        # What needs a person? The counts are those of the command.
        click_link(page, "nav", "Gangs")
        shows(page, "gangs-title", "Gangs: 300")
        listed = phalanx("queue", "-A", "--ended", "-o", "json", *config)
        states = Counter(item["state"] for item in json.loads(listed.stdout)["items"])
        chips = page.evaluate(
            "Object.fromEntries([...document.querySelectorAll('#gang-states button')]"
            ".map((one) => [one.dataset.state, Number(one.querySelector('b').textContent)]))"
        )
        assert chips == {"": 300, **states} == {"": 300, **Counter(i["state"] for i in items)}
        page.evaluate("document.querySelector('[data-state=never]').click()")
        page.until("document.querySelectorAll('#gang-table tbody tr').length === 1")
        click_link(page, "gang-table", "job/too-large")
        shows(page, "detail", "Why it can never run here")
        shows(page, "detail", "phalanx why job/too-large -n default")
        # When does the next one start, and behind what?
        click_link(page, "nav", "Forecast")
        shows(page, "forecast-summary", "wait")
        shows(page, "forecast-list", "job/train-")
        take_screenshot(page, "walk-forecast")
        # From a gang to its node, to a pod there and its log, and back.
        open_view(page, "#/job/default/train-000")
        shows(page, "detail", "4 members on 4 nodes")
        click_link(page, "detail", "node-")
        shows(page, "detail", "Resources")
        click_link(page, "detail", "train-000-")
        shows(page, "log-text", "simulated node")
        page.evaluate("history.back()")
        shows(page, "chosen-title", "Node node-")
        page.press("Escape")
        page.until("document.getElementById('main').dataset.view === 'overview'")
        page.evaluate("document.getElementById('search').focus()")
        for key in "train-123":
            page.press(key)
        page.press("Enter")
        shows(page, "chosen-title", "Gang default/train-123")
        assert has_no_errors(page), page.errors
