"""Rules of LeaderWorkerSets: numbers, rollouts, subgroups, templates, scheduling, changes."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.kinds import LEADER_WORKER_SET
from phalanx.api.validation import leader_worker_set as leaderworkersetrules
from phalanx.api.wire import Object
from tests.api.cause_summaries import CauseSummaries, prefix_summaries
from tests.api.stored_objects import change_stored, creation_causes, find_causes, make_stored

CONTAINER: Object = {"name": "main", "image": "app:1"}
BASIC: Object = {"basic": {}}
RACK: Object = {"topology": [{"key": "example.com/rack"}]}


def pods(**fields: Any) -> Object:
    return {"spec": {"containers": [CONTAINER], **fields}}


def group(**fields: Any) -> Object:
    return {"leaderWorkerTemplate": {"size": 4, "workerTemplate": pods(), **fields}}


def rolling_update(**fields: Any) -> Object:
    return {"rolloutStrategy": {"rollingUpdateConfiguration": fields}}


def create_causes(name: str = "x", **fields: Any) -> CauseSummaries:
    return creation_causes(
        LEADER_WORKER_SET, {"metadata": {"name": name}, "spec": {**group(), **fields}}
    )


@pytest.mark.parametrize(
    ("fields", "causes"),
    [
        ({}, []),
        ({"replicas": 0}, []),
        ({"replicas": -1}, ["replicas: Invalid"]),
        ({"replicas": leaderworkersetrules.MAX_REPLICAS + 1}, ["replicas: Invalid"]),
        ({"replicas": 2**19, **group(size=2**12)}, ["replicas: Invalid"]),
        (group(size=0), ["leaderWorkerTemplate.size: Invalid"]),
        ({"startupPolicy": "LeaderReady"}, []),
        ({"startupPolicy": "Whenever"}, ["startupPolicy: NotSupported"]),
        (group(restartPolicy="RecreateGroupAfterStart"), []),
        (group(restartPolicy="Never"), ["leaderWorkerTemplate.restartPolicy: NotSupported"]),
        ({"networkConfig": {"subdomainPolicy": "UniquePerReplica"}}, []),
        (
            {"networkConfig": {"subdomainPolicy": "None"}},
            ["networkConfig.subdomainPolicy: NotSupported"],
        ),
    ],
)
def test_a_set_is_so_many_groups_of_so_many_pods(fields: Object, causes: CauseSummaries) -> None:
    assert create_causes(**fields) == prefix_summaries("spec", causes)


@pytest.mark.parametrize("name", ["1st", "a.b", "x" * 64])
def test_a_set_is_called_as_a_service_can_be(name: str) -> None:
    assert create_causes(name) == ["metadata.name: Invalid"]


@pytest.mark.parametrize(
    ("replicas", "fields", "causes"),
    [
        (2, {"maxUnavailable": "50%", "maxSurge": "10%"}, []),
        (4, {"maxUnavailable": 0, "maxSurge": 1}, []),
        (4, {"maxUnavailable": 0, "maxSurge": "1%"}, []),
        (4, {"maxUnavailable": 0}, ["maxUnavailable: Invalid"]),
        (5, {"maxUnavailable": "10%"}, ["maxUnavailable: Invalid"]),
        (0, {"maxUnavailable": 0}, []),
        (4, {"maxUnavailable": -1}, ["maxUnavailable: Invalid"]),
        (4, {"maxUnavailable": "101%"}, ["maxUnavailable: Invalid"]),
        (4, {"maxUnavailable": "0" * 5000 + "%"}, ["maxUnavailable: Invalid"]),
        (4, {"maxSurge": "many"}, ["maxSurge: Invalid"]),
        (4, {"partition": -1}, ["partition: Invalid"]),
    ],
)
def test_a_rollout_gets_on(replicas: int, fields: Object, causes: CauseSummaries) -> None:
    place = "spec.rolloutStrategy.rollingUpdateConfiguration"
    assert create_causes(replicas=replicas, **rolling_update(**fields)) == prefix_summaries(
        place, causes
    )


def test_there_is_one_way_to_roll_out() -> None:
    assert create_causes(rolloutStrategy={"type": "AllAtOnce"}) == [
        "spec.rolloutStrategy.type: NotSupported"
    ]


# ---- subgroups -----------------------------------------------------------------------------------

SUBGROUPS = "spec.leaderWorkerTemplate.subGroupPolicy"


@pytest.mark.parametrize(
    ("size", "policy", "causes"),
    [
        (4, {"subGroupSize": 2}, []),
        (5, {"subGroupSize": 2}, []),
        (5, {"subGroupSize": 2, "subGroupPolicyType": "LeaderExcluded"}, []),
        (4, {"subGroupSize": 2, "subGroupPolicyType": "LeaderExcluded"}, ["subGroupSize: Invalid"]),
        (6, {"subGroupSize": 4}, ["subGroupSize: Invalid"]),
        (2, {"subGroupSize": 4}, ["subGroupSize: Invalid", "subGroupSize: Invalid"]),
        (4, {"subGroupSize": 0}, ["subGroupSize: Invalid"]),
        (4, {}, ["subGroupSize: Required"]),
        (4, {"subGroupSize": 2, "subGroupPolicyType": "All"}, ["subGroupPolicyType: NotSupported"]),
    ],
)
def test_groups_are_divided_into_equal_parts(
    size: int, policy: Object, causes: CauseSummaries
) -> None:
    assert create_causes(**group(size=size, subGroupPolicy=policy)) == prefix_summaries(
        SUBGROUPS, causes
    )


def test_a_place_for_each_part_needs_parts() -> None:
    key = leaderworkersetrules.SUBGROUP_TOPOLOGY
    body = {"metadata": {"annotations": {key: "zone"}}, "spec": group()}
    assert creation_causes(LEADER_WORKER_SET, body) == [f"metadata.annotations.{key}: Invalid"]
    body["spec"] = group(subGroupPolicy={"subGroupSize": 2})
    assert creation_causes(LEADER_WORKER_SET, body) == []


# ---- templates -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "causes"),
    [
        ({"leaderTemplate": pods()}, []),
        ({"workerTemplate": {}}, ["workerTemplate.spec.containers: Required"]),
        ({"leaderTemplate": {"spec": {}}}, ["leaderTemplate.spec.containers: Required"]),
        (
            {"workerTemplate": pods(restartPolicy="OnFailure")},
            ["workerTemplate.spec.restartPolicy: NotSupported"],
        ),
        (
            {"workerTemplate": {**pods(), "metadata": {"labels": {"no key": "v"}}}},
            ["workerTemplate.labels: Invalid"],
        ),
    ],
)
def test_pods_of_a_group_keep_the_rules_of_pods(fields: Object, causes: CauseSummaries) -> None:
    assert create_causes(**group(**fields)) == prefix_summaries("spec.leaderWorkerTemplate", causes)


def test_pods_mount_the_claims_that_are_made_for_each_of_them() -> None:
    mounts = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    template = pods(containers=[{**CONTAINER, **mounts}])
    wanted = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    claim = {"metadata": {"name": "data"}, "spec": wanted}
    fields = {"workerTemplate": template, "volumeClaimTemplates": [claim]}
    keep = {"persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain"}}
    assert create_causes(**group(**fields, **keep)) == []
    place = "spec.leaderWorkerTemplate"
    assert create_causes(**group(workerTemplate=template)) == [
        f"{place}.workerTemplate.spec.containers[0].volumeMounts[0].name: NotFound"
    ]
    twice = {**fields, "volumeClaimTemplates": [claim, claim]}
    assert create_causes(**group(**twice)) == [
        f"{place}.volumeClaimTemplates[1].metadata.name: Duplicate"
    ]
    lost = {"persistentVolumeClaimRetentionPolicy": {"whenScaled": "Lose"}}
    assert create_causes(**group(**fields, **lost)) == [
        f"{place}.persistentVolumeClaimRetentionPolicy.whenScaled: NotSupported"
    ]


# ---- scheduling ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheduling", "causes"),
    [
        ({}, []),
        ({"schedulingPolicy": {"gang": {}}, "disruptionMode": {"all": {}}}, []),
        ({"schedulingPolicy": {"gang": {"minCount": 4}}, "schedulingConstraints": RACK}, []),
        ({"schedulingPolicy": BASIC, "disruptionMode": {"single": {}}}, []),
        ({"disruptionMode": {"all": {}}}, []),
        ({"schedulingPolicy": {}}, ["schedulingPolicy: Invalid"]),
        (
            {"schedulingPolicy": {"gang": {"minCount": 3}}},
            ["schedulingPolicy.gang.minCount: Invalid"],
        ),
        ({"schedulingPolicy": BASIC, "disruptionMode": {"all": {}}}, ["disruptionMode: Invalid"]),
        ({"resourceClaims": [{"name": "c"}]}, ["resourceClaims[0]: Invalid"]),
    ],
)
def test_group_of_a_leader_worker_set_is_a_gang_by_default(
    scheduling: Object, causes: CauseSummaries
) -> None:
    assert create_causes(scheduling=scheduling) == prefix_summaries("spec.scheduling", causes)


def test_a_leader_that_comes_first_is_in_no_gang() -> None:
    late: Object = {"startupPolicy": "LeaderReady"}
    gang = "spec.scheduling.schedulingPolicy.gang"
    assert create_causes(**late, scheduling={}) == [f"{gang}: Forbidden"]
    assert create_causes(**late, scheduling={"schedulingPolicy": BASIC}) == []
    assert create_causes(**late) == []


def test_the_pods_of_a_group_have_one_priority() -> None:
    leader = {"leaderTemplate": pods(priorityClassName="high")}
    place = "spec.leaderWorkerTemplate.leaderTemplate.spec.priorityClassName"
    assert create_causes(**group(**leader), scheduling={}) == [f"{place}: Invalid"]
    assert create_causes(**group(**leader)) == []
    worker = {"workerTemplate": pods(priorityClassName="high")}
    assert create_causes(**group(**leader, **worker), scheduling={}) == []
    assert create_causes(**group(**worker), scheduling={}) == []


def test_pods_with_generated_groups_may_not_name_a_group() -> None:
    worker = {"workerTemplate": pods(schedulingGroup={"podGroupName": "g"})}
    place = "spec.leaderWorkerTemplate.workerTemplate.spec.schedulingGroup"
    assert create_causes(**group(**worker), scheduling={}) == [f"{place}: Forbidden"]
    assert create_causes(**group(**worker)) == []


# ---- changes -------------------------------------------------------------------------------------


def update_causes(old: Object, **fields: Any) -> CauseSummaries:
    new = change_stored(LEADER_WORKER_SET, old, spec={**old["spec"], **fields})
    return find_causes(LEADER_WORKER_SET, new, old)


def make_set(**fields: Any) -> Object:
    return make_stored(LEADER_WORKER_SET, {"spec": {**group(), **fields}})


def test_groups_come_and_go_and_become_others() -> None:
    old = make_set()
    assert update_causes(old, replicas=7) == []
    assert update_causes(old, **group(size=5)) == []
    assert update_causes(old, **group(leaderTemplate=pods(nodeSelector={"zone": "a"}))) == []
    assert update_causes(old, **rolling_update(maxSurge=1)) == []
    assert update_causes(old, replicas=-1) == ["spec.replicas: Invalid"]


@pytest.mark.parametrize(
    ("before", "after", "count"),
    [
        ({"subGroupSize": 2}, {"subGroupSize": 2, "subGroupPolicyType": "LeaderWorker"}, 0),
        ({"subGroupSize": 2}, {"subGroupSize": 4}, 1),
        ({"subGroupSize": 2}, None, 1),
        (None, {"subGroupSize": 2}, 1),
        (None, None, 0),
    ],
)
def test_subgroup_policy_is_immutable(
    before: Object | None, after: Object | None, count: int
) -> None:
    old, new = (group(**({"subGroupPolicy": one} if one else {})) for one in (before, after))
    assert update_causes(make_set(**old), **new) == [f"{SUBGROUPS}.subGroupSize: Invalid"] * count


def test_scheduling_is_immutable_except_for_min_count() -> None:
    gang: Object = {"schedulingPolicy": {"gang": {"minCount": 4}}}
    larger: Object = {"schedulingPolicy": {"gang": {"minCount": 6}}}
    old = make_set(scheduling=gang)
    assert update_causes(old, **group(size=6), scheduling=larger) == []
    assert update_causes(old, scheduling={"schedulingPolicy": {"gang": {}}}) == []
    assert update_causes(old, **group(size=6)) == [
        "spec.scheduling.schedulingPolicy.gang.minCount: Invalid"
    ]
    assert update_causes(old, scheduling={"schedulingPolicy": BASIC}) == [
        "spec.scheduling.schedulingPolicy: Invalid"
    ]
    assert update_causes(old, scheduling={**gang, "schedulingConstraints": RACK}) == [
        "spec.scheduling.schedulingConstraints: Invalid"
    ]
    assert update_causes(make_set(), scheduling={}) == ["spec.scheduling: Invalid"]


def test_a_status_counts_groups() -> None:
    old = make_set()
    fine = change_stored(LEADER_WORKER_SET, old, status={"replicas": 2, "hpaPodSelector": "a=b"})
    assert find_causes(LEADER_WORKER_SET, fine, old, "status") == []
    wrong = change_stored(LEADER_WORKER_SET, old, status={"readyReplicas": -1})
    assert find_causes(LEADER_WORKER_SET, wrong, old, "status") == ["status.readyReplicas: Invalid"]
