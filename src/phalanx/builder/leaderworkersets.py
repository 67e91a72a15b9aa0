"""A LeaderWorkerSet as a workload: a PodGroup for each replica, with its leader and workers.

Replicas are created and deleted on their own; the leader and the workers of a replica start
together, or not at all. The default is Basic instead if workers are created only once their leader
is ready: a gang would wait for ever.

A replica with subgroups is a CompositePodGroup of a PodGroup for each subgroup:

    size 5, subGroupSize 2        replica: gang of 2 groups
      the leader is extra           leader: gang of 3 (leader and 2 workers)    subgroup: gang of 2
      LeaderExcluded              replica: gang of 3 groups
                                    leader: gang of 1                           subgroup: gang of 2

The annotations for exclusive placement are topology constraints of the replica or its subgroups.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from phalanx.api.errors import Cause, Invalid, invalid
from phalanx.api.kinds import COMPOSITE_POD_GROUP
from phalanx.api.leader_worker_sets import (
    EXCLUSIVE_TOPOLOGY_ANNOTATION,
    GROUP_INDEX_LABEL,
    LEADER_EXCLUDED,
    LEADER_GROUP,
    LEADER_READY,
    LWS_REVISION_LABEL,
    NAME_LABEL,
    SUBGROUP_EXCLUSIVE_TOPOLOGY_ANNOTATION,
    SUBGROUP_INDEX_LABEL,
    replica_group_name,
)
from phalanx.api.wire import Object
from phalanx.builder.builder import WorkloadBuilder, invalid_workload
from phalanx.builder.config import (
    All,
    Basic,
    Gang,
    PodTemplate,
    SchedulingConfig,
    Single,
    read_intent,
)
from phalanx.builder.ensure_plan import EnsurePlan, GroupInstance, ObservedObjects
from phalanx.builder.groups import first_template, new_pod_group, templates
from phalanx.builder.names import workload_name
from phalanx.builder.ownership import (
    SCHEDULING_PARENTS,
    Link,
    Management,
    controller_reference,
    decide_management,
    group_owner_references,
)
from phalanx.builder.workload_item import WorkloadItem, default_min_count

#: The options that a LeaderWorkerSet supports.
SUPPORTED = (Basic, Gang, Single, All)
#: The name of the template of all replicas.
TEMPLATE = "replica"
#: The names of the templates of the subgroup with the leader, if it has another size, and others.
LEADER_TEMPLATE, SUBGROUP_TEMPLATE = LEADER_GROUP, "subgroup"
_PATH = "spec.scheduling"


class Subgroup(NamedTuple):
    """One PodGroup of a replica: its part of the name, its template, and its number of pods."""

    name: str
    template: str
    size: int


def list_subgroups(lws: Object) -> list[Subgroup]:
    """Return the subgroups of a replica; none if its pods are one PodGroup."""
    group = _leader_worker_template(lws)
    policy, size = group.get("subGroupPolicy") or {}, group.get("size", 1)
    part = policy.get("subGroupSize")
    if not part:
        return []
    is_excluded = policy.get("subGroupPolicyType") == LEADER_EXCLUDED
    is_extra = is_excluded or (size - 1) % part == 0
    count = (size - 1 if is_extra else size) // part
    found = [Subgroup(str(at), SUBGROUP_TEMPLATE, part) for at in range(count)]
    if is_excluded:
        return [Subgroup(LEADER_GROUP, LEADER_TEMPLATE, 1), *found]
    if is_extra:
        return [Subgroup("0", LEADER_TEMPLATE, part + 1), *found[1:]]
    return found


def decide_leader_worker_set_management(
    lws: Object, parents: Collection[tuple[str, str]] = SCHEDULING_PARENTS
) -> Management:
    """Decide which scheduling objects to create for a LeaderWorkerSet; `parents` as for Jobs."""
    pods = [_leader_template(lws).spec, _worker_template(lws).spec]
    return decide_management(lws, pods, parents)


def build_item(lws: Object) -> WorkloadItem:
    """Return the tree of a LeaderWorkerSet: the template of all replicas, with its subgroups."""
    intent = read_intent(lws["spec"].get("scheduling"), _PATH)
    starts_leader_first = lws["spec"].get("startupPolicy") == LEADER_READY
    default, fields = Basic() if starts_leader_first else Gang(), _worker_template(lws).fields
    is_gang = isinstance(intent.config.policy or default, Gang)
    subgroups = list_subgroups(lws)
    if not subgroups:
        return WorkloadItem(
            TEMPLATE,
            default=_default_config(lws, default, EXCLUSIVE_TOPOLOGY_ANNOTATION, is_gang=is_gang),
            user=intent.config,
            callbacks=(default_min_count(_leader_worker_template(lws).get("size", 1)),),
            path=_PATH,
            fields={**fields, **intent.fields},
            causes=intent.causes,
        )
    user = intent.config
    children = []
    for template in dict.fromkeys(one.template for one in subgroups):
        size = next(one.size for one in subgroups if one.template == template)
        policy = Gang(size) if is_gang else Basic()
        topology = SUBGROUP_EXCLUSIVE_TOPOLOGY_ANNOTATION
        child = WorkloadItem(
            template,
            default=_default_config(lws, policy, topology, is_gang=is_gang),
            user=SchedulingConfig(resource_claims=user.resource_claims),
            path=_PATH,
            fields={**fields, **intent.fields},
        )
        children.append(child)
    policy = Gang(len(subgroups)) if is_gang else Basic()
    return WorkloadItem(
        TEMPLATE,
        default=_default_config(lws, policy, EXCLUSIVE_TOPOLOGY_ANNOTATION, is_gang=is_gang),
        user=SchedulingConfig(topology=user.topology, disruption_mode=user.disruption_mode),
        children=tuple(children),
        path=_PATH,
        fields={**fields, **intent.fields},
        causes=intent.causes,
    )


def _default_config(
    lws: Object, policy: Basic | Gang, annotation: str, *, is_gang: bool
) -> SchedulingConfig:
    """The configuration of a group of worker pods, with the topology that an annotation names.

    Only the members of a gang are placed together. Others get their domain from the leader.
    """
    config = _worker_template(lws).default_config(policy)
    key = (lws["metadata"].get("annotations") or {}).get(annotation, "")
    topology = SchedulingConfig(topology=(key,) if key and is_gang else ())
    return config.override_with(topology)


def validate(lws: Object, old: Object | None = None) -> list[Cause]:
    """Return the errors in the scheduling fields of a LeaderWorkerSet that `old` did not have."""
    causes = WorkloadBuilder(build_item(lws), SUPPORTED).validate(build_item(old) if old else None)
    before = _check_leader_priority(old) if old else []
    return [*causes, *(cause for cause in _check_leader_priority(lws) if cause not in before)]


def build_workload(lws: Object) -> Object:
    """Build the Workload of a LeaderWorkerSet. Raises Invalid if scheduling fields have errors."""
    if causes := _check_leader_priority(lws):
        raise invalid_workload(lws["metadata"]["name"], causes)
    return WorkloadBuilder(build_item(lws), SUPPORTED).build(lws)


def build_pod_group(
    lws: Object, workload: Object, replica: int, *, link: Link | None = None
) -> Object:
    """Build the PodGroup of one replica.

    With a link, build it from the linked template of the parent's Workload.
    """
    if link is None:
        owners = group_owner_references(lws, workload)
        return new_pod_group(workload, TEMPLATE, instance=str(replica), owners=owners)
    return new_pod_group(
        workload,
        link.template or first_template(workload),
        instance=f"{lws['metadata']['name']}-{replica}",
        parent=link.parent,
        owners=[controller_reference(lws)],
    )


def group_prefix(lws: Object) -> str:
    """Return the first part of the names of all groups of a LeaderWorkerSet."""
    return workload_name(lws["metadata"]["name"], lws["metadata"]["uid"])


def ensure(
    lws: Object,
    observed: ObservedObjects,
    groups: Sequence[GroupInstance],
    *,
    manager: str = "",
    kept: Collection[str] = (),
) -> EnsurePlan:
    """Plan the Workload and the groups of a LeaderWorkerSet. Raises Invalid like `build_workload`.

    A changed priority or topology gives the set a new Workload.
    """
    if causes := _check_leader_priority(lws):
        raise invalid_workload(lws["metadata"]["name"], causes)
    return WorkloadBuilder(build_item(lws), SUPPORTED).ensure(
        lws, observed, groups, manager=manager, replaces_workload=True, kept=kept
    )


def list_replica_groups(
    lws: Object,
    workload: Object | None,
    replica: int,
    *,
    revision: str,
    link: Link | None = None,
) -> list[GroupInstance]:
    """Return the groups of one replica, a CompositePodGroup first; `lws` is of its revision.

    Without a `workload` they are those of the set's own, with the sizes of the revision: during an
    update replicas of several sizes exist. In the Workload of a user or a parent they come from the
    template `replica`, or from the only one, or from the one that a link names. Raises Invalid if
    that template does not fit the subgroups.
    """
    own = {} if workload else templates(build_workload(lws))
    known, subgroups = own or templates(workload or {}), list_subgroups(lws)
    wanted = (link.template or first_template(workload or {})) if link else TEMPLATE
    root = known.get(wanted)
    if link and root is None:
        return [GroupInstance(wanted)]  # The plan says that there is no such template.
    if root is None and len(known) == 1:
        (root,) = known.values()
    if root is None:
        raise _refuse_template(workload, wanted, "this template is needed for the replicas")
    is_composite = root.kind is COMPOSITE_POD_GROUP
    if subgroups and not is_composite:
        detail = "a replica with subgroups needs a CompositePodGroup template"
        raise _refuse_template(workload, root.name, detail)
    index, prefix = str(replica), group_prefix(lws)
    instance = f"{index}-{revision}"
    labels = {
        NAME_LABEL: lws["metadata"]["name"],
        GROUP_INDEX_LABEL: index,
        LWS_REVISION_LABEL: revision,
    }
    name = replica_group_name(prefix, index, revision)
    found = [
        GroupInstance(root.name, instance, labels=labels, name=name, source=own.get(root.name))
    ]
    below = [one.name for one in known.values() if one.parent == root.name]
    for one in (subgroups or [Subgroup("", below[0], 0)]) if is_composite else ():
        template = one.template if one.template in below else below[0]
        found.append(
            GroupInstance(
                template,
                f"{instance}-{one.name}",
                parent_instance=instance,
                labels={**labels, SUBGROUP_INDEX_LABEL: one.name} if one.name else labels,
                name=replica_group_name(prefix, index, revision, subgroup=one.name),
                source=own.get(template),
            )
        )
    return found


def _refuse_template(workload: Object | None, name: str, detail: str) -> Invalid:
    causes = [invalid("spec.podGroupTemplates", name, detail)]
    return invalid_workload((workload or {}).get("metadata", {}).get("name", ""), causes)


def _check_leader_priority(lws: Object) -> list[Cause]:
    """Check that leader and workers have the same priority, since they are one PodGroup."""
    leader, workers = _leader_template(lws), _worker_template(lws)
    return [
        invalid(
            path,
            leader.spec.get(name, ""),
            "must equal that of the workers: they are in one PodGroup",
        )
        for name, path in leader.fields.items()
        if leader.spec.get(name, "") != workers.spec.get(name, "")
    ]


def _leader_worker_template(lws: Object) -> Object:
    return lws["spec"].get("leaderWorkerTemplate") or {}


def _leader_template(lws: Object) -> PodTemplate:
    """The template of the leader; by default the template of the workers."""
    path = "spec.leaderWorkerTemplate.leaderTemplate"
    template = _leader_worker_template(lws).get("leaderTemplate")
    return PodTemplate(template, path) if template else _worker_template(lws)


def _worker_template(lws: Object) -> PodTemplate:
    path = "spec.leaderWorkerTemplate.workerTemplate"
    return PodTemplate(_leader_worker_template(lws).get("workerTemplate") or {}, path)


#: The names of version 0.1, which programs may use.
management = decide_leader_worker_set_management
item = build_item
workload = build_workload
pod_group = build_pod_group
