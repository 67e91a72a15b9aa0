"""PeerConstraints: what a pod requires or prefers of other pods: affinity, anti-affinity, spread.

Part of a pod's shape. All classes are values without a cluster: a selector is evaluated against the
namespace and labels of a pod and the labels of all namespaces, which the caller passes in.
`pod_index.py` counts the matching pods, and the plugins filter and score by these counts.

    affinity:       AffinityTerm(app=cache, topology_key=zone)     share a zone with app=cache
    anti_affinity:  AffinityTerm(app=web, topology_key=hostname)   share no node with app=web
    spreads:        TopologySpread(app=web, zone, max_skew=1)      spread app=web over zones
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

from phalanx.api.core import Pod, PodAffinity, PodAffinityTerm, TopologySpreadConstraint
from phalanx.api.selectors import LabelRequirement, selector_requirements

Labels = Mapping[str, str]

#: A requirement that no pod meets: an absent selector selects nothing.
_MATCHES_NOTHING = (LabelRequirement("", "in"),)


@dataclass(frozen=True, slots=True)
class PodSelector:
    """Pods in some namespaces that meet all requirements. The hash is computed once."""

    requirements: tuple[LabelRequirement, ...]
    namespaces: tuple[str, ...] = ()
    #: Also pods in namespaces whose labels meet these; None: in no other namespace.
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
        """The label keys that the requirements read."""
        return (requirement.key for requirement in self.requirements)

    def matches(self, namespace: str, labels: Labels, namespaces: Mapping[str, Labels]) -> bool:
        """Whether a pod with these labels in this namespace is selected."""
        return self._covers_namespace(namespace, namespaces) and all(
            requirement.matches(labels) for requirement in self.requirements
        )

    def _covers_namespace(self, namespace: str, namespaces: Mapping[str, Labels]) -> bool:
        if namespace in self.namespaces:
            return True
        if self.namespace_requirements is None:
            return False
        labels = namespaces.get(namespace, {})
        return all(requirement.matches(labels) for requirement in self.namespace_requirements)

    def __str__(self) -> str:
        return ",".join(map(_format_requirement, self.requirements)) or "anything"


def pod_label_requirements(
    selector: dict[str, Any] | None,
    own: Labels,
    same: Iterable[str] = (),
    *,
    other: Iterable[str] = (),
) -> tuple[LabelRequirement, ...]:
    """Combine a label selector with `matchLabelKeys` (`same`) and `mismatchLabelKeys` (`other`).

    `own` are the labels of the pod that has the selector: for each key of `same` the value must be
    the pod's own, for each key of `other` it must not.
    """
    if selector is None:
        return _MATCHES_NOTHING
    equal = [LabelRequirement(k, "in", frozenset({own[k]})) for k in same if k in own]
    different = [LabelRequirement(k, "notin", frozenset({own[k]})) for k in other if k in own]
    return (*selector_requirements(selector), *equal, *different)


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
    """Selected pods and the topology key by which to share a domain with them, or to avoid it."""

    selector: PodSelector
    topology_key: str


class WeightedAffinityTerm(NamedTuple):
    """A preferred term; a negative weight means that it is preferred not to hold."""

    weight: int
    term: AffinityTerm


class TopologySpread(NamedTuple):
    """Selected pods that are spread evenly over the domains of a topology key."""

    selector: PodSelector
    topology_key: str
    max_skew: int
    is_hard: bool
    min_domains: int = 1
    #: Whether only nodes count that the pod's node affinity, or its tolerations, allow.
    honors_node_affinity: bool = True
    honors_taints: bool = False


class PeerConstraints(NamedTuple):
    """All constraints of a pod on other pods. Falsy if there are none."""

    affinity: tuple[AffinityTerm, ...] = ()
    anti_affinity: tuple[AffinityTerm, ...] = ()
    preferred: tuple[WeightedAffinityTerm, ...] = ()
    spreads: tuple[TopologySpread, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.affinity or self.anti_affinity or self.preferred or self.spreads)

    @property
    def count_of_terms(self) -> int:
        """The number of constraints."""
        return sum(map(len, self))

    @property
    def selectors(self) -> Iterator[PodSelector]:
        """Every selector of the constraints."""
        yield from (term.selector for term in (*self.affinity, *self.anti_affinity))
        yield from (weighted.term.selector for weighted in self.preferred)
        yield from (spread.selector for spread in self.spreads)

    @property
    def topology_keys(self) -> Iterator[str]:
        """The topology key of every constraint."""
        yield from (term.topology_key for term in (*self.affinity, *self.anti_affinity))
        yield from (weighted.term.topology_key for weighted in self.preferred)
        yield from (spread.topology_key for spread in self.spreads)


NO_PEER_CONSTRAINTS = PeerConstraints()


class SpreadDefaults(NamedTuple):
    """How pods of Services are spread that have no spread constraints of their own.

    The selector is that of the Services. If `strict`, nodes without one of the topology keys count
    as they do for pods with constraints of their own.
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
    """Read the constraints of a pod on other pods."""
    affinity, spreads = pod.spec.affinity, pod.spec.topology_spread_constraints
    pod_affinity = affinity.pod_affinity if affinity else None
    pod_anti_affinity = affinity.pod_anti_affinity if affinity else None
    if not (pod_affinity or pod_anti_affinity or spreads):
        return NO_PEER_CONSTRAINTS
    return PeerConstraints(
        affinity=_required_terms(pod, pod_affinity),
        anti_affinity=_required_terms(pod, pod_anti_affinity),
        preferred=(
            *_preferred_terms(pod, pod_affinity, +1),
            *_preferred_terms(pod, pod_anti_affinity, -1),
        ),
        spreads=tuple(_pod_spread(pod, constraint) for constraint in spreads),
    )


class ServiceSelectors:
    """The selectors of the Services of a namespace, by one of the labels that each requires.

    A pod is then compared with the few Services that require one of its labels: each of a thousand
    JobSets has a Service, which selects its own pods only.
    """

    def __init__(self, selectors: Iterable[Labels]) -> None:
        self._by_label: dict[tuple[str, str], list[tuple[int, Labels]]] = {}
        #: The label keys that the selectors read.
        self.label_keys: set[str] = set()
        for position, selector in enumerate(selectors):
            if selector:
                self._by_label.setdefault(min(selector.items()), []).append((position, selector))
                self.label_keys.update(selector)

    def __bool__(self) -> bool:
        return bool(self._by_label)

    def find_selecting(self, labels: Labels) -> list[Labels]:
        """Return the selectors that select a pod with these labels, in their order."""
        found = [
            entry
            for label in labels.items()
            for entry in self._by_label.get(label, ())
            if entry[1].items() <= labels.items()
        ]
        return [selector for _, selector in sorted(found, key=itemgetter(0))]


NO_SERVICES = ServiceSelectors(())


def default_spreads(
    defaults: Iterable[TopologySpread],
    namespace: str,
    labels: Labels,
    *,
    services: ServiceSelectors,
) -> tuple[TopologySpread, ...]:
    """Return the default spreads of a pod, over the pods of the Services that select it."""
    selecting = services.find_selecting(labels)
    if not selecting:
        return ()
    merged = {key: value for service in selecting for key, value in sorted(service.items())}
    selector = PodSelector(selector_requirements({"matchLabels": merged}), (namespace,))
    return tuple(spread._replace(selector=selector) for spread in defaults)


def _required_terms(pod: Pod, affinity: PodAffinity | None) -> tuple[AffinityTerm, ...]:
    terms = affinity.required_during_scheduling_ignored_during_execution if affinity else ()
    return tuple(_affinity_term(pod, term) for term in terms)


def _preferred_terms(
    pod: Pod, affinity: PodAffinity | None, sign: int
) -> Iterator[WeightedAffinityTerm]:
    terms = affinity.preferred_during_scheduling_ignored_during_execution if affinity else ()
    for weighted in terms:
        yield WeightedAffinityTerm(
            sign * weighted.weight, _affinity_term(pod, weighted.pod_affinity_term)
        )


def _affinity_term(pod: Pod, term: PodAffinityTerm) -> AffinityTerm:
    meta, namespace_selector = pod.metadata, term.namespace_selector
    requirements = pod_label_requirements(
        term.label_selector,
        meta.labels,
        same=term.match_label_keys,
        other=term.mismatch_label_keys,
    )
    namespaces = tuple(sorted(term.namespaces))
    if namespace_selector is None:
        # A term without namespaces is about the pod's own namespace.
        selector = PodSelector(requirements, namespaces or (meta.namespace,))
    else:
        selector = PodSelector(requirements, namespaces, selector_requirements(namespace_selector))
    return AffinityTerm(selector, term.topology_key)


def _pod_spread(pod: Pod, constraint: TopologySpreadConstraint) -> TopologySpread:
    meta = pod.metadata
    requirements = pod_label_requirements(
        constraint.label_selector, meta.labels, constraint.match_label_keys
    )
    return topology_spread_of(PodSelector(requirements, (meta.namespace,)), constraint)


def topology_spread_of(
    selector: PodSelector, constraint: TopologySpreadConstraint
) -> TopologySpread:
    """Build a spread of the selected pods from a constraint of a pod spec."""
    return TopologySpread(
        selector,
        constraint.topology_key,
        constraint.max_skew,
        is_hard=constraint.when_unsatisfiable == "DoNotSchedule",
        min_domains=constraint.min_domains,
        honors_node_affinity=constraint.node_affinity_policy == "Honor",
        honors_taints=constraint.node_taints_policy == "Honor",
    )
