"""The reader of workloads of Batsim."""

from __future__ import annotations

import json
from math import nan
from typing import Any

import pytest

from phalanx.sim.workloads.trace_formats import read_trace
from phalanx.sim.workloads.workload import InvalidTrace, TraceFile, TraceWorkload

#: The end of the name of a field that stands for a second one without that end.
AGAIN = "-again"
PROFILES: dict[str, dict[str, Any]] = {
    "short": {"type": "delay", "delay": 20.5, "np": 2},
    "none": {"type": "delay", "delay": 0},
    "open": {"type": "delay"},
    "negative": {"type": "delay", "delay": -1},
    "twice": {"type": "delay", "delay": 1, "delay-again": 2},
    "computed": {"type": "parallel_homogeneous", "cpu": 5e6, "com": 1e6},
}


def job(number: int, **fields: Any) -> dict[str, Any]:
    return {"id": number, "profile": "short", "res": 2, "subtime": 3.0, "walltime": 60, **fields}


def read(*jobs: Any, lenient: bool = False, **fields: Any) -> TraceWorkload:
    text = json.dumps({"nb_res": 4, "jobs": jobs, "profiles": PROFILES, **fields}, indent=1)
    return read_trace(TraceFile("log.json", text.replace(AGAIN, "").split("\n"), lenient))


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
    ("bad", "line", "reason"),
    [
        (job(2, profile="long"), 13, 'jobs[1].profile: there is no profile "long"'),
        (
            job(2, profile="computed"),
            13,
            'jobs[1].profile: the profile "computed" has the type "parallel_homogeneous"; only '
            'profiles of the type "delay" are simulated',
        ),
        (job(2, profile="open"), 29, "profiles.open.delay: is missing"),
        (
            job(2, profile="negative"),
            34,
            "profiles.negative.delay: must be a number of at least 0, not -1",
        ),
        (job(2, profile="twice"), 39, "profiles.twice.delay: exists twice"),
        (job(2, res=0), 14, "jobs[1].res: must be a whole number of at least 1, not 0"),
        (job(2, subtime=-1), 15, "jobs[1].subtime: must be a number of at least 0, not -1"),
        (job(2, walltime=-2), 16, "jobs[1].walltime: must be a number of at least -1, not -2"),
        (job(2, subtime="noon"), 15, 'jobs[1].subtime: must be a number, not "noon"'),
        (job(2, res=2.5), 14, "jobs[1].res: must be a whole number, not 2.5"),
        (job(2, walltime=nan), 16, "jobs[1].walltime: must be a number of at least -1, not NaN"),
        (
            job(2, res=int("1" * 4000)),
            14,
            f"jobs[1].res: must be a whole number, not {'1' * 40}…",
        ),
        ({"id": 2}, 11, "jobs[1].profile: is missing"),
        ("job", 11, 'jobs[1]: must be a map, not "job"'),
        (job(2, **{"res-again": 4}), 17, "jobs[1].res: exists twice"),
    ],
)
def test_bad_job_is_named_with_its_line_and_skipped_if_lenient(
    bad: Any, line: int, reason: str
) -> None:
    with pytest.raises(InvalidTrace) as error:
        read(job(1), bad)
    assert str(error.value) == f"log.json, line {line}: {reason}"
    workload = read(job(1), bad, lenient=True)
    assert (len(workload.jobs), workload.skipped) == (1, {"line cannot be read": 1})


def test_line_is_found_in_json_of_any_form() -> None:
    text = json.dumps({"jobs": [job(1), job(2, res=0)], "profiles": PROFILES}, indent="\t")
    with pytest.raises(InvalidTrace, match=r"^log\.json, line 13: jobs\[1\]\.res: must be"):
        read_trace(TraceFile("log.json", text.split("\n")))


@pytest.mark.parametrize(
    ("of_job", "of_file", "reason"),
    [
        ({}, {"queue": "a"}, "line 40: queue: unknown field"),
        ({"queue": "a"}, {}, "line 10: jobs[0].queue: unknown field"),
        (
            {},
            {"profiles": {"short": {**PROFILES["short"], "queue": "a"}}},
            "line 17: profiles.short.queue: unknown field",
        ),
    ],
)
def test_unknown_field_is_named_with_its_line_and_counted_if_lenient(
    of_job: dict[str, Any], of_file: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidTrace) as error:
        read(job(1, **of_job), **of_file)
    assert str(error.value) == f"log.json, {reason}"
    workload = read(job(1, **of_job), lenient=True, **of_file)
    assert (len(workload.jobs), workload.skipped) == (1, {"unknown field": 1})


def test_fields_of_the_format_that_are_not_simulated_are_no_error() -> None:
    profiles = {"short": {**PROFILES["short"], "command": "ft.A.2", "runtime": 20.5, "ret": 1}}
    fields: dict[str, Any] = {
        "description": "of a test",
        "command": "generate.py",
        "date": "2016-05-17",
    }
    assert read(job(1, extra_data="{}"), profiles=profiles, **fields).skipped == {}


def test_profiles_may_come_first() -> None:
    many = {f"p{number}": PROFILES["short"] for number in range(150)}
    fields = {"nb_res": 4, "profiles": {**many, **PROFILES}, "jobs": [job(1)]}
    text = json.dumps(fields, indent=1)
    assert len(read_trace(TraceFile("log.json", text.split("\n"))).jobs) == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            '{"jobs": [{"subtime": 1,\n "res": 4}',
            "log.json, line 2: the JSON ends too early (column 11)",
        ),
        (
            '{"jobs": [{"subtime": 1,\n "user": "ad',
            "log.json, line 2: the JSON ends too early (column 10)",
        ),
        (
            '{"jobs": [{"subtime": 1,\n "res": four}]}',
            "log.json, line 2: expected value (column 9)",
        ),
        (f'{{"nb_res": 1, "jobs": {"[" * 20000}', "log.json: nested too deeply"),
        ('{"jobs":\n[{"subtime": 1}]}', "log.json, line 1: profiles: is missing"),
        (
            '{"nb_res": 4,\n"jobs": {"a": 1}}',
            'log.json, line 2: jobs: must be a list, not {"a": 1}',
        ),
        (
            '{"jobs": [], "profiles": {},\n"nb_res": 0}',
            "log.json, line 2: nb_res: must be a whole number of at least 1, not 0",
        ),
        (
            '{"jobs": [], "profiles": {},\n"nb_res": "4"}',
            'log.json, line 2: nb_res: must be a whole number, not "4"',
        ),
        (
            '{"jobs": [],\n "profiles": {},\n"nb_res": 4,\n "jobs": []}',
            "log.json, line 4: jobs: exists twice",
        ),
        (
            '{"jobs": [], "profiles": {}, "nb_res": 4}',
            "log.json: contains no job that can be simulated",
        ),
    ],
)
def test_file_that_is_no_workload_is_rejected(text: str, reason: str) -> None:
    for is_lenient in (False, True):
        with pytest.raises(InvalidTrace) as error:
            read_trace(TraceFile("log.json", text.split("\n"), is_lenient))
        assert str(error.value) == reason
