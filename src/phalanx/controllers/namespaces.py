"""The namespace controller: deletes the contents of a deleted namespace, then finalizes it.

    namespace is deleted    delete its pods; when they are gone, every other object of every kind
    objects are left        say so in the conditions; check again after a second
    no object is left       remove the finalizer of the namespace, which removes the namespace

Pods go first: a NetworkPolicy or a PodGroup must not disappear while a pod that it protects runs.
A stopped pod that only its Job still has to count does not hold up the rest: the Job may be waiting
for a replacement that it cannot create here, and counts the pod when it is deleted itself.
The contents are read from the API, never from caches: a namespace must not be finalized while it
contains an object.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence

from phalanx import logs
from phalanx.api.core import Namespace
from phalanx.api.errors import NotFound
from phalanx.api.kinds import EVENTS_EVENT, NAMESPACE, POD, Kind
from phalanx.api.meta import Key, ObjectMeta, PartialObjectMetadata, find_condition, timestamp
from phalanx.api.wire import STRATEGIC_PATCH, Object
from phalanx.client.client import Client
from phalanx.client.discovery import discover_resources
from phalanx.client.work_queue import WorkQueue
from phalanx.clock import Clock
from phalanx.controllers.jobs.job_pods import TRACKING_FINALIZER
from phalanx.controllers.reconcile_loop import Informers, new_work_queue, run_workers

LOG = logs.component("namespace-controller")
#: Seconds between two checks of a namespace that is not empty yet.
_RETRY_INTERVAL = 1.0
#: What is left in a namespace, by kind.
RemainingContent = Mapping[Kind, Sequence[ObjectMeta]]


class NamespaceController:
    """Empties and finalizes deleted namespaces until cancelled."""

    def __init__(self, client: Client, informers: Informers, clock: Clock) -> None:
        self._client, self._clock = client, clock
        self._cache = informers.of(Namespace).cache
        self._queue: WorkQueue[Key] = new_work_queue(client, "namespace")
        self._cache.subscribe(self._on_change)

    async def run(self) -> None:
        """Empty deleted namespaces until cancelled."""
        await run_workers(self._queue, self._reconcile)

    async def _reconcile(self, key: Key) -> float | None:
        namespace = self._cache.get(key)
        if namespace is None or not namespace.metadata.deletion_timestamp:
            return None
        discovery = await discover_resources(self._client)
        kinds = [found.kind for found in discovery.resources if _is_emptied(found.kind)]
        remaining = await self._delete_content(kinds, key.name)
        # A group that discovery does not show now may have objects in the namespace.
        if remaining or not discovery.is_complete:
            await self._write_conditions(namespace, remaining, is_complete=discovery.is_complete)
            count = sum(map(len, remaining.values()))
            LOG.debug("Namespace not empty yet", kind=NAMESPACE.name, key=key.name, objects=count)
            return _RETRY_INTERVAL
        finalized = {"metadata": {"name": key.name}, "spec": {"finalizers": []}}
        await self._client.update(NAMESPACE, finalized, subresource="finalize")
        LOG.info("Namespace finalized", kind=NAMESPACE.name, key=key.name)
        return None

    async def _delete_content(self, kinds: Sequence[Kind], namespace: str) -> RemainingContent:
        """Delete the pods of a namespace, then the rest; return what is left."""
        pods = [kind for kind in kinds if (kind.group, kind.plural) == (POD.group, POD.plural)]
        others = [kind for kind in kinds if kind not in pods]
        remaining: dict[Kind, Sequence[ObjectMeta]] = {}
        for part in (pods, others):
            left = {kind: await self._delete_all(kind, namespace) for kind in part}
            remaining |= {kind: metas for kind, metas in left.items() if metas}
            if not all(_only_tracked(meta) for metas in remaining.values() for meta in metas):
                break
        return remaining

    async def _delete_all(self, kind: Kind, namespace: str) -> list[ObjectMeta]:
        """Delete all objects of a kind in a namespace; return those that are left."""
        found = (await self._client.list(kind, PartialObjectMetadata, namespace=namespace)).items
        if not found:
            return []
        await asyncio.gather(*(self._delete(kind, item.metadata) for item in found))
        left = (await self._client.list(kind, PartialObjectMetadata, namespace=namespace)).items
        return [item.metadata for item in left]

    async def _delete(self, kind: Kind, meta: ObjectMeta) -> None:
        if not meta.deletion_timestamp:
            try:
                await self._client.delete(kind, meta.key, uid=meta.uid)
            except NotFound:
                return
            LOG.debug("Object deleted", kind=kind.name, key=meta.key)

    async def _write_conditions(
        self, namespace: Namespace, remaining: RemainingContent, *, is_complete: bool
    ) -> None:
        """Write the conditions that changed."""
        known, now = namespace.status.conditions, timestamp(self._clock.now())
        changed = []
        for condition in deletion_conditions(remaining, is_complete=is_complete):
            old = find_condition(known, condition["type"])
            if old is None or any(
                getattr(old, field) != condition[field] for field in ("status", "reason", "message")
            ):
                same = old is not None and old.status == condition["status"]
                since = (old.last_transition_time or now) if old is not None and same else now
                changed.append({**condition, "lastTransitionTime": since})
        if not changed:
            return
        change = {"metadata": {"uid": namespace.metadata.uid}, "status": {"conditions": changed}}
        try:
            await self._client.patch(
                NAMESPACE,
                namespace.metadata.key,
                change,
                subresource="status",
                content=STRATEGIC_PATCH,
            )
        except NotFound:
            return

    def _on_change(self, old: Namespace | None, new: Namespace | None) -> None:
        if new is not None and new.metadata.deletion_timestamp:
            self._queue.add(new.metadata.key)


def deletion_conditions(remaining: RemainingContent, *, is_complete: bool) -> list[Object]:
    """Return the five conditions of a namespace that is being deleted."""
    counts = sorted((kind.plural, kind.group, len(metas)) for kind, metas in remaining.items())
    listed = ", ".join(
        f"{plural}.{group} has {n} resource instances" for plural, group, n in counts
    )
    finalizers = Counter(
        name for metas in remaining.values() for meta in metas for name in meta.finalizers
    )
    kept = ", ".join(f"{name} in {n} resource instances" for name, n in sorted(finalizers.items()))
    return [
        _condition(
            "NamespaceDeletionDiscoveryFailure",
            ("DiscoveryFailed", "Discovery failed for some groups"),
            ("ResourcesDiscovered", "All resources successfully discovered"),
            holds=not is_complete,
        ),
        _condition(
            "NamespaceDeletionGroupVersionParsingFailure",
            ("", ""),
            ("ParsedGroupVersions", "All legacy kube types successfully parsed"),
            holds=False,
        ),
        _condition(
            "NamespaceDeletionContentFailure",
            ("", ""),
            (
                "ContentDeleted",
                "All content successfully deleted, may be waiting on finalization",
            ),
            holds=False,
        ),
        _condition(
            "NamespaceContentRemaining",
            ("SomeResourcesRemain", f"Some resources are remaining: {listed}"),
            ("ContentRemoved", "All content successfully removed"),
            holds=bool(listed),
        ),
        _condition(
            "NamespaceFinalizersRemaining",
            (
                "SomeFinalizersRemain",
                f"Some content in the namespace has finalizers remaining: {kept}",
            ),
            ("ContentHasNoFinalizers", "All content-preserving finalizers finished"),
            holds=bool(kept),
        ),
    ]


def _condition(
    kind: str, when_true: tuple[str, str], when_false: tuple[str, str], *, holds: bool
) -> Object:
    reason, message = when_true if holds else when_false
    status = "True" if holds else "False"
    return {"type": kind, "status": status, "reason": reason, "message": message}


def _only_tracked(pod: ObjectMeta) -> bool:
    """Whether a pod has stopped and only waits for its Job to count it."""
    has_stopped = pod.deletion_timestamp and not pod.deletion_grace_period_seconds
    return bool(has_stopped) and pod.finalizers == (TRACKING_FINALIZER,)


def _is_emptied(kind: Kind) -> bool:
    """Whether objects of a kind are deleted with their namespace.

    Events are served in two groups; deleting them in one is enough.
    """
    can_delete = kind.namespaced and {"list", "delete"} <= set(kind.verbs)
    return can_delete and (kind.group, kind.plural) != (EVENTS_EVENT.group, EVENTS_EVENT.plural)
