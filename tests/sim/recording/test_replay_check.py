"""`compare_replay`: the first difference, and its likely cause."""

from __future__ import annotations

import json
import re

import pytest

from phalanx.scheduler.policy import DEFAULT_PROFILES
from phalanx.sim.recording.replay_check import compare_replay
from tests.sim.recording.recorded_cluster import (
    RecordedScenario,
    check_replay,
    read_workload,
    replay_lines,
)

TEXT = """
nodes: {count: 2, each: {cpu: 4}}
at 0: {gang: first, pods: 4, each: {cpu: 2}, run: 30s}
at 1: {gang: second, pods: 4, each: {cpu: 2}, run: 20s}
at 2: {gang: third, pods: 1, each: {cpu: 1}, run: 5s}
until: 100
"""


@pytest.fixture(scope="module")
def lines() -> list[str]:
    """A recording of three gangs; the second and the third wait for the first."""
    return RecordedScenario(TEXT).lines


def postpone(lines: list[str], name: str, seconds: float) -> list[str]:
    """Return a recording in which the pods of a gang got their nodes, and ended, later."""
    changed = []
    for line in lines:
        one = json.loads(line)
        pod = one.get("pod") or {}
        is_member = one["is"] == "pod" and one["key"][1].startswith(name)
        if is_member and pod.get("spec", {}).get("nodeName"):
            one["at"] += seconds
        changed.append(one)
    return [json.dumps(one) for one in sorted(changed, key=lambda one: one["at"])]


def test_equal_replay_has_no_difference(lines: list[str]) -> None:
    found = check_replay(lines)
    assert (found.jobs, found.equal_jobs, found.differences) == (3, 3, ())


def test_job_that_started_later_than_it_could_is_the_first_difference(lines: list[str]) -> None:
    found = check_replay(postpone(lines, "second", 35.0))
    first = found.differences[0]
    assert first.ref.name == "second"
    assert first.sentence == "starts 35 s earlier in the replay"
    assert "which is behind it, started before it in the cluster" in first.cause
    assert {one.cause for one in found.differences[1:]} <= {
        "follows from the difference of PodGroup default/second"
    }


def test_short_delay_is_explained_by_back_off(lines: list[str]) -> None:
    found = check_replay(postpone(lines, "third", 4.0))
    assert [one.ref.name for one in found.differences] == ["third"]
    assert found.differences[0].cause.startswith("back-off or latency")
    assert check_replay(postpone(lines, "third", 4.0), tolerance=10.0).differences == ()


def test_other_nodes_are_a_difference(lines: list[str]) -> None:
    swapped = [line.replace("node-1", "node-0") if "third-0" in line else line for line in lines]
    if swapped == lines:
        swapped = [
            line.replace("node-0", "node-1") if "third-0" in line else line for line in lines
        ]
    found = check_replay(swapped)
    assert [one.ref.name for one in found.differences] == ["third"]
    assert found.differences[0].sentence.startswith("runs on node-")
    assert found.differences[0].cause.startswith("nodes of equal score")


def test_causes_outside_the_scheduler_come_first(lines: list[str]) -> None:
    late = postpone(lines, "second", 35.0)
    begin = json.loads(lines[0])["at"]
    gap = json.dumps({"is": "interrupted", "at": begin + 3, "resource": "pods"})
    index = next(i for i, line in enumerate(late) if json.loads(line)["at"] > begin + 3)
    interrupted = [*late[:index], gap, *late[index:]]
    assert "lost the watch of pods" in check_replay(interrupted).differences[0].cause
    renamed = [
        line.replace('"containers"', '"schedulerName":"other","containers"') for line in late
    ]
    assert "name the scheduler other" in check_replay(renamed).differences[0].cause
    spaced = [late[0].replace('"format": 1', '"format": 1, "namespace": "default"'), *late[1:]]
    assert "only namespace default" in check_replay(spaced).differences[0].cause


def test_job_that_never_started_is_explained_by_what_is_not_recorded(lines: list[str]) -> None:
    never = [
        line
        for line in lines
        if not (
            (one := json.loads(line))["is"] == "pod"
            and one["key"][1].startswith("third")
            and (one["pod"] is None or one["pod"]["spec"].get("nodeName"))
        )
    ]
    found = check_replay(never)
    assert found.differences[0].sentence.startswith("never started in the cluster")
    assert found.differences[0].cause.startswith("the cluster held it by something")
    data = found.to_data()
    assert data["differences"][0]["name"] == "third"
    assert data["differences"][0]["recordedStartSeconds"] is None


def test_jobs_that_waited_before_the_recording_are_a_cause() -> None:
    lines = RecordedScenario(TEXT, record_at=10.0).lines
    found = check_replay(postpone(lines, "second", 35.0))
    first = found.differences[0]
    assert first.ref.name == "second"
    assert first.cause.startswith(
        "PodGroup default/second and 1 more jobs waited when the recording began"
    )


def test_cause_names_an_attempt_that_nearly_coincides_with_an_event(lines: list[str]) -> None:
    late = postpone(lines, "second", 35.0)
    index, end = next((i, json.loads(line)) for i, line in enumerate(late) if '"Succeeded"' in line)
    # The first pod to end ends 3 ms after the others.
    end["at"] += 0.003
    late[index] = json.dumps(end)
    late.sort(key=lambda line: float(json.loads(line)["at"]))
    engine, history = replay_lines(late), read_workload(late).history
    found = compare_replay(
        engine.jobs,
        history,
        schedulers=DEFAULT_PROFILES.policies,
        tolerance=2.0,
        trace=engine.trace,
    )
    cause = found.differences[0].cause
    assert re.search(r"the replay attempts PodGroup default/\w+ 3.0 ms before a pod ends", cause)
    assert "does not show which of both the scheduler observed first" in cause
    assert all("ms before" not in one.cause for one in found.differences[1:])
