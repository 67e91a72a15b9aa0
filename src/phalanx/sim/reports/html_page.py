"""One self-contained HTML page of a simulation: summary, plots as inline SVG, tables.

No script, no font and no address of another host: the page can be mailed and printed. Colours
follow the reader's light or dark mode; in print they are dark on white.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from phalanx.sim.reports.figures import Report
from phalanx.sim.reports.text import format_seconds, summary_rows

PAGE_STYLE = """
:root { color-scheme: light dark; --ink: #1c2733; --paper: #fff; --faint: #8895a3;
  --line: #d5dce3; --a: #1f6feb; --b: #c2410c; --c: #15803d; --d: #7c3aed; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #10161d; --faint: #8b98a5;
  --line: #2b3642; --a: #58a6ff; --b: #fb923c; --c: #4ade80; --d: #c4b5fd; } }
@media print { :root { --ink: #000; --paper: #fff; --faint: #555; --line: #bbb; --a: #0b4fc4;
  --b: #9a3412; --c: #166534; --d: #5b21b6; } figure { break-inside: avoid; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; } td, th { padding: .2rem .8rem .2rem 0; text-align: left;
  vertical-align: top; } th.number, td.number { text-align: right;
  font-variant-numeric: tabular-nums; }
tr + tr td { border-top: 1px solid var(--line); } figure { margin: 1rem 0; }
figcaption, footer { color: var(--faint); font-size: .85rem; } svg { width: 100%; height: auto; }
svg text { fill: var(--faint); font: 11px system-ui, sans-serif; }
.axis { stroke: var(--line); } .plot { fill: none; stroke-width: 1.5; }
svg.key { width: 1.6rem; vertical-align: middle; margin-right: .3rem; }
.key + span { margin-right: 1rem; } .bar { fill: var(--a); }
.interval { stroke: var(--ink); stroke-width: 1.5; }
""".strip()
#: The size of a plot, and the room for its axes.
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 720, 200, 56, 24, 8
#: The lines of a plot: colours, and dashes that tell them apart in a print without colours.
PLOT_LINES = (("--a", "none"), ("--b", "6 3"), ("--c", "2 3"), ("--d", "9 3 2 3"))


def build_page(report: Report, title: str) -> str:
    """Return the page of one simulation."""
    return wrap_page(
        title,
        [
            *build_table(("", ""), summary_rows(report)),
            *_build_plots(report),
            *_build_tables(report),
            *_build_footer(report),
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
    series = report["series"]
    seconds, allocation = series["stepSeconds"], series["allocation"]
    yield "<h2>Allocation over time</h2>"
    lines = [(name, values) for name, values in allocation.items()]
    yield from draw_lines(lines, seconds, is_share=True)
    yield "<h2>Waiting jobs over time</h2>"
    yield from draw_lines([("jobs, mean of each interval", series["queueJobs"])], seconds)
    yield "<h2>Mean wait by size</h2>"
    bars = [(one["name"], one["meanSeconds"] or 0.0) for one in report["wait"]["bySize"]]
    yield from _draw_bars(bars)


def draw_lines(
    lines: Sequence[tuple[str, Sequence[float | None]]], step: float, *, is_share: bool = False
) -> Iterator[str]:
    """Draw values over time, each line in its colour with its name below."""
    largest = max([value or 0.0 for _, values in lines for value in values] + [1.0])
    ticks = _SHARE_TICKS if is_share else _number_ticks(largest)
    top = ticks[-1][0]
    yield "<figure>"
    yield from _open_plot(ticks)
    for i, (_, values) in enumerate(lines):
        width = (_WIDTH - _LEFT) / max(len(values) - 1, 1)
        points = " ".join(
            f"{_LEFT + j * width:.1f},{_to_y((value or 0.0) / top):.1f}"
            for j, value in enumerate(values)
        )
        yield f'<polyline class="plot" style="{_line_style(i)}" points="{points}"/>'
    count = max((len(values) for _, values in lines), default=0)
    for seconds, text in _time_ticks(step * count):
        x = _LEFT + seconds / (step * count) * (_WIDTH - _LEFT)
        # The text of the last tick would be cut off at the end of the axis.
        if x <= _WIDTH - _LEFT / 2:
            yield f'<text x="{x:.0f}" y="{_HEIGHT - 6}">{text}</text>'
    names = (
        f'<svg class="key" viewBox="0 0 24 4"><line class="plot" style="{_line_style(i)}" x1="0" '
        f'x2="24" y1="2" y2="2"/></svg><span>{escape(name)}</span>'
        for i, (name, _) in enumerate(lines)
    )
    yield f"</svg><figcaption>{' '.join(names)}</figcaption></figure>"


def _line_style(number: int) -> str:
    colour, dashes = PLOT_LINES[number % len(PLOT_LINES)]
    return f"stroke: var({colour}); stroke-dasharray: {dashes}"


def _draw_bars(bars: Sequence[tuple[str, float]]) -> Iterator[str]:
    """Draw one bar a class of sizes."""
    ticks = _time_ticks(max([value for _, value in bars] + [1.0]))
    top = ticks[-1][0]
    yield "<figure>"
    yield from _open_plot(ticks)
    width = (_WIDTH - _LEFT) / max(len(bars), 1)
    for i, (name, value) in enumerate(bars):
        x, y = _LEFT + i * width, _to_y(value / top)
        height = _HEIGHT - _BOTTOM - y
        yield (
            f'<rect class="bar" x="{x + 3:.1f}" y="{y:.1f}" width="{max(width - 6, 1):.1f}" '
            f'height="{height:.1f}"><title>{escape(name)}: {format_seconds(value)}</title></rect>'
            f'<text x="{x + 3:.1f}" y="{_HEIGHT - 6}">{escape(name.split(" ")[-1])}</text>'
        )
    yield "</svg><figcaption>pods of a job, up to</figcaption></figure>"


#: The values of an axis from 0 on, each with its text; the last one is not below any drawn value.
_Ticks = Sequence[tuple[float, str]]
_SHARE_TICKS: _Ticks = ((0.0, "0 %"), (0.5, "50 %"), (1.0, "100 %"))
#: An axis has at most so many ticks after 0.
_MAX_TICKS = 4
#: Units of time that an axis may have, and their round numbers between two ticks.
_TIME_STEPS = (
    (1.0, "s", (1, 2, 5, 10, 15, 30)),
    (60.0, "min", (1, 2, 5, 10, 15, 30)),
    (3600.0, "h", (1, 2, 3, 6, 12)),
    (86400.0, "d", (1,)),
)


def _number_ticks(largest: float, unit: str = "") -> _Ticks:
    """Return round numbers: 0, 20, 40, 60 for 43."""
    power = 10.0 ** math.floor(math.log10(largest / _MAX_TICKS))
    step = next(
        factor * power for factor in (1, 2, 5, 10) if factor * power * _MAX_TICKS >= largest
    )
    count = math.ceil(largest / step)
    return [(n * step, f"{n * step:g}{unit}") for n in range(count + 1)]


def _time_ticks(largest: float) -> _Ticks:
    """Return round times: 0 h, 6 h, 12 h, 18 h, 24 h for 18.2 hours."""
    for size, unit, numbers in _TIME_STEPS:
        for number in numbers:
            if number * size * _MAX_TICKS >= largest:
                count = math.ceil(largest / (number * size))
                return [(n * number * size, f"{n * number} {unit}") for n in range(count + 1)]
    size, unit, _ = _TIME_STEPS[-1]
    return [(value * size, text) for value, text in _number_ticks(largest / size, f" {unit}")]


def _open_plot(ticks: _Ticks) -> Iterator[str]:
    yield f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">'
    for value, text in ticks:
        y = _to_y(value / ticks[-1][0])
        yield f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="0" y="{y + 4:.1f}">{text}</text>'


def _to_y(share: float) -> float:
    return _TOP + (1.0 - min(max(share, 0.0), 1.0)) * (_HEIGHT - _BOTTOM - _TOP)


def _build_tables(report: Report) -> Iterator[str]:
    yield "<h2>Waits by owner</h2>"
    rows = [
        (one["name"] or "-", str(one["jobs"]), format_seconds(one["meanSeconds"]))
        for one in report["wait"]["byOwner"]
    ]
    yield from build_table(("owner", "jobs", "mean wait"), rows, numbers=(1, 2))
    yield "<h2>Longest waits</h2>"
    waits = [
        (
            str(one["job"]),
            one["owner"] or "-",
            str(one["pods"]),
            format_seconds(one["waitSeconds"]) + ("" if one["started"] else " (not started)"),
        )
        for one in report["starvation"]
    ]
    yield from build_table(("job", "owner", "pods", "wait"), waits, numbers=(2, 3))


def build_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[int] = ()
) -> Iterator[str]:
    """Build a table of texts; empty column names leave out the header.

    Columns with the indexes `numbers` are aligned to the right.
    """

    def build_row(tag: str, cells: Sequence[str]) -> str:
        marks = (' class="number"' if i in numbers else "" for i in range(len(cells)))
        texts = (
            f"<{tag}{mark}>{escape(cell)}</{tag}>" for mark, cell in zip(marks, cells, strict=True)
        )
        return "<tr>" + "".join(texts) + "</tr>"

    yield "<table>"
    if any(columns):
        yield build_row("th", columns)
    for row in rows:
        yield build_row("td", row)
    yield "</table>"


def _build_footer(report: Report) -> Iterator[str]:
    yield f"<footer><p>phalanx {escape(report['version'])}, seed {report['seed']}"
    for name, digest in report["inputs"].items():
        yield f"<br>{escape(name)} {escape(digest)}"
    yield "</p></footer>"
