"""A LeaderWorkerSet as a workload: a PodGroup for each replica, with its leader and workers.

Replicas are created and deleted on their own; the leader and the workers of a replica start
together, or not at all. The default is Basic instead if workers are created only once their leader
is ready: a gang would wait for ever.
"""

from __future__ import annotations

from phalanx.api.errors import Cause, invalid
from phalanx.api.wire import Object
from phalanx.builder.builder import WorkloadBuilder, invalid_workload
from phalanx.builder.config import All, Basic, Gang, PodTemplate, Single, read_intent
from phalanx.builder.groups import first_template, new_pod_group
from phalanx.builder.ownership import (
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
_PATH = "spec.scheduling"


def decide_leader_worker_set_management(lws: Object) -> Management:
    """Decide which scheduling objects to create for a LeaderWorkerSet."""
    return decide_management(lws, [_leader_template(lws).spec, _worker_template(lws).spec])


def build_item(lws: Object) -> WorkloadItem:
    """Return the tree of a LeaderWorkerSet: a single item, the template of all replicas."""
    intent = read_intent(lws["spec"].get("scheduling"), _PATH)
    starts_leader_first = lws["spec"].get("startupPolicy") == "LeaderReady"
    return WorkloadItem(
        TEMPLATE,
        default=_worker_template(lws).default_config(Basic() if starts_leader_first else Gang()),
        user=intent.config,
        callbacks=(default_min_count(_leader_worker_template(lws).get("size", 1)),),
        path=_PATH,
        fields={**_worker_template(lws).fields, **intent.fields},
    )


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
    lws: Object, workload: Object, replica: int, link: Link | None = None
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
