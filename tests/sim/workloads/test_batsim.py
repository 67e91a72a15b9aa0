"""The reader of workloads of Batsim."""

from __future__ import annotations

import json
from typing import Any

import pytest

from phalanx.sim.workloads.trace_formats import read_trace
from phalanx.sim.workloads.workload import InvalidTrace, TraceFile, TraceWorkload

PROFILES = {
    "short": {"type": "delay", "delay": 20.5, "np": 2},
    "none": {"type": "delay", "delay": 0},
    "open": {"type": "delay"},
    "computed": {"type": "parallel_homogeneous", "cpu": 5e6, "com": 1e6},
}


def job(number: int, **fields: Any) -> dict[str, Any]:
    return {"id": number, "profile": "short", "res": 2, "subtime": 3.0, "walltime": 60, **fields}


def read(*jobs: Any, lenient: bool = False, **fields: Any) -> TraceWorkload:
    text = json.dumps({"nb_res": 4, "jobs": jobs, "profiles": PROFILES, **fields}, indent=1)
    return read_trace(TraceFile("log.json", text.split("\n"), lenient))


def test_job_is_a_gang_of_one_pod_per_machine() -> None:
    workload = read(job(1, user="ada"), job(2, subtime=1.5, res=4))
    assert [(one.submit, one.pods, one.owner) for one in workload.jobs] == [
        (0, 4, ""),
        (1.5, 2, "ada"),
    ]
    assert {(one.run_time, one.estimate) for one in workload.jobs} == {(20.5, 60)}
    assert [node.status.allocatable["cpu"] for node in workload.nodes] == ["1"] * 4


def test_walltime_ends_a_job_and_may_be_missing() -> None:
    unlimited = job(3)
    del unlimited["walltime"]
    jobs = read(job(1, walltime=10), job(2, walltime=-1), unlimited).jobs
    assert [(one.run_time, one.estimate) for one in jobs] == [(10, 10), (20.5, None), (20.5, None)]


def test_jobs_without_a_run_time_are_counted() -> None:
    assert read(job(1), job(2, profile="none")).skipped == {"run time not positive": 1}


def test_machine_may_be_missing() -> None:
    assert read(job(1), nb_res=None).nodes == ()


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (job(2, profile="long"), 'there is no profile "long"'),
        (
            job(2, profile="computed"),
            'the profile "computed" has the type "parallel_homogeneous"; only profiles of the type '
            '"delay" are simulated',
        ),
        (job(2, profile="open"), "profiles.open: Object missing required field `delay`"),
        (job(2, res=0), "res: Expected `int` >= 1"),
        (job(2, subtime=-1), "subtime: Expected `float` >= 0.0"),
        (job(2, walltime=-2), "walltime: Expected `float` >= -1.0"),
        (job(2, subtime="noon"), "subtime: Expected `float`, got `str`"),
        ({"id": 2}, "Object missing required field `profile`"),
        ("job", "Expected `object`, got `str`"),
    ],
)
def test_bad_job_is_named_with_its_line_and_skipped_if_lenient(bad: Any, reason: str) -> None:
    with pytest.raises(InvalidTrace) as error:
        read(job(1), bad)
    assert str(error.value) == f"log.json, line 11: jobs[1]: {reason}"
    workload = read(job(1), bad, lenient=True)
    assert (len(workload.jobs), workload.skipped) == (1, {"line cannot be read": 1})


def test_job_without_a_line_is_named_by_its_number() -> None:
    text = json.dumps({"jobs": [job(1), job(2, res=0)], "profiles": PROFILES}, indent="\t")
    with pytest.raises(InvalidTrace, match=r"^log\.json: jobs\[1\]: res: Expected"):
        read_trace(TraceFile("log.json", text.split("\n")))


def test_profiles_may_come_first() -> None:
    many = {f"p{number}": PROFILES["short"] for number in range(150)}
    fields = {"nb_res": 4, "profiles": {**many, **PROFILES}, "jobs": [job(1)]}
    text = json.dumps(fields, indent=1)
    assert len(read_trace(TraceFile("log.json", text.split("\n"))).jobs) == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"jobs": [{"subtime": 1}', "log.json is not a JSON file: Input data was truncated"),
        (f'{{"nb_res": 1, "jobs": {"[" * 2000}', "log.json: nested too deeply"),
        ('{"jobs": [{"subtime": 1}]}', "log.json: Object missing required field `profiles`"),
        ('{"jobs": {"subtime": 1}}', "log.json: jobs: Expected `array`, got `object`"),
        (
            '{"nb_res": 0, "jobs": [{"subtime": 1}], "profiles": {}}',
            "log.json: nb_res: Expected `int` >= 1",
        ),
        (
            '{"jobs": [], "profiles": {}, "subtime": 0}',
            "log.json: contains no job that can be simulated",
        ),
    ],
)
def test_file_that_is_no_workload_is_rejected(text: str, reason: str) -> None:
    with pytest.raises(InvalidTrace) as error:
        read_trace(TraceFile("log.json", text.split("\n")))
    assert str(error.value) == reason
