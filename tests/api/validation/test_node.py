"""Rules of Nodes."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.kinds import NODE
from phalanx.api.validation.registry import validate
from phalanx.api.wire import Object
from tests.api.cause_summaries import CauseSummaries, prefix_summaries, summarize
from tests.api.stored_objects import make_stored


def node(spec: Object | None = None, **status: Any) -> Object:
    return {"metadata": {"name": "n"}, "spec": spec or {}, "status": status}


def validation_causes(new: Object, old: Object | None = None, part: str = "") -> CauseSummaries:
    return summarize(validate(NODE, new, old, subresource=part))


def taint(**fields: str) -> Object:
    return {"key": "a", "effect": "NoSchedule", **fields}


@pytest.mark.parametrize(
    ("taints", "causes"),
    [
        ([taint(), taint(effect="NoExecute"), taint(key="a.b/c", value="v")], []),
        ([taint(effect="")], ["[0].effect: Required"]),
        ([taint(effect="Shoo")], ["[0].effect: NotSupported"]),
        ([taint(value="b c")], ["[0].value: Invalid"]),
        ([taint(value="b " * 40)], ["[0].value: Invalid"]),
        ([taint(key="a b")], ["[0].key: Invalid"]),
        ([taint(), taint(value="other")], ["[1]: Duplicate"]),
    ],
)
def test_taint_errors_are_reported_below_metadata(
    taints: list[Object], causes: CauseSummaries
) -> None:
    assert validation_causes(node({"taints": taints})) == prefix_summaries(
        "metadata.taints", causes
    )


def test_room_is_not_negative_and_devices_come_whole() -> None:
    assert (
        validation_causes(node(capacity={"cpu": "500m", "example.com/gpu": "8", "pods": "110"}))
        == []
    )
    assert validation_causes(node(capacity={"cpu": "-1"})) == ["status.capacity.cpu: Invalid"]
    assert validation_causes(node(allocatable={"example.com/gpu": "500m"}), node(), "status") == [
        "status.allocatable.example.com/gpu: Invalid"
    ]


def test_node_addresses_are_unique() -> None:
    address = {"type": "InternalIP", "address": "10.0.0.1"}
    twice = node(addresses=[address, address])
    assert validation_causes(twice, node(), "status") == ["status.addresses[1]: Duplicate"]


def test_addresses_of_a_new_node_may_repeat() -> None:
    address = {"type": "InternalIP", "address": "10.0.0.1"}
    assert validation_causes(node(addresses=[address, address])) == []


@pytest.mark.parametrize(
    ("ranges", "causes"),
    [
        (["10.0.0.0/24", "fd00::/64"], []),
        (["x"], ["[0]: Invalid"]),
        (["10.0.0.0/24", "10.1.0.0/24"], [": Invalid"]),
        (["10.0.0.0/24", "x"], ["[1]: Invalid", ": InternalError", ": Invalid"]),
    ],
)
def test_a_node_has_one_range_of_each_family(ranges: list[str], causes: CauseSummaries) -> None:
    assert validation_causes(node({"podCIDRs": ranges})) == prefix_summaries(
        "spec.podCIDRs", causes
    )


def test_an_empty_allocatable_is_not_replaced_by_the_capacity() -> None:
    capacity = {"cpu": "1"}
    said = make_stored(NODE, {"status": {"capacity": capacity, "allocatable": {}}})
    silent = make_stored(NODE, {"status": {"capacity": capacity}})
    assert "allocatable" not in said["status"]
    assert silent["status"]["allocatable"] == capacity


@pytest.mark.parametrize(
    ("field", "value", "change", "reason"),
    [
        ("providerID", "p", "other", "Invalid"),
        ("podCIDRs", ["10.0.0.0/24"], ["10.1.0.0/24"], "Forbidden"),
    ],
)
def test_provider_id_and_pod_cidr_can_be_set_once(
    field: str, value: Any, change: Any, reason: str
) -> None:
    said, other = node({field: value}), node({field: change})
    assert validation_causes(said, node()) == []
    assert validation_causes(said, said) == []
    assert validation_causes(other, said) == [f"spec.{field}: {reason}"]


def test_a_node_has_one_pod_range_of_each_family() -> None:
    both = node({"podCIDRs": ["10.0.0.0/24", "fd00::/64"]})
    assert validation_causes(both) == []
    twice = node({"podCIDRs": ["10.0.0.0/24", "10.1.0.0/24"]})
    assert validation_causes(twice) == ["spec.podCIDRs: Invalid"]
