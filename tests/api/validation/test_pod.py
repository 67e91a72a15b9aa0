"""Rules of updates of Pods: spec and status."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from phalanx.api.defaults.registry import apply_defaults, prepare_for_create
from phalanx.api.kinds import POD
from phalanx.api.validation.registry import validate
from phalanx.api.wire import Object
from tests.api.cause_summaries import CauseSummaries, summarize

TERMS = "requiredDuringSchedulingIgnoredDuringExecution"


def pod(**spec: Any) -> Object:
    made = {
        "metadata": {"name": "p", "namespace": "n"},
        "spec": {"containers": [{"name": "main", "image": "app:1"}], **copy.deepcopy(spec)},
    }
    apply_defaults(POD, made)
    prepare_for_create(POD, made, "2026-01-01T00:00:00Z")
    return made


def update_causes(new: Object, old: Object, part: str = "") -> CauseSummaries:
    return summarize(validate(POD, new, old, subresource=part))


GATED = {"schedulingGates": [{"name": "one"}, {"name": "two"}], "nodeSelector": {"disk": "ssd"}}
TOLERANT = {"tolerations": [{"key": "a", "operator": "Exists"}]}


def node_affinity(*expressions: str) -> Object:
    terms = [{"matchExpressions": [{"key": e, "operator": "Exists"} for e in expressions]}]
    return {"nodeAffinity": {TERMS: {"nodeSelectorTerms": terms}}}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({}, {"containers": [{"name": "main", "image": "app:2"}]}),
        ({}, {"activeDeadlineSeconds": 50}),
        ({"activeDeadlineSeconds": 100}, {"activeDeadlineSeconds": 50}),
        (TOLERANT, {"tolerations": [*TOLERANT["tolerations"], {"key": "b", "operator": "Exists"}]}),
        ({"terminationGracePeriodSeconds": -5}, {"terminationGracePeriodSeconds": 1}),
        (GATED, {**GATED, "schedulingGates": [{"name": "two"}]}),
        (GATED, {"nodeSelector": GATED["nodeSelector"]}),
        (GATED, {**GATED, "nodeSelector": {"disk": "ssd", "zone": "z"}}),
        (GATED, {**GATED, "affinity": node_affinity("a")}),
        ({**GATED, "affinity": node_affinity("a")}, {**GATED, "affinity": node_affinity("a", "b")}),
    ],
)
def test_this_much_of_a_pod_may_change(old: Object, new: Object) -> None:
    assert update_causes(pod(**new), pod(**old)) == []


def test_how_long_a_taint_is_tolerated_may_change() -> None:
    toleration = {"key": "a", "operator": "Exists", "effect": "NoExecute"}
    old = pod(tolerations=[{**toleration, "tolerationSeconds": 300}])
    assert update_causes(pod(tolerations=[{**toleration, "tolerationSeconds": 5}]), old) == []


@pytest.mark.parametrize(
    ("old", "new", "causes"),
    [
        ({}, {"nodeName": "n1"}, ["spec: Forbidden"]),
        ({}, {"priority": 1}, ["spec: Forbidden"]),
        ({}, {"schedulingGroup": {"podGroupName": "g"}}, ["spec: Forbidden"]),
        ({}, {"nodeSelector": {"a": "b"}}, ["spec: Forbidden"]),
        ({}, {"terminationGracePeriodSeconds": 1}, ["spec: Forbidden"]),
        (
            {},
            {
                "containers": [
                    {"name": "main", "image": "app:1", "resources": {"requests": {"cpu": "2"}}}
                ]
            },
            ["spec: Forbidden"],
        ),
        (
            {},
            {"containers": [{"name": "main", "image": "app:1"}, {"name": "b", "image": "b"}]},
            ["spec.containers: Forbidden"],
        ),
        ({}, {"initContainers": [{"name": "b", "image": "b"}]}, ["spec.initContainers: Forbidden"]),
        (
            {},
            {"containers": [{"name": "main", "image": ""}]},
            ["spec.containers[0].image: Required"],
        ),
        (
            {"activeDeadlineSeconds": 50},
            {"activeDeadlineSeconds": 100, "priority": 1},
            ["spec.activeDeadlineSeconds: Invalid"],
        ),
        ({"activeDeadlineSeconds": 50}, {}, ["spec.activeDeadlineSeconds: Invalid"]),
        (TOLERANT, {}, ["spec.tolerations: Forbidden"]),
        (
            GATED,
            {**GATED, "schedulingGates": [{"name": "three"}]},
            ["spec.schedulingGates[0].name: Forbidden"],
        ),
        (GATED, {**GATED, "nodeSelector": {"disk": "hdd"}}, ["spec.nodeSelector: Invalid"]),
        (
            {**GATED, "affinity": node_affinity("a")},
            GATED,
            [f"spec.affinity.nodeAffinity.{TERMS}.nodeSelectorTerms: Invalid"],
        ),
        (
            {**GATED, "affinity": node_affinity("a")},
            {**GATED, "affinity": node_affinity("b")},
            [f"spec.affinity.nodeAffinity.{TERMS}.nodeSelectorTerms[0]: Invalid"],
        ),
        (
            {**GATED, "affinity": node_affinity()},
            {**GATED, "affinity": node_affinity("b")},
            [f"spec.affinity.nodeAffinity.{TERMS}.nodeSelectorTerms[0]: Invalid"],
        ),
        (GATED, {**GATED, "affinity": {"podAffinity": {}}}, ["spec: Forbidden"]),
    ],
)
def test_nothing_else_may_change(old: Object, new: Object, causes: CauseSummaries) -> None:
    assert update_causes(pod(**new), pod(**old)) == causes


def with_status(obj: Object, **status: Any) -> Object:
    return {**obj, "status": {**obj["status"], **status}}


@pytest.mark.parametrize(
    ("status", "causes"),
    [
        ({"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "::1"}]}, []),
        ({"nominatedNodeName": "Bad Node"}, ["status.nominatedNodeName: Invalid"]),
        ({"qosClass": "Guaranteed"}, ["status.qosClass: Invalid"]),
        ({"podIPs": [{"ip": "x"}]}, ["status.podIPs[0]: Invalid"]),
        (
            {"podIPs": [{"ip": "10.0.0.1"}] * 2},
            ["status.podIPs[1]: Duplicate", "status.podIPs: Invalid"],
        ),
        (
            {"hostIP": "10.0.0.1", "hostIPs": [{"ip": "10.0.0.2"}]},
            ["status.hostIPs[0].ip: Invalid"],
        ),
        ({"conditions": [{"type": "a b"}]}, ["metadata.conditions[0].Type: Invalid"]),
        (
            {"resourceClaimStatuses": [{"name": "x"}]},
            ["status.resourceClaimStatuses[0].name: Invalid"],
        ),
    ],
)
def test_pod_status_is_validated(status: Object, causes: CauseSummaries) -> None:
    assert update_causes(with_status(pod(), **status), pod(), "status") == causes


ENDED = [{"name": "main", "state": {"terminated": {"exitCode": 0}}}]
RUNNING = [{"name": "main", "state": {"running": {}}}]


@pytest.mark.parametrize(
    ("policy", "code", "causes"),
    [
        ("Always", 0, []),
        ("OnFailure", 1, []),
        ("OnFailure", 0, ["status.containerStatuses[0].state: Forbidden"]),
        ("Never", 1, ["status.containerStatuses[0].state: Forbidden"]),
    ],
)
def test_a_container_that_is_not_restarted_stays_ended(
    policy: str, code: int, causes: CauseSummaries
) -> None:
    ended = [{"name": "main", "state": {"terminated": {"exitCode": code}}}]
    old = with_status(pod(restartPolicy=policy), containerStatuses=ended)
    new = with_status(pod(restartPolicy=policy), containerStatuses=RUNNING)
    assert update_causes(new, old, "status") == causes
    assert update_causes(old, old, "status") == []


def test_a_sidecar_may_start_again() -> None:
    init = [{"name": "main2", "image": "i", "restartPolicy": "Always"}]
    made = pod(restartPolicy="Never", initContainers=init)
    statuses = [{**ENDED[0], "name": "main2"}]
    old = with_status(made, initContainerStatuses=statuses)
    new = with_status(made, initContainerStatuses=[{**RUNNING[0], "name": "main2"}])
    assert update_causes(new, old, "status") == []
