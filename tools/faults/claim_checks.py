"""Invariants of volumes and devices in a fault run, and decisions about pods that claim them.

`ClaimAuditor` checks after every commit that no device and no volume is given twice, and that no
pod gets a node without its claims; at rest nothing is left allocated, reserved or selected.

`ClaimVerifier` knows what the oracle of the tests does not: claims. Of a decision about pods with
claims it verifies quorum, topology and the filters that the oracle has. Whether such an entity
could be placed is asked of a scheduler with empty caches that observes the same objects.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from phalanx.api.core import Pod
from phalanx.api.kinds import PERSISTENT_VOLUME_CLAIM
from phalanx.api.meta import Key
from phalanx.api.other_kinds import DeviceClaim
from phalanx.api.storage import PersistentVolume, PersistentVolumeClaim, volume_keys_of
from phalanx.api.wire import Request
from phalanx.controllers.volumes.binding import is_usable_from
from phalanx.scheduler.cycle import decide
from phalanx.scheduler.decision import Decision, Placed
from phalanx.scheduler.devices.state import claim_consumer, claims_of_pod
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.queue.scheduler_state import ClusterObjects, load_state
from phalanx.sim.invariants import becomes_bound, check_claims
from tests.scheduler.group_membership import GroupMembership
from tests.scheduler.oracle_cluster import OracleCluster
from tests.scheduler.placement_verifier import (
    placement_violations,
    quorum_violations,
    topology_violations,
)
from tests.scheduler.verifier import Verifier
from tools.faults.claim_plan import SERVED_RESOURCE
from tools.faults.model import StoreLogReader

_UNLIMITED = 1_000_000


def has_claims(pod: Pod) -> bool:
    """Whether a pod uses volumes or devices."""
    requests = (one.resources.requests for one in pod.spec.containers)
    return (
        bool(volume_keys_of(pod))
        or bool(pod.spec.resource_claims)
        or any(SERVED_RESOURCE in one for one in requests)
    )


class ClaimAuditor:
    """Follows the store's log; `now` is the clock, `horizon` how late a view may be.

    Pods that were bound by hand (`manually_bound`) may lack their claims.
    """

    def __init__(
        self,
        store_log: StoreLogReader,
        now: Callable[[], float],
        horizon: float,
        *,
        manually_bound: Collection[str] = (),
    ) -> None:
        self._log, self._now, self._horizon = store_log, now, horizon
        self._manually_bound = manually_bound
        self._bound: list[Pod] = []
        #: When each claim, by uid, got its last change that a scheduler may not have seen.
        self._changed_at: dict[Key, float] = {}
        self._has_changed = False
        store_log.pods.subscribe(self._on_pod)
        store_log.device_claims.subscribe(self._on_claim)
        store_log.volume_claims.subscribe(self._on_claim)
        store_log.volumes.subscribe(self._on_volume)

    def audit(self) -> list[str]:
        """Return the violations since the last call."""
        bound, self._bound = self._bound, []
        found = [
            one
            for pod in bound
            if pod.metadata.uid not in self._manually_bound
            for one in self._check_pod(pod)
        ]
        if self._has_changed:
            found += self._check_exclusive()
        self._has_changed = False
        return found

    def check_at_rest(self) -> Iterator[str]:
        """Return what is left behind when nothing happens any more."""
        log = self._log
        yield from check_claims(log.device_claims.values(), log.pods.values(), log.groups.values())
        for key, claim in log.volume_claims.items():
            if claim.selected_node and not claim.is_bound:
                yield f"claim {key} keeps its selected node {claim.selected_node}"

    def _check_exclusive(self) -> Iterator[str]:
        log = self._log
        claims = log.device_claims.values()
        yield from (one for one in check_claims(claims, (), ()) if one.startswith("device"))
        users: dict[str, Key] = {}
        for key, claim in log.volume_claims.items():
            name = claim.spec.volume_name
            if claim.is_bound and users.setdefault(name, key) != key:
                yield f"volume {name} is bound to claims {users[name]} and {key}"

    def _check_pod(self, pod: Pod) -> Iterator[str]:
        """A pod that was just bound has its volumes and devices; fresh claims may be unseen."""
        name, node = pod.metadata.key, self._log.nodes.get(Key("", pod.spec.node_name))
        for key in volume_keys_of(pod):
            claim = self._log.volume_claims.get(key)
            if claim is None or self._is_recent(key) or node is None:
                continue
            volume = self._log.volumes.get(Key("", claim.spec.volume_name))
            if not claim.is_bound or volume is None:
                yield f"pod {name} got a node, but claim {key} has no volume"
            elif not is_usable_from(volume, node):
                yield f"pod {name} got a node from which the volume of {key} cannot be used"
        group = self._log.groups.get(pod.group) if pod.group else None
        for entry, found in claims_of_pod(pod):
            device_claim = self._log.device_claims.get(found) if found else None
            if device_claim is None or found is None or self._is_recent(found):
                continue
            consumer = claim_consumer(pod, entry, group)
            if device_claim.status.allocation is None:
                yield f"pod {name} got a node, but claim {found} has no devices"
            elif consumer not in device_claim.status.reserved_for:
                yield f"pod {name} got a node, but claim {found} is not reserved for it"

    def _is_recent(self, key: Key) -> bool:
        """Whether a claim was created or deleted so recently that a view may not show it."""
        return self._now() - self._changed_at.get(key, -self._horizon) < self._horizon

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None and becomes_bound(old, new):
            self._bound.append(new)

    def _on_claim(
        self,
        old: DeviceClaim | PersistentVolumeClaim | None,
        new: DeviceClaim | PersistentVolumeClaim | None,
    ) -> None:
        self._has_changed = True
        found = new or old
        is_deleted = new is None or bool(new.metadata.deletion_timestamp)
        if found is not None and (is_deleted or old is None):
            self._changed_at[found.metadata.key] = self._now()

    def _on_volume(self, old: PersistentVolume | None, new: PersistentVolume | None) -> None:
        self._has_changed = True


def check_request(request: Request) -> str:
    """Return the violation of a scheduler's request: it must never delete a claim for a volume."""
    is_claim = f"/{PERSISTENT_VOLUME_CLAIM.plural}/" in request.path
    return (
        f"a scheduler sent DELETE {request.path}" if is_claim and request.method == "DELETE" else ""
    )


class ClaimVerifier(Verifier):
    """Verifies decisions as far as they do not depend on claims."""

    def violations(
        self,
        seen: ClusterObjects,
        entity: Entity,
        decision: Decision,
        *,
        reserved: Collection[str] = (),
    ) -> list[str]:
        """Return what is wrong about a decision; empty if nothing is known to be."""
        if not any(has_claims(member.pod) for member in entity.members):
            return super().violations(seen, entity, decision, reserved=reserved)
        self.verified_counts["with claims"] += 1
        if not isinstance(decision, Placed):
            return []
        membership, bindings = GroupMembership(seen), decision.bindings
        wrong = [
            *quorum_violations(membership, entity, bindings),
            *topology_violations(membership, list(seen.nodes), entity, bindings),
            *placement_violations(entity, self._oracle_cluster(seen, entity), bindings),
        ]
        return [f"{entity.key}: {message}" for message in wrong]

    def fits(self, seen: ClusterObjects, entity: Entity) -> bool:
        """Whether a scheduler with empty caches would place the entity."""
        if not any(has_claims(member.pod) for member in entity.members):
            return super().fits(seen, entity)
        state = load_state(seen)
        policy = state.profiles.policy(entity)
        return isinstance(decide(entity, state.cache.snapshot(), policy), Placed)

    def _with_pods(self, seen: ClusterObjects, pods: Iterable[tuple[Pod, str]]) -> OracleCluster:
        cluster = super()._with_pods(seen, pods)
        for node in cluster.nodes.values():
            # Devices serve it: no node has it.
            node.allocatable[SERVED_RESOURCE] = _UNLIMITED
        return cluster
