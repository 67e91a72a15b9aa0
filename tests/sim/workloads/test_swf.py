"""The reader of the Standard Workload Format."""

from __future__ import annotations

import pytest

from phalanx.sim.workloads.swf import read_swf
from phalanx.sim.workloads.trace_formats import read_trace
from phalanx.sim.workloads.workload import InvalidTrace, TraceFile, TraceWorkload

HEADER = "; MaxNodes: 8\n; MaxProcs: 16\n"


def line(
    number: int = 1,
    submit: float = 0,
    run: float = 10,
    used: int = 1,
    *,
    cpu: float = -1,
    procs: int = -1,
    requested: float = -1,
) -> str:
    rest = "-1 1 7 1 -1 -1 -1 -1 -1"
    return f"{number} {submit} -1 {run} {used} {cpu} -1 {procs} {requested} {rest}"


def read(*lines: str, header: str = HEADER, lenient: bool = False) -> TraceWorkload:
    text = header + "\n".join(lines)
    return read_trace(TraceFile("log.swf", text.splitlines(), lenient))


def test_machine_has_a_node_per_processor() -> None:
    workload = read(line())
    assert len(workload.nodes) == 16
    assert workload.nodes[0].status.allocatable["cpu"] == "1"
    assert len(read(line(), header="; MaxNodes: 8\n").nodes) == 8


def test_jobs_are_ordered_by_submission_from_zero() -> None:
    jobs = read(line(1, 500, 10, 2), line(2, 400, 20, 3), line(3, 500, 30, 4)).jobs
    assert [(job.submit, job.run_time, job.pods) for job in jobs] == [
        (0, 20, 3),
        (100, 10, 2),
        (100, 30, 4),
    ]
    assert jobs[0].owner == "user-7"


def test_estimate_is_the_requested_time_but_at_least_the_run_time() -> None:
    jobs = read(line(1, 0, 10, requested=60), line(2, 0, 90, requested=60)).jobs
    assert [job.estimate for job in jobs] == [60, 90]


def test_log_without_requested_times_says_that_run_times_are_the_estimates() -> None:
    workload = read(line(1, 0, 10), line(2, 0, 20))
    assert [job.estimate for job in workload.jobs] == [10, 20]
    assert "no requested times" in workload.notes[0]


def test_field_6_is_the_estimate_if_it_cannot_be_a_cpu_time() -> None:
    workload = read(line(1, 0, 10, cpu=60), line(2, 0, 20, cpu=60), line(3, 0, 70, cpu=60))
    assert [job.estimate for job in workload.jobs] == [60, 60, 70]
    assert "field 6" in workload.notes[0]


def test_requested_processors_count_if_the_allocated_ones_are_unknown() -> None:
    assert read(line(1, 0, 10, -1, procs=3)).jobs[0].pods == 3


def test_jobs_that_cannot_run_are_counted_by_reason() -> None:
    workload = read(line(), line(2, 0, -1), line(3, 0, 0), line(4, 0, 5, -1))
    assert len(workload.jobs) == 1
    assert workload.skipped == {"number of processors unknown": 1, "run time not positive": 2}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("1 2 3", "log.swf, line 3: has 3 of the 18 fields of SWF"),
        (line(submit=-5), "log.swf, line 3: field 2, the submit time, is negative: -5"),
        (line(run=-7), "log.swf, line 3: field 4, the run time, is negative: -7"),
        (line().replace("10", "ten", 1), 'log.swf, line 3: field 4: "ten" is not a number'),
        (line().replace("10", "1_0", 1), 'log.swf, line 3: field 4: "1_0" is not a number'),
        (line(used=1).replace(" 1 -1 -1", " 1.5 -1 -1", 1), "field 5: 1.5 is not a whole number"),
        (line(requested=-7), "line 3: field 9, the requested time, is negative: -7"),
        (line(run=float("nan")), "line 3: field 4: nan is out of range"),
        (line(submit=1e300), "line 3: field 2: 1e+300 is out of range"),
        (line(run=int("9" * 4000)), f"line 3: field 4: {'9' * 40}… is out of range"),
        (f"{line()} extra", "line 3: has 19 fields, most lines have 18"),
    ],
)
def test_bad_line_is_named_with_its_reason_and_skipped_if_lenient(bad: str, reason: str) -> None:
    with pytest.raises(InvalidTrace) as error:
        read(bad, line(), line())
    assert reason in str(error.value)
    workload = read(bad, line(), line(), lenient=True)
    assert (len(workload.jobs), workload.skipped) == (2, {"line cannot be read": 1})


def test_log_with_more_fields_in_each_line_is_read() -> None:
    assert len(read(f"{line()} {{7,8}} q_2w 1:ppn=2", f"{line(2)} {{7}} q_2d 1:ppn=1").jobs) == 2


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ("; MaxProcs: many\n", 'line 1: MaxProcs must be a whole number from 1 to 1000000, not "'),
        ("; MaxProcs: 0\n", "MaxProcs must be"),
        (f"; MaxProcs: {'9' * 5000}\n", f'from 1 to 1000000, not "{"9" * 40}…"'),
    ],
)
def test_log_without_a_usable_size_is_rejected(header: str, reason: str) -> None:
    with pytest.raises(InvalidTrace) as error:
        read(line(), header=header)
    assert reason in str(error.value)


def test_log_without_a_size_states_no_machine() -> None:
    workload = read(line(), header="; Computer: x\n")
    assert (len(workload.jobs), workload.nodes) == (1, ())


def test_unknown_and_empty_traces_are_rejected() -> None:
    with pytest.raises(InvalidTrace, match="not a trace in a known format"):
        read_trace(TraceFile("x", ["hello"]))
    with pytest.raises(InvalidTrace, match="x: the file is empty"):
        read_trace(TraceFile("x", [""]))
    with pytest.raises(InvalidTrace, match="x: only files of scheduler-perf have cases"):
        read_trace(TraceFile("x", HEADER.splitlines(), case="small"))
    with pytest.raises(InvalidTrace, match=r'unknown trace format "abc"; available: .*swf'):
        read_trace(TraceFile("x", ["hello"]), "abc")
    with pytest.raises(InvalidTrace, match="contains no job that can be simulated"):
        read_swf(TraceFile("x", HEADER.splitlines()))
