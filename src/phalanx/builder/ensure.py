"""Plans the writes that give an owner its Workload and groups: a pure function of what exists.

    owner, observed objects ─▶ ensure ─▶ EnsurePlan: operations in order, the groups of the pods

The plan is what every controller of workloads needs: it discovers objects by reference, creates the
missing ones in order (Workload, CompositePodGroups, PodGroups), resizes gangs, publishes how many
members are still to run, gives way to the user's own objects, and deletes groups that are no longer
wanted. A caller performs the operations, observes the result and plans again, until the plan
`is_ready`. Groups refer to the uid of their Workload, and so are planned once the Workload exists.

Planning again on the same objects gives the same operations; on stale objects it repeats some of
them, which fail with AlreadyExists or NotFound and do no harm.

    observed                       operations
    nothing                        create the Workload
    Workload                       create root, driver, workers
    all, workers were 4, now 8     patch the Workload, patch workers
    ours and one of the user's     delete ours, unless pods have started with it
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import msgspec

from phalanx.api.kinds import COMPOSITE_POD_GROUP, POD_GROUP, WORKLOAD, Kind
from phalanx.api.meta import controller_of
from phalanx.api.scheduling import (
    MANAGED_BY_ANNOTATION,
    MEMBERS_TO_RUN_ANNOTATION,
    SYSTEM_PRIORITY_CLASSES,
    TEMPLATES_ANNOTATION,
    CompositePodGroup,
    PodGroup,
    Workload,
)
from phalanx.api.validation.pod_group import COMPOSITE_POD_GROUP_TEMPLATES, POD_GROUP_TEMPLATES
from phalanx.api.wire import STRATEGIC_PATCH, Object
from phalanx.builder.discovery import (
    Fallback,
    LookupResult,
    ObjectFound,
    ObjectMissing,
    ObjectUnusable,
    find_usable,
)
from phalanx.builder.ensure_plan import (
    CreateObject,
    DeleteObject,
    EnsurePlan,
    Group,
    GroupInstance,
    GroupKey,
    ObjectOperation,
    ObservedObjects,
    PatchObject,
)
from phalanx.builder.groups import Template, build_group, first_template, templates
from phalanx.builder.names import pod_group_name
from phalanx.builder.ownership import Link, controller_reference, owner_reference
from phalanx.builder.template_changes import (
    differs_beyond_sizes,
    digest_templates,
    gang_size,
    resize_templates,
)


def kind_of_group(group: Group) -> Kind:
    """Return the kind of a decoded group."""
    return POD_GROUP if isinstance(group, PodGroup) else COMPOSITE_POD_GROUP


def workload_object(workload: Workload) -> Object:
    """Encode the fields of a Workload that the builder reads."""
    meta, spec = workload.metadata, workload.spec
    return {
        "apiVersion": WORKLOAD.api_version,
        "kind": WORKLOAD.name,
        "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
        "spec": {
            POD_GROUP_TEMPLATES: list(spec.pod_group_templates or ()),
            COMPOSITE_POD_GROUP_TEMPLATES: list(spec.composite_pod_group_templates or ()),
        },
    }


def find_own_workload(owner: Object, workloads: Sequence[Workload]) -> LookupResult[Workload]:
    """Find the Workload of a root: the only usable one whose `controllerRef` is the owner."""
    reference = controller_reference(owner)
    return find_workload(reference, owner["metadata"].get("namespace", ""), workloads)


def find_workload(
    reference: Object, namespace: str, workloads: Sequence[Workload]
) -> LookupResult[Workload]:
    """Find the only usable Workload of an owner by the reference to that owner."""
    group = reference["apiVersion"].rpartition("/")[0]
    identity = group, reference["kind"], reference["name"]
    candidates = [
        one
        for one in workloads
        if one.controller_identity == identity and one.metadata.namespace == namespace
    ]
    return find_usable(
        candidates, reference["uid"], plural="Workloads", owner_kind=reference["kind"]
    )


def ensure_owned(
    owner: Object,
    observed: ObservedObjects,
    groups: Sequence[GroupInstance] | None,
    *,
    build: Callable[[], Object],
    sizes: Callable[[], Mapping[str, int]],
    is_single: bool,
    manager: str,
    is_started: bool,
    replaces_workload: bool = False,
    kept: Collection[str] = (),
) -> EnsurePlan:
    """Plan the objects of a root; `WorkloadBuilder.ensure` describes the arguments.

    `build` builds the Workload, `sizes` returns the size of each gang by template, and `is_single`
    if the tree is a single group of pods.
    """
    found = find_own_workload(owner, observed.workloads)
    are_named = groups is not None and all(one.template for one in groups)
    if isinstance(found, ObjectFound) and is_single and not are_named:
        found = _check_single_template(owner, found)
    match found:
        case ObjectUnusable(fallback, redundant):
            return _give_way(owner, observed, fallback, redundant=redundant, is_started=is_started)
        case ObjectFound() as workload:
            if workload.is_owned and replaces_workload and _is_outdated(workload.obj, build()):
                deletion = DeleteObject(WORKLOAD, workload.obj.metadata)
                return EnsurePlan((deletion,), workload=workload)
            planner = _GroupPlanner(
                owner,
                observed,
                workload,
                manager=manager,
                is_started=is_started,
                outlives_workload=replaces_workload,
                kept=kept,
            )
            return planner.plan(groups, sizes() if workload.is_owned else {})
    new = _mark_managed(build(), manager)
    if replaces_workload:
        digest = {TEMPLATES_ANNOTATION: digest_templates(new["spec"])}
        new["metadata"]["annotations"] = {**new["metadata"].get("annotations", {}), **digest}
    planned = _decode(new)
    planner = _GroupPlanner(
        owner, observed, ObjectFound(planned, is_owned=True), manager=manager, is_started=is_started
    )
    blocked = planner.find_blocked(groups)
    return blocked or EnsurePlan((CreateObject(WORKLOAD, new),))


def ensure_linked(
    owner: Object,
    link: Link,
    observed: ObservedObjects,
    *,
    groups: Sequence[GroupInstance] | None = None,
    ancestors: Sequence[Object] = (),
    manager: str = "",
    is_started: bool = False,
    kept: Collection[str] = (),
) -> EnsurePlan:
    """Plan the groups of a child in the Workload of its controller, by the link to a template.

    The template may be one of a composite: then the groups below it are the child's too. Without
    `groups` there is one of each. The Workload is that of the controller of `owner`, of the first
    of the `ancestors` that has one (references to the controllers above, nearest first), or of the
    CompositePodGroup that the link names. `kept` are names of groups that are not deleted.
    """
    match find_linked_workload(owner, link, observed, ancestors=ancestors):
        case ObjectUnusable(fallback):
            return EnsurePlan(is_ready=True, fallback=fallback)
        case ObjectFound(workload):
            # The Workload may outlive the child: the child does not own it.
            planner = _GroupPlanner(
                owner,
                observed,
                ObjectFound(workload, is_owned=False),
                manager=manager,
                is_started=is_started,
                link=link,
                kept=kept,
            )
            return planner.plan(groups, {})
    text = "The Workload of its parent was not found"
    return EnsurePlan(is_ready=True, fallback=Fallback("ParentWorkloadNotFound", text))


def find_linked_workload(
    owner: Object, link: Link, observed: ObservedObjects, *, ancestors: Sequence[Object] = ()
) -> LookupResult[Workload]:
    """Find the Workload of the controller of a child, or of the nearest controller above.

    Without either, it is that of the CompositePodGroup that the link names.
    """
    direct = controller_of(owner)
    namespace = owner["metadata"].get("namespace", "")
    for reference in ([direct] if direct else []) + list(ancestors):
        found = find_workload(reference, namespace, observed.workloads)
        if not isinstance(found, ObjectMissing):
            return found
    for parent in observed.composites:
        ref = parent.spec.workload_ref
        if ref is None or (parent.metadata.namespace, parent.metadata.name) != (
            namespace,
            link.parent,
        ):
            continue
        for workload in observed.workloads:
            if workload.metadata.key == (namespace, ref.workload_name):
                return ObjectFound(workload, is_owned=False)
    return ObjectMissing()


def list_linked_templates(workload: Workload, link: Link) -> list[str]:
    """List the templates of PodGroups that a link names: one, or those below a composite one."""
    encoded, below = workload_object(workload), set[str]()
    top, leaves = link.template or first_template(encoded), []
    for template in templates(encoded).values():
        if template.name == top or template.parent in below:
            below.add(template.name)
            leaves += [template.name] if template.kind is POD_GROUP else []
    return leaves


def plan_deletion(
    owner: Object, observed: ObservedObjects, *, keep_workload: bool = False
) -> list[ObjectOperation]:
    """Plan the deletion of the groups that an owner controls, then of its Workloads.

    The garbage collector does the same after the owner is deleted; this is for an owner that stays,
    such as one that is suspended, or that no longer wants groups.
    """
    uid = owner["metadata"].get("uid", "")
    groups = [
        DeleteObject(kind_of_group(one), one.metadata)
        for one in reversed(observed.all_groups)
        if one.metadata.is_controlled_by(uid) and not one.metadata.deletion_timestamp
    ]
    workloads = [
        DeleteObject(WORKLOAD, one.metadata)
        for one in observed.workloads
        if one.metadata.is_controlled_by(uid) and not one.metadata.deletion_timestamp
    ]
    return [*groups, *([] if keep_workload else workloads)]


def _is_outdated(workload: Workload, wanted: Object) -> bool:
    """Whether a Workload was created with other templates than the wanted ones."""
    digest = workload.metadata.annotations.get(TEMPLATES_ANNOTATION)
    if digest is not None:
        return digest != digest_templates(wanted["spec"])
    return differs_beyond_sizes(workload_object(workload)["spec"], wanted["spec"])


def _check_single_template(
    owner: Object, found: ObjectFound[Workload]
) -> ObjectFound[Workload] | ObjectUnusable[Workload]:
    number, name = found.obj.pod_group_template_count, found.obj.metadata.name
    if number == 1:
        return found
    text = f"Workload {name} has {number} PodGroupTemplates, a {owner['kind']} needs exactly 1"
    return ObjectUnusable(Fallback("MalformedWorkload", text))


def _give_way(
    owner: Object,
    observed: ObservedObjects,
    fallback: Fallback,
    *,
    redundant: Workload | None,
    is_started: bool,
) -> EnsurePlan:
    """Use no group; but delete our own redundant Workload if nothing has started with it."""
    uid = owner["metadata"].get("uid", "")
    groups = list(observed.groups_of(redundant)) if redundant else []
    is_used = is_started or any(not one.metadata.is_controlled_by(uid) for one in groups)
    if redundant is None or is_used:
        return EnsurePlan(is_ready=True, fallback=fallback)
    # First the groups, later the Workload: else a second group could be created.
    deletions: Iterable[ObjectOperation] = (
        DeleteObject(kind_of_group(one), one.metadata)
        for one in groups
        if not one.metadata.deletion_timestamp
    )
    last = () if groups else (DeleteObject(WORKLOAD, redundant.metadata),)
    return EnsurePlan((*deletions, *last), fallback=fallback)


def _mark_managed(obj: Object, manager: str, wanted: GroupInstance | None = None) -> Object:
    """Set annotations and labels of a new object: without the first it would seem the user's."""
    annotations = {MANAGED_BY_ANNOTATION: manager} if manager else {}
    annotations |= wanted.annotations if wanted else {}
    values = {"annotations": annotations, "labels": dict(wanted.labels) if wanted else {}}
    obj["metadata"] |= {field: value for field, value in values.items() if value}
    return obj


def _decode(workload: Object) -> Workload:
    return msgspec.convert(workload, Workload)


class _GroupPlanner:
    """Plans the groups of an owner in a Workload that exists, or is about to."""

    def __init__(
        self,
        owner: Object,
        observed: ObservedObjects,
        workload: ObjectFound[Workload],
        *,
        manager: str,
        is_started: bool,
        link: Link | None = None,
        outlives_workload: bool = False,
        kept: Collection[str] = (),
    ) -> None:
        self._owner, self._workload, self._link, self._kept = owner, workload, link, kept
        self._outlives_workload = outlives_workload
        self._uid = owner["metadata"].get("uid", "")
        self._manager, self._is_started = manager, is_started
        self._encoded = workload_object(workload.obj)
        self._templates = templates(self._encoded)
        self._observed = list(observed.groups_of(workload.obj))
        self._found: dict[GroupKey, Group] = {}
        #: The wanted groups, and those above them.
        self._wanted: dict[GroupKey, GroupInstance] = {}
        #: The linked template; "" for a root. A link without a template means the first one.
        self._top = (link.template or first_template(self._encoded)) if link else ""
        #: The templates of the owner: all, or the linked one and those below it.
        self._below = self._templates_below(self._top)

    def plan(self, groups: Sequence[GroupInstance] | None, sizes: Mapping[str, int]) -> EnsurePlan:
        """Plan the creation, resizing and deletion of groups."""
        wanted = self._complete(groups)
        if isinstance(wanted, Fallback):
            return EnsurePlan(is_ready=True, fallback=wanted, workload=self._workload)
        creations: list[ObjectOperation] = []
        changes: list[ObjectOperation] = []
        if resized := resize_templates(self._encoded["spec"], sizes):
            patch = PatchObject(WORKLOAD, self._workload.obj.metadata, {"spec": resized})
            changes.append(patch)
        is_waiting = False
        for one in wanted:
            match self._find(one):
                case ObjectUnusable(fallback, redundant):
                    return self._give_way(fallback, redundant)
                case ObjectFound(group, is_owned):
                    self._found[one.key] = group
                    name = group.metadata.name
                    if group.metadata.deletion_timestamp and name not in one.pod_groups:
                        is_waiting = True
                    elif is_owned and isinstance(group, PodGroup) and group.is_gang:
                        changes += self._resize_group(one, group, sizes)
                case ObjectMissing():
                    if blocked := self._find_reason_against(one):
                        return self._without_groups(blocked)
                    creations.append(CreateObject(self._template(one).kind, self._build(one)))
        changes += self._limit_composites()
        changes += self._delete_unwanted()
        return EnsurePlan(
            (*creations, *changes),
            is_ready=not creations and not is_waiting,
            workload=self._workload,
            groups=self._found,
        )

    def find_blocked(self, groups: Sequence[GroupInstance] | None) -> EnsurePlan | None:
        """Return the plan without groups if one must not be created; None if all may be."""
        wanted = self._complete(groups)
        if isinstance(wanted, Fallback):
            return EnsurePlan(is_ready=True, fallback=wanted)
        for one in wanted:
            if blocked := self._find_reason_against(one):
                return self._without_groups(blocked)
        return None

    def _without_groups(self, reason: Fallback) -> EnsurePlan:
        return EnsurePlan(is_ready=True, fallback=reason if reason.reason else None)

    def _complete(self, groups: Sequence[GroupInstance] | None) -> list[GroupInstance] | Fallback:
        """Return the wanted groups and those above them, parents first; or why there are none."""
        below = self._below
        if groups is None:
            groups = [GroupInstance(name) for name in below or (self._top,)]
        elif len(groups) == 1 and not groups[0].template:
            leaves = [one.name for one in below.values() if one.kind is POD_GROUP]
            if len(leaves) > 1:
                text = f"{len(leaves)} PodGroupTemplates are below {self._top}, "
                text += f"a {self._owner['kind']} needs exactly 1"
                return Fallback("AmbiguousTemplate", text)
            groups = [replace(groups[0], template=leaves[0] if leaves else self._top)]
        self._wanted = wanted = dict[GroupKey, GroupInstance]()
        for one in groups:
            if one.source is None and one.template not in below:
                name, have = self._workload.obj.metadata.name, " ".join(self._templates)
                text = f'template "{one.template}" not found in workload "{name}" (have [{have}])'
                return Fallback("TemplateNotFound", text)
            wanted[one.key] = one
            parent = self._template(one).parent
            while parent in below:
                above = GroupInstance(parent, one.parent_instance, one.parent_instance)
                wanted.setdefault(above.key, above)
                parent = self._templates[parent].parent
        order = {name: index for index, name in enumerate(below)}
        return sorted(
            wanted.values(),
            key=lambda one: (
                self._template(one).kind is POD_GROUP,
                order.get(one.template, len(order)),
            ),
        )

    def _template(self, wanted: GroupInstance) -> Template:
        return wanted.source or self._templates[wanted.template]

    def _find_reason_against(self, wanted: GroupInstance) -> Fallback | None:
        """Return why a group must not be created; None if it may be.

        A group cannot have a system priority class. And pods cannot join a group later: if there
        are pods, only the group that they already name is created again. Pods without any group
        have no reason to state.
        """
        template = self._template(wanted)
        priority_class = template.value.get("priorityClassName")
        if priority_class in SYSTEM_PRIORITY_CLASSES:
            text = f"A {template.kind.name} cannot have the priority class {priority_class}"
            return Fallback("PriorityTooHigh", text)
        if not wanted.pod_groups or wanted.pod_groups == {self._name(wanted)}:
            return None
        if not any(wanted.pod_groups):
            return _NO_REASON
        text = "The Workload or PodGroup of its pods was deleted"
        return Fallback("SchedulingObjectsLost", text)

    def _templates_below(self, top: str) -> dict[str, Template]:
        below: dict[str, Template] = {}
        for name, template in self._templates.items():
            if not top or name == top or template.parent in below:
                below[name] = template
        return below

    def _find(
        self, wanted: GroupInstance
    ) -> LookupResult[PodGroup] | LookupResult[CompositePodGroup]:
        kind = self._template(wanted).kind
        candidates = [
            group
            for group in self._observed
            if kind_of_group(group) is kind
            and (
                len(self._below) == 1
                or (ref.template_name if (ref := group.spec.workload_ref) else "")
                == wanted.template
            )
            and (self._link is None or group.metadata.is_controlled_by(self._uid))
            and (not wanted.instance or group.metadata.name == self._name(wanted))
        ]
        return find_usable(  # type: ignore[type-var, return-value]
            candidates,  # all of one kind
            self._uid,
            plural=f"{kind.name}s",
            owner_kind=self._owner["kind"],
            include_terminating=True,
        )

    def _name(self, wanted: GroupInstance) -> str:
        if wanted.name:
            return wanted.name
        workload, instance = self._workload.obj.metadata.name, wanted.instance
        if self._link is None:
            return pod_group_name(workload, wanted.template, instance)
        # Children that share a template have groups of their own.
        child: str = self._owner["metadata"]["name"]
        if not instance:
            return pod_group_name(workload, wanted.template, child, shown=False)
        return pod_group_name(workload, wanted.template, f"{child}-{instance}")

    def _build(self, wanted: GroupInstance) -> Object:
        template = self._template(wanted)
        parent = self._link.parent if self._link else ""
        if template.parent and wanted.template != self._top:
            above = template.parent, wanted.parent_instance
            found = self._found.get(above)
            planned = self._wanted.get(above) or GroupInstance(*above)
            parent = found.metadata.name if found else self._name(planned)
        owners = [controller_reference(self._owner)]
        is_lasting = self._workload.is_owned and not self._outlives_workload
        if is_lasting and self._workload.obj.metadata.uid:
            owners.append(owner_reference(self._encoded))
        group = build_group(
            self._encoded,
            template,
            instance="",
            name=self._name(wanted),
            parent=parent,
            owners=owners,
        )
        return _mark_managed(group, self._manager, wanted)

    def _give_way(
        self, fallback: Fallback, redundant: PodGroup | CompositePodGroup | None
    ) -> EnsurePlan:
        """Use no group; but delete our own redundant group if nothing has started with it."""
        if redundant is None or self._is_started:
            return EnsurePlan(is_ready=True, fallback=fallback, workload=self._workload)
        deletion = DeleteObject(kind_of_group(redundant), redundant.metadata)
        return EnsurePlan((deletion,), fallback=fallback, workload=self._workload)

    def _delete_unwanted(self) -> Iterator[ObjectOperation]:
        """Delete groups of the owner that are no longer wanted; pods in them keep them alive."""
        found = {group.metadata.uid for group in self._found.values()}
        names = {*self._kept, *map(self._name, self._wanted.values())}
        for group in reversed(self._observed):
            meta = group.metadata
            is_ours = meta.is_controlled_by(self._uid) and not meta.deletion_timestamp
            if is_ours and meta.uid not in found and meta.name not in names:
                yield DeleteObject(kind_of_group(group), meta)

    def _resize_group(
        self, wanted: GroupInstance, group: PodGroup, sizes: Mapping[str, int]
    ) -> Iterator[ObjectOperation]:
        meta, current = group.metadata, gang_size(self._template(wanted).value)
        if current is not None and wanted.source is None:
            current = sizes.get(wanted.template, current)
        size = current or group.min_count
        if size != group.min_count:
            change: Object = {"spec": {"schedulingPolicy": {"gang": {"minCount": size}}}}
            yield PatchObject(POD_GROUP, meta, change, STRATEGIC_PATCH)
        if wanted.members_to_run is not None:
            yield from _publish_members_to_run(group, wanted.members_to_run(meta.name), size)

    def _limit_composites(self) -> Iterator[ObjectOperation]:
        """Publish how many groups below each gang of groups have members that are still to run."""
        for wanted in self._wanted.values():
            group = self._found.get(wanted.key)
            is_ours = group is not None and group.metadata.is_controlled_by(self._uid)
            if is_ours and isinstance(group, CompositePodGroup) and group.is_gang:
                children = [self._count_to_run(one) for one in self._children_of(wanted)]
                # With fewer groups than the gang needs, other owners have the rest.
                if len(children) >= group.min_group_count and None not in children:
                    count = sum(bool(left) for left in children)
                    yield from _publish_members_to_run(group, count, group.min_group_count)

    def _children_of(self, wanted: GroupInstance) -> list[GroupInstance]:
        return [
            one
            for one in self._wanted.values()
            if one is not wanted and (self._template(one).parent, one.parent_instance) == wanted.key
        ]

    def _count_to_run(self, wanted: GroupInstance) -> int | None:
        """Count the members of a group, or below it, that are still to run; None if unknown."""
        if self._template(wanted).kind is POD_GROUP:
            group = self._found.get(wanted.key)
            name = group.metadata.name if group else self._name(wanted)
            return wanted.members_to_run(name) if wanted.members_to_run else None
        below = [self._count_to_run(one) for one in self._children_of(wanted)]
        return None if None in below else sum(count or 0 for count in below)


def _publish_members_to_run(group: Group, members: int, size: int) -> Iterator[ObjectOperation]:
    """Annotate a gang of which fewer members than its size are still to run."""
    meta, text = group.metadata, encode_members_to_run(members, size)
    if meta.annotations.get(MEMBERS_TO_RUN_ANNOTATION) != text:
        annotations = {MEMBERS_TO_RUN_ANNOTATION: text}
        yield PatchObject(kind_of_group(group), meta, {"metadata": {"annotations": annotations}})


_NO_REASON = Fallback("", "")


def encode_members_to_run(members: int, size: int) -> str | None:
    """Encode the members-to-run annotation of a gang; None if it needs no smaller quorum."""
    return str(members) if 0 < members < size else None


def has_composite_template(workload: Workload, name: str) -> bool:
    """Whether a Workload has a template of CompositePodGroups with this name."""
    found = templates(workload_object(workload)).get(name)
    return found is not None and found.kind is COMPOSITE_POD_GROUP
