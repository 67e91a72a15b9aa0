"""What is measured: rows of a table, the numbers of each by its labels, all as Prometheus text.

    Row(Counter, "requests_total", "…", ("code",))      what there is to measure, and its labels
    metrics.of(row, "200").add()                        one series of it
    metrics.text()                                      what `/metrics` answers

Whoever measures holds its Metrics and, where it measures often, the series itself. What is merely
read (how long is the queue?) is read when somebody asks. Imports nothing of ours. Measures; never
decides. What is done under one `NUMBER` is found again by it, in the audit log and in events.
"""

from __future__ import annotations

import time
import weakref
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

#: The content type of `Metrics.text`.
METRICS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: Under which number a task asks and tells at present, the header that carries it, and where an
#: event has it.
REQUEST_ID: ContextVar[str] = ContextVar("number", default="")
AUDIT_ID_HEADER, REQUEST_ANNOTATION = "audit-id", "phalanx.dev/request"


class MetricSeries(Protocol):
    """The numbers of one row under one set of labels."""

    type: ClassVar[str]

    def __init__(self, buckets: tuple[float, ...]) -> None: ...

    def samples(self) -> Iterator[tuple[str, str, float]]:
        """What it has come to: (end of the name, a label of its own, number)."""
        ...


class Counter:
    """Something that only grows."""

    __slots__ = ("value",)
    type: ClassVar[str] = "counter"

    def __init__(self, buckets: tuple[float, ...] = ()) -> None:
        self.value = 0.0

    def add(self, count: float = 1) -> None:
        """So many more."""
        self.value += count

    def samples(self) -> Iterator[tuple[str, str, float]]:
        """The count."""
        yield "", "", self.value


class Gauge:
    """Something that is now so much."""

    __slots__ = ("value",)
    type: ClassVar[str] = "gauge"

    def __init__(self, buckets: tuple[float, ...] = ()) -> None:
        self.value = 0.0

    def samples(self) -> Iterator[tuple[str, str, float]]:
        """The amount."""
        yield "", "", self.value


class Summary:
    """How often something was measured, and what that adds up to."""

    __slots__ = ("count", "total")
    type: ClassVar[str] = "summary"

    def __init__(self, buckets: tuple[float, ...] = ()) -> None:
        self.count, self.total = 0, 0.0

    def observe(self, value: float) -> None:
        """One measurement."""
        self.total += value
        self.count += 1

    def samples(self) -> Iterator[tuple[str, str, float]]:
        """Sum and count."""
        yield "_sum", "", self.total
        yield "_count", "", self.count


class Histogram:
    """How often something was measured, and how often it was no more than each bound."""

    __slots__ = ("_bounds", "_counts", "total")
    type: ClassVar[str] = "histogram"

    def __init__(self, buckets: tuple[float, ...]) -> None:
        self._bounds, self._counts = buckets, [0] * (len(buckets) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """One measurement, or several that are equal."""
        self._counts[bisect_left(self._bounds, value)] += times
        self.total += value * times

    def samples(self) -> Iterator[tuple[str, str, float]]:
        """The bounds, each with all that is below it; sum and count."""
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
    """One thing that is measured. Its equal is only itself."""

    series_type: type[S]
    name: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


class Metrics:
    """Everything that is measured in one process."""

    def __init__(self) -> None:
        self._series: dict[MetricSpec[Any], dict[tuple[str, ...], MetricSeries]] = {}
        self._collectors: list[tuple[weakref.ref[Any], Callable[[Any], None]]] = []

    def series(self, spec: MetricSpec[S], *values: str) -> S:
        """The series of a row with these values of its labels."""
        known: dict[tuple[str, ...], Any] = self._series.setdefault(spec, {})
        series: S | None = known.get(values)
        if series is None:
            assert len(values) == len(spec.labels), spec.name
            series = known[values] = spec.series_type(spec.buckets)
        return series

    def replace_series(
        self, spec: MetricSpec[N], values_by_labels: Mapping[tuple[str, ...], float]
    ) -> None:
        """Say anew what all series of a row are; those that are not mentioned are no more."""
        self._series[spec] = {}
        for values, value in values_by_labels.items():
            self.series(spec, *values).value = value

    def on_collect(self, subject: T, read: Callable[[T], None]) -> None:
        """Have something looked at before anything is told, as long as it is there."""
        self._collectors.append((weakref.ref(subject), read))

    def render(self) -> str:
        """All of it in the exposition format of Prometheus."""
        for known, read in self._collectors:
            if (subject := known()) is not None:
                read(subject)
        self._collectors = [one for one in self._collectors if one[0]() is not None]
        return "".join(
            line
            for row, known in sorted(self._series.items(), key=lambda item: item[0].name)
            for line in _render_metric(row, known)
        )


def exponential_buckets(first: float, factor: float, count: int) -> tuple[float, ...]:
    """Bounds of a histogram, each so many times the one before."""
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
        own = [
            f'{name}="{_escape_label(value)}"'
            for name, value in zip(spec.labels, values, strict=True)
        ]
        for end, label, number in series.samples():
            yield f"{spec.name}{end}{_format_labels([*own, label] if label else own)} {_format_number(number)}\n"


def _format_labels(labels: Sequence[str]) -> str:
    return f"{{{','.join(labels)}}}" if labels else ""


def _escape_label(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _format_number(number: float) -> str:
    return str(int(number)) if number == number // 1 and abs(number) < 1e15 else f"{number:.9g}"


STAGE_SECONDS = MetricSpec(
    Summary, "phalanx_stage_seconds", "Seconds per stage of a request.", ("stage",)
)


class StageTimer:
    """One pass of a stage of the work: what happens inside is measured."""

    __slots__ = ("_begin", "_series")

    def __init__(self, series: Summary) -> None:
        self._series = series

    def __enter__(self) -> None:
        self._begin = time.perf_counter()

    def __exit__(self, *failure: object) -> None:
        self._series.observe(time.perf_counter() - self._begin)


class StageMeter:
    """Seconds and counts per stage of the work, since the start."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._series: dict[str, Summary] = {}

    def stage(self, name: str) -> StageTimer:
        """Measure what happens inside as one pass of a stage."""
        series = self._series.get(name)
        if series is None:
            series = self._series[name] = self._metrics.series(STAGE_SECONDS, name)
        return StageTimer(series)
