"""The figures of a report, by hand."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from phalanx.sim.core_engine import CoreEngine
from phalanx.sim.reports.figures import build_report, percentile
from phalanx.sim.reports.text import format_seconds, summary_rows
from phalanx.sim.workloads.workload import TraceJob, TraceWorkload
from tests.sim.test_core_engine import job, setup


def owned(owner: str, one: TraceJob) -> TraceJob:
    return TraceJob(
        one.submit, one.run_time, one.requests, one.pods, estimate=one.estimate, owner=owner
    )


def test_figures_of_two_jobs() -> None:
    # a: 0..100 on all four nodes; b waits 90 s, runs 100..150 on two.
    jobs = (owned("a", job(0, 100, 4)), owned("b", job(10, 50, 2)))
    result = CoreEngine(replace(setup(), workload=TraceWorkload(jobs, skipped={"x": 2}))).run()
    report = build_report(result, {"log": "sha256:1"})
    wait = report["wait"]
    assert (wait["meanSeconds"], wait["p50Seconds"], wait["p95Seconds"]) == (45, 0, 90)
    assert report["slowdown"]["boundedMean"] == pytest.approx((1 + 140 / 50) / 2)
    assert report["utilisation"] == {"cpu": pytest.approx((400 + 100) / 600, abs=1e-6)}
    assert report["queue"] == {"meanJobs": pytest.approx(90 / 150), "maxJobs": 1}
    assert report["fairness"]["jain"] == pytest.approx(3.8**2 / (2 * (1 + 2.8**2)), abs=1e-6)
    assert report["expectedStarts"]["meanErrorSeconds"] == 0
    assert (report["jobs"], report["unfinished"], report["preemptions"]) == (2, 0, 0)
    assert (report["engine"], report["seed"], report["skipped"]) == ("core", 0, {"x": 2})
    assert [(one["name"], one["maxPods"]) for one in wait["bySize"]] == [("2", 2), ("3 to 4", 4)]
    assert [(one["name"], one["meanSeconds"]) for one in wait["byOwner"]] == [("a", 0), ("b", 90)]
    assert wait["owners"] == 2
    assert [one["job"] for one in report["starvation"]] == [1]
    assert sum(report["series"]["allocation"]["cpu"]) / 240 == pytest.approx(5 / 6, abs=1e-3)
    assert sum(report["series"]["queueJobs"]) / 240 == pytest.approx(90 / 150, abs=1e-3)


DOCUMENT = (Path(__file__).parents[3] / "docs" / "simulation.md").read_text()
#: The fields whose keys are names of the workload.
NAMED_BY_THE_WORKLOAD = ("utilisation", "allocation", "inputs", "skipped")


def keys_of(data: Any) -> Iterator[str]:
    """Yield all keys of nested data."""
    for one in data if isinstance(data, list) else ():
        yield from keys_of(one)
    for key, value in data.items() if isinstance(data, dict) else ():
        yield key
        if key not in NAMED_BY_THE_WORKLOAD:
            yield from keys_of(value)


def test_every_figure_is_defined_in_the_document() -> None:
    jobs = (owned("a", job(0, 100, 4)), owned("b", job(10, 50, 2)))
    report = build_report(CoreEngine(replace(setup(), workload=TraceWorkload(jobs))).run(), {})
    section = DOCUMENT[DOCUMENT.index("## Figures") :]
    defined = {word for text in re.findall(r"`([\w.<>]+)`", section) for word in text.split(".")}
    assert set(keys_of(report)) - defined == set()


def test_first_job_that_fits_in_total_but_on_no_node_counts_as_fragmentation() -> None:
    halves = [TraceJob(0, 100, {"cpu": "600m"}, 1, estimate=100.0) for _ in range(4)]
    wide = TraceJob(1, 100, {"cpu": "500m"}, 1, estimate=100.0)
    result = CoreEngine(replace(setup(), workload=TraceWorkload((*halves, wide)))).run()
    report = build_report(result, {})
    assert report["fragmentation"]["blockedShare"] == pytest.approx(99 / 200)
    blocked = report["series"]["blockedShare"]
    assert sum(blocked) / len(blocked) == pytest.approx(99 / 200)
    assert (blocked[60], blocked[-1]) == (1, 0)


def test_summary_names_what_matters() -> None:
    result = CoreEngine(replace(setup(job(0, 100, 3), job(40, 10, 4, priority=9)))).run()
    rows = dict(summary_rows(build_report(replace(result, is_partial=True), {})))
    assert rows["jobs"] == "2 (0 unfinished)"
    assert rows["preemptions"] == "1"
    assert rows["lost work"] == "2.0 min of pods"
    assert rows["state"] == "interrupted at 2.5 min: figures of the time so far"
    assert rows["wait"] == "mean 0 s, p50 0 s, p95 0 s, p99 0 s, max 0 s"
    assert not {"longest waits", "not started", "skipped", "note"} & set(rows)


def test_summary_has_the_waits_by_size_and_the_three_longest_waits() -> None:
    jobs = (job(0, 100, 4), job(10, 50, 1), job(20, 50, 3), job(30, 50, 2), job(140, 10, 4))
    rows = dict(summary_rows(build_report(CoreEngine(setup(*jobs)).run(), {})))
    assert rows["wait by size"] == "1: 90 s, 2 to 8: 65 s"
    assert rows["longest waits"] == "2.0 min (job 3), 90 s (job 1), 80 s (job 2)"


def test_jobs_larger_than_all_classes_are_the_last_class() -> None:
    jobs = [TraceJob(0, 10, {"cpu": "1m"}, pods, estimate=10.0) for pods in (8193, 5000)]
    result = CoreEngine(replace(setup(nodes=200), workload=TraceWorkload(tuple(jobs)))).run()
    report = build_report(result, {})
    sizes = [(one["name"], one["maxPods"], one["jobs"]) for one in report["wait"]["bySize"]]
    assert sizes == [("4097 to 8192", 8192, 1), ("more than 8192", None, 1)]
    assert "wait by size" not in dict(summary_rows(report))


def test_summary_has_one_line_of_skipped_jobs_and_counts_with_their_nouns() -> None:
    skipped = {"larger than the machine": 1, "run time not positive": 2}
    one = replace(setup(nodes=1), workload=TraceWorkload((job(0, 10), job(5, 10)), skipped=skipped))
    found = list(summary_rows(build_report(CoreEngine(one).run(), {})))
    assert [value for name, value in found if name == "skipped"] == [
        "larger than the machine (1), run time not positive (2)"
    ]
    assert ("simulated", "20 s on 1 node") in found
    assert ("expected starts", "1 job, mean error 0 s") in found


@pytest.mark.parametrize(
    ("horizon", "is_partial", "end"),
    [
        (1000.0, False, "complete"),
        (60.0, False, "horizon"),
        (60.0, True, "interrupted"),
    ],
)
def test_report_says_what_ended_the_simulation(
    horizon: float, *, is_partial: bool, end: str
) -> None:
    jobs = (job(0, 100, 4), job(10, 50, 2), job(30, 50, 4))
    result = CoreEngine(replace(setup(*jobs), horizon=horizon)).run()
    report = build_report(replace(result, is_partial=is_partial), {})
    assert report["end"] == end
    # A job that never starts ends its simulation some time after the last event.
    idle = build_report(CoreEngine(setup(job(0, 10, 9))).run(), {})
    assert idle["end"] == "idle"
    assert dict(summary_rows(idle))["state"].startswith("nothing happens after 0 s")


def test_jobs_that_have_not_started_are_in_no_mean_and_the_summary_says_so() -> None:
    jobs = (job(0, 100, 4), job(10, 50, 2), job(30, 50, 4), job(90, 1))
    report = build_report(CoreEngine(replace(setup(*jobs), horizon=60)).run(), {})
    assert report["wait"]["meanSeconds"] == 0
    assert report["wait"]["notStarted"] == {"jobs": 2, "meanSeconds": 40, "maxSeconds": 50}
    rows = dict(summary_rows(report))
    assert rows["state"] == "cut by the horizon at 60 s: figures of the time so far"
    assert rows["not started"] == "2 jobs, not in the means: so far mean 40 s, max 50 s"
    assert rows["longest waits"].startswith("50 s (job 1, not started)")


def test_report_of_a_simulation_in_which_nothing_started_has_no_means() -> None:
    report = build_report(CoreEngine(setup(job(0, 10, 9))).run(), {})
    assert report["wait"]["meanSeconds"] is None
    assert report["slowdown"]["boundedMean"] is None
    assert report["fairness"]["jain"] is None
    assert report["unfinished"] == 1
    assert dict(summary_rows(report))["wait"] == "mean -, p50 -, p95 -, p99 -, max -"


def test_percentiles_are_values_that_occur() -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], 50) == 2
    assert percentile([1.0, 2.0, 3.0, 4.0], 95) == 4
    assert percentile([], 50) is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0, "0 s"), (90, "90 s"), (6858.4, "114.3 min"), (90000, "25.0 h")],
)
def test_times_are_formatted_with_one_unit(seconds: float | None, text: str) -> None:
    assert format_seconds(seconds) == text
