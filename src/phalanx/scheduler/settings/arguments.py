"""Arguments: what a configuration tells single plugins, each in the form that kube-scheduler knows.

`pluginConfig` of a profile becomes one `Arguments`; what is not mentioned is as usual. The rules
say what may not be told; `configuration.py` makes a policy of the rest.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from msgspec import Struct

from phalanx.api.causes import Causes, forbidden, invalid, required
from phalanx.api.core import NodeAffinity, SpreadConstraint
from phalanx.api.errors import Cause
from phalanx.api.fields import label_key_faults
from phalanx.api.rules.checks import (
    CREATED,
    Check,
    at_least,
    between,
    each,
    every,
    given,
    needed,
    one_of,
    present,
    struct,
    text,
    unique_field,
)
from phalanx.api.rules.placement import NODE_AFFINITY, SPREAD_CONSTRAINTS
from phalanx.api.schema import Malformed, schema
from phalanx.scheduler.settings.strict import Whole, no_such

GROUP = "kubescheduler.config.k8s.io/v1"
_RATIO = "RequestedToCapacityRatio"
STRATEGIES = ("LeastAllocated", "MostAllocated", _RATIO)


class _Args(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What all arguments may say of themselves."""

    api_version: str = ""
    kind: str = ""


class _Part(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A part of some arguments."""


class ResourceSpec(_Part, frozen=True):
    """A resource and how much it matters; nothing is one."""

    name: str = ""
    weight: Whole = 0


class ShapePoint(_Part, frozen=True):
    """What it is worth, 0 to 10, that a node is so full, in per cent."""

    utilization: Whole = 0
    score: Whole = 0


class Ratio(_Part, frozen=True):
    """A broken line."""

    shape: tuple[ShapePoint, ...] = ()


class ScoringStrategy(_Part, frozen=True):
    """How full nodes should be."""

    type: str = STRATEGIES[0]
    resources: tuple[ResourceSpec, ...] = ()
    requested_to_capacity_ratio: Ratio = Ratio()


class FitArgs(_Args, frozen=True):
    """Of NodeResourcesFit."""

    scoring_strategy: ScoringStrategy = ScoringStrategy()
    ignored_resources: tuple[str, ...] = ()
    ignored_resource_groups: tuple[str, ...] = ()


class BalanceArgs(_Args, frozen=True):
    """Of NodeResourcesBalancedAllocation."""

    resources: tuple[ResourceSpec, ...] = ()


class InterPodAffinityArgs(_Args, frozen=True):
    """Of InterPodAffinity."""

    hard_pod_affinity_weight: Whole = 1
    ignore_preferred_terms_of_existing_pods: bool = False


class SpreadArgs(_Args, frozen=True):
    """Of PodTopologySpread."""

    default_constraints: tuple[SpreadConstraint, ...] = ()
    defaulting_type: str = "System"


class NodeAffinityArgs(_Args, frozen=True):
    """Of NodeAffinity."""

    added_affinity: NodeAffinity | None = None


class PreemptionArgs(_Args, frozen=True):
    """Of DefaultPreemption."""

    min_candidate_nodes_percentage: Whole = 10
    min_candidate_nodes_absolute: Whole = 100


class VolumeBindingArgs(_Args, frozen=True):
    """Of VolumeBinding."""

    bind_timeout_seconds: Whole = 600
    shape: tuple[ShapePoint, ...] = ()


class DynamicResourcesArgs(_Args, frozen=True):
    """Of DynamicResources."""

    filter_timeout: str = "10s"
    binding_timeout: str = "600s"


_PLUGINS = {
    "fit": "NodeResourcesFit",
    "balance": "NodeResourcesBalancedAllocation",
    "affinity": "InterPodAffinity",
    "spread": "PodTopologySpread",
    "nodes": "NodeAffinity",
    "preemption": "DefaultPreemption",
    "volumes": "VolumeBinding",
    "devices": "DynamicResources",
}


class Arguments(Struct, frozen=True, rename=_PLUGINS, forbid_unknown_fields=True):
    """All that plugins are told."""

    fit: FitArgs = FitArgs()
    balance: BalanceArgs = BalanceArgs()
    affinity: InterPodAffinityArgs = InterPodAffinityArgs()
    spread: SpreadArgs = SpreadArgs()
    nodes: NodeAffinityArgs = NodeAffinityArgs()
    preemption: PreemptionArgs = PreemptionArgs()
    volumes: VolumeBindingArgs = VolumeBindingArgs()
    devices: DynamicResourcesArgs = DynamicResourcesArgs()


# --------------------------------------------------------------------------------------- rules


def not_supported(why: str) -> Check:
    """It may be absent or empty, and nothing else."""
    return given(lambda new, old: [forbidden("", f"is not supported: {why}")])


def _formed(definition: str) -> Check:
    """It has the fields of a definition and no others, with values of their types."""

    def check(new: Any, old: Any) -> Causes:
        try:
            return [no_such(field) for field in schema(definition).conform(deepcopy(new)).unknown]
        except Malformed as error:
            return [Cause(error.path, "FieldValueTypeInvalid", str(error))]

    return check


def _and_then(first: Check, second: Check) -> Check:
    """What passes one check is held against the other."""
    return lambda new, old: first(new, old) or second(new, old)


def _increasing(new: Any, old: Any) -> Causes:
    places = [point.get("utilization", 0) for point in new]
    return [
        invalid(f"[{at}].utilization", places[at], "values must be sorted in increasing order")
        for at in range(1, len(places))
        if places[at - 1] >= places[at]
    ]


_SHAPE = every(
    each(struct(("utilization", given(between(0, 100))), ("score", given(between(0, 10))))),
    _increasing,
)
_RESOURCE = struct(("name", needed(text(label_key_faults))), ("weight", given(between(0, 100))))


def _ratio(new: Any, old: Any) -> Causes:
    field, line = "requestedToCapacityRatio", new.get("requestedToCapacityRatio")
    if new.get("type") == _RATIO:
        there = line and line.get("shape")
        return () if there else [required(f"{field}.shape", f"{_RATIO} needs at least one point")]
    return [] if line is None else [forbidden(field, f"is for the type {_RATIO} alone")]


_STRATEGY = every(
    struct(
        ("type", needed(one_of(*STRATEGIES))),
        ("resources", given(each(_RESOURCE))),
        ("requestedToCapacityRatio", given(struct(("shape", given(_SHAPE))))),
    ),
    _ratio,
)
_IGNORED = not_supported("the API server checks room of every resource when it binds a pod")


def _one(new: Any, old: Any) -> Causes:
    return () if new in (0, 1) else [invalid("", new, "must be 1")]


def _no_selector(new: Any, old: Any) -> Causes:
    return [] if new is None else [forbidden("", "it is that of the services of each pod")]


def _defaulting(new: Any, old: Any) -> Causes:
    kind = new.get("defaultingType", "System")
    if kind == "System" and new.get("defaultConstraints"):
        return [invalid("defaultingType", kind, "must be List where defaultConstraints are given")]
    return ()


def _candidates(new: Any, old: Any) -> Causes:
    fields = ("minCandidateNodesPercentage", "minCandidateNodesAbsolute")
    if any(new.get(field, 1) for field in fields):
        return ()
    return [invalid(field, 0, "cannot both be zero") for field in fields]


_RULES: dict[str, Check] = {
    "NodeResourcesFit": struct(
        ("ignoredResources", _IGNORED),
        ("ignoredResourceGroups", _IGNORED),
        ("scoringStrategy", present(_STRATEGY)),
    ),
    "NodeResourcesBalancedAllocation": struct(
        (
            "resources",
            given(
                every(each(_RESOURCE), each(struct(("weight", given(_one)))), unique_field("name"))
            ),
        ),
    ),
    "InterPodAffinity": struct(("hardPodAffinityWeight", given(between(0, 100)))),
    "PodTopologySpread": every(
        struct(
            ("defaultingType", given(one_of("System", "List"))),
            (
                "defaultConstraints",
                given(
                    _and_then(
                        each(_formed("core.v1.TopologySpreadConstraint")),
                        every(each(struct(("labelSelector", _no_selector))), SPREAD_CONSTRAINTS),
                    )
                ),
            ),
        ),
        _defaulting,
    ),
    "NodeAffinity": struct(
        ("addedAffinity", present(_and_then(_formed("core.v1.NodeAffinity"), NODE_AFFINITY)))
    ),
    "DefaultPreemption": every(
        struct(
            ("minCandidateNodesPercentage", given(between(0, 100))),
            ("minCandidateNodesAbsolute", given(at_least(0))),
        ),
        _candidates,
    ),
    "VolumeBinding": struct(("bindTimeoutSeconds", given(at_least(0))), ("shape", given(_SHAPE))),
    "DynamicResources": struct(),
}

NAMES = tuple(_RULES)


def faults(name: str, args: Any) -> Causes:
    """What is wrong with what one plugin is told."""
    kind = struct(("kind", given(one_of(f"{name}Args"))), ("apiVersion", given(one_of(GROUP))))
    return [*kind(args, CREATED), *_RULES[name](args, CREATED)]
