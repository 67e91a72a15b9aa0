"""A LeaderWorkerSet as a workload: a set of gangs, one for each replica, its leader included.

Replicas come and go by themselves; a leader and its workers start together or not at all. Where
workers are made only once their leader is ready, a gang would wait for ever: there, and where the
user says basic, pods are scheduled one by one.
"""

from __future__ import annotations

from phalanx.api.errors import Cause
from phalanx.api.field_errors import invalid
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

#: What a LeaderWorkerSet supports.
SUPPORTED = (Basic, Gang, Single, All)
#: The name of the template that the group of every replica is made of.
TEMPLATE = "replica"
_PATH = "spec.scheduling"


def management(lws: Object) -> Management:
    """What to make for a LeaderWorkerSet."""
    return decide_management(lws, [_leader_template(lws).spec, _worker_template(lws).spec])


def item(lws: Object) -> WorkloadItem:
    """A LeaderWorkerSet as one group of pods, of which there will be one for each replica."""
    intent = read_intent(lws["spec"].get("scheduling"), _PATH)
    return WorkloadItem(
        TEMPLATE,
        default=_worker_template(lws).default_config(
            Basic() if _starts_leader_first(lws) else Gang()
        ),
        user=intent.config,
        callbacks=(default_min_count(_leader_worker_template(lws).get("size", 1)),),
        path=_PATH,
        fields={**_worker_template(lws).fields, **intent.fields},
    )


def validate(lws: Object, old: Object | None = None) -> list[Cause]:
    """What is wrong with how a LeaderWorkerSet is to be scheduled, and was not before."""
    found = WorkloadBuilder(item(lws), SUPPORTED).validate(item(old) if old else None)
    before = _check_leader_priority(old) if old else []
    return [*found, *(cause for cause in _check_leader_priority(lws) if cause not in before)]


def workload(lws: Object) -> Object:
    """The Workload of a LeaderWorkerSet. Raises Invalid if there cannot be one."""
    if causes := _check_leader_priority(lws):
        raise invalid_workload(lws["metadata"]["name"], causes)
    return WorkloadBuilder(item(lws), SUPPORTED).build(lws)


def pod_group(lws: Object, workload: Object, replica: int, link: Link | None = None) -> Object:
    """The PodGroup of one replica: its leader and its workers.

    If there is a link to the Workload of a parent: of the template that is named there.
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
    """What a leader has that its workers have not: the pods of a group have one priority."""
    leader, workers = _leader_template(lws), _worker_template(lws)
    return [
        invalid(place, leader.spec.get(name, ""), "must be that of the workers: they are one group")
        for name, place in leader.fields.items()
        if leader.spec.get(name, "") != workers.spec.get(name, "")
    ]


def _starts_leader_first(lws: Object) -> bool:
    order: str = lws["spec"].get("startupPolicy", "")
    return order == "LeaderReady"


def _leader_worker_template(lws: Object) -> Object:
    return lws["spec"].get("leaderWorkerTemplate") or {}


def _leader_template(lws: Object) -> PodTemplate:
    """The leader's template; without one, leaders are made like workers."""
    path = "spec.leaderWorkerTemplate.leaderTemplate"
    template = _leader_worker_template(lws).get("leaderTemplate")
    return PodTemplate(template, path) if template else _worker_template(lws)


def _worker_template(lws: Object) -> PodTemplate:
    path = "spec.leaderWorkerTemplate.workerTemplate"
    return PodTemplate(_leader_worker_template(lws).get("workerTemplate") or {}, path)
