"""Reads and writes groups of pods where a server keeps them as other kinds.

`api/workload_sources.py` has the table of kinds. An informer of PodGroups follows all of them and
holds converted objects (`MergedInformer`); a write to a PodGroup goes to the object that it was
converted from (`WorkloadSourceTransport`). Components use the kinds of `scheduling.k8s.io` alone:

    component           patch podgroups.scheduling.k8s.io  train/status  (strategic merge patch)
    on the wire         PATCH …/scheduling.phalanx.dev/v1/…/podgroups/train/status  (merge patch)

Custom resources have no strategic merge patches, so that their lists are written as a whole: as the
cache holds them, with the change. A resourceVersion in the patch makes that safe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar, Unpack

import msgspec
from msgspec.structs import replace

from phalanx import logs
from phalanx.api.batch import Job
from phalanx.api.core import Pod, PodMembership
from phalanx.api.errors import ApiError, Forbidden
from phalanx.api.kinds import COMPOSITE_POD_GROUP, GROUP_BINDING, JOB, POD, POD_GROUP, Kind
from phalanx.api.meta import Key
from phalanx.api.other_kinds import PriorityClass
from phalanx.api.patch import apply_patch
from phalanx.api.scheduling import CompositePodGroup, PodGroup, PodGroupStatus
from phalanx.api.schema import schema
from phalanx.api.wire import MERGE_PATCH, STRATEGIC_PATCH, Object, Reply, Request, StreamReply
from phalanx.api.workload_sources import (
    POD_GROUP_LABEL,
    STATUS_SUBRESOURCES,
    WORKLOAD_SOURCES,
    ServedSources,
    WorkloadSource,
    named_group,
    read_job,
    resolve_priority,
    select_sources,
)
from phalanx.client.cache import CacheIndex
from phalanx.client.client import Client, served_kinds
from phalanx.client.informer import Informer
from phalanx.client.protocol import HasMetadata, ListScope
from phalanx.client.transports import Transport, Unreachable
from phalanx.randomness import Random

LOG = logs.component("informer")

R = TypeVar("R", bound=HasMetadata)
GroupT = TypeVar("GroupT", bound=PodGroup | CompositePodGroup)
#: The API versions of the kinds that components write to.
_TARGET_VERSIONS = frozenset(row.target.api_version for row in WORKLOAD_SOURCES)
#: The longest value of a label; the name of a group may be longer.
_MAX_LABEL_LENGTH = 63
#: Fields of created objects that refer to other objects by apiVersion and kind.
_REFERENCE_FIELDS = ("involvedObject", "regarding")


async def discover_sources(client: Client, compat: Collection[str] = ()) -> ServedSources:
    """Return which of the kinds a server serves, with those of the named projects."""
    kinds = [row.kind for row in WORKLOAD_SOURCES]
    served = await served_kinds(client, [GROUP_BINDING, *kinds, *STATUS_SUBRESOURCES.values()])
    return select_sources(served, compat)


async def list_groups(
    client: Client, sources: ServedSources, target: Kind, **scope: Unpack[ListScope]
) -> list[Any] | None:
    """List the objects that are read as a kind; None if the server serves none of its kinds."""
    rows = sources.of(target)
    found: dict[Key, Any] = {}
    for row in reversed(rows):
        try:
            listing = await client.list(row.kind, row.struct, **scope)
        except Forbidden:
            if not row.compat:
                raise
            continue
        for one in listing.items:
            found[one.metadata.key] = row.convert(one) if row.convert else one
    return list(found.values()) if rows else None


class MergedInformer(Informer[R]):
    """The informer of a kind that a server keeps as several: the first that has an object wins."""

    def __init__(
        self,
        client: Client,
        kind: Kind,
        struct: type[Any],
        *,
        random: Random,
        parts: Mapping[Kind, Informer[R]],
    ) -> None:
        super().__init__(client, kind, struct, random=random)
        self._parts = tuple(parts.values())
        self.cache.parts = {one.api_version: part.cache for one, part in parts.items()}
        for part in self._parts:
            part.cache.subscribe(self._on_part_changed)
            part.on_batch.append(self._notify_batch)

    @property
    def failures(self) -> dict[Kind, ApiError | Unreachable]:
        """Why informers cannot follow the server at present, by the kind that the server has."""
        return {kind: error for part in self._parts for kind, error in part.failures.items()}

    async def run(self) -> None:
        """Follow the server until cancelled."""
        async with asyncio.TaskGroup() as group:
            for part in self._parts:
                group.create_task(part.run())
            for part in self._parts:
                await part.synced.wait()
            self.synced.set()

    def _on_part_changed(self, old: R | None, new: R | None) -> None:
        changed = new if new is not None else old
        assert changed is not None
        key = changed.metadata.key
        found = next((part.cache[key] for part in self._parts if key in part.cache), None)
        if found is not self.cache.get(key):
            self.cache.set(key, found)


class SourcedObjects:
    """The objects of one server that have other kinds than components know.

    Builds the informers and knows which kind each object has. Kinds of other projects have no
    place for our conditions: the status that was written last is kept in memory. A group without a
    priority of its own has that of its class, else the lowest of its members: no admission writes
    it to the group.
    """

    def __init__(self, client: Client, random: Random, sources: ServedSources) -> None:
        self.sources = sources
        self._client, self._random = client, random
        self._informers: dict[WorkloadSource, Informer[Any]] = {}
        self._merged: dict[Kind, Informer[Any]] = {}
        self._written_status: dict[str, PodGroupStatus] = {}
        self._warned: set[str] = set()
        self._members: CacheIndex[Pod] | None = None
        self._classes: dict[str, PriorityClass] = {}

    def follow_classes(self, classes: Informer[PriorityClass]) -> None:
        """Resolve the priority classes of groups, also when a class is created or deleted later."""
        classes.cache.subscribe(self._on_class_changed)

    def build_informer(self, kind: Kind, struct: type[Any], *, optional: bool) -> Informer[Any]:
        """Return the informer of a kind that components know."""
        if kind is POD and self.sources.need_conversion:
            pods = Informer(
                self._client, POD, Pod, random=self._random, convert=self.sources.link_pod
            )
            if not self.sources.are_native:
                self._members = pods.cache.index(
                    lambda pod: (pod.group,) if pod.group is not None else ()
                )
                pods.cache.subscribe(self._on_pod_changed)
            return pods
        if kind is JOB and self.sources.is_foreign:
            return Informer(
                self._client, JOB, Job, random=self._random, optional=optional, convert=read_job
            )
        rows = self.sources.of(kind)
        if all(row.is_native for row in rows):
            return Informer(self._client, kind, struct, random=self._random, optional=optional)
        parts = {
            row: Informer(
                self._client,
                row.kind,
                row.struct,
                random=self._random,
                # Pods of groups that cannot be read wait, so nothing else needs to wait for them.
                optional=optional or bool(row.compat),
                convert=self._converter(row) if row.convert else None,
            )
            for row in rows
        }
        self._informers |= parts
        merged = MergedInformer(
            self._client,
            kind,
            struct,
            random=self._random,
            parts={row.kind: informer for row, informer in parts.items()},
        )
        merged.cache.subscribe(self._on_group_changed)
        self._merged[kind] = merged
        return merged

    async def list_from_api(self, kind: Kind, struct: type[R], namespace: str) -> Sequence[R]:
        """List objects of a kind that components know, whatever kinds they have on the server."""
        if self.sources.of(kind):
            found = await list_groups(self._client, self.sources, kind, namespace=namespace)
            return found or []
        items: Sequence[Any] = (await self._client.list(kind, struct, namespace=namespace)).items
        if kind is POD and self.sources.need_conversion:
            items = [self.sources.link_pod(pod) for pod in items]
        return items

    async def has_live_members(self, group: Key) -> bool:
        """Whether a pod that has not ended refers to a group, by the API instead of a cache."""
        if self.sources.need_conversion:
            pods = await self.list_from_api(POD, Pod, group.namespace)
            return any(pod.group == group and not pod.is_terminal for pod in pods)
        found = await self._client.list(POD, PodMembership, namespace=group.namespace)
        return any(pod.is_live_member(group.name) for pod in found.items)

    def _on_group_changed(self, old: HasMetadata | None, new: HasMetadata | None) -> None:
        if new is None and old is not None:
            self._written_status.pop(old.metadata.uid, None)
            self._warned.discard(old.metadata.uid)

    def _converter(self, row: WorkloadSource) -> Callable[[Any], Any]:
        def convert(obj: Any) -> Any:
            found = row.convert(obj) if row.convert else obj
            if isinstance(found, PodGroup | CompositePodGroup):
                found = self._with_priority(found)
            if row.encode_status is None:
                return found
            uid = found.metadata.uid
            if (text := row.warn(obj)) and uid not in self._warned:
                self._warned.add(uid)
                LOG.warning(text, resource=row.kind.resource, key=found.metadata.key)
            status = self._written_status.get(uid)
            return replace(found, status=status) if status is not None else found

        return convert

    def _with_priority(self, group: GroupT) -> GroupT:
        members: Sequence[Pod] = ()
        if isinstance(group, PodGroup) and self._members is not None:
            members = self._members[group.metadata.key]
        return resolve_priority(group, members, self._classes)

    def _on_class_changed(self, old: PriorityClass | None, new: PriorityClass | None) -> None:
        changed = new if new is not None else old
        assert changed is not None
        name = changed.metadata.name
        if new is not None:
            self._classes[name] = new
        else:
            del self._classes[name]
        for target in (POD_GROUP, COMPOSITE_POD_GROUP):
            merged = self._merged.get(target)
            for group in tuple(merged.cache.values()) if merged is not None else ():
                if group.spec.priority_class_name == name:
                    self._update_priority(target, group)

    def _update_priority(self, target: Kind, group: PodGroup | CompositePodGroup) -> None:
        key = group.metadata.key
        changed, row = self._with_priority(group), self.find_source(target, key)
        if changed.spec != group.spec and row is not None:
            self._informers[row].cache.set(key, changed)

    def _on_pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Change the priority of a group with that of its members, before a scheduler sees them."""
        keys = dict.fromkeys(one.group for one in (old, new) if one is not None)
        for key in filter(None, keys):
            group = self.get(POD_GROUP, key)
            if isinstance(group, PodGroup):
                self._update_priority(POD_GROUP, group)

    def find_source(self, target: Kind, key: Key) -> WorkloadSource | None:
        """Return the row of an object: where it is, else where new objects are created."""
        rows = self.sources.of(target)
        for row in rows:
            informer = self._informers.get(row)
            if informer is not None and key in informer.cache:
                return row
        return rows[0] if rows else None

    def is_converted(self, target: Kind, key: Key) -> bool:
        """Whether an object has another kind on the server."""
        row = self.find_source(target, key)
        return row is not None and not row.is_native

    def get(self, target: Kind, key: Key) -> Any | None:
        """Return an object as components know it."""
        merged = self._merged.get(target)
        return merged.cache.get(key) if merged is not None else None

    def keep_status(self, key: Key, uid: str, status: PodGroupStatus) -> None:
        """Keep the status of a group whose kind has no place for it."""
        self._written_status[uid] = status
        row, merged = self.find_source(POD_GROUP, key), self._merged.get(POD_GROUP)
        found = merged.cache.get(key) if merged is not None else None
        if row is not None and found is not None and found.metadata.uid == uid:
            self._informers[row].cache.set(key, replace(found, status=status))


class WorkloadSourceTransport:
    """Sends requests about groups, and objects that refer to them, as the server needs them."""

    def __init__(self, inner: Transport, objects: SourcedObjects) -> None:
        self._inner, self._objects = inner, objects

    async def close(self) -> None:
        """Close connections."""
        await self._inner.close()

    async def send(self, request: Request) -> Reply | StreamReply:
        """Send one request, converted if it is about a kind that the server has not."""
        target = self._find_target(request.path)
        if target is None:
            if request.method == "POST" and isinstance(request.body, dict):
                request = replace(request, body=self._convert_new(request.body))
            return await self._inner.send(request)
        kind, key, subresource = target
        row = self._objects.find_source(kind, key)
        if row is None or row.is_native:
            return await self._inner.send(request)
        if subresource == "status" and row.encode_status is not None:
            return await self._send_status(request, row, key)
        path = row.kind.url_path(key.namespace, key.name, subresource)
        request = replace(request, path=path)
        body = request.body
        if request.headers.get("content-type") == STRATEGIC_PATCH and isinstance(body, dict):
            current = _writable_fields(self._objects.get(kind, key))
            changed = apply_patch(STRATEGIC_PATCH, schema(kind.schema), current, patch=body)
            request = _with_merge_patch(request, _select_changed(body, changed))
        elif request.method in ("POST", "PUT") and isinstance(body, dict):
            request = replace(request, body=self._convert_new(body))
        return await self._inner.send(request)

    def _find_target(self, path: str) -> tuple[Kind, Key, str] | None:
        """Return kind, key and subresource of a path, if it is one of the kinds of the table."""
        parts = path.split("/")
        if len(parts) < 5 or f"{parts[2]}/{parts[3]}" not in _TARGET_VERSIONS:
            return None
        namespace, rest = ("", parts[4:])
        if parts[4] == "namespaces" and len(parts) > 6:
            namespace, rest = parts[5], parts[6:]
        for kind in self._objects.sources.targets:
            if kind.plural == rest[0] and kind.api_version == f"{parts[2]}/{parts[3]}":
                name, subresource = (*rest[1:3], "", "")[:2]
                return kind, Key(namespace, name), subresource
        return None

    async def _send_status(
        self, request: Request, row: WorkloadSource, key: Key
    ) -> Reply | StreamReply:
        """Write the status of a group in the terms of its kind, and keep ours."""
        group = self._objects.get(POD_GROUP, key)
        if not isinstance(group, PodGroup) or not isinstance(request.body, dict):
            return await self._inner.send(request)
        current = _writable_fields(group)
        changed = apply_patch(
            STRATEGIC_PATCH, schema(POD_GROUP.schema), current, patch=request.body
        )
        status = msgspec.convert(changed.get("status", {}), PodGroupStatus)
        assert row.encode_status is not None
        body = {
            "metadata": {"uid": group.metadata.uid},
            "status": row.encode_status(replace(group, status=status)),
        }
        subresource = "status" if self._objects.sources.has_status(row.kind) else ""
        path = row.kind.url_path(key.namespace, key.name, subresource)
        reply = await self._inner.send(_with_merge_patch(replace(request, path=path), body))
        if isinstance(reply, Reply) and reply.code < 300:
            self._objects.keep_status(key, group.metadata.uid, status)
        return reply

    def _convert_new(self, body: Object) -> Object:
        """Return an object to create, as the server knows it and the objects that it names."""
        changed: Object = {}
        if api_version := self._served_version(body):
            changed["apiVersion"] = api_version
        meta = body.get("metadata") or {}
        group = (body.get("spec") or {}).get("schedulingGroup")
        if group and self._objects.sources.drops_scheduling_group and not named_group(meta):
            name = group.get("podGroupName", "")
            field = "labels" if len(name) <= _MAX_LABEL_LENGTH else "annotations"
            named = {**(meta.get(field) or {}), POD_GROUP_LABEL: name}
            meta = changed["metadata"] = {**meta, field: named}
        if owners := meta.get("ownerReferences"):
            changed["metadata"] = {
                **meta, "ownerReferences": [self._convert_reference(one) for one in owners]
            }  # fmt: skip
        for field in _REFERENCE_FIELDS:
            if field in body:
                changed[field] = self._convert_reference(body[field])
        return {**body, **changed} if changed else body

    def _convert_reference(self, reference: Object) -> Object:
        version = self._served_version(reference)
        return {**reference, "apiVersion": version} if version else reference

    def _served_version(self, obj: Mapping[str, Any]) -> str:
        """Return the apiVersion under which the server has an object; "" if it is the same."""
        if obj.get("apiVersion") not in _TARGET_VERSIONS:
            return ""
        meta = obj.get("metadata") or obj
        key = Key(meta.get("namespace", ""), meta.get("name", ""))
        for kind in self._objects.sources.targets:
            if kind.name == obj.get("kind"):
                row = self._objects.find_source(kind, key)
                return "" if row is None or row.is_native else row.kind.api_version
        return ""


def _writable_fields(found: Any | None) -> Object:
    """Return the fields of a cached object that strategic patches change, as JSON."""
    if found is None:
        return {}
    meta = msgspec.to_builtins(found.metadata)
    fields: Object = {
        "metadata": {name: meta[name] for name in ("ownerReferences", "finalizers")}
    }  # fmt: skip
    fields["metadata"]["ownerReferences"] = [_without_empty(one) for one in meta["ownerReferences"]]
    if hasattr(found, "status"):
        status = msgspec.to_builtins(found.status)
        status["conditions"] = [_without_empty(one) for one in status["conditions"]]
        fields["status"] = {name: value for name, value in status.items() if value is not None}
    return fields


def _without_empty(item: Object) -> Object:
    """Return a list item without the fields that are absent in JSON."""
    return {key: value for key, value in item.items() if value is not None and value != 0}


def _with_merge_patch(request: Request, body: Object) -> Request:
    return replace(request, body=body, headers={**request.headers, "content-type": MERGE_PATCH})


def _select_changed(patch: Object, result: Object) -> Object:
    """Return the fields that a patch names, with their values after it; None removes one."""
    selected: Object = {}
    for name, value in patch.items():
        after = result.get(name)
        is_inner = isinstance(value, dict) and isinstance(after, dict)
        selected[name] = _select_changed(value, after or {}) if is_inner else after
    return selected
