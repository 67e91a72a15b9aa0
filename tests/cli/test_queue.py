from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import yaml

from phalanx.api.batch import Job
from phalanx.api.kinds import LEADER_WORKER_SET
from phalanx.api.meta import parse_timestamp
from phalanx.cli.cluster_queries import parse_subject_argument
from phalanx.cli.queue import (
    QueueFilter,
    WorkloadListing,
    format_start_range,
    render_queue,
    start_data,
)
from phalanx.cli.workload_states import FAILED, GroupOwners, assess_workloads
from phalanx.scheduler.diagnosis.expected_starts import ExpectedStart
from phalanx.scheduler.diagnosis.queue_order import NOT_TRIED_YET
from tests.builders import gang, node, pod, pod_group
from tests.cli.cli_user import CliUser
from tests.cli.commands import phalanx
from tests.cli.test_top_overview import cluster
from tools.control_plane import ControlPlane

#: Without reservations: on a slow machine a gang waits long enough to get one.
WITHOUT_RESERVATIONS = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: default-scheduler
  pluginConfig: [{name: Reservation, args: {mode: "Off"}}]
"""


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CliUser]:
    """A user of two nodes of 8 CPU, whose gang `small` runs while others wait."""
    config = tmp_path_factory.mktemp("config") / "scheduler.yaml"
    config.write_text(WITHOUT_RESERVATIONS)
    options = ("--nodes", "2", "--shape", "cpu=8", "--config", str(config))
    with ControlPlane("--data", ":memory:", *options) as plane:
        found = CliUser(plane.kubeconfig)
        found.create(
            # The class must not preempt `small`.
            {"kind": "PriorityClass", "metadata": {"name": "high"}, "value": 100,
             "preemptionPolicy": "Never"},
            *gang("small", 2, cpu="2"),
            *gang("big", 5, cpu="7"),
            *_urgent(),
            pod_group("short", 3),
            pod("short-0", "short", cpu="1"),
            pod("single", cpu="9"),
        )  # fmt: skip
        found.eventually(lambda: _is_settled(found))
        yield found


def _urgent() -> list[Any]:
    group, *pods = gang("urgent", 2, cpu="8")
    for made in (group, *pods):
        made["spec"]["priorityClassName"] = "high"
    group["spec"]["preemptionPolicy"] = "Never"
    return [group, *pods]


def _is_settled(user: CliUser) -> bool:
    lines = user.gangs()
    return len(lines) == 5 and NOT_TRIED_YET not in [line.reason for line in lines]


def test_running_gangs_come_first_then_waiting_gangs_in_order(user: CliUser) -> None:
    rows = user.run_json("queue")["items"]
    assert [(row["name"], row["state"], row["position"]) for row in rows] == [
        ("small", "running", None),
        ("urgent", "waiting", 1),
        ("big", "never", 2),
        ("single", "never", 3),
        ("short", "held", None),
    ]
    assert [row["kind"] for row in rows] == [*["PodGroup"] * 3, "Pod", "PodGroup"]
    assert [row["priority"] for row in rows] == [0, 100, 0, 0, 0]


def test_every_waiting_gang_has_a_reason(user: CliUser) -> None:
    why = {row["name"]: (row["reason"], row["message"]) for row in user.run_json("queue")["items"]}
    assert why["small"] == ("", "")
    assert why["big"][0] == "Unschedulable"
    assert why["big"][1].startswith("minCount (5) cannot be satisfied: 0 scheduled")
    assert why["short"] == ("NotReady", "waiting for 3 members, 1 is there")
    assert "Insufficient cpu" in why["single"][1]


def test_queue_prints_a_table(user: CliUser) -> None:
    done = user.run("queue")
    head, *rows = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert head.split() == ["GANG", "STATE", "POS", "PRIORITY", "SINCE", "PODS", "REASON"]
    cells = [row.split() for row in rows]
    assert [row[0] for row in cells] == [
        "podgroup/small", "podgroup/urgent", "podgroup/big", "pod/single", "podgroup/short",
    ]  # fmt: skip
    assert [row[1] for row in cells] == ["Running", "Waiting", "Never", "Never", "Held"]
    assert [row[5] for row in cells] == ["2/2", "0/2", "0/5", "0/1", "0/1"]
    assert max(map(len, (head, *rows))) <= 80


def test_gangs_that_can_never_fit_are_never(user: CliUser) -> None:
    rows = user.run_json("queue", "--state", "never")["items"]
    assert [(row["name"], row["state"]) for row in rows] == [("big", "never"), ("single", "never")]


def test_queue_lists_the_gangs_of_one_owner(user: CliUser) -> None:
    rows = user.run_json("queue", "--owner", "podgroup/urgent")["items"]
    assert [row["name"] for row in rows] == ["urgent"]


@pytest.mark.parametrize("owner", ["urgent", "gang/urgent", "podgroups/urgent", "pg/urgent"])
def test_owner_has_the_spellings_of_why(user: CliUser, owner: str) -> None:
    rows = user.run_json("queue", "--owner", owner)["items"]
    assert [row["name"] for row in rows] == ["urgent"]


def test_owner_of_an_unknown_kind_is_wrong_usage(user: CliUser) -> None:
    done = user.run("queue", "--owner", "foo/train")
    assert (done.returncode, "'foo/train' is none of podgroup/NAME" in done.stderr) == (2, True)


def test_states_are_accepted_as_the_table_prints_them(user: CliUser) -> None:
    rows = user.run_json("queue", "--state", "Never")["items"]
    assert [row["name"] for row in rows] == ["big", "single"]


@pytest.mark.parametrize(
    ("owner", "is_listed"),
    [
        ("train-3", True),
        ("gang/train-3", True),
        ("job/train-3", True),
        ("jobs/train-3", True),
        ("job.batch/train-3", True),
        ("Job/train-3", True),
        ("wl/train-3-w", True),
        ("job/train", False),
        ("jobset/train-3", False),
        ("deployment/train-3", False),
    ],
)
def test_gang_of_a_job_is_listed_by_every_spelling_of_its_owner(
    owner: str, *, is_listed: bool
) -> None:
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": "train-3", "uid": "u"}
    group, *members = gang("train-3-pg", 1, cpu="1")
    group["metadata"]["ownerReferences"] = [reference | {"controller": True}]
    (entry,) = assess_workloads(cluster(node("n0", cpu="1"), group, *members), 0.0)
    chosen = QueueFilter("", owner, ())
    assert chosen.accepts(entry, "train-3-w") is is_listed


def test_long_names_are_shortened_to_the_width_of_a_terminal() -> None:
    name = "a" * 63
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": "u"}
    group, *members = gang("long-pg", 1, cpu="9")
    group["metadata"]["ownerReferences"] = [reference | {"controller": True}]
    listed = assess_workloads(cluster(node("n0", cpu="1"), group, *members), 0.0)
    listing = WorkloadListing(listed, "", 0.0)
    head, line = [one.text for one in render_queue(listing, width=80)]
    assert max(len(head), len(line)) <= 80
    assert line.startswith("job/aaaa")
    assert line.split()[0].endswith("…")
    assert line.split()[1:4] == ["Never", "1", "0"]
    _, whole = [one.text for one in render_queue(listing)]
    assert whole.startswith(f"job/{name}  ")


def test_preemptor_that_is_gone_is_named_by_its_owner_too() -> None:
    owners = GroupOwners(())
    text = "preempted by PodGroup nlp/boss-7c7f8bf88b-boss-pgt-0-6df7576688 at 2027"
    assert owners.name_in(text, "vision") == "preempted by gang/boss in nlp at 2027"
    assert owners.name_in("by PodGroup nlp/boss-pgt-0 at", "nlp") == "by PodGroup nlp/boss-pgt-0 at"


def test_watching_does_not_print_data(user: CliUser) -> None:
    done = user.run("queue", "--watch", "-o", "json")
    assert (done.returncode, "-o json and -o yaml list once" in done.stderr) == (2, True)


def test_wide_table_has_more_columns(user: CliUser) -> None:
    head, first, *_ = user.run("queue", "-o", "wide").stdout.splitlines()
    assert head.split()[-7:] == [
        "EXPECTED", "NEEDED", "NODES", "SCHEDULER", "KIND", "NAME", "MESSAGE",
    ]  # fmt: skip
    assert first.split()[-5:] == ["2", "default-scheduler", "PodGroup", "small", "-"]


def test_queue_lists_one_namespace_or_all(user: CliUser) -> None:
    other = CliUser(user.config)
    empty = other.run("queue")
    assert (empty.returncode, empty.stdout) == (0, "")
    assert empty.stderr == f"No gang runs or waits in namespace {other.namespace}.\n"
    unknown = other.run("queue", "--user", "ada")
    assert unknown.stderr == "No gang matches the options; phalanx queue -A --ended lists all.\n"
    head, first, *_ = other.run("queue", "-A").stdout.splitlines()
    assert (head.split()[0], first.split()[0]) == ("NAMESPACE", user.namespace)


def test_yaml_and_json_list_the_same_gangs(user: CliUser) -> None:
    as_json = json.loads(user.run("queue", "-o", "json").stdout)
    as_yaml = yaml.safe_load(user.run("queue", "-o", "yaml").stdout)
    assert [row["name"] for row in as_json["items"]] == [row["name"] for row in as_yaml["items"]]


def test_queue_rejects_wrong_usage_and_a_missing_server() -> None:
    assert phalanx("queue", "-o", "xml").returncode == 2
    nowhere = phalanx("queue", "--kubeconfig", "/nonexistent")
    assert (nowhere.returncode, len(nowhere.stderr.splitlines())) == (1, 1)


@pytest.mark.parametrize(
    ("start", "text"),
    [
        (ExpectedStart(700.0, earliest=400.0, latest=1300.0), "in 10m (5m-20m)"),
        (ExpectedStart(700.0, earliest=400.0), "in 10m (5m-?)"),
        (ExpectedStart(700.0, earliest=700.0, latest=700.0), "in 10m"),
        (ExpectedStart(None, earliest=400.0), "unknown (5m-?)"),
        (ExpectedStart(None, earliest=100.0), "unknown"),
        (ExpectedStart(700.0), "in 10m"),
    ],
)
def test_expected_start_is_shown_with_its_range(start: ExpectedStart, text: str) -> None:
    assert format_start_range(start, now=100.0) == text
    data = start_data(start)
    assert (data["latestStart"] is None) == (start.latest is None)


def test_names_of_parts_select_their_owner() -> None:
    assert parse_subject_argument("lws/llm[0]") == (LEADER_WORKER_SET, "llm")


def test_preemptor_is_named_by_its_owner() -> None:
    (urgent, *members), (victim, *lost) = gang("urgent-pg", 1, cpu="1"), gang("low", 1, cpu="1")
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "urgent", "uid": "u"}
    urgent["metadata"] |= {
        "namespace": "team", "ownerReferences": [owner | {"controller": True}],
    }  # fmt: skip
    members[0]["metadata"]["namespace"] = "team"
    members[0]["spec"]["nodeName"] = "n0"
    members[0]["status"] = {"phase": "Running"}
    victim["status"] = {"conditions": [{
        "type": "Preempted", "status": "True", "reason": "PreemptionByScheduler",
        "message": "Preempted by PodGroup team/urgent-pg",
        "lastTransitionTime": "2027-01-15T08:00:00Z",
    }]}  # fmt: skip
    listed = assess_workloads(cluster(node("n0", cpu="1"), urgent, *members, victim, *lost), 0.0)
    (row,) = [entry.row for entry in listed if entry.row.ref.name == "low"]
    assert row.preempted == "preempted by job/urgent in team at 2027-01-15T08:00:00Z"
    lines = [line.text for line in render_queue(WorkloadListing(listed, "", 0.0))]
    assert lines[-1].endswith("by job/urgent in team")


def test_history_has_a_job_whose_pods_are_gone() -> None:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "late", "uid": "u"}
    group, *_ = gang("late-pg", 2, cpu="1")
    group["metadata"] |= {
        "creationTimestamp": "2027-01-15T08:00:00Z",
        "annotations": {"phalanx.dev/finished": "Failed: DeadlineExceeded"},
        "ownerReferences": [owner | {"controller": True}],
    }  # fmt: skip
    group["status"] = {"conditions": [{
        "type": "PodGroupInitiallyScheduled", "status": "True", "reason": "Scheduled",
        "lastTransitionTime": "2027-01-15T08:00:10Z",
    }]}  # fmt: skip
    late = {
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": "late", "namespace": "default"},
        "spec": {"parallelism": 2, "completions": 2},
        "status": {"failed": 2, "conditions": [{
            "type": "Failed", "status": "True", "reason": "DeadlineExceeded",
            "lastTransitionTime": "2027-01-15T08:00:40Z",
        }]},
    }  # fmt: skip
    objects = replace(cluster(group), jobs=[msgspec.convert(late, Job)])
    now = parse_timestamp("2027-01-15T08:01:00Z")
    assert assess_workloads(objects, now) == []
    listed = assess_workloads(objects, now, with_ended=True)
    assert [one.state for one in listed] == [FAILED]
    lines = [line.text for line in render_queue(WorkloadListing(listed, "", now))]
    cells = "job/late  Failed  20s ago  10s  30s  -  0/2  DeadlineExceeded"
    assert lines[-1].split() == cells.split()


def test_messages_name_groups_by_their_owners() -> None:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "huge", "uid": "u"}
    group, *_ = gang("huge-1-pg", 1, cpu="1")
    group["metadata"]["ownerReferences"] = [owner | {"controller": True}]
    owners = GroupOwners(cluster(group).groups)
    text = "held by a reservation for podgroup/huge-1-pg (expected start unknown)"
    named = "held by a reservation for job/huge (expected start unknown)"
    assert owners.name_in(text, "default") == named
    assert owners.name_in("by PodGroup default/huge-1-pg at", "x") == "by job/huge in default at"
    assert owners.name_in("by podgroup/huge-1-pg2", "default") == "by podgroup/huge-1-pg2"
