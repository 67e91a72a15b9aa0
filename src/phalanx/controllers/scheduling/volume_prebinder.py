"""VolumePreBinder: binds the claims of placed pods before the pods, where that takes time.

On our server volumes that exist are bound in the transaction that binds the pods. Volumes that must
be provisioned are provisioned first, as PreBind in Kubernetes: the claim gets the selected node, a
provisioner makes the volume, the volume binder binds it. On a foreign server the volumes that exist
are reserved for their claims here too, and the volume binder of that server binds them.

    claim                                           outcome
    bound to a volume that the node can use         done
    loses its selected node                         the provisioner has given up
    gone, replaced, or bound to another volume      the placement is void
    its node is gone                                the placement is void
    none of this within the timeout                 the placement is void

When a placement is void, the selected node is removed from the claims that have no volume yet, so
that the next attempt may choose another one. Claims that are bound stay bound and restrict the next
attempt. No claim is ever deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from phalanx import logs
from phalanx.api.core import Node
from phalanx.api.errors import ApiError, Conflict, NotFound, Timeout
from phalanx.api.kinds import NODE, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, Kind
from phalanx.api.meta import Key, ObjectMeta, timestamp
from phalanx.api.storage import (
    BOUND_BY_CONTROLLER,
    SELECTED_AT_ANNOTATION,
    SELECTED_NODE,
    PersistentVolume,
    PersistentVolumeClaim,
)
from phalanx.api.wire import Object
from phalanx.client.cache import ObjectCache
from phalanx.client.client import Client
from phalanx.client.transports import Unreachable
from phalanx.clock import Clock
from phalanx.controllers.volumes.binding import claim_reference, is_usable_from
from phalanx.scheduler.decision import VolumeAssignment

LOG = logs.component("scheduler")

#: Attempts to write a claim or volume while other clients change it at the same time, and the
#: seconds before the second one, which double: until then the other write can be read.
_MAX_WRITE_ATTEMPTS, _FIRST_PAUSE_SECONDS = 5, 0.01

_T = TypeVar("_T", PersistentVolume, PersistentVolumeClaim)


class VolumeCaches(NamedTuple):
    """The claims, volumes and nodes as the informers know them."""

    claims: ObjectCache[PersistentVolumeClaim]
    volumes: ObjectCache[PersistentVolume]
    nodes: ObjectCache[Node]


class VolumePreBinder:
    """Binds claims that must be bound before their pods."""

    def __init__(
        self, client: Client, caches: VolumeCaches, clock: Clock, *, is_foreign: bool
    ) -> None:
        self._client, self._clock, self._is_foreign = client, clock, is_foreign
        self._claims, self._volumes, self._nodes = caches
        self._waiting: dict[asyncio.Event, None] = {}
        self._claims.subscribe(self._on_change)
        self._volumes.subscribe(self._on_change)
        self._nodes.subscribe(lambda old, new: None if new else self._on_change(old, new))

    def is_needed(self, volumes: Iterable[VolumeAssignment]) -> bool:
        """Whether claims must be bound before the pods that use them."""
        return any(self._is_foreign or not one.volume for one in volumes)

    async def bind(self, volumes: Iterable[VolumeAssignment], seconds: float) -> None:
        """Bind claims, or provision volumes for them. Raises ApiError, Unreachable."""
        first = [one for one in volumes if self._is_foreign or not one.volume]
        try:
            for one in first:
                if one.volume:
                    await self._reserve_volume(one)
            for one in first:
                if not one.volume:
                    await self._select_node(one, one.node)
            await self._wait_until_bound(first, seconds)
        except (ApiError, Unreachable):
            # Not when the scheduler stops: the next one goes on with the selected nodes.
            await self._return_unprovisioned(first)
            raise

    async def _wait_until_bound(self, volumes: Iterable[VolumeAssignment], seconds: float) -> None:
        left = {one.claim: one for one in volumes}
        try:
            with self._watch() as changed:
                async with asyncio.timeout(seconds):
                    while left:
                        changed.clear()
                        for one in list(left.values()):
                            if await self._is_bound(one):
                                del left[one.claim]
                        if left:
                            await changed.wait()
        except TimeoutError:
            names = ", ".join(sorted(key.name for key in left))
            raise Timeout(f"claim {names} was not bound within {seconds:g} s") from None

    @contextmanager
    def _watch(self) -> Iterator[asyncio.Event]:
        """Return an event that is set whenever a claim or volume has changed."""
        changed = asyncio.Event()
        self._waiting[changed] = None
        try:
            yield changed
        finally:
            del self._waiting[changed]

    def _on_change(self, old: object | None, new: object | None) -> None:
        for changed in self._waiting:
            changed.set()

    async def _is_bound(self, one: VolumeAssignment) -> bool:
        """Whether a claim is bound to a volume that the node can use. Raises Conflict."""
        claim, name = self._claims.get(one.claim), one.claim.name
        is_selected = claim is not None and (bool(one.volume) or claim.selected_node == one.node)
        if claim is None or not (claim.is_bound or is_selected):
            # The cache may not show the write of this attempt yet.
            claim = await self._confirm(one)
        if claim is None or claim.metadata.uid != one.uid or claim.metadata.deletion_timestamp:
            raise Conflict(f'persistentvolumeclaim "{name}" was deleted')
        if not claim.is_bound:
            if not one.volume and claim.selected_node != one.node:
                raise Conflict(f"provisioning failed for PVC {name!r} on node {one.node}")
            if await self._is_node_gone(one.node):
                raise Conflict(f"node {one.node} is gone, for which claim {name} was to be bound")
            return False
        volume, node = (
            self._volumes.get(Key("", claim.spec.volume_name)),
            self._nodes.get(Key("", one.node)),
        )
        if volume is None:
            return False
        if node is None or not is_usable_from(volume, node):
            message = f"volume {volume.metadata.name} of claim {name} cannot be used on {one.node}"
            raise Conflict(message)
        return True

    async def _is_node_gone(self, name: str) -> bool:
        """Whether a node does not exist, by the cache and by the API."""
        if self._nodes.get(Key("", name)) is not None:
            return False
        try:
            await self._client.get(NODE, Key("", name))
        except NotFound:
            return True
        return False

    async def _confirm(self, one: VolumeAssignment) -> PersistentVolumeClaim | None:
        try:
            return await self._client.get(PERSISTENT_VOLUME_CLAIM, one.claim, PersistentVolumeClaim)
        except NotFound:
            return None

    async def _select_node(self, one: VolumeAssignment, node: str | None) -> None:
        """Set the selected node of a claim, or (None) remove it. Raises ApiError, Unreachable."""

        def change(meta: ObjectMeta, claim: PersistentVolumeClaim) -> Object | None:
            if meta.uid != one.uid or meta.deletion_timestamp:
                raise Conflict(f'persistentvolumeclaim "{one.claim.name}" was deleted')
            is_set = claim.selected_node == one.node
            if claim.is_bound or is_set == (node is not None):
                return None
            selected_at = timestamp(self._clock.now()) if node is not None else None
            annotations = {SELECTED_NODE: node, SELECTED_AT_ANNOTATION: selected_at}
            return {"metadata": {"annotations": annotations}}

        await self._update(PERSISTENT_VOLUME_CLAIM, one.claim, PersistentVolumeClaim, change=change)

    async def _reserve_volume(self, one: VolumeAssignment) -> None:
        """Let a volume name its claim. Raises ApiError, Unreachable."""
        claim = await self._confirm(one)
        if claim is None or claim.metadata.uid != one.uid:
            raise Conflict(f'persistentvolumeclaim "{one.claim.name}" was deleted')

        def change(meta: ObjectMeta, volume: PersistentVolume) -> Object | None:
            reference = volume.spec.claim_ref
            if reference is not None and not volume.is_reserved_for(claim):
                raise Conflict(f'volume "{one.volume}" belongs to another claim')
            if reference is not None and reference.uid:
                return None
            found: Object = {"spec": {"claimRef": claim_reference(claim.metadata)}}
            if reference is None:
                found["metadata"] = {"annotations": {BOUND_BY_CONTROLLER: "yes"}}
            return found

        await self._update(PERSISTENT_VOLUME, Key("", one.volume), PersistentVolume, change=change)

    async def _update(
        self,
        kind: Kind,
        key: Key,
        struct: type[_T],
        *,
        change: Callable[[ObjectMeta, _T], Object | None],
    ) -> None:
        """Patch the current version of an object, again if it changes meanwhile."""
        for attempt in range(_MAX_WRITE_ATTEMPTS):
            if attempt:
                await asyncio.sleep(_FIRST_PAUSE_SECONDS * 2 ** (attempt - 1))
            found = await self._client.get(kind, key, struct)
            meta = found.metadata
            patch = change(meta, found)
            if patch is None:
                return
            conditions = {"uid": meta.uid, "resourceVersion": meta.resource_version}
            patch["metadata"] = {**conditions, **patch.get("metadata", {})}
            try:
                await self._client.patch(kind, key, patch)
            except Conflict:
                continue
            return
        raise Conflict(f"{kind.name} {key} changed during each of {_MAX_WRITE_ATTEMPTS} attempts")

    async def _return_unprovisioned(self, volumes: Iterable[VolumeAssignment]) -> None:
        """Remove the selected node from claims without a volume, as far as possible."""
        for one in volumes:
            if not one.volume:
                try:
                    await self._select_node(one, None)
                except (ApiError, Unreachable) as error:
                    LOG.warning("claim keeps its selected node", key=one.claim, reason=error)
