"""Selection: pods by namespace and labels. What affinity terms and spread constraints are about.

A value without a cluster: who looks passes in the pod's namespace and labels, and the labels of all
namespaces. Says nothing about where pods are; `census.py` counts them.

Peers: what a pod asks of other pods. Near whom, apart from whom, spread how evenly.

Part of a pod's shape. The counting is `census.py`'s and `company.py`'s, the judging `filters.py`'s
and `comparisons.py`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from phalanx.api.core import Pod, PodAffinity, PodAffinityTerm, TopologySpreadConstraint
from phalanx.api.selectors import LabelRequirement, selector_requirements

Labels = Mapping[str, str]

#: A condition that nothing meets: what an absent selector selects.
_MATCHES_NOTHING = (LabelRequirement("", "in"),)


@dataclass(frozen=True, slots=True)
class PodSelector:
    """Pods that meet all of `needs` in some namespaces; hashable, the hash being computed once."""

    requirements: tuple[LabelRequirement, ...]
    namespaces: tuple[str, ...] = ()
    #: Also those in namespaces whose labels meet these; None: in no other namespace.
    namespace_requirements: tuple[LabelRequirement, ...] | None = None
    _hash: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "_hash", hash((self.requirements, self.namespaces, self.namespace_requirements))
        )

    def __hash__(self) -> int:
        return self._hash

    @property
    def label_keys(self) -> Iterable[str]:
        """The labels of a pod that decide whether it is selected."""
        return (need.key for need in self.requirements)

    def matches(self, namespace: str, labels: Labels, namespaces: Mapping[str, Labels]) -> bool:
        """Whether a pod is among them."""
        return self._covers_namespace(namespace, namespaces) and all(
            need.matches(labels) for need in self.requirements
        )

    def _covers_namespace(self, namespace: str, namespaces: Mapping[str, Labels]) -> bool:
        if namespace in self.namespaces:
            return True
        if self.namespace_requirements is None:
            return False
        labels = namespaces.get(namespace, {})
        return all(need.matches(labels) for need in self.namespace_requirements)

    def __str__(self) -> str:
        return ",".join(map(_format_requirement, self.requirements)) or "anything"


def pod_label_requirements(
    selector: dict[str, Any] | None,
    own: Labels,
    same: Iterable[str] = (),
    other: Iterable[str] = (),
) -> tuple[LabelRequirement, ...]:
    """What a selector requires, given the labels of the pod that says it.

    `same` names labels whose value must be the pod's own, `other` those whose value must not.
    """
    if selector is None:
        return _MATCHES_NOTHING
    ours = [LabelRequirement(k, "in", frozenset({own[k]})) for k in same if k in own]
    theirs = [LabelRequirement(k, "notin", frozenset({own[k]})) for k in other if k in own]
    return (*selector_requirements(selector), *ours, *theirs)


def _format_requirement(requirement: LabelRequirement) -> str:
    values = sorted(requirement.values)
    match requirement.operator, values:
        case "in", [value]:
            return f"{requirement.key}={value}"
        case "exists", _:
            return requirement.key
        case "absent", _:
            return f"!{requirement.key}"
        case operator, _:
            return f"{requirement.key} {operator} ({','.join(values)})"


HOSTNAME = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"


class AffinityTerm(NamedTuple):
    """Some pods, and the label of nodes by which to share a domain with them or not."""

    selector: PodSelector
    topology_key: str


class WeightedAffinityTerm(NamedTuple):
    """A term that had better hold, or, with a negative weight, had better not."""

    weight: int
    term: AffinityTerm


class TopologySpread(NamedTuple):
    """Pods to be spread evenly over the domains of a key."""

    selector: PodSelector
    topology_key: str
    max_skew: int
    is_hard: bool
    min_domains: int = 1
    #: Whether only nodes count that the pod's node affinity, or its tolerations, allow.
    honors_node_affinity: bool = True
    honors_taints: bool = False


class PeerConstraints(NamedTuple):
    """All that one pod asks of others. Falsy if it asks nothing."""

    affinity: tuple[AffinityTerm, ...] = ()
    anti_affinity: tuple[AffinityTerm, ...] = ()
    preferred: tuple[WeightedAffinityTerm, ...] = ()
    spreads: tuple[TopologySpread, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.affinity or self.anti_affinity or self.preferred or self.spreads)

    @property
    def selectors(self) -> Iterator[PodSelector]:
        """Every crowd that it mentions."""
        yield from (term.selector for term in (*self.affinity, *self.anti_affinity))
        yield from (like.term.selector for like in self.preferred)
        yield from (spread.selector for spread in self.spreads)


NO_PEER_CONSTRAINTS = PeerConstraints()


class SpreadDefaults(NamedTuple):
    """How pods of services are spread that do not say how; the selection is that of the services.

    Without any they are not. If `strict`, nodes without one of the keys count as they do for pods
    that ask for spreading themselves.
    """

    spreads: tuple[TopologySpread, ...] = ()
    strict: bool = False


ANY_POD = PodSelector(())
SYSTEM_DEFAULTS = SpreadDefaults(
    (
        TopologySpread(ANY_POD, HOSTNAME, max_skew=3, is_hard=False),
        TopologySpread(ANY_POD, ZONE, max_skew=5, is_hard=False),
    )
)


def peer_constraints_of(pod: Pod) -> PeerConstraints:
    """What a pod asks of others."""
    affinity, spreads = pod.spec.affinity, pod.spec.topology_spread_constraints
    near = affinity.pod_affinity if affinity else None
    apart = affinity.pod_anti_affinity if affinity else None
    if not (near or apart or spreads):
        return NO_PEER_CONSTRAINTS
    return PeerConstraints(
        affinity=_required_terms(pod, near),
        anti_affinity=_required_terms(pod, apart),
        preferred=(*_preferred_terms(pod, near, +1), *_preferred_terms(pod, apart, -1)),
        spreads=tuple(_pod_spread(pod, one) for one in spreads),
    )


def default_spreads(
    wanted: Iterable[TopologySpread], namespace: str, labels: Labels, services: Iterable[Labels]
) -> tuple[TopologySpread, ...]:
    """How a pod that says nothing is spread: with the pods of the services that it belongs to."""
    chosen = [service for service in services if service and service.items() <= labels.items()]
    if not chosen:
        return ()
    together = {key: value for service in chosen for key, value in sorted(service.items())}
    selection = PodSelector(selector_requirements({"matchLabels": together}), (namespace,))
    return tuple(one._replace(selector=selection) for one in wanted)


def _required_terms(pod: Pod, affinity: PodAffinity | None) -> tuple[AffinityTerm, ...]:
    terms = affinity.required_during_scheduling_ignored_during_execution if affinity else ()
    return tuple(_affinity_term(pod, term) for term in terms)


def _preferred_terms(
    pod: Pod, affinity: PodAffinity | None, sign: int
) -> Iterator[WeightedAffinityTerm]:
    terms = affinity.preferred_during_scheduling_ignored_during_execution if affinity else ()
    for one in terms:
        yield WeightedAffinityTerm(sign * one.weight, _affinity_term(pod, one.pod_affinity_term))


def _affinity_term(pod: Pod, term: PodAffinityTerm) -> AffinityTerm:
    """Without any namespaces a term is about the pod's own."""
    meta, spaces = pod.metadata, term.namespace_selector
    own = () if term.namespaces or spaces is not None else (meta.namespace,)
    wanted = pod_label_requirements(
        term.label_selector, meta.labels, term.match_label_keys, term.mismatch_label_keys
    )
    elsewhere = None if spaces is None else selector_requirements(spaces)
    return AffinityTerm(
        PodSelector(wanted, (*own, *sorted(term.namespaces)), elsewhere), term.topology_key
    )


def _pod_spread(pod: Pod, one: TopologySpreadConstraint) -> TopologySpread:
    meta = pod.metadata
    wanted = pod_label_requirements(one.label_selector, meta.labels, one.match_label_keys)
    return topology_spread_of(PodSelector(wanted, (meta.namespace,)), one)


def topology_spread_of(selection: PodSelector, one: TopologySpreadConstraint) -> TopologySpread:
    """A constraint about these pods."""
    return TopologySpread(
        selection,
        one.topology_key,
        one.max_skew,
        one.when_unsatisfiable == "DoNotSchedule",
        one.min_domains,
        one.node_affinity_policy == "Honor",
        one.node_taints_policy == "Honor",
    )
