"""What a scheduler has written about an entity, for readers that see a part of the cluster only.

A diagnosis decides again, which needs all nodes and all pods. Without them the conditions of the
group and of its pods are all that is known: the last reason of the scheduler, and no cures.
"""

from __future__ import annotations

from phalanx.api.meta import POD_KIND, Ref, find_condition
from phalanx.scheduler.diagnosis.diagnosis import Diagnosis, NotAttempted, prepare_attempt
from phalanx.scheduler.diagnosis.queue_order import list_workloads
from phalanx.scheduler.explain import PodMessage
from phalanx.scheduler.queue.scheduler_state import ClusterObjects

_POD_SCHEDULED = "PodScheduled"


def recorded_diagnosis(subject: Ref, cluster: ClusterObjects) -> Diagnosis:
    """Return why a pod or group is pending according to its conditions."""
    attempt = prepare_attempt(subject, cluster)
    if isinstance(attempt, NotAttempted):
        return Diagnosis(
            attempt.state, attempt.message, bound=attempt.bound, pending=attempt.pending
        )
    root = attempt.entity.ref
    (row,) = [one for one in list_workloads(cluster) if one.ref == root]
    messages = tuple(
        PodMessage(pod.metadata.key, pod.metadata.uid, found.reason, found.message)
        for pod in attempt.pods
        if not pod.occupied_node
        and (found := find_condition(pod.status.conditions, _POD_SCHEDULED))
        and found.status == "False"
    )
    # Kubernetes' sentence about the minimum says less than why nodes refuse a member.
    refusal = next((one.message for one in messages if one.message.startswith("0/")), "")
    is_group = subject.kind != POD_KIND and root == subject
    return Diagnosis(
        row.reason,
        row.message,
        bound=sum(bool(pod.occupied_node) for pod in attempt.pods),
        pending=sum(not pod.occupied_node for pod in attempt.pods),
        pods=messages,
        tree=root.key if root != subject else None,
        preempted=row.preempted,
        summary=f"too few members found a node: {refusal}" if is_group and refusal else "",
    )
