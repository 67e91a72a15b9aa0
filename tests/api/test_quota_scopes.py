from __future__ import annotations

import pytest

from phalanx.api.kinds import CONFIG_MAP, PERSISTENT_VOLUME_CLAIM, POD
from phalanx.api.quota_usage import quota_covers
from phalanx.api.wire import Object
from tests.builders import pod

PLAIN = pod("p")
SIZED = pod("p", cpu="1")
SHORT = pod("p", spec={"activeDeadlineSeconds": 60})
HIGH = pod("p", spec={"priorityClassName": "high"})
LOW = pod("p", spec={"priorityClassName": "low"})


def pod_with_affinity(**term: object) -> Object:
    """A pod with pod affinity."""
    wanted = [{"topologyKey": "zone", **term}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": wanted}
    return pod("p", spec={"affinity": {"podAffinity": required}})


def pod_with_anti_affinity(**term: object) -> Object:
    """A pod with preferred pod anti-affinity."""
    wanted = [{"weight": 1, "podAffinityTerm": {"topologyKey": "zone", **term}}]
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": wanted}
    return pod("p", spec={"affinity": {"podAntiAffinity": preferred}})


def quota_with_scopes(*names: str) -> Object:
    return {"spec": {"scopes": list(names)}}


def quota_with_selector(scope: str, operator: str, *values: str) -> Object:
    requirement = {"scopeName": scope, "operator": operator, "values": list(values)}
    return {"spec": {"scopeSelector": {"matchExpressions": [requirement]}}}


@pytest.mark.parametrize(
    ("quota", "covered", "not_covered"),
    [
        (quota_with_scopes(), [PLAIN, SIZED, SHORT], []),
        (quota_with_scopes("Terminating"), [SHORT], [PLAIN, SIZED]),
        (quota_with_scopes("NotTerminating"), [PLAIN, SIZED], [SHORT]),
        (quota_with_scopes("BestEffort"), [PLAIN, SHORT], [SIZED]),
        (quota_with_scopes("NotBestEffort"), [SIZED], [PLAIN, SHORT]),
        (quota_with_scopes("BestEffort", "Terminating"), [SHORT], [PLAIN, SIZED]),
        (quota_with_scopes("PriorityClass"), [HIGH, LOW], [PLAIN]),
        (quota_with_selector("PriorityClass", "Exists"), [HIGH, LOW], [PLAIN]),
        (quota_with_selector("PriorityClass", "DoesNotExist"), [PLAIN], [HIGH, LOW]),
        (quota_with_selector("PriorityClass", "In", "high", "higher"), [HIGH], [LOW, PLAIN]),
        (quota_with_selector("PriorityClass", "NotIn", "high"), [LOW, PLAIN], [HIGH]),
        (quota_with_selector("BestEffort", "Exists"), [PLAIN], [SIZED]),
        (
            quota_with_scopes("CrossNamespacePodAffinity"),
            [pod_with_affinity(namespaces=["a"]), pod_with_anti_affinity(namespaceSelector={})],
            [PLAIN, pod_with_affinity(), pod_with_anti_affinity()],
        ),
    ],
)
def test_a_quota_covers_pods_that_match_all_its_scopes(
    quota: Object, covered: list[Object], not_covered: list[Object]
) -> None:
    assert [quota_covers(quota, POD, one) for one in covered] == [True] * len(covered)
    assert [quota_covers(quota, POD, one) for one in not_covered] == [False] * len(not_covered)


def test_objects_without_scopes_are_covered_only_by_quotas_without_scopes() -> None:
    data: Object = {"metadata": {"name": "c"}, "data": {}}
    assert quota_covers(quota_with_scopes(), CONFIG_MAP, data)
    assert not quota_covers(quota_with_scopes("NotTerminating"), CONFIG_MAP, data)


def test_claims_have_their_own_scope() -> None:
    claim: Object = {"metadata": {"name": "c"}, "spec": {"volumeAttributesClassName": "fast"}}
    assert quota_covers(
        quota_with_selector("VolumeAttributesClass", "In", "fast"), PERSISTENT_VOLUME_CLAIM, claim
    )
    assert not quota_covers(quota_with_scopes("NotTerminating"), PERSISTENT_VOLUME_CLAIM, claim)
    assert not quota_covers(quota_with_scopes("VolumeAttributesClass"), POD, PLAIN)
