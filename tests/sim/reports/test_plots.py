"""Plots of reports as inline SVG."""

from __future__ import annotations

import re

import pytest

from phalanx.sim.reports.html_page import PAGE_STYLE
from phalanx.sim.reports.plots import (
    LINE_COLOURS,
    draw_bars,
    draw_intervals,
    draw_lines,
)

LIGHT, DARK, PRINT = range(3)


def colours_of(mode: int) -> dict[str, str]:
    """Return the colours of a mode: those of light mode, unless the mode replaces them."""
    found: dict[str, str] = {}
    for kind in (LIGHT, mode):
        opening = (r"^:root", r"^@media \(prefers.*?:root", r"^@media print \{ :root")[kind]
        for block in re.findall(opening + r" \{(.*?)\}", PAGE_STYLE, re.MULTILINE | re.DOTALL):
            found |= dict(re.findall(r"(--[\w-]+): (#\w+);", block))
    return found


def contrast(one: str, other: str) -> float:
    """Return the ratio of two colours by WCAG 2."""

    def luminance(colour: str) -> float:
        digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
        parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
        red, green, blue = (
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("mode", [LIGHT, DARK, PRINT])
def test_texts_and_lines_contrast_with_the_paper(mode: int) -> None:
    colours = colours_of(mode)
    assert all(contrast(colours[name], colours["--paper"]) >= 4.5 for name in ("--ink", "--faint"))
    assert all(contrast(colours[name], colours["--paper"]) >= 3 for name in LINE_COLOURS)
    assert len({colours[name] for name in LINE_COLOURS}) == 8


def test_each_of_eight_lines_has_its_own_colour_and_its_own_dashes() -> None:
    page = "".join(draw_lines("queue", [(str(i), [0.0, 1.0]) for i in range(64)], 60.0))
    styles = re.findall(r'<polyline [^>]*style="([^"]*)"', page)
    assert len(set(styles)) == 64
    for part in (0, 1):
        assert len({style.split(";")[part] for style in styles[:8]}) == 8
    assert re.findall(r'class="entry".*?style="([^"]*)"', page) == styles


def test_names_of_lines_stay_beside_their_keys() -> None:
    page = "".join(draw_lines("queue", [("a", [1.0]), ("b", [2.0])], 60.0))
    entries = re.findall(r'<span class="entry"><svg.*?</svg><span>(\w)</span></span>', page)
    assert entries == ["a", "b"]
    assert re.search(r"\.entry \{ display: inline-flex", PAGE_STYLE)


@pytest.mark.parametrize(
    ("largest", "step", "numbers", "times"),
    [
        (43.0, 60.0, ["0", "20", "40", "60"], ["0 s", "30 s", "60 s", "90 s", "120 s"]),
        (1.0, 3600.0, ["0", "0.5", "1"], ["0 min", "30 min", "60 min", "90 min", "120 min"]),
        (900.0, 86400.0 * 100, ["0", "500", "1000"], ["0 d", "50 d"]),
    ],
)
def test_axes_have_round_numbers(
    largest: float, step: float, numbers: list[str], times: list[str]
) -> None:
    page = "".join(draw_lines("queue", [("jobs", [0.0, largest])], step))
    found = re.findall(r"<text [^>]*>([^<]*)</text>", page)
    assert found[: len(numbers)] == numbers
    assert found[len(numbers) : len(numbers) + len(times)] == times


def test_shorter_line_ends_where_its_simulation_does() -> None:
    page = "".join(draw_lines("queue", [("a", [1.0, 1.0, 1.0, 1.0]), ("b", [1.0, 1.0])], 60.0))
    assert 'viewBox="0 0 4 160"' in page
    assert re.findall(r'points="([^"]*)"', page)[1] == "0.5,0.0 1.5,0.0"


def test_bars_name_their_whole_classes() -> None:
    page = "".join(draw_bars("wait", [("1", 1, 60.0), ("3 to 4", 9, 120.0)], "pods"))
    assert re.findall(r"<text [^>]*>([^<]*)</text>", page) == [
        "1",
        "60 s, 1 job",
        "3 to 4",
        "2.0 min, 9 jobs",
    ]
    widths = [float(one) for one in re.findall(r'<rect [^>]*width="([\d.]+)%"', page)]
    assert widths[1] == 2 * widths[0]


def test_intervals_have_round_times_around_what_they_show() -> None:
    shorter = {"mean": -700.0, "low": -2200.0, "high": 800.0}
    page = "".join(draw_intervals("wait", [("b.yaml", shorter)], "less than a.yaml"))
    assert re.findall(r"<text [^>]*>(-?\d[^<]*)</text>", page) == ["-45 min", "-30 min"] + [
        f"{minutes} min" for minutes in (-15, 0, 15)
    ]
    # From -45 to 15 minutes are 3,600 s; -2,200 s are 500 s from the left.
    assert f'<line class="interval" x1="{500 / 3600:.2%}" x2="{3500 / 3600:.2%}"' in page
    assert 'aria-label="wait: b.yaml: -11.7 min"' in page


def test_intervals_of_equal_simulations_are_drawn() -> None:
    nothing = {"mean": 0.0, "low": None, "high": None}
    page = "".join(draw_intervals("wait", [("x" * 80, nothing)], ""))
    assert 'class="interval"' not in page
    assert f">…{'x' * 59}</text>" in page
    assert 'cx="0.00%"' in page
