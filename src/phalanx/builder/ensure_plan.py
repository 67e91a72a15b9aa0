"""Inputs and results of `ensure`: observed objects, wanted groups, operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from phalanx.api.kinds import COMPOSITE_POD_GROUP, POD_GROUP, WORKLOAD, Kind
from phalanx.api.meta import ObjectMeta
from phalanx.api.scheduling import CompositePodGroup, PodGroup, Workload
from phalanx.api.wire import MERGE_PATCH, Object
from phalanx.builder.discovery import Fallback, ObjectFound
from phalanx.builder.groups import Template

#: The name of a template, and the instance of it.
GroupKey = tuple[str, str]
Group = PodGroup | CompositePodGroup


@dataclass(frozen=True, slots=True)
class CreateObject:
    """Create an object. If one of its name exists and the owner does not control it, fail."""

    kind: Kind
    obj: Object


@dataclass(frozen=True, slots=True)
class PatchObject:
    """Patch an object, conditional on its uid."""

    kind: Kind
    meta: ObjectMeta
    change: Object
    content: str = MERGE_PATCH


@dataclass(frozen=True, slots=True)
class DeleteObject:
    """Delete an object, conditional on its uid."""

    kind: Kind
    meta: ObjectMeta


ObjectOperation = CreateObject | PatchObject | DeleteObject


@dataclass(frozen=True, slots=True)
class GroupInstance:
    """A group that an owner wants: of a template, and of one `instance` if there are several.

    Groups above it are wanted too; `parent_instance` is their instance. `pod_groups` are the groups
    that existing pods of this instance name, "" for pods without one: such pods cannot join another
    group. `members_to_run` says how many members of the group of a name are still to run; without
    it the quorum of a gang is always its `minCount`. `name` replaces the usual name. `source`
    replaces the template of the Workload, for a group that keeps the fields of an earlier one.
    """

    template: str = ""
    instance: str = ""
    parent_instance: str = ""
    pod_groups: frozenset[str] = frozenset()
    members_to_run: Callable[[str], int] | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    source: Template | None = None

    @property
    def key(self) -> GroupKey:
        """Template and instance."""
        return self.template, self.instance


@dataclass(frozen=True, slots=True)
class ObservedObjects:
    """Workloads, PodGroups and CompositePodGroups in the namespace of an owner; others are ignored.

    A caller with indexes passes the Workloads that refer to the owner, and the groups that refer to
    these Workloads. A caller without passes all.
    """

    workloads: Sequence[Workload] = ()
    pod_groups: Sequence[PodGroup] = ()
    composites: Sequence[CompositePodGroup] = ()

    @classmethod
    def from_objects(cls, objects: Iterable[Object]) -> ObservedObjects:
        """Decode objects as the API server returns them; other kinds are ignored.

        Workloads and PodGroups have the version v1beta1, CompositePodGroups v1alpha3.
        """
        found: dict[str, list[Object]] = {}
        for obj in objects:
            found.setdefault(obj.get("kind", ""), []).append(obj)
        return cls(
            [msgspec.convert(one, Workload) for one in found.get(WORKLOAD.name, ())],
            [msgspec.convert(one, PodGroup) for one in found.get(POD_GROUP.name, ())],
            [
                msgspec.convert(one, CompositePodGroup)
                for one in found.get(COMPOSITE_POD_GROUP.name, ())
            ],
        )

    def with_created(self, created: Object) -> ObservedObjects:
        """Return these objects and one that was just created."""
        other = ObservedObjects.from_objects([created])
        return ObservedObjects(
            [*self.workloads, *other.workloads],
            [*self.pod_groups, *other.pod_groups],
            [*self.composites, *other.composites],
        )

    @property
    def all_groups(self) -> list[Group]:
        """The groups of both kinds, CompositePodGroups first."""
        return [*self.composites, *self.pod_groups]

    def groups_of(self, workload: Workload) -> Iterator[Group]:
        """Yield the groups that refer to a Workload, CompositePodGroups first."""
        meta = workload.metadata
        for group in self.all_groups:
            ref = group.spec.workload_ref
            if (
                ref is not None
                and ref.workload_name == meta.name
                and group.metadata.namespace == meta.namespace
            ):
                yield group


@dataclass(frozen=True, slots=True)
class EnsurePlan:
    """What to write, and what there is.

    Once `is_ready`, pods may be created: those of an instance name the group in `groups`, or no
    group if there is none. Operations of a ready plan are resizes, which may come before or after.
    `fallback` says why there are no groups although the owner wants them.
    """

    operations: tuple[ObjectOperation, ...] = ()
    is_ready: bool = False
    fallback: Fallback | None = None
    workload: ObjectFound[Workload] | None = None
    groups: Mapping[GroupKey, Group] = field(default_factory=dict)

    def group_name(self, template: str, instance: str = "") -> str:
        """Return the name of an existing group; "" if there is none."""
        group = self.groups.get((template, instance))
        return group.metadata.name if group else ""
