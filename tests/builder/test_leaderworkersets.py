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
    (found,) = leaderworkersets.workload(of)["spec"]["podGroupTemplates"]
    assert isinstance(found, dict)
    return found


GANG: Object = {"schedulingPolicy": {"gang": {}}}


@pytest.mark.parametrize(
    ("made", "policy"),
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
def test_a_replica_is_a_gang_unless_told_otherwise(made: Object, policy: Object) -> None:
    assert template(made) == {"name": "replica", "schedulingPolicy": policy}


def test_every_replica_has_a_group_of_its_own() -> None:
    made = lws()
    workload = leaderworkersets.workload(made)
    workload["metadata"]["uid"] = "uid-w"
    groups = [leaderworkersets.pod_group(made, workload, replica) for replica in range(3)]
    assert len({group["metadata"]["name"] for group in groups}) == 3
    for group in groups:
        assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 4}}
        owners = [owner["kind"] for owner in group["metadata"]["ownerReferences"]]
        assert owners == ["LeaderWorkerSet", "Workload"]
        assert errors_from_server(group) == []
    assert errors_from_server(workload) == []


@pytest.mark.parametrize("link", [Link("servers", "fleet-1"), Link("", "fleet-1")])
def test_a_linked_set_has_groups_of_its_parents_workload(link: Link) -> None:
    workload = build_workload(composite("fleet", leaf("servers")))
    groups = [leaderworkersets.pod_group(lws(), workload, replica, link) for replica in range(2)]
    assert len({group["metadata"]["name"] for group in groups}) == 2
    for group in groups:
        assert group["spec"]["parentCompositePodGroupName"] == "fleet-1"
        assert [one["kind"] for one in group["metadata"]["ownerReferences"]] == ["LeaderWorkerSet"]
        assert errors_from_server(group) == []


def test_leader_and_workers_share_one_priority() -> None:
    high = {"priorityClassName": "high"}
    assert template(lws(worker=high))["priorityClassName"] == "high"
    assert template(lws(leader=high, worker=high))["priorityClassName"] == "high"
    other = lws(leader=high, worker={"priorityClassName": "low"})
    place = "spec.leaderWorkerTemplate.leaderTemplate.spec.priorityClassName"
    assert summarize(leaderworkersets.validate(other)) == [f"{place}: Invalid"]
    assert leaderworkersets.validate(other, other) == []
    with pytest.raises(Invalid, match="must be that of the workers"):
        leaderworkersets.workload(other)


def test_a_user_is_told_at_the_fields_of_the_set() -> None:
    made = lws(scheduling={"policy": {"gang": {"minCount": 0}}})
    assert summarize(leaderworkersets.validate(made)) == [
        "spec.scheduling.policy.gang.minCount: Invalid"
    ]


@pytest.mark.parametrize("part", ["leader", "worker"])
def test_pods_that_have_a_group_are_left_to_their_user(part: str) -> None:
    grouped = {"schedulingGroup": {"podGroupName": "mine"}}
    made = lws(leader=grouped) if part == "leader" else lws(worker=grouped)
    assert leaderworkersets.management(made) == ManageNothing(
        "its pods are in the group mine already"
    )
    assert leaderworkersets.management(lws()) == ManageBoth()
