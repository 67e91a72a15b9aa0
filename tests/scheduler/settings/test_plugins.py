"""Which plugins are on, in which order, with which weights."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import convert

from phalanx.scheduler.judging.filters import FILTERS
from phalanx.scheduler.policy import DEFAULT
from phalanx.scheduler.settings.plugins import FILTERING, PLUGINS, SCORING, Part, Plugins, chosen

USUAL = {plugin.name: plugin.weight for plugin in PLUGINS if plugin.weight}


def filtering(**points: Any) -> list[str]:
    plugins = convert(points, Plugins)
    return [name for name in chosen(plugins, plugins.filter, FILTERING) if name in OURS]


def scoring(**points: Any) -> dict[str, int]:
    plugins = convert(points, Plugins)
    return chosen(plugins, plugins.score, SCORING)


def names(*of: str) -> list[dict[str, str]]:
    return [{"name": name} for name in of]


OURS = [row.name for row in FILTERS]


def test_the_table_names_every_row_that_there_is() -> None:
    ours = [plugin for plugin in PLUGINS if plugin.part is Part.POLICY]
    assert [plugin.name for plugin in ours if plugin.filters] == OURS
    weights = {row.name: row.weight for row in DEFAULT.scores}
    weights |= {row.name: row.weight for row in DEFAULT.merits}
    weights |= {row.name: row.weight for row in DEFAULT.comparisons}
    assert {one.name: one.weight for one in ours if one.weight} == weights


def test_without_a_word_everything_is_usual() -> None:
    assert filtering() == OURS
    assert scoring() == USUAL


def test_a_plugin_is_taken_away_at_one_point_or_at_all() -> None:
    assert "NodeAffinity" not in filtering(filter={"disabled": names("NodeAffinity")})
    assert "NodeAffinity" in scoring(filter={"disabled": names("NodeAffinity")})
    everywhere = {"disabled": names("NodeAffinity")}
    assert "NodeAffinity" not in {
        *filtering(multiPoint=everywhere),
        *scoring(multiPoint=everywhere),
    }


def test_a_weight_replaces_the_usual_one_and_none_is_one() -> None:
    heavy = [{"name": "ImageLocality", "weight": 9}, {"name": "TaintToleration"}]
    for point in ("score", "multiPoint"):
        assert scoring(**{point: {"enabled": heavy}}) == {
            **USUAL,
            "ImageLocality": 9,
            "TaintToleration": 1,
        }


def test_the_weight_at_the_point_counts_before_that_of_all_points() -> None:
    points = {
        "score": {"enabled": [{"name": "ImageLocality", "weight": 5}]},
        "multiPoint": {"enabled": [{"name": "ImageLocality", "weight": 7}]},
    }
    assert scoring(**points)["ImageLocality"] == 5


@pytest.mark.parametrize("point", ["score", "multiPoint"])
def test_a_star_takes_everything_away_but_what_is_named(point: str) -> None:
    only = {"disabled": names("*"), "enabled": [{"name": "NodeResourcesFit", "weight": 2}]}
    assert scoring(**{point: only}) == {"NodeResourcesFit": 2}


def test_naming_a_plugin_weighs_more_than_taking_it_away() -> None:
    both = {"disabled": names("NodePorts"), "enabled": names("NodePorts")}
    assert filtering(filter=both) == [*(name for name in OURS if name != "NodePorts"), "NodePorts"]
    assert filtering(multiPoint=both) == filtering(filter=both)


def test_what_a_point_names_again_is_asked_first() -> None:
    again = names("InterPodAffinity", "NodePorts")
    rest = [name for name in OURS if name not in ("InterPodAffinity", "NodePorts")]
    assert filtering(filter={"enabled": again}) == ["InterPodAffinity", "NodePorts", *rest]


def test_what_all_points_name_again_keeps_its_place() -> None:
    assert filtering(multiPoint={"enabled": names("InterPodAffinity", "NodePorts")}) == OURS
