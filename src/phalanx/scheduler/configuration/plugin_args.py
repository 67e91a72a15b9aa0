"""Arguments: what a configuration tells single plugins, each in the form that kube-scheduler knows.

`pluginConfig` of a profile becomes one `Arguments`; what is not mentioned is as usual. The rules
say what may not be told; `configuration.py` makes a policy of the rest.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from msgspec import Struct

from phalanx.api.core import NodeAffinity, TopologySpreadConstraint
from phalanx.api.errors import Cause
from phalanx.api.field_errors import Causes, forbidden, invalid, required
from phalanx.api.formats import validate_label_key
from phalanx.api.schema import Malformed, schema
from phalanx.api.validation.checks import (
    CREATED,
    Check,
    all_of,
    each,
    if_present,
    in_range,
    mandatory,
    minimum,
    one_of,
    optional,
    string_format,
    struct,
    unique_field,
)
from phalanx.api.validation.pod_scheduling import NODE_AFFINITY, SPREAD_CONSTRAINTS
from phalanx.scheduler.configuration.strict_decoding import Int32, unknown_field

API_VERSION = "kubescheduler.config.k8s.io/v1"
_RATIO = "RequestedToCapacityRatio"
STRATEGIES = ("LeastAllocated", "MostAllocated", _RATIO)


class _Args(Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """What all arguments may say of themselves."""

    api_version: str = ""
    kind: str = ""


class _ArgsPart(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A part of some arguments."""


class ResourceSpec(_ArgsPart, frozen=True):
    """A resource and how much it matters; nothing is one."""

    name: str = ""
    weight: Int32 = 0


class UtilizationShapePoint(_ArgsPart, frozen=True):
    """What it is worth, 0 to 10, that a node is so full, in per cent."""

    utilization: Int32 = 0
    score: Int32 = 0


class RequestedToCapacityRatioParam(_ArgsPart, frozen=True):
    """A broken line."""

    shape: tuple[UtilizationShapePoint, ...] = ()


class ScoringStrategy(_ArgsPart, frozen=True):
    """How full nodes should be."""

    type: str = STRATEGIES[0]
    resources: tuple[ResourceSpec, ...] = ()
    requested_to_capacity_ratio: RequestedToCapacityRatioParam = RequestedToCapacityRatioParam()


class NodeResourcesFitArgs(_Args, frozen=True):
    """Of NodeResourcesFit."""

    scoring_strategy: ScoringStrategy = ScoringStrategy()
    ignored_resources: tuple[str, ...] = ()
    ignored_resource_groups: tuple[str, ...] = ()


class NodeResourcesBalancedAllocationArgs(_Args, frozen=True):
    """Of NodeResourcesBalancedAllocation."""

    resources: tuple[ResourceSpec, ...] = ()


class InterPodAffinityArgs(_Args, frozen=True):
    """Of InterPodAffinity."""

    hard_pod_affinity_weight: Int32 = 1
    ignore_preferred_terms_of_existing_pods: bool = False


class PodTopologySpreadArgs(_Args, frozen=True):
    """Of PodTopologySpread."""

    default_constraints: tuple[TopologySpreadConstraint, ...] = ()
    defaulting_type: str = "System"


class NodeAffinityArgs(_Args, frozen=True):
    """Of NodeAffinity."""

    added_affinity: NodeAffinity | None = None


class DefaultPreemptionArgs(_Args, frozen=True):
    """Of DefaultPreemption."""

    min_candidate_nodes_percentage: Int32 = 10
    min_candidate_nodes_absolute: Int32 = 100


class VolumeBindingArgs(_Args, frozen=True):
    """Of VolumeBinding."""

    bind_timeout_seconds: Int32 = 600
    shape: tuple[UtilizationShapePoint, ...] = ()


class DynamicResourcesArgs(_Args, frozen=True):
    """Of DynamicResources."""

    filter_timeout: str = "10s"
    binding_timeout: str = "600s"


_PLUGIN_BY_FIELD = {
    "fit": "NodeResourcesFit",
    "balance": "NodeResourcesBalancedAllocation",
    "affinity": "InterPodAffinity",
    "spread": "PodTopologySpread",
    "nodes": "NodeAffinity",
    "preemption": "DefaultPreemption",
    "volumes": "VolumeBinding",
    "devices": "DynamicResources",
}


class PluginArgs(Struct, frozen=True, rename=_PLUGIN_BY_FIELD, forbid_unknown_fields=True):
    """All that plugins are told."""

    fit: NodeResourcesFitArgs = NodeResourcesFitArgs()
    balance: NodeResourcesBalancedAllocationArgs = NodeResourcesBalancedAllocationArgs()
    affinity: InterPodAffinityArgs = InterPodAffinityArgs()
    spread: PodTopologySpreadArgs = PodTopologySpreadArgs()
    nodes: NodeAffinityArgs = NodeAffinityArgs()
    preemption: DefaultPreemptionArgs = DefaultPreemptionArgs()
    volumes: VolumeBindingArgs = VolumeBindingArgs()
    devices: DynamicResourcesArgs = DynamicResourcesArgs()


# --------------------------------------------------------------------------------------- rules


def not_supported(why: str) -> Check:
    """It may be absent or empty, and nothing else."""
    return optional(lambda new, old: [forbidden("", f"is not supported: {why}")])


def _conforms_to(definition: str) -> Check:
    """It has the fields of a definition and no others, with values of their types."""

    def check(new: Any, old: Any) -> Causes:
        try:
            return [
                unknown_field(field)
                for field in schema(definition).conform(deepcopy(new)).unknown_fields
            ]
        except Malformed as error:
            return [Cause(error.path, "FieldValueTypeInvalid", str(error))]

    return check


def _and_then(first: Check, second: Check) -> Check:
    """What passes one check is held against the other."""
    return lambda new, old: first(new, old) or second(new, old)


def _check_increasing(new: Any, old: Any) -> Causes:
    places = [point.get("utilization", 0) for point in new]
    return [
        invalid(f"[{at}].utilization", places[at], "values must be sorted in increasing order")
        for at in range(1, len(places))
        if places[at - 1] >= places[at]
    ]


_SHAPE = all_of(
    each(struct(("utilization", optional(in_range(0, 100))), ("score", optional(in_range(0, 10))))),
    _check_increasing,
)
_RESOURCE = struct(
    ("name", mandatory(string_format(validate_label_key))), ("weight", optional(in_range(0, 100)))
)


def _check_ratio(new: Any, old: Any) -> Causes:
    field, line = "requestedToCapacityRatio", new.get("requestedToCapacityRatio")
    if new.get("type") == _RATIO:
        there = line and line.get("shape")
        return () if there else [required(f"{field}.shape", f"{_RATIO} needs at least one point")]
    return [] if line is None else [forbidden(field, f"is for the type {_RATIO} alone")]


_STRATEGY = all_of(
    struct(
        ("type", mandatory(one_of(*STRATEGIES))),
        ("resources", optional(each(_RESOURCE))),
        ("requestedToCapacityRatio", optional(struct(("shape", optional(_SHAPE))))),
    ),
    _check_ratio,
)
_IGNORED = not_supported("the API server checks room of every resource when it binds a pod")


def _check_weight_is_one(new: Any, old: Any) -> Causes:
    return () if new in (0, 1) else [invalid("", new, "must be 1")]


def _check_no_selector(new: Any, old: Any) -> Causes:
    return [] if new is None else [forbidden("", "it is that of the services of each pod")]


def _check_defaulting_type(new: Any, old: Any) -> Causes:
    kind = new.get("defaultingType", "System")
    if kind == "System" and new.get("defaultConstraints"):
        return [invalid("defaultingType", kind, "must be List where defaultConstraints are given")]
    return ()


def _check_candidate_minimums(new: Any, old: Any) -> Causes:
    fields = ("minCandidateNodesPercentage", "minCandidateNodesAbsolute")
    if any(new.get(field, 1) for field in fields):
        return ()
    return [invalid(field, 0, "cannot both be zero") for field in fields]


_RULES_BY_PLUGIN: dict[str, Check] = {
    "NodeResourcesFit": struct(
        ("ignoredResources", _IGNORED),
        ("ignoredResourceGroups", _IGNORED),
        ("scoringStrategy", if_present(_STRATEGY)),
    ),
    "NodeResourcesBalancedAllocation": struct(
        (
            "resources",
            optional(
                all_of(
                    each(_RESOURCE),
                    each(struct(("weight", optional(_check_weight_is_one)))),
                    unique_field("name"),
                )
            ),
        ),
    ),
    "InterPodAffinity": struct(("hardPodAffinityWeight", optional(in_range(0, 100)))),
    "PodTopologySpread": all_of(
        struct(
            ("defaultingType", optional(one_of("System", "List"))),
            (
                "defaultConstraints",
                optional(
                    _and_then(
                        each(_conforms_to("core.v1.TopologySpreadConstraint")),
                        all_of(
                            each(struct(("labelSelector", _check_no_selector))), SPREAD_CONSTRAINTS
                        ),
                    )
                ),
            ),
        ),
        _check_defaulting_type,
    ),
    "NodeAffinity": struct(
        (
            "addedAffinity",
            if_present(_and_then(_conforms_to("core.v1.NodeAffinity"), NODE_AFFINITY)),
        )
    ),
    "DefaultPreemption": all_of(
        struct(
            ("minCandidateNodesPercentage", optional(in_range(0, 100))),
            ("minCandidateNodesAbsolute", optional(minimum(0))),
        ),
        _check_candidate_minimums,
    ),
    "VolumeBinding": struct(
        ("bindTimeoutSeconds", optional(minimum(0))), ("shape", optional(_SHAPE))
    ),
    "DynamicResources": struct(),
}

CONFIGURABLE_PLUGINS = tuple(_RULES_BY_PLUGIN)


def validate_plugin_args(name: str, args: Any) -> Causes:
    """What is wrong with what one plugin is told."""
    kind = struct(
        ("kind", optional(one_of(f"{name}Args"))), ("apiVersion", optional(one_of(API_VERSION)))
    )
    return [*kind(args, CREATED), *_RULES_BY_PLUGIN[name](args, CREATED)]
