"""A policy does what its configuration says."""

from __future__ import annotations

from hypothesis import given

from tests.scheduler.agreement import assert_agreed
from tests.scheduler.configurations import Profile, policy, profiles
from tests.scheduler.oracle_settings import Settings
from tests.scheduler.strategies import Situation, situations


@given(situations(), profiles())
def test_under_any_configuration_pods_are_placed_as_one_at_a_time(
    situation: Situation, profile: Profile
) -> None:
    assert_agreed(situation, policy(profile), Settings(profile))
