"""Policies, profiles and back-off: the settings by which a scheduler places pods.

A `SchedulerPolicy` holds the enabled filters, the weighted scores and other settings of one
profile. A cycle reads a policy and never changes it. `DEFAULT_POLICY` enables every in-tree plugin
with its default weight.

`Profiles` are the schedulers that one process runs, each with a name and a policy. A pod selects a
profile by `spec.schedulerName`; pods of other names belong to other schedulers. All profiles share
one queue and one `BackOff`: how long a rejected entity waits before its next attempt.
`configuration/` builds profiles from files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import sqrt
from typing import Any, NamedTuple, TypeVar

from phalanx.api.core import DEFAULT_SCHEDULER
from phalanx.api.feature_gates import (
    GANG_SCHEDULING,
    POD_GROUP_PREEMPTION_POLICY,
    STORAGE_CAPACITY_SCORING,
    WORKLOAD_AWARE_PREEMPTION,
    FeatureGates,
)
from phalanx.scheduler.cluster.peer_constraints import SYSTEM_DEFAULTS, SpreadDefaults
from phalanx.scheduler.cluster.pod_shape import PodShape
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.plugins.load_scoring import CPU_AND_MEMORY, ResourceWeight
from phalanx.scheduler.plugins.plugin import (
    MAX_WEIGHT,
    Filter,
    LoadScore,
    NormalizedScore,
    Score,
    StaticScore,
)
from phalanx.scheduler.plugins.registry import (
    CAPACITY_FILTER_NAMES,
    IN_TREE_PLUGINS,
    TIE_BREAKING_SCORES,
)
from phalanx.scheduler.plugins.settings_plugins import ReservationArgs
from phalanx.scheduler.plugins.volume_binding import VOLUME_BINDING

_MAX_DOUBLINGS = 32
#: Seconds until the next attempt where back-off is disabled and no event wakes the entity.
MAX_UNSCHEDULABLE_SECONDS = 300.0

#: At their default weights the scores that only break ties (`Plugin.breaks_ties`) differ by at most
#: 250, so that this weight makes one per cent of the packed resource count more.
PACKED_WEIGHT = 128

_S = TypeVar("_S", LoadScore, StaticScore, NormalizedScore)


class WeightedScore(NamedTuple):
    """A score of a plugin with the weight that a profile gives it."""

    name: str
    weight: int
    score: Score


def _default_filters() -> dict[str, Filter]:
    return {plugin.name: plugin.filter for plugin in IN_TREE_PLUGINS if plugin.filter is not None}


_DEFAULT_SCORES = tuple(
    WeightedScore(one.name, one.weight, one.score)
    for one in IN_TREE_PLUGINS
    if one.score is not None
)


@dataclass(frozen=True, slots=True, eq=False)
class SchedulerPolicy:
    """How pods of a profile are placed. Policies are compared by identity."""

    #: The enabled filters by plugin name, in the order in which they run.
    filters: Mapping[str, Filter] = field(default_factory=_default_filters)
    scores: tuple[WeightedScore, ...] = _DEFAULT_SCORES
    #: The weight of required affinity terms of running pods that select the pod.
    hard_pod_affinity_weight: int = 1
    #: Whether preferred terms of running pods count for pods without preferred terms.
    honors_existing_preferences: bool = True
    #: The spread constraints of pods of Services that have none.
    spread_defaults: SpreadDefaults = SYSTEM_DEFAULTS
    #: The resources by which placements of a group are compared: fuller ones are preferred.
    packing_resources: tuple[ResourceWeight, ...] = CPU_AND_MEMORY
    #: Whether single pods, and groups, may preempt.
    pods_preempt: bool = True
    groups_preempt: bool = True
    #: Seconds within which volumes must be provisioned and bound.
    bind_timeout_seconds: float = 600.0
    #: Seconds within which drivers must prepare devices with binding conditions.
    device_timeout_seconds: float = 600.0
    #: Which waiting entities get a reservation, and when.
    reservation: ReservationArgs = field(default_factory=ReservationArgs)
    #: Whether `unmodelled_filters` names any; cycles read it often.
    has_unmodelled_filters: bool = field(init=False)
    #: Whether the filters are those of the in-tree plugins, none of them with arguments.
    has_default_filters: bool = field(init=False)

    def __post_init__(self) -> None:
        has_hard_defaults = any(spread.is_hard for spread in self.spread_defaults.spreads)
        is_default = self.filters == _default_filters() and not has_hard_defaults
        object.__setattr__(self, "has_default_filters", is_default)
        object.__setattr__(self, "has_unmodelled_filters", bool(self.unmodelled_filters))

    def allows_preemption(self, *, is_group: bool) -> bool:
        """Whether other pods may be evicted for a group, or for a single pod."""
        return self.groups_preempt if is_group else self.pods_preempt

    def packed_resources(self, shape: PodShape) -> tuple[ResourceWeight, ...]:
        """The resources by which pods of a shape are packed; none for most pods.

        Where the arguments of NodeResourcesFit name resources, these alone decide.
        """
        if self.packing_resources != CPU_AND_MEMORY:
            return ()
        packing = (one.score for one in self.scores if isinstance(one.score, LoadScore))
        found = (one.packed_resources(shape) for one in packing if one.packed_resources)
        return next(filter(None, found), ())

    def scores_of(self, kind: type[_S], shape: PodShape) -> list[tuple[int, _S]]:
        """The scores of one kind, with their weights for a shape.

        Pods are packed by a weight that leaves room for their preferences: one GPU more or less in
        use must not outweigh an affinity. So that it still outweighs all scores of load, those
        count a 128th for packed pods: every other weight is multiplied instead.
        """
        is_packed, found = bool(self.packed_resources(shape)), []
        for name, weight, score in self.scores:
            is_packing = isinstance(score, LoadScore) and score.packed_resources is not None
            if not isinstance(score, kind) or (is_packing and not is_packed):
                continue
            if is_packed and name not in TIE_BREAKING_SCORES:
                weight = min(weight * PACKED_WEIGHT, MAX_WEIGHT)
            found.append((weight, score))
        return found

    @property
    def checks_capacity(self) -> bool:
        """Whether no node takes more pods than `node_capacities` counts."""
        return all(name in self.filters for name in CAPACITY_FILTER_NAMES)

    @property
    def unmodelled_filters(self) -> tuple[str, ...]:
        """The filters that the exact search does not model.

        With such a filter a failed search proves nothing: only a cluster whose capacity is too
        small without the filter is known to have no placement.
        """
        return tuple(name for name, filter_ in self.filters.items() if not filter_.is_exact)


DEFAULT_POLICY = SchedulerPolicy()


@dataclass(frozen=True, slots=True)
class BackOff:
    """Seconds after the first failure, doubled with each further failure up to a maximum.

    The maximum grows with the square root of the number of pods. `max_seconds=0` disables back-off:
    an unschedulable entity waits for an event, and one that failed to bind is tried at once.
    """

    initial_seconds: float = 1.0
    max_seconds: float = 10.0

    def delay_after(self, failures: int, pods: int) -> float:
        """Return the seconds to wait after consecutive failures of an entity of so many pods."""
        if not self.max_seconds:
            return MAX_UNSCHEDULABLE_SECONDS
        doublings = min(max(failures, 1) - 1, _MAX_DOUBLINGS)
        return min(self.initial_seconds * (1 << doublings), self.max_seconds * sqrt(max(pods, 1)))


DEFAULT_BACKOFF = BackOff()


@dataclass(frozen=True, slots=True)
class Profiles:
    """The policies by scheduler name, and the settings that all of them share."""

    policies: Mapping[str, SchedulerPolicy]
    back_off: BackOff = DEFAULT_BACKOFF
    #: Whether the members of a group are placed together; otherwise every pod is placed alone.
    groups: bool = True
    #: Whether a group's own preemptionPolicy counts; otherwise that of its pods does.
    preemption_policies: bool = True
    #: Whether refused entities keep their place among those of equal priority: first come, first
    #: served. Otherwise, as in kube-scheduler, they queue behind those that were refused before.
    keeps_arrival_order: bool = False
    #: Whether pods of other schedulers are never evicted.
    spares_others: bool = False
    #: The configuration file that the profiles were read from; None without a file.
    configuration: dict[str, Any] | None = None

    def policy(self, entity: Entity) -> SchedulerPolicy:
        """The policy for an entity. Members that name different schedulers are rejected later."""
        return self.policies[entity.scheduler_name]

    @property
    def groups_preempt(self) -> bool:
        """Whether any profile preempts for groups."""
        return any(policy.groups_preempt for policy in self.policies.values())

    @property
    def without_group_preemption(self) -> Profiles:
        """The same profiles, none of which preempts for groups."""
        policies = {n: replace(p, groups_preempt=False) for n, p in self.policies.items()}
        return replace(self, policies=policies)

    def without_score(self, name: str) -> Profiles:
        """The same profiles without the score of a plugin."""
        policies = {
            scheduler: replace(policy, scores=tuple(s for s in policy.scores if s.name != name))
            for scheduler, policy in self.policies.items()
        }
        return replace(self, policies=policies)


DEFAULT_PROFILES = Profiles({DEFAULT_SCHEDULER: DEFAULT_POLICY})


def apply_feature_gates(gates: FeatureGates, profiles: Profiles = DEFAULT_PROFILES) -> Profiles:
    """The profiles without the features that are disabled."""
    if not gates.is_enabled(WORKLOAD_AWARE_PREEMPTION):
        profiles = profiles.without_group_preemption
    if not gates.is_enabled(STORAGE_CAPACITY_SCORING):
        profiles = profiles.without_score(VOLUME_BINDING.name)
    return replace(
        profiles,
        groups=gates.is_enabled(GANG_SCHEDULING),
        preemption_policies=gates.is_enabled(POD_GROUP_PREEMPTION_POLICY),
    )
