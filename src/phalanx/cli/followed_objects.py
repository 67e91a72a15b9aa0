"""What is left to do for an object that `phalanx run` has created, by its own status.

STARTING   its controller has yet to see it, or to create pods
RUNNING    all its pods exist
ENDED      a Job or JobSet that is complete, has failed, or is suspended
GONE       it was deleted before its end was seen
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

from phalanx.api.batch import Job
from phalanx.api.core import Pod
from phalanx.api.job_sets import JobSet
from phalanx.api.kinds import (
    DAEMON_SET,
    DEPLOYMENT,
    JOB,
    JOB_SET,
    LEADER_WORKER_SET,
    POD,
    REPLICA_SET,
    REPLICATION_CONTROLLER,
    STATEFUL_SET,
    Kind,
)
from phalanx.api.wire import Object
from phalanx.cli.sandbox import lacks_pods
from phalanx.client.client import Client


class FollowedState(Enum):
    """How far an object of a run is."""

    STARTING = "STARTING"
    RUNNING = "RUNNING"
    ENDED = "ENDED"
    GONE = "GONE"


def ending_state(one: Job | JobSet) -> FollowedState:
    """Return how far a Job or JobSet is; a suspended one waits for its user."""
    if isinstance(one, Job):
        is_over, is_starting = one.is_finished, lacks_pods(one)
    else:
        is_over, is_starting = one.end_condition is not None, not one.status.replicated_jobs_status
    if is_over or one.spec.suspend:
        return FollowedState.ENDED
    return FollowedState.STARTING if is_starting else FollowedState.RUNNING


def pod_state(pod: Pod) -> FollowedState:
    """Return how far a pod of the files is: whether it has ended."""
    return FollowedState.ENDED if pod.is_terminal else FollowedState.RUNNING


def _count_replicas(field: str) -> Callable[[Object], bool]:
    """Return whether the status of an object counts as many replicas as its spec wants."""

    def has_all(obj: Object) -> bool:
        wanted, status = obj.get("spec", {}).get("replicas", 1), obj.get("status", {})
        return bool(status.get(field, 0) >= wanted)

    return has_all


def _has_all_daemons(daemon_set: Object) -> bool:
    status = daemon_set.get("status", {})
    wanted, present = status.get("desiredNumberScheduled"), status.get("currentNumberScheduled", 0)
    return wanted is not None and present >= wanted


#: Whether all pods of an object exist, or all groups of a LeaderWorkerSet, by its status.
_HAS_ALL_PODS: Mapping[Kind, Callable[[Object], bool]] = {
    DAEMON_SET: _has_all_daemons,
    DEPLOYMENT: _count_replicas("updatedReplicas"),
    LEADER_WORKER_SET: _count_replicas("replicas"),
    REPLICA_SET: _count_replicas("replicas"),
    REPLICATION_CONTROLLER: _count_replicas("replicas"),
    STATEFUL_SET: _count_replicas("replicas"),
}
#: Kinds whose objects keep their pods running.
REPLICATED_KINDS = tuple(_HAS_ALL_PODS)
#: Kinds that have pods at once; of these at least one must be in the files.
RUNNABLE_KINDS = (POD, JOB, JOB_SET, *REPLICATED_KINDS)
#: Kinds whose objects end by themselves, so that a run waits for their end.
ENDING_KINDS = (JOB, JOB_SET)


def replicated_state(kind: Kind, obj: Object) -> FollowedState:
    """Return how far an object is that keeps its pods running."""
    generation: Any = obj["metadata"].get("generation", 0)
    is_seen = obj.get("status", {}).get("observedGeneration", generation) >= generation
    has_all = is_seen and _HAS_ALL_PODS[kind](obj)
    return FollowedState.RUNNING if has_all else FollowedState.STARTING


async def read_states(
    client: Client, kinds: Iterable[Kind], namespaces: Sequence[str] = ("",)
) -> dict[str, FollowedState]:
    """Read how far the objects of these kinds are, by uid; Jobs and bare pods are left out."""
    states: dict[str, FollowedState] = {}
    wanted = set(kinds)
    for kind in (one for one in (JOB_SET, *REPLICATED_KINDS) if one in wanted):
        for namespace in namespaces:
            if kind == JOB_SET:
                for one in (await client.list(JOB_SET, JobSet, namespace=namespace)).items:
                    states[one.metadata.uid] = ending_state(one)
                continue
            for obj in (await client.list(kind, namespace=namespace)).items:
                states[obj["metadata"]["uid"]] = replicated_state(kind, obj)
    return states
