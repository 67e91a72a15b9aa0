"""The HTML page of a simulation."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from phalanx.sim.core_engine import CoreEngine
from phalanx.sim.reports.figures import build_report
from phalanx.sim.reports.html_page import build_page, draw_lines
from tests.sim.reports.test_figures import owned
from tests.sim.test_core_engine import job, setup

VOID = {"meta", "br"}


class Structure(HTMLParser):
    """Checks that elements are closed in order, and collects tags and attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_is_self_contained_and_escapes_names() -> None:
    jobs = (owned("<b>", job(0, 100, 4)), owned("b", job(10, 50, 2)))
    report = build_report(CoreEngine(setup(*jobs)).run(), {"<log>": "sha256:1"})
    page = build_page(report, "A & B")
    structure = Structure()
    structure.feed(page)
    assert structure.open == []
    # Three plots, and a key for each of their lines.
    assert structure.tags.count("svg") == 3 + page.count('svg class="key"')
    assert not {"script", "link", "img"} & set(structure.tags)
    assert not {"src", "href"} & {name for name, _ in structure.attributes}
    assert "A &amp; B" in page
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page
    assert "90 s" in page


def test_page_of_an_empty_result_is_complete() -> None:
    report = build_report(CoreEngine(setup(job(0, 10, 9))).run(), {})
    structure = Structure()
    structure.feed(build_page(report, "nothing"))
    assert structure.open == []


def test_lines_of_a_plot_differ_without_colours() -> None:
    page = "".join(draw_lines([(name, [0.0, 1.0]) for name in "abcd"], 60.0))
    dashes = re.findall(r'<polyline [^>]*stroke-dasharray: ([^"]*)"', page)
    assert len(set(dashes)) == 4
    assert re.findall(r'class="key".*?stroke-dasharray: ([^"]*)"', page) == dashes


@pytest.mark.parametrize(
    ("largest", "step", "numbers", "times"),
    [
        (43.0, 60.0, ["0", "20", "40", "60"], ["0 s", "30 s", "60 s", "90 s"]),
        (1.0, 3600.0, ["0", "0.5", "1"], ["0 min", "30 min", "60 min"]),
        (900.0, 86400.0 * 100, ["0", "500", "1000"], ["0 d", "50 d"]),
    ],
)
def test_axes_have_round_numbers(
    largest: float, step: float, numbers: list[str], times: list[str]
) -> None:
    page = "".join(draw_lines([("jobs", [0.0, largest])], step))
    found = re.findall(r"<text [^>]*>([^<]*)</text>", page)
    assert found[: len(numbers)] == numbers
    assert found[len(numbers) : len(numbers) + len(times)] == times
