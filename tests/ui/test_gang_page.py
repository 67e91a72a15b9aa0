"""The page of a gang in Chromium: what has happened to it, in order of time."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ui.browser import browsing, chromium
from tests.ui.demo_cluster import gang_job, jobs_path, request, wait_for_states
from tests.ui.page_driver import has_no_errors, shows, sign_in
from tools.control_plane import ControlPlane

#: Each test starts a browser.
pytestmark = pytest.mark.slow
SHAPE = "cpu=8,memory=8Gi,example.com/gpu=4"
STEPS = (
    "[...document.querySelectorAll('#detail .timeline > li')].map((one) => "
    "[one.querySelector('b').textContent, one.querySelector('time').dateTime])"
)


def test_timeline_of_a_preempted_gang_is_in_order_of_time() -> None:
    chromium()
    with ControlPlane("--data", ":memory:", "--nodes", "2", "--shape", SHAPE) as plane:
        access = plane.access
        body = {"metadata": {"name": "urgent"}, "value": 1000}
        request(access, "POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body)
        request(access, "POST", jobs_path(), gang_job("victim", 2, 4))
        wait_for_states(access, running=1)
        request(access, "POST", jobs_path(), gang_job("urgent", 2, 4, priority="urgent"))
        wait_for_states(access, running=1, preempted=1)
        with browsing() as page:
            sign_in(page, access, "#/job/default/victim")
            shows(page, "detail", "Complete again")
            shows(page, "detail", "Preempted by")
            steps: list[list[Any]] = page.evaluate(STEPS)
            times = [time for _, time in steps if time]
            titles = [title for title, _ in steps]
            assert times == sorted(times)
            assert titles[:2] == ["Created", "Decided"]
            assert titles[-3:] == ["Decided again", "Bound again", "Running again"]
            assert has_no_errors(page), page.errors
