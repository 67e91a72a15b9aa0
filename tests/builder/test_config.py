"""Configurations, and the override of one with another."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields

import pytest

from phalanx.builder import All, Basic, Gang, ResourceClaim, SchedulingConfig, Single
from phalanx.builder.config import EMPTY_CONFIG

DEFAULT = SchedulingConfig(
    policy=Basic(),
    topology=("zone",),
    disruption_mode=Single(),
    resource_claims=(ResourceClaim("a", "x"),),
    priority_class_name="low",
    priority=5,
    preemption_policy="Never",
)
USER = SchedulingConfig(
    policy=Gang(),
    topology=("rack", "host"),
    disruption_mode=All(),
    resource_claims=(ResourceClaim("b", "y"),),
    priority_class_name="high",
    priority=0,
    preemption_policy="PreemptLowerPriority",
)


def test_every_set_field_overrides_the_default() -> None:
    assert DEFAULT.override_with(USER) == USER


def test_empty_configuration_overrides_nothing() -> None:
    assert DEFAULT.override_with(EMPTY_CONFIG) == DEFAULT


@pytest.mark.parametrize("field", [field.name for field in fields(SchedulingConfig)])
def test_one_field_overrides_no_other(field: str) -> None:
    user = SchedulingConfig(**{field: getattr(USER, field)})
    result = DEFAULT.override_with(user)
    assert getattr(result, field) == getattr(USER, field)
    others = [other.name for other in fields(SchedulingConfig) if other.name != field]
    assert [getattr(result, other) for other in others] == [getattr(DEFAULT, o) for o in others]


def test_field_is_overridden_as_a_whole() -> None:
    default = SchedulingConfig(policy=Gang(min_count=4))
    assert default.override_with(SchedulingConfig(policy=Gang())).policy == Gang()


def test_configurations_are_immutable() -> None:
    with pytest.raises(FrozenInstanceError):
        DEFAULT.priority = 1  # type: ignore[misc]
