"""Which devices claims get: recorded order, constraints, shares, counters; and brute force."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import combinations_with_replacement, product
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from phalanx.api.dynamic_resources import ResourceClaimSpec, ResourceSlice
from phalanx.api.wire import Object
from phalanx.scheduler.devices import allocator
from phalanx.scheduler.devices.allocator import (
    AllocationLimit,
    NodeDevices,
    allocate_claims,
    build_allocation,
)
from phalanx.scheduler.devices.inventory import DeviceId, DeviceInventory
from phalanx.scheduler.devices.requests import build_requests
from phalanx.scheduler.devices.usage import DeviceUsage, DeviceUse
from tests.scheduler.device_builders import (
    DRIVER,
    claim_spec,
    device,
    device_class,
    exactly,
    gpus,
    resource_slice,
)

NUMA = {"matchAttribute": f"{DRIVER}/numa"}
DISTINCT = {"distinctAttribute": f"{DRIVER}/numa"}


def inventory(*slices: ResourceSlice) -> DeviceInventory:
    found = DeviceInventory()
    for one in slices:
        found.update_slice(one.metadata.name, one)
    found.update_class("gpu", device_class())
    large = f'device.capacity["{DRIVER}"].memory.compareTo(quantity("40Gi")) >= 0'
    found.update_class("large", device_class("large", large))
    found.update_class(
        "nic", device_class("nic", f'device.attributes["{DRIVER}"].?kind.orValue("") == "nic"')
    )
    return found


def allocate(
    devices: Sequence[Object],
    *specs: ResourceClaimSpec,
    used: Sequence[str] = (),
    shares: Sequence[DeviceUse] = (),
    **slice_fields: Any,
) -> list[list[str]] | None:
    """The names of the devices that each claim gets on node n1."""
    found = inventory(resource_slice("n1", devices, **slice_fields))
    usage = DeviceUsage()
    usage.add([DeviceUse(DeviceId(DRIVER, "n1", name)) for name in used])
    usage.add(shares)
    claims = [build_requests(one, found) for one in specs]
    assert not any(claim.problem for claim in claims)
    choices = allocate_claims(
        claims, NodeDevices(found, "n1", lambda reach: True), found, usage=usage
    )
    if choices is None:
        return None
    return [[choice.device.id.device for choice in claim] for claim in choices]


def test_first_free_device_is_taken() -> None:
    assert allocate(gpus(3), claim_spec(), used=["gpu-0"]) == [["gpu-1"]]


def test_two_claims_never_get_one_device() -> None:
    assert allocate(gpus(2), claim_spec(), claim_spec()) == [["gpu-0"], ["gpu-1"]]
    assert allocate(gpus(1), claim_spec(), claim_spec()) is None


def test_exact_count_needs_as_many_devices() -> None:
    assert allocate(gpus(3), claim_spec(exactly(count=2))) == [["gpu-0", "gpu-1"]]
    assert allocate(gpus(3), claim_spec(exactly(count=2)), used=["gpu-0", "gpu-2"]) is None


def test_all_takes_every_device_or_none() -> None:
    every = claim_spec(exactly(allocationMode="All"))
    assert allocate(gpus(3), every) == [["gpu-0", "gpu-1", "gpu-2"]]
    assert allocate(gpus(3), every, used=["gpu-1"]) is None
    assert allocate([], every) is None


def test_all_fails_while_a_pool_of_the_node_is_incomplete() -> None:
    found = inventory(
        resource_slice("n1", gpus(1)),
        resource_slice("n1", gpus(1), name="other", pool="p2", slices=2),
    )
    claims = [build_requests(claim_spec(exactly(allocationMode="All")), found)]
    devices = NodeDevices(found, "n1", lambda reach: True)
    assert allocate_claims(claims, devices, found, usage=DeviceUsage()) is None


def test_all_takes_only_devices_with_the_capacity_that_the_request_names() -> None:
    devices = [
        device("small", capacity={"memory": "10Gi"}),
        device("large", capacity={"memory": "80Gi"}),
        device("shared", capacity={"memory": "80Gi"}, allowMultipleAllocations=True),
        device("full", capacity={"memory": "80Gi"}, allowMultipleAllocations=True),
    ]
    request = exactly(allocationMode="All", capacity={"requests": {"memory": "40Gi"}})
    taken = [DeviceUse(DeviceId(DRIVER, "n1", "full"), {"memory": Fraction(60 << 30)})]
    assert allocate(devices, claim_spec(request), shares=taken) == [["large", "shared"]]
    assert allocate(devices[:1], claim_spec(request)) is None


def opaque(mode: str, *requests: str) -> Object:
    """Configuration of a class, or of some requests of a claim."""
    found: Object = {"opaque": {"driver": DRIVER, "parameters": {"mode": mode}}}
    return {**found, "requests": list(requests)} if requests else found


def test_configuration_names_the_requests_that_it_concerns() -> None:
    found = inventory(resource_slice("n1", gpus(4)))
    found.update_class("gpu", device_class(config=[opaque("class")]))
    alternatives = [
        {"name": "large", "deviceClassName": "large", "count": 1},
        {"name": "small", "deviceClassName": "gpu", "count": 1},
    ]
    requests = [{"name": "any", "firstAvailable": alternatives}, exactly("a"), exactly("b", 2)]
    given = msgspec.convert(
        {
            "devices": {
                "requests": requests,
                "config": [
                    opaque("large", "any/large"),
                    opaque("small", "any/small"),
                    opaque("a", "a"),
                    opaque("every", "any", "a", "b"),
                    opaque("all"),
                ],
            }
        },
        ResourceClaimSpec,
    )
    claims = [build_requests(given, found)]
    devices = NodeDevices(found, "n1", lambda reach: True)
    choices = allocate_claims(claims, devices, found, usage=DeviceUsage())
    assert choices is not None
    config = build_allocation(claims[0], choices[0], "n1")["devices"]["config"]
    assert [
        (one["source"], one["opaque"]["parameters"]["mode"], one.get("requests")) for one in config
    ] == [
        ("FromClass", "class", None),
        ("FromClaim", "small", ["any/small"]),
        ("FromClaim", "a", ["a"]),
        ("FromClaim", "every", None),
        ("FromClaim", "all", None),
    ]


def test_configuration_of_a_class_names_its_requests_if_there_are_others() -> None:
    nic = device("nic-0", attributes={"kind": "nic"})
    found = inventory(resource_slice("n1", [nic, *gpus(2)]))
    found.update_class("gpu", device_class(config=[opaque("class")]))
    claims = [build_requests(claim_spec(exactly("net", deviceClassName="nic"), exactly()), found)]
    devices = NodeDevices(found, "n1", lambda reach: True)
    choices = allocate_claims(claims, devices, found, usage=DeviceUsage())
    assert choices is not None
    (entry,) = build_allocation(claims[0], choices[0], "n1")["devices"]["config"]
    assert (entry["source"], entry["requests"]) == ("FromClass", ["gpu"])


def test_all_fails_if_a_selected_device_is_tainted() -> None:
    tainted = device("b", taints=[{"key": "x", "effect": "NoSchedule"}])
    assert allocate([device("a"), tainted], claim_spec(exactly(allocationMode="All"))) is None


def test_first_alternative_that_can_be_had_is_taken() -> None:
    request = {
        "name": "gpu",
        "firstAvailable": [
            {"name": "big", "deviceClassName": "large"},
            {"name": "pair", "deviceClassName": "gpu", "count": 2},
        ],
    }
    small = [device(f"s{n}", capacity={"memory": "16Gi"}) for n in range(2)]
    big = device("b", capacity={"memory": "80Gi"})
    assert allocate([*small, big], claim_spec(request)) == [["b"]]
    assert allocate(small, claim_spec(request)) == [["s0", "s1"]]
    assert allocate([*small, big], claim_spec(request), used=["b", "s0"]) is None


def test_devices_of_requests_agree_in_an_attribute() -> None:
    devices = [
        device("gpu-0", attributes={"numa": 0}),
        device("gpu-1", attributes={"numa": 1}),
        device("nic-1", attributes={"numa": 1, "kind": "nic"}),
    ]
    nic = {"name": "nic", "exactly": {"deviceClassName": "nic", "count": 1}}
    constraint = {"requests": ["gpu", "nic"], **NUMA}
    assert allocate(devices, claim_spec(exactly(), nic, constraints=[constraint])) == [
        ["gpu-1", "nic-1"]
    ]


def test_devices_differ_in_a_distinct_attribute() -> None:
    devices = [device(f"g{n}", attributes={"numa": n // 2}) for n in range(4)]
    assert allocate(devices, claim_spec(exactly(count=2), constraints=[DISTINCT])) == [["g0", "g2"]]
    assert allocate(devices, claim_spec(exactly(count=3), constraints=[DISTINCT])) is None


def test_device_without_the_attribute_does_not_qualify() -> None:
    devices = [device("plain"), device("g0", attributes={"numa": 0})]
    assert allocate(devices, claim_spec(constraints=[NUMA])) == [["g0"]]


def test_admin_access_ignores_other_claims_and_keeps_nothing_from_them() -> None:
    watch = claim_spec(exactly("watch", adminAccess=True))
    assert allocate(gpus(1), watch, claim_spec(), used=[]) == [["gpu-0"], ["gpu-0"]]
    assert allocate(gpus(1), watch, used=["gpu-0"]) == [["gpu-0"]]


def test_claim_with_admin_access_has_every_device_once() -> None:
    twice = claim_spec(exactly("a", adminAccess=True), exactly("b", adminAccess=True))
    assert allocate(gpus(2), twice) == [["gpu-0", "gpu-1"]]
    assert allocate(gpus(1), twice) is None


def memory(amount: str) -> Object:
    return exactly(capacity={"requests": {"memory": amount}})


def test_shareable_device_is_shared_until_its_capacity_is_used_up() -> None:
    shared = [device("s", allowMultipleAllocations=True, capacity={"memory": "10Gi"})]
    four = claim_spec(memory("4Gi"))
    assert allocate(shared, four, four) == [["s"], ["s"]]
    assert allocate(shared, four, four, four) is None
    share = DeviceUse(DeviceId(DRIVER, "n1", "s"), {"memory": 7 * 1024**3})  # type: ignore[dict-item]
    assert allocate(shared, four, shares=[share]) is None


def test_shared_device_may_serve_one_request_twice_unless_devices_must_differ() -> None:
    shared = [
        device(
            name, allowMultipleAllocations=True, capacity={"memory": "10Gi"}, attributes={"numa": n}
        )
        for n, name in enumerate("st")
    ]
    twice = exactly(count=2, capacity={"requests": {"memory": "4Gi"}})
    assert allocate(shared, claim_spec(twice)) == [["s", "s"]]
    assert allocate(shared, claim_spec(twice, constraints=[DISTINCT])) == [["s", "t"]]
    assert allocate(shared[:1], claim_spec(twice, constraints=[DISTINCT])) is None


@pytest.mark.parametrize(
    ("policy", "wanted", "consumed"),
    [
        ({"default": "2Gi"}, None, "2Gi"),
        ({"validValues": ["1Gi", "4Gi"]}, "2Gi", "4Gi"),
        ({"validValues": ["1Gi"]}, "2Gi", None),
        ({"validRange": {"min": "2Gi"}}, "1Gi", "2Gi"),
        ({"validRange": {"min": "1Gi", "step": "2Gi"}}, "2Gi", "3Gi"),
        ({"validRange": {"min": "1Gi", "max": "4Gi"}}, "5Gi", None),
        (None, None, "10Gi"),
    ],
)
def test_share_follows_the_request_policy(
    policy: Object | None, wanted: str | None, consumed: str | None
) -> None:
    capacity = {"value": "10Gi", **({"requestPolicy": policy} if policy else {})}
    found = inventory(
        resource_slice(
            "n1", [device("s", allowMultipleAllocations=True, capacity={"memory": capacity})]
        )
    )
    claim = build_requests(claim_spec(memory(wanted) if wanted else exactly()), found)
    choices = allocate_claims(
        [claim], NodeDevices(found, "n1", lambda reach: True), found, usage=DeviceUsage()
    )
    if consumed is None:
        assert choices is None
        return
    assert choices is not None
    (result,) = build_allocation(claim, choices[0], "n1")["devices"]["results"]
    assert result["consumedCapacity"] == {"memory": consumed}


def test_request_names_a_capacity_that_the_device_must_have() -> None:
    devices = [
        device("small", capacity={"memory": "8Gi"}),
        device("big", capacity={"memory": "80Gi"}),
    ]
    assert allocate(devices, claim_spec(memory("40Gi"))) == [["big"]]
    assert allocate([device("none")], claim_spec(memory("1Gi"))) is None
    shared = [device("s", allowMultipleAllocations=True, capacity={"cores": "4"})]
    assert allocate(shared, claim_spec(memory("1Gi"))) is None


def test_devices_fit_while_the_shared_counters_of_the_pool_last() -> None:
    def part(name: str, slots: str) -> Object:
        counters = [{"counterSet": "card", "counters": {"slots": {"value": slots}}}]
        return device(name, consumesCounters=counters)

    devices = [part("half-0", "4"), part("half-1", "4"), part("whole", "8")]
    counters = [{"name": "card", "counters": {"slots": {"value": "8"}}}]
    one = claim_spec()
    assert allocate(devices, one, one, sharedCounters=counters) == [["half-0"], ["half-1"]]
    assert allocate(devices, one, used=["whole"], sharedCounters=counters) is None
    assert allocate(devices, one, one, one, sharedCounters=counters) is None


def test_shared_device_takes_its_counters_once() -> None:
    def part(name: str, **fields: Any) -> Object:
        counters = [{"counterSet": "card", "counters": {"slots": {"value": "4"}}}]
        return device(name, consumesCounters=counters, **fields)

    shared = part("s", allowMultipleAllocations=True, capacity={"memory": "8Gi"})
    counters = [{"name": "card", "counters": {"slots": {"value": "4"}}}]
    half = claim_spec(memory("4Gi"))
    assert allocate([shared], half, half, sharedCounters=counters) == [["s"], ["s"]]
    assert allocate([shared, part("t")], half, claim_spec(), sharedCounters=counters) is None


def test_long_search_is_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator, "MAX_STEPS", 50)
    devices = [device(f"g{n}", attributes={"numa": n, "odd": n}) for n in range(12)]
    impossible = claim_spec(exactly(count=4), constraints=[NUMA, {**DISTINCT}])
    with pytest.raises(AllocationLimit):
        allocate(devices, impossible)


def test_interchangeable_devices_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator, "MAX_STEPS", 200)
    assert allocate(gpus(16), claim_spec(exactly(count=8)), claim_spec(exactly(count=9))) is None


def test_missing_class_and_too_many_devices_are_problems() -> None:
    found = inventory()
    missing = {"name": "x", "exactly": {"deviceClassName": "none", "count": 1}}
    assert build_requests(claim_spec(missing), found).problem == (
        "request x: device class none does not exist"
    )
    assert "exceed the limit" in build_requests(claim_spec(exactly(count=33)), found).problem


def test_allocation_restricts_nodes_by_all_selectors() -> None:
    def selector(key: str) -> Object:
        terms = [{"matchExpressions": [{"key": key, "operator": "Exists"}]}]
        return {"nodeSelectorTerms": terms}

    found = inventory(
        resource_slice("", [device("a")], pool="p1", nodeSelector=selector("rack")),
        resource_slice("", [device("b")], pool="p2", nodeSelector=selector("zone")),
        resource_slice("", [device("c")], pool="p3", allNodes=True),
    )
    claim = build_requests(claim_spec(exactly(count=3)), found)
    devices = NodeDevices(found, "n1", lambda reach: True)
    choices = allocate_claims([claim], devices, found, usage=DeviceUsage())
    assert choices is not None
    (term,) = build_allocation(claim, choices[0], "n1")["nodeSelector"]["nodeSelectorTerms"]
    assert [one["key"] for one in term["matchExpressions"]] == ["rack", "zone"]
    only_all = build_requests(
        claim_spec(), inventory(resource_slice("", gpus(1), pool="p", allNodes=True))
    )
    assert only_all.is_countable


# ---- brute force ---------------------------------------------------------------------------------

DEVICES = st.lists(
    st.fixed_dictionaries(
        {
            "numa": st.sampled_from([0, 1, None]),
            "kind": st.sampled_from(["gpu", "nic"]),
            "slots": st.sampled_from([0, 0, 1, 2]),
            "is_tainted": st.sampled_from([False, False, False, True]),
            "memory": st.sampled_from([0, 0, 2, 3]),
        }
    ),
    max_size=4,
)
ALTERNATIVES = st.lists(
    st.tuples(st.sampled_from(["gpu", "nic", "any"]), st.integers(1, 2), st.booleans()),
    min_size=1,
    max_size=2,
)
CLAIMS = st.lists(
    st.tuples(
        st.lists(ALTERNATIVES, min_size=1, max_size=2),
        st.sampled_from([None, "match", "distinct"]),
    ),
    min_size=1,
    max_size=2,
)
_TAINT = {"key": "x", "effect": "NoSchedule"}


def published(number: int, model: Object) -> Object:
    """A device of a family: attributes, a taint, shared capacity, counters."""
    fields: Object = {
        "attributes": {k: v for k in ("numa", "kind") if (v := model[k]) is not None},
        "taints": [_TAINT] if model["is_tainted"] else [],
    }
    if model["memory"]:
        fields |= {
            "allowMultipleAllocations": True,
            "capacity": {
                "memory": {"value": str(model["memory"]), "requestPolicy": {"default": "1"}}
            },
        }
    if model["slots"]:
        value = {"slots": {"value": str(model["slots"])}}
        fields["consumesCounters"] = [{"counterSet": "card", "counters": value}]
    return device(f"d{number}", **fields)


def request(name: str, alternatives: Sequence[tuple[str, int, bool]]) -> Object:
    """A request for devices of a kind, that tolerates the taint or not."""
    found = []
    for number, (kind, count, tolerates) in enumerate(alternatives):
        expression = f'device.attributes["{DRIVER}"].kind == "{kind}"'
        found.append(
            {
                "name": f"a{number}",
                "deviceClassName": "gpu",
                "count": count,
                "selectors": [] if kind == "any" else [{"cel": {"expression": expression}}],
                "tolerations": [{"key": "x", "operator": "Exists"}] if tolerates else [],
            }
        )
    if len(found) > 1:
        return {"name": name, "firstAvailable": found}
    del found[0]["name"]
    return {"name": name, "exactly": found[0]}


def allocate_slowly(
    models: Sequence[Object], used: set[int], claims: Sequence[Any], slots: int
) -> list[list[str]] | None:
    """Try every combination of alternatives and devices in order; check each as a whole."""

    def options(alternatives: Sequence[tuple[str, int, bool]]) -> Iterator[tuple[int, ...]]:
        for kind, count, tolerates in alternatives:
            allowed = [
                n
                for n, model in enumerate(models)
                if kind in ("any", model["kind"]) and (tolerates or not model["is_tainted"])
            ]
            yield from combinations_with_replacement(allowed, count)

    requests = [(claim, one) for claim, (asked, _) in enumerate(claims) for one in asked]
    for chosen in product(*(list(options(one)) for _, one in requests)):
        taken = Counter(n for part in chosen for n in part)
        by_claim: list[list[int]] = [[] for _ in claims]
        for (claim, _), part in zip(requests, chosen, strict=True):
            by_claim[claim] += part
        if (
            all(
                count <= models[n]["memory"]
                if models[n]["memory"]
                else count == 1 and n not in used
                for n, count in taken.items()
            )
            and _slots(models, {*taken, *_in_use(models, used)}) <= slots
            and all(
                _satisfies([models[n]["numa"] for n in found], how)
                for found, (_, how) in zip(by_claim, claims, strict=True)
            )
        ):
            return [[f"d{n}" for n in found] for found in by_claim]
    return None


def _in_use(models: Sequence[Object], used: set[int]) -> set[int]:
    return {n for n in used if n < len(models) and not models[n]["memory"]}


def _slots(models: Sequence[Object], taken: set[int]) -> int:
    return sum(models[n]["slots"] for n in taken)


def _satisfies(values: Sequence[int | None], how: str | None) -> bool:
    if how is None:
        return True
    if None in values:
        return False
    return len(set(values)) <= 1 if how == "match" else len(set(values)) == len(values)


@given(DEVICES, st.sets(st.integers(0, 3)), CLAIMS, st.integers(0, 4))
def test_allocator_finds_the_first_devices_that_satisfy_everything(
    models: list[Object], used: set[int], claims: list[Any], slots: int
) -> None:
    in_use = _in_use(models, used)
    assume(_slots(models, in_use) <= slots)
    constraints = {None: [], "match": [NUMA], "distinct": [DISTINCT]}
    found = allocate(
        [published(n, one) for n, one in enumerate(models)],
        *(
            claim_spec(
                *(request(f"r{n}", one) for n, one in enumerate(asked)),
                constraints=constraints[how],
            )
            for asked, how in claims
        ),
        used=[f"d{n}" for n in in_use],
        sharedCounters=[{"name": "card", "counters": {"slots": {"value": str(slots)}}}],
    )
    assert found == allocate_slowly(models, in_use, claims, slots)
