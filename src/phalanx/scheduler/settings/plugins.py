"""Plugins: the parts of a policy by the names that kube-scheduler gives them, and which are chosen.

A configuration names plugins under `multiPoint`, for all that they do, or under one extension
point; it adds to what is usual, replaces weights or takes away, `*` being everything. Here is the
table of the names and the arithmetic of choosing; the rows behind the names are those of `filters`,
`scores` and `comparisons`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from enum import Enum
from typing import NamedTuple

from msgspec import Struct

from phalanx.api.rules.checks import (
    Check,
    between,
    each,
    every,
    given,
    needed,
    one_of,
    struct,
    unique_field,
)
from phalanx.scheduler.settings.strict import Whole

#: More weight than this is a slip of the pen, and would leave the range of scores.
MOST_WEIGHT = 1_000_000
ALL = "*"


class Part(Enum):
    """What becomes of a plugin here."""

    POLICY = "chosen and weighed"
    ALWAYS = "always on"
    LATER = "not there yet"


class Plugin(NamedTuple):
    """One name. `weight` is the usual weight of its score; without one it does not score."""

    name: str
    filters: bool = False
    weight: int = 0
    part: Part = Part.POLICY


#: In the order in which they are asked unless somebody says otherwise.
PLUGINS = (
    Plugin("SchedulingGates", part=Part.ALWAYS),
    Plugin("PrioritySort", part=Part.ALWAYS),
    Plugin("NodeName", filters=True, part=Part.ALWAYS),
    Plugin("NodeUnschedulable", filters=True),
    Plugin("TaintToleration", filters=True, weight=3),
    Plugin("NodeAffinity", filters=True, weight=2),
    Plugin("NodePorts", filters=True),
    Plugin("NodeResourcesFit", filters=True, weight=1),
    Plugin("VolumeRestrictions", filters=True, part=Part.LATER),
    Plugin("NodeVolumeLimits", filters=True, part=Part.LATER),
    Plugin("VolumeBinding", filters=True, weight=1, part=Part.LATER),
    Plugin("VolumeZone", filters=True, part=Part.LATER),
    Plugin("PodTopologySpread", filters=True, weight=2),
    Plugin("InterPodAffinity", filters=True, weight=2),
    Plugin("DynamicResources", filters=True, weight=2, part=Part.LATER),
    Plugin("DefaultPreemption"),
    Plugin("NodeResourcesBalancedAllocation", weight=1),
    Plugin("ImageLocality", weight=1),
    Plugin("DefaultBinder", part=Part.ALWAYS),
    Plugin("NodeDeclaredFeatures", filters=True, part=Part.LATER),
    Plugin("GangScheduling", part=Part.ALWAYS),
    Plugin("TopologyPlacementGenerator", part=Part.ALWAYS),
    Plugin("PodGroupPodsCount", part=Part.ALWAYS),
    Plugin("DeferredPodScheduling", filters=True, part=Part.LATER),
)

NAMES = tuple(plugin.name for plugin in PLUGINS)
FILTERING = tuple(plugin.name for plugin in PLUGINS if plugin.filters)
SCORING = tuple(plugin.name for plugin in PLUGINS if plugin.weight)
#: What evicts others, at the points for pods and for groups.
EVICTING = ("DefaultPreemption",)
ALWAYS_ON = tuple(plugin.name for plugin in PLUGINS if plugin.part is Part.ALWAYS)


class Choice(Struct, frozen=True, forbid_unknown_fields=True):
    """A plugin by name; a weight of zero is a weight of one."""

    name: str = ""
    weight: Whole = 0


class PluginSet(Struct, frozen=True, forbid_unknown_fields=True):
    """What is added to the usual, and what is taken away."""

    enabled: tuple[Choice, ...] = ()
    disabled: tuple[Choice, ...] = ()


class Plugins(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The extension points. Here only `filter`, `score`, the two of evicting and what holds for all
    make a difference: the others are parts of these, or of what is always on or not there yet.
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


def _set(names: Iterable[str]) -> Check:
    """A set may enable plugins that are of use there, and disable any, or all."""
    weight = given(between(0, MOST_WEIGHT))
    enabled = each(struct(("name", needed(one_of(*names))), ("weight", weight)))
    return struct(
        ("enabled", given(every(enabled, unique_field("name")))),
        ("disabled", given(each(struct(("name", needed(one_of(ALL, *NAMES))))))),
    )


_OF_USE = {"filter": FILTERING, "score": SCORING}
PLUGINS_RULES: Check = struct(
    *((name, given(_set(_OF_USE.get(name, NAMES)))) for name in Plugins.__struct_encode_fields__)
)


def chosen(plugins: Plugins, own: PluginSet, useful: Container[str]) -> dict[str, int]:
    """The plugins that are on at an extension point, in order, with their weights.

    First those that it enables itself although they are usual, then the others that are on for all
    points, then what else it enables.
    """
    off = {choice.name for choice in own.disabled}
    named = {choice.name: choice for choice in own.enabled}
    general = {
        one.name: named.get(one.name, one)
        for one in _everywhere(plugins.multi_point)
        if one.name in useful and not off & {ALL, one.name}
    }
    again = [one for name, one in named.items() if name in general]
    rest = [one for name, one in general.items() if name not in named]
    return {one.name: one.weight or 1 for one in (*again, *rest, *own.enabled)}


def _everywhere(multi_point: PluginSet) -> list[Choice]:
    """The plugins that are on at all points, those that are usual in their usual place."""
    off = {choice.name for choice in multi_point.disabled}
    named = {choice.name: choice for choice in multi_point.enabled}
    usual = [
        named.get(plugin.name, Choice(plugin.name, plugin.weight))
        for plugin in PLUGINS
        if not off & {ALL, plugin.name}
    ]
    return list({one.name: one for one in (*usual, *multi_point.enabled)}.values())
