"""VolumeAssignments: the volumes that a simulation gives to the members that it places.

One object per simulation, like `ClaimAssignments`. No two members count on the same volume. Each
gets the smallest one that fits; if a later member has none left that its node reaches, earlier ones
change theirs, so that volumes never refuse nodes for which there is an assignment:

    v1 (1Gi) from n1, n2    v2 (2Gi) from n1
    a on n1                 a: v1
    b on n2                 b: v1, a: v2            b reaches v1 only

A claim that several members use is bound with the first of them; the others must then be on nodes
that reach its volume. A claim without a volume is provisioned, if its class can do that for the
node.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from phalanx.api.core import NodeSelector
from phalanx.api.meta import Key
from phalanx.api.resources import exact_value
from phalanx.api.selectors import LabelRequirement, selector_requirements
from phalanx.api.storage import StorageClass, volume_keys_of
from phalanx.scheduler.cluster.node_constraints import nodes_matching_any, terms_of
from phalanx.scheduler.cluster.snapshot import BoolArray, IntArray, Snapshot, SnapshotCache
from phalanx.scheduler.entity import Member
from phalanx.scheduler.volumes.demand import (
    AssignedVolume,
    AttachedDisk,
    UnboundClaim,
    VolumeDemand,
)
from phalanx.scheduler.volumes.state import VolumeInfo, VolumeState

#: More pods than any node takes.
UNLIMITED = 1 << 40
NO_VOLUME_FOUND = "node(s) didn't find available persistent volumes to bind"
NOT_ENOUGH_STORAGE = "node(s) did not have enough free storage"
_CACHE_LIMIT = 256
#: The largest size in KiB that counts: one EiB; larger ones count as this.
_MAX_KIB = 1 << 50


def _by_size(info: VolumeInfo) -> tuple[Fraction, str]:
    return info.size, info.name


class _Candidates:
    """The free volumes for a claim: those of one node, of some nodes, and of all."""

    def __init__(self, snapshot: Snapshot, volumes: Iterable[VolumeInfo]) -> None:
        self._snapshot = snapshot
        #: Sorted: the smallest first.
        self.everywhere: list[VolumeInfo] = []
        self.by_row: dict[int, list[VolumeInfo]] = {}
        self.masked: list[tuple[VolumeInfo, BoolArray]] = []
        #: Where each volume is listed: its row, -1 for several nodes, None for all.
        self._rows: dict[str, int | None] = {}
        for info in sorted(volumes, key=_by_size):
            self._add(info)

    def update(self, name: str, info: VolumeInfo | None) -> None:
        """Add, replace or (None) remove a volume."""
        if name in self._rows:
            row = self._rows.pop(name)
            if row is None:
                self.everywhere = [one for one in self.everywhere if one.name != name]
            elif row >= 0:
                self.by_row[row] = [one for one in self.by_row[row] if one.name != name]
            else:
                self.masked = [one for one in self.masked if one[0].name != name]
        if info is not None:
            self._add(info)

    def _add(self, info: VolumeInfo) -> None:
        if info.affinity is None:
            insort(self.everywhere, info, key=_by_size)
            self._rows[info.name] = None
        elif (row := _only_row(self._snapshot, info.affinity)) is not None:
            insort(self.by_row.setdefault(row, []), info, key=_by_size)
            self._rows[info.name] = row
        else:
            mask = nodes_matching_any(self._snapshot, terms_of(info.affinity))
            if mask.any():
                self.masked.append((info, mask))
                self._rows[info.name] = -1

    def reached_from(self, i: int) -> list[VolumeInfo]:
        """Return the volumes that a node reaches, the smallest first."""
        local, shared = self.by_row.get(i, ()), [info for info, mask in self.masked if mask[i]]
        if not local and not shared:
            return self.everywhere
        found = [*local, *shared, *self.everywhere]
        return sorted(found, key=_by_size)

    def signature(self, i: int) -> object:
        """Return a value that is equal for nodes that reach the same volumes."""
        if not self.by_row.get(i) and not self.masked:
            return -1
        return i if i in self.by_row else tuple(bool(mask[i]) for _, mask in self.masked)

    def count_per_node(self, size: int) -> IntArray:
        """Count the volumes that each node reaches."""
        counts = np.full(size, len(self.everywhere), np.int64)
        for _, mask in self.masked:
            counts += mask
        for row, local in self.by_row.items():
            counts[row] += len(local)
        return counts

    def smallest_per_node(self, size: int) -> IntArray:
        """Return the size, in KiB, of the smallest volume that each node reaches; 0 for none."""
        none = np.iinfo(np.int64).max
        smallest = np.full(size, none)
        if self.everywhere:
            smallest[:] = count_kib(self.everywhere[0].size)
        for info, mask in self.masked:
            smallest[mask] = np.minimum(smallest[mask], count_kib(info.size))
        for row, local in self.by_row.items():
            if local:
                smallest[row] = min(smallest.item(row), count_kib(local[0].size))
        return np.where(smallest == none, 0, smallest)


def count_kib(size: Fraction) -> int:
    """Return a size in KiB, rounded up, such that sums and percentages fit into 64 bits."""
    return min(-int(-size // 1024), _MAX_KIB)


def _only_row(snapshot: Snapshot, selector: NodeSelector) -> int | None:
    """Return the row of the only node that a selector of one label value matches."""
    if len(selector.node_selector_terms) != 1:
        return None
    term = selector.node_selector_terms[0]
    if len(term.match_expressions) != 1 or term.match_fields:
        return None
    need = term.match_expressions[0]
    if need.operator != "In" or len(need.values) != 1:
        return None
    return snapshot.node_with_label(need.key, need.values[0])


class _ProvisionMasks(NamedTuple):
    """The nodes for which a volume can be provisioned, and those of them with enough storage."""

    allowed: BoolArray
    sufficient: BoolArray


@dataclass(slots=True)
class _CachedByState:
    stamp: tuple[int, int, int]
    candidates: _Candidates
    provision: _ProvisionMasks
    #: How many of the changed volumes are taken into account.
    position: int


_CACHED: SnapshotCache[dict[UnboundClaim, _CachedByState]] = SnapshotCache(dict)


def _look_up(snapshot: Snapshot, claim: UnboundClaim) -> _CachedByState:
    """Return candidates and provisioning for a claim; computed again when volumes or nodes change.

    Claims that differ only in their names share the answer.
    """
    state, cached = snapshot.volumes, _CACHED.of(snapshot)
    stamp = (id(state), state.revision, snapshot.epoch)
    key = claim._replace(key=None, selected_node="")
    found = cached.get(key)
    if found is None or found.stamp != stamp:
        if len(cached) >= _CACHE_LIMIT:
            cached.clear()
        candidates = _Candidates(snapshot, state.find_candidates(claim))
        provision = _find_provisionable(snapshot, claim)
        found = _CachedByState(stamp, candidates, provision, len(state.changed_volumes))
        cached[key] = found
    elif found.position < len(state.changed_volumes):
        for name in dict.fromkeys(state.changed_volumes[found.position :]):
            found.candidates.update(name, state.find_candidate(claim, name))
        found.position = len(state.changed_volumes)
    return found


def _find_provisionable(snapshot: Snapshot, claim: UnboundClaim) -> _ProvisionMasks:
    state, none = snapshot.volumes, np.zeros(len(snapshot), bool)
    found = state.classes.get(claim.storage_class)
    if found is None or not found.can_provision:
        return _ProvisionMasks(none, none)
    allowed = _allowed_nodes(snapshot, found)
    driver = state.drivers.get(found.provisioner)
    if driver is None or not driver.spec.storage_capacity:
        return _ProvisionMasks(allowed, allowed)
    sufficient = none
    for one in state.capacities.get(claim.storage_class, {}).values():
        limit = one.maximum_volume_size if one.maximum_volume_size is not None else one.capacity
        if limit is None or exact_value(limit) < claim.size or one.node_topology is None:
            continue
        mask = np.ones(len(snapshot), bool)
        for need in selector_requirements(one.node_topology):
            mask &= snapshot.nodes_matching(need)
        sufficient = sufficient | mask
    return _ProvisionMasks(allowed, allowed & sufficient)


def _allowed_nodes(snapshot: Snapshot, storage_class: StorageClass) -> BoolArray:
    """Return the nodes that the allowed topologies of a class select."""
    if not storage_class.allowed_topologies:
        return np.ones(len(snapshot), bool)
    allowed = np.zeros(len(snapshot), bool)
    for term in storage_class.allowed_topologies:
        mask = np.ones(len(snapshot), bool)
        for one in term.match_label_expressions:
            mask &= snapshot.nodes_matching(LabelRequirement(one.key, "in", frozenset(one.values)))
        allowed |= mask
    return allowed


class _Slot:
    """A claim of a placed member and the volume that it has; "": one that is provisioned."""

    __slots__ = ("claim", "is_fixed", "number", "row", "volume")

    def __init__(self, claim: UnboundClaim, row: int, number: int, *, is_fixed: bool) -> None:
        self.claim, self.row, self.number, self.is_fixed = claim, row, number, is_fixed
        self.volume = ""


class VolumeChoice(NamedTuple):
    """What a node gives a pod: the slots of its claims, and which volumes others change."""

    slots: list[_Slot]
    moves: dict[_Slot, str]


class VolumeAssignments:
    """The volumes in use in one simulation."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot, self._state = snapshot, snapshot.volumes
        self._owners: dict[str, _Slot] = {}
        self._shared: dict[Key, _Slot] = {}
        self._exclusive: set[Key] = set()
        self._attached: dict[int, dict[str, set[str]]] = {}
        #: How many volumes that no other pod has were attached, by row and driver.
        self._attached_counts: Counter[tuple[int, str]] = Counter()
        #: Claims and sets of volumes for which there was none left.
        self._exhausted: set[tuple[UnboundClaim, object]] = set()
        #: The slots of members that were assigned and not collected yet, and of all by pod uid.
        self._uncollected: list[list[_Slot]] = []
        self._slots: dict[str, list[tuple[Key, _Slot]]] = {}
        #: How many shared claims were bound.
        self.shared_count = 0

    def fork(self) -> VolumeAssignments:
        """Copy the present state, to explain why no node takes a pod."""
        forked = VolumeAssignments(self._snapshot)
        forked._owners, forked._shared = dict(self._owners), dict(self._shared)
        forked._exclusive = set(self._exclusive)
        forked._attached = {
            row: {driver: set(handles) for driver, handles in disks.items()}
            for row, disks in self._attached.items()
        }
        forked._attached_counts = Counter(self._attached_counts)
        return forked

    def choose(self, demand: VolumeDemand, i: int) -> VolumeChoice | None:
        """Choose volumes for one more pod on a node; None if the node cannot take it."""
        if demand.problem or self.has_conflict(demand) or self.find_limit(demand, i):
            return None
        found = self.find_volumes(demand, i)
        return None if isinstance(found, str) else found

    def take(self, demand: VolumeDemand, i: int, choice: VolumeChoice) -> None:
        """Give a pod on a node what was chosen for it."""
        for slot, volume in choice.moves.items():
            slot.volume = volume
            if volume:
                self._owners[volume] = slot
        for slot in choice.slots:
            if slot.claim.key is not None and slot.claim.key not in self._shared:
                self._shared[slot.claim.key] = slot
                self.shared_count += 1
        self._exclusive.update(demand.exclusive)
        for disk in demand.attached:
            if disk.handle:
                self._disks_on(i).setdefault(disk.driver, set()).add(disk.handle)
            else:
                self._attached_counts[i, disk.driver] += 1
        self._uncollected.append(choice.slots)

    def collect(self, members: Iterable[Member]) -> None:
        """Remember which of the members that were assigned since the last call has which slots."""
        found, self._uncollected = self._uncollected, []
        for member, slots in zip(members, found, strict=False):
            if slots:
                demand = member.shape.volumes
                shared = {one.key for one in demand.unbound if one.key is not None}
                claims = self._state.unbound_claims(volume_keys_of(member.pod), shared)
                own = iter([key for key, _ in claims if key not in shared])
                keys = [one.key if one.key is not None else next(own) for one in demand.unbound]
                uid = member.pod.metadata.uid
                self._slots[uid] = [(keys[slot.number], slot) for slot in slots]

    def hold(self, keys: Iterable[Key], i: int) -> tuple[AssignedVolume, ...]:
        """Take volumes for the claims of a nominated pod, if its node has them."""
        claims = self._state.unbound_claims(keys)
        demand = VolumeDemand(unbound=tuple(claim for _, claim in claims))
        choice = self.choose(demand, i)
        if choice is None:
            return ()
        self.take(demand, i, choice)
        self._uncollected.pop()
        name = self._snapshot.names[i]
        return tuple(
            AssignedVolume(claims[slot.number][0], slot.volume, name) for slot in choice.slots
        )

    def volumes_of(self, member: Member) -> tuple[AssignedVolume, ...]:
        """Return the volumes that the claims of a member have now; later members may change it."""
        names = self._snapshot.names
        return tuple(
            AssignedVolume(key, slot.volume, names[slot.row])
            for key, slot in self._slots.get(member.pod.metadata.uid, ())
        )

    def has_conflict(self, demand: VolumeDemand) -> bool:
        """Whether another pod uses a ReadWriteOncePod claim."""
        return any(key in self._exclusive or self._state.has_users(key) for key in demand.exclusive)

    def find_limit(self, demand: VolumeDemand, i: int) -> AttachedDisk | None:
        """Return the first volume that the node cannot attach; None if it attaches all."""
        name, new = self._snapshot.names[i], Counter[str]()
        for disk in demand.attached:
            if self._state.lacks_driver(name, disk.driver):
                return disk
            known = self._disks_on(i).get(disk.driver, set())
            if disk.handle and disk.handle in known:
                continue
            new[disk.driver] += 1
            limit = self._state.attach_limit(name, disk.driver)
            used = len(known) + self._attached_counts[i, disk.driver]
            if limit is not None and used + new[disk.driver] > limit:
                return disk
        return None

    def _disks_on(self, i: int) -> dict[str, set[str]]:
        found = self._attached.get(i)
        if found is None:
            found = self._attached[i] = self._state.disks_on(self._snapshot.names[i])
        return found

    def find_volumes(self, demand: VolumeDemand, i: int) -> VolumeChoice | str:
        """Find volumes for the unbound claims of a pod on a node, or say why there are none."""
        name, choice = self._snapshot.names[i], VolumeChoice([], {})
        for number, claim in enumerate(demand.unbound):
            bound = self._find_shared(claim)
            if bound is not None:
                if not self._reaches(bound, i):
                    return NO_VOLUME_FOUND
                continue
            reserved = self._state.find_reserved(claim.key) if claim.key is not None else None
            slot = _Slot(
                claim, i, number, is_fixed=claim.key is not None or bool(claim.selected_node)
            )
            choice.slots.append(slot)
            if claim.selected_node and claim.selected_node in self._snapshot.index:
                if claim.selected_node != name:
                    return NO_VOLUME_FOUND
                choice.moves[slot] = ""
            elif reserved is not None:
                if not self._is_usable(reserved.affinity, i):
                    return NO_VOLUME_FOUND
                choice.moves[slot] = reserved.name
            elif not self._match(slot, choice.moves, set()):
                found = _look_up(self._snapshot, claim).provision
                return NOT_ENOUGH_STORAGE if found.allowed[i] else NO_VOLUME_FOUND
        return choice

    def _find_shared(self, claim: UnboundClaim) -> _Slot | None:
        """Return what a shared claim has got with another member, here or in an earlier simulation.

        A claim that was assumed before the cycle has a selected node in the demand: its pods wait
        until it is provisioned.
        """
        if claim.key is None:
            return None
        taken = None if claim.selected_node else self._state.assumed.get(claim.key)
        if claim.key not in self._shared and taken and taken.node in self._snapshot.index:
            row = self._snapshot.index[taken.node]
            slot = self._shared[claim.key] = _Slot(claim, row, 0, is_fixed=True)
            slot.volume = taken.volume
        return self._shared.get(claim.key)

    def _match(self, slot: _Slot, moves: dict[_Slot, str], visited: set[str]) -> bool:
        """Give a slot a volume: a free one, one that is provisioned, or one of another slot that
        can have another volume. `moves` changes only if there is one.
        """
        found = _look_up(self._snapshot, slot.claim)
        exhausted = (slot.claim, found.candidates.signature(slot.row))
        volumes: Sequence[VolumeInfo] = ()
        if exhausted not in self._exhausted:
            volumes = found.candidates.reached_from(slot.row)
        for info in volumes:
            if self._owner_of(info.name, moves) is None:
                moves[slot] = info.name
                return True
        if found.provision.sufficient[slot.row]:
            moves[slot] = ""
            return True
        is_first = not moves and not visited
        for info in volumes:
            owner = self._owner_of(info.name, moves)
            if owner is None or info.name in visited:
                continue
            visited.add(info.name)
            if not owner.is_fixed and self._match(owner, moves, visited):
                moves[slot] = info.name
                return True
        if is_first:
            self._exhausted.add(exhausted)
        return False

    def _owner_of(self, volume: str, moves: dict[_Slot, str]) -> _Slot | None:
        """Return the slot that has a volume after some moves; None if it is free."""
        for slot, name in moves.items():
            if name == volume:
                return slot
        owner = self._owners.get(volume)
        if owner is None or owner in moves or owner.volume != volume:
            return None
        return owner

    def _reaches(self, slot: _Slot, i: int) -> bool:
        """Whether a node reaches the volume of a shared claim."""
        if not slot.volume:
            return slot.row == i
        return self._is_usable(self._state.volumes[slot.volume].affinity, i)

    def _is_usable(self, affinity: NodeSelector | None, i: int) -> bool:
        if affinity is None:
            return True
        name, labels = self._snapshot.names[i], self._snapshot.labels[i]
        return any(term.matches(name, labels) for term in terms_of(affinity))


def volume_capacities(snapshot: Snapshot, demand: VolumeDemand) -> IntArray:
    """Return how many pods with a demand the volumes of each node serve, at most.

    Never too low.
    """
    most = np.full(len(snapshot), 0 if demand.problem else UNLIMITED, np.int64)
    if any(map(snapshot.volumes.has_users, demand.exclusive)):
        most[:] = 0
    for claim in demand.unbound:
        most = np.minimum(most, _claim_capacities(snapshot, claim))
    for driver, count in attached_drivers(demand).items():
        free = free_attach_slots(snapshot, driver)
        most = np.minimum(most, free // count)
    return most


def _claim_capacities(snapshot: Snapshot, claim: UnboundClaim) -> IntArray:
    """Return for how many pods each node has a volume for a claim, at most."""
    state = snapshot.volumes
    taken = state.assumed.get(claim.key) if claim.key is not None else None
    selected = taken.node if taken is not None and not taken.volume else claim.selected_node
    if selected in snapshot.index:
        counts = np.zeros(len(snapshot), np.int64)
        counts[snapshot.index[selected]] = UNLIMITED
        return counts
    reserved = state.find_reserved(claim.key) if claim.key is not None else None
    if taken is not None and taken.volume:
        reserved = state.volumes.get(taken.volume)
    if reserved is not None:
        mask = np.ones(len(snapshot), bool)
        if reserved.affinity is not None:
            mask = nodes_matching_any(snapshot, terms_of(reserved.affinity))
        return np.where(mask, UNLIMITED, 0)
    found = _look_up(snapshot, claim)
    counts = found.candidates.count_per_node(len(snapshot))
    if claim.key is not None:
        counts = np.where(counts > 0, UNLIMITED, 0)
    return np.where(found.provision.sufficient, UNLIMITED, counts)


def smallest_volumes(snapshot: Snapshot, claim: UnboundClaim) -> IntArray:
    """Return the size, in KiB, of the volume that each node has for a claim; 0 for none."""
    return _look_up(snapshot, claim).candidates.smallest_per_node(len(snapshot))


def provisionable_nodes(snapshot: Snapshot, claim: UnboundClaim) -> BoolArray:
    """Return the nodes for which a volume for a claim can be provisioned."""
    return _look_up(snapshot, claim).provision.sufficient


def attached_drivers(demand: VolumeDemand) -> dict[str, int]:
    """Count the volumes, by driver, that a pod attaches whatever other pods do."""
    return dict(Counter(disk.driver for disk in demand.attached if not disk.handle))


def free_attach_slots(snapshot: Snapshot, driver: str) -> IntArray:
    """Return how many more volumes of a driver each node attaches."""
    state: VolumeState = snapshot.volumes
    free = np.full(len(snapshot), UNLIMITED, np.int64)
    for i, name in enumerate(snapshot.names):
        if state.lacks_driver(name, driver):
            free[i] = 0
        elif (limit := state.attach_limit(name, driver)) is not None:
            free[i] = max(limit - len(state.disks_on(name).get(driver, ())), 0)
    return free
