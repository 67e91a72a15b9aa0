"""Pods and gangs with claims: decisions, packing, shared claims, preemption, replay."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.api.core import Pod
from phalanx.api.meta import Key, pod_group_ref, pod_ref
from phalanx.api.other_kinds import DeviceClaim
from phalanx.scheduler.decision import (
    UNSCHEDULABLE,
    ClusterEvent,
    Impossible,
    MissingClaims,
    Placed,
    Preempting,
    Waiting,
)
from phalanx.scheduler.devices.inventory import DeviceInventory
from phalanx.scheduler.devices.requests import build_requests, describe_claim
from phalanx.scheduler.diagnosis.diagnosis import diagnose
from phalanx.scheduler.explain import describe_unready, explain
from phalanx.scheduler.queue.decision_log import (
    DeviceTaintRuleObserved,
    PodObserved,
    ResourceClaimObserved,
    ResourceSliceObserved,
    decode_decision,
    encode_decision,
)
from phalanx.scheduler.queue.scheduler_state import ClusterObjects
from tests.scheduler.device_builders import (
    DRIVER,
    allocated,
    claim,
    claim_spec,
    decide,
    device,
    device_class,
    devices_of,
    exactly,
    gang,
    gpus,
    node,
    nodes_of,
    pod,
    resource_slice,
    state_of,
    taint_rule,
)

GPU = device_class()


def test_pod_gets_the_first_device_of_the_node_that_has_one() -> None:
    state = state_of(
        [node("n1"), node("n2")],
        [GPU, resource_slice("n2", gpus(2)), claim("one")],
        [pod("p", "one")],
    )
    decision = decide(state)
    assert nodes_of(decision) == {"p": "n2"}
    assert devices_of(decision) == {"one": ["n2/gpu-0"]}
    assert isinstance(decision, Placed)
    (reserved,) = decision.claims
    assert reserved.consumer.name == "p"
    assert reserved.uid == "claim-one"


def test_members_of_a_gang_never_count_on_the_same_device() -> None:
    objects = [GPU, resource_slice("n1", gpus(2)), *(claim(f"c{n}") for n in range(3))]
    members = [pod(f"m{n}", f"c{n}", group="g") for n in range(3)]
    decision = decide(state_of([node("n1")], objects, members, [gang("g", 3)]))
    assert isinstance(decision, Waiting)
    assert decision.reason == UNSCHEDULABLE
    assert "cannot allocate all claims" in explain(decision).pods[-1].message
    more = [*objects, resource_slice("n2", gpus(1))]
    placed = decide(state_of([node("n1"), node("n2")], more, members, [gang("g", 3)]))
    chosen = [one for devices in devices_of(placed).values() for one in devices]
    assert sorted(chosen) == ["n1/gpu-0", "n1/gpu-1", "n2/gpu-0"]


def test_devices_are_packed_on_the_nodes_that_are_used_most() -> None:
    state = state_of(
        [node("n1"), node("n2"), node("n3")],
        [
            GPU,
            *(resource_slice(name, gpus(4)) for name in ("n1", "n2", "n3")),
            allocated("held", "n2/gpu-0", "other"),
            *(claim(f"c{n}") for n in range(4)),
        ],
        [pod(f"m{n}", f"c{n}", group="g") for n in range(4)],
        [gang("g", 4)],
    )
    assert sorted(nodes_of(decide(state)).values()) == ["n1", "n2", "n2", "n2"]


@pytest.mark.parametrize("sizes", [(1, 1), (1, 2)])
def test_gang_takes_the_rack_in_which_its_devices_fit_most_tightly(sizes: tuple[int, int]) -> None:
    """Equal members, and members that differ in CPUs; CPUs alone would choose the other rack."""
    racks = {"n1": "wide", "n2": "wide", "n3": "tight", "n4": "tight"}
    state = state_of(
        [node(name, 64, rack=rack) for name, rack in racks.items()],
        [
            GPU,
            *(resource_slice(name, gpus(4)) for name in racks),
            *(allocated(f"held-{n}", f"n3/gpu-{n}", "other") for n in range(3)),
            *(claim(f"c{n}") for n in range(2)),
        ],
        [
            pod("busy", on="n1", cpu="40"),
            *(pod(f"m{n}", f"c{n}", group="g", cpu=str(cpu)) for n, cpu in enumerate(sizes)),
        ],
        [gang("g", 2, schedulingConstraints={"topology": [{"key": "rack"}]})],
    )
    chosen = nodes_of(decide(state)).values()
    assert {racks[name] for name in chosen} == {"tight"}


def test_assumed_devices_are_not_given_twice_and_are_free_after_a_rollback() -> None:
    objects = [GPU, resource_slice("n1", gpus(1)), claim("one"), claim("two")]
    state = state_of([node("n1")], objects, [pod("a", "one"), pod("b", "two")])
    first = decide(state)
    assert isinstance(first, Placed)
    assert isinstance(decide(state), Waiting)
    state.rollback(first.bindings, 1.0)
    assert devices_of(decide(state)) == {"two": ["n1/gpu-0"]}


def test_assumed_devices_are_free_when_the_pod_goes_before_its_binding() -> None:
    objects = [GPU, resource_slice("n1", gpus(1)), claim("one"), claim("two")]
    state = state_of([node("n1")], objects, [pod("a", "one")])
    first = decide(state)
    assert isinstance(first, Placed)
    state.observe(PodObserved(1.0, first.bindings[0].pod, None))
    state.rollback(first.bindings, 1.0)
    state.observe(PodObserved(2.0, pod("b").metadata.key, pod("b", "two")))
    assert devices_of(decide(state)) == {"two": ["n1/gpu-0"]}


def test_allocated_claim_pins_its_pods_to_its_node() -> None:
    objects = [GPU, resource_slice("n1", gpus(1)), allocated("one", "n1/gpu-0", "first")]
    decision = decide(state_of([node("n1"), node("n2", 64)], objects, [pod("second", "one")]))
    assert nodes_of(decision) == {"second": "n1"}
    assert isinstance(decision, Placed)
    assert [one.allocation for one in decision.claims] == [None]
    gone = decide(state_of([node("n2")], objects, [pod("second", "one")]))
    assert "resourceclaim not available on the node" in explain(gone).pods[0].message


def shared_members(count: int) -> list[Pod]:
    return [pod(f"m{n}", "net", group="g") for n in range(count)]


def test_shared_claim_is_allocated_once_where_all_members_have_room() -> None:
    """The first node has fewer devices, and room for one member only."""
    state = state_of(
        [node("n1", 1), node("n2", 8)],
        [GPU, resource_slice("n1", gpus(1)), resource_slice("n2", gpus(2)), claim("net")],
        shared_members(3),
        [gang("g", 3)],
    )
    decision = decide(state)
    assert set(nodes_of(decision).values()) == {"n2"}
    assert devices_of(decision) == {"net": ["n2/gpu-0"]}
    assert isinstance(decision, Placed)
    assert sorted(one.consumer.name for one in decision.claims) == ["m0", "m1", "m2"]


def test_shared_network_device_keeps_the_gang_in_its_rack() -> None:
    terms = [{"matchExpressions": [{"key": "rack", "operator": "In", "values": ["b"]}]}]
    switch = resource_slice(
        "", [device("switch")], pool="fabric", nodeSelector={"nodeSelectorTerms": terms}
    )
    state = state_of(
        [node("n1", 64, rack="a"), node("n2", 2, rack="b"), node("n3", 2, rack="b")],
        [GPU, switch, claim("net")],
        shared_members(4),
        [gang("g", 4)],
    )
    assert set(nodes_of(decide(state)).values()) == {"n2", "n3"}


def test_claim_of_the_group_is_reserved_for_the_group() -> None:
    entry = {"name": "entry-net", "resourceClaimName": "net"}
    state = state_of(
        [node("n1")],
        [GPU, resource_slice("n1", gpus(1)), claim("net")],
        shared_members(2),
        [gang("g", 2, resourceClaims=[entry])],
    )
    decision = decide(state)
    assert isinstance(decision, Placed)
    assert [(one.consumer.resource, one.consumer.name) for one in decision.claims] == [
        ("podgroups", "g")
    ]


def test_claim_of_the_group_that_no_node_can_serve_is_a_proof() -> None:
    state = state_of(
        [node("n1"), node("n2")],
        [
            GPU,
            resource_slice("n1", gpus(2)),
            resource_slice("n2", gpus(2)),
            claim("net", exactly(count=3)),
        ],
        shared_members(2),
        [gang("g", 2)],
    )
    decision = decide(state)
    assert isinstance(decision, Waiting)
    assert decision.reason == UNSCHEDULABLE


@pytest.mark.parametrize("spread", [False, True])
def test_gang_in_one_rack_gets_devices_of_that_rack(spread: bool) -> None:
    topology = {"schedulingConstraints": {"topology": [{"key": "rack"}]}}
    sizes = {"n1": 2, "n2": 1, "n3": 2, "n4": 2}
    racks = {"n1": "a", "n2": "a", "n3": "b", "n4": "b"}
    affinity: Any = {
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 1,
                    "podAffinityTerm": {
                        "labelSelector": {"matchLabels": {"a": "b"}},
                        "topologyKey": "kubernetes.io/hostname",
                    },
                }
            ]
        }
    }
    state = state_of(
        [node(name, rack=rack) for name, rack in racks.items()],
        [
            GPU,
            *(resource_slice(name, gpus(count)) for name, count in sizes.items()),
            *(claim(f"c{n}") for n in range(4)),
        ],
        [pod(f"m{n}", f"c{n}", group="g", affinity=affinity if spread else None) for n in range(4)],
        [gang("g", 4, **topology)],
    )
    assert set(nodes_of(decide(state)).values()) == {"n3", "n4"}


def test_pod_waits_until_its_claim_exists() -> None:
    state = state_of([node("n1")], [GPU, resource_slice("n1", gpus(1))], [pod("p", "one")])
    assert state.pop(0.0) is None
    (held,) = state.queue.list_held_back()
    assert held.unready == MissingClaims(("p",), 'resourceclaim "one" not found')
    assert describe_unready(held.unready) == (
        'waiting for the resource claims of p: resourceclaim "one" not found'
    )
    state.observe(ResourceClaimObserved(1.0, claim("one").metadata.key, claim("one")))
    assert devices_of(decide(state)) == {"one": ["n1/gpu-0"]}


def with_meta(one: DeviceClaim, **fields: object) -> DeviceClaim:
    return msgspec.structs.replace(one, metadata=msgspec.structs.replace(one.metadata, **fields))


def test_pod_waits_for_a_claim_that_is_being_deleted() -> None:
    leaving = with_meta(claim("one"), deletion_timestamp="2026-01-01T00:00:00Z")
    state = state_of([node("n1")], [GPU, leaving], [pod("p", "one")])
    (held,) = state.queue.list_held_back()
    assert isinstance(held.unready, MissingClaims)
    assert held.unready.problem == 'resourceclaim "one" is being deleted'


def test_pod_waits_for_the_claim_of_its_template() -> None:
    entries = [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]
    waiting = pod("p", resourceClaims=entries)
    state = state_of([node("n1")], [GPU], [waiting])
    (held,) = state.queue.list_held_back()
    assert isinstance(held.unready, MissingClaims)
    assert held.unready.problem == 'the claim for "gpu" has not been created yet'
    status = msgspec.convert(
        {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "p-gpu-x"}]},
        type(waiting.status),
    )
    named = msgspec.structs.replace(waiting, status=status)
    state = state_of([node("n1")], [GPU, claim("p-gpu-x")], [named])
    (held,) = state.queue.list_held_back()
    assert isinstance(held.unready, MissingClaims)
    assert held.unready.problem == 'resourceclaim "p-gpu-x" was not created for pod p'


def test_missing_class_is_named() -> None:
    state = state_of([node("n1")], [resource_slice("n1", gpus(1)), claim("one")], [pod("p", "one")])
    decision = decide(state)
    assert "request gpu: device class gpu does not exist" in explain(decision).pods[0].message
    assert isinstance(decision, Waiting)
    assert ClusterEvent.DEVICES_CHANGED in decision.wakes_on


def test_selector_without_a_result_is_named() -> None:
    broken = device_class("gpu", 'device.attributes["gpu.example"].size == "x"')
    state = state_of(
        [node("n1")], [broken, resource_slice("n1", gpus(1)), claim("one")], [pod("p", "one")]
    )
    assert "no such key: size" in explain(decide(state)).pods[0].message


def test_freed_device_wakes_a_waiting_pod() -> None:
    held = allocated("held", "n1/gpu-0", "other")
    state = state_of(
        [node("n1")], [GPU, resource_slice("n1", gpus(1)), held, claim("one")], [pod("p", "one")]
    )
    assert isinstance(decide(state), Waiting)
    assert state.pop(0.5) is None
    state.observe(ResourceClaimObserved(1.0, held.metadata.key, claim("held")))
    assert devices_of(decide(state)) == {"one": ["n1/gpu-0"]}


def test_published_devices_and_removed_taints_wake_a_waiting_pod() -> None:
    state = state_of([node("n1")], [GPU, claim("one")], [pod("p", "one")])
    assert isinstance(decide(state), Waiting)
    rule = taint_rule("off", deviceSelector={}, taint={"key": "x", "effect": "NoSchedule"})
    state.observe(DeviceTaintRuleObserved(1.0, "off", rule))
    new = resource_slice("n1", gpus(1))
    state.observe(ResourceSliceObserved(2.0, new.metadata.name, new))
    assert isinstance(decide(state), Waiting)
    state.observe(DeviceTaintRuleObserved(3.0, "off", None))
    assert isinstance(decide(state), Placed)


def test_more_important_pod_evicts_the_cheapest_holder_of_a_device() -> None:
    state = state_of(
        [node("n1"), node("n2")],
        [
            GPU,
            resource_slice("n1", gpus(1)),
            resource_slice("n2", gpus(1)),
            allocated("a", "n1/gpu-0", "mid"),
            allocated("b", "n2/gpu-0", "low"),
            claim("one"),
        ],
        [
            pod("mid", "a", on="n1", priority=5),
            pod("low", "b", on="n2", priority=1),
            pod("plain", on="n2", priority=0),
            pod("high", "one", priority=10),
        ],
    )
    decision = decide(state)
    assert isinstance(decision, Preempting)
    assert [one.pod.name for one in decision.victims] == ["low"]


def test_nothing_is_evicted_while_the_claim_of_a_gone_pod_is_being_released() -> None:
    state = state_of(
        [node("n1")],
        [
            GPU,
            resource_slice("n1", gpus(2)),
            allocated("a", "n1/gpu-0", "gone"),
            allocated("b", "n1/gpu-1", "low"),
            claim("one"),
        ],
        [pod("low", "b", on="n1", priority=1), pod("high", "one", priority=10)],
    )
    assert isinstance(decide(state), Waiting)


def test_gang_evicts_as_many_holders_as_it_needs_devices() -> None:
    state = state_of(
        [node("n1", 64)],
        [
            GPU,
            resource_slice("n1", gpus(4)),
            *(allocated(f"h{n}", f"n1/gpu-{n}", f"low{n}") for n in range(3)),
            *(claim(f"c{n}") for n in range(3)),
        ],
        [
            *(pod(f"low{n}", f"h{n}", on="n1", priority=1) for n in range(3)),
            *(pod(f"m{n}", f"c{n}", group="g", priority=10) for n in range(3)),
        ],
        [gang("g", 3, priority=10)],
    )
    decision = decide(state)
    assert isinstance(decision, Preempting)
    assert len(decision.victims) == 2


def test_claim_of_a_group_is_not_freed_by_evicting_its_members() -> None:
    group_claim = msgspec.structs.replace(
        allocated("net", "n1/gpu-0"),
        status=msgspec.convert(
            {
                "allocation": allocated("net", "n1/gpu-0").status.allocation,
                "reservedFor": [
                    {
                        "apiGroup": "scheduling.k8s.io",
                        "resource": "podgroups",
                        "name": "g",
                        "uid": "group-g",
                    }
                ],
            },
            type(claim("x").status),
        ),
    )
    state = state_of(
        [node("n1")],
        [GPU, resource_slice("n1", gpus(1)), group_claim, claim("one")],
        [pod("m0", "net", group="g", on="n1", priority=1), pod("high", "one", priority=10)],
        [gang("g", 1, priority=1)],
    )
    assert isinstance(decide(state), Waiting)


def test_extended_resource_is_served_by_devices_where_no_node_lists_it() -> None:
    served = device_class("gpu", extendedResourceName="example.com/gpu")
    asking = pod("p", requests={"example.com/gpu": "2"})
    state = state_of([node("n1")], [served, resource_slice("n1", gpus(3))], [asking])
    decision = decide(state)
    assert isinstance(decision, Placed)
    (made,) = decision.claims
    assert made.spec is not None
    assert made.request_mappings == (
        {
            "containerName": "main",
            "resourceName": "example.com/gpu",
            "requestName": "container-0-request-1",
        },
    )
    assert devices_of(decision) == {"p-extended-resources-": ["n1/gpu-0", "n1/gpu-1"]}
    # The devices stay assumed until the new claim is observed.
    other = pod("q", requests={"example.com/gpu": "2"})
    assert state.cache.devices.assumed_claims() == [made]
    assert isinstance(
        decide(state_of([node("n1")], [served, resource_slice("n1", gpus(1))], [other])), Waiting
    )


def test_decision_with_claims_can_be_recorded() -> None:
    state = state_of(
        [node("n1")], [GPU, resource_slice("n1", gpus(1)), claim("one")], [pod("p", "one")]
    )
    decision = decide(state)
    assert decode_decision(msgspec.json.decode(msgspec.json.encode(encode_decision(decision)))) == (
        decision
    )


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=3),
    st.lists(st.integers(1, 3), min_size=1, max_size=4),
)
def test_gang_is_placed_only_if_its_devices_fit(free: list[int], wanted: list[int]) -> None:
    """Every decision is valid, and a refusal is a proof or says that it is none."""
    state = state_of(
        [node(f"n{i}", 64) for i in range(len(free))],
        [
            GPU,
            *(resource_slice(f"n{i}", gpus(count)) for i, count in enumerate(free)),
            *(claim(f"c{n}", exactly(count=count)) for n, count in enumerate(wanted)),
        ],
        [pod(f"m{n}", f"c{n}", group="g") for n in range(len(wanted))],
        [gang("g", len(wanted))],
    )
    decision = decide(state)
    assert not isinstance(decision, Impossible)
    fits = _fits(sorted(wanted, reverse=True), list(free))
    if isinstance(decision, Placed):
        chosen = [one for devices in devices_of(decision).values() for one in devices]
        assert len(set(chosen)) == len(chosen) == sum(wanted)
        assert fits
    elif fits:
        assert isinstance(decision, Waiting)
        assert decision.reason != UNSCHEDULABLE


def _fits(wanted: list[int], free: list[int]) -> bool:
    if not wanted:
        return True
    for i, count in enumerate(free):
        if count >= wanted[0]:
            rest = [*free[:i], count - wanted[0], *free[i + 1 :]]
            if _fits(wanted[1:], rest):
                return True
    return False


def test_diagnosis_says_how_many_members_find_a_device_and_what_to_add() -> None:
    expression = f'device.capacity["{DRIVER}"].memory.compareTo(quantity("80Gi")) >= 0'
    large = exactly(selectors=[{"cel": {"expression": expression}}])
    sizes = ("80Gi", "80Gi", "40Gi")
    objects = ClusterObjects(
        [node(f"n{i}") for i in range(3)],
        [gang("g", 4)],
        [pod(f"m{n}", f"c{n}", group="g") for n in range(4)],
        devices=[
            GPU,
            *(
                resource_slice(f"n{i}", [device("gpu-0", capacity={"memory": size})])
                for i, size in enumerate(sizes)
            ),
            *(claim(f"c{n}", large) for n in range(4)),
        ],
    )
    found = diagnose(pod_group_ref(Key("default", "g")), objects)
    assert found.evidence is not None
    text = "2 of 4 members find a device of class gpu with memory ≥ 80Gi"
    assert found.evidence.devices == (text,)
    assert {row.limit for row in found.evidence.rows} == {"devices"}
    assert sum(row.fit for row in found.evidence.rows) == 2
    cures = [cure.text for cure in found.cures if cure.is_verified]
    assert any(text.startswith("add 2 nodes like n0") for text in cures)


@pytest.mark.parametrize(
    ("objects", "cures"),
    [
        (
            [claim("c")],
            ["create what is missing: request gpu: device class gpu does not exist"],
        ),
        (
            [GPU, claim("c")],
            [
                "add to node n or free there: a device of class gpu",
                "add a node with capacity for cpu 1 and a device of class gpu",
            ],
        ),
        (
            [GPU, allocated("c", "gone/gpu-0")],
            ["delete the claims that are allocated elsewhere, or the pods that use them"],
        ),
    ],
)
def test_cures_of_a_pod_name_what_its_claim_lacks(objects: list[Any], cures: list[str]) -> None:
    cluster = ClusterObjects([node("n")], [], [pod("p", "c")], devices=objects)
    found = diagnose(pod_ref(Key("default", "p")), cluster)
    assert [cure.text for cure in found.cures] == cures


@pytest.mark.parametrize(
    ("expressions", "number", "expected"),
    [
        ([], 2, "2 devices of class gpu"),
        (['device.attributes["x"].model == "h100"'], 1, "a device of class gpu with model h100"),
        (["device.allowMultipleAllocations"], 1,
         "a device of class gpu with device.allowMultipleAllocations"),
    ],
)  # fmt: skip
def test_claim_is_described_by_its_requests(
    expressions: list[str], number: int, expected: str
) -> None:
    inventory = DeviceInventory()
    inventory.update_class("gpu", GPU)
    selectors = [{"cel": {"expression": one}} for one in expressions]
    requests = build_requests(claim_spec(exactly(count=number, selectors=selectors)), inventory)
    assert describe_claim(requests, inventory) == expected
