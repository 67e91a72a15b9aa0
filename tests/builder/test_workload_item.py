"""Items: merging default, user and callbacks, and the paths of fields."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phalanx.api.errors import Cause
from phalanx.builder import (
    Basic,
    Callback,
    Gang,
    SchedulingConfig,
    WorkloadItem,
    default_min_count,
)
from tests.builder.item_trees import config, leaf


def test_user_overrides_the_default() -> None:
    item = leaf(user=config(Gang(3)), default=config(Basic(), topology=("zone",)))
    assert item.resolve() == config(Gang(3), topology=("zone",))


def test_item_without_configuration_is_basic() -> None:
    assert WorkloadItem("workers").resolve() == config(Basic())


def test_callbacks_receive_the_merged_configuration() -> None:
    received: list[SchedulingConfig] = []

    def record(resolved: SchedulingConfig) -> SchedulingConfig:
        received.append(resolved)
        return resolved

    leaf(user=config(Gang(3)), default=config(topology=("zone",)), callbacks=[record]).resolve()
    WorkloadItem("workers", callbacks=[record]).resolve()
    assert received == [config(Gang(3), topology=("zone",)), config(Basic())]


def test_callbacks_run_in_order_on_the_previous_result() -> None:
    def times(factor: int) -> Callback:
        def multiply(resolved: SchedulingConfig) -> SchedulingConfig:
            assert isinstance(resolved.policy, Gang)
            assert resolved.policy.min_count
            return replace(resolved, policy=Gang(resolved.policy.min_count * factor))

        return multiply

    item = leaf(user=config(Gang()), callbacks=[default_min_count(4), times(3)])
    assert item.resolve().policy == Gang(12)


@pytest.mark.parametrize(
    ("policy", "count", "resolved"),
    [
        (Gang(), 4, Gang(4)),
        (Gang(), 0, Gang(1)),
        (Gang(2), 4, Gang(2)),
        (Gang(0), 4, Gang(0)),
        (Basic(), 4, Basic()),
    ],
)
def test_default_min_count_sets_only_an_unset_size(
    policy: Basic | Gang, count: int, resolved: Basic | Gang
) -> None:
    assert leaf(user=config(policy), callbacks=[default_min_count(count)]).resolve().policy == (
        resolved
    )


def test_resolving_does_not_change_the_item() -> None:
    item = leaf(user=config(Gang()), default=config(Basic()), callbacks=[default_min_count(4)])
    item.resolve()
    assert (item.user, item.default) == (config(Gang()), config(Basic()))


@pytest.mark.parametrize(
    ("field", "path"),
    [
        ("", "spec.scheduling"),
        ("disruptionMode", "spec.scheduling.disruptionMode"),
        ("schedulingPolicy", "spec.gang"),
        ("schedulingPolicy.gang.minCount", "spec.gang.gang.minCount"),
        ("schedulingPolicyOfAnotherKind", "spec.scheduling.schedulingPolicyOfAnotherKind"),
        ("schedulingConstraints.topology[0].key", "spec.near.topology[0].level"),
        ("schedulingConstraints.topology[1].key", "spec.near.topology[1].key"),
    ],
)
def test_cause_is_mapped_to_the_field_of_the_user(field: str, path: str) -> None:
    item = leaf(
        path="spec.scheduling",
        fields={
            "schedulingPolicy": "spec.gang",
            "schedulingConstraints": "spec.near",
            "schedulingConstraints.topology[0].key": "spec.near.topology[0].level",
        },
    )
    assert item.map_to_user_field(Cause(field, "FieldValueInvalid", "no")) == (
        Cause(path, "FieldValueInvalid", "no")
    )


def test_cause_without_a_path_keeps_the_field_of_the_template() -> None:
    assert leaf().map_to_user_field(Cause("disruptionMode", "r", "m")).field == "disruptionMode"
