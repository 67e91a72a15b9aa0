"""What the page says to a user whose cluster is empty, in Chromium."""

from __future__ import annotations

import pytest
import yaml

from tests.ui.browser import browsing, chromium
from tests.ui.demo_cluster import jobs_path, request
from tests.ui.page_driver import (
    clipped_elements,
    has_no_errors,
    open_view,
    resize,
    shows,
    sign_in,
    take_screenshot,
)
from tools.control_plane import ControlPlane

#: Each test starts a browser.
pytestmark = pytest.mark.slow
COMMAND = "document.querySelector('#first-steps code').textContent"


def test_the_first_steps_of_an_empty_cluster_lead_to_a_gang() -> None:
    chromium()
    with ControlPlane("--data", ":memory:", "--nodes", "2") as plane, browsing() as page:
        sign_in(page, plane.access)
        shows(page, "first-steps", "kubectl create -f - <<'EOF'")
        for width, height in ((390, 844), (1280, 800)):
            resize(page, width, height)
            assert clipped_elements(page) == []
        take_screenshot(page, "first-steps")
        command: str = page.evaluate(COMMAND)
        manifest = command.partition("\n")[2].removesuffix("EOF")
        request(plane.access, "POST", jobs_path(), yaml.safe_load(manifest))
        page.until("document.getElementById('first').hidden")
        shows(page, "legend", "default/first-gang 3")
        open_view(page, "#/job/default/first-gang")
        shows(page, "chosen-state", "Running")
        assert has_no_errors(page), page.errors


def test_a_cluster_without_nodes_says_how_to_add_some() -> None:
    chromium()
    with ControlPlane("--data", ":memory:", "--nodes", "0") as plane, browsing() as page:
        sign_in(page, plane.access)
        shows(page, "map-empty", "There are no nodes.")
        shows(page, "first-steps", "phalanx nodes --nodes 3")
        assert has_no_errors(page), page.errors
