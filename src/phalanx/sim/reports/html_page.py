"""One self-contained HTML page of a simulation: summary, plots as inline SVG, tables, definitions.

No script, no font and no address of another host: the page can be mailed and printed. Colours
follow the reader's light or dark mode; in print they are dark on white. Tables scroll in their box
where the page is narrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import NamedTuple

from phalanx.sim.reports.figures import MAX_LISTED, Report
from phalanx.sim.reports.plots import PLOT_STYLE, draw_bars, draw_lines
from phalanx.sim.reports.text import format_seconds, summary_rows

PAGE_STYLE = f"""
:root {{ color-scheme: light dark; --ink: #1c2733; --paper: #fff; --faint: #566370;
  --grid: #d5dce3; }}
@media (prefers-color-scheme: dark) {{ :root {{ --ink: #e6edf3; --paper: #10161d;
  --faint: #a3b0bd; --grid: #2f3b48; }} }}
@media print {{ :root {{ color-scheme: light; --ink: #000; --paper: #fff; --faint: #444;
  --grid: #bbb; }} }}
{PLOT_STYLE}
body {{ font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.5rem; overflow-wrap: anywhere; }} h2 {{ font-size: 1.1rem; margin-top: 2rem; }}
.scroll {{ overflow-x: auto; margin: 1rem 0; }} table {{ border-collapse: collapse; }}
td, th {{ padding: .2rem 1.2rem .2rem 0; text-align: left; vertical-align: top; }}
th {{ color: var(--faint); text-transform: lowercase; white-space: nowrap; }}
td:first-child:not(.number) {{ min-width: 9rem; overflow-wrap: anywhere; }}
thead + tbody td:first-child:not(.number) {{ min-width: 13rem; }}
th.number, td.number {{ text-align: right; font-variant-numeric: tabular-nums;
  white-space: nowrap; }}
tr + tr td {{ border-top: 1px solid var(--grid); }}
figcaption, footer, .hint {{ color: var(--faint); font-size: .85rem; }}
code {{ overflow-wrap: anywhere; }}
@media print {{ body {{ font-size: 10pt; margin: 0; max-width: none; }}
  h1, h2, .hint {{ break-after: avoid; }} section, tr, footer {{ break-inside: avoid; }}
  thead {{ display: table-header-group; }} .scroll {{ overflow: visible; }}
  footer {{ break-before: avoid; }} }}
""".strip()
#: What the figures of the summary mean, by the beginnings of their names.
DEFINITIONS = {
    "wait": (
        "from the submission of a job to its first start, of the jobs that started; percentiles are"
        " those of the nearest rank"
    ),
    "not started": (
        "jobs that were submitted, and how long they had waited at the end; they are in no mean of"
        " waits, and in no slowdown"
    ),
    "longest waits": (
        "jobs are numbered in the order of submission, from 0; the wait of a job that never"
        " started ends with the simulation"
    ),
    "bounded slowdown": (
        "the time from submission to end divided by the run time, at least 1, where a run time"
        " counts at least 10 s: the mean of the finished jobs"
    ),
    "utilisation": (
        "the requests of running pods, integrated over time, divided by what the nodes had"
    ),
    "queue": "waiting jobs: the mean over time, and the largest number",
    "fragmentation": (
        "the share of the time in which the first waiting job requested no more than was free on"
        " all nodes together"
    ),
    "preemptions": "runs that ended by preemption",
    "disruptions": "runs that ended by the loss of a node",
    "lost work": "the pod-seconds of the runs that ended by preemption or by the loss of a node",
    "fairness": (
        "Jain's index of the owners' mean bounded slowdowns: 1 is equal, 1/n is most unequal"
    ),
    "expected starts": (
        "jobs that had a reservation, and how far their first expected start was from their start"
    ),
}


class ReportTable(NamedTuple):
    """A table of texts; empty column names leave out the header."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    #: The indexes of the columns that are aligned to the right.
    numbers: Sequence[int] = ()


def build_page(report: Report, title: str) -> str:
    """Return the page of one simulation."""
    summary = list(summary_rows(report))
    return wrap_page(
        title,
        [
            *build_table(ReportTable(("", ""), summary)),
            *_build_plots(report),
            *_build_tables(report),
            *build_definitions([name for name, _ in summary], DEFINITIONS),
            *build_footer(report["version"], str(report["seed"]), report["inputs"].items()),
        ],
    )


def wrap_page(title: str, body: Iterable[str]) -> str:
    """Return a whole page with a title and the style."""
    name = escape(title)
    return "\n".join(
        [
            '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{name}</title><style>{PAGE_STYLE}</style></head><body>",
            f"<h1>{name}</h1>",
            *body,
            "</body></html>\n",
        ]
    )


def _build_plots(report: Report) -> Iterator[str]:
    series, step = report["series"], report["series"]["stepSeconds"]
    allocation = list(series["allocation"].items())
    yield from draw_lines("Allocation over time", allocation, step, is_share=True)
    queue = [("jobs, mean of each interval", series["queueJobs"])]
    yield from draw_lines("Waiting jobs over time", queue, step)
    if any(series["blockedShare"]):
        blocked = [("share of each interval", series["blockedShare"])]
        yield from draw_lines("Fragmentation over time", blocked, step, is_share=True)
    bars = [(one["name"], one["jobs"], one["meanSeconds"]) for one in report["wait"]["bySize"]]
    if bars:
        yield from draw_bars("Mean wait by size", bars, "pods of a job; mean wait of its class")


def _build_tables(report: Report) -> Iterator[str]:
    by_owner, owners = report["wait"]["byOwner"], report["wait"]["owners"]
    yield "<h2>Waits by owner</h2>"
    if len(by_owner) < owners:
        yield f'<p class="hint">The {len(by_owner)} of {owners} owners with most jobs</p>'
    rows = [
        (one["name"] or "-", str(one["jobs"]), format_seconds(one["meanSeconds"]))
        for one in by_owner
    ]
    yield from build_table(ReportTable(("owner", "jobs", "mean wait"), rows, numbers=(1, 2)))
    starving = report["starvation"]
    yield "<h2>Longest waits</h2>"
    if len(starving) == MAX_LISTED:
        yield f'<p class="hint">The {MAX_LISTED} longest</p>'
    waits = [
        (
            str(one["job"]),
            one["owner"] or "-",
            str(one["pods"]),
            format_seconds(one["waitSeconds"]),
            "" if one["started"] else "not started",
        )
        for one in starving
    ]
    columns = ("job", "owner", "pods", "wait", "")
    yield from build_table(ReportTable(columns, waits, numbers=(0, 2, 3)))


def build_table(table: ReportTable) -> Iterator[str]:
    """Build a table in a box in which it scrolls; its header is repeated on each printed page."""

    def build_row(tag: str, cells: Sequence[str]) -> str:
        marks = (' class="number"' if i in table.numbers else "" for i in range(len(cells)))
        texts = (
            f"<{tag}{mark}>{escape(cell)}</{tag}>" for mark, cell in zip(marks, cells, strict=True)
        )
        return "<tr>" + "".join(texts) + "</tr>"

    yield '<div class="scroll"><table>'
    if any(table.columns):
        yield f"<thead>{build_row('th', table.columns)}</thead>"
    yield "<tbody>"
    for row in table.rows:
        yield build_row("td", row)
    yield "</tbody></table></div>"


def build_definitions(names: Iterable[str], definitions: Mapping[str, str]) -> Iterator[str]:
    """Build the table of what the named figures mean."""
    shown = tuple(names)
    rows = [
        (name, text)
        for name, text in definitions.items()
        if any(one.startswith(name) for one in shown)
    ]
    yield "<h2>What the figures mean</h2>"
    rows.append(("all figures", "docs/simulation.md of Phalanx, section Figures"))
    yield from build_table(ReportTable(("", ""), rows))


def build_footer(version: str, seeds: str, inputs: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Build the last lines: what made the page, and the hashes of its inputs."""
    yield f"<footer><p>phalanx {escape(version)}, seed {escape(seeds)}"
    for name, digest in inputs:
        yield f"<br>{escape(name)} <code>{escape(digest)}</code>"
    yield "</p></footer>"
