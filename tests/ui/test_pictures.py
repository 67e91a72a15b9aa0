"""The pictures of docs/page.md: `make pictures` writes them to docs/images.

Without PHALANX_PICTURES the test opens the same views at the same sizes and writes nothing.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ui.browser import browsing, chromium
from tests.ui.demo_cluster import demo_cluster, wait_for_states
from tests.ui.page_driver import (
    clipped_elements,
    has_no_errors,
    open_view,
    resize,
    settle,
    shows,
    sign_in,
    take_screenshot,
)

#: Name, address, size, theme, and a text that must be there: (part, text).
PICTURES = (
    ("overview", "#/", (1366, 768), "light", ("waiting", "default/world-model")),
    ("gang", "#/job/default/world-model", (1366, 900), "light", ("detail", "Nodes reserved")),
    ("forecast", "#/forecast", (1366, 520), "light", ("forecast-list", "job/giant")),
    ("gangs", "#/gangs", (1366, 620), "light", ("gang-table", "job/giant")),
    ("narrow", "#/gangs", (390, 844), "light", ("gang-table", "job/giant")),
    ("dark", "#/", (1366, 768), "dark", ("waiting", "default/world-model")),
    ("wide", "#/", (2560, 1440), "dark", ("waiting", "default/world-model")),
)

#: The pictures that the document shows; the others are only opened.
WRITTEN = ("overview", "gang", "forecast", "gangs", "narrow", "dark")


@pytest.mark.slow
def test_pictures_show_gangs_in_every_state(tmp_path: Path) -> None:
    chromium()
    with demo_cluster(tmp_path) as plane, browsing() as page:
        wait_for_states(plane.access, running=8, reserved=2, never=1, completed=1, failed=1)
        sign_in(page, plane.access)
        page.until("document.querySelectorAll('#cards .card').length >= 3")
        # Some samples, one in 15 seconds, make a curve.
        page.until(
            "document.querySelector('#cards .curve').getAttribute('d').split('L').length > 4"
        )
        for name, address, size, theme, (part, text) in PICTURES:
            scheme = {"name": "prefers-color-scheme", "value": theme}
            page.send("Emulation.setEmulatedMedia", features=[scheme])
            resize(page, *size)
            open_view(page, address)
            shows(page, part, text)
            page.evaluate("document.activeElement.blur()")
            settle(page)
            if name in WRITTEN:
                take_screenshot(page, f"page-{name}")
            assert clipped_elements(page) == [], name
            assert has_no_errors(page), (name, page.errors)
