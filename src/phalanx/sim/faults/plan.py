"""What happens in an ordeal and when, drawn from a seed: an endless list of steps.

A crowd of users, kubelets and administrators with habits, and bad luck. Each seed takes some habits
up more than others and drops some altogether, so that no two ordeals test the same thing; in every
other one people also fight for room, and groups form trees. The plan knows what it has asked for,
never what came of it; the first steps of a long plan are a short plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import NamedTuple

from phalanx.api.kinds import (
    COMPOSITE_POD_GROUP,
    NAMESPACE,
    NODE,
    POD,
    POD_DISRUPTION_BUDGET,
    POD_GROUP,
    SERVICE,
)
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from phalanx.controllers.actions import Create, Delete, Patch
from phalanx.sim.faults import manifests
from phalanx.sim.faults.channel import Trouble
from phalanx.sim.faults.steps import (
    BindByHand,
    Bury,
    Cut,
    Deed,
    Fault,
    Finish,
    Lag,
    Reap,
    SlowDisk,
    Spoil,
    SpoilBinds,
    SpoilEvictions,
    Start,
    Step,
    Stop,
    Stutter,
)

#: How many nodes there are, and how many pods at a time, about; more where they fight for room.
NODES, CROWD, MOB = 6, 26, 44
SPACES = ("default", "other")
#: Groups have few names, so that namesakes follow each other.
_NAMES = 10
#: Seconds between two habits, most of them close together.
_GAPS = (0.0, 0.001, 0.02, 0.1, 0.3, 0.8)
#: Seconds that a pod is wanted.
_LIFE = (1.0, 25.0)
_UNANSWERED = (Trouble.LOST, Trouble.UNANSWERED, Trouble.LATE, Trouble.SLOW)
_REFUSED = (Trouble.FAILED, Trouble.BUSY)
#: How important groups are where people fight for room; the first is no class at all.
_RANKS = ("", "", manifests.LOW, manifests.HIGH, manifests.HIGHEST, manifests.POLITE)


def plan(seed: int) -> Iterator[Step]:
    """The steps of a seed, in order of time."""
    return iter(_Plan(seed))


class _Plan:
    """What was asked for so far, and what is still to come."""

    def __init__(self, seed: int) -> None:
        self._lot = Random(seed)
        self._now = 0.0
        self._due: list[tuple[float, int, Deed | Fault]] = []
        self._number = count()
        #: Until when pods, groups and trees are wanted.
        self._pods: dict[Key, float] = {}
        self._groups: dict[Key, float] = {}
        self._trees: dict[Key, float] = {}
        self._priorities: dict[Key, str] = {}
        self._nodes = [f"n{i}" for i in range(NODES)]
        self._is_fight = bool(seed % 2)
        self._habits = (*HABITS, *FIGHTS) if self._is_fight else HABITS
        self._weights = [h.weight * self._lot.choice((0, 1, 1, 1, 3)) for h in self._habits]
        # Without arrivals nothing else has anything to act upon.
        self._weights[: len(ARRIVALS)] = [habit.weight for habit in ARRIVALS]
        if self._is_fight:
            self._weights[len(HABITS) :] = [habit.weight for habit in FIGHTS]
        self._later(0.0, Start(0))
        for name in self._nodes:
            self._node_comes(name, 0.0)

    def __iter__(self) -> Iterator[Step]:
        while True:
            while not self._due or self._due[0][0] > self._now:
                (habit,) = self._lot.choices(self._habits, self._weights)
                habit.take_up(self)
                self._now += self._lot.choice(_GAPS)
            at, _, act = heappop(self._due)
            yield Step(at, act)

    def _later(self, seconds: float, act: Deed | Fault) -> None:
        heappush(self._due, (round(self._now + seconds, 4), next(self._number), act))

    def _soon(self, longest: float) -> float:
        return self._lot.uniform(0.0, longest)

    def _one_of(self, wanted: dict[Key, float]) -> Key | None:
        """Somebody who is wanted for a while yet."""
        there = [key for key, until in wanted.items() if until > self._now]
        return self._lot.choice(there) if there else None

    # ---- arrivals

    def _pod(self) -> None:
        if self._is_crowded():
            return
        key = Key(self._lot.choice(SPACES), f"p{next(self._number)}")
        self._pod_comes(key, 0.0, self._lot.uniform(*_LIFE))

    def _gang(self) -> None:
        self._group_comes(self._lot.randint(1, 5))

    def _basic(self) -> None:
        self._group_comes(None)

    def _member(self) -> None:
        key = self._one_of(self._groups)
        if key is not None and not self._is_crowded():
            member = Key(key.namespace, f"{key.name}-{next(self._number)}")
            life, priority = self._groups[key] - self._now, self._priorities[key]
            self._pod_comes(member, 0.0, life, key.name, priority)

    def _is_crowded(self) -> bool:
        there = sum(until > self._now for until in self._pods.values())
        return there > (MOB if self._is_fight else CROWD)

    def _group_comes(self, quorum: int | None) -> None:
        """A group, and its members about the same time; perhaps some too few or too many."""
        key = Key(self._lot.choice(SPACES), f"g{self._lot.randrange(_NAMES)}")
        if self._is_crowded() or self._groups.get(key, 0.0) > self._now:
            return
        life, spell = self._lot.uniform(*_LIFE), self._lot.choice((0.0, 0.05, 2.0))
        priority = self._lot.choice(_RANKS if self._is_fight else ("", "", "", manifests.HIGH))
        topology = "zone" if self._lot.random() < 0.15 else ""
        made = manifests.group(key, quorum, priority, topology, mode=self._mode())
        self._later(self._soon(spell), Create(POD_GROUP, made))
        members = (quorum or self._lot.randint(1, 4)) + self._lot.choice((-1, 0, 0, 0, 1, 2))
        self._members_come(key, max(members, 1), priority, life, spell)
        if self._lot.random() < 0.9:
            self._later(life + self._soon(2.0), Delete(POD_GROUP, key, ""))

    def _mode(self) -> str:
        """How those who fight want to be disrupted."""
        return self._lot.choice(("", "single", "all", "all")) if self._is_fight else ""

    def _members_come(
        self, key: Key, members: int, priority: str, life: float, spell: float
    ) -> None:
        self._groups[key], self._priorities[key] = self._now + life, priority
        like = manifests.pod(self._lot, key, group=key.name, priority=priority)
        for _ in range(members):
            member = Key(key.namespace, f"{key.name}-{next(self._number)}")
            alike = manifests.named(like, member) if self._lot.random() < 0.8 else None
            self._pod_comes(member, self._soon(spell), life, key.name, priority, alike)

    def _pod_comes(
        self, key: Key, after: float, life: float, group: str = "", priority: str = "",
        manifest: Object | None = None,
    ) -> None:  # fmt: skip
        lot, gated = self._lot, self._lot.random() < 0.06
        if lot.random() < 0.03:
            priority = manifests.HIGH
        made = manifest or manifests.pod(lot, key, group=group, priority=priority, gated=gated)
        if lot.random() < 0.02:
            made = {**made, "spec": {**made["spec"], "schedulerName": "another"}}
        self._later(after, Create(POD, made))
        if gated:
            ungate = {"spec": {"schedulingGates": None}}
            self._later(after + self._soon(4.0), Patch(POD, key, ungate))
        self._pods[key] = self._now + life
        self._pod_goes(key, max(life - self._soon(1.0), after))

    def _pod_goes(self, key: Key, after: float) -> None:
        """It ends and is cleaned up, or is deleted: at once, or first asked to leave."""
        way = self._lot.randrange(4)
        if way < 2:
            phase = self._lot.choice(("Succeeded", "Succeeded", "Failed"))
            self._later(after, Finish(key, phase))
            after += self._soon(3.0)
        if way == 3:
            self._later(after, Delete(POD, key, "", 30))
            after += self._soon(3.0)
        self._later(after, Delete(POD, key, "", 0))

    # ---- changes of what is there

    def _twin(self) -> None:
        """A pod is deleted, and another of its name is there at once."""
        key = self._one_of(self._pods)
        if key is not None:
            group = key.name.partition("-")[0] if "-" in key.name else ""
            priority = self._priorities.get(Key(key.namespace, group), "")
            self._later(0.0, Delete(POD, key, "", 0))
            again = manifests.pod(self._lot, key, group=group, priority=priority)
            self._later(self._soon(0.02), Create(POD, again))

    def _changeling(self) -> None:
        """A pod is replaced by a namesake while its bind is on its way."""
        if self._is_crowded():
            return
        key = Key(self._lot.choice(SPACES), f"p{next(self._number)}")
        self._later(0.0, SpoilBinds(0, (Trouble.LATE,)))
        self._later(0.0, Create(POD, manifests.pod(self._lot, key)))
        self._later(0.1, Delete(POD, key, "", 0))
        self._pod_comes(key, 0.15, self._lot.uniform(*_LIFE))

    def _loss(self) -> None:
        key = self._one_of(self._pods)
        if key is not None:
            self._later(0.0, Delete(POD, key, "", self._lot.choice((0, 0, 30))))

    def _set_min(self) -> None:
        key = self._one_of(self._groups)
        if key is not None:
            policy = {"gang": {"minCount": self._lot.randint(1, 6)}}
            self._later(0.0, Patch(POD_GROUP, key, {"spec": {"schedulingPolicy": policy}}))

    def _relabel_pod(self) -> None:
        key = self._one_of(self._pods)
        if key is not None:
            labels = {"app": self._lot.choice(("web", "db", None))}
            self._later(0.0, Patch(POD, key, {"metadata": {"labels": labels}}))

    def _bind_by_hand(self) -> None:
        key = self._one_of(self._pods)
        if key is not None:
            self._later(0.0, BindByHand(key, self._lot.choice(self._nodes)))

    def _nominate(self) -> None:
        """Somebody else promises a pod a node."""
        key = self._one_of(self._pods)
        if key is not None:
            promise = {"status": {"nominatedNodeName": self._lot.choice(self._nodes)}}
            self._later(0.0, Patch(POD, key, promise, "status"))

    def _service(self) -> None:
        key = Key(self._lot.choice(SPACES), "web")
        spec = {"selector": {"app": "web"}, "ports": [{"port": 80}]}
        meta = {"name": key.name, "namespace": key.namespace}
        self._later(0.0, Create(SERVICE, {"metadata": meta, "spec": spec}))
        self._later(self._soon(20.0), Delete(SERVICE, key, ""))

    def _relabel_namespace(self) -> None:
        change = {"metadata": {"labels": {"team": self._lot.choice(("a", "b"))}}}
        self._later(0.0, Patch(NAMESPACE, Key("", self._lot.choice(SPACES)), change))

    # ---- nodes

    def _node_comes(self, name: str, after: float) -> None:
        self._later(after, Create(NODE, manifests.node(self._lot, name)))
        self._later(after + self._soon(0.3), self._of_node(name, {"spec": {"taints": None}}))

    def _node_goes(self) -> None:
        """With its pods, or without them; it comes back under its name."""
        name = self._lot.choice(self._nodes)
        self._later(0.0, Delete(NODE, Key("", name), ""))
        if self._lot.random() < 0.7:
            self._later(self._soon(6.0), Reap(name))
        self._node_comes(name, self._soon(10.0))

    def _cordon(self) -> None:
        name = self._lot.choice(self._nodes)
        self._later(0.0, self._of_node(name, {"spec": {"unschedulable": True}}))
        self._later(self._soon(6.0), self._of_node(name, {"spec": {"unschedulable": None}}))

    def _taint(self) -> None:
        name, taint = self._lot.choice(self._nodes), self._lot.choice(manifests.TAINTS)
        self._later(0.0, self._of_node(name, {"spec": {"taints": [taint]}}))
        self._later(self._soon(6.0), self._of_node(name, {"spec": {"taints": None}}))

    def _relabel_node(self) -> None:
        labels = {
            "zone": self._lot.choice(("a", "b", None)),
            "disk": self._lot.choice(("ssd", None)),
        }
        change = {"metadata": {"labels": labels}}
        self._later(0.0, self._of_node(self._lot.choice(self._nodes), change))

    def _resize_node(self) -> None:
        room = dict(
            self._lot.choice((*manifests.ROOMS, {"cpu": "1", "memory": "1Gi", "pods": "3"}))
        )
        name = self._lot.choice(self._nodes)
        self._later(0.0, Patch(NODE, Key("", name), {"status": {"allocatable": room}}, "status"))

    def _of_node(self, name: str, change: Object) -> Patch:
        return Patch(NODE, Key("", name), change)

    # ---- fights for room

    def _tree(self) -> None:
        """A root, groups below it, perhaps another level between, all about the same time."""
        root = Key(self._lot.choice(SPACES), f"t{self._lot.randrange(_NAMES)}")
        if self._is_crowded() or self._trees.get(root, 0.0) > self._now:
            return
        lot, life = self._lot, self._lot.uniform(*_LIFE)
        priority, spell = lot.choice(_RANKS), lot.choice((0.0, 0.05, 2.0))
        groups, between = lot.randint(1, 3), Key(root.namespace, f"{root.name}m")
        self._trees[root] = self._now + life
        self._composite_comes(root, lot.choice((None, groups, max(groups - 1, 1))), priority, life)
        is_deep = lot.random() < 0.4
        if is_deep:
            self._composite_comes(between, lot.choice((None, 1)), priority, life, root.name)
        for number in range(groups):
            key = Key(root.namespace, f"{root.name}{'abc'[number]}")
            parent = between if is_deep and number != 1 else root
            self._leaf_comes(key, priority, life, spell, parent.name)

    def _composite_comes(
        self, key: Key, quorum: int | None, priority: str, life: float, parent: str = ""
    ) -> None:
        topology = "zone" if self._lot.random() < 0.2 else ""
        made = manifests.composite(
            key, quorum, priority, topology, mode=self._mode(), parent=parent
        )
        self._later(self._soon(0.5), Create(COMPOSITE_POD_GROUP, made))
        self._later(life + self._soon(2.0), Delete(COMPOSITE_POD_GROUP, key, ""))

    def _leaf_comes(self, key: Key, priority: str, life: float, spell: float, parent: str) -> None:
        lot = self._lot
        topology = "zone" if lot.random() < 0.1 else ""
        workload = "another" if lot.random() < 0.03 else manifests.WORKLOAD
        quorum = lot.choice((None, 1, 2, 3))
        made = manifests.group(
            key, quorum, priority, topology, mode=self._mode(), parent=parent, workload=workload
        )
        self._later(self._soon(spell), Create(POD_GROUP, made))
        members = (quorum or 1) + lot.choice((-1, 0, 0, 0, 0, 1))
        self._members_come(key, max(members, 1), priority, life, spell)
        self._later(life + self._soon(2.0), Delete(POD_GROUP, key, ""))

    def _rival(self) -> None:
        """Somebody important comes by himself."""
        key = Key(self._lot.choice(SPACES), f"p{next(self._number)}")
        priority = self._lot.choice((manifests.HIGH, manifests.HIGHEST, manifests.POLITE))
        self._pod_comes(key, 0.0, self._lot.uniform(*_LIFE), priority=priority)

    def _coup(self) -> None:
        """Somebody important comes, and the scheduler dies while others make way."""
        self._rival()
        after = self._lot.choice((0.002, 0.01, 0.05, 0.3))
        self._later(after, Stop(0))
        self._later(after + self._lot.choice((0.0, 0.01, 2.0)), Start(0))

    def _bury(self) -> None:
        self._later(self._soon(3.0), Bury(self._lot.choice((1, 2, 100))))

    def _budget(self) -> None:
        key = Key(self._lot.choice(SPACES), "budget")
        self._later(0.0, Create(POD_DISRUPTION_BUDGET, manifests.budget(self._lot, key)))
        allowed = {"status": {"disruptionsAllowed": self._lot.randint(0, 2)}}
        self._later(self._soon(1.0), Patch(POD_DISRUPTION_BUDGET, key, allowed, "status"))
        self._later(self._soon(20.0), Delete(POD_DISRUPTION_BUDGET, key, ""))

    def _spoil_evictions(self) -> None:
        troubles = self._lot.choices((*_UNANSWERED, *_REFUSED), k=self._lot.randint(1, 3))
        self._later(0.0, SpoilEvictions(self._slot(), tuple(troubles)))

    # ---- faults

    def _slot(self) -> int:
        return self._lot.choice((0, 0, 0, 1))

    def _restart(self) -> None:
        slot = self._slot()
        self._later(0.0, Stop(slot))
        self._later(self._lot.choice((0.0, 0.01, 2.0)), Start(slot))

    def _second(self) -> None:
        """Another scheduler believes to lead for a while."""
        self._later(0.0, Start(1))
        self._later(self._lot.uniform(1.0, 20.0), Stop(1))

    def _lag(self) -> None:
        slot = self._slot()
        self._later(0.0, Lag(slot, self._lot.choice((0.02, 0.3, 1.0, 2.5))))
        self._later(self._soon(8.0), Lag(slot, 0.0))

    def _stutter(self) -> None:
        slot = self._slot()
        self._later(0.0, Stutter(slot, True))
        self._later(self._soon(5.0), Stutter(slot, False))

    def _cut(self) -> None:
        self._later(0.0, Cut(self._slot(), self._lot.random() < 0.5))

    def _spoil_binds(self) -> None:
        troubles = self._lot.choices((*_UNANSWERED, *_REFUSED), k=self._lot.randint(1, 3))
        self._later(0.0, SpoilBinds(self._slot(), tuple(troubles)))

    def _outage(self) -> None:
        seconds = self._lot.uniform(0.3, 4.0)
        self._later(0.0, Spoil(self._slot(), seconds, 1.0, (Trouble.LOST,)))

    def _burst(self) -> None:
        seconds, share = self._lot.uniform(0.5, 5.0), self._lot.uniform(0.2, 0.8)
        self._later(0.0, Spoil(self._slot(), seconds, share, (*_UNANSWERED, *_REFUSED)))

    def _slow_disk(self) -> None:
        self._later(0.0, SlowDisk(self._lot.choice((0.05, 0.5))))
        self._later(self._soon(5.0), SlowDisk(0.0))


class Habit(NamedTuple):
    """Something that happens again and again, and how often beside the others."""

    weight: float
    take_up: Callable[[_Plan], None]


ARRIVALS = (Habit(12, _Plan._gang), Habit(4, _Plan._basic), Habit(10, _Plan._pod))
HABITS = (
    *ARRIVALS,
    Habit(3, _Plan._member),
    Habit(3, _Plan._twin),
    Habit(1, _Plan._changeling),
    Habit(3, _Plan._loss),
    Habit(4, _Plan._set_min),
    Habit(3, _Plan._relabel_pod),
    Habit(1, _Plan._bind_by_hand),
    Habit(0.5, _Plan._nominate),
    Habit(0.5, _Plan._service),
    Habit(0.5, _Plan._relabel_namespace),
    Habit(1, _Plan._node_goes),
    Habit(2, _Plan._cordon),
    Habit(2, _Plan._taint),
    Habit(2, _Plan._relabel_node),
    Habit(2, _Plan._resize_node),
    Habit(2, _Plan._restart),
    Habit(1, _Plan._second),
    Habit(2, _Plan._lag),
    Habit(1, _Plan._stutter),
    Habit(2, _Plan._cut),
    Habit(4, _Plan._spoil_binds),
    Habit(1, _Plan._outage),
    Habit(2, _Plan._burst),
    Habit(1, _Plan._slow_disk),
)
#: What is taken up besides where people fight for room.
FIGHTS = (
    Habit(16, _Plan._tree),
    Habit(6, _Plan._rival),
    Habit(2, _Plan._coup),
    Habit(12, _Plan._bury),
    Habit(1, _Plan._budget),
    Habit(3, _Plan._spoil_evictions),
)
