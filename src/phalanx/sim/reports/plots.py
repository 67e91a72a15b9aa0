"""Plots as inline SVG: lines over time, bars, and intervals around 0.

A position from left to right is a share of the width, one from top to bottom counts pixels: a plot
is as wide as the page, and its texts keep their size. Texts of an axis stand in its margin.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from phalanx.sim.reports.text import format_count, format_seconds

PLOT_STYLE = """
:root { --line-1: #005a96; --line-2: #c03a00; --line-3: #00855f; --line-4: #c04a9b;
  --line-5: #1c2733; --line-6: #3f97d3; --line-7: #a88000; --line-8: #6a1f5c; }
@media (prefers-color-scheme: dark) { :root { --line-1: #56b4e9; --line-2: #e07b00;
  --line-3: #00b384; --line-4: #e08cc0; --line-5: #e6edf3; --line-6: #2f7fd0; --line-7: #f0e442;
  --line-8: #d3c8ff; } }
@media print { :root { --line-1: #00528a; --line-2: #b83600; --line-3: #007d58; --line-4: #b53f90;
  --line-5: #000; --line-6: #3a90cc; --line-7: #a07a00; --line-8: #5c174f; } }
figure { margin: 1rem 0; }
svg.plot { display: block; overflow: visible; width: calc(100% - 4.2rem); margin-left: 3.8rem; }
svg.plot.wide { width: 100%; margin-left: 0; }
svg.plot.intervals { width: calc(100% - 4rem); margin-left: 2rem; }
svg.lines { overflow: visible; }
svg text { fill: var(--faint); font: 12px system-ui, sans-serif; }
svg text.name { fill: var(--ink); stroke: var(--paper); stroke-width: 4px; paint-order: stroke; }
.axis { stroke: var(--grid); } .zero, .interval { stroke: var(--ink); stroke-width: 1.5; }
.series { fill: none; stroke-width: 1.8; vector-effect: non-scaling-stroke; }
.bar { fill: var(--line-1); }
.entry { display: inline-flex; align-items: center; gap: .4rem; margin-right: 1.2rem; }
.entry svg { flex: none; width: 3rem; height: 4px; } .entry span { overflow-wrap: anywhere; }
""".strip()
#: The colours of lines, and the dashes that tell them apart in print and for colour-blind readers.
LINE_COLOURS = tuple(f"--line-{number}" for number in range(1, 9))
LINE_DASHES = ("none", "7 3", "2 3", "10 3 2 3", "16 5", "5 2 1 2 1 2", "4 7", "14 3 6 3")
#: The heights of a plot: the room above it and below it, of its lines, of a bar and of an interval.
_TOP, _BOTTOM, _LINES, _BAR, _INTERVAL = 8, 26, 160, 24, 44
#: The widths in per cent of the names of bars, and of the longest bar.
_BAR_NAME, _BAR_WIDTH = 20.0, 48.0
#: How many characters of a name stand above its interval.
_NAME_LENGTH = 60

#: The values of an axis, each with its text; all drawn values are between the first and the last.
_Ticks = Sequence[tuple[float, str]]
_SHARE_TICKS: _Ticks = ((0.0, "0 %"), (0.5, "50 %"), (1.0, "100 %"))
#: The values of an axis are at most so many steps apart.
_MAX_STEPS = 4
#: Units of time that an axis may have, and their round numbers between two ticks.
_TIME_STEPS = (
    (1.0, "s", (1, 2, 5, 10, 15, 30)),
    (60.0, "min", (1, 2, 5, 10, 15, 30)),
    (3600.0, "h", (1, 2, 3, 6, 12)),
    (86400.0, "d", (1,)),
)


def draw_lines(
    title: str,
    lines: Sequence[tuple[str, Sequence[float | None]]],
    step: float,
    *,
    is_share: bool = False,
) -> Iterator[str]:
    """Draw values over time, each line in its colour and dashes, with its name below.

    Each value is the mean of an interval of `step` seconds, and stands in its middle.
    """
    largest = max([value or 0.0 for _, values in lines for value in values] + [1.0])
    ticks = _SHARE_TICKS if is_share else _number_ticks(0.0, largest)
    top, count = ticks[-1][0], max((len(values) for _, values in lines), default=0)
    yield from _open_figure(title, [name for name, _ in lines], _TOP + _LINES + _BOTTOM)
    for value, text in ticks:
        y = _TOP + (1.0 - value / top) * _LINES
        yield f'<line class="axis" x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="-8" y="{y + 4:.1f}" text-anchor="end">{text}</text>'
    for seconds, text in _time_ticks(0.0, step * count):
        if seconds <= step * count:
            yield from _draw_bottom_tick(seconds / (step * count), text, _TOP + _LINES)
    yield (
        f'<svg class="lines" y="{_TOP}" width="100%" height="{_LINES}" '
        f'viewBox="0 0 {max(count, 1)} {_LINES}" preserveAspectRatio="none">'
    )
    for number, (_, values) in enumerate(lines):
        points = " ".join(
            f"{i + 0.5:g},{(1.0 - min((value or 0.0) / top, 1.0)) * _LINES:.1f}"
            for i, value in enumerate(values)
        )
        yield f'<polyline class="series" points="{points}" style="{_line_style(number)}"/>'
    yield "</svg></svg><figcaption>"
    for number, (name, _) in enumerate(lines):
        yield (
            '<span class="entry"><svg aria-hidden="true"><line class="series" x1="0" x2="100%" '
            f'y1="2" y2="2" style="{_line_style(number)}"/></svg><span>{escape(name)}</span></span>'
        )
    yield "</figcaption></figure></section>"


def _line_style(number: int) -> str:
    """Return a colour and dashes: those of the first eight lines differ, and the pairs of 64."""
    rounds, colour = divmod(number, len(LINE_COLOURS))
    dashes = LINE_DASHES[(colour + rounds) % len(LINE_DASHES)]
    return f"stroke: var({LINE_COLOURS[colour]}); stroke-dasharray: {dashes}"


def draw_bars(title: str, bars: Sequence[tuple[str, int, float]], caption: str) -> Iterator[str]:
    """Draw a bar for each name, with its seconds and the number of jobs that they are a mean of."""
    largest = max([seconds for _, _, seconds in bars] + [1e-9])
    names = [f"{name}: {format_seconds(seconds)}" for name, _, seconds in bars]
    yield from _open_figure(title, names, _BAR * len(bars), kind="wide")
    for row, (name, jobs, seconds) in enumerate(bars):
        y, width = row * _BAR, _BAR_WIDTH * seconds / largest
        end = _BAR_NAME + width
        text = f"{format_seconds(seconds)}, {format_count(jobs, 'job')}"
        yield f'<text x="{_BAR_NAME - 1:g}%" y="{y + 16}" text-anchor="end">{escape(name)}</text>'
        yield (
            f'<rect class="bar" x="{_BAR_NAME:g}%" y="{y + 3}" width="{width:.2f}%" '
            f'height="{_BAR - 6}"/><text x="{end + 1:.2f}%" y="{y + 16}">{text}</text>'
        )
    yield f"</svg><figcaption>{escape(caption)}</figcaption></figure></section>"


def draw_intervals(
    title: str, rows: Sequence[tuple[str, Mapping[str, float | None]]], caption: str
) -> Iterator[str]:
    """Draw each mean as a point and its interval as a line, below its name."""
    ends = [one[end] or 0.0 for _, one in rows for end in ("mean", "low", "high")]
    low, high = min([0.0, *ends]), max([0.0, *ends])
    ticks = _time_ticks(low, high if high > low else 1.0)
    bottom, first, last = _TOP + _INTERVAL * len(rows), ticks[0][0], ticks[-1][0]

    def to_share(value: float) -> float:
        return (value - first) / (last - first)

    names = [f"{name}: {format_seconds(one['mean'])}" for name, one in rows]
    yield from _open_figure(title, names, bottom + _BOTTOM, kind="intervals")
    for value, text in ticks:
        x, kind = f"{to_share(value):.2%}", "axis" if value else "zero"
        yield f'<line class="{kind}" x1="{x}" x2="{x}" y1="0" y2="{bottom}"/>'
        yield from _draw_bottom_tick(to_share(value), text, bottom)
    for row, (name, one) in enumerate(rows):
        y = _TOP + row * _INTERVAL
        shown = name if len(name) <= _NAME_LENGTH else f"…{name[1 - _NAME_LENGTH :]}"
        yield f'<text class="name" x="0" y="{y + 12}">{escape(shown)}</text>'
        mean, low_end, high_end = one["mean"], one["low"], one["high"]
        if low_end is not None and high_end is not None:
            yield (
                f'<line class="interval" x1="{to_share(low_end):.2%}" '
                f'x2="{to_share(high_end):.2%}" y1="{y + 26}" y2="{y + 26}"/>'
            )
        if mean is not None:
            yield (
                f'<circle class="bar" cx="{to_share(mean):.2%}" cy="{y + 26}" r="5">'
                f"<title>{escape(names[row])}</title></circle>"
            )
    yield f"</svg><figcaption>{escape(caption)}</figcaption></figure></section>"


def _open_figure(title: str, names: Sequence[str], height: int, *, kind: str = "") -> Iterator[str]:
    """Open a section with its heading and a plot, whose label says what it shows."""
    style, label = f"plot {kind}".strip(), escape(f"{title}: {', '.join(names)}")
    yield f"<section><h2>{escape(title)}</h2><figure>"
    yield f'<svg class="{style}" height="{height}" role="img" aria-label="{label}">'


def _draw_bottom_tick(share: float, text: str, y: int) -> Iterator[str]:
    """Draw a tick of the axis at the bottom; the text of the last one ends at it."""
    anchor, x = "end" if share > 0.97 else "middle", f"{share:.2%}"
    yield f'<line class="axis" x1="{x}" x2="{x}" y1="{y}" y2="{y + 5}"/>'
    yield f'<text x="{x}" y="{y + 20}" text-anchor="{anchor}">{text}</text>'


def _number_ticks(low: float, high: float, unit: str = "") -> _Ticks:
    """Return round numbers: 0, 20, 40, 60 for 0 to 43."""
    least = (high - low) / _MAX_STEPS
    power = 10.0 ** math.floor(math.log10(least))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least)
    numbers = range(math.floor(low / step), math.ceil(high / step) + 1)
    return [(n * step, f"{n * step:g}{unit}") for n in numbers]


def _time_ticks(low: float, high: float) -> _Ticks:
    """Return round times: 0 h, 6 h, 12 h, 18 h, 24 h for 0 to 18.2 hours."""
    for size, unit, numbers in _TIME_STEPS:
        for number in numbers:
            step = number * size
            if step * _MAX_STEPS >= high - low:
                found = range(math.floor(low / step), math.ceil(high / step) + 1)
                return [(n * step, f"{n * number} {unit}") for n in found]
    size, unit, _ = _TIME_STEPS[-1]
    ticks = _number_ticks(low / size, high / size, f" {unit}")
    return [(value * size, text) for value, text in ticks]
