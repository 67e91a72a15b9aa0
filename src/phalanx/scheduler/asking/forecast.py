"""Forecast: what would become of somebody if the schedulers went through their queue now.

`phalanx what-if` hands in a cluster that holds what is asked about, and gets one of three answers:
it fits, it must wait (for whom, or whom it would drive off), or it never fits, even if nothing else
ran. Whoever comes first is placed first, on the same paper. Nothing is guessed: the cycle decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

from msgspec.structs import replace as but

from phalanx.api.core import Pod
from phalanx.api.meta import Key
from phalanx.api.scheduling import CompositePodGroup
from phalanx.scheduler.asking.diagnosis import NOT_READY, Cluster, cache_of, made
from phalanx.scheduler.asking.experiment import Change, Experiment, Known
from phalanx.scheduler.asking.lineup import home_of
from phalanx.scheduler.cluster.forest import Forest, Group
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import (
    Binding,
    Decision,
    Impossible,
    Misplaced,
    Placed,
    Preempting,
    Unready,
    Waiting,
)
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.explain import explain, no_node, not_ready
from phalanx.scheduler.policy import DEFAULT
from phalanx.scheduler.queueing.desk import Desk
from phalanx.scheduler.queueing.entry import Id
from phalanx.scheduler.queueing.record import (
    BudgetSeen,
    CompositeSeen,
    GroupSeen,
    NamespaceSeen,
    NodeSeen,
    PodSeen,
    Seen,
    ServiceSeen,
)
from phalanx.scheduler.remedy import smallest
from phalanx.scheduler.rescue.search import Solver, nobody
from phalanx.scheduler.settings.profiles import DEFAULT_PROFILES, Profiles

FITS, NEVER, PREEMPTS = "Fits", "NeverFits", "Preempts"
#: How many decisions may be made to find out who must end.
MOST = 150


class Verdict(IntEnum):
    """The answer in one number: the exit code of `phalanx what-if`."""

    FITS = 0
    WAITS = 3
    NEVER = 4


class Holder(NamedTuple):
    """Somebody who runs, and how many pods of it are meant."""

    id: Id
    pods: int


@dataclass(frozen=True, slots=True)
class Forecast:
    """The answer about one entity."""

    subject: Id
    verdict: Verdict
    reason: str
    message: str
    #: Who gets which node, if it fits.
    bindings: tuple[Binding, ...] = ()
    #: Whose end would let it in, all of them; and whom it would drive off.
    waits_for: tuple[Holder, ...] = ()
    victims: tuple[Holder, ...] = ()
    #: Whether fewer might have to end.
    is_cut_short: bool = False
    #: What stands in the way of single members, each sentence once.
    details: tuple[str, ...] = ()


class Outcome(NamedTuple):
    """What an entity came to when its turn was."""

    entity: Entity
    decision: Decision


def forecast(
    subjects: Sequence[Id], cluster: Cluster, profiles: Profiles = DEFAULT_PROFILES,
    solver: Solver = nobody, now: float = 0.0,
) -> list[Forecast]:  # fmt: skip
    """What would become of each, in this order."""
    names = dict.fromkeys(pod.spec.scheduler_name for pod in cluster.pods)
    policies = {name: profiles.policies.get(name, DEFAULT) for name in names}
    told = _Told(cluster, replace(profiles, policies=policies), solver, now)
    told.go_through(subjects)
    return [told.of(subject) for subject in subjects]


class _Told:
    """One walk through the queue, and what is to be said of it."""

    def __init__(self, cluster: Cluster, profiles: Profiles, solver: Solver, now: float) -> None:
        self._cluster, self._profiles = cluster, profiles
        self._solver, self._now = solver, now
        self._outcomes: dict[Id, Outcome] = {}
        self._bound: dict[Key, str] = {}
        self._desk = Desk(profiles)
        for seen in _everything(cluster):
            self._desk.feed(seen)
        self._unready = {one.id: one.unready for one in self._desk.queue.listing() if one.unready}

    def go_through(self, subjects: Sequence[Id]) -> None:
        """Have everybody tried in turn until all have been who are asked about."""
        listed = [place.id for place in self._desk.queue.listing()]
        left = {id_ for id_ in subjects if id_ in listed and id_ not in self._unready}
        # Whoever was refused is tried again when others are placed; that must come to an end.
        for _ in range(3 * len(listed)):
            entity = self._desk.take(self._now) if left else None
            if entity is None:
                return
            id_ = Id(entity.group is not None, entity.key, entity.is_composite)
            self._try(id_, entity, self._solver if id_ in subjects else nobody)
            left.discard(id_)

    def _try(self, id_: Id, entity: Entity, solver: Solver) -> None:
        policy = self._profiles.policy(entity)
        decision = decide(entity, self._desk.cache.snapshot(), policy, solver)
        self._desk.settle(entity, decision, self._now)
        if isinstance(decision, Placed):
            self._bound |= {one.pod: one.node for one in decision.bindings}
        known = self._outcomes.get(id_)
        if known is None or not isinstance(known.decision, Placed):
            self._outcomes[id_] = Outcome(entity, decision)

    def of(self, subject: Id) -> Forecast:
        """The answer about one of them."""
        if unready := self._unready.get(subject):
            return _held(subject, unready)
        if subject not in self._outcomes:
            message = "no pod of it waits for a node"
            verdict = Verdict.FITS if self._has_nodes(subject) else Verdict.WAITS
            return Forecast(subject, verdict, NOT_READY, message)
        entity, decision = self._outcomes[subject]
        match decision:
            case Placed(bindings=bindings):
                message = f"{len(bindings)} of {len(entity.members)} members get a node now"
                return Forecast(subject, Verdict.FITS, FITS, message, bindings)
            case Impossible():
                return Forecast(subject, Verdict.NEVER, decision.reason, decision.message)
            case Preempting():
                return self._driving(subject, decision)
            case Waiting():
                return self._waiting(subject, entity, decision)

    def _has_nodes(self, subject: Id) -> bool:
        forest = self._desk.cache.snapshot().forest
        return any(pod.node and home_of(pod, forest) == subject for pod in self._cluster.pods)

    def _driving(self, subject: Id, decision: Preempting) -> Forecast:
        pods = {pod.metadata.key: pod for pod in self._cluster.pods}
        victims = [pods[victim.pod] for victim in decision.victims if victim.pod in pods]
        holders = _holders(victims, self._desk.cache.snapshot().forest)
        found = tuple(Holder(id_, len(keys)) for id_, keys in holders.items())
        message = explain(decision).message
        return Forecast(subject, Verdict.WAITS, PREEMPTS, message, victims=found)

    def _waiting(self, subject: Id, entity: Entity, decision: Waiting) -> Forecast:
        """Who keeps it waiting, or that it would not help if everybody left."""
        trial = self._trial(entity, decision)
        forest = trial.known.cache.snapshot().forest
        own = {pod.metadata.key for pod in entity.others}
        runs = [pod for key, pod in trial.known.pods.items() if pod.node and key not in own]
        holders = _holders([pod for pod in runs if not pod.is_daemon], forest)
        everyone = Change(ended=tuple(key for keys in holders.values() for key in keys))
        with trial.after(everyone) as snapshot:
            alone = decide(entity, snapshot, trial.policy, self._solver)
        if not isinstance(alone, Placed):
            return _hopeless(subject, alone)
        needed = _needed(trial, list(holders.items()))
        waits_for = tuple(Holder(id_, len(keys)) for id_, keys in needed)
        return Forecast(
            subject, Verdict.WAITS, decision.reason, explain(decision).message,
            waits_for=waits_for, is_cut_short=trial.is_cut_short, details=_details(decision),
        )  # fmt: skip

    def _trial(self, entity: Entity, decision: Waiting) -> Experiment:
        """The cluster as it is then: those who came first have their nodes."""
        pods = [self._as_bound(pod) for pod in self._cluster.pods]
        cluster = replace(self._cluster, pods=pods)
        nodes = {node.metadata.name: node for node in cluster.nodes}
        by_key = {pod.metadata.key: pod for pod in pods if not pod.ended}
        known = Known(cache_of(cluster), nodes, by_key)
        trial = Experiment(entity, decision, known, self._profiles.policy(entity), self._solver)
        trial.allow(MOST)
        return trial

    def _as_bound(self, pod: Pod) -> Pod:
        node = self._bound.get(pod.metadata.key, "")
        return but(pod, spec=but(pod.spec, node_name=node)) if node else pod


def _held(subject: Id, unready: Unready) -> Forecast:
    is_wrong = isinstance(unready, Misplaced) and unready.invalid
    verdict = Verdict.NEVER if is_wrong else Verdict.WAITS
    return Forecast(subject, verdict, NOT_READY, not_ready(unready))


def _hopeless(subject: Id, alone: Decision) -> Forecast:
    """It is refused by a cluster in which nothing else runs: it never fits, if that is sure."""
    message = explain(alone).message
    if isinstance(alone, Waiting) and alone.undecided:
        return Forecast(subject, Verdict.WAITS, alone.reason, message, is_cut_short=True)
    told = f"even if nothing else ran: {message}"
    return Forecast(subject, Verdict.NEVER, NEVER, told, details=_details(alone))


def _details(decision: Decision) -> tuple[str, ...]:
    refusals = [] if isinstance(decision, Placed) else [one.refusal for one in decision.pods]
    return tuple(dict.fromkeys(no_node(one) for one in refusals if one))


def _holders(pods: Iterable[Pod], forest: Forest) -> dict[Id, tuple[Key, ...]]:
    """Those who run, with their pods; the one that has been there longest first."""
    found: dict[Id, tuple[Key, ...]] = {}
    for pod in sorted(pods, key=lambda one: (made(one.metadata), one.metadata.key)):
        home = home_of(pod, forest)
        found[home] = (*found.get(home, ()), pod.metadata.key)
    return found


_Held = tuple[Id, tuple[Key, ...]]


def _needed(trial: Experiment, holders: list[_Held]) -> list[_Held]:
    """Those who must all end, and none of whom need not; who is there longest is thought to first.

    The last of the shortest run of them that is enough is always needed; then again with the rest.
    """
    needed: list[_Held] = []
    rest = holders

    def works(count: int) -> bool:
        keys = tuple(key for _, keys in (*needed, *rest[:count]) for key in keys)
        return trial.works(Change(ended=keys))

    while not works(0):
        count = smallest(works, 1, len(rest))
        if count is None:
            return [*needed, *rest]
        needed.append(rest[count - 1])
        rest = rest[: count - 1]
    return sorted(needed, key=holders.index)


def _everything(cluster: Cluster) -> Iterator[Seen]:
    """What a scheduler would be told, at the times at which it came about."""
    for name, labels in cluster.namespaces.items():
        yield NamespaceSeen(0.0, name, dict(labels))
    for service in cluster.services:
        yield ServiceSeen(0.0, service.metadata.key, service.spec.selector)
    for node in cluster.nodes:
        yield NodeSeen(0.0, node.metadata.name, node)
    for group in cluster.groups:
        yield _seen(group)
    for budget in cluster.budgets:
        yield BudgetSeen(0.0, budget.metadata.key, budget)
    for pod in sorted(cluster.pods, key=lambda pod: pod.metadata.creation_timestamp):
        yield PodSeen(made(pod.metadata), pod.metadata.key, pod)


def _seen(group: Group) -> Seen:
    at, key = made(group.metadata), group.metadata.key
    if isinstance(group, CompositePodGroup):
        return CompositeSeen(at, key, group)
    return GroupSeen(at, key, group)
