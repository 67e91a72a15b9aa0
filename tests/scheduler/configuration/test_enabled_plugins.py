"""A policy does what its configuration says.

Which plugins are on, in which order, with which weights.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from msgspec import convert

from phalanx.scheduler.configuration.profiles import (
    FILTER_PLUGIN_NAMES,
    PLUGINS,
    SCORE_PLUGIN_NAMES,
    Plugins,
    PluginSupport,
    enabled_plugins,
)
from phalanx.scheduler.plugins.filters import FILTER_PLUGINS
from phalanx.scheduler.policy import DEFAULT_POLICY
from tests.scheduler.configurations import Profile, policy, profiles
from tests.scheduler.oracle_agreement import assert_matches_oracle
from tests.scheduler.oracle_settings import OracleSettings
from tests.scheduler.strategies import Situation, situations


@given(situations(), profiles())
def test_under_any_configuration_pods_are_placed_as_one_at_a_time(
    situation: Situation, profile: Profile
) -> None:
    assert_matches_oracle(situation, policy(profile), OracleSettings(profile))


DEFAULT_WEIGHTS = {plugin.name: plugin.weight for plugin in PLUGINS if plugin.weight}


def enabled_filters(**points: Any) -> list[str]:
    plugins = convert(points, Plugins)
    return [
        name
        for name in enabled_plugins(plugins, plugins.filter, FILTER_PLUGIN_NAMES)
        if name in FILTER_NAMES
    ]


def enabled_scores(**points: Any) -> dict[str, int]:
    plugins = convert(points, Plugins)
    return enabled_plugins(plugins, plugins.score, SCORE_PLUGIN_NAMES)


def plugin_references(*of: str) -> list[dict[str, str]]:
    return [{"name": name} for name in of]


FILTER_NAMES = [row.name for row in FILTER_PLUGINS]


def test_the_table_names_every_row_that_there_is() -> None:
    ours = [plugin for plugin in PLUGINS if plugin.support is PluginSupport.CONFIGURABLE]
    assert [plugin.name for plugin in ours if plugin.filters] == FILTER_NAMES
    weights = {row.name: row.weight for row in DEFAULT_POLICY.scores}
    weights |= {row.name: row.weight for row in DEFAULT_POLICY.static_scores}
    weights |= {row.name: row.weight for row in DEFAULT_POLICY.normalized_scores}
    assert {one.name: one.weight for one in ours if one.weight} == weights


def test_without_a_word_everything_is_usual() -> None:
    assert enabled_filters() == FILTER_NAMES
    assert enabled_scores() == DEFAULT_WEIGHTS


def test_a_plugin_is_taken_away_at_one_point_or_at_all() -> None:
    assert "NodeAffinity" not in enabled_filters(
        filter={"disabled": plugin_references("NodeAffinity")}
    )
    assert "NodeAffinity" in enabled_scores(filter={"disabled": plugin_references("NodeAffinity")})
    everywhere = {"disabled": plugin_references("NodeAffinity")}
    assert "NodeAffinity" not in {
        *enabled_filters(multiPoint=everywhere),
        *enabled_scores(multiPoint=everywhere),
    }


def test_a_weight_replaces_the_usual_one_and_none_is_one() -> None:
    heavy = [{"name": "ImageLocality", "weight": 9}, {"name": "TaintToleration"}]
    for point in ("score", "multiPoint"):
        assert enabled_scores(**{point: {"enabled": heavy}}) == {
            **DEFAULT_WEIGHTS,
            "ImageLocality": 9,
            "TaintToleration": 1,
        }


def test_the_weight_at_the_point_counts_before_that_of_all_points() -> None:
    points = {
        "score": {"enabled": [{"name": "ImageLocality", "weight": 5}]},
        "multiPoint": {"enabled": [{"name": "ImageLocality", "weight": 7}]},
    }
    assert enabled_scores(**points)["ImageLocality"] == 5


@pytest.mark.parametrize("point", ["score", "multiPoint"])
def test_a_star_takes_everything_away_but_what_is_named(point: str) -> None:
    only = {
        "disabled": plugin_references("*"),
        "enabled": [{"name": "NodeResourcesFit", "weight": 2}],
    }
    assert enabled_scores(**{point: only}) == {"NodeResourcesFit": 2}


def test_naming_a_plugin_weighs_more_than_taking_it_away() -> None:
    both = {"disabled": plugin_references("NodePorts"), "enabled": plugin_references("NodePorts")}
    assert enabled_filters(filter=both) == [
        *(name for name in FILTER_NAMES if name != "NodePorts"),
        "NodePorts",
    ]
    assert enabled_filters(multiPoint=both) == enabled_filters(filter=both)


def test_what_a_point_names_again_is_asked_first() -> None:
    again = plugin_references("InterPodAffinity", "NodePorts")
    rest = [name for name in FILTER_NAMES if name not in ("InterPodAffinity", "NodePorts")]
    assert enabled_filters(filter={"enabled": again}) == ["InterPodAffinity", "NodePorts", *rest]


def test_what_all_points_name_again_keeps_its_place() -> None:
    assert (
        enabled_filters(multiPoint={"enabled": plugin_references("InterPodAffinity", "NodePorts")})
        == FILTER_NAMES
    )
