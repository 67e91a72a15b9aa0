"""The plan of a fault run: an endless list of steps, generated from a seed.

Users, kubelets and administrators act, and faults happen. Each seed weights the actions differently
and drops some, so that no two runs test the same; in every other run pods compete for capacity and
groups form trees. With claims, gangs use volumes and devices (`claim_plan.py`). The plan knows what
it has requested, never the results. The beginning of a long plan is a short plan.
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
from phalanx.controllers.reconcile_loop import Create, Delete, Patch
from tools.faults import manifests
from tools.faults.channel import RequestFault
from tools.faults.claim_plan import ClaimPlan
from tools.faults.steps import (
    BindManually,
    BreakWatches,
    DelayWatches,
    DeleteOrphanedPods,
    DuplicateEvents,
    FailBinds,
    FailEvictions,
    FailRequests,
    FinishPod,
    InjectedFault,
    PlanStep,
    RemoveTerminatingPods,
    SlowCommits,
    StartScheduler,
    StopScheduler,
    UserAction,
)

#: Number of nodes, and the approximate number of pods at a time, without and with contention.
NODE_COUNT, MAX_PODS, MAX_PODS_CONTENDED = 6, 26, 44
NAMESPACES = ("default", "other")
#: Few names of groups, so that groups of the same name follow each other.
_GROUP_NAMES = 10
#: Seconds between two actions, mostly short.
_GAPS = (0.0, 0.001, 0.02, 0.1, 0.3, 0.8)
#: Minimum and maximum lifetime of a pod in seconds.
_LIFETIME = (1.0, 25.0)
_LOST_FAULTS = (RequestFault.LOST, RequestFault.UNANSWERED, RequestFault.LATE, RequestFault.SLOW)
_ERROR_FAULTS = (RequestFault.FAILED, RequestFault.BUSY)
#: Priority classes of groups under contention; the first two are none.
_PRIORITIES = ("", "", manifests.LOW, manifests.HIGH, manifests.HIGHEST, manifests.NON_PREEMPTING)


def generate_steps(seed: int, *, claims: bool = False) -> Iterator[PlanStep]:
    """Yield the steps of a seed in order of time, with or without volumes and devices."""
    return iter(_StepGenerator(seed, claims=claims))


class _StepGenerator:
    """What was requested so far, and the scheduled future steps."""

    def __init__(self, seed: int, *, claims: bool) -> None:
        self._rng = Random(seed)
        self._now = 0.0
        self._scheduled: list[tuple[float, int, UserAction | InjectedFault]] = []
        self._number = count()
        #: The end times of pods, groups and trees.
        self._pods: dict[Key, float] = {}
        self._groups: dict[Key, float] = {}
        self._trees: dict[Key, float] = {}
        self._priorities: dict[Key, str] = {}
        self._nodes = [f"n{i}" for i in range(NODE_COUNT)]
        self._is_contended = bool(seed % 2)
        self._actions: tuple[WeightedAction, ...] = ACTIONS
        if self._is_contended:
            self._actions += CONTENTION_ACTIONS
        self._weights = [h.weight * self._rng.choice((0, 1, 1, 1, 3)) for h in self._actions]
        # Without arrivals the other actions have no objects.
        self._weights[: len(ARRIVAL_ACTIONS)] = [action.weight for action in ARRIVAL_ACTIONS]
        if self._is_contended:
            self._weights[len(ACTIONS) :] = [action.weight for action in CONTENTION_ACTIONS]
        self._schedule(0.0, StartScheduler(0))
        for name in self._nodes:
            self._schedule_node(name, 0.0)
        self._claims: ClaimPlan | None = None
        if claims:
            self._claims = ClaimPlan(self._rng, self._schedule, self._nodes, namespaces=NAMESPACES)
            self._actions += CLAIM_ACTIONS
            self._weights += [action.weight for action in CLAIM_ACTIONS]

    def __iter__(self) -> Iterator[PlanStep]:
        while True:
            while not self._scheduled or self._scheduled[0][0] > self._now:
                (action,) = self._rng.choices(self._actions, self._weights)
                action.run(self)
                self._now += self._rng.choice(_GAPS)
            at, _, act = heappop(self._scheduled)
            yield PlanStep(at, act)

    def _schedule(self, seconds: float, act: UserAction | InjectedFault) -> None:
        heappush(self._scheduled, (round(self._now + seconds, 4), next(self._number), act))

    def _random_delay(self, longest: float) -> float:
        return self._rng.uniform(0.0, longest)

    def _choose_alive(self, wanted: dict[Key, float]) -> Key | None:
        """Choose an object with some remaining lifetime."""
        there = [key for key, until in wanted.items() if until > self._now]
        return self._rng.choice(there) if there else None

    # ---- arrivals

    def _add_pod(self) -> None:
        if self._has_max_pods():
            return
        key = Key(self._rng.choice(NAMESPACES), f"p{next(self._number)}")
        self._schedule_pod(key, 0.0, self._rng.uniform(*_LIFETIME))

    def _add_gang(self) -> None:
        self._schedule_group(self._rng.randint(1, 5))

    def _add_basic_group(self) -> None:
        self._schedule_group(None)

    def _add_member(self) -> None:
        key = self._choose_alive(self._groups)
        if key is not None and not self._has_max_pods():
            member = Key(key.namespace, f"{key.name}-{next(self._number)}")
            life, priority = self._groups[key] - self._now, self._priorities[key]
            self._schedule_pod(member, 0.0, life, group=key.name, priority=priority)

    def _has_max_pods(self) -> bool:
        there = sum(until > self._now for until in self._pods.values())
        return there > (MAX_PODS_CONTENDED if self._is_contended else MAX_PODS)

    def _schedule_group(self, quorum: int | None) -> None:
        """Create a group and, about the same time, its members, sometimes too few or too many."""
        key = Key(self._rng.choice(NAMESPACES), f"g{self._rng.randrange(_GROUP_NAMES)}")
        if self._has_max_pods() or self._groups.get(key, 0.0) > self._now:
            return
        life, spell = self._rng.uniform(*_LIFETIME), self._rng.choice((0.0, 0.05, 2.0))
        priority = self._rng.choice(
            _PRIORITIES if self._is_contended else ("", "", "", manifests.HIGH)
        )
        topology = "zone" if self._rng.random() < 0.15 else ""
        made = manifests.create_group(
            key, quorum, priority, topology=topology, mode=self._disruption_mode()
        )
        self._schedule(self._random_delay(spell), Create(POD_GROUP, made))
        members = (quorum or self._rng.randint(1, 4)) + self._rng.choice((-1, 0, 0, 0, 1, 2))
        made["spec"] |= self._schedule_members(
            key, max(members, 1), priority, life=life, spell=spell
        )
        if self._rng.random() < 0.9:
            self._schedule(life + self._random_delay(2.0), Delete(POD_GROUP, key, ""))

    def _disruption_mode(self) -> str:
        """Choose a disruption mode."""
        return self._rng.choice(("", "single", "all", "all")) if self._is_contended else ""

    def _schedule_members(
        self, key: Key, members: int, priority: str, *, life: float, spell: float
    ) -> Object:
        """Create members, mostly equal ones; returns the fields of their group about claims."""
        self._groups[key], self._priorities[key] = self._now + life, priority
        claims = self._claims.choose(key) if self._claims else None
        like = manifests.create_pod(self._rng, key, group=key.name, priority=priority)
        for _ in range(members):
            member = Key(key.namespace, f"{key.name}-{next(self._number)}")
            alike = manifests.renamed_pod(like, member) if self._rng.random() < 0.8 else None
            if claims is not None:
                alike = claims.add_to(manifests.renamed_pod(like, member))
            self._schedule_pod(
                member,
                self._random_delay(spell),
                life,
                group=key.name,
                priority=priority,
                manifest=alike,
            )
        if claims is None or self._claims is None:
            return {}
        self._claims.schedule_claims(claims, life, spell)
        return claims.group_fields

    def _schedule_pod(
        self, key: Key, after: float, life: float, *, group: str = "", priority: str = "",
        manifest: Object | None = None,
    ) -> None:  # fmt: skip
        rng, gated = self._rng, self._rng.random() < 0.06
        if rng.random() < 0.03:
            priority = manifests.HIGH
        made = manifest or manifests.create_pod(
            rng, key, group=group, priority=priority, gated=gated
        )
        if rng.random() < 0.02:
            made = {**made, "spec": {**made["spec"], "schedulerName": "another"}}
        self._schedule(after, Create(POD, made))
        if gated:
            ungate = {"spec": {"schedulingGates": None}}
            self._schedule(after + self._random_delay(4.0), Patch(POD, key, ungate))
        self._pods[key] = self._now + life
        self._schedule_pod_end(key, max(life - self._random_delay(1.0), after))

    def _schedule_pod_end(self, key: Key, after: float) -> None:
        """Let a pod finish and be cleaned up, or delete it with or without a grace period."""
        way = self._rng.randrange(4)
        if way < 2:
            phase = self._rng.choice(("Succeeded", "Succeeded", "Failed"))
            self._schedule(after, FinishPod(key, phase))
            after += self._random_delay(3.0)
        if way == 3:
            self._schedule(after, Delete(POD, key, "", 30))
            after += self._random_delay(3.0)
        self._schedule(after, Delete(POD, key, "", 0))

    # ---- changes of existing objects

    def _recreate_pod(self) -> None:
        """Delete a pod and create another one of the same name at once."""
        key = self._choose_alive(self._pods)
        if key is not None:
            group = key.name.partition("-")[0] if "-" in key.name else ""
            priority = self._priorities.get(Key(key.namespace, group), "")
            self._schedule(0.0, Delete(POD, key, "", 0))
            again = manifests.create_pod(self._rng, key, group=group, priority=priority)
            self._schedule(self._random_delay(0.02), Create(POD, again))

    def _recreate_pod_during_bind(self) -> None:
        """Replace a pod by one of the same name while its bind is in flight."""
        if self._has_max_pods():
            return
        key = Key(self._rng.choice(NAMESPACES), f"p{next(self._number)}")
        self._schedule(0.0, FailBinds(0, (RequestFault.LATE,)))
        self._schedule(0.0, Create(POD, manifests.create_pod(self._rng, key)))
        self._schedule(0.1, Delete(POD, key, "", 0))
        self._schedule_pod(key, 0.15, self._rng.uniform(*_LIFETIME))

    def _delete_pod(self) -> None:
        key = self._choose_alive(self._pods)
        if key is not None:
            self._schedule(0.0, Delete(POD, key, "", self._rng.choice((0, 0, 30))))

    def _set_min_count(self) -> None:
        key = self._choose_alive(self._groups)
        if key is not None:
            policy = {"gang": {"minCount": self._rng.randint(1, 6)}}
            self._schedule(0.0, Patch(POD_GROUP, key, {"spec": {"schedulingPolicy": policy}}))

    def _relabel_pod(self) -> None:
        key = self._choose_alive(self._pods)
        if key is not None:
            labels = {"app": self._rng.choice(("web", "db", None))}
            self._schedule(0.0, Patch(POD, key, {"metadata": {"labels": labels}}))

    def _bind_by_hand(self) -> None:
        key = self._choose_alive(self._pods)
        if key is not None:
            self._schedule(0.0, BindManually(key, self._rng.choice(self._nodes)))

    def _nominate_node(self) -> None:
        """Let another component nominate a node for a pod."""
        key = self._choose_alive(self._pods)
        if key is not None:
            nomination = {"status": {"nominatedNodeName": self._rng.choice(self._nodes)}}
            self._schedule(0.0, Patch(POD, key, nomination, "status"))

    def _add_service(self) -> None:
        key = Key(self._rng.choice(NAMESPACES), "web")
        spec = {"selector": {"app": "web"}, "ports": [{"port": 80}]}
        meta = {"name": key.name, "namespace": key.namespace}
        self._schedule(0.0, Create(SERVICE, {"metadata": meta, "spec": spec}))
        self._schedule(self._random_delay(20.0), Delete(SERVICE, key, ""))

    def _relabel_namespace(self) -> None:
        change = {"metadata": {"labels": {"team": self._rng.choice(("a", "b"))}}}
        self._schedule(0.0, Patch(NAMESPACE, Key("", self._rng.choice(NAMESPACES)), change))

    # ---- nodes

    def _schedule_node(self, name: str, after: float) -> None:
        self._schedule(after, Create(NODE, manifests.create_node(self._rng, name)))
        self._schedule(
            after + self._random_delay(0.3), self._node_patch(name, {"spec": {"taints": None}})
        )

    def _delete_node(self) -> None:
        """Delete a node, with or without its pods; it returns under the same name."""
        name = self._rng.choice(self._nodes)
        self._schedule(0.0, Delete(NODE, Key("", name), ""))
        if self._rng.random() < 0.7:
            self._schedule(self._random_delay(6.0), DeleteOrphanedPods(name))
        self._schedule_node(name, self._random_delay(10.0))

    def _cordon_node(self) -> None:
        name = self._rng.choice(self._nodes)
        self._schedule(0.0, self._node_patch(name, {"spec": {"unschedulable": True}}))
        self._schedule(
            self._random_delay(6.0), self._node_patch(name, {"spec": {"unschedulable": None}})
        )

    def _taint_node(self) -> None:
        name, taint = self._rng.choice(self._nodes), self._rng.choice(manifests.TAINTS)
        self._schedule(0.0, self._node_patch(name, {"spec": {"taints": [taint]}}))
        self._schedule(self._random_delay(6.0), self._node_patch(name, {"spec": {"taints": None}}))

    def _relabel_node(self) -> None:
        labels = {
            "zone": self._rng.choice(("a", "b", None)),
            "disk": self._rng.choice(("ssd", None)),
        }
        change = {"metadata": {"labels": labels}}
        self._schedule(0.0, self._node_patch(self._rng.choice(self._nodes), change))

    def _resize_node(self) -> None:
        allocatable = dict(
            self._rng.choice((*manifests.ALLOCATABLES, {"cpu": "1", "memory": "1Gi", "pods": "3"}))
        )
        name = self._rng.choice(self._nodes)
        self._schedule(
            0.0, Patch(NODE, Key("", name), {"status": {"allocatable": allocatable}}, "status")
        )

    def _node_patch(self, name: str, change: Object) -> Patch:
        return Patch(NODE, Key("", name), change)

    # ---- contention

    def _add_tree(self) -> None:
        """Create a root, groups below it, and sometimes a level between, about the same time."""
        root = Key(self._rng.choice(NAMESPACES), f"t{self._rng.randrange(_GROUP_NAMES)}")
        if self._has_max_pods() or self._trees.get(root, 0.0) > self._now:
            return
        rng, life = self._rng, self._rng.uniform(*_LIFETIME)
        priority, spell = rng.choice(_PRIORITIES), rng.choice((0.0, 0.05, 2.0))
        groups, between = rng.randint(1, 3), Key(root.namespace, f"{root.name}m")
        self._trees[root] = self._now + life
        self._schedule_composite(
            root, rng.choice((None, groups, max(groups - 1, 1))), priority, life=life
        )
        is_deep = rng.random() < 0.4
        if is_deep:
            self._schedule_composite(
                between, rng.choice((None, 1)), priority, life=life, parent=root.name
            )
        for number in range(groups):
            key = Key(root.namespace, f"{root.name}{'abc'[number]}")
            parent = between if is_deep and number != 1 else root
            self._schedule_leaf_group(key, priority, life, spell=spell, parent=parent.name)

    def _schedule_composite(
        self, key: Key, quorum: int | None, priority: str, *, life: float, parent: str = ""
    ) -> None:
        topology = "zone" if self._rng.random() < 0.2 else ""
        made = manifests.create_composite(
            key, quorum, priority, topology=topology, mode=self._disruption_mode(), parent=parent
        )
        self._schedule(self._random_delay(0.5), Create(COMPOSITE_POD_GROUP, made))
        self._schedule(life + self._random_delay(2.0), Delete(COMPOSITE_POD_GROUP, key, ""))

    def _schedule_leaf_group(
        self, key: Key, priority: str, life: float, *, spell: float, parent: str
    ) -> None:
        rng = self._rng
        topology = "zone" if rng.random() < 0.1 else ""
        workload = "another" if rng.random() < 0.03 else manifests.WORKLOAD
        quorum = rng.choice((None, 1, 2, 3))
        made = manifests.create_group(
            key,
            quorum,
            priority,
            topology=topology,
            mode=self._disruption_mode(),
            parent=parent,
            workload=workload,
        )
        self._schedule(self._random_delay(spell), Create(POD_GROUP, made))
        members = (quorum or 1) + rng.choice((-1, 0, 0, 0, 0, 1))
        made["spec"] |= self._schedule_members(
            key, max(members, 1), priority, life=life, spell=spell
        )
        self._schedule(life + self._random_delay(2.0), Delete(POD_GROUP, key, ""))

    def _add_high_priority_pod(self) -> None:
        """Create a single pod of high priority."""
        key = Key(self._rng.choice(NAMESPACES), f"p{next(self._number)}")
        priority = self._rng.choice((manifests.HIGH, manifests.HIGHEST, manifests.NON_PREEMPTING))
        self._schedule_pod(key, 0.0, self._rng.uniform(*_LIFETIME), priority=priority)

    def _preempt_and_restart(self) -> None:
        """Create a pod of high priority and kill the scheduler while victims terminate."""
        self._add_high_priority_pod()
        after = self._rng.choice((0.002, 0.01, 0.05, 0.3))
        self._schedule(after, StopScheduler(0))
        self._schedule(after + self._rng.choice((0.0, 0.01, 2.0)), StartScheduler(0))

    def _remove_terminating(self) -> None:
        self._schedule(
            self._random_delay(3.0), RemoveTerminatingPods(self._rng.choice((1, 2, 100)))
        )

    def _add_budget(self) -> None:
        key = Key(self._rng.choice(NAMESPACES), "budget")
        self._schedule(0.0, Create(POD_DISRUPTION_BUDGET, manifests.create_budget(self._rng, key)))
        allowed = {"status": {"disruptionsAllowed": self._rng.randint(0, 2)}}
        self._schedule(
            self._random_delay(1.0), Patch(POD_DISRUPTION_BUDGET, key, allowed, "status")
        )
        self._schedule(self._random_delay(20.0), Delete(POD_DISRUPTION_BUDGET, key, ""))

    def _fail_evictions(self) -> None:
        faults = self._rng.choices((*_LOST_FAULTS, *_ERROR_FAULTS), k=self._rng.randint(1, 3))
        self._schedule(0.0, FailEvictions(self._choose_slot(), tuple(faults)))

    # ---- volumes and devices

    def _change_claims(self) -> None:
        """Change a claim, or an object of volumes or devices."""
        if self._claims is not None:
            self._rng.choice(CLAIM_CHANGES)(self._claims)

    # ---- faults

    def _choose_slot(self) -> int:
        return self._rng.choice((0, 0, 0, 1))

    def _restart_scheduler(self) -> None:
        slot = self._choose_slot()
        self._schedule(0.0, StopScheduler(slot))
        self._schedule(self._rng.choice((0.0, 0.01, 2.0)), StartScheduler(slot))

    def _start_second_scheduler(self) -> None:
        """Let a second scheduler believe to be the leader for a while."""
        self._schedule(0.0, StartScheduler(1))
        self._schedule(self._rng.uniform(1.0, 20.0), StopScheduler(1))

    def _delay_watches(self) -> None:
        slot = self._choose_slot()
        self._schedule(0.0, DelayWatches(slot, self._rng.choice((0.02, 0.3, 1.0, 2.5))))
        self._schedule(self._random_delay(8.0), DelayWatches(slot, 0.0))

    def _duplicate_events(self) -> None:
        slot = self._choose_slot()
        self._schedule(0.0, DuplicateEvents(slot, True))
        self._schedule(self._random_delay(5.0), DuplicateEvents(slot, False))

    def _break_watches(self) -> None:
        self._schedule(0.0, BreakWatches(self._choose_slot(), self._rng.random() < 0.5))

    def _fail_binds(self) -> None:
        faults = self._rng.choices((*_LOST_FAULTS, *_ERROR_FAULTS), k=self._rng.randint(1, 3))
        self._schedule(0.0, FailBinds(self._choose_slot(), tuple(faults)))

    def _drop_all_requests(self) -> None:
        seconds = self._rng.uniform(0.3, 4.0)
        self._schedule(0.0, FailRequests(self._choose_slot(), seconds, 1.0, (RequestFault.LOST,)))

    def _fail_requests(self) -> None:
        seconds, share = self._rng.uniform(0.5, 5.0), self._rng.uniform(0.2, 0.8)
        self._schedule(
            0.0, FailRequests(self._choose_slot(), seconds, share, (*_LOST_FAULTS, *_ERROR_FAULTS))
        )

    def _slow_disk(self) -> None:
        self._schedule(0.0, SlowCommits(self._rng.choice((0.05, 0.5))))
        self._schedule(self._random_delay(5.0), SlowCommits(0.0))


class WeightedAction(NamedTuple):
    """A repeated action and its relative frequency."""

    weight: float
    run: Callable[[_StepGenerator], None]


ARRIVAL_ACTIONS = (
    WeightedAction(12, _StepGenerator._add_gang),
    WeightedAction(4, _StepGenerator._add_basic_group),
    WeightedAction(10, _StepGenerator._add_pod),
)
ACTIONS = (
    *ARRIVAL_ACTIONS,
    WeightedAction(3, _StepGenerator._add_member),
    WeightedAction(3, _StepGenerator._recreate_pod),
    WeightedAction(1, _StepGenerator._recreate_pod_during_bind),
    WeightedAction(3, _StepGenerator._delete_pod),
    WeightedAction(4, _StepGenerator._set_min_count),
    WeightedAction(3, _StepGenerator._relabel_pod),
    WeightedAction(1, _StepGenerator._bind_by_hand),
    WeightedAction(0.5, _StepGenerator._nominate_node),
    WeightedAction(0.5, _StepGenerator._add_service),
    WeightedAction(0.5, _StepGenerator._relabel_namespace),
    WeightedAction(1, _StepGenerator._delete_node),
    WeightedAction(2, _StepGenerator._cordon_node),
    WeightedAction(2, _StepGenerator._taint_node),
    WeightedAction(2, _StepGenerator._relabel_node),
    WeightedAction(2, _StepGenerator._resize_node),
    WeightedAction(2, _StepGenerator._restart_scheduler),
    WeightedAction(1, _StepGenerator._start_second_scheduler),
    WeightedAction(2, _StepGenerator._delay_watches),
    WeightedAction(1, _StepGenerator._duplicate_events),
    WeightedAction(2, _StepGenerator._break_watches),
    WeightedAction(4, _StepGenerator._fail_binds),
    WeightedAction(1, _StepGenerator._drop_all_requests),
    WeightedAction(2, _StepGenerator._fail_requests),
    WeightedAction(1, _StepGenerator._slow_disk),
)
#: Additional actions under contention.
CONTENTION_ACTIONS = (
    WeightedAction(16, _StepGenerator._add_tree),
    WeightedAction(6, _StepGenerator._add_high_priority_pod),
    WeightedAction(2, _StepGenerator._preempt_and_restart),
    WeightedAction(12, _StepGenerator._remove_terminating),
    WeightedAction(1, _StepGenerator._add_budget),
    WeightedAction(3, _StepGenerator._fail_evictions),
)
#: Additional actions with claims, and what they change.
CLAIM_ACTIONS = (WeightedAction(8, _StepGenerator._change_claims),)
CLAIM_CHANGES = (
    ClaimPlan.add_volume,
    ClaimPlan.add_volume,
    ClaimPlan.add_volume,
    ClaimPlan.replace_slice,
    ClaimPlan.replace_slice,
    ClaimPlan.replace_class,
    ClaimPlan.change_attach_limit,
    ClaimPlan.replace_claim,
)
