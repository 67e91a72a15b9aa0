"""Where a server keeps groups of pods: one table of kinds that are read as those of
`scheduling.k8s.io`.

A server without the workload APIs has custom resources instead: our own, which have the fields of
`scheduling.k8s.io/v1beta1`, and the PodGroups that scheduler-plugins and Volcano define. Each is a
row: which kind it is read as, how it is decoded and converted, how pods name their group, and how
its status is written. The rows are applied where objects are decoded and requests are sent
(`client/workload_sources.py`), so that the scheduler and the controllers know one PodGroup only.

    kind                                     a pod names its group by          status
    PodGroup.scheduling.k8s.io               spec.schedulingGroup              conditions, counts
    PodGroup.scheduling.phalanx.dev          label …phalanx.dev/pod-group      the same
    PodGroup.scheduling.x-k8s.io             label …x-k8s.io/pod-group         phase, counts
    PodGroup.scheduling.volcano.sh           annotation …k8s.io/group-name     phase, conditions

If several kinds have a group of the same namespace and name, the first row wins.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from phalanx.api.batch import Job
from phalanx.api.core import Pod, SchedulingGroup
from phalanx.api.kinds import (
    COMPOSITE_POD_GROUP,
    GROUP_BINDING,
    JOB,
    POD,
    POD_GROUP,
    WORKLOAD,
    Kind,
)
from phalanx.api.meta import ObjectMeta, find_condition
from phalanx.api.other_kinds import PriorityClass
from phalanx.api.scheduling import (
    MEMBERS_TO_RUN_ANNOTATION,
    POD_GROUP_SCHEDULED,
    PRIORITY_FROM_MEMBERS_ANNOTATION,
    SYSTEM_PRIORITY_CLASSES,
    CompositePodGroup,
    CompositePodGroupSpec,
    CompositePodGroupStatus,
    GangPolicy,
    PodGroup,
    PodGroupSpec,
    PodGroupStatus,
    SchedulingPolicy,
    Workload,
)
from phalanx.api.scheme import struct_of
from phalanx.api.wire import Object

#: The API group of our custom resources.
CUSTOM_GROUP = "scheduling.phalanx.dev"
#: The label by which a pod names its PodGroup where `spec.schedulingGroup` is dropped.
POD_GROUP_LABEL = f"{CUSTOM_GROUP}/pod-group"
#: On a Job or its pod template, where the server drops `spec.scheduling`: `gang`, its `minCount`,
#: and the node label of which all members must have the same value.
POLICY_ANNOTATION = f"{CUSTOM_GROUP}/policy"
MIN_COUNT_ANNOTATION = f"{CUSTOM_GROUP}/min-count"
TOPOLOGY_KEY_ANNOTATION = f"{CUSTOM_GROUP}/topology"
GANG = "gang"
#: Longer numbers are larger than any parallelism.
_MAX_COUNT_DIGITS = 6

CUSTOM_POD_GROUP = Kind(
    CUSTOM_GROUP, "v1", "PodGroup", "podgroups", POD_GROUP.schema,
    singular="podgroup", subresources=("status",), generation=True,
)  # fmt: skip
CUSTOM_COMPOSITE_POD_GROUP = Kind(
    CUSTOM_GROUP, "v1", "CompositePodGroup", "compositepodgroups", COMPOSITE_POD_GROUP.schema,
    singular="compositepodgroup", subresources=("status",), generation=True,
)  # fmt: skip
CUSTOM_WORKLOAD = Kind(
    CUSTOM_GROUP, "v1", "Workload", "workloads", WORKLOAD.schema,
    singular="workload", generation=True,
)  # fmt: skip
COSCHEDULING_POD_GROUP = Kind(
    "scheduling.x-k8s.io", "v1alpha1", "PodGroup", "podgroups", "", subresources=("status",)
)  # fmt: skip
VOLCANO_POD_GROUP = Kind("scheduling.volcano.sh", "v1beta1", "PodGroup", "podgroups", "")
#: Kinds whose definition has a status subresource in some versions only: as what discovery lists
#: it. Without it the status is written with the rest of the object; with it, it would be dropped.
STATUS_SUBRESOURCES: Mapping[Kind, Kind] = {
    VOLCANO_POD_GROUP: Kind(
        VOLCANO_POD_GROUP.group, VOLCANO_POD_GROUP.version, "PodGroup", "podgroups/status", ""
    )
}


class CustomGroup(Struct, frozen=True):
    """A PodGroup or CompositePodGroup of our custom resources; `spec` and `status` as JSON."""

    metadata: ObjectMeta
    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}


class CoschedulingSpec(Struct, frozen=True, rename="camel"):
    """The spec of a PodGroup of scheduler-plugins, as far as it says what a gang is."""

    min_member: int = 1


class CoschedulingStatus(Struct, frozen=True):
    """The counts in the status of a PodGroup of scheduler-plugins."""

    running: int = 0
    succeeded: int = 0
    failed: int = 0


class CoschedulingPodGroup(Struct, frozen=True):
    """A PodGroup of scheduler-plugins."""

    metadata: ObjectMeta
    spec: CoschedulingSpec = CoschedulingSpec()
    status: CoschedulingStatus = CoschedulingStatus()


class VolcanoSpec(Struct, frozen=True, rename="camel"):
    """The spec of a PodGroup of Volcano, as far as it says what a gang is."""

    min_member: int = 1
    min_task_member: dict[str, int] = {}
    priority_class_name: str = ""
    queue: str = ""
    network_topology: dict[str, Any] = {}
    sub_group_policy: tuple[Any, ...] = ()
    topology_affinity: dict[str, Any] = {}


class VolcanoStatus(CoschedulingStatus, frozen=True):
    """The status of a PodGroup of Volcano: its phase, and the counts of scheduler-plugins."""

    phase: str = ""


class VolcanoPodGroup(Struct, frozen=True):
    """A PodGroup of Volcano."""

    metadata: ObjectMeta
    spec: VolcanoSpec = VolcanoSpec()
    status: VolcanoStatus = VolcanoStatus()


def _no_warning(obj: Any) -> str:
    return ""


@dataclass(frozen=True, slots=True, eq=False)
class WorkloadSource:
    """A kind that is read as one of `scheduling.k8s.io`: as its `target`.

    Without `convert` its objects are decoded to the struct of the target. A pod names its group by
    one of `pod_labels` or `pod_annotations`. Without `encode_status` the status is that of the
    target. `warn` says which part of an object has no effect, "" if all has. `compat` is the name
    of the project whose kind it is; only kinds without one are read unless they are asked for.
    """

    kind: Kind
    target: Kind
    struct: type[Any]
    convert: Callable[[Any], Any] | None = None
    pod_labels: tuple[str, ...] = ()
    pod_annotations: tuple[str, ...] = ()
    encode_status: Callable[[PodGroup], Object] | None = None
    warn: Callable[[Any], str] = _no_warning
    compat: str = ""

    @property
    def is_native(self) -> bool:
        """Whether it is the kind of `scheduling.k8s.io` itself."""
        return self.kind is self.target


#: The mark of a group whose members must have the priority of its class, as in `scheduling.k8s.io`.
_CLASS_COUNTS = "class"


def _with_member_priority(meta: ObjectMeta, mark: str = "") -> ObjectMeta:
    """Mark that no admission resolved the priority of a group: see `resolve_priority`."""
    return replace(meta, annotations={**meta.annotations, PRIORITY_FROM_MEMBERS_ANNOTATION: mark})


def _read_custom_pod_group(obj: CustomGroup) -> PodGroup:
    meta = obj.metadata
    if "priority" not in obj.spec:
        mark = _CLASS_COUNTS if obj.spec.get("priorityClassName") else ""
        meta = _with_member_priority(meta, mark)
    return PodGroup(
        meta, msgspec.convert(obj.spec, PodGroupSpec), msgspec.convert(obj.status, PodGroupStatus)
    )


def _read_custom_composite(obj: CustomGroup) -> CompositePodGroup:
    meta = obj.metadata if "priority" in obj.spec else _with_member_priority(obj.metadata)
    return CompositePodGroup(
        meta,
        msgspec.convert(obj.spec, CompositePodGroupSpec),
        msgspec.convert(obj.status, CompositePodGroupStatus),
    )


GroupT = TypeVar("GroupT", bound=PodGroup | CompositePodGroup)


def resolve_priority(
    group: GroupT, members: Iterable[Pod], classes: Mapping[str, PriorityClass]
) -> GroupT:
    """Return a group that no admission gave a priority with that of its class.

    Without a class that groups may have, it has the lowest priority of its members.
    """
    meta = group.metadata
    mark = meta.annotations.get(PRIORITY_FROM_MEMBERS_ANNOTATION)
    if mark is None:
        return group
    spec, found = group.spec, classes.get(group.spec.priority_class_name)
    if found is not None and found.metadata.name not in SYSTEM_PRIORITY_CLASSES:
        priority, policy = found.value, found.preemption_policy
        if mark == _CLASS_COUNTS:
            kept = {
                name: value
                for name, value in meta.annotations.items()
                if name != PRIORITY_FROM_MEMBERS_ANNOTATION
            }
            meta = replace(meta, annotations=kept)
    else:
        priority = min((pod.spec.priority for pod in members if not pod.is_terminal), default=0)
        policy = spec.preemption_policy
    spec = replace(spec, priority=priority, preemption_policy=policy)
    return replace(group, metadata=meta, spec=spec)


def _gang(
    meta: ObjectMeta, min_count: int, status: CoschedulingStatus, *, priority_class_name: str = ""
) -> PodGroup:
    policy = SchedulingPolicy(gang=GangPolicy(max(min_count, 1)))
    return PodGroup(
        _with_member_priority(meta),
        PodGroupSpec(scheduling_policy=policy, priority_class_name=priority_class_name),
        PodGroupStatus(
            ready_pods=status.running, succeeded_pods=status.succeeded, failed_pods=status.failed
        ),
    )


def _read_coscheduling(obj: CoschedulingPodGroup) -> PodGroup:
    return _gang(obj.metadata, obj.spec.min_member, obj.status)


#: The phases of a group that no scheduler has seen.
_WAITING_VOLCANO_PHASES = ("", "Pending")
_UNKNOWN_COUNT = -1


def _read_volcano(obj: VolcanoPodGroup) -> PodGroup:
    # The minimum of each task cannot be said of one group; their sum can.
    tasks = sum(obj.spec.min_task_member.values())
    group = _gang(
        obj.metadata,
        max(obj.spec.min_member, tasks),
        obj.status,
        priority_class_name=obj.spec.priority_class_name,
    )
    if succeeded := obj.status.succeeded:
        # Volcano counts members that have succeeded, so that the last ones of a gang can be run
        # again; we count those that are left.
        left = str(max(group.min_count - succeeded, 1))
        annotations = {**group.metadata.annotations, MEMBERS_TO_RUN_ANNOTATION: left}
        group = replace(group, metadata=replace(group.metadata, annotations=annotations))
    if obj.status.phase not in _WAITING_VOLCANO_PHASES:
        return group
    # Volcano's controllers create pods only after a scheduler has changed this phase. The unknown
    # count makes the status writer write the status, although the group has no members yet.
    return replace(group, status=replace(group.status, pending_pods=_UNKNOWN_COUNT))


def _warn_about_volcano(obj: VolcanoPodGroup) -> str:
    spec = obj.spec
    rows = (
        (
            spec.queue not in ("", "default"),
            f'queue "{spec.queue}" is ignored: Phalanx has no queues',
        ),
        (
            len(spec.min_task_member) > 1,
            "minTaskMember counts as a sum: the minimum of each task is not enforced",
        ),
        (
            bool(spec.network_topology),
            "networkTopology is ignored: HyperNodes are not read",
        ),
        (bool(spec.sub_group_policy), "subGroupPolicy is ignored: the group is one gang"),
        (bool(spec.topology_affinity), "topologyAffinity is ignored: HyperNodes are not read"),
    )
    return "; ".join(text for applies, text in rows if applies)


def _counts(status: PodGroupStatus) -> Object:
    return {
        "running": status.ready_pods,
        "succeeded": status.succeeded_pods,
        "failed": status.failed_pods,
    }


def _encode_coscheduling_status(group: PodGroup) -> Object:
    status, needed = group.status, group.min_count
    if status.succeeded_pods >= needed:
        phase = "Finished"
    elif status.failed_pods and status.scheduled_pods + status.succeeded_pods < needed:
        phase = "Failed"
    elif status.ready_pods + status.succeeded_pods >= needed:
        phase = "Running"
    elif status.scheduled_pods + status.succeeded_pods >= needed:
        phase = "Scheduled"
    else:
        phase = "Scheduling" if status.pending_pods >= needed else "Pending"
    return {"phase": phase, **_counts(status)}


def _encode_volcano_status(group: PodGroup) -> Object:
    status, needed = group.status, group.min_count
    if status.succeeded_pods >= needed:
        phase = "Completed"
    elif status.scheduled_pods + status.succeeded_pods >= needed:
        phase = "Running"
    elif status.scheduled_pods:
        phase = "Unknown"
    else:
        phase = "Inqueue"
    encoded: Object = {"phase": phase, **_counts(status)}
    if condition := find_condition(status.conditions, POD_GROUP_SCHEDULED):
        is_scheduled = condition.status == "True"
        encoded["conditions"] = [
            {
                "type": "Scheduled" if is_scheduled else "Unschedulable",
                "status": "True",
                "reason": condition.reason,
                "message": condition.message,
                "lastTransitionTime": condition.last_transition_time,
                "transitionID": group.metadata.uid,
            }
        ]
    return encoded


_VOLCANO_GROUP_NAME = "scheduling.volcano.sh/group-name"
#: In the order of precedence.
WORKLOAD_SOURCES = (
    *(
        WorkloadSource(kind, kind, struct_of(kind))
        for kind in (POD_GROUP, COMPOSITE_POD_GROUP, WORKLOAD)
    ),
    WorkloadSource(
        CUSTOM_POD_GROUP,
        POD_GROUP,
        CustomGroup,
        _read_custom_pod_group,
        pod_labels=(POD_GROUP_LABEL,),
        # The name of a group may be longer than a label.
        pod_annotations=(POD_GROUP_LABEL,),
    ),
    WorkloadSource(
        CUSTOM_COMPOSITE_POD_GROUP, COMPOSITE_POD_GROUP, CustomGroup, _read_custom_composite
    ),
    WorkloadSource(CUSTOM_WORKLOAD, WORKLOAD, Workload),
    WorkloadSource(
        COSCHEDULING_POD_GROUP,
        POD_GROUP,
        CoschedulingPodGroup,
        _read_coscheduling,
        pod_labels=("scheduling.x-k8s.io/pod-group",),
        encode_status=_encode_coscheduling_status,
        compat="scheduler-plugins",
    ),
    WorkloadSource(
        VOLCANO_POD_GROUP,
        POD_GROUP,
        VolcanoPodGroup,
        _read_volcano,
        # Volcano reads both annotations. Kubeflow Trainer writes the second one as a label.
        pod_annotations=("scheduling.k8s.io/group-name", _VOLCANO_GROUP_NAME),
        pod_labels=(_VOLCANO_GROUP_NAME,),
        encode_status=_encode_volcano_status,
        warn=_warn_about_volcano,
        compat="volcano",
    ),
)
#: The projects whose PodGroups can be read.
COMPAT_NAMES = tuple(row.compat for row in WORKLOAD_SOURCES if row.compat)


def read_scheduling_annotations(annotations: Mapping[str, str]) -> Object | None:
    """Return the `scheduling` of a Job that annotations ask for; None if they ask for none.

    A `min-count` that is no positive number counts as absent: then all pods start together.
    """
    if annotations.get(POLICY_ANNOTATION) != GANG:
        return None
    count = annotations.get(MIN_COUNT_ANNOTATION, "")
    is_number = count.isdecimal() and len(count) <= _MAX_COUNT_DIGITS and int(count) > 0
    scheduling: Object = {
        "schedulingPolicy": {"gang": {"minCount": int(count)} if is_number else {}}
    }
    if key := annotations.get(TOPOLOGY_KEY_ANNOTATION):
        scheduling["schedulingConstraints"] = {"topology": [{"key": key}]}
    return scheduling


def job_annotations(job: Job) -> Mapping[str, str]:
    """Return the annotations of the pod template of a Job, and of the Job, which override them."""
    template = (job.spec.template.get("metadata") or {}).get("annotations") or {}
    return {**template, **job.metadata.annotations}


def read_job(job: Job) -> Job:
    """Return a Job with the scheduling that its annotations ask for, if it has none of its own.

    A template that names a group by a label or an annotation has it in `schedulingGroup`: such a
    Job gets no group.
    """
    template = job.spec.template
    pod_spec = template.get("spec") or {}
    if "schedulingGroup" not in pod_spec and (name := named_group(template.get("metadata") or {})):
        group = {"podGroupName": name}
        template = {**template, "spec": {**pod_spec, "schedulingGroup": group}}
        job = replace(job, spec=replace(job.spec, template=template))
    if job.spec.scheduling is not None:
        return job
    scheduling = read_scheduling_annotations(job_annotations(job))
    return replace(job, spec=replace(job.spec, scheduling=scheduling)) if scheduling else job


def named_group(meta: Mapping[str, Any]) -> str:
    """Return the group that the metadata of a pod names in the way of any project; "" if none."""
    labels, annotations = meta.get("labels") or {}, meta.get("annotations") or {}
    for row in WORKLOAD_SOURCES:
        names = [labels.get(key) for key in row.pod_labels]
        names += [annotations.get(key) for key in row.pod_annotations]
        if found := next(filter(None, names), ""):
            return str(found)
    return ""


def convert_to_native(kind: Kind, obj: Object) -> tuple[Kind, Object]:
    """Return kind and content of an object as a server with the workload APIs would have them.

    A group of our custom resources becomes one of `scheduling.k8s.io`; a pod, or the pod template
    of another object, names its group by the field; a Job has the scheduling of its annotations.
    """
    for row in WORKLOAD_SOURCES:
        if row.kind is kind and not row.is_native and not row.compat:
            return row.target, _convert_group(row.target, obj)
    spec = obj.get("spec")
    if not isinstance(spec, dict):
        return kind, obj
    if kind is POD:
        return kind, _link_template(obj)
    if not isinstance(spec.get("template"), dict):
        return kind, obj
    spec = {**spec, "template": _link_template(spec["template"])}
    annotations = {
        **((spec["template"].get("metadata") or {}).get("annotations") or {}),
        **((obj.get("metadata") or {}).get("annotations") or {}),
    }
    scheduling = read_scheduling_annotations(annotations) if kind is JOB else None
    if scheduling and "scheduling" not in spec:
        spec["scheduling"] = scheduling
    return kind, {**obj, "spec": spec}


def _convert_group(target: Kind, obj: Object) -> Object:
    meta, spec = obj.get("metadata") or {}, obj.get("spec") or {}
    if target is POD_GROUP and "priority" not in spec and "priorityClassName" not in spec:
        # Our server lowers the priority to that of the members, from none on.
        mark = {PRIORITY_FROM_MEMBERS_ANNOTATION: "none"}
        meta = {**meta, "annotations": {**(meta.get("annotations") or {}), **mark}}
    return {**obj, "apiVersion": target.api_version, "metadata": meta}


def _link_template(template: Object) -> Object:
    """Return a pod, or a pod template, with the group that its label or annotation names."""
    meta, spec = template.get("metadata") or {}, template.get("spec") or {}
    texts = {**(meta.get("annotations") or {}), **(meta.get("labels") or {})}
    if POD_GROUP_LABEL not in texts or "schedulingGroup" in spec:
        return template
    group = {"podGroupName": texts[POD_GROUP_LABEL]}
    return {**template, "spec": {**spec, "schedulingGroup": group}}


@dataclass(frozen=True, slots=True)
class ServedSources:
    """The rows that apply to one server, in the order of precedence.

    A server that is not Phalanx `is_foreign`: it drops the scheduling fields of Jobs.
    """

    rows: tuple[WorkloadSource, ...]
    is_foreign: bool = False
    #: Kinds of `STATUS_SUBRESOURCES` that have the subresource on this server.
    kinds_with_status: frozenset[Kind] = frozenset()

    def has_status(self, kind: Kind) -> bool:
        """Whether the status of a kind is a subresource."""
        return "status" in kind.subresources or kind in self.kinds_with_status

    def of(self, target: Kind) -> tuple[WorkloadSource, ...]:
        """Return the rows that are read as a kind of `scheduling.k8s.io`."""
        return tuple(row for row in self.rows if row.target is target)

    @property
    def targets(self) -> frozenset[Kind]:
        """The kinds of `scheduling.k8s.io` that the server has in some form."""
        return frozenset(row.target for row in self.rows)

    @property
    def are_native(self) -> bool:
        """Whether all groups are of `scheduling.k8s.io`."""
        return all(row.is_native for row in self.rows)

    @property
    def need_conversion(self) -> bool:
        """Whether objects are converted when they are read or written."""
        return self.is_foreign or not self.are_native

    @property
    def drops_scheduling_group(self) -> bool:
        """Whether the server drops `spec.schedulingGroup` of pods."""
        return not any(row.is_native for row in self.of(POD_GROUP))

    def link_pod(self, pod: Pod) -> Pod:
        """Return the pod with the group that it names in any way."""
        if pod.spec.scheduling_group is not None:
            return pod
        meta = pod.metadata
        for row in self.rows:
            for label in row.pod_labels:
                if name := meta.labels.get(label):
                    return _with_group(pod, name)
            for annotation in row.pod_annotations:
                if name := meta.annotations.get(annotation):
                    return _with_group(pod, name)
        # Pods keep their label when their group has been moved to `scheduling.k8s.io`, also if the
        # definition of the custom resource is deleted then.
        if name := meta.labels.get(POD_GROUP_LABEL) or meta.annotations.get(POD_GROUP_LABEL):
            return _with_group(pod, name)
        if meta.annotations.get(POLICY_ANNOTATION) == GANG:
            # Pods of a Job that another controller runs: the group has the name of the Job.
            owner = meta.controller
            if owner is not None and owner.kind == JOB.name:
                return _with_group(pod, owner.name)
        return pod


def _with_group(pod: Pod, name: str) -> Pod:
    return replace(pod, spec=replace(pod.spec, scheduling_group=SchedulingGroup(name)))


#: The rows of a server that has all kinds of `scheduling.k8s.io`: ours.
NATIVE_SOURCES = ServedSources(tuple(row for row in WORKLOAD_SOURCES if row.is_native))


def select_sources(served: Collection[Kind], compat: Collection[str] = ()) -> ServedSources:
    """Return the rows for a server that serves these kinds, with those of the named projects."""
    rows = tuple(
        row
        for row in WORKLOAD_SOURCES
        if row.kind in served and (not row.compat or row.compat in compat)
    )
    with_status = (kind for kind, status in STATUS_SUBRESOURCES.items() if status in served)
    return ServedSources(rows, GROUP_BINDING not in served, frozenset(with_status))
