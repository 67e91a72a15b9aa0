"""What was written about each Job, and whether the caches have seen it.

Whoever looks at a Job before that would do everything twice. A Pen writes for one Job and notes
each of its writes; the controller asks before every look.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phalanx.api.kinds import Kind
from phalanx.api.meta import Key, ObjectMeta
from phalanx.api.wire import MERGE_PATCH, Object
from phalanx.client.cache import ObjectCache
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.jobs.metrics import JobMetrics


class WriteTracker:
    """The latest write of each kind about each Job, until it is seen."""

    def __init__(
        self,
        client: Client,
        caches: Mapping[Kind, ObjectCache[Any]],
        clock: Clock,
        metrics: JobMetrics,
    ) -> None:
        self.client, self.clock, self.metrics = client, clock, metrics
        self._caches = caches
        self._pending: dict[Key, dict[Kind, int]] = {}

    def writer_for(self, job: Key) -> TrackedWriter:
        """Something to write about a Job with."""
        return TrackedWriter(self, job)

    def record(self, job: Key, kind: Kind, written: Object) -> None:
        """Remember what the server answered to a write."""
        version = (written.get("metadata") or {}).get("resourceVersion", "")
        if version.isdecimal():
            unseen = self._pending.setdefault(job, {})
            unseen[kind] = max(unseen.get(kind, 0), int(version))

    def has_caught_up(self, job: Key) -> bool:
        """Whether the caches show all that was written about a Job."""
        unseen = self._pending.get(job, {})
        if any(self._caches[kind].revision < version for kind, version in unseen.items()):
            return False
        self._pending.pop(job, None)
        return True


class TrackedWriter:
    """Writes about one Job. Every change is of the very object that was meant, by its uid."""

    def __init__(self, tracker: WriteTracker, job: Key) -> None:
        self._client, self._tracker, self._job = tracker.client, tracker, job

    async def create(self, kind: Kind, new: Object) -> Object:
        """Make an object."""
        clock, is_well = self._tracker.clock, False
        since = clock.now()
        try:
            made = self._record(kind, await self._client.create(kind, new))
            is_well = True
        finally:
            self._tracker.metrics.record_creation(kind, new, is_well, clock.now() - since)
        return made

    async def patch(
        self, kind: Kind, about: ObjectMeta, change: Object, *, content: str = MERGE_PATCH,
        subresource: str = "", exact: bool = False,
    ) -> Object:  # fmt: skip
        """Change an object; if `exact`, only as it was seen."""
        known = {"uid": about.uid}
        if exact:
            known["resourceVersion"] = about.resource_version
        meta = {**known, **(change.get("metadata") or {})}
        written = await self._client.patch(
            kind, about.key, {**change, "metadata": meta}, content=content, subresource=subresource
        )
        return self._record(kind, written)

    async def delete(self, kind: Kind, about: ObjectMeta, *, version: str = "") -> None:
        """Delete an object; if a version is named, only in that."""
        gone = await self._client.delete(kind, about.key, uid=about.uid, version=version)
        self._record(kind, gone)

    def _record(self, kind: Kind, written: Object) -> Object:
        self._tracker.record(self._job, kind, written)
        return written
