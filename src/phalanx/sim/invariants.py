"""Invariants of a cluster, checked by the simulator after every transaction.

`check_cluster` checks one state without history. `InvariantAuditor` follows every change and also
compares present with past. Both return sentences, none if all invariants hold, and never change
anything. The functions `check_…` over two versions of one object are rows of the auditor.

A scheduler decides on a view that is a little late, so it may count a member that was just deleted,
or not know a `minCount` that was just raised. `GangMembership` remembers what was true within the
horizon, which is allowed; nothing else is:

    t=0   needs 3                   3 members are bound at t=1: valid
    t=5   one of them is deleted
    t=6   needs 4                   1 member is bound at t=7: valid with a horizon of 2 (at t=5 the
                                    gang had 3 members and needed 3), too few without one

`GroupTreeOracle` reads trees of groups from plain objects for every question. It is slow and
obvious on purpose: tests compare `scheduler/cluster/group_tree.py` with it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping

from phalanx.api.core import Node, Pod
from phalanx.api.meta import Key, find_condition
from phalanx.api.other_kinds import DeviceClaim
from phalanx.api.resources import (
    Amounts,
    node_allocatable,
    pod_requests,
    requests_of_node,
    sum_amounts,
)
from phalanx.api.scheduling import (
    DISRUPTION_TARGET,
    POD_GROUP_INITIALLY_SCHEDULED,
    POD_GROUP_SCHEDULED,
    CompositePodGroup,
    PodGroup,
)
from phalanx.client.cache import ObjectCache
from phalanx.scheduler.cluster.pod_shape import format_amount

AnyPodGroup = PodGroup | CompositePodGroup
#: Maximum number of levels of a tree.
MAX_LEVELS = 4


_POD_SCHEDULED = "PodScheduled"
_STICKY_CONDITIONS = (POD_GROUP_INITIALLY_SCHEDULED, POD_GROUP_SCHEDULED)
#: The reason of a preempted pod's DisruptionTarget condition.
_PREEMPTION_REASON = "PreemptionByScheduler"


def check_node_unchanged(old: Pod, new: Pod) -> str:
    """A bound pod keeps its node."""
    old_node, new_node = old.spec.node_name, new.spec.node_name
    if not old_node or old_node == new_node:
        return ""
    return f"was bound to {old_node} and is now on {f'node {new_node}' if new_node else 'no node'}"


def check_bindable(old: Pod, new: Pod) -> str:
    """A pod that is terminating, gated or ended is not bound."""
    if not becomes_bound(old, new):
        return ""
    if old.metadata.deletion_timestamp:
        return "got a node while it was being deleted"
    if old.spec.scheduling_gates:
        return "got a node behind a scheduling gate"
    return f"got a node after it had {old.status.phase.lower()}" if old.is_terminal else ""


def check_scheduled_condition(old: Pod, new: Pod) -> str:
    """A pod has the condition PodScheduled from its binding on."""
    if not new.spec.node_name:
        return ""
    condition = find_condition(new.status.conditions, _POD_SCHEDULED)
    if condition is not None and condition.status != "True":
        return (
            f"has node {new.spec.node_name}, but {_POD_SCHEDULED} is not True: {condition.reason}"
        )
    if condition is None and becomes_bound(old, new):
        return f"got a node without the condition {_POD_SCHEDULED}"
    return ""


def check_terminal_phase(old: Pod, new: Pod) -> str:
    """A terminal phase and a deletion timestamp are final."""
    if old.is_terminal and new.status.phase != old.status.phase:
        return f"had {old.status.phase.lower()} and is now {new.status.phase}"
    if old.metadata.deletion_timestamp and not new.metadata.deletion_timestamp:
        return "was being deleted and is not any more"
    return ""


def check_group_unchanged(old: Pod, new: Pod) -> str:
    """A pod keeps its group."""
    return "" if old.group == new.group else f"left group {old.group} for {new.group}"


def check_condition_kept(old: PodGroup, new: PodGroup) -> str:
    """A group that was scheduled keeps its condition."""
    for kind in _STICKY_CONDITIONS:
        old_condition, new_condition = (
            find_condition(group.status.conditions, kind) for group in (old, new)
        )
        if (
            old_condition is not None
            and old_condition.status == "True"
            and (new_condition is None or new_condition.status != "True")
        ):
            return f"had the condition {kind} and lost it"
    return ""


def check_transition_time(old: PodGroup, new: PodGroup) -> str:
    """The transition time of a condition changes with its status only."""
    for kind in _STICKY_CONDITIONS:
        old_condition, new_condition = (
            find_condition(group.status.conditions, kind) for group in (old, new)
        )
        if (
            old_condition is None
            or new_condition is None
            or old_condition.status != new_condition.status
        ):
            continue
        if old_condition.last_transition_time != new_condition.last_transition_time:
            return f"changed lastTransitionTime of {kind}, which is still {new_condition.status}"
    return ""


def check_policy_unchanged(old: PodGroup, new: PodGroup) -> str:
    """A gang stays a gang."""
    return "" if old.is_gang == new.is_gang else "changed its scheduling policy"


POD_INVARIANTS: tuple[Callable[[Pod, Pod], str], ...] = (
    check_node_unchanged,
    check_bindable,
    check_scheduled_condition,
    check_terminal_phase,
    check_group_unchanged,
)
GROUP_INVARIANTS: tuple[Callable[[PodGroup, PodGroup], str], ...] = (
    check_condition_kept,
    check_transition_time,
    check_policy_unchanged,
)


def becomes_bound(old: Pod | None, new: Pod) -> bool:
    """Whether this change binds the pod."""
    return bool(new.spec.node_name) and not (old and old.spec.node_name)


def becomes_preempted(old: Pod | None, new: Pod) -> bool:
    """Whether this change starts the preemption of the pod."""
    if old is None or old.metadata.deletion_timestamp or not new.metadata.deletion_timestamp:
        return False
    condition = find_condition(new.status.conditions, DISRUPTION_TARGET)
    return condition is not None and condition.reason == _PREEMPTION_REASON


class GroupTreeOracle:
    """All PodGroups and CompositePodGroups by key. The maps may change."""

    def __init__(
        self, groups: Mapping[Key, PodGroup], composites: Mapping[Key, CompositePodGroup]
    ) -> None:
        self.groups, self.composites = groups, composites

    def parent(self, group: AnyPodGroup) -> CompositePodGroup | None:
        """Return the parent of a group, if it exists."""
        parent = group.spec.parent_composite_pod_group_name
        return self.composites.get(Key(group.metadata.namespace, parent)) if parent else None

    def ancestors(self, key: Key | None) -> list[AnyPodGroup]:
        """Return a PodGroup and its ancestors, up to the root or a missing parent."""
        return self._path_to_root(self.groups.get(key) if key else None)

    def _path_to_root(self, group: AnyPodGroup | None) -> list[AnyPodGroup]:
        found: list[AnyPodGroup] = []
        while group is not None and len(found) <= MAX_LEVELS:
            found.append(group)
            group = self.parent(group)
        return found

    def is_valid(self, key: Key | None) -> bool:
        """Whether the tree of a PodGroup is valid: depth, root, one Workload."""
        return _is_valid_path(self.ancestors(key))

    def root(self, key: Key | None) -> AnyPodGroup | None:
        """Return the root of a PodGroup's tree, if the tree is valid."""
        return self.ancestors(key)[-1] if self.is_valid(key) else None

    def children(self, group: AnyPodGroup) -> list[AnyPodGroup]:
        """Return the child groups that belong to a group, oldest first."""
        groups: list[AnyPodGroup] = [*self.groups.values(), *self.composites.values()]
        children = [
            child
            for child in groups
            if self.parent(child) is group and _is_valid_path(self._path_to_root(child))
        ]
        return sorted(children, key=_age_key)

    def eviction_root(self, key: Key | None) -> AnyPodGroup | None:
        """Return the highest ancestor with disruption mode All."""
        modes = [(group, group.spec.disruption_mode) for group in self.ancestors(key)]
        return next(
            (group for group, mode in reversed(modes) if mode and mode.all is not None), None
        )

    def contains(self, group: AnyPodGroup, key: Key | None) -> bool:
        """Whether a PodGroup is this group or below it."""
        return any(ancestor is group for ancestor in self.ancestors(key))


def _is_valid_path(path: list[AnyPodGroup]) -> bool:
    if not path or len(path) > MAX_LEVELS or path[-1].spec.parent_composite_pod_group_name:
        return False
    workloads = [group.spec.workload_ref.workload_name for group in path if group.spec.workload_ref]
    return len(set(workloads)) <= 1


def _age_key(group: AnyPodGroup) -> tuple[str, str, bool]:
    meta = group.metadata
    return meta.creation_timestamp or "", meta.name, isinstance(group, CompositePodGroup)


class GangMembership:
    """The membership of one gang by name, over all groups of that name."""

    def __init__(self) -> None:
        #: Bound members and the time of their binding.
        self._members: dict[str, float] = {}
        self._left_at: list[float] = []
        self._min_counts: list[tuple[float, int]] = []
        self._missing_since = 0.0

    def observe_group(self, group: PodGroup | None, now: float) -> None:
        """Record a change of the group."""
        if group is None:
            self._missing_since = now
        if group is not None and (not self._min_counts or self._min_counts[-1][1] != group.quorum):
            self._min_counts.append((now, group.quorum))

    def observe_member(self, pod: Pod | None, uid: str, now: float) -> None:
        """Record a change of a member; None: it is gone."""
        if pod is not None and pod.occupied_node and not pod.metadata.deletion_timestamp:
            self._members.setdefault(uid, now)
        elif uid in self._members:
            del self._members[uid]
            self._left_at.append(now)

    def bound_count(self, since: float) -> int:
        """Return the number of members that are bound, or were at some time since."""
        return len(self._members) + sum(at >= since for at in self._left_at)

    def bound_before(self, since: float) -> int:
        """Return the number of members that were bound before a time and still are."""
        return sum(at < since for at in self._members.values())

    def min_count(self, since: float) -> int:
        """Return the smallest minCount at some time since."""
        before = [number for at, number in self._min_counts if at < since][-1:]
        return min(
            [*before, *(number for at, number in self._min_counts if at >= since)], default=0
        )

    def missing_for(self, now: float) -> float:
        """Return the seconds since the group was last deleted; valid only while it is missing."""
        return now - self._missing_since


def check_cluster(
    pods: Iterable[Pod], nodes: Iterable[Node], groups: Iterable[PodGroup]
) -> list[str]:
    """Return the violated invariants of a cluster, or of a part with all pods of its nodes."""
    all_pods = list(pods)
    pods_by_node: dict[str, list[Pod]] = {}
    for pod in all_pods:
        pods_by_node.setdefault(pod.occupied_node, []).append(pod)
    violations = [
        violation
        for node in nodes
        for violation in _check_capacity(pods_by_node.get(node.metadata.name, ()), node)
    ]
    return [*violations, *_check_partial_gangs(all_pods, groups)]


def check_claims(
    claims: Iterable[DeviceClaim], pods: Iterable[Pod], groups: Iterable[PodGroup]
) -> Iterator[str]:
    """No device is allocated twice, and every allocation is reserved for a living pod or group.

    The second holds at rest: the devices of a pod that has ended are released a little later.
    """
    living = {pod.metadata.uid for pod in pods if not pod.is_terminal}
    living |= {group.metadata.uid for group in groups}
    holders: dict[str, Key] = {}
    for claim in claims:
        key, consumers = claim.metadata.key, claim.status.reserved_for
        results = ((claim.status.allocation or {}).get("devices") or {}).get("results") or ()
        for result in results:
            if result.get("adminAccess") or "shareID" in result:
                continue
            device = f"{result['driver']}/{result['pool']}/{result['device']}"
            if holders.setdefault(device, key) != key:
                yield f"device {device} is allocated to claims {holders[device]} and {key}"
        if claim.status.allocation is not None and not any(c.uid in living for c in consumers):
            yield f"claim {key} is allocated, but reserved for no living pod or group"


def _check_capacity(
    pods: Iterable[Pod], node: Node, resources: Container[str] | None = None
) -> Iterator[str]:
    """No node has live pods beyond its allocatable resources."""
    capacity, name = node_allocatable(node), node.metadata.name
    for resource, amount in sorted(sum_amounts(map(requests_of_node, pods)).items()):
        if resources is not None and resource not in resources:
            continue
        if amount > (has := capacity.get(resource, 0)):
            requested, allocatable = format_amount(resource, amount), format_amount(resource, has)
            yield f"node {name} holds {requested} but has {allocatable}"


def _check_partial_gangs(pods: list[Pod], groups: Iterable[PodGroup]) -> Iterator[str]:
    """No gang that was never scheduled has some bound members, but too few."""
    bound = _bound_members(pods)
    for group in groups:
        count, needed = bound.get(group.metadata.key, 0), group.quorum
        condition = find_condition(group.status.conditions, POD_GROUP_INITIALLY_SCHEDULED)
        was_scheduled = condition is not None and condition.status == "True"
        if 0 < count < needed and group.is_gang and not was_scheduled:
            yield (
                f"gang {group.metadata.key} was never placed, "
                f"yet {count} of the {needed} members that it needs are bound"
            )


def _bound_members(pods: Iterable[Pod]) -> dict[Key, int]:
    """Count the bound members of each group, including ended ones."""
    bound: dict[Key, int] = {}
    for pod in pods:
        if pod.group is not None and pod.spec.node_name:
            bound[pod.group] = bound.get(pod.group, 0) + 1
    return bound


class InvariantAuditor:
    """Follows caches and checks invariants that need history.

    Only changed objects are checked again. Capacity and minimums are checked at bindings only,
    because a node may shrink, or be filled by pods that were bound by hand (`manually_bound`).
    `horizon` is how late a scheduler's view may be by the clock `now`. With `composites`, trees of
    groups are checked too.

    With a `ledger`, the store's node allocations, the caches must be exact: changes of different
    kinds arrive in the order in which they happened, and more invariants are checked.
    """

    def __init__(
        self,
        pods: ObjectCache[Pod],
        nodes: ObjectCache[Node],
        groups: ObjectCache[PodGroup],
        *,
        now: Callable[[], float] = lambda: 0.0,
        horizon: float = 0.0,
        manually_bound: Container[str] = (),
        ledger: Mapping[str, Amounts] | None = None,
        composites: ObjectCache[CompositePodGroup] | None = None,
    ) -> None:
        self._nodes, self._groups = nodes, groups
        self._now, self._horizon, self._manually_bound, self._ledger = (
            now,
            horizon,
            manually_bound,
            ledger,
        )
        self._pods_by_node = pods.index(
            lambda pod: [pod.occupied_node] if pod.occupied_node else []
        )
        self._pods_by_group = pods.index(lambda pod: [pod.group] if pod.group else [])
        self._memberships: dict[Key, GangMembership] = defaultdict(GangMembership)
        self._violations: list[str] = []
        self._changed_nodes: dict[str, None] = {}
        self._bound_counts: dict[Key, int] = {}
        #: Groups whose members were preempted, and the time at which trees lost a group.
        self._evicted_groups: dict[Key, None] = {}
        self._group_removed_at: dict[str, float] = {}
        self._trees = GroupTreeOracle(groups, ObjectCache() if composites is None else composites)
        pods.subscribe(self._pod_changed)
        groups.subscribe(self._group_changed)

    def audit(self) -> list[str]:
        """Return the violations since the last call."""
        violations = [
            *self._violations,
            *self._check_gang_minimum(),
            *self._check_tree_minimum(),
            *self._check_whole_eviction(),
            *self._check_ledger(),
        ]
        self._violations, self._changed_nodes, self._bound_counts, self._evicted_groups = (
            [],
            {},
            {},
            {},
        )
        return violations

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        now = self._now()
        for pod in (old, new):
            if pod is not None and pod.spec.node_name:
                self._changed_nodes[pod.spec.node_name] = None
        changed = new or old
        if changed is not None and changed.group is not None:
            self._memberships[changed.group].observe_member(new, changed.metadata.uid, now)
        if (
            new is not None
            and becomes_bound(old, new)
            and new.metadata.uid not in self._manually_bound
        ):
            self._violations += self._check_bind_capacity(new)
            if new.group is not None:
                self._bound_counts[new.group] = self._bound_counts.get(new.group, 0) + 1
        if new is not None and new.group is not None and becomes_preempted(old, new):
            self._evicted_groups[new.group] = None
        if old is not None and new is not None:
            violations = (invariant(old, new) for invariant in POD_INVARIANTS)
            self._violations += [
                f"pod {new.metadata.key} {sentence}" for sentence in violations if sentence
            ]

    def _group_changed(self, old: PodGroup | None, new: PodGroup | None) -> None:
        changed = new or old
        assert changed is not None
        key = changed.metadata.key
        self._memberships[key].observe_group(new, self._now())
        if new is None:
            self._group_removed_at[changed.spec.parent_composite_pod_group_name] = self._now()
        if old is not None and new is not None:
            violations = (invariant(old, new) for invariant in GROUP_INVARIANTS)
            self._violations += [f"group {key} {sentence}" for sentence in violations if sentence]
        if new is None and self._ledger is not None:
            remaining = sorted(
                pod.metadata.name for pod in self._pods_by_group[key] if not pod.is_terminal
            )
            if remaining:
                names = ", ".join(remaining)
                self._violations.append(f"group {key} was removed while {names} still use it")

    def _check_bind_capacity(self, pod: Pod) -> Iterator[str]:
        """A binding exceeds no resource that it requests; others may be exceeded before."""
        node = self._nodes.get(Key("", pod.spec.node_name))
        if node is not None:
            yield from _check_capacity(
                self._pods_by_node[pod.spec.node_name], node, requests_of_node(pod)
            )

    def _check_gang_minimum(self) -> Iterator[str]:
        """A binding leaves no gang below its minCount, or without its group."""
        now = self._now()
        for key, joined in self._bound_counts.items():
            membership, group = self._memberships[key], self._groups.get(key)
            since = now - self._horizon
            if (
                group is None
                and self._ledger is not None
                and membership.missing_for(now) > self._horizon
            ):
                yield f"members of group {key} got nodes, but there is no such group"
            elif (
                group is not None
                and group.is_gang
                and membership.bound_count(since) < membership.min_count(since)
            ):
                yield (
                    f"gang {key} got nodes for {joined} of its members and has "
                    f"{membership.bound_count(since)} now, but needs {membership.min_count(since)}"
                )

    def _check_tree_minimum(self) -> Iterator[str]:
        """A binding leaves no tree below its minimum of scheduled groups."""
        horizon = self._now() - self._horizon
        for key in self._bound_counts:
            for group in self._trees.ancestors(key)[1:] if self._trees.is_valid(key) else ():
                name = group.metadata.name
                if self._group_removed_at.get(
                    name, horizon - 1
                ) < horizon and not self._has_minimum(group):
                    yield f"members of {key} got nodes, but too few groups of {name} have enough"

    def _has_minimum(self, group: AnyPodGroup) -> bool:
        """Whether a group has its minimum, or had it within the horizon."""
        since = self._now() - self._horizon
        if isinstance(group, PodGroup):
            membership = self._memberships[group.metadata.key]
            return membership.bound_count(since) >= membership.min_count(since)
        return sum(map(self._has_minimum, self._trees.children(group))) >= group.quorum

    def _check_whole_eviction(self) -> Iterator[str]:
        """A preemption evicts whole units, as far as the scheduler could know them."""
        since = self._now() - self._horizon
        for key in self._evicted_groups:
            root = self._trees.eviction_root(key)
            leaves = self._trees.groups if root is not None else ()
            for leaf in leaves:
                if (
                    root
                    and self._trees.contains(root, leaf)
                    and self._memberships[leaf].bound_before(since)
                ):
                    yield f"members of {key} are evicted without those of {leaf} in the same unit"

    def _check_ledger(self) -> Iterator[str]:
        """The node allocations equal the requests of the node's live pods."""
        for name in self._changed_nodes if self._ledger is not None else ():
            requested = sum_amounts(pod_requests(pod) for pod in self._pods_by_node[name])
            recorded = (self._ledger or {}).get(name, {})
            if requested != recorded:
                yield f"node {name}: the ledger has {recorded}, its pods request {requested}"
