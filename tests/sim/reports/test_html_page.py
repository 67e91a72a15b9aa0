"""The HTML page of a simulation."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

from phalanx.sim.core_engine import CoreEngine
from phalanx.sim.reports.figures import build_report
from phalanx.sim.reports.html_page import DEFINITIONS, build_page
from phalanx.sim.reports.text import summary_rows
from phalanx.sim.workloads.workload import TraceJob
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
    assert page.count("<figure>") == 3
    assert not {"script", "link", "img"} & set(structure.tags)
    assert not {"src", "href"} & {name for name, _ in structure.attributes}
    assert "A &amp; B" in page
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert "90 s" in page


def test_page_of_an_empty_result_is_complete() -> None:
    report = build_report(CoreEngine(setup(job(0, 10, 9))).run(), {})
    structure = Structure()
    structure.feed(build_page(report, "nothing"))
    assert structure.open == []


def test_plots_have_labels_for_readers_who_do_not_see_them() -> None:
    page = build_page(build_report(CoreEngine(setup(job(0, 10, 2))).run(), {}), "x")
    labels = re.findall(r'role="img" aria-label="([^"]*)"', page)
    assert len(labels) == page.count("<figure>") == page.count('role="img"')
    assert "Allocation over time: cpu" in labels
    assert "Mean wait by size: 2: 0 s" in labels


def test_fragmentation_is_drawn_if_there_was_any() -> None:
    narrow = TraceJob(0, 100, {"cpu": "600m"}, 4, estimate=100.0)
    wide = TraceJob(1, 100, {"cpu": "500m"}, 1, estimate=100.0)
    for jobs, is_drawn in ((narrow,), False), ((narrow, wide), True):
        report = build_report(CoreEngine(setup(*jobs)).run(), {})
        assert ("Fragmentation over time" in build_page(report, "x")) is is_drawn


def test_page_says_which_owners_and_waits_it_lists() -> None:
    few = (owned("a", job(0, 100, 4)), owned("b", job(10, 50, 2)))
    page = build_page(build_report(CoreEngine(setup(*few)).run(), {}), "x")
    assert 'class="hint"' not in page
    many = [owned(f"owner-{i}", job(i, 100, 4)) for i in range(25)]
    page = build_page(build_report(CoreEngine(setup(*many)).run(), {}), "x")
    assert "The 20 of 25 owners with most jobs" in page
    assert "The 20 longest" in page


def test_page_defines_every_figure_of_its_summary() -> None:
    jobs = (job(0, 100, 3), job(40, 10, 4, priority=9), job(41, 10, 1))
    result = CoreEngine(setup(*jobs)).run()
    report = build_report(replace(result, is_partial=True), {})
    page = build_page(report, "x")
    plain = {"state", "jobs", "simulated", "engine"}
    for name, _ in summary_rows(report):
        defined = [one for one in DEFINITIONS if name.startswith(one)]
        assert bool(defined) is (name not in plain), name
        assert all(f"<td>{one}</td><td>" in page for one in defined)
    assert "disruptions</td><td>runs" not in page


def test_headers_are_repeated_and_nothing_is_torn_apart_in_print() -> None:
    page = build_page(build_report(CoreEngine(setup(job(0, 10, 2))).run(), {"a": "sha256:1"}), "x")
    (style,) = re.findall(
        r"@media print \{ body.*?footer \{ break-before: avoid; \} \}", page, re.DOTALL
    )
    for rule in (
        r"h2[^{]*\{ break-after: avoid",
        r"section[^{]*\{ break-inside: avoid",
        r"thead \{ display: table-header-group",
    ):
        assert re.search(rule, style), rule
    assert '<thead><tr><th>owner</th><th class="number">jobs</th>' in page


def test_narrow_pages_scroll_tables_and_break_hashes() -> None:
    page = build_page(build_report(CoreEngine(setup(job(0, 10, 2))).run(), {"a": "sha256:1"}), "x")
    assert page.count("<table>") == page.count('<div class="scroll"><table>')
    assert ".scroll { overflow-x: auto;" in page
    assert "<code>sha256:1</code>" in page
    assert "code { overflow-wrap: anywhere; }" in page
    # Texts of plots keep their size: only the lines are stretched.
    boxes = re.findall(r"<svg [^>]*viewBox[^>]*>", page)
    assert all('class="lines"' in one for one in boxes)
