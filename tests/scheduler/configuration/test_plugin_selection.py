"""Which plugins a configuration enables, in which order, with which weights."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from msgspec import convert

from phalanx.scheduler.configuration.plugin_selection import Plugins, enabled_plugins
from phalanx.scheduler.plugins.plugin import FILTER, SCORE
from phalanx.scheduler.plugins.registry import IN_TREE_PLUGINS, PluginRegistry
from phalanx.scheduler.policy import DEFAULT_POLICY
from tests.scheduler.configurations import Profile, policy, profiles
from tests.scheduler.oracle_agreement import assert_matches_oracle
from tests.scheduler.oracle_settings import OracleSettings
from tests.scheduler.strategies import Situation, situations


@given(situations(), profiles())
def test_policy_places_pods_like_the_oracle_under_any_configuration(
    situation: Situation, profile: Profile
) -> None:
    assert_matches_oracle(situation, policy(profile), OracleSettings(profile))


REGISTRY = PluginRegistry()
FILTER_NAMES = list(DEFAULT_POLICY.filters)
DEFAULT_WEIGHTS = {
    plugin.name: plugin.weight for plugin in IN_TREE_PLUGINS if plugin.default_weight
}


def enabled_filters(**points: Any) -> list[str]:
    plugins = convert(points, Plugins)
    return [
        name
        for name in enabled_plugins(REGISTRY, plugins, plugins.filter, point=FILTER)
        if name in FILTER_NAMES
    ]


def enabled_scores(**points: Any) -> dict[str, int]:
    plugins = convert(points, Plugins)
    return enabled_plugins(REGISTRY, plugins, plugins.score, point=SCORE)


def plugin_references(*of: str) -> list[dict[str, str]]:
    return [{"name": name} for name in of]


def test_empty_configuration_enables_the_defaults() -> None:
    assert enabled_filters() == FILTER_NAMES
    assert enabled_scores() == DEFAULT_WEIGHTS


def test_plugin_is_disabled_at_one_point_or_at_all() -> None:
    assert "NodeAffinity" not in enabled_filters(
        filter={"disabled": plugin_references("NodeAffinity")}
    )
    assert "NodeAffinity" in enabled_scores(filter={"disabled": plugin_references("NodeAffinity")})
    everywhere = {"disabled": plugin_references("NodeAffinity")}
    assert "NodeAffinity" not in {
        *enabled_filters(multiPoint=everywhere),
        *enabled_scores(multiPoint=everywhere),
    }


def test_weight_replaces_the_default_and_a_missing_weight_is_one() -> None:
    heavy = [{"name": "ImageLocality", "weight": 9}, {"name": "TaintToleration"}]
    for point in ("score", "multiPoint"):
        assert enabled_scores(**{point: {"enabled": heavy}}) == {
            **DEFAULT_WEIGHTS,
            "ImageLocality": 9,
            "TaintToleration": 1,
        }


def test_weight_at_score_takes_precedence_over_multi_point() -> None:
    points = {
        "score": {"enabled": [{"name": "ImageLocality", "weight": 5}]},
        "multiPoint": {"enabled": [{"name": "ImageLocality", "weight": 7}]},
    }
    assert enabled_scores(**points)["ImageLocality"] == 5


@pytest.mark.parametrize("point", ["score", "multiPoint"])
def test_wildcard_disables_all_but_the_named_plugins(point: str) -> None:
    only = {
        "disabled": plugin_references("*"),
        "enabled": [{"name": "NodeResourcesFit", "weight": 2}],
    }
    assert enabled_scores(**{point: only}) == {"NodeResourcesFit": 2}


def test_enabling_takes_precedence_over_disabling() -> None:
    both = {"disabled": plugin_references("NodePorts"), "enabled": plugin_references("NodePorts")}
    assert enabled_filters(filter=both) == [
        *(name for name in FILTER_NAMES if name != "NodePorts"),
        "NodePorts",
    ]
    assert enabled_filters(multiPoint=both) == enabled_filters(filter=both)


def test_default_plugins_that_a_point_enables_again_run_first() -> None:
    again = plugin_references("InterPodAffinity", "NodePorts")
    rest = [name for name in FILTER_NAMES if name not in ("InterPodAffinity", "NodePorts")]
    assert enabled_filters(filter={"enabled": again}) == ["InterPodAffinity", "NodePorts", *rest]


def test_default_plugins_that_multi_point_enables_again_keep_their_place() -> None:
    assert (
        enabled_filters(multiPoint={"enabled": plugin_references("InterPodAffinity", "NodePorts")})
        == FILTER_NAMES
    )
