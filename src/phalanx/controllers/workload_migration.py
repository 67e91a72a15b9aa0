"""Moves groups from our custom resources to `scheduling.k8s.io`, once a server serves both.

Each Workload, CompositePodGroup and PodGroup of `scheduling.phalanx.dev` becomes an object of the
same name in `scheduling.k8s.io`. Schedulers read both kinds and prefer the latter, so that a group
is never absent and a gang that runs is never touched:

    create the copies ─▶ schedulers see them ─▶ write again what changed meanwhile ─▶ delete

A copy names the object that it was made from in an annotation. A run that was interrupted therefore
goes on where it stopped, and an object that a user created under the same name is left alone. The
custom resource is deleted only in the version that was compared with its copy, and without its
dependents: those that it owns get the copy as their owner before.

Pods keep the label by which they name their group; no pod is written except for its owners.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from phalanx.api.core import Pod
from phalanx.api.errors import ApiError, Conflict, Forbidden, NotFound
from phalanx.api.kinds import (
    COMPOSITE_POD_GROUP,
    POD,
    POD_GROUP,
    PRIORITY_CLASS,
    RESOURCE_CLAIM,
    WORKLOAD,
    Kind,
)
from phalanx.api.meta import LAST_APPLIED_ANNOTATION, Key
from phalanx.api.scheduling import (
    BINDING_INTENT_ANNOTATION,
    POD_GROUP_PROTECTION_FINALIZER,
    PRIORITY_FROM_MEMBERS_ANNOTATION,
    SYSTEM_PRIORITY_CLASSES,
)
from phalanx.api.wire import STRATEGIC_PATCH, Object
from phalanx.api.workload_sources import (
    CUSTOM_COMPOSITE_POD_GROUP,
    CUSTOM_GROUP,
    CUSTOM_POD_GROUP,
    CUSTOM_WORKLOAD,
    POD_GROUP_LABEL,
    ServedSources,
)
from phalanx.client.client import Client, served_kinds
from phalanx.client.workload_sources import discover_sources

#: On a copy: uid, generation and bind intent of the custom resource when it was copied.
MIGRATED_FROM_ANNOTATION = f"{CUSTOM_GROUP}/migrated-from"
#: Seconds in which schedulers see the copies; afterwards they write to these alone.
SETTLE_SECONDS = 2.0
#: Attempts to delete a custom resource that other clients change at the same time.
_MAX_ATTEMPTS = 5
#: Owners before what they own.
_KINDS: Mapping[Kind, Kind] = {
    CUSTOM_WORKLOAD: WORKLOAD,
    CUSTOM_COMPOSITE_POD_GROUP: COMPOSITE_POD_GROUP,
    CUSTOM_POD_GROUP: POD_GROUP,
}
#: Kinds that groups may own.
_DEPENDENT_KINDS = (POD, RESOURCE_CLAIM)
#: Finalizers of deletions, and the one that the server gives to every copy itself.
_OWN_FINALIZERS = frozenset(("orphan", "foregroundDeletion", POD_GROUP_PROTECTION_FINALIZER))
_PREEMPT_LOWER_PRIORITY = "PreemptLowerPriority"
#: States of a result. DELETED: by another client during the run, with its copy.
MOVED, MOVABLE, LEFT, DELETED = "moved", "can be moved", "left", "deleted meanwhile"


class NothingToMigrateTo(Exception):
    """The server does not serve the kinds of `scheduling.k8s.io`."""


class _NotMovable(Exception):
    """Why one object stays a custom resource."""


@dataclass(frozen=True, slots=True)
class MigrationResult:
    """What became of one custom resource; `reason` says why it was left."""

    kind: Kind
    key: Key
    state: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class MigrationReport:
    """All results, and how many pods name their group by label, by the owner of the pods."""

    results: Sequence[MigrationResult]
    labelled_pods: Mapping[str, int]

    @property
    def is_complete(self) -> bool:
        """Whether no object was left."""
        return all(one.state != LEFT for one in self.results)


@dataclass(slots=True)
class _Move:
    """A custom resource and its copy."""

    source: Kind
    target: Kind
    custom: Object
    copy: Object

    @property
    def key(self) -> Key:
        return _key(self.custom)


class WorkloadMigration:
    """Moves the groups of one namespace, or of all.

    `report` is called with each result. A dry run asks the server whether it would accept each copy
    and writes nothing.
    """

    def __init__(
        self,
        client: Client,
        *,
        namespace: str = "",
        dry_run: bool = False,
        report: Callable[[MigrationResult], None] = lambda result: None,
    ) -> None:
        self._client, self._namespace, self._dry_run = client, namespace, dry_run
        self._report, self._results = report, list[MigrationResult]()
        self._pods: Sequence[Pod] = ()
        self._parents: dict[Key, Key] = {}
        self._classes: Sequence[Object] = ()
        #: By the uid of a custom resource: apiVersion and uid of its copy.
        self._copies: dict[str, Object] = {}
        self._labelled: Counter[str] = Counter()

    async def run(self) -> MigrationReport:
        """Move all groups. Raises the error of a server that does not let them be read."""
        served = await served_kinds(self._client, (*_KINDS, *_KINDS.values()))
        if POD_GROUP not in served:
            raise NothingToMigrateTo(
                f"the API server does not serve {POD_GROUP.resource} in {POD_GROUP.version}: "
                "there is nothing to move groups to"
            )
        objects = {
            source: (await self._client.list(source, namespace=self._namespace)).items
            for source in _KINDS
            if source in served
        }
        if any(objects.values()):
            await self._read_members(objects.get(CUSTOM_POD_GROUP, ()), objects)
        moves = [
            move
            for source, found in objects.items()
            for custom in found
            if (move := await self._copy(source, custom, served))
        ]
        if not self._dry_run and moves:
            await self._give_dependents(self._copies)
            await asyncio.sleep(SETTLE_SECONDS)
            for move in reversed(moves):
                await self._finish(move)
        return MigrationReport(self._results, self._labelled)

    # ---- what members say ------------------------------------------------------------------------

    async def _read_members(
        self, groups: Sequence[Object], objects: Mapping[Kind, Sequence[Object]]
    ) -> None:
        sources: ServedSources = await discover_sources(self._client)
        pods = (await self._client.list(POD, Pod, namespace=self._namespace)).items
        self._count_labelled(pods)
        self._pods = [sources.link_pod(pod) for pod in pods]
        self._classes = (await self._client.list(PRIORITY_CLASS)).items
        for obj in (*groups, *objects.get(CUSTOM_COMPOSITE_POD_GROUP, ())):
            if parent := obj["spec"].get("parentCompositePodGroupName"):
                self._parents[_key(obj)] = Key(_key(obj).namespace, parent)

    def _live_members(self, kind: Kind, key: Key) -> list[Pod]:
        """Return the pods of a group, or of all groups below a composite group, that can run."""
        found = []
        for pod in self._pods:
            group = pod.group
            if kind is COMPOSITE_POD_GROUP:
                # A cycle of parents is no tree: the depth is bounded.
                for _ in range(len(self._parents)):
                    group = self._parents.get(group) if group else None
                    if group == key:
                        break
            if group == key and not pod.is_terminal:
                found.append(pod)
        return found

    def _count_labelled(self, pods: Iterable[Pod]) -> None:
        """Count pods that name a group by label, by their controller."""
        for pod in pods:
            meta, owner = pod.metadata, pod.metadata.controller
            is_labelled = POD_GROUP_LABEL in meta.labels or POD_GROUP_LABEL in meta.annotations
            if is_labelled and pod.spec.scheduling_group is None and not pod.is_terminal:
                name = f"{owner.kind} {owner.name}" if owner else "pods without a controller"
                self._labelled[f"{name} in {meta.namespace}"] += 1

    # ---- copying ---------------------------------------------------------------------------------

    async def _copy(self, source: Kind, custom: Object, served: Iterable[Kind]) -> _Move | None:
        """Create the copy of an object unless it exists; None if the object is left."""
        target, meta = _KINDS[source], custom["metadata"]
        try:
            if target not in served:
                raise _NotMovable(f"the API server does not serve {target.resource}")
            copy = await self._find_copy(target, custom)
            if copy is None:
                copy = await self._create_copy(target, custom)
        except (_NotMovable, ApiError) as error:
            self._add(target, _key(custom), LEFT, reason=str(error))
            return None
        self._copies[meta["uid"]] = {
            "apiVersion": target.api_version,
            "uid": copy["metadata"].get("uid", meta["uid"]),
        }
        if self._dry_run:
            self._add(target, _key(custom), MOVABLE)
        return _Move(source, target, custom, copy)

    async def _find_copy(self, target: Kind, custom: Object) -> Object | None:
        """Return the copy that an earlier run made; None if the name is free."""
        found = await self._get(target, _key(custom))
        if found is not None and _read_source(found)[0] != custom["metadata"]["uid"]:
            raise _NotMovable(
                f"{target.resource} has an object of this name already, which counts; "
                "delete one of the two"
            )
        return found

    async def _create_copy(self, target: Kind, custom: Object) -> Object:
        meta = custom["metadata"]
        if meta.get("deletionTimestamp"):
            raise _NotMovable("it is being deleted")
        spec, annotations = dict(custom.get("spec") or {}), dict(meta.get("annotations") or {})
        annotations.pop(LAST_APPLIED_ANNOTATION, None)
        annotations[MIGRATED_FROM_ANNOTATION] = "/".join(_describe_source(custom))
        if target is not WORKLOAD:
            members = self._live_members(target, _key(custom))
            if members and spec.get("resourceClaims"):
                raise _NotMovable("devices are allocated to it; move it after its pods have ended")
            if "priority" not in spec and "priorityClassName" not in spec:
                annotations[PRIORITY_FROM_MEMBERS_ANNOTATION] = ""
            self._set_priority(spec, members)
        copy: Object = {
            "apiVersion": target.api_version,
            "kind": target.name,
            "metadata": {
                "name": meta["name"],
                "namespace": meta["namespace"],
                "annotations": annotations,
                "labels": meta.get("labels") or {},
                "ownerReferences": self._convert_owners(meta),
                "finalizers": [
                    one for one in meta.get("finalizers") or () if one not in _OWN_FINALIZERS
                ],
            },
            "spec": spec,
        }
        created = await self._client.create(target, copy, dry_run=self._dry_run)
        conditions = (custom.get("status") or {}).get("conditions")
        if conditions and not self._dry_run:
            await self._client.patch(
                target,
                _key(custom),
                {"status": {"conditions": conditions}},
                content=STRATEGIC_PATCH,
                subresource="status",
            )
        return created

    def _convert_owners(self, meta: Object) -> list[Object]:
        """Return the owners of an object, with copies instead of what was moved before."""
        owners: list[Object] = meta.get("ownerReferences") or []
        return [{**one, **self._copies.get(one["uid"], {})} for one in owners]

    def _set_priority(self, spec: Object, members: Sequence[Pod]) -> None:
        """Name the priority class of a group: the server computes its priority from that alone."""
        if spec.get("preemptionPolicy") == _PREEMPT_LOWER_PRIORITY:
            del spec["preemptionPolicy"]
        priority, name = spec.pop("priority", None), spec.get("priorityClassName", "")
        if not name and priority is None and members:
            lowest = min(members, key=lambda pod: pod.spec.priority).spec
            priority = lowest.priority
            name = next((one for one in self._class_names(priority)), "")
        elif not name and priority is not None:
            name = next((one for one in self._class_names(priority)), "")
        defaults = [int(one["value"]) for one in self._classes if one.get("globalDefault")]
        if not name and priority not in (None, min(defaults, default=0)):
            raise _NotMovable(
                f"no PriorityClass that groups may have has the value {priority}, its priority; "
                "create one"
            )
        if name:
            spec["priorityClassName"] = name
            found = [one for one in self._classes if one["metadata"]["name"] == name]
            if found and (policy := found[0].get("preemptionPolicy")):
                spec.setdefault("preemptionPolicy", policy)

    def _class_names(self, priority: int) -> list[str]:
        names = [one["metadata"]["name"] for one in self._classes if one["value"] == priority]
        return sorted(name for name in names if name not in SYSTEM_PRIORITY_CLASSES)

    # ---- owners and deletion ---------------------------------------------------------------------

    async def _give_dependents(self, copies: Mapping[str, Object]) -> None:
        """Give what custom resources own to their copies."""
        for kind in _DEPENDENT_KINDS:
            try:
                found = (await self._client.list(kind, namespace=self._namespace)).items
            except (NotFound, Forbidden):
                continue
            for obj in found:
                # What is deleted meanwhile needs no owner.
                with suppress(NotFound):
                    await self._give_dependent(kind, obj, copies)

    async def _give_dependent(self, kind: Kind, obj: Object, copies: Mapping[str, Object]) -> None:
        """Give one object to the copies of its owners; pods change all the time."""
        for attempt in range(_MAX_ATTEMPTS):
            meta = obj["metadata"]
            if not any(one["uid"] in copies for one in meta.get("ownerReferences") or ()):
                return
            change = {
                "uid": meta["uid"],
                "resourceVersion": meta["resourceVersion"],
                "ownerReferences": self._convert_owners(meta),
            }
            try:
                await self._client.patch(kind, _key(obj), {"metadata": change})
            except Conflict:
                if attempt == _MAX_ATTEMPTS - 1:
                    raise
                obj = await self._client.get(kind, _key(obj))
            else:
                return

    async def _finish(self, move: _Move) -> None:
        """Delete a custom resource in a version whose changes its copy has."""
        state, reason = LEFT, ""
        for _ in range(_MAX_ATTEMPTS):
            try:
                state, reason = await self._finish_once(move), ""
            except (Conflict, NotFound) as error:
                # Another client changed or deleted one of the two: both are read again.
                reason = f"its copy exists, but: {error}"
                continue
            except _NotMovable as error:
                reason = str(error)
            except ApiError as error:
                reason = f"its copy exists, but: {error}"
            break
        self._add(move.target, move.key, state, reason=reason)

    async def _finish_once(self, move: _Move) -> str:
        """Return what became of the custom resource: MOVED or DELETED."""
        custom = await self._get(move.source, move.key)
        copy = await self._get(move.target, move.key)
        uid = move.custom["metadata"]["uid"]
        has_copy = copy is not None and _read_source(copy)[0] == uid
        if custom is None or custom["metadata"]["uid"] != uid:
            return MOVED if has_copy else DELETED
        if copy is None or not has_copy or copy["metadata"].get("deletionTimestamp"):
            raise _NotMovable("its copy was deleted meanwhile; run the command again")
        meta = custom["metadata"]
        if meta.get("deletionTimestamp"):
            return MOVED
        if change := _find_later_changes(custom, copy):
            await self._client.patch(move.target, move.key, change)
        if POD_GROUP_PROTECTION_FINALIZER in (meta.get("finalizers") or ()):
            # The copy protects the pods from here on.
            change = {
                "resourceVersion": meta["resourceVersion"],
                "finalizers": [
                    one for one in meta["finalizers"] if one != POD_GROUP_PROTECTION_FINALIZER
                ],
            }
            meta = (await self._client.patch(move.source, move.key, {"metadata": change}))[
                "metadata"
            ]
        await self._client.delete(
            move.source,
            move.key,
            uid=meta["uid"],
            version=meta["resourceVersion"],
            propagation="Orphan",
        )
        return MOVED

    async def _get(self, kind: Kind, key: Key) -> Object | None:
        """Return an object; None if it does not exist."""
        try:
            return await self._client.get(kind, key)
        except NotFound:
            return None

    def _add(self, kind: Kind, key: Key, state: str, *, reason: str = "") -> None:
        result = MigrationResult(kind, key, state, reason)
        self._results.append(result)
        self._report(result)


def _key(obj: Object) -> Key:
    return Key(obj["metadata"].get("namespace", ""), obj["metadata"]["name"])


def _describe_source(custom: Object) -> tuple[str, str, str]:
    """Return uid, generation and bind intent of a custom resource."""
    meta = custom["metadata"]
    intent = (meta.get("annotations") or {}).get(BINDING_INTENT_ANNOTATION, "")
    return meta["uid"], str(meta.get("generation", 0)), intent


def _read_source(copy: Object) -> tuple[str, str, str]:
    """Return the same of the custom resource that a copy was made from; "" for none."""
    value = (copy["metadata"].get("annotations") or {}).get(MIGRATED_FROM_ANNOTATION, "")
    uid, generation, intent = (*value.split("/"), "", "", "")[:3]
    return uid, generation, intent


def _find_later_changes(custom: Object, copy: Object) -> Object:
    """Return what was written to a custom resource after it was copied, as a change of the copy.

    A scheduler or controller that had not seen the copy may have opened a bind intent or changed
    `minCount`. What was copied before is not written again: it may have changed in the copy.
    """
    now, then = _describe_source(custom), _read_source(copy)
    if now == then:
        return {}
    annotations = {MIGRATED_FROM_ANNOTATION: "/".join(now)}
    change: Object = {"metadata": {"annotations": annotations}}
    if now[2] and now[2] != then[2]:
        annotations[BINDING_INTENT_ANNOTATION] = now[2]
    policy = custom["spec"].get("schedulingPolicy")
    if now[1] != then[1] and policy:
        change["spec"] = {"schedulingPolicy": policy}
    return change
