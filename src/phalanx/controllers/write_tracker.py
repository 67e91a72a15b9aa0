"""The writes about each Job, JobSet, ReplicaSet or DaemonSet, and whether the caches show them.

A sync on caches that miss earlier writes would repeat them: create the same pods twice, for
example. A `TrackedWriter` writes for one owner and records the revision of every write; the
controller syncs an owner only if `WriteTracker.has_caught_up`.

    write                       recorded           cache of Pods at    has_caught_up
    create a Pod, revision 7    {Pod: 7}           revision 6          False
                                                   revision 7          True
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from phalanx.api.kinds import Kind
from phalanx.api.meta import Key, ObjectMeta
from phalanx.api.wire import MERGE_PATCH, Object
from phalanx.client.cache import ObjectCache
from phalanx.client.client import Client
from phalanx.clock import Clock


class CreationMetrics(Protocol):
    """Records the duration of creations."""

    def record_creation(self, kind: Kind, new: Object, *, succeeded: bool, seconds: float) -> None:
        """Record one creation."""
        ...


class WriteTracker:
    """The latest revision written of each kind for each owner, until the caches show it."""

    def __init__(
        self,
        client: Client,
        caches: Mapping[Kind, ObjectCache[Any]],
        clock: Clock,
        *,
        metrics: CreationMetrics | None = None,
    ) -> None:
        self.client, self.clock, self.metrics = client, clock, metrics
        self._caches = caches
        #: By owner: the latest revision of each kind, and of the apiVersion that the server has.
        self._pending: dict[Key, dict[tuple[Kind, str], int]] = {}

    def writer_for(self, owner: Key) -> TrackedWriter:
        """Return a writer that records its writes for an owner."""
        return TrackedWriter(self, owner)

    def record(self, owner: Key, kind: Kind, written: Object) -> None:
        """Record the revision of an object that the server returned for a write."""
        version = (written.get("metadata") or {}).get("resourceVersion", "")
        # Kinds without a cache are read with the API.
        if version.isdecimal() and kind in self._caches:
            pending = self._pending.setdefault(owner, {})
            written_as = kind, written.get("apiVersion", "")
            pending[written_as] = max(pending.get(written_as, 0), int(version))

    def has_caught_up(self, owner: Key) -> bool:
        """Whether the caches show every write for an owner."""
        pending = self._pending.get(owner, {})
        for (kind, api_version), version in pending.items():
            if self._caches[kind].revision_of(api_version) < version:
                return False
        self._pending.pop(owner, None)
        return True


class TrackedWriter:
    """Writes for one owner. Patches and deletions are conditional on the uid of the object."""

    def __init__(self, tracker: WriteTracker, owner: Key) -> None:
        self._client, self._tracker, self._owner = tracker.client, tracker, owner

    async def create(self, kind: Kind, new: Object, *, brief: bool = False) -> Object:
        """Create an object and return it as stored; if `brief`, only its name, uid and version."""
        clock, succeeded = self._tracker.clock, False
        start = clock.now()
        try:
            created = self._record(kind, await self._client.create(kind, new, brief=brief))
            succeeded = True
        finally:
            if self._tracker.metrics is not None:
                self._tracker.metrics.record_creation(
                    kind, new, succeeded=succeeded, seconds=clock.now() - start
                )
        return created

    async def patch(
        self,
        kind: Kind,
        target: ObjectMeta,
        change: Object,
        *,
        content: str = MERGE_PATCH,
        subresource: str = "",
        exact: bool = False,
    ) -> Object:
        """Patch an object; if `exact`, only in the version of `target`.

        Returns the name, uid and version of the patched object.
        """
        preconditions = {"uid": target.uid}
        if exact:
            preconditions["resourceVersion"] = target.resource_version
        meta = {**preconditions, **(change.get("metadata") or {})}
        patched = await self._client.patch(
            kind,
            target.key,
            {**change, "metadata": meta},
            content=content,
            subresource=subresource,
            brief=True,
        )
        return self._record(kind, patched)

    async def delete(self, kind: Kind, target: ObjectMeta, *, version: str = "") -> None:
        """Delete an object; if `version` is given, only in that version."""
        deleted = await self._client.delete(kind, target.key, uid=target.uid, version=version)
        self._record(kind, deleted)

    def _record(self, kind: Kind, written: Object) -> Object:
        self._tracker.record(self._owner, kind, written)
        return written
