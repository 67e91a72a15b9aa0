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
TEXT = "text/plain; version=0.0.4; charset=utf-8"
#: Under which number a task asks and tells at present, the header that carries it, and where an
#: event has it.
NUMBER: ContextVar[str] = ContextVar("number", default="")
NUMBER_HEADER, NUMBER_ANNOTATION = "audit-id", "phalanx.dev/request"


class Series(Protocol):
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
            yield "_bucket", f'le="{_number(bound).replace("inf", "+Inf")}"', below
        yield "_sum", "", self.total
        yield "_count", "", below


T = TypeVar("T")
S = TypeVar("S", bound=Series)
N = TypeVar("N", Counter, Gauge)


@dataclass(frozen=True, slots=True, eq=False)
class Row(Generic[S]):
    """One thing that is measured. Its equal is only itself."""

    series: type[S]
    name: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


class Metrics:
    """Everything that is measured in one process."""

    def __init__(self) -> None:
        self._rows: dict[Row[Any], dict[tuple[str, ...], Series]] = {}
        self._watched: list[tuple[weakref.ref[Any], Callable[[Any], None]]] = []

    def of(self, row: Row[S], *values: str) -> S:
        """The series of a row with these values of its labels."""
        known: dict[tuple[str, ...], Any] = self._rows.setdefault(row, {})
        series: S | None = known.get(values)
        if series is None:
            assert len(values) == len(row.labels), row.name
            series = known[values] = row.series(row.buckets)
        return series

    def put(self, row: Row[N], found: Mapping[tuple[str, ...], float]) -> None:
        """Say anew what all series of a row are; those that are not mentioned are no more."""
        self._rows[row] = {}
        for values, value in found.items():
            self.of(row, *values).value = value

    def watch(self, subject: T, read: Callable[[T], None]) -> None:
        """Have something looked at before anything is told, as long as it is there."""
        self._watched.append((weakref.ref(subject), read))

    def text(self) -> str:
        """All of it in the exposition format of Prometheus."""
        for known, read in self._watched:
            if (subject := known()) is not None:
                read(subject)
        self._watched = [one for one in self._watched if one[0]() is not None]
        return "".join(
            line
            for row, known in sorted(self._rows.items(), key=lambda item: item[0].name)
            for line in _lines(row, known)
        )


def exponential(first: float, factor: float, count: int) -> tuple[float, ...]:
    """Bounds of a histogram, each so many times the one before."""
    bounds = [first]
    while len(bounds) < count:
        bounds.append(bounds[-1] * factor)
    return tuple(bounds)


def _lines(row: Row[Any], known: Mapping[tuple[str, ...], Series]) -> Iterator[str]:
    if known:
        yield f"# HELP {row.name} {row.help}\n# TYPE {row.name} {row.series.type}\n"
    for values, series in sorted(known.items(), key=lambda item: item[0]):
        own = [
            f'{name}="{_escaped(value)}"' for name, value in zip(row.labels, values, strict=True)
        ]
        for end, label, number in series.samples():
            yield f"{row.name}{end}{_braced([*own, label] if label else own)} {_number(number)}\n"


def _braced(labels: Sequence[str]) -> str:
    return f"{{{','.join(labels)}}}" if labels else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(number: float) -> str:
    return str(int(number)) if number == number // 1 and abs(number) < 1e15 else f"{number:.9g}"


STAGE_SECONDS = Row(Summary, "phalanx_stage_seconds", "Seconds per stage of a request.", ("stage",))


class Stage:
    """One pass of a stage of the work: what happens inside is measured."""

    __slots__ = ("_begin", "_series")

    def __init__(self, series: Summary) -> None:
        self._series = series

    def __enter__(self) -> None:
        self._begin = time.perf_counter()

    def __exit__(self, *failure: object) -> None:
        self._series.observe(time.perf_counter() - self._begin)


class Meter:
    """Seconds and counts per stage of the work, since the start."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._series: dict[str, Summary] = {}

    def stage(self, name: str) -> Stage:
        """Measure what happens inside as one pass of a stage."""
        series = self._series.get(name)
        if series is None:
            series = self._series[name] = self._metrics.of(STAGE_SECONDS, name)
        return Stage(series)
