"""`compare_replay`: the first difference, and its likely cause."""

from __future__ import annotations

import json
import re

import pytest
from msgspec.structs import replace

from phalanx.api.job_sets import JOB_INDEX
from phalanx.api.meta import OwnerReference, Ref
from phalanx.scheduler.policy import DEFAULT_PROFILES
from phalanx.sim.recording.history import RecordedJob
from phalanx.sim.recording.replay_check import compare_replay, name_jobs
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
        "follows from the difference of podgroup/second"
    }


def test_short_delay_is_explained_by_back_off(lines: list[str]) -> None:
    found = check_replay(postpone(lines, "third", 4.0))
    assert [one.ref.name for one in found.differences] == ["third"]
    assert found.differences[0].cause.startswith("back-off or latency")
    assert check_replay(postpone(lines, "third", 4.0), tolerance=10.0).differences == ()


def move(lines: list[str], name: str) -> list[str]:
    """Return a recording in which a pod is on the other one of two nodes."""
    other = {"node-0": "node-1", "node-1": "node-0"}
    return [
        re.sub(r"node-[01]", lambda node: other[node[0]], line) if f'"{name}"' in line else line
        for line in lines
    ]


def test_other_nodes_of_equal_score_are_no_difference(lines: list[str]) -> None:
    found = check_replay(move(lines, "third-0"))
    assert (found.differences, found.equal_jobs) == ((), 2)
    (moved,) = found.other_nodes
    assert (moved.name, moved.cause) == ("podgroup/third", "nodes of equal score")
    assert moved.sentence.startswith("runs on node-")
    assert found.to_data()["otherNodes"][0]["workload"] == "podgroup/third"
    exact = check_replay(move(lines, "third-0"), exact_nodes=True)
    assert [one.ref.name for one in exact.differences] == ["third"]
    assert exact.differences[0].cause.startswith("nodes of equal score")
    assert exact.other_nodes == ()


def test_other_nodes_are_a_difference_if_they_are_not_equal(lines: list[str]) -> None:
    hostname = '"kubernetes.io/hostname":"node-1"'
    labelled = [line.replace(hostname, f'{hostname},"disk":"ssd"') for line in lines]
    assert labelled != lines
    found = check_replay(move(labelled, "third-0"))
    assert [one.ref.name for one in found.differences] == ["third"]
    assert found.other_nodes == ()
    # Three pods on one node and one on the other are not two on each.
    assert check_replay(move(lines, "first-0")).differences[0].name == "podgroup/first"


def delete(lines: list[str], name: str, seconds: float) -> list[str]:
    """Return a recording in which a pod was deleted instead of started, some seconds later."""
    parsed = [json.loads(line) for line in lines]
    own = [one for one in parsed if one["is"] == "pod" and one["key"][1] == name]
    bound = next(one for one in own if one["pod"]["spec"].get("nodeName"))
    gone = {**bound, "at": bound["at"] + seconds, "pod": None}
    kept = [one for one in parsed if one not in own or one["at"] < bound["at"]]
    return [json.dumps(one) for one in sorted([*kept, gone], key=lambda one: one["at"])]


def test_job_that_was_deleted_shortly_after_it_could_start_is_no_difference(
    lines: list[str],
) -> None:
    assert check_replay(delete(lines, "third-0", 0.03)).differences == ()
    (late,) = check_replay(delete(lines, "third-0", 3.0)).differences
    assert re.fullmatch(
        r"never started in the cluster, where it was deleted at .*; starts at .* in the replay",
        late.sentence,
    )


def test_recording_that_was_cut_short_has_no_differences_at_its_end(lines: list[str]) -> None:
    bindings = [
        number
        for number, line in enumerate(lines)
        if '"second-' in line and '"nodeName"' in line
    ]  # fmt: skip
    # Before the second gang was bound, between its pods, and after it.
    for end in (bindings[0], bindings[0] + 2, bindings[3] + 1):
        found = check_replay(lines[:end])
        assert (found.differences, found.other_nodes) == ((), ())
    much_later = json.loads(lines[bindings[0]])["at"] + 50
    ended = [*lines[: bindings[0]], json.dumps({"is": "ended", "at": much_later})]
    first = check_replay(ended).differences[0]
    assert "never started in the cluster until the recording ended at" in first.sentence


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
    assert first.cause.startswith("podgroup/second and 1 more jobs waited when the recording began")


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
    assert re.search(r"the replay attempts podgroup/\w+ 3.0 ms before a pod ends", cause)
    assert "does not show which of both the scheduler observed first" in cause
    assert all("ms before" not in one.cause for one in found.differences[1:])


def test_pods_of_a_recording_that_was_cut_short_run_to_its_end(lines: list[str]) -> None:
    # The pods of the first gang end one after the other, and the second gang waits for all of them.
    ends = [number for number, line in enumerate(lines) if '"Succeeded"' in line]
    for number, end in enumerate(ends[1:4], 1):
        parsed = json.loads(lines[end])
        later = json.dumps({**parsed, "at": parsed["at"] + 0.001 * number})
        assert replay_lines([*lines[:end], later]).jobs[0].bound == 3 - number


def test_recording_may_end_while_a_deleted_pod_terminates(lines: list[str]) -> None:
    ends = [number for number, line in enumerate(lines) if '"Succeeded"' in line]
    terminating = json.loads(lines[ends[1]])
    terminating["pod"]["status"]["phase"] = "Running"
    terminating["pod"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:40Z"
    ended = {"is": "ended", "at": terminating["at"] + 0.001}
    found = check_replay([*lines[: ends[1]], json.dumps(terminating), json.dumps(ended)])
    assert found.differences == ()


def test_jobs_have_the_names_of_the_queue() -> None:
    owned = """
        nodes: {each: {cpu: 8}}
        at 0: {gang: a, pods: 1, each: {cpu: 1}, run: 5s}
        at 1: {pod: b, each: {cpu: 1}, run: 5s}
        until: 20
    """
    jobs = read_workload(RecordedScenario(owned).lines).history.jobs
    assert set(name_jobs(jobs).values()) == {"podgroup/a", "pod/b"}
    controller = OwnerReference("batch/v1", "Job", "train", "uid-of-train", controller=True)
    for job, index in zip(jobs, "01", strict=True):
        for run in job.runs:
            meta = replace(run.pod.metadata, owner_references=(controller,))
            run.pod = replace(run.pod, metadata=replace(meta, labels={JOB_INDEX: index}))
        for life in job.groups:
            meta = replace(life.first.metadata, owner_references=(controller,))
            life.versions[0] = (life.created, replace(life.first, metadata=meta))
    group, pod = jobs
    assert name_jobs([group]) == {group.ref: "job/train"}
    assert name_jobs(jobs) == {group.ref: "job/train[0]", pod.ref: "job/train[b]"}
    elsewhere = RecordedJob(Ref("Pod", "research", "c"), [], pod.pods)
    assert name_jobs([group, elsewhere])[group.ref] == "job/train in default"
