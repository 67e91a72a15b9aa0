"""One self-contained HTML page of a comparison: table, intervals and lines over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from phalanx.sim.reports.figures import Report
from phalanx.sim.reports.html_page import build_table, draw_lines, wrap_page
from phalanx.sim.reports.text import format_seconds

#: The size of the plot of intervals: width, left margin for the names, height of a row.
_WIDTH, _LEFT, _ROW = 720, 190, 28
_NAME_LENGTH = 28


def build_comparison_page(
    names: Sequence[str],
    reports: Sequence[Report],
    differences: Sequence[Mapping[str, Any]],
    *,
    tables: Sequence[Sequence[Sequence[str]]],
) -> str:
    """Return the page. `tables` are those of the terminal: the figures, and the differences."""
    body: list[str] = []
    for header, *rows in tables:
        body += [*build_table(header, rows), "<p></p>"]
    body.append("<h2>Mean wait against the first, with its 95 % interval</h2>")
    body += _draw_intervals(names[1:], [one["waitSeconds"] for one in differences])
    step = max(report["series"]["stepSeconds"] for report in reports)
    body.append("<h2>Waiting jobs over time</h2>")
    queues = [
        (name, _resample(report, report["series"]["queueJobs"], step))
        for name, report in zip(names, reports, strict=True)
    ]
    body += draw_lines(queues, step)
    resources = dict.fromkeys(one for report in reports for one in report["series"]["allocation"])
    for resource in resources:
        body.append(f"<h2>Allocation of {escape(resource)} over time</h2>")
        lines = [
            (name, _resample(report, report["series"]["allocation"].get(resource, ()), step))
            for name, report in zip(names, reports, strict=True)
        ]
        body += draw_lines(lines, step, is_share=True)
    # Files of several folders may have one name.
    inputs = dict.fromkeys(one for report in reports for one in report["inputs"].items())
    hashes = "".join(f"<br>{escape(name)} {escape(digest)}" for name, digest in inputs)
    seeds = ", ".join(dict.fromkeys(str(report["seed"]) for report in reports))
    version = escape(reports[0]["version"])
    body.append(f"<footer><p>phalanx {version}, seed {seeds}{hashes}</p></footer>")
    return wrap_page("Comparison of simulations", body)


def _resample(report: Report, values: Sequence[float | None], step: float) -> list[float | None]:
    """Return values at the steps of the longest simulation, so that all share one axis."""
    own = report["series"]["stepSeconds"]
    count = len(values)
    found: list[float | None] = []
    for i in range(count):
        at = int((i + 0.5) * step / own)
        if at >= count:
            break
        found.append(values[at])
    # The line ends where its simulation does.
    return found + [0.0] * (count - len(found))


def _draw_intervals(
    names: Sequence[str], differences: Sequence[Mapping[str, float | None]]
) -> Iterator[str]:
    """Draw each mean as a point and its interval as a line, around a line at 0."""
    ends = [one[end] for one in differences for end in ("mean", "low", "high")]
    largest = max([abs(value) for value in ends if value is not None] + [1e-9])
    height = _ROW * len(names) + 28
    middle, scale = (_WIDTH + _LEFT) / 2, (_WIDTH - _LEFT) / 2 / largest * 0.95
    yield f'<figure><svg viewBox="0 0 {_WIDTH} {height}" role="img">'
    yield f'<line class="axis" x1="{middle:.1f}" x2="{middle:.1f}" y1="0" y2="{height - 22}"/>'
    for row, (name, one) in enumerate(zip(names, differences, strict=True)):
        y = row * _ROW + _ROW / 2
        shown = name if len(name) <= _NAME_LENGTH else f"…{name[1 - _NAME_LENGTH :]}"
        yield f'<text x="0" y="{y + 4:.1f}">{escape(shown)}</text>'
        mean, low, high = one["mean"], one["low"], one["high"]
        if low is not None and high is not None:
            yield (
                f'<line class="interval" x1="{middle + low * scale:.1f}" '
                f'x2="{middle + high * scale:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
            )
        if mean is not None:
            yield (
                f'<circle class="bar" cx="{middle + mean * scale:.1f}" cy="{y:.1f}" r="4">'
                f"<title>{escape(name)}: {format_seconds(mean)}</title></circle>"
            )
    for share in (-1.0, -0.5, 0.0, 0.5, 1.0):
        x = middle + share * largest * scale
        text = format_seconds(share * largest) if share else "0"
        # The text of the last tick would be cut off in the middle of it.
        anchor = "end" if share == 1 else "middle"
        x = _WIDTH if share == 1 else x
        yield f'<text x="{x:.0f}" y="{height - 6}" text-anchor="{anchor}">{text}</text>'
    yield "</svg><figcaption>less is shorter than the first</figcaption></figure>"
