"""The registry: what is derived from it, and which out-of-tree plugins are accepted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any

import numpy as np
import pytest
from msgspec import Meta

from phalanx.api.errors import Cause
from phalanx.scheduler.cluster.pod_shape import PodShape, shape_of
from phalanx.scheduler.cluster.snapshot import IntArray, Snapshot
from phalanx.scheduler.configuration.scheduler_configuration import (
    SchedulerConfiguration,
    parse_configuration,
)
from phalanx.scheduler.plugins.arguments import PluginArgs
from phalanx.scheduler.plugins.load_scoring import MANY_NODES, ONE_NODE, LoadScorer, columns_of
from phalanx.scheduler.plugins.plugin import (
    SCORE,
    Filter,
    FilterDependency,
    LoadScore,
    NormalizedScore,
    Plugin,
    PluginSupport,
    StaticScore,
)
from phalanx.scheduler.plugins.plugin_context import initial_context
from phalanx.scheduler.plugins.registry import (
    CAPACITY_FILTER_NAMES,
    IN_TREE_PLUGINS,
    PluginRegistry,
    build_registry,
    out_of_tree_plugin,
)
from phalanx.scheduler.policy import DEFAULT_POLICY, SchedulerPolicy
from tests.scheduler.builders import cluster, node, pod
from tests.scheduler.configurations import Profile, configuration_file
from tests.scheduler.oracle_settings import FILTERS, WEIGHTS

# ---- in-tree plugins -----------------------------------------------------------------------------


def test_default_policy_has_every_filter_and_score_of_the_registry() -> None:
    assert list(DEFAULT_POLICY.filters) == FILTERS
    assert {score.name: score.weight for score in DEFAULT_POLICY.scores} == WEIGHTS
    implemented = {one.name for one in IN_TREE_PLUGINS if one.filter or one.score}
    assert implemented == {*FILTERS, *WEIGHTS}


def test_plugin_names_are_unique() -> None:
    names = PluginRegistry().names()
    assert len(names) == len(set(names))
    with pytest.raises(ValueError, match="two scheduler plugins named NodePorts"):
        build_registry([Plugin("NodePorts", score=constant(1))])


def test_only_plugins_without_filter_and_score_lack_an_implementation() -> None:
    for plugin in IN_TREE_PLUGINS:
        is_implemented = bool(plugin.filter or plugin.score)
        assert not (is_implemented and plugin.support is not PluginSupport.CONFIGURABLE)


def test_exact_search_models_every_in_tree_filter() -> None:
    assert all(filter_.is_modelled for filter_ in DEFAULT_POLICY.filters.values())
    assert DEFAULT_POLICY.unmodelled_filters == ()
    assert CAPACITY_FILTER_NAMES == ("NodePorts", "NodeResourcesFit")


def test_filter_that_depends_on_load_answers_for_one_node() -> None:
    for filter_ in DEFAULT_POLICY.filters.values():
        is_load = filter_.depends_on is FilterDependency.LOAD
        assert is_load == (filter_.admits_node_class is not None)


def test_policy_fields_of_plugins_are_fields_of_the_policy_with_its_defaults() -> None:
    names = {field.name for field in fields(SchedulerPolicy)}
    for plugin in IN_TREE_PLUGINS:
        for name, value in (plugin.policy_fields or {}).items():
            assert name in names
            assert getattr(DEFAULT_POLICY, name) == value


def test_default_arguments_give_the_registered_plugin() -> None:
    for plugin in IN_TREE_PLUGINS:
        if plugin.arguments is not None:
            configured = plugin.configure(plugin.arguments.type())
            assert (configured.name, configured.weight) == (plugin.name, plugin.weight)
            assert configured.policy_fields == plugin.policy_fields
            assert configured.extension_points == plugin.extension_points


# ---- out-of-tree plugins -------------------------------------------------------------------------


def constant(value: float) -> StaticScore:
    return StaticScore(lambda snapshot, shape: np.full(len(snapshot), value))


class LimitArgs(PluginArgs, frozen=True):
    pod_limit: Annotated[int, Meta(ge=0, le=100)] = 7
    label: str = "a"


def limit(args: LimitArgs) -> Plugin:
    if not args.label:
        raise ValueError("label must not be empty")
    return Plugin("Limit", score=constant(args.pod_limit), weight=3)


def explode(args: LimitArgs) -> Plugin:
    if args.pod_limit == 7:
        return Plugin("Explode", score=constant(1))
    raise KeyError(args.label)


EXTRA = (out_of_tree_plugin("Limit", limit), out_of_tree_plugin("Explode", explode))


def parse(profile: Profile) -> SchedulerConfiguration | list[Cause]:
    return parse_configuration(configuration_file(profile), EXTRA)


def policy_with(profile: Profile) -> SchedulerPolicy:
    found = parse(profile)
    assert isinstance(found, SchedulerConfiguration), found
    (policy,) = found.profiles.policies.values()
    return policy


def weights(policy: SchedulerPolicy) -> dict[str, int]:
    return {score.name: score.weight for score in policy.scores}


def test_out_of_tree_plugin_is_off_until_it_is_named() -> None:
    assert "Limit" not in weights(policy_with({}))
    for point in ("score", "multiPoint"):
        enabled = {"plugins": {point: {"enabled": [{"name": "Limit"}]}}}
        assert weights(policy_with(enabled)) == {**WEIGHTS, "Limit": 3}
        weighted = {"plugins": {point: {"enabled": [{"name": "Limit", "weight": 9}]}}}
        assert weights(policy_with(weighted))["Limit"] == 9


def test_arguments_reach_the_out_of_tree_plugin() -> None:
    policy = policy_with(
        {
            "plugins": {"score": {"enabled": [{"name": "Limit"}]}},
            "pluginConfig": [{"name": "Limit", "args": {"podLimit": 42}}],
        }
    )
    (found,) = [one.score for one in policy.scores if one.name == "Limit"]
    assert isinstance(found, StaticScore)
    assert static_scores(found) == [42]


def static_scores(score: StaticScore) -> list[int]:
    snapshot = cluster([node("a")]).snapshot()
    found = score.score_nodes(snapshot, shape_of(pod("p")))
    assert found is not None
    return list(found.tolist())


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("Limit", {"podLimit": 101}, ".podLimit: expected an integer <= 100"),
        ("Limit", {"limit": 1}, ".limit: there is no such field"),
        ("Limit", {"label": ""}, ": label must not be empty"),
        ("Explode", {"podLimit": 1}, ": plugin Explode failed: KeyError: 'a'"),
        (
            "Limit",
            {"kind": "X"},
            '.kind: Unsupported value: "X": supported values: "LimitArgs"',
        ),
    ],
)
def test_invalid_arguments_are_reported_at_their_place(
    name: str, args: Mapping[str, Any], message: str
) -> None:
    found = parse({"pluginConfig": [{"name": name, "args": args}]})
    assert isinstance(found, list)
    assert [str(cause) for cause in found] == [f"profiles[0].pluginConfig[0].args{message}"]


def test_plugin_that_is_not_installed_is_an_error() -> None:
    found = parse({"plugins": {"score": {"enabled": [{"name": "Missing"}]}}})
    assert isinstance(found, list)
    (cause,) = map(str, found)
    assert cause.startswith(
        'profiles[0].plugins.score.enabled[0].name: Unsupported value: "Missing"'
    )
    assert '"Limit"' in cause


def test_out_of_tree_filter_runs_after_the_default_filters() -> None:
    licensed = Plugin("Licensed", filter=Filter(reject=lambda context: iter(())))
    extra = [out_of_tree_plugin("Licensed", licensed)]
    profile = {"plugins": {"filter": {"enabled": [{"name": "Licensed"}]}}}
    found = parse_configuration(configuration_file(profile), extra)
    assert isinstance(found, SchedulerConfiguration)
    (policy,) = found.profiles.policies.values()
    assert list(policy.filters) == [*FILTERS, "Licensed"]
    assert not isinstance(parse_configuration(configuration_file(), extra), list)


def needs_two(one: LimitArgs, two: LimitArgs) -> Plugin:
    raise NotImplementedError


def without_annotation(args):  # type: ignore[no-untyped-def]
    raise NotImplementedError


def returns_text(args: LimitArgs) -> str:
    return "text"


NO_OP = Filter(reject=lambda context: iter(()))
LOAD = Filter(reject=lambda context: iter(()), depends_on=FilterDependency.LOAD)
PEERS = Filter(reject=lambda context: iter(()), depends_on=FilterDependency.PEERS)
MODELLED = Filter(reject=lambda context: iter(()), is_modelled=True)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (7, "is neither a Plugin nor a function but int"),
        (needs_two, "must take one parameter, the arguments, and takes 2"),
        (without_annotation, "must annotate its parameter args with a msgspec Struct"),
        (returns_text, "returned str instead of a Plugin"),
        (Plugin("Other", filter=NO_OP), 'is named "Other"'),
        (Plugin("X"), "has neither a filter nor a score"),
        (Plugin("X", filter=NO_OP, weight=0), "has the weight 0"),
        (Plugin("X", filter=LOAD), "depends on LOAD and no admits_node_class"),
        (Plugin("X", filter=PEERS), "depends on PEERS, which only in-tree filters may"),
        (Plugin("X", filter=MODELLED), "sets is_modelled or limits_capacity"),
        (Plugin("X", filter=NO_OP, points=(SCORE,)), "sets points, policy_fields or support"),
    ],
)
def test_plugin_that_cannot_run_is_rejected(value: object, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        out_of_tree_plugin("X", value)
    if isinstance(value, Plugin) and value.name == "X":
        with pytest.raises(ValueError, match=message):
            build_registry([value])


@pytest.mark.parametrize(("value", "score"), [(-5, 0), (250, 100), (49.9, 49)])
def test_scores_are_cut_to_the_range(value: float, score: int) -> None:
    snapshot = cluster([node("a")]).snapshot()
    shape = shape_of(pod("p"))
    static = out_of_tree_plugin("X", Plugin("X", score=constant(value))).score
    assert isinstance(static, StaticScore)
    assert static_scores(static) == [score]
    normalized = out_of_tree_plugin(
        "X",
        Plugin(
            "X", score=NormalizedScore(lambda context: True, lambda context, _: np.array([value]))
        ),
    ).score
    assert isinstance(normalized, NormalizedScore)
    passed = np.ones(1, bool)
    assert normalized.score_nodes(initial_context(snapshot, shape), passed).tolist() == [score]

    def build_scorer(shape: PodShape, columns: Mapping[str, int]) -> LoadScorer:
        return lambda node, arithmetic: value

    load = out_of_tree_plugin("X", Plugin("X", score=LoadScore(build_scorer))).score
    assert isinstance(load, LoadScore)
    scorer = load.build_scorer(shape, snapshot.columns)
    assert scorer(snapshot.node_class(0), ONE_NODE) == score
    assert int(scorer(columns_of(snapshot), MANY_NODES)) == score


def test_score_of_the_wrong_size_is_an_error() -> None:
    def score_nodes(snapshot: Snapshot, shape: PodShape) -> IntArray:
        return np.zeros(3, np.int64)

    plugin = out_of_tree_plugin("X", Plugin("X", score=StaticScore(score_nodes)))
    assert isinstance(plugin.score, StaticScore)
    with pytest.raises(ValueError, match=r"shape \(3,\) for 1 nodes"):
        static_scores(plugin.score)


def test_score_may_have_no_preference() -> None:
    plugin = out_of_tree_plugin("X", Plugin("X", score=StaticScore(lambda snapshot, shape: None)))
    assert isinstance(plugin.score, StaticScore)
    assert plugin.score.score_nodes(cluster([node("a")]).snapshot(), shape_of(pod("p"))) is None
