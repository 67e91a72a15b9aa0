"""Rules and defaults of ResourceQuotas and LimitRanges."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.kinds import LIMIT_RANGE, RESOURCE_QUOTA
from phalanx.api.wire import Object
from tests.api.cause_summaries import CauseSummaries, prefix_summaries
from tests.api.stored_objects import change_stored, creation_causes, find_causes, make_stored


@pytest.mark.parametrize(
    ("hard", "causes"),
    [
        ({"cpu": "4", "requests.memory": "1Gi", "pods": "10", "count/jobs.batch": "3"}, []),
        ({"requests.nvidia.com/gpu": "8", "hugepages-2Mi": "1Gi"}, []),
        ({"requests.hugepages-2Mi": "1Gi", "requests.storage": "1Gi"}, []),
        ({"speed": "1"}, ["[speed]: Invalid"] * 2),
        ({"storage": "1"}, ["[storage]: Invalid"]),
        ({"a b": "1"}, ["[a b]: Invalid"] * 2),
        ({"a b/c": "1"}, ["[a b/c]: Invalid"]),
        ({"cpu": "-1"}, ["[cpu]: Invalid"]),
        ({"pods": "1500m"}, ["[pods]: Invalid"]),
        ({"secrets": "1500m"}, ["[secrets]: Invalid"]),
    ],
)
def test_a_quota_counts_what_can_be_counted(hard: Object, causes: CauseSummaries) -> None:
    assert creation_causes(RESOURCE_QUOTA, {"spec": {"hard": hard}}) == prefix_summaries(
        "spec.hard", causes
    )


def test_a_status_counts_the_same() -> None:
    old = make_stored(
        RESOURCE_QUOTA, {"spec": {"hard": {"pods": "3"}}, "status": {"used": {"pods": "1"}}}
    )
    assert old["status"] == {}
    new = change_stored(RESOURCE_QUOTA, old, status={"hard": {"pods": "3"}, "used": {"pods": "-1"}})
    assert find_causes(RESOURCE_QUOTA, new, old, "status") == ["status.used[pods]: Invalid"]


@pytest.mark.parametrize(
    ("scopes", "causes"),
    [
        (["BestEffort", "Terminating"], []),
        (["Everything"], ["scopes: Invalid"]),
        (["BestEffort", "NotBestEffort"], ["scopes: Invalid"]),
    ],
)
def test_a_quota_is_for_some_pods(scopes: list[str], causes: CauseSummaries) -> None:
    assert creation_causes(RESOURCE_QUOTA, {"spec": {"scopes": scopes}}) == prefix_summaries(
        "spec", causes
    )


@pytest.mark.parametrize(
    ("requirement", "causes"),
    [
        ({"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}, []),
        ({"scopeName": "BestEffort", "operator": "Exists"}, []),
        ({"scopeName": "PriorityClass", "operator": "In"}, ["values: Required"]),
        (
            {"scopeName": "PriorityClass", "operator": "Exists", "values": ["a"]},
            ["values: Invalid"],
        ),
        ({"scopeName": "PriorityClass", "operator": "Like"}, ["operator: Invalid"]),
        ({"scopeName": "Everything", "operator": "Exists"}, ["scopeName: Invalid"]),
        ({"scopeName": "BestEffort", "operator": "DoesNotExist"}, ["operator: Invalid"]),
        ({"scopeName": "CrossNamespacePodAffinity", "operator": "Exists"}, []),
        (
            {"scopeName": "CrossNamespacePodAffinity", "operator": "In", "values": ["a"]},
            ["operator: Invalid"],
        ),
    ],
)
def test_a_quota_may_select_scopes(requirement: Object, causes: CauseSummaries) -> None:
    spec = {"scopeSelector": {"matchExpressions": [requirement]}}
    place = "spec.scopeSelector.matchExpressions"
    assert creation_causes(RESOURCE_QUOTA, {"spec": spec}) == prefix_summaries(place, causes)


@pytest.mark.parametrize(
    ("scopes", "hard", "is_valid"),
    [
        (["BestEffort"], ["pods", "count/jobs.batch"], True),
        (["BestEffort"], ["pods", "requests.cpu"], False),
        (["NotTerminating"], ["pods", "requests.cpu", "limits.memory", "nvidia.com/gpu"], True),
        (["NotTerminating"], ["services"], False),
        (["PriorityClass"], ["hugepages-2Mi"], False),
        (["VolumeAttributesClass"], ["persistentvolumeclaims", "requests.storage"], True),
        (["VolumeAttributesClass"], ["pods"], False),
        (["Terminating", "NotTerminating"], ["pods"], False),
    ],
)
def test_a_scope_fits_the_resources_of_its_quota(
    scopes: list[str], hard: list[str], is_valid: bool
) -> None:
    amounts = dict.fromkeys(hard, "1")
    listed = {"spec": {"hard": amounts, "scopes": scopes}}
    assert creation_causes(RESOURCE_QUOTA, listed) == ["spec.scopes: Invalid"] * (not is_valid)
    selector = {"matchExpressions": [{"scopeName": one, "operator": "Exists"} for one in scopes]}
    selected = {"spec": {"hard": amounts, "scopeSelector": selector}}
    place = "spec.scopeSelector.matchExpressions"
    assert creation_causes(RESOURCE_QUOTA, selected) == [f"{place}: Invalid"] * (not is_valid)


def test_a_quota_keeps_its_scopes() -> None:
    old = make_stored(RESOURCE_QUOTA, {"spec": {"scopes": ["BestEffort"], "hard": {"pods": "3"}}})
    more = change_stored(RESOURCE_QUOTA, old, spec={**old["spec"], "hard": {"pods": "5"}})
    assert find_causes(RESOURCE_QUOTA, more, old) == []
    other = change_stored(RESOURCE_QUOTA, old, spec={"scopes": ["Terminating"]})
    assert find_causes(RESOURCE_QUOTA, other, old) == ["spec.scopes: Invalid"]
    both = make_stored(RESOURCE_QUOTA, {"spec": {"scopes": ["BestEffort", "Terminating"]}})
    turned = change_stored(RESOURCE_QUOTA, both, spec={"scopes": ["Terminating", "BestEffort"]})
    assert find_causes(RESOURCE_QUOTA, turned, both) == []


def limit(kind: str = "Container", **parts: Any) -> Object:
    return {"type": kind, **parts}


@pytest.mark.parametrize(
    ("wanted", "causes"),
    [
        (limit(min={"cpu": "1"}, max={"cpu": "2"}, maxLimitRequestRatio={"cpu": "2"}), []),
        (limit("Pod", max={"cpu": "2"}), []),
        (limit("example.com/Disk"), []),
        (limit("Disk"), ["type: Invalid"]),
        (limit("a b"), ["type: Invalid"]),
        (limit("Pod", default={"speed": "1"}), ["default: Forbidden"]),
        (
            limit("Pod", default={"cpu": "3"}, defaultRequest={"cpu": "4"}, max={"cpu": "2"}),
            ["default: Forbidden", "defaultRequest: Forbidden"],
        ),
        (limit(default={"a.com/b": "2"}, defaultRequest={"a.com/b": "2"}), []),
        (
            limit(default={"a.com/b": "2"}, defaultRequest={"a.com/b": "1"}),
            ["defaultRequest[a.com/b]: Invalid"],
        ),
        (
            limit(default={"hugepages-2Mi": "4Mi"}, defaultRequest={"hugepages-2Mi": "2Mi"}),
            ["defaultRequest[hugepages-2Mi]: Invalid"],
        ),
        (
            limit("Pod", min={"cpu": "2"}, max={"cpu": "4"}, maxLimitRequestRatio={"cpu": "3"}),
            ["maxLimitRequestRatio[cpu]: Invalid"],
        ),
        (
            limit("Pod", min={"cpu": "2"}, max={"cpu": "0"}, maxLimitRequestRatio={"cpu": "500m"}),
            ["min[cpu]: Invalid", *["maxLimitRequestRatio[cpu]: Invalid"] * 2],
        ),
        (limit(max={"speed": "1"}, default={"speed": "1"}, defaultRequest={"speed": "1"}), [
            f"{part}[speed]: Invalid" for part in ("max", "default", "defaultRequest")
            for _ in range(2)
        ]),
        (limit("Pod", min={"cpu": "2"}, max={"cpu": "1"}), ["min[cpu]: Invalid"]),
        (limit(default={"cpu": "3"}, max={"cpu": "2"}, defaultRequest={"cpu": "1"}), [
            "default[cpu]: Invalid"
        ]),
        (limit(maxLimitRequestRatio={"cpu": "500m"}), ["maxLimitRequestRatio[cpu]: Invalid"]),
        (limit("PersistentVolumeClaim", max={"storage": "1Gi"}), []),
        (limit("PersistentVolumeClaim"), ["limits: Required"]),
    ],
)  # fmt: skip
def test_limits_are_in_their_order(wanted: Object, causes: CauseSummaries) -> None:
    found = creation_causes(LIMIT_RANGE, {"spec": {"limits": [wanted]}})
    assert found == prefix_summaries("spec.limits[0]", causes)


def test_a_type_has_its_limits_once() -> None:
    limits = [limit(max={"cpu": "1"}), limit(max={"cpu": "2"})]
    assert creation_causes(LIMIT_RANGE, {"spec": {"limits": limits}}) == [
        "spec.limits[1].type: Duplicate"
    ]


def test_missing_container_defaults_follow_the_maximum() -> None:
    wanted = limit(max={"cpu": "2"}, min={"cpu": "1", "memory": "1Mi"}, default={"memory": "4Mi"})
    (new,) = make_stored(LIMIT_RANGE, {"spec": {"limits": [wanted]}})["spec"]["limits"]
    assert new["default"] == {"cpu": "2", "memory": "4Mi"}
    assert new["defaultRequest"] == {"cpu": "2", "memory": "4Mi"}


def test_limits_of_pods_have_no_defaults() -> None:
    (new,) = make_stored(LIMIT_RANGE, {"spec": {"limits": [limit("Pod", max={"cpu": "2"})]}})[
        "spec"
    ]["limits"]
    assert new == {"type": "Pod", "max": {"cpu": "2"}}
    assert make_stored(LIMIT_RANGE, {"spec": {"limits": [limit()]}})["spec"]["limits"] == [limit()]
