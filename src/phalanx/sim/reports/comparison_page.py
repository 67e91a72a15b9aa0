"""One self-contained HTML page of a comparison: tables, intervals and lines over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from phalanx.sim.reports.comparison import ComparisonRemark
from phalanx.sim.reports.figures import Report
from phalanx.sim.reports.html_page import (
    DEFINITIONS,
    ReportTable,
    build_definitions,
    build_footer,
    build_table,
    wrap_page,
)
from phalanx.sim.reports.plots import draw_intervals, draw_lines

#: The figures of the tables of which the page has the definitions.
_FIGURES = ("wait", "not started", "bounded slowdown", "utilisation", "preemptions", "interval")
_INTERVAL = (
    "holds the true mean difference with 95 % confidence; one that contains 0 may be an accident of"
    " these jobs. With fewer than forty jobs there is none"
)


def build_comparison_page(
    names: Sequence[str],
    reports: Sequence[Report],
    differences: Sequence[Mapping[str, Any]],
    *,
    tables: Sequence[ReportTable],
    remarks: Sequence[ComparisonRemark],
) -> str:
    """Return the page. `tables` are those of the terminal: the figures, and the differences."""
    body = [line for table in tables for line in build_table(table)]
    if remarks:
        body.append("<h2>What the figures leave out</h2>")
        body += build_table(ReportTable(("", ""), [(one.kind, str(one)) for one in remarks]))
    body += draw_intervals(
        "Mean wait against the first, with its 95 % interval",
        [(name, one["waitSeconds"]) for name, one in zip(names[1:], differences, strict=True)],
        f"Left of 0 jobs wait shorter than with {names[0]}, right of 0 longer.",
    )
    body += _draw_series(names, reports)
    body += build_definitions(_FIGURES, {**DEFINITIONS, "interval": _INTERVAL})
    # Files of several folders may have one name.
    inputs = dict.fromkeys(one for report in reports for one in report["inputs"].items())
    seeds = ", ".join(dict.fromkeys(str(report["seed"]) for report in reports))
    body += build_footer(reports[0]["version"], seeds, inputs)
    return wrap_page("Comparison of simulations", body)


def _draw_series(names: Sequence[str], reports: Sequence[Report]) -> Iterator[str]:
    """Draw queue, fragmentation and allocations over time, with a line for each simulation."""
    resources = dict.fromkeys(one for report in reports for one in report["series"]["allocation"])
    plots = [
        ("Waiting jobs over time", [one["series"]["queueJobs"] for one in reports], False),
        ("Fragmentation over time", [one["series"]["blockedShare"] for one in reports], True),
        *(
            (
                f"Allocation of {resource} over time",
                [one["series"]["allocation"].get(resource, ()) for one in reports],
                True,
            )
            for resource in resources
        ),
    ]
    steps = [report["series"]["stepSeconds"] for report in reports]
    for title, found, is_share in plots:
        if not any(map(any, found)):
            continue
        lines = []
        for name, values, step in zip(names, found, steps, strict=True):
            # All lines have the steps of the longest simulation; each ends where its own does.
            places = (int((i + 0.5) * max(steps) / step) for i in range(len(values)))
            lines.append((name, [values[at] for at in places if at < len(values)]))
        yield from draw_lines(title, lines, max(steps), is_share=is_share)
