"""Configurations, and how one overrides another."""

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


def test_every_piece_that_is_said_overrides_the_default() -> None:
    assert DEFAULT.overridden_by(USER) == USER


def test_nothing_said_overrides_nothing() -> None:
    assert DEFAULT.overridden_by(EMPTY_CONFIG) == DEFAULT


@pytest.mark.parametrize("piece", [piece.name for piece in fields(SchedulingConfig)])
def test_one_piece_overrides_no_other(piece: str) -> None:
    said = SchedulingConfig(**{piece: getattr(USER, piece)})
    result = DEFAULT.overridden_by(said)
    assert getattr(result, piece) == getattr(USER, piece)
    others = [other.name for other in fields(SchedulingConfig) if other.name != piece]
    assert [getattr(result, other) for other in others] == [getattr(DEFAULT, o) for o in others]


def test_a_piece_is_overridden_as_a_whole() -> None:
    default = SchedulingConfig(policy=Gang(min_count=4))
    assert default.overridden_by(SchedulingConfig(policy=Gang())).policy == Gang()


def test_configurations_never_change() -> None:
    with pytest.raises(FrozenInstanceError):
        DEFAULT.priority = 1  # type: ignore[misc]
