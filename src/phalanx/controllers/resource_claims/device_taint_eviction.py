"""The device taint eviction controller: deletes pods whose devices have NoExecute taints.

    slices, rules, claims, pods ─▶ queue of pods ─▶ deadline ─▶ DisruptionTarget condition, delete
                          rules ─▶ queue of rules ─▶ condition EvictionInProgress

A taint is published with a device in its ResourceSlice, or added by a DeviceTaintRule. A pod that
uses a claim with such a device tolerates it by the tolerations of the allocated request, whose
`tolerationSeconds` count from the time at which the taint was added. A toleration without an effect
counts for every effect. Members that share the claim of their PodGroup are evicted too.

    taint of gpu-0 added at 12:00:00, toleration of 30 s      pods of the claim deleted at 12:00:30

A DeviceTaintRule says in its status how many pods it evicts; one with the effect `None` says how
many it would evict. The status changes at most every ten seconds. The controller is disabled on a
foreign API server, which has its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

import msgspec

from phalanx import logs
from phalanx.api.core import Pod
from phalanx.api.dynamic_resources import (
    AllocatedDevice,
    DeviceTaint,
    DeviceTaintRule,
    ResourceSlice,
    decode_allocation,
)
from phalanx.api.kinds import DEVICE_TAINT_RULE, POD
from phalanx.api.meta import Condition, Key, find_condition, parse_timestamp, timestamp
from phalanx.api.other_kinds import DeviceClaim
from phalanx.api.wire import STRATEGIC_PATCH
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.event_recorder import ObjectEvent
from phalanx.controllers.nodes.pod_status import DISRUPTION_TARGET, disruption_patch
from phalanx.controllers.reconcile_loop import (
    Delete,
    Informers,
    Patch,
    ReconcileLoop,
    ReconcilePlan,
    RecordEvent,
)
from phalanx.controllers.resource_claims.reservations import claims_of_pod, is_pod_finished
from phalanx.scheduler.devices.inventory import (
    PoolKey,
    selects_device,
    selects_pool,
    tolerates_taint,
)

LOG = logs.component("device-taint-eviction-controller")

NO_EXECUTE = "NoExecute"
EVICTION_IN_PROGRESS = "EvictionInProgress"
#: The least seconds between two changes of the status of a rule.
STATUS_INTERVAL = 10.0
_REASON = "DeletionByDeviceTaintManager"
_MESSAGE = "Device Taint manager: deleting due to NoExecute taint"
_EVENT = "DeviceTaintManagerEviction"
_WORKERS = 8


class DeviceTaintEviction:
    """Deletes pods from tainted devices when their toleration ends; `record` receives the events.

    It also keeps the status of DeviceTaintRules.
    """

    def __init__(
        self,
        client: Client,
        informers: Informers,
        clock: Clock,
        *,
        record: Callable[[ObjectEvent], None] = lambda event: None,
    ) -> None:
        self._clock = clock
        self._pods, self._claims = informers.of(Pod).cache, informers.of(DeviceClaim).cache
        self._slices = informers.of(ResourceSlice).cache
        self._rules = informers.of(DeviceTaintRule).cache
        self._pods_by_claim = self._pods.index(_claim_keys)
        self._claims_by_pool = self._claims.index(_pools_of_claim)
        self._slices_by_pool = self._slices.index(lambda one: [_pool_of(one)])
        #: The slices with NoExecute taints, by name.
        self._tainted_slices: set[str] = set()
        #: The uids of pods that will be deleted unless the taint goes.
        self._scheduled: set[str] = set()
        #: The uids of the pods that each rule, by uid, has evicted.
        self._evicted: dict[str, set[str]] = {}
        self._pod_loop: ReconcileLoop[Key] = ReconcileLoop(
            client, self.reconcile, _WORKERS, record=record
        )
        self._rule_loop: ReconcileLoop[Key] = ReconcileLoop(client, self.reconcile_rule)
        self._pods.subscribe(self._on_pod_change)
        self._claims.subscribe(self._on_claim_change)
        self._slices.subscribe(self._on_slice_change)
        self._rules.subscribe(self._on_rule_change)

    async def run(self) -> None:
        """Evict pods until cancelled."""
        await self._pod_loop.run()

    async def run_rules(self) -> None:
        """Update the status of rules until cancelled."""
        await self._rule_loop.run()

    def reconcile(self, key: Key) -> ReconcilePlan:
        """Delete a pod whose deadline has passed; otherwise reconcile again at the deadline."""
        pod, now = self._pods.get(key), self._clock.now()
        if pod is None or not _may_be_evicted(pod):
            return ReconcilePlan()
        taints = list(self._effective_taints(pod))
        if not taints:
            return self._cancel_eviction(pod)
        deadline = min(one.deadline for one in taints)
        self._enqueue_rules(taints)
        if deadline > now:
            self._scheduled.add(pod.metadata.uid)
            return ReconcilePlan(requeue_after=deadline - now)
        for one in taints:
            if one.rule_uid:
                self._evicted.setdefault(one.rule_uid, set()).add(pod.metadata.uid)
        delete = Delete(POD, key, pod.metadata.uid)
        marked = find_condition(pod.status.conditions, DISRUPTION_TARGET)
        if marked is not None and marked.reason == _REASON:
            return ReconcilePlan([delete])
        LOG.info("evicting pod from tainted device", kind="Pod", key=key)
        event = _eviction_event(pod, "Marking for deletion")
        return ReconcilePlan([event, disruption_patch(pod, _REASON, _MESSAGE, now=now), delete])

    def _cancel_eviction(self, pod: Pod) -> ReconcilePlan:
        if pod.metadata.uid not in self._scheduled:
            return ReconcilePlan()
        self._scheduled.discard(pod.metadata.uid)
        return ReconcilePlan([_eviction_event(pod, "Cancelling deletion")])

    def _effective_taints(
        self, pod: Pod, supposed: DeviceTaintRule | None = None
    ) -> Iterator[EffectiveTaint]:
        """Yield the NoExecute taints of a pod's devices that it does not tolerate for ever.

        `supposed` is a rule that counts as if its effect were NoExecute.
        """
        for key in _claim_keys(pod):
            claim = self._claims.get(key)
            if claim is None or not _is_reserved_for(claim, pod):
                continue
            for device in _allocated_devices(claim):
                for taint, rule_uid in self._taints_of(device, supposed):
                    deadline = _deadline(device, taint, self._clock.now())
                    if deadline < math.inf:
                        yield EffectiveTaint(deadline, rule_uid)

    def _taints_of(
        self, device: AllocatedDevice, supposed: DeviceTaintRule | None
    ) -> Iterator[tuple[DeviceTaint, str]]:
        """Yield the NoExecute taints of a device, each with the uid of its rule, if it has one."""
        pool = PoolKey(device.driver, device.pool)
        slices = self._slices_by_pool[pool]
        newest = max((one.spec.pool.generation for one in slices), default=0)
        for one in slices if supposed is None else ():
            for found in one.spec.devices if one.spec.pool.generation == newest else ():
                for taint in found.taints if found.name == device.device else ():
                    if taint.effect == NO_EXECUTE:
                        yield taint, ""
        for rule in self._rules.values() if supposed is None else (supposed,):
            taint = rule.spec.taint
            is_effective = supposed is not None or taint.effect == NO_EXECUTE
            if is_effective and _selects(rule, device):
                yield msgspec.structs.replace(taint, effect=NO_EXECUTE), rule.metadata.uid

    def reconcile_rule(self, key: Key) -> ReconcilePlan:
        """Write the condition of a rule, if it has changed and the last change is old enough."""
        rule, now = self._rules.get(key), self._clock.now()
        if rule is None or rule.metadata.deletion_timestamp:
            return ReconcilePlan()
        old = find_condition(rule.status.conditions, EVICTION_IN_PROGRESS)
        generation = rule.metadata.generation
        if old is not None and old.observed_generation == generation and old.last_transition_time:
            wait = parse_timestamp(old.last_transition_time) + STATUS_INTERVAL - now
            if wait > 0:
                return ReconcilePlan(requeue_after=wait)
        status, reason, message = self._describe_rule(rule)
        new = Condition(
            EVICTION_IN_PROGRESS, status, reason, message, observed_generation=generation
        )
        if old is not None and msgspec.structs.replace(old, last_transition_time=None) == new:
            return ReconcilePlan()
        written = msgspec.structs.replace(new, last_transition_time=timestamp(now))
        change = {
            "metadata": {"uid": rule.metadata.uid},
            "status": {"conditions": [msgspec.to_builtins(written)]},
        }
        return ReconcilePlan(
            [Patch(DEVICE_TAINT_RULE, key, change, subresource="status", content=STRATEGIC_PATCH)]
        )

    def _describe_rule(self, rule: DeviceTaintRule) -> tuple[str, str, str]:
        """Return status, reason and message of a rule's condition."""
        effect, texts, uid = rule.spec.taint.effect, list[str](), rule.metadata.uid
        status, reason = "False", "OtherEffect"
        if effect == NO_EXECUTE:
            reason = "Completed" if self._evicted.get(uid) else "NotStarted"
            pods = self._pods_of_rule(rule)
            if pods:
                status, reason = "True", "PodsPendingEviction"
                needs = "needs" if len(pods) == 1 else "need"
                texts.append(f"{_count(pods, 'pod')} {needs} to be evicted in {_namespaces(pods)}.")
        elif effect == "None":
            reason, pods = "NoEffect", self._pods_of_rule(rule)
            published, allocated = self._devices_of_rule(rule)
            texts += [
                f"{_count(published, 'published device')} selected.",
                f"{_count(allocated, 'allocated device')} selected.",
                f"{_count(pods, 'pod')} would be evicted in {_namespaces(pods)} if the effect was"
                " NoExecute. This information will not be updated again."
                " Recreate the DeviceTaintRule to trigger an update.",
            ]
        else:
            texts.append("Eviction only happens for the NoExecute effect.")
        if evicted := self._evicted.get(uid):
            texts.append(f"{_count(evicted, 'pod')} evicted since starting the controller.")
        return status, reason, " ".join(texts)

    def _pods_of_rule(self, rule: DeviceTaintRule) -> list[Pod]:
        """The pods that a rule evicts, or would evict, now or later."""
        pods = {
            pod.metadata.key: pod
            for claim in self._claims_of_rule(rule)
            for pod in self._pods_by_claim[claim.metadata.key]
        }
        return [
            pod
            for pod in pods.values()
            if _may_be_evicted(pod)
            and any(one.rule_uid for one in self._effective_taints(pod, supposed=rule))
        ]

    def _devices_of_rule(self, rule: DeviceTaintRule) -> tuple[list[str], list[AllocatedDevice]]:
        """The devices that a rule selects: those that are published, those that are allocated."""
        published = [
            device.name
            for one in self._slices.values()
            if selects_pool(rule, _pool_of(one))
            and one.spec.pool.generation
            == max(other.spec.pool.generation for other in self._slices_by_pool[_pool_of(one)])
            for device in one.spec.devices
            if selects_device(rule, device.name)
        ]
        allocated = [
            device
            for claim in self._claims_of_rule(rule)
            for device in _allocated_devices(claim)
            if _selects(rule, device)
        ]
        return published, allocated

    def _claims_of_rule(self, rule: DeviceTaintRule) -> list[DeviceClaim]:
        return [
            claim
            for claim in self._claims.values()
            if any(_selects(rule, device) for device in _allocated_devices(claim))
        ]

    def _enqueue_rules(self, taints: Sequence[EffectiveTaint]) -> None:
        uids = {one.rule_uid for one in taints if one.rule_uid}
        for rule in self._rules.values() if uids else ():
            if rule.metadata.uid in uids:
                self._rule_loop.queue.add(rule.metadata.key)

    def _enqueue_pods(self, claim: DeviceClaim) -> None:
        for pod in self._pods_by_claim[claim.metadata.key]:
            self._pod_loop.queue.add(pod.metadata.key)

    def _on_pod_change(self, old: Pod | None, new: Pod | None) -> None:
        if new is None and old is not None:
            self._scheduled.discard(old.metadata.uid)
        elif new is not None and new.spec.node_name and self._has_taints and _claim_keys(new):
            self._pod_loop.queue.add(new.metadata.key)

    def _on_claim_change(self, old: DeviceClaim | None, new: DeviceClaim | None) -> None:
        claim = new or old
        if claim is not None and (self._has_taints or self._scheduled):
            self._enqueue_pods(claim)

    @property
    def _has_taints(self) -> bool:
        """Whether any device has a NoExecute taint: without one, pods and claims need no look."""
        if self._tainted_slices:
            return True
        return any(rule.spec.taint.effect == NO_EXECUTE for rule in self._rules.values())

    def _on_slice_change(self, old: ResourceSlice | None, new: ResourceSlice | None) -> None:
        changed = new or old
        if changed is None:
            return
        name = changed.metadata.name
        is_tainted = new is not None and _has_no_execute(new)
        if is_tainted:
            self._tainted_slices.add(name)
        else:
            self._tainted_slices.discard(name)
        for one in (old, new):
            # A slice of a newer generation replaces the tainted ones of its pool.
            if one is not None and (is_tainted or self._tainted_slices or _has_no_execute(one)):
                for claim in self._claims_by_pool[_pool_of(one)]:
                    self._enqueue_pods(claim)

    def _on_rule_change(self, old: DeviceTaintRule | None, new: DeviceTaintRule | None) -> None:
        if new is not None:
            self._rule_loop.queue.add(new.metadata.key)
        elif old is not None:
            self._evicted.pop(old.metadata.uid, None)
        if old is None or new is None or old.spec != new.spec:
            for rule in (old, new):
                for claim in self._claims_of_rule(rule) if rule is not None else ():
                    self._enqueue_pods(claim)


class EffectiveTaint(NamedTuple):
    """A taint that a pod does not tolerate for ever: until when, and the uid of its rule."""

    deadline: float
    rule_uid: str


def _may_be_evicted(pod: Pod) -> bool:
    return bool(
        pod.spec.node_name and not pod.metadata.deletion_timestamp and not is_pod_finished(pod)
    )


def _claim_keys(pod: Pod) -> Sequence[Key]:
    """The claims of a pod, with the one for its extended resources."""
    extended = pod.status.extended_resource_claim_status
    if not pod.spec.resource_claims and extended is None:
        return ()
    keys = [key for _, key in claims_of_pod(pod)]
    if extended is not None:
        keys.append(Key(pod.metadata.namespace, extended.resource_claim_name))
    return keys


def _is_reserved_for(claim: DeviceClaim, pod: Pod) -> bool:
    """Whether a claim is reserved for a pod, or for its PodGroup."""
    return any(
        one.uid == pod.metadata.uid
        or (one.kind is not POD and pod.group is not None and one.name == pod.group.name)
        for one in claim.status.reserved_for
    )


def _allocated_devices(claim: DeviceClaim) -> Sequence[AllocatedDevice]:
    allocation = claim.status.allocation
    return () if allocation is None else decode_allocation(allocation).devices.results


def _pools_of_claim(claim: DeviceClaim) -> Collection[PoolKey]:
    # Not decoded: this runs at every change of a claim.
    devices = (claim.status.allocation or {}).get("devices") or {}
    return {PoolKey(one["driver"], one["pool"]) for one in devices.get("results") or ()}


def _has_no_execute(slice_: ResourceSlice) -> bool:
    return any(
        taint.effect == NO_EXECUTE for device in slice_.spec.devices for taint in device.taints
    )


def _pool_of(slice_: ResourceSlice) -> PoolKey:
    return PoolKey(slice_.spec.driver, slice_.spec.pool.name)


def _selects(rule: DeviceTaintRule, device: AllocatedDevice) -> bool:
    return selects_pool(rule, PoolKey(device.driver, device.pool)) and selects_device(
        rule, device.device
    )


def _deadline(device: AllocatedDevice, taint: DeviceTaint, now: float) -> float:
    """Return until when a device's request tolerates a taint: the shortest toleration counts."""
    since = parse_timestamp(taint.time_added) if taint.time_added else now
    found = [one for one in device.tolerations if tolerates_taint(one, taint)]
    if any(one.toleration_seconds is None for one in found):
        return math.inf
    return since + min((max(one.toleration_seconds or 0, 0) for one in found), default=0)


def _count(items: Collection[object], noun: str) -> str:
    return f"{len(items)} {noun}" if len(items) == 1 else f"{len(items)} {noun}s"


def _namespaces(pods: Sequence[Pod]) -> str:
    names = {pod.metadata.namespace for pod in pods}
    return "1 namespace" if len(names) == 1 else f"{len(names)} different namespaces"


def _eviction_event(pod: Pod, message: str) -> RecordEvent:
    return RecordEvent(ObjectEvent(POD, pod.metadata, _EVENT, message=message))
