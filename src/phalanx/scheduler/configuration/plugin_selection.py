"""Which plugins a profile enables, with which weights and arguments, and the policy they make.

A configuration names plugins under `multiPoint`, for all their extension points, or under one
extension point. `enabled` adds a plugin or sets its weight, `disabled` removes it, `*` removes all
that are on by default. The names come from the plugin registry (`plugins/registry.py`). Rules
report what is wrong; `build_policy` assumes that the rules have passed.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from phalanx.api.validation.checks import (
    Check,
    all_of,
    each,
    in_range,
    mandatory,
    one_of,
    optional,
    struct,
    unique_field,
)
from phalanx.scheduler.plugins.arguments import Int32
from phalanx.scheduler.plugins.plugin import (
    FILTER,
    MAX_WEIGHT,
    POD_GROUP_POST_FILTER,
    POST_FILTER,
    RESERVE,
    SCORE,
)
from phalanx.scheduler.plugins.registry import PluginRegistry
from phalanx.scheduler.plugins.settings_plugins import NO_RESERVATIONS, RESERVATION
from phalanx.scheduler.policy import SchedulerPolicy, WeightedScore

WILDCARD = "*"


class PluginReference(Struct, frozen=True, forbid_unknown_fields=True):
    """A plugin by name, with a weight; 0 means the default."""

    name: str = ""
    weight: Int32 = 0


class PluginSet(Struct, frozen=True, forbid_unknown_fields=True):
    """The plugins that an extension point adds and removes."""

    enabled: tuple[PluginReference, ...] = ()
    disabled: tuple[PluginReference, ...] = ()


class Plugins(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The plugin sets of a profile by extension point.

    `multiPoint`, `filter`, `score`, `postFilter` and `podGroupPostFilter` have an effect. The other
    points belong to these, or to plugins that are always on or not implemented.
    """

    multi_point: PluginSet = PluginSet()
    filter: PluginSet = PluginSet()
    score: PluginSet = PluginSet()
    pre_enqueue: PluginSet = PluginSet()
    queue_sort: PluginSet = PluginSet()
    pre_filter: PluginSet = PluginSet()
    post_filter: PluginSet = PluginSet()
    pre_score: PluginSet = PluginSet()
    reserve: PluginSet = PluginSet()
    permit: PluginSet = PluginSet()
    pre_bind: PluginSet = PluginSet()
    bind: PluginSet = PluginSet()
    post_bind: PluginSet = PluginSet()
    placement_generate: PluginSet = PluginSet()
    placement_score: PluginSet = PluginSet()
    placement_feasible: PluginSet = PluginSet()
    pod_group_post_filter: PluginSet = PluginSet()


def plugins_rules(registry: PluginRegistry) -> Check:
    """The rules for `plugins`: a point enables plugins that act there, and disables any plugin."""
    weight = optional(in_range(0, MAX_WEIGHT))
    disabled = each(struct(("name", mandatory(one_of(WILDCARD, *registry.names())))))
    rows = []
    for point in Plugins.__struct_encode_fields__:
        names = registry.names(point if point in (FILTER, SCORE) else "")
        enabled = each(struct(("name", mandatory(one_of(*names))), ("weight", weight)))
        plugin_set = struct(
            ("enabled", optional(all_of(enabled, unique_field("name")))),
            ("disabled", optional(disabled)),
        )
        rows.append((point, optional(plugin_set)))
    return struct(*rows)


def enabled_plugins(
    registry: PluginRegistry, plugins: Plugins, own: PluginSet, *, point: str
) -> dict[str, int]:
    """The plugins that are on at an extension point, in order, with their weights.

    `own` is the set of the point. First come the default plugins that the point enables again, then
    the other plugins that are on at all points, then the rest of what the point enables.
    """
    allowed = registry.names(point)
    disabled = {plugin.name for plugin in own.disabled}
    named = {plugin.name: plugin for plugin in own.enabled}
    general = {
        plugin.name: named.get(plugin.name, plugin)
        for plugin in _multi_point_plugins(registry, plugins.multi_point)
        if plugin.name in allowed and not disabled & {WILDCARD, plugin.name}
    }
    re_enabled = [plugin for name, plugin in named.items() if name in general]
    other_enabled = [plugin for name, plugin in general.items() if name not in named]
    # As in kube-scheduler, an in-tree plugin that is named without a weight weighs 1.
    default_weights = {plugin.name: plugin.weight for plugin in registry.out_of_tree}
    return {
        plugin.name: plugin.weight or default_weights.get(plugin.name, 1)
        for plugin in (*re_enabled, *other_enabled, *own.enabled)
    }


def _multi_point_plugins(registry: PluginRegistry, multi_point: PluginSet) -> list[PluginReference]:
    """The plugins that are on at all points; default plugins keep their place."""
    disabled = {reference.name for reference in multi_point.disabled}
    named = {reference.name: reference for reference in multi_point.enabled}
    default = [
        named.get(plugin.name, PluginReference(plugin.name, plugin.default_weight))
        for plugin in registry.in_tree
        if not disabled & {WILDCARD, plugin.name}
    ]
    return list(
        {reference.name: reference for reference in (*default, *multi_point.enabled)}.values()
    )


def build_policy(registry: PluginRegistry, plugins: Plugins) -> SchedulerPolicy:
    """The policy of a profile; the plugins of the registry have the arguments of the profile."""
    by_name = {plugin.name: plugin for plugin in registry}
    filters = {
        name: filter_
        for name in enabled_plugins(registry, plugins, plugins.filter, point=FILTER)
        if (filter_ := by_name[name].filter) is not None
    }
    scores = tuple(
        WeightedScore(name, weight, score)
        for name, weight in enabled_plugins(registry, plugins, plugins.score, point=SCORE).items()
        if (score := by_name[name].score) is not None
    )
    # The arguments of a plugin count even where its filter and score are disabled.
    fields: dict[str, Any] = {}
    for plugin in registry:
        fields.update(plugin.policy_fields or {})
    if RESERVATION.name not in enabled_plugins(registry, plugins, plugins.reserve, point=RESERVE):
        fields["reservation"] = NO_RESERVATIONS
    post_filter, group_post_filter = plugins.post_filter, plugins.pod_group_post_filter
    return SchedulerPolicy(
        filters=filters,
        scores=scores,
        pods_preempt=bool(enabled_plugins(registry, plugins, post_filter, point=POST_FILTER)),
        groups_preempt=bool(
            enabled_plugins(registry, plugins, group_post_filter, point=POD_GROUP_POST_FILTER)
        ),
        **fields,
    )
