"""Items: defaults, users and callbacks in their order, and where a field stands."""

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


def test_the_user_overrides_the_default() -> None:
    item = leaf(user=config(Gang(3)), default=config(Basic(), topology=("zone",)))
    assert item.resolve() == config(Gang(3), topology=("zone",))


def test_without_any_word_a_group_is_basic() -> None:
    assert WorkloadItem("workers").resolve() == config(Basic())


def test_callbacks_see_what_defaults_and_user_say_together() -> None:
    seen: list[SchedulingConfig] = []

    def look(resolved: SchedulingConfig) -> SchedulingConfig:
        seen.append(resolved)
        return resolved

    leaf(user=config(Gang(3)), default=config(topology=("zone",)), callbacks=[look]).resolve()
    WorkloadItem("workers", callbacks=[look]).resolve()
    assert seen == [config(Gang(3), topology=("zone",)), config(Basic())]


def test_callbacks_run_in_order_on_what_the_one_before_gave() -> None:
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
def test_only_a_size_that_is_left_open_is_filled_in(
    policy: Basic | Gang, count: int, resolved: Basic | Gang
) -> None:
    assert leaf(user=config(policy), callbacks=[default_min_count(count)]).resolve().policy == (
        resolved
    )


def test_resolving_changes_no_item() -> None:
    item = leaf(user=config(Gang()), default=config(Basic()), callbacks=[default_min_count(4)])
    item.resolve()
    assert (item.user, item.default) == (config(Gang()), config(Basic()))


@pytest.mark.parametrize(
    ("field", "place"),
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
def test_a_cause_is_told_where_the_user_wrote_the_field(field: str, place: str) -> None:
    item = leaf(
        path="spec.scheduling",
        fields={
            "schedulingPolicy": "spec.gang",
            "schedulingConstraints": "spec.near",
            "schedulingConstraints.topology[0].key": "spec.near.topology[0].level",
        },
    )
    assert item.at_user_field(Cause(field, "FieldValueInvalid", "no")) == (
        Cause(place, "FieldValueInvalid", "no")
    )


def test_without_a_path_a_field_is_told_as_the_template_calls_it() -> None:
    assert leaf().at_user_field(Cause("disruptionMode", "r", "m")).field == "disruptionMode"
