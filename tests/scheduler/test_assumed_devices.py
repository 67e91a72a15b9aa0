"""Devices that are assumed for pods: until their claims are observed, or the binding fails."""

from __future__ import annotations

from msgspec.structs import replace

from phalanx.api.dynamic_resources import EXTENDED_RESOURCE_CLAIM
from phalanx.api.meta import OwnerReference
from phalanx.api.other_kinds import DeviceClaim
from phalanx.scheduler.decision import Placed, Waiting
from phalanx.scheduler.queue.decision_log import PodObserved, ResourceClaimObserved
from tests.scheduler.device_builders import (
    allocated,
    claim,
    decide,
    device_class,
    devices_of,
    gpus,
    node,
    pod,
    resource_slice,
    state_of,
)

GPU = device_class()


def test_assumed_devices_are_free_if_another_client_bound_the_pod_and_the_binding_fails() -> None:
    objects = [GPU, resource_slice("n1", gpus(1)), claim("one"), claim("two")]
    state = state_of([node("n1"), node("n2")], objects, [pod("a", "one")])
    first = decide(state)
    assert isinstance(first, Placed)
    by_hand = pod("a", "one", nodeName="n2")
    state.observe(PodObserved(1.0, by_hand.metadata.key, by_hand))
    assert state.cache.devices.has_assumed
    state.rollback(first.bindings, 2.0)
    assert not state.cache.devices.has_assumed
    assert state.cache.check() == []
    state.observe(PodObserved(3.0, pod("b").metadata.key, pod("b", "two")))
    assert devices_of(decide(state)) == {"two": ["n1/gpu-0"]}


def test_devices_of_an_extended_resource_stay_assumed_until_their_claim_is_allocated() -> None:
    served = device_class("gpu", extendedResourceName="example.com/gpu")
    pods = [pod(name, requests={"example.com/gpu": "1"}) for name in "pq"]
    state = state_of([node("n1")], [served, resource_slice("n1", gpus(1))], pods)
    assert devices_of(decide(state)) == {"p-extended-resources-": ["n1/gpu-0"]}
    # A foreign server shows the claim first, then its status.
    owner = OwnerReference("v1", "Pod", "p", "pod-p", controller=True)

    def observe(shown: DeviceClaim) -> None:
        meta = replace(
            shown.metadata,
            annotations={EXTENDED_RESOURCE_CLAIM: "true"},
            owner_references=(owner,),
        )
        new = replace(shown, metadata=meta)
        state.observe(ResourceClaimObserved(1.0, meta.key, new))

    observe(claim("p-extended-resources-x"))
    assert isinstance(decide(state), Waiting)
    observe(allocated("p-extended-resources-x", "n1/gpu-0", "p"))
    assert not state.cache.devices.has_assumed
    assert state.cache.check() == []
