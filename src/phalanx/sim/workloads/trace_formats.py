"""The table of trace formats. A format is recognised by the beginning of the file."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import NamedTuple

from phalanx.sim.recording.recorded_workload import read_recorded_workload
from phalanx.sim.recording.recording_format import is_recording
from phalanx.sim.workloads.batsim import is_batsim, read_batsim
from phalanx.sim.workloads.csv_traces import (
    CSV_DIALECTS,
    find_near_dialect,
    is_csv_of,
    read_csv,
)
from phalanx.sim.workloads.kueue_generator import read_kueue_generator
from phalanx.sim.workloads.scheduler_perf import read_scheduler_perf
from phalanx.sim.workloads.swf import read_swf
from phalanx.sim.workloads.workload import InvalidTrace, TraceFile, TraceWorkload

#: The names of the format of `phalanx record`, and of the one whose files have several cases.
RECORDING, _WITH_CASES = "recording", "scheduler-perf"
#: How many lines are read to recognise a format.
_FIRST_LINES = 200


class TraceFormat(NamedTuple):
    """One row: the name of a format, how it is recognised, and its reader."""

    name: str
    is_format: Callable[[list[str]], bool]
    read: Callable[[TraceFile], TraceWorkload]


def _is_swf(lines: list[str]) -> bool:
    """Whether the file has comments with `;`, or lines of 18 numbers."""
    first = lines[0].split()
    numbers = sum(field.lstrip("-").replace(".", "", 1).isdecimal() for field in first)
    return first[0].startswith(";") or numbers >= 18


def _is_kueue_generator(lines: list[str]) -> bool:
    return any(line.startswith("cohorts:") for line in lines)


def _is_scheduler_perf(lines: list[str]) -> bool:
    return any(line.strip() == "workloadTemplate:" for line in lines)


TRACE_FORMATS = (
    *(
        TraceFormat(one.name, partial(is_csv_of, one), partial(read_csv, one))
        for one in CSV_DIALECTS
    ),
    TraceFormat("kueue", _is_kueue_generator, read_kueue_generator),
    TraceFormat(_WITH_CASES, _is_scheduler_perf, read_scheduler_perf),
    TraceFormat("swf", _is_swf, read_swf),
    TraceFormat(RECORDING, is_recording, read_recorded_workload),
    TraceFormat("batsim", is_batsim, read_batsim),
)


#: The names of all formats, for messages.
FORMAT_NAMES = ", ".join(row.name for row in TRACE_FORMATS)


def find_format(trace: TraceFile) -> TraceFormat | None:
    """Return the format that the first lines of a trace show; None for an unknown one."""
    lines = [line for _, line in islice(trace.numbered(), _FIRST_LINES)]
    return next((row for row in TRACE_FORMATS if lines and row.is_format(lines)), None)


def read_trace(trace: TraceFile, format_name: str = "") -> TraceWorkload:
    """Read a trace of a named format, or of the one that it looks like. Raises InvalidTrace."""
    first = next(trace.numbered(), None)
    if first is None:
        raise InvalidTrace(f"{trace.name}: the file is empty")
    named = (row for row in TRACE_FORMATS if row.name == format_name)
    found = next(named, None) if format_name else find_format(trace)
    if found is not None:
        if trace.case and found.name != _WITH_CASES:
            raise InvalidTrace(f"{trace.name}: only files of {_WITH_CASES} have cases")
        return found.read(trace)
    if format_name:
        raise InvalidTrace(f'unknown trace format "{format_name}"; available: {FORMAT_NAMES}')
    reason = f"not a trace in a known format ({FORMAT_NAMES})"
    if near := find_near_dialect(first[1]):
        columns = ",".join(near.columns)
        reason += f"; a trace of {near.name} begins with its columns in this form: {columns}"
    raise InvalidTrace(f"{trace.name}: {reason}")
