"""Metrics in the Prometheus exposition format, and the id that connects requests and events.

    spec = MetricSpec(Counter, "requests_total", "…", ("code",))    declares a metric and its labels
    metrics.series(spec, "200").add()                               updates one series of it
    metrics.render()                                                the body of `/metrics`

A component holds a `Metrics` and, on hot paths, the series itself. Values that can be read at any
time (the length of a queue) are read when the metrics are rendered (`on_collect`). Imports no other
module of Phalanx. Everything done under one `REQUEST_ID` carries it in the audit log and in events.
"""

from __future__ import annotations

import time
import weakref
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

#: The content type of `Metrics.render`.
METRICS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: The id under which the current task sends requests and records events, the header that carries
#: it, and the annotation by which an event refers to it.
REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")
AUDIT_ID_HEADER, REQUEST_ANNOTATION = "audit-id", "phalanx.dev/request"


class MetricSeries(Protocol):
    """The values of one metric under one set of label values."""

    type: ClassVar[str]

    def __init__(self, buckets: tuple[float, ...]) -> None: ...

    def samples(self) -> Iterator[tuple[str, str, float]]:
        """Yield the samples: (suffix of the metric name, additional label, value)."""
        ...


class Counter:
    """A value that only grows."""

    __slots__ = ("value",)
    type: ClassVar[str] = "counter"

    def __init__(self, buckets: tuple[float, ...] = ()) -> None:
        self.value = 0.0

    def add(self, count: float = 1) -> None:
        """Increase the counter."""
        self.value += count

    def samples(self) -> Iterator[tuple[str, str, float]]:
        """Yield the count."""
        yield "", "", self.value


class Gauge:
    """A current value."""

    __slots__ = ("value",)
    type: ClassVar[str] = "gauge"

    def __init__(self, buckets: tuple[float, ...] = ()) -> None:
        self.value = 0.0

    def samples(self) -> Iterator[tuple[str, str, float]]:
        """Yield the value."""
        yield "", "", self.value


class Summary:
    """The number and the sum of observations."""

    __slots__ = ("count", "total")
    type: ClassVar[str] = "summary"

    def __init__(self, buckets: tuple[float, ...] = ()) -> None:
        self.count, self.total = 0, 0.0

    def observe(self, value: float) -> None:
        """Add one observation."""
        self.total += value
        self.count += 1

    def samples(self) -> Iterator[tuple[str, str, float]]:
        """Yield sum and count."""
        yield "_sum", "", self.total
        yield "_count", "", self.count


class Histogram:
    """The number and the sum of observations, and how many are within each bucket."""

    __slots__ = ("_bounds", "_counts", "total")
    type: ClassVar[str] = "histogram"

    def __init__(self, buckets: tuple[float, ...]) -> None:
        self._bounds, self._counts = buckets, [0] * (len(buckets) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Add one observation, or several equal ones."""
        self._counts[bisect_left(self._bounds, value)] += times
        self.total += value * times

    def samples(self) -> Iterator[tuple[str, str, float]]:
        """Yield the cumulative buckets, then sum and count."""
        below = 0
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            below += count
            yield "_bucket", f'le="{_format_number(bound).replace("inf", "+Inf")}"', below
        yield "_sum", "", self.total
        yield "_count", "", below


T = TypeVar("T")
S = TypeVar("S", bound=MetricSeries)
N = TypeVar("N", Counter, Gauge)


@dataclass(frozen=True, slots=True, eq=False)
class MetricSpec(Generic[S]):
    """The declaration of one metric; compared by identity."""

    series_type: type[S]
    name: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


class Metrics:
    """All metrics of one process."""

    def __init__(self) -> None:
        self._series: dict[MetricSpec[Any], dict[tuple[str, ...], MetricSeries]] = {}
        self._collectors: list[tuple[weakref.ref[Any], Callable[[Any], None]]] = []

    def series(self, spec: MetricSpec[S], *values: str) -> S:
        """Return the series of a metric with these label values; creates it at first use."""
        known: dict[tuple[str, ...], Any] = self._series.setdefault(spec, {})
        series: S | None = known.get(values)
        if series is None:
            assert len(values) == len(spec.labels), spec.name
            series = known[values] = spec.series_type(spec.buckets)
        return series

    def replace_series(
        self, spec: MetricSpec[N], values_by_labels: Mapping[tuple[str, ...], float]
    ) -> None:
        """Replace all series of a metric; series that are not in the mapping disappear."""
        self._series[spec] = {}
        for values, value in values_by_labels.items():
            self.series(spec, *values).value = value

    def on_collect(self, subject: T, read: Callable[[T], None]) -> None:
        """Call `read(subject)` before each rendering, as long as the subject is alive."""
        alive = [one for one in self._collectors if one[0]() is not None]
        self._collectors = [*alive, (weakref.ref(subject), read)]

    def render(self) -> str:
        """Return all metrics in the Prometheus exposition format."""
        for known, read in self._collectors:
            if (subject := known()) is not None:
                read(subject)
        self._collectors = [one for one in self._collectors if one[0]() is not None]
        return "".join(
            line
            for row, known in sorted(self._series.items(), key=lambda item: item[0].name)
            for line in _render_metric(row, known)
        )


def merge_pages(*pages: str) -> str:
    """Join the pages of several processes: each metric has one header and all its samples."""
    samples: dict[str, list[str]] = {}
    for page in pages:
        lines, header = iter(page.splitlines(keepends=True)), ""
        for line in lines:
            if line.startswith("# HELP "):
                header = line + next(lines, "")
                samples.setdefault(header, [])
            else:
                samples.setdefault(header, []).append(line)
    return "".join(header + "".join(rows) for header, rows in samples.items())


def exponential_buckets(first: float, factor: float, count: int) -> tuple[float, ...]:
    """Return bucket bounds, each `factor` times the one before."""
    bounds = [first]
    while len(bounds) < count:
        bounds.append(bounds[-1] * factor)
    return tuple(bounds)


def _render_metric(
    spec: MetricSpec[Any], series_by_labels: Mapping[tuple[str, ...], MetricSeries]
) -> Iterator[str]:
    if series_by_labels:
        yield f"# HELP {spec.name} {spec.help}\n# TYPE {spec.name} {spec.series_type.type}\n"
    for values, series in sorted(series_by_labels.items(), key=lambda item: item[0]):
        labels = [
            f'{name}="{_escape_label(value)}"'
            for name, value in zip(spec.labels, values, strict=True)
        ]
        for end, label, number in series.samples():
            text = ",".join([*labels, label] if label else labels)
            yield f"{spec.name}{end}{f'{{{text}}}' if text else ''} {_format_number(number)}\n"


def _escape_label(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _format_number(number: float) -> str:
    return str(int(number)) if number == number // 1 and abs(number) < 1e15 else f"{number:.9g}"


STAGE_SECONDS = MetricSpec(
    Summary, "phalanx_stage_seconds", "Seconds per stage of a request.", labels=("stage",)
)


class StageTimer:
    """A context manager that observes the seconds spent inside it."""

    __slots__ = ("_begin", "_series")

    def __init__(self, series: Summary) -> None:
        self._series = series

    def __enter__(self) -> None:
        self._begin = time.perf_counter()

    def __exit__(self, *failure: object) -> None:
        self._series.observe(time.perf_counter() - self._begin)


class StageMeter:
    """Seconds and counts per stage of request processing."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._series: dict[str, Summary] = {}

    def stage(self, name: str) -> StageTimer:
        """Return a context manager that measures one pass of a stage."""
        series = self._series.get(name)
        if series is None:
            series = self._series[name] = self._metrics.series(STAGE_SECONDS, name)
        return StageTimer(series)
