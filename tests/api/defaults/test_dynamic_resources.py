"""The times of device taints."""

from __future__ import annotations

from phalanx.api.defaults.registry import prepare_for_create, prepare_for_update
from phalanx.api.kinds import DEVICE_TAINT_RULE, RESOURCE_SLICE
from phalanx.api.wire import Object

EARLY, LATE = "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"


def slice_with(*taints: Object) -> Object:
    return {"spec": {"devices": [{"name": "a", "taints": list(taints)}, {"name": "b"}]}}


def test_new_taint_gets_the_time_of_its_creation() -> None:
    rule: Object = {"spec": {"taint": {"key": "x", "effect": "NoExecute"}}}
    prepare_for_create(DEVICE_TAINT_RULE, rule, EARLY)
    assert rule["spec"]["taint"]["timeAdded"] == EARLY
    found = slice_with({"key": "x", "timeAdded": LATE}, {"key": "y"})
    prepare_for_create(RESOURCE_SLICE, found, EARLY)
    taints = found["spec"]["devices"][0]["taints"]
    assert [one["timeAdded"] for one in taints] == [LATE, EARLY]


def test_taint_that_is_written_again_keeps_its_time() -> None:
    old = slice_with({"key": "x", "effect": "NoExecute", "timeAdded": EARLY})
    new = slice_with({"key": "x", "effect": "NoExecute"}, {"key": "x", "effect": "NoSchedule"})
    prepare_for_update(RESOURCE_SLICE, new, old, now=LATE)
    taints = new["spec"]["devices"][0]["taints"]
    assert [one["timeAdded"] for one in taints] == [EARLY, LATE]


def test_object_without_a_spec_is_left_to_validation() -> None:
    found: Object = {"spec": None}
    prepare_for_create(RESOURCE_SLICE, found, EARLY)
    assert found == {"spec": None}
