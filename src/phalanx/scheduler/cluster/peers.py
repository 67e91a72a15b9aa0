"""Peers: what a pod asks of other pods. Near whom, apart from whom, spread how evenly.

Part of a pod's shape. The counting is `census.py`'s and `company.py`'s, the judging `filters.py`'s
and `comparisons.py`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from phalanx.api.core import Pod, PodAffinity, PodAffinityTerm, SpreadConstraint
from phalanx.api.labelselectors import requirements
from phalanx.scheduler.cluster.selection import Labels, Selection, needs

HOSTNAME = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"


class Term(NamedTuple):
    """Some pods, and the label of nodes by which to share a domain with them or not."""

    selection: Selection
    key: str


class Preference(NamedTuple):
    """A term that had better hold, or, with a negative weight, had better not."""

    weight: int
    term: Term


class Spread(NamedTuple):
    """Pods to be spread evenly over the domains of a key."""

    selection: Selection
    key: str
    max_skew: int
    is_hard: bool
    min_domains: int = 1
    #: Whether only nodes count that the pod's node affinity, or its tolerations, allow.
    honours_affinity: bool = True
    honours_taints: bool = False


class Peers(NamedTuple):
    """All that one pod asks of others. Falsy if it asks nothing."""

    near: tuple[Term, ...] = ()
    apart: tuple[Term, ...] = ()
    likes: tuple[Preference, ...] = ()
    spreads: tuple[Spread, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.near or self.apart or self.likes or self.spreads)

    @property
    def selections(self) -> Iterator[Selection]:
        """Every crowd that it mentions."""
        yield from (term.selection for term in (*self.near, *self.apart))
        yield from (like.term.selection for like in self.likes)
        yield from (spread.selection for spread in self.spreads)


NOBODY = Peers()


class Defaults(NamedTuple):
    """How pods of services are spread that do not say how; the selection is that of the services.

    Without any they are not. If `strict`, nodes without one of the keys count as they do for pods
    that ask for spreading themselves.
    """

    spreads: tuple[Spread, ...] = ()
    strict: bool = False


EVERYBODY = Selection(())
SYSTEM_DEFAULTS = Defaults(
    (
        Spread(EVERYBODY, HOSTNAME, max_skew=3, is_hard=False),
        Spread(EVERYBODY, ZONE, max_skew=5, is_hard=False),
    )
)


def peers_of(pod: Pod) -> Peers:
    """What a pod asks of others."""
    affinity, spreads = pod.spec.affinity, pod.spec.topology_spread_constraints
    near = affinity.pod_affinity if affinity else None
    apart = affinity.pod_anti_affinity if affinity else None
    if not (near or apart or spreads):
        return NOBODY
    return Peers(
        near=_required(pod, near),
        apart=_required(pod, apart),
        likes=(*_preferred(pod, near, +1), *_preferred(pod, apart, -1)),
        spreads=tuple(_spread(pod, one) for one in spreads),
    )


def default_spreads(
    wanted: Iterable[Spread], namespace: str, labels: Labels, services: Iterable[Labels]
) -> tuple[Spread, ...]:
    """How a pod that says nothing is spread: with the pods of the services that it belongs to."""
    chosen = [service for service in services if service and service.items() <= labels.items()]
    if not chosen:
        return ()
    together = {key: value for service in chosen for key, value in sorted(service.items())}
    selection = Selection(requirements({"matchLabels": together}), (namespace,))
    return tuple(one._replace(selection=selection) for one in wanted)


def _required(pod: Pod, affinity: PodAffinity | None) -> tuple[Term, ...]:
    terms = affinity.required_during_scheduling_ignored_during_execution if affinity else ()
    return tuple(_term(pod, term) for term in terms)


def _preferred(pod: Pod, affinity: PodAffinity | None, sign: int) -> Iterator[Preference]:
    terms = affinity.preferred_during_scheduling_ignored_during_execution if affinity else ()
    for one in terms:
        yield Preference(sign * one.weight, _term(pod, one.pod_affinity_term))


def _term(pod: Pod, term: PodAffinityTerm) -> Term:
    """Without any namespaces a term is about the pod's own."""
    meta, spaces = pod.metadata, term.namespace_selector
    own = () if term.namespaces or spaces is not None else (meta.namespace,)
    wanted = needs(
        term.label_selector, meta.labels, term.match_label_keys, term.mismatch_label_keys
    )
    elsewhere = None if spaces is None else requirements(spaces)
    return Term(Selection(wanted, (*own, *sorted(term.namespaces)), elsewhere), term.topology_key)


def _spread(pod: Pod, one: SpreadConstraint) -> Spread:
    meta = pod.metadata
    wanted = needs(one.label_selector, meta.labels, one.match_label_keys)
    return spread(Selection(wanted, (meta.namespace,)), one)


def spread(selection: Selection, one: SpreadConstraint) -> Spread:
    """A constraint about these pods."""
    return Spread(
        selection,
        one.topology_key,
        one.max_skew,
        one.when_unsatisfiable == "DoNotSchedule",
        one.min_domains,
        one.node_affinity_policy == "Honor",
        one.node_taints_policy == "Honor",
    )
