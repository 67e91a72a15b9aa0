"""Objects that the scheduler receives, with features switched off."""

from __future__ import annotations

import asyncio

import pytest

from phalanx.api.feature_gates import resolve_gates
from phalanx.api.kinds import NAMESPACE, PRIORITY_CLASS, SERVICE
from phalanx.api.meta import Key
from phalanx.api.scheduling import POD_GROUP_SCHEDULED
from phalanx.api.wire import Object
from phalanx.controllers.nodes.node_pool import SimulatedNode
from phalanx.scheduler.configuration.scheduler_configuration import (
    SchedulerConfiguration,
    parse_configuration,
)
from tests.builders import gang, in_virtual_time, pod
from tests.controllers.cluster import cluster, simulated_nodes


def never_preempting() -> Object:
    """A PriorityClass that never preempts."""
    return {
        "apiVersion": PRIORITY_CLASS.api_version, "kind": PRIORITY_CLASS.name,
        "metadata": {"name": "polite"}, "value": 0, "preemptionPolicy": "Never",
    }  # fmt: skip


def with_class(objects: list[Object], name: str) -> list[Object]:
    for one in objects:
        one["spec"]["priorityClassName"] = name
    return objects


def service(name: str, selector: dict[str, str]) -> Object:
    spec = {"selector": selector, "ports": [{"port": 80}]}
    meta = {"name": name, "namespace": "default"}
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec}


@pytest.mark.parametrize(("own", "placed"), [(True, False), (False, True)], ids=["on", "off"])
@in_virtual_time
async def test_without_a_policy_of_the_group_the_policy_of_its_pods_applies(
    own: bool, placed: bool
) -> None:
    gates = resolve_gates({"PodGroupPreemptionPolicy": own})
    async with cluster(nodes=simulated_nodes(1, cpu="4"), gates=gates) as c:
        group, *pods = gang("a", 2, cpu="1")
        await c.create(never_preempting(), group, *with_class(pods, "polite"))
        await asyncio.sleep(3)
        assert bool(await c.node_by_pod()) == placed


@in_virtual_time
async def test_pods_with_different_preemption_policies_are_an_error() -> None:
    async with cluster(
        nodes=simulated_nodes(1, cpu="4"), gates=resolve_gates({"PodGroupPreemptionPolicy": False})
    ) as c:
        group, first, second = gang("a", 2, cpu="1")
        await c.create(never_preempting(), group, *with_class([first], "polite"), second)
        await asyncio.sleep(3)
        condition = await c.group_condition("a", POD_GROUP_SCHEDULED)
        assert condition is not None
        assert (condition.reason, condition.message) == (
            "SchedulerError",
            "all pods in a single pod group should have the same preemption policy, "
            "got PreemptLowerPriority and Never",
        )


@in_virtual_time
async def test_without_gang_scheduling_members_are_placed_one_by_one() -> None:
    async with cluster(
        nodes=simulated_nodes(1, cpu="2"), gates=resolve_gates({"GangScheduling": False})
    ) as c:
        await c.create(*gang("a", 2, minimum=2, cpu="1")[1:])
        await c.until_placed("a-0", "a-1")


@in_virtual_time
async def test_a_new_namespace_label_wakes_pods_with_affinity_to_it() -> None:
    near = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {"app": "web"}},
        "namespaceSelector": {"matchLabels": {"team": "x"}},
    }
    affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [near]}}
    async with cluster(nodes=simulated_nodes(1, cpu="4")) as c:
        await c.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}})
        await asyncio.sleep(2)
        await c.create(pod("web", namespace="other", meta={"labels": {"app": "web"}}))
        await c.create(pod("p", spec={"affinity": affinity}))
        await asyncio.sleep(100.3)
        assert "p" not in await c.node_by_pod()
        await c.client.patch(NAMESPACE, Key("", "other"), {"metadata": {"labels": {"team": "x"}}})
        assert await c.until_placed("p") < 1


@in_virtual_time
async def test_a_deleted_service_wakes_pods_that_were_spread_by_it() -> None:
    even = {
        "topologyKey": "kubernetes.io/hostname", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule",
    }  # fmt: skip
    spread = {"defaultingType": "List", "defaultConstraints": [even]}
    found = parse_configuration({
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "profiles": [{"pluginConfig": [{"name": "PodTopologySpread", "args": spread}]}],
    })  # fmt: skip
    assert isinstance(found, SchedulerConfiguration)
    labels = {"labels": {"app": "web"}}
    nodes = [*simulated_nodes(1, cpu="4"), SimulatedNode("small", {"pods": "0"})]
    async with cluster(nodes=nodes, profiles=found.profiles) as c:
        await c.create(service("s", {"app": "web"}), pod("first", cpu="1", meta=labels))
        await c.until_placed("first")
        await c.create(pod("second", cpu="1", meta=labels))
        await asyncio.sleep(100.3)
        assert list(await c.node_by_pod()) == ["first"]
        await c.delete(SERVICE, "s")
        assert await c.until_placed("second") < 1
