"""Runs DaemonSets: informers, the work queue, the history of templates and one sync.

    DaemonSets, Pods, Nodes, revisions ─▶ queue of DaemonSets ─▶ sync ─▶ pods, revisions, status

A DaemonSet is synced only once the caches show the writes of its last sync: pods have generated
names, so that a pod that the cache does not show would be created again. A failed pod is replaced
with back-off. The controller is disabled on a foreign API server, which has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from phalanx.api.apps import REVISION_LABEL, ControllerRevision, DaemonSet
from phalanx.api.core import Node, Pod
from phalanx.api.errors import Conflict, NotFound
from phalanx.api.kinds import CONTROLLER_REVISION, DAEMON_SET, POD, Kind
from phalanx.api.meta import Key
from phalanx.api.selectors import selector_matches
from phalanx.api.wire import Object
from phalanx.client.cache import ObjectCache
from phalanx.client.client import Client
from phalanx.client.work_queue import WorkQueue
from phalanx.clock import Clock
from phalanx.controllers.daemon_sets.sync import (
    DaemonSetState,
    build_daemon_pod,
    count_daemon_status,
    plan_daemon_pods,
    target_node,
)
from phalanx.controllers.event_recorder import ObjectEvent
from phalanx.controllers.pod_control import BURST_REPLICAS, PodControl
from phalanx.controllers.pod_ownership import (
    controlling_uids,
    is_active,
    orphan_namespaces,
    owner_key,
    plan_adoption,
)
from phalanx.controllers.reconcile_loop import (
    Informers,
    Patch,
    StaleCacheError,
    new_work_queue,
    perform,
    run_workers,
)
from phalanx.controllers.stateful_sets.revisions import (
    RevisionOwner,
    RevisionPlan,
    plan_history_limit,
    plan_owner_revisions,
)
from phalanx.controllers.write_tracker import TrackedWriter, WriteTracker

_WORKERS = 4
#: Seconds before the pod of a node is replaced after failures in a row: first and last delay.
_FIRST_BACKOFF, _LAST_BACKOFF = 1.0, 900.0


class DaemonSetController:
    """Keeps one pod of each DaemonSet on every eligible node until cancelled."""

    def __init__(
        self,
        client: Client,
        informers: Informers,
        clock: Clock,
        *,
        record: Callable[[ObjectEvent], None] = lambda event: None,
    ) -> None:
        self._client, self._clock, self._record = client, clock, record
        self._informers = (
            informers.of(DaemonSet),
            informers.of(Pod),
            informers.of(Node),
            informers.of(ControllerRevision),
        )
        self._sets, self._pods = self._informers[0].cache, self._informers[1].cache
        self._nodes, self._revisions = self._informers[2].cache, self._informers[3].cache
        self._pods_by_owner = self._pods.index(controlling_uids)
        self._orphans = self._pods.index(orphan_namespaces)
        self._revisions_by_owner = self._revisions.index(controlling_uids)
        self._orphan_revisions = self._revisions.index(orphan_namespaces)
        caches: dict[Kind, ObjectCache[Any]] = {
            DAEMON_SET: self._sets,
            POD: self._pods,
            CONTROLLER_REVISION: self._revisions,
        }
        self._tracker = WriteTracker(client, caches, clock)
        self._queue: WorkQueue[Key] = new_work_queue(client, DAEMON_SET.singular)
        #: The time and delay of the last replacement of a failed pod, by DaemonSet uid and node.
        self._replaced: dict[tuple[str, str], tuple[float, float]] = {}
        self._sets.subscribe(self._on_set_change)
        self._pods.subscribe(self._on_pod_change)
        self._nodes.subscribe(self._on_node_change)

    async def run(self) -> None:
        """Run DaemonSets until cancelled."""
        for informer in self._informers:
            await informer.synced.wait()
        await run_workers(self._queue, self.reconcile, _WORKERS)

    async def reconcile(self, key: Key) -> float | None:
        """Sync one DaemonSet; return after how many seconds to sync again."""
        daemon_set = self._sets.get(key)
        if daemon_set is None or daemon_set.metadata.deletion_timestamp:
            return None
        if not self._tracker.has_caught_up(key):
            raise StaleCacheError(f"the caches do not show the last writes for {key} yet")
        if await self._claim_children(daemon_set):
            raise StaleCacheError("pods or revisions were adopted or released")
        return await self._sync(daemon_set, self._tracker.writer_for(key))

    async def _claim_children(self, daemon_set: DaemonSet) -> bool:
        """Adopt and release pods and revisions; return whether there were any."""
        meta, selector = daemon_set.metadata, daemon_set.spec.selector
        changes: list[Patch] = [
            *plan_adoption(
                DAEMON_SET,
                meta,
                selector,
                child=POD,
                owned=self._pods_by_owner[meta.uid],
                orphans=[pod for pod in self._orphans[meta.namespace] if is_active(pod)],
            ),
            *plan_adoption(
                DAEMON_SET,
                meta,
                selector,
                child=CONTROLLER_REVISION,
                owned=(),
                orphans=self._orphan_revisions[meta.namespace],
            ),
        ]
        if changes:
            live = await self._client.get(DAEMON_SET, meta.key, DaemonSet)
            if live.metadata.uid != meta.uid or live.metadata.deletion_timestamp:
                raise StaleCacheError(f"DaemonSet {meta.key} was deleted")
        for change in changes:
            try:
                await perform(self._client, change)
            except Conflict as error:
                raise StaleCacheError(str(error)) from error
        return bool(changes)

    async def _sync(self, daemon_set: DaemonSet, writer: TrackedWriter) -> float | None:
        meta = daemon_set.metadata
        revisions = self._plan_revisions(daemon_set)
        for action in revisions.actions:
            await perform(self._client, action)
        if revisions.actions:
            raise StaleCacheError("a revision was written")
        revision_hash = revisions.update.metadata.labels.get(REVISION_LABEL, "")
        pods, now = self._pods_by_owner[meta.uid], self._clock.now()
        nodes = {node.metadata.name: node for node in self._nodes.values()}
        delayed = self._delayed_nodes(daemon_set, pods, now)
        state = DaemonSetState(
            daemon_set,
            pods,
            nodes,
            revision_hash=revision_hash,
            now=now,
            delayed_nodes=frozenset(delayed),
        )
        plan = plan_daemon_pods(state)
        control = PodControl(writer, DAEMON_SET, meta, record=self._record)
        for pod in plan.ended:
            self._note_failure(daemon_set, pod, now)
        failures = await control.delete([*plan.deletions, *plan.ended][:BURST_REPLICAS])
        failures += await control.create(
            [
                build_daemon_pod(daemon_set, node, revision_hash=revision_hash)
                for node in plan.nodes[:BURST_REPLICAS]
            ]
        )
        await self._write_status(state, revisions.collision_count, writer)
        if failures:
            raise failures[0]
        await self._limit_history(daemon_set, revisions, pods)
        waits = [*delayed.values(), *(state.seconds_until_available(pod) for pod in pods)]
        return min((wait for wait in waits if wait), default=None)

    def _plan_revisions(self, daemon_set: DaemonSet) -> RevisionPlan:
        meta = daemon_set.metadata
        owned = self._revisions_by_owner[meta.uid]
        names = {one.metadata.name for one in owned}
        owner = RevisionOwner(
            DAEMON_SET,
            meta,
            daemon_set.spec.template,
            collision_count=daemon_set.status.collision_count,
            hash_label=REVISION_LABEL,
        )
        return plan_owner_revisions(
            owner,
            owned,
            lambda name: name not in names and Key(meta.namespace, name) in self._revisions,
        )

    async def _limit_history(
        self, daemon_set: DaemonSet, revisions: RevisionPlan, pods: Sequence[Pod]
    ) -> None:
        """Delete the oldest revisions that no pod is of, beyond the limit."""
        history = self._revisions_by_owner[daemon_set.metadata.uid]
        hashes = {pod.metadata.labels.get(REVISION_LABEL) for pod in pods}
        used = {revisions.update.metadata.name} | {
            one.metadata.name
            for one in history
            if one.metadata.labels.get(REVISION_LABEL) in hashes
        }
        for action in plan_history_limit(history, used, daemon_set.spec.revision_history_limit):
            await perform(self._client, action)

    async def _write_status(
        self, state: DaemonSetState, collisions: int, writer: TrackedWriter
    ) -> None:
        status, counts = state.daemon_set.status, count_daemon_status(state)
        old = {
            "currentNumberScheduled": status.current_number_scheduled,
            "desiredNumberScheduled": status.desired_number_scheduled,
            "numberMisscheduled": status.number_misscheduled,
            "numberReady": status.number_ready,
            "updatedNumberScheduled": status.updated_number_scheduled,
            "numberAvailable": status.number_available,
            "numberUnavailable": status.number_unavailable,
            "observedGeneration": status.observed_generation,
        }
        change: Object = {key: value for key, value in counts.items() if old[key] != value}
        if collisions != status.collision_count:
            change["collisionCount"] = collisions
        if not change:
            return
        meta = state.daemon_set.metadata
        try:
            await writer.patch(
                DAEMON_SET, meta, {"status": change}, subresource="status", exact=True
            )
        except (Conflict, NotFound) as error:
            raise StaleCacheError(str(error)) from error

    # ---- failed pods -----------------------------------------------------------------------------

    def _delayed_nodes(
        self, daemon_set: DaemonSet, pods: Sequence[Pod], now: float
    ) -> dict[str, float]:
        """Return the nodes whose ended pods wait, with the seconds that are left."""
        found = {}
        for pod in pods:
            known = self._replaced.get((daemon_set.metadata.uid, target_node(pod)))
            if pod.is_terminal and known is not None and known[0] + known[1] > now:
                found[target_node(pod)] = known[0] + known[1] - now
        return found

    def _note_failure(self, daemon_set: DaemonSet, pod: Pod, now: float) -> None:
        """Record the event of an ended pod and the delay before its next replacement."""
        meta, node = daemon_set.metadata, target_node(pod)
        at, delay = self._replaced.get((meta.uid, node), (0.0, 0.0))
        fresh = now - at > 2 * _LAST_BACKOFF
        next_delay = _FIRST_BACKOFF if fresh else min(2 * delay, _LAST_BACKOFF)
        self._replaced[meta.uid, node] = (now, next_delay)
        place = f"daemon pod {pod.metadata.key} on node {node}"
        if pod.status.phase == "Failed":
            message = f"Found failed {place}, will try to kill it"
            event = ObjectEvent(
                DAEMON_SET, meta, "FailedDaemonPod", message=message, type="Warning"
            )
        else:
            message = f"Found succeeded {place}, will try to delete it"
            event = ObjectEvent(DAEMON_SET, meta, "SucceededDaemonPod", message=message)
        self._record(event)

    # ---- events ----------------------------------------------------------------------------------

    def _on_set_change(self, old: DaemonSet | None, new: DaemonSet | None) -> None:
        if new is not None:
            self._queue.add(new.metadata.key)
        elif old is not None:
            gone = [key for key in self._replaced if key[0] == old.metadata.uid]
            for key in gone:
                del self._replaced[key]

    def _on_pod_change(self, old: Pod | None, new: Pod | None) -> None:
        if not self._sets:
            return
        for pod in (old, new):
            if pod is not None and (key := owner_key(pod.metadata, DAEMON_SET)):
                self._queue.add(key)
        if new is None or new.metadata.controller is not None:
            return
        for one in self._sets.values():
            if one.metadata.namespace == new.metadata.namespace and selector_matches(
                one.spec.selector, new.metadata.labels
            ):
                self._queue.add(one.metadata.key)

    def _on_node_change(self, old: Node | None, new: Node | None) -> None:
        """Enqueue all DaemonSets if a node appears, goes, or can run other pods."""
        if old is not None and new is not None and _node_facts(old) == _node_facts(new):
            return
        for key in self._sets:
            self._queue.add(key)


def _node_facts(node: Node) -> tuple[object, ...]:
    return node.metadata.labels, node.spec.taints, node.spec.unschedulable
