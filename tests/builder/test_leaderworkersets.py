"""LeaderWorkerSets as workloads: a gang for each replica."""

from __future__ import annotations

import pytest

from phalanx.api.errors import Invalid
from phalanx.api.wire import Object
from phalanx.builder import Link, ManageBoth, ManageNothing, leaderworkersets
from tests.api.cause_summaries import summarize
from tests.builder.item_trees import build_workload, composite, errors_from_server, leaf
from tests.builder.workload_owners import lws


def template(of: Object) -> Object:
    (found,) = leaderworkersets.build_workload(of)["spec"]["podGroupTemplates"]
    assert isinstance(found, dict)
    return found


GANG: Object = {"schedulingPolicy": {"gang": {}}}


@pytest.mark.parametrize(
    ("manifest", "policy"),
    [
        (lws(), {"gang": {"minCount": 4}}),
        (lws(1), {"gang": {"minCount": 1}}),
        (lws(scheduling={"schedulingPolicy": {"basic": {}}}), {"basic": {}}),
        (lws(scheduling={"policy": {"gang": {"minCount": 2}}}), {"gang": {"minCount": 2}}),
        (lws(startupPolicy="LeaderCreated"), {"gang": {"minCount": 4}}),
        (lws(startupPolicy="LeaderReady"), {"basic": {}}),
        (lws(1, startupPolicy="LeaderReady", scheduling=GANG), {"gang": {"minCount": 1}}),
    ],
)
def test_replica_is_a_gang_by_default(manifest: Object, policy: Object) -> None:
    assert template(manifest) == {"name": "replica", "schedulingPolicy": policy}


def test_every_replica_has_its_own_group() -> None:
    manifest = lws()
    workload = leaderworkersets.build_workload(manifest)
    workload["metadata"]["uid"] = "uid-w"
    groups = [leaderworkersets.build_pod_group(manifest, workload, replica) for replica in range(3)]
    assert len({group["metadata"]["name"] for group in groups}) == 3
    for group in groups:
        assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 4}}
        owners = [owner["kind"] for owner in group["metadata"]["ownerReferences"]]
        assert owners == ["LeaderWorkerSet", "Workload"]
        assert errors_from_server(group) == []
    assert errors_from_server(workload) == []


@pytest.mark.parametrize("link", [Link("servers", "fleet-1"), Link("", "fleet-1")])
def test_linked_set_has_groups_of_its_parents_workload(link: Link) -> None:
    workload = build_workload(composite("fleet", leaf("servers")))
    groups = [
        leaderworkersets.build_pod_group(lws(), workload, replica, link=link)
        for replica in range(2)
    ]
    assert len({group["metadata"]["name"] for group in groups}) == 2
    for group in groups:
        assert group["spec"]["parentCompositePodGroupName"] == "fleet-1"
        assert [one["kind"] for one in group["metadata"]["ownerReferences"]] == ["LeaderWorkerSet"]
        assert errors_from_server(group) == []


def test_leader_and_workers_must_have_one_priority() -> None:
    high = {"priorityClassName": "high"}
    assert template(lws(worker=high))["priorityClassName"] == "high"
    assert template(lws(leader=high, worker=high))["priorityClassName"] == "high"
    other = lws(leader=high, worker={"priorityClassName": "low"})
    path = "spec.leaderWorkerTemplate.leaderTemplate.spec.priorityClassName"
    assert summarize(leaderworkersets.validate(other)) == [f"{path}: Invalid"]
    assert leaderworkersets.validate(other, other) == []
    with pytest.raises(Invalid, match="must equal that of the workers"):
        leaderworkersets.build_workload(other)


def test_errors_are_reported_at_the_fields_of_the_set() -> None:
    manifest = lws(scheduling={"policy": {"gang": {"minCount": 0}}})
    assert summarize(leaderworkersets.validate(manifest)) == [
        "spec.scheduling.policy.gang.minCount: Invalid"
    ]


@pytest.mark.parametrize("part", ["leader", "worker"])
def test_pods_with_a_scheduling_group_are_not_managed(part: str) -> None:
    grouped = {"schedulingGroup": {"podGroupName": "mine"}}
    manifest = lws(leader=grouped) if part == "leader" else lws(worker=grouped)
    assert leaderworkersets.decide_leader_worker_set_management(manifest) == ManageNothing(
        "its pods already name the PodGroup mine"
    )
    assert leaderworkersets.decide_leader_worker_set_management(lws()) == ManageBoth()
