from __future__ import annotations

import pytest

from phalanx.api.kinds import CONFIG_MAP, PERSISTENT_VOLUME_CLAIM, POD
from phalanx.api.wire import Object
from phalanx.server.resource_quotas import quota_covers
from tests.builders import pod

PLAIN = pod("p")
SIZED = pod("p", cpu="1")
SHORT = pod("p", spec={"activeDeadlineSeconds": 60})
HIGH = pod("p", spec={"priorityClassName": "high"})
LOW = pod("p", spec={"priorityClassName": "low"})


def attracted(**term: object) -> Object:
    """A pod that wants to be near others."""
    wanted = [{"topologyKey": "zone", **term}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": wanted}
    return pod("p", spec={"affinity": {"podAffinity": required}})


def repelled(**term: object) -> Object:
    """A pod that would rather not be near others."""
    wanted = [{"weight": 1, "podAffinityTerm": {"topologyKey": "zone", **term}}]
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": wanted}
    return pod("p", spec={"affinity": {"podAntiAffinity": preferred}})


def scoped(*names: str) -> Object:
    return {"spec": {"scopes": list(names)}}


def selecting(scope: str, operator: str, *values: str) -> Object:
    requirement = {"scopeName": scope, "operator": operator, "values": list(values)}
    return {"spec": {"scopeSelector": {"matchExpressions": [requirement]}}}


@pytest.mark.parametrize(
    ("quota", "covered", "not_covered"),
    [
        (scoped(), [PLAIN, SIZED, SHORT], []),
        (scoped("Terminating"), [SHORT], [PLAIN, SIZED]),
        (scoped("NotTerminating"), [PLAIN, SIZED], [SHORT]),
        (scoped("BestEffort"), [PLAIN, SHORT], [SIZED]),
        (scoped("NotBestEffort"), [SIZED], [PLAIN, SHORT]),
        (scoped("BestEffort", "Terminating"), [SHORT], [PLAIN, SIZED]),
        (scoped("PriorityClass"), [HIGH, LOW], [PLAIN]),
        (selecting("PriorityClass", "Exists"), [HIGH, LOW], [PLAIN]),
        (selecting("PriorityClass", "DoesNotExist"), [PLAIN], [HIGH, LOW]),
        (selecting("PriorityClass", "In", "high", "higher"), [HIGH], [LOW, PLAIN]),
        (selecting("PriorityClass", "NotIn", "high"), [LOW, PLAIN], [HIGH]),
        (selecting("BestEffort", "Exists"), [PLAIN], [SIZED]),
        (
            scoped("CrossNamespacePodAffinity"),
            [attracted(namespaces=["a"]), repelled(namespaceSelector={})],
            [PLAIN, attracted(), repelled()],
        ),
    ],
)
def test_a_quota_is_about_the_pods_of_which_all_its_scopes_hold(
    quota: Object, covered: list[Object], not_covered: list[Object]
) -> None:
    assert [quota_covers(quota, POD, one) for one in covered] == [True] * len(covered)
    assert [quota_covers(quota, POD, one) for one in not_covered] == [False] * len(not_covered)


def test_only_a_quota_without_scopes_is_about_what_has_none() -> None:
    data: Object = {"metadata": {"name": "c"}, "data": {}}
    assert quota_covers(scoped(), CONFIG_MAP, data)
    assert not quota_covers(scoped("NotTerminating"), CONFIG_MAP, data)


def test_claims_have_a_scope_of_their_own() -> None:
    claim: Object = {"metadata": {"name": "c"}, "spec": {"volumeAttributesClassName": "fast"}}
    assert quota_covers(
        selecting("VolumeAttributesClass", "In", "fast"), PERSISTENT_VOLUME_CLAIM, claim
    )
    assert not quota_covers(scoped("NotTerminating"), PERSISTENT_VOLUME_CLAIM, claim)
    assert not quota_covers(scoped("VolumeAttributesClass"), POD, PLAIN)
