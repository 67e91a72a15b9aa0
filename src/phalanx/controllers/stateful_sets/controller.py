"""Runs StatefulSets: informers, the work queue, and which StatefulSet a change concerns.

    StatefulSets, Pods, claims, revisions ─▶ queue of StatefulSets ─▶ sync ─▶ pods, claims, status

A pod or revision belongs to a StatefulSet if it controls it. A revision, or the pod of an ordinal,
that has no controller and that the selector matches is adopted; a pod that it no longer matches is
released. Names follow from the StatefulSet, and deletions are conditional on the uid: repeating a
plan on stale caches does no harm. The controller is disabled on a foreign API server, which has its
own.
"""

from __future__ import annotations

from collections.abc import Callable

from phalanx.api.apps import ControllerRevision, StatefulSet
from phalanx.api.core import Pod
from phalanx.api.errors import ApiError
from phalanx.api.kinds import (
    CONTROLLER_REVISION,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    STATEFUL_SET,
)
from phalanx.api.meta import Key, ObjectMeta
from phalanx.api.storage import PersistentVolumeClaim
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.event_recorder import ObjectEvent
from phalanx.controllers.pod_ownership import controlling_uids, plan_adoption
from phalanx.controllers.reconcile_loop import (
    Action,
    Create,
    Informers,
    ReconcileLoop,
    ReconcilePlan,
    treat_conflict_as_stale,
)
from phalanx.controllers.stateful_sets.pod_objects import claim_names, find_ordinal, pod_name
from phalanx.controllers.stateful_sets.sync import MAX_STARTS, StatefulSetState, plan_sync

_WORKERS = 8


class StatefulSetController:
    """Creates, removes and updates the pods of StatefulSets until cancelled."""

    def __init__(
        self,
        client: Client,
        informers: Informers,
        clock: Clock,
        *,
        record: Callable[[ObjectEvent], None] = lambda event: None,
    ) -> None:
        self._clock, self._record = clock, record
        self._informers = (
            informers.of(StatefulSet),
            informers.of(Pod),
            informers.of(PersistentVolumeClaim),
            informers.of(ControllerRevision),
        )
        self._sets, self._pods = self._informers[0].cache, self._informers[1].cache
        self._claims, self._revisions = self._informers[2].cache, self._informers[3].cache
        self._pods_by_owner = self._pods.index(controlling_uids)
        self._revisions_by_owner = self._revisions.index(controlling_uids)
        self._revisions_by_prefix = self._revisions.index(lambda one: [_prefix_key(one.metadata)])
        self._loop: ReconcileLoop[Key] = ReconcileLoop(
            client, self.reconcile, _WORKERS, record=record, on_error=self._record_failure
        )
        self._sets.subscribe(self._on_set_change)
        self._pods.subscribe(self._on_pod_change)
        self._revisions.subscribe(self._on_revision_change)
        self._claims.subscribe(self._on_claim_change)

    async def run(self) -> None:
        """Run StatefulSets until cancelled."""
        # A pod that the cache does not show yet would be created again.
        for informer in self._informers:
            await informer.synced.wait()
        await self._loop.run()

    def reconcile(self, key: Key) -> ReconcilePlan:
        """Plan: adopt and release objects; if there is nothing to adopt or release, sync."""
        stateful_set = self._sets.get(key)
        if stateful_set is None:
            return ReconcilePlan()
        changes = self._plan_ownership(stateful_set)
        return ReconcilePlan(changes) if changes else plan_sync(self._read_state(stateful_set))

    def _plan_ownership(self, stateful_set: StatefulSet) -> list[Action]:
        meta, selector = stateful_set.metadata, stateful_set.spec.selector
        own_pods = self._pods_by_owner[meta.uid]
        # Pods are adopted before others are created, so that a bounded number is considered.
        first = stateful_set.ordinals[: len(own_pods) + MAX_STARTS]
        named = [Key(meta.namespace, pod_name(stateful_set, ordinal)) for ordinal in first]
        pods = [self._pods[key] for key in named if key in self._pods]
        revisions = self._revisions_by_prefix[meta.key]
        return [
            *plan_adoption(
                STATEFUL_SET,
                meta,
                selector,
                child=POD,
                owned=own_pods,
                orphans=[one for one in pods if not one.metadata.controller],
            ),
            *plan_adoption(
                STATEFUL_SET,
                meta,
                selector,
                child=CONTROLLER_REVISION,
                owned=(),
                orphans=[one for one in revisions if not one.metadata.controller],
            ),
        ]

    def _read_state(self, stateful_set: StatefulSet) -> StatefulSetState:
        meta = stateful_set.metadata
        numbered = ((find_ordinal(p.metadata.name), p) for p in self._pods_by_owner[meta.uid])
        pods = {found[1]: pod for found, pod in numbered if found and found[0] == meta.name}
        history = self._revisions_by_owner[meta.uid]
        considered = dict.fromkeys(stateful_set.ordinals[: len(pods) + MAX_STARTS])
        claims: dict[str, PersistentVolumeClaim] = {}
        for ordinal in {**pods, **considered}:
            for name, _ in claim_names(stateful_set, ordinal):
                if claim := self._claims.get(Key(meta.namespace, name)):
                    claims[name] = claim
        missing = [pod_name(stateful_set, ordinal) for ordinal in considered if ordinal not in pods]
        others = [name for name in missing if Key(meta.namespace, name) in self._pods]
        others += [
            one.metadata.name for one in self._revisions_by_prefix[meta.key] if one not in history
        ]
        return StatefulSetState(
            stateful_set,
            pods,
            claims,
            history=history,
            other_names=frozenset(others),
            now=self._clock.now(),
        )

    def _record_failure(self, key: Key, action: Action, error: ApiError) -> None:
        """Record the event of a pod or claim that the server refused."""
        treat_conflict_as_stale(key, action, error)
        stateful_set = self._sets.get(key)
        if stateful_set is None or not isinstance(action, Create):
            return
        noun = "Claim" if action.kind is PERSISTENT_VOLUME_CLAIM else action.kind.name
        message = (
            f"create {noun} {action.obj['metadata']['name']} in StatefulSet "
            f"{stateful_set.metadata.name} failed error: {error}"
        )
        meta = stateful_set.metadata
        self._record(
            ObjectEvent(STATEFUL_SET, meta, "FailedCreate", message=message, type="Warning")
        )

    def _on_set_change(self, old: StatefulSet | None, new: StatefulSet | None) -> None:
        if new is not None:
            self._loop.queue.add(new.metadata.key)

    def _on_pod_change(self, old: Pod | None, new: Pod | None) -> None:
        if self._sets:
            for pod in (old, new):
                if pod is not None:
                    self._enqueue_owner(pod.metadata)

    def _on_revision_change(
        self, old: ControllerRevision | None, new: ControllerRevision | None
    ) -> None:
        for revision in (old, new):
            if revision is not None:
                self._enqueue_owner(revision.metadata)

    def _on_claim_change(
        self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None
    ) -> None:
        """Enqueue the StatefulSet whose pod uses a claim: `data-web-0` may be of `web`."""
        claim = new or old
        if claim is None or not self._sets:
            return
        found, namespace = find_ordinal(claim.metadata.name), claim.metadata.namespace
        parts = found[0].split("-") if found else []
        for at in range(1, len(parts)):
            key = Key(namespace, "-".join(parts[at:]))
            if key in self._sets:
                self._loop.queue.add(key)

    def _enqueue_owner(self, meta: ObjectMeta) -> None:
        """Enqueue the StatefulSet that controls an object, or may have to adopt it."""
        owner = meta.controller
        if owner is not None and owner.kind == STATEFUL_SET.name:
            key = Key(meta.namespace, owner.name)
        else:
            key = _prefix_key(meta)
        if key in self._sets:
            self._loop.queue.add(key)


def _prefix_key(meta: ObjectMeta) -> Key:
    """The StatefulSet that the name of an object begins with."""
    return Key(meta.namespace, meta.name.rpartition("-")[0])
