"""Reads the Standard Workload Format: 18 numbers a line, `;` comments with the machine's size.

    ; MaxProcs: 100
       15   599850 192180   3477    4     -1    -1    4  53940    -1  1  12  12  -1 -1 -1 -1 -1
       job  submit wait     run time, processors …   requested: processors, time     user

Some logs have more fields in each line, which are ignored; then all lines must have as many.

A processor is a node of one CPU, and a job of n processors a gang of n pods. -1 means unknown. Jobs
without a positive run time or without processors are counted, not run.

The estimate of a job is its requested time, or its run time if it ran longer: the log was recorded
on a machine that did not end it. A log without requested times gives every job its true run time as
estimate. Some converters write the requested time in field 6, the average CPU time. That cannot be
longer than the run time, so a log without field 9 in which it mostly is has estimates there.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from phalanx.sim.workloads.workload import (
    NO_RUN_TIME,
    InvalidTrace,
    TraceFile,
    TraceJob,
    TraceWorkload,
    build_equal_nodes,
    build_workload,
    parse_count,
    parse_seconds,
    shorten,
)

_Number = TypeVar("_Number", int, float)

#: The headers that state the size of the machine, the better one first.
_SIZE_HEADERS = ("MaxProcs", "MaxNodes")
_MATCH_HEADER = re.compile(r";\s*(\w+):\s*(.*?)\s*").fullmatch
_FIELDS, _MAX_PROCESSORS = 18, 1_000_000
NO_PROCESSORS = "number of processors unknown"


class _SwfJob(NamedTuple):
    """The fields of a line that a simulation reads; -1 is unknown."""

    submit: float
    run_time: float
    processors: int
    cpu_time: float
    requested: float
    user: str


def read_swf(trace: TraceFile) -> TraceWorkload:
    """Read a log. Raises InvalidTrace."""
    size, rows = _read_size(trace), list[_SwfJob]()
    widths = Counter(len(line.split()) for _, line in _list_jobs(trace))
    width = widths.most_common(1)[0][0] if widths else _FIELDS
    for number, line in _list_jobs(trace):
        try:
            rows.append(_parse_line(line.split(), width))
        except ValueError as error:
            trace.reject(number, str(error))
    kept = [row for row in rows if _is_kept(trace, row)]
    has_requests = any(row.requested > 0 for row in kept)
    overruns = sum(row.cpu_time > row.run_time for row in kept)
    uses_cpu_time = not has_requests and overruns * 2 > len(kept)
    notes = []
    if uses_cpu_time:
        notes.append("field 9 is unknown and field 6 exceeds the run times: taken as estimate")
    elif not has_requests:
        notes.append("the log has no requested times: the true run times are the estimates")
    jobs = [
        TraceJob(
            row.submit,
            row.run_time,
            {"cpu": "1"},
            row.processors,
            estimate=max(row.cpu_time if uses_cpu_time else row.requested, row.run_time),
            owner=f"user-{row.user}",
        )
        for row in kept
    ]
    return build_workload(trace, jobs, nodes=build_equal_nodes(size, {"cpu": "1"}), notes=notes)


def _list_jobs(trace: TraceFile) -> Iterator[tuple[int, str]]:
    """Yield the lines that are no comments."""
    return ((i, line) for i, line in trace.numbered() if not line.lstrip().startswith(";"))


def _read_size(trace: TraceFile) -> int:
    """Return the number of processors that a header states; 0 if none does."""
    headers: dict[str, tuple[int, str]] = {}
    for number, line in trace.numbered():
        if found := _MATCH_HEADER(line.strip()):
            headers.setdefault(found[1], (number, found[2]))
    for name in _SIZE_HEADERS:
        if name in headers:
            number, text = headers[name]
            try:
                size = parse_count(text)
            except ValueError:
                size = 0
            if not 0 < size <= _MAX_PROCESSORS:
                raise InvalidTrace(
                    f"{trace.place(number)}: {name} must be a whole number from 1 to "
                    f'{_MAX_PROCESSORS}, not "{shorten(text)}"'
                )
            return size
    return 0


def _parse_line(fields: list[str], width: int) -> _SwfJob:
    """Read the fields of a job; most lines have `width` of them."""
    if len(fields) < _FIELDS:
        raise ValueError(f"has {len(fields)} of the {_FIELDS} fields of SWF")
    if len(fields) != width and width >= _FIELDS:
        raise ValueError(f"has {len(fields)} fields, most lines have {width}")
    submit, run_time, time = (_read_field(fields, number, parse_seconds) for number in (2, 4, 9))
    if submit < 0:
        raise ValueError(f"field 2, the submit time, is negative: {shorten(fields[1])}")
    if run_time < 0 and run_time != -1:
        raise ValueError(f"field 4, the run time, is negative: {shorten(fields[3])}")
    if time < 0 and time != -1:
        raise ValueError(f"field 9, the requested time, is negative: {shorten(fields[8])}")
    allocated, requested = (_read_field(fields, number, parse_count) for number in (5, 8))
    return _SwfJob(
        submit,
        run_time,
        processors=allocated if allocated > 0 else requested,
        cpu_time=_read_field(fields, 6, parse_seconds),
        requested=time,
        user=fields[11],
    )


def _read_field(fields: list[str], number: int, parse: Callable[[str], _Number]) -> _Number:
    try:
        return parse(fields[number - 1])
    except ValueError as error:
        raise ValueError(f"field {number}: {error}") from None


def _is_kept(trace: TraceFile, row: _SwfJob) -> bool:
    if row.run_time <= 0:
        trace.skipped[NO_RUN_TIME] += 1
    elif row.processors <= 0:
        trace.skipped[NO_PROCESSORS] += 1
    else:
        return True
    return False
