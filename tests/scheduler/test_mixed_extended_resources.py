"""Extended resources that some nodes list and that devices serve on others."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from phalanx.api.core import (
    ExtendedResourceClaimStatus,
    ExtendedResourceRequest,
    Node,
    Pod,
    PodStatus,
)
from phalanx.api.scheduling import PodGroup
from phalanx.scheduler.decision import Placed, Preempting, Waiting
from phalanx.scheduler.placement.claim_placement import with_nominated_pods
from phalanx.scheduler.queue.scheduler_state import SchedulerState
from tests.scheduler.device_builders import (
    DRIVER,
    allocated,
    claim,
    decide,
    device,
    device_class,
    devices_of,
    gang,
    gpus,
    node,
    nodes_of,
    pod,
    resource_slice,
    state_of,
)

RESOURCE, OTHER = "example.com/gpu", "example.com/net"


def listing_node(name: str, amount: str) -> Node:
    plain = node(name)
    allocatable = {**plain.status.allocatable, RESOURCE: amount}
    return replace(plain, status=replace(plain.status, allocatable=allocatable))


def mixed_state(*pods: Pod, groups: Sequence[PodGroup] = ()) -> SchedulerState:
    """n1 has the resource itself, n2 has devices that serve it, n3 has neither."""
    served = device_class("gpu", extendedResourceName=RESOURCE)
    nodes = [listing_node("n1", "2"), node("n2"), node("n3")]
    return state_of(nodes, [served, resource_slice("n2", gpus(2))], pods, groups)


def test_gang_uses_nodes_that_list_a_resource_and_devices_that_serve_it() -> None:
    members = [pod(f"m{n}", group="g", requests={RESOURCE: "1"}) for n in range(4)]
    decision = decide(mixed_state(*members, groups=[gang("g", 4)]))
    assert isinstance(decision, Placed)
    assert sorted(one.node for one in decision.bindings) == ["n1", "n1", "n2", "n2"]
    on_devices = {one.uid for one in decision.bindings if one.node == "n2"}
    assert {one.pod_uid for one in decision.claims} == on_devices
    assert sorted(
        f"{result['pool']}/{result['device']}"
        for one in decision.claims
        if one.allocation is not None
        for result in one.allocation["devices"]["results"]
    ) == ["n2/gpu-0", "n2/gpu-1"]


def test_gang_larger_than_resource_and_devices_together_waits() -> None:
    members = [pod(f"m{n}", group="g", requests={RESOURCE: "1"}) for n in range(5)]
    assert isinstance(decide(mixed_state(*members, groups=[gang("g", 5)])), Waiting)


def test_refusal_names_the_resource_and_the_devices() -> None:
    decision = decide(mixed_state(pod("p", requests={RESOURCE: "3"})))
    assert isinstance(decision, Waiting)
    (refused,) = decision.pods
    assert refused.refusal is not None
    assert dict(refused.refusal.counts) == {
        "Insufficient example.com/gpu": 1,
        "cannot allocate all claims": 2,
    }


def test_second_pod_uses_devices_when_the_resource_is_in_use() -> None:
    running = pod("running", on="n1", requests={RESOURCE: "2"})
    decision = decide(mixed_state(running, pod("p", requests={RESOURCE: "2"})))
    assert nodes_of(decision) == {"p": "n2"}
    assert devices_of(decision) == {"p-extended-resources-": ["n2/gpu-0", "n2/gpu-1"]}


def test_node_with_one_of_two_resources_gets_devices_for_the_other() -> None:
    is_net = f'device.attributes["{DRIVER}"].kind == "net"'
    devices = [
        device_class("gpu", f"!({is_net})", extendedResourceName=RESOURCE),
        device_class("net", is_net, extendedResourceName=OTHER),
        resource_slice("n1", [device("net-0", attributes={"kind": "net"})]),
    ]
    asking = pod("p", requests={RESOURCE: "1", OTHER: "1"})
    decision = decide(state_of([listing_node("n1", "2"), node("n2")], devices, [asking]))
    assert isinstance(decision, Placed)
    (made,) = decision.claims
    assert [one["resourceName"] for one in made.request_mappings] == [OTHER]
    assert devices_of(decision) == {"p-extended-resources-": ["n1/net-0"]}


def test_nominated_pod_whose_class_is_gone_holds_nothing() -> None:
    gone = claim("gone", {"name": "r", "exactly": {"deviceClassName": "gone", "count": 1}})
    waiting = pod("n", "gone", priority=10)
    nominated = replace(waiting, status=replace(waiting.status, nominated_node_name="n2"))
    state = state_of([node("n2")], [gone, resource_slice("n2", gpus(1))], [nominated])
    snapshot = with_nominated_pods(state.cache.snapshot(), 0, ())
    assert snapshot.pod_index.assigned_pods()
    assert list(snapshot.devices.usage.used_devices()) == []


@pytest.mark.parametrize("names_claim", [True, False])
def test_holder_of_a_device_for_its_extended_resource_is_evicted(names_claim: bool) -> None:
    mapping = ExtendedResourceRequest(resource_name=RESOURCE)
    served = ExtendedResourceClaimStatus("low-extended-resources-x", (mapping,))
    low = pod("low", on="n1", priority=1, requests={RESOURCE: "1"})
    low = replace(low, status=PodStatus(extended_resource_claim_status=served))
    wanted = {} if names_claim else {RESOURCE: "1"}
    high = pod("high", *(["mine"] if names_claim else []), priority=10, requests=wanted)
    objects = [
        device_class("gpu", extendedResourceName=RESOURCE),
        resource_slice("n1", gpus(1)),
        allocated("low-extended-resources-x", "n1/gpu-0", "low"),
        claim("mine"),
    ]
    other = pod("other", on="n1", priority=0)
    decision = decide(state_of([node("n1")], objects, [low, other, high]))
    assert isinstance(decision, Preempting)
    assert [victim.pod.name for victim in decision.victims] == ["low"]
