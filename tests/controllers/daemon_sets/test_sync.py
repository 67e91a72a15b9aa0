"""Plans of the DaemonSet controller: a pure function of a DaemonSet, its pods and the nodes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from phalanx.api.apps import DaemonSet
from phalanx.api.core import Node, Pod
from phalanx.api.meta import timestamp
from phalanx.api.wire import Object
from phalanx.controllers.daemon_sets.sync import (
    DaemonSetState,
    build_daemon_pod,
    count_daemon_status,
    plan_daemon_pods,
    target_node,
)

NOW = 1_800_000_000.0
LABELS = {"app": "agent"}


def daemon_set(template: Object | None = None, **spec: Any) -> DaemonSet:
    pod_spec = {"containers": [{"name": "main", "image": "v1"}], **(template or {})}
    obj = {
        "metadata": {"name": "agent", "namespace": "default", "uid": "ds", "generation": 2},
        "spec": {
            "selector": {"matchLabels": LABELS},
            "template": {"metadata": {"labels": LABELS}, "spec": pod_spec},
            **spec,
        },
    }
    return msgspec.convert(obj, DaemonSet)


def node(name: str, *taints: Object, **labels: str) -> Node:
    obj = {"metadata": {"name": name, "labels": labels}, "spec": {"taints": taints}}
    return msgspec.convert(obj, Node)


def taint(key: str, effect: str) -> Object:
    return {"key": key, "effect": effect}


def pod(
    name: str,
    at: str,
    *,
    image: str = "new",
    ready: bool = True,
    phase: str = "Running",
    **meta: Any,
) -> Pod:
    condition = {
        "type": "Ready",
        "status": "True" if ready else "False",
        "lastTransitionTime": timestamp(NOW - 60),
    }
    obj = {
        "metadata": {
            "name": name, "namespace": "default", "uid": name,
            "labels": {**LABELS, "controller-revision-hash": image},
            "creationTimestamp": timestamp(NOW - 100), **meta,
        },
        "spec": {"nodeName": at},
        "status": {"phase": phase, "conditions": [condition]},
    }  # fmt: skip
    return msgspec.convert(obj, Pod)


def state(subject: DaemonSet, nodes: list[Node], *pods: Pod, delayed: str = "") -> DaemonSetState:
    return DaemonSetState(
        subject,
        pods,
        {one.metadata.name: one for one in nodes},
        revision_hash="new",
        now=NOW,
        delayed_nodes=frozenset([delayed] if delayed else []),
    )


def names(pods: list[Pod]) -> list[str]:
    return sorted(one.metadata.name for one in pods)


@pytest.mark.parametrize(
    ("template", "one", "runs"),
    [
        ({}, node("a"), True),
        ({}, node("a", taint("x", "NoSchedule")), False),
        ({}, node("a", taint("x", "PreferNoSchedule")), True),
        ({}, node("a", taint("node.kubernetes.io/unschedulable", "NoSchedule")), True),
        ({}, node("a", taint("node.kubernetes.io/unreachable", "NoExecute")), True),
        ({}, node("a", taint("node.kubernetes.io/network-unavailable", "NoSchedule")), False),
        ({"hostNetwork": True},
         node("a", taint("node.kubernetes.io/network-unavailable", "NoSchedule")), True),
        ({"tolerations": [{"operator": "Exists"}]}, node("a", taint("x", "NoSchedule")), True),
        ({"nodeSelector": {"disk": "ssd"}}, node("a"), False),
        ({"nodeSelector": {"disk": "ssd"}}, node("a", disk="ssd"), True),
        ({"nodeName": "b"}, node("a"), False),
    ],
)  # fmt: skip
def test_pods_run_on_eligible_nodes(template: Object, one: Node, runs: bool) -> None:
    plan = plan_daemon_pods(state(daemon_set(template), [one]))
    assert plan.nodes == (["a"] if runs else [])


def test_pod_is_bound_to_its_node_by_affinity() -> None:
    preferred = [{"weight": 1, "preference": {"matchExpressions": []}}]
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []},
            "preferredDuringSchedulingIgnoredDuringExecution": preferred,
        }
    }
    built = build_daemon_pod(daemon_set({"affinity": affinity}), "a", revision_hash="h")
    assert built["metadata"]["labels"]["controller-revision-hash"] == "h"
    assert built["metadata"]["labels"]["pod-template-generation"] == "1"
    found = built["spec"]["affinity"]["nodeAffinity"]
    assert found["preferredDuringSchedulingIgnoredDuringExecution"] == preferred
    unbound = msgspec.convert({"metadata": {"name": "x"}, "spec": built["spec"]}, Pod)
    assert target_node(unbound) == "a"


def test_pods_leave_nodes_that_stop_matching() -> None:
    subject = daemon_set({"nodeSelector": {"disk": "ssd"}})
    pods = [pod("p", "a"), pod("q", "b", deletionTimestamp=timestamp(NOW))]
    assert names(plan_daemon_pods(state(subject, [node("a"), node("b")], *pods)).deletions) == ["p"]
    kept = plan_daemon_pods(
        state(daemon_set(), [node("a", taint("x", "NoSchedule"))], pod("p", "a"))
    )
    assert (kept.nodes, kept.deletions) == ([], [])
    evicted = state(daemon_set(), [node("a", taint("x", "NoExecute"))], pod("p", "a"))
    assert names(plan_daemon_pods(evicted).deletions) == ["p"]


def test_only_unbound_pods_of_a_deleted_node_are_deleted() -> None:
    built = build_daemon_pod(daemon_set(), "gone", revision_hash="h")
    unbound = msgspec.convert({"metadata": {"name": "q"}, "spec": built["spec"]}, Pod)
    found = plan_daemon_pods(state(daemon_set(), [node("a")], pod("p", "gone"), unbound))
    assert names(found.deletions) == ["q"]


def test_ended_and_surplus_pods_are_deleted() -> None:
    pods = [pod("old", "a", creationTimestamp=timestamp(NOW - 200)), pod("young", "a")]
    found = plan_daemon_pods(state(daemon_set(), [node("a")], *pods))
    assert names(found.deletions) == ["young"]
    failed = pod("bad", "a", phase="Failed", ready=False)
    assert names(plan_daemon_pods(state(daemon_set(), [node("a")], failed)).ended) == ["bad"]
    waiting = state(daemon_set(), [node("a")], failed, delayed="a")
    assert plan_daemon_pods(waiting).ended == []


def rolling(**bounds: Any) -> Object:
    return {"type": "RollingUpdate", "rollingUpdate": bounds}


NODES = [node(name) for name in "abcd"]


@pytest.mark.parametrize(
    ("limit", "pods", "deleted"),
    [
        (1, [pod(n, n, image="old") for n in "abcd"], 1),
        ("50%", [pod(n, n, image="old") for n in "abcd"], 2),
        (1, [pod("a", "a", ready=False), *(pod(n, n, image="old") for n in "bcd")], 0),
        # An old pod that is not available is replaced at once.
        (1, [pod("a", "a", image="old", ready=False), *(pod(n, n, image="old") for n in "bcd")], 1),
    ],
)
def test_update_keeps_to_max_unavailable(limit: Any, pods: list[Pod], deleted: int) -> None:
    subject = daemon_set(updateStrategy=rolling(maxUnavailable=limit, maxSurge=0))
    assert len(plan_daemon_pods(state(subject, NODES, *pods)).deletions) == deleted


def test_update_with_surge_creates_the_new_pod_first() -> None:
    subject = daemon_set(updateStrategy=rolling(maxUnavailable=0, maxSurge=1))
    old = [pod(n, n, image="old") for n in "abcd"]
    found = plan_daemon_pods(state(subject, NODES, *old))
    assert (found.nodes, found.deletions) == (["a"], [])
    starting = plan_daemon_pods(state(subject, NODES, *old, pod("new", "a", ready=False)))
    assert (starting.nodes, starting.deletions) == ([], [])
    done = plan_daemon_pods(state(subject, NODES, *old, pod("new", "a")))
    assert names(done.deletions) == ["a"]


def test_on_delete_replaces_nothing() -> None:
    subject = daemon_set(updateStrategy={"type": "OnDelete"})
    found = plan_daemon_pods(state(subject, [node("a")], pod("p", "a", image="old")))
    assert (found.nodes, found.deletions) == ([], [])


def test_status_counts_nodes() -> None:
    nodes = [node("a"), node("b"), node("c"), node("d", taint("x", "NoSchedule"))]
    pods = [pod("p", "a"), pod("q", "b", image="old", ready=False), pod("r", "d")]
    assert count_daemon_status(state(daemon_set(), nodes, *pods)) == {
        "currentNumberScheduled": 2,
        "desiredNumberScheduled": 3,
        "numberMisscheduled": 1,
        "numberReady": 1,
        "updatedNumberScheduled": 1,
        "numberAvailable": 1,
        "numberUnavailable": 2,
        "observedGeneration": 2,
    }
