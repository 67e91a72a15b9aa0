"""What must hold whatever happens, as code: the simulator asks after every transaction.

`check` judges one state of a cluster and needs no past; the Auditor hears of every change and also
holds the past against the present. Both answer with sentences, none if all is well. Neither ever
changes anything.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping

from phalanx.api.core import Node, Pod
from phalanx.api.meta import Key, condition
from phalanx.api.resources import Amounts, node_room, pod_requests, total
from phalanx.api.scheduling import INITIALLY_SCHEDULED, CompositePodGroup, PodGroup
from phalanx.client.cache import Cache
from phalanx.scheduler.cluster.shape import spell
from phalanx.sim.laws import GROUP_LAWS, POD_LAWS, is_bound_now, makes_way_now
from phalanx.sim.rolls import Roll
from phalanx.sim.trees import Group, Trees


def check(pods: Iterable[Pod], nodes: Iterable[Node], groups: Iterable[PodGroup]) -> list[str]:
    """What is wrong with a cluster, or with a part of it that holds all pods of its own."""
    known = list(pods)
    held: dict[str, list[Pod]] = {}
    for pod in known:
        held.setdefault(pod.node, []).append(pod)
    overfull = [one for node in nodes for one in _overfull(held.get(node.metadata.name, ()), node)]
    return [*overfull, *_half_bound(known, groups)]


def _overfull(
    pods: Iterable[Pod], node: Node, resources: Container[str] | None = None
) -> Iterator[str]:
    """No node holds more live pods than it has room for, of some resources or of all."""
    room, name = node_room(node), node.metadata.name
    for resource, amount in sorted(total(pod_requests(pod) for pod in pods).items()):
        if resources is not None and resource not in resources:
            continue
        if amount > (has := room.get(resource, 0)):
            yield f"node {name} holds {spell(resource, amount)} but has {spell(resource, has)}"


def _half_bound(pods: list[Pod], groups: Iterable[PodGroup]) -> Iterator[str]:
    """No gang that was never placed has some of its members bound, and too few."""
    bound = _bound_members(pods)
    for group in groups:
        count, needed = bound.get(group.metadata.key, 0), group.quorum
        if 0 < count < needed and group.is_gang and not _was_placed(group):
            yield (
                f"gang {group.metadata.key} was never placed, "
                f"yet {count} of the {needed} members that it needs are bound"
            )


def _bound_members(pods: Iterable[Pod]) -> dict[Key, int]:
    """How many members of each group have a node, or had one to their end."""
    bound: dict[Key, int] = {}
    for pod in pods:
        if pod.group is not None and pod.spec.node_name:
            bound[pod.group] = bound.get(pod.group, 0) + 1
    return bound


def _was_placed(group: PodGroup) -> bool:
    said = condition(group.status.conditions, INITIALLY_SCHEDULED)
    return said is not None and said.status == "True"


class Auditor:
    """Follows some caches and remembers what `check` cannot know from one state.

    Only what a change touched is looked at again, and only what a bind or an eviction may have
    broken is a scheduler's fault: a node may shrink, or be filled by the `strangers` among the
    pods, whom somebody bound by hand. `horizon` is how late a scheduler's view may be by the clock
    `now`. Where there are `composites`, trees of groups are judged too.

    With `books`, the store's own count of what is taken of each node, the caches are exact: changes
    of different kinds come in the order in which they happened. Then more can be asked.
    """

    def __init__(
        self,
        pods: Cache[Pod],
        nodes: Cache[Node],
        groups: Cache[PodGroup],
        *,
        now: Callable[[], float] = lambda: 0.0,
        horizon: float = 0.0,
        strangers: Container[str] = (),
        books: Mapping[str, Amounts] | None = None,
        composites: Cache[CompositePodGroup] | None = None,
    ) -> None:
        self._nodes, self._groups = nodes, groups
        self._now, self._horizon, self._strangers, self._books = now, horizon, strangers, books
        self._on = pods.index(lambda pod: [pod.node] if pod.node else [])
        self._of = pods.index(lambda pod: [pod.group] if pod.group else [])
        self._rolls: dict[Key, Roll] = defaultdict(Roll)
        self._broken: list[str] = []
        self._touched: dict[str, None] = {}
        self._joined: dict[Key, int] = {}
        #: Of which groups members were told to make way, and which trees lost a group when.
        self._evicted: dict[Key, None] = {}
        self._bereft: dict[str, float] = {}
        self._trees = Trees(groups, Cache() if composites is None else composites)
        pods.subscribe(self._pod_changed)
        groups.subscribe(self._group_changed)

    def audit(self) -> list[str]:
        """What went wrong since the last time."""
        wrong = [
            *self._broken, *self._too_few(), *self._thin_trees(), *self._torn(), *self._misbooked(),
        ]  # fmt: skip
        self._broken, self._touched, self._joined, self._evicted = [], {}, {}, {}
        return wrong

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        now = self._now()
        for pod in (old, new):
            if pod is not None and pod.spec.node_name:
                self._touched[pod.spec.node_name] = None
        one = new or old
        if one is not None and one.group is not None:
            self._rolls[one.group].member(new, one.metadata.uid, now)
        if new is not None and is_bound_now(old, new) and new.metadata.uid not in self._strangers:
            self._broken += self._too_full(new)
            if new.group is not None:
                self._joined[new.group] = self._joined.get(new.group, 0) + 1
        if new is not None and new.group is not None and makes_way_now(old, new):
            self._evicted[new.group] = None
        if old is not None and new is not None:
            broken = (law(old, new) for law in POD_LAWS)
            self._broken += [
                f"pod {new.metadata.key} {sentence}" for sentence in broken if sentence
            ]

    def _group_changed(self, old: PodGroup | None, new: PodGroup | None) -> None:
        one = new or old
        assert one is not None
        key = one.metadata.key
        self._rolls[key].group(new, self._now())
        if new is None:
            self._bereft[one.spec.parent_composite_pod_group_name] = self._now()
        if old is not None and new is not None:
            broken = (law(old, new) for law in GROUP_LAWS)
            self._broken += [f"group {key} {sentence}" for sentence in broken if sentence]
        if new is None and self._books is not None:
            left = sorted(pod.metadata.name for pod in self._of[key] if not pod.ended)
            self._broken += (
                [f"group {key} went, and {', '.join(left)} still need it"] if left else []
            )

    def _too_full(self, pod: Pod) -> Iterator[str]:
        """No bind takes room that is not there. What it does not take may be overdrawn already."""
        node = self._nodes.get(Key("", pod.spec.node_name))
        if node is not None:
            yield from _overfull(self._on[pod.spec.node_name], node, pod_requests(pod))

    def _too_few(self) -> Iterator[str]:
        """No bind leaves a gang with fewer members than it needs, nor without its group."""
        now = self._now()
        for key, joined in self._joined.items():
            roll, group = self._rolls[key], self._groups.get(key)
            since = now - self._horizon
            if group is None and self._books is not None and roll.missing(now) > self._horizon:
                yield f"members of group {key} got nodes, but there is no such group"
            elif group is not None and group.is_gang and roll.count(since) < roll.needs(since):
                yield (
                    f"gang {key} got nodes for {joined} of its members and has "
                    f"{roll.count(since)} now, but needs {roll.needs(since)}"
                )

    def _thin_trees(self) -> Iterator[str]:
        """No bind leaves a tree with fewer groups than it needs of those that have enough."""
        horizon = self._now() - self._horizon
        for key in self._joined:
            for group in self._trees.line(key)[1:] if self._trees.is_sound(key) else ():
                name = group.metadata.name
                if self._bereft.get(name, horizon - 1) < horizon and not self._suffices(group):
                    yield f"members of {key} got nodes, but too few groups of {name} have enough"

    def _suffices(self, group: Group) -> bool:
        """Whether a group has what it needs, or had it within the horizon."""
        since = self._now() - self._horizon
        if isinstance(group, PodGroup):
            roll = self._rolls[group.metadata.key]
            return roll.count(since) >= roll.needs(since)
        return sum(map(self._suffices, self._trees.children(group))) >= group.quorum

    def _torn(self) -> Iterator[str]:
        """Nobody makes way without those who go with him, as far as they could be known."""
        since = self._now() - self._horizon
        for key in self._evicted:
            whole = self._trees.whole(key)
            leaves = self._trees.groups if whole is not None else ()
            for leaf in leaves:
                if whole and self._trees.holds(whole, leaf) and self._rolls[leaf].lasting(since):
                    yield f"members of {key} make way, those of {leaf} stay, which go with them"

    def _misbooked(self) -> Iterator[str]:
        """The ledger counts what the live pods of a node take, no more and no less."""
        for name in self._touched if self._books is not None else ():
            taken = total(pod_requests(pod) for pod in self._on[name])
            booked = (self._books or {}).get(name, {})
            if taken != booked:
                yield f"the ledger has {booked} taken of node {name}, its pods take {taken}"
