"""Invariants of Jobs and their pods that hold at every revision of the store.

- The finalizer of a terminated pod is removed only after the status of its Job records the pod.
- Pods are created after their PodGroup, and the PodGroup after its Workload.
- A Job controls at most one Workload and one PodGroup.
- No Job has more successes than completions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import orjson

from phalanx.api.kinds import JOB, POD, POD_GROUP, WORKLOAD
from phalanx.api.wire import Object
from phalanx.controllers.jobs.job_pods import COMPLETION_INDEX, TRACKING_FINALIZER, parse_index_set
from phalanx.store.kv import StoreChange

_KINDS = {kind.store_prefix(): kind for kind in (JOB, POD, POD_GROUP, WORKLOAD)}
_MANY = 1 << 20


class JobInvariants:
    """Checks every change of a store from its beginning; returns violations."""

    def __init__(self) -> None:
        self._objects: dict[str, dict[str, Object]] = {kind.name: {} for kind in _KINDS.values()}
        #: Pods that a status has recorded, by uid, and completed indexes by the uid of the Job.
        self._recorded: set[str] = set()
        self._completed_indexes: set[tuple[str, int]] = set()

    def __call__(self, changes: Sequence[StoreChange]) -> list[str]:
        """Return the violations in committed changes."""
        return [violation for change in changes for violation in self._check_change(change)]

    def _check_change(self, change: StoreChange) -> Iterator[str]:
        kind = next((k for prefix, k in _KINDS.items() if change.key.startswith(prefix)), None)
        if kind is None:
            return
        known = self._objects[kind.name]
        old = known.pop(change.key, None)
        if change.after is not None:
            new: Object = orjson.loads(change.after.value)
            known[change.key] = new
            if kind is JOB:
                yield from self._check_job(new)
            elif kind is POD:
                yield from self._check_pod(old, new)
            elif old is None:
                yield from self._check_created(kind.name, new)

    def _check_job(self, job: Object) -> Iterator[str]:
        status, spec = job.get("status") or {}, job["spec"]
        uncounted = status.get("uncountedTerminatedPods") or {}
        self._recorded |= {uid for side in uncounted.values() for uid in side}
        uid = job["metadata"]["uid"]
        self._completed_indexes |= {
            (uid, n) for n in parse_index_set(status.get("completedIndexes"), _MANY)
        }
        if status.get("succeeded", 0) > (spec.get("completions") or _MANY):
            yield f"{status['succeeded']} of {spec['completions']} pods have succeeded"

    def _check_pod(self, old: Object | None, new: Object) -> Iterator[str]:
        meta, group = new["metadata"], (new["spec"].get("schedulingGroup") or {})
        if old is None and group:
            names = [one["metadata"]["name"] for one in self._objects[POD_GROUP.name].values()]
            if group["podGroupName"] not in names:
                yield f"pod {meta['name']} was created before its PodGroup"
        is_untracked = old is not None and _is_tracked(old) and not _is_tracked(new)
        if not is_untracked or not _has_terminated(new) or meta.get("deletionTimestamp"):
            return
        owner = (meta.get("ownerReferences") or [{}])[0].get("uid", "")
        index = int((meta.get("annotations") or {}).get(COMPLETION_INDEX, -1))
        is_recorded = meta["uid"] in self._recorded or (owner, index) in self._completed_indexes
        if self._is_running(owner) and not is_recorded:
            yield f"pod {meta['name']} was untracked before the status recorded it"

    def _is_running(self, uid: str) -> bool:
        jobs = self._objects[JOB.name].values()
        one = next((job for job in jobs if job["metadata"]["uid"] == uid), None)
        conditions = (one or {}).get("status", {}).get("conditions") or ()
        return one is not None and not any(c["type"] in ("Complete", "Failed") for c in conditions)

    def _check_created(self, kind: str, new: Object) -> Iterator[str]:
        if kind == POD_GROUP.name:
            workload = new["spec"].get("workloadRef", {}).get("workloadName")
            names = [one["metadata"]["name"] for one in self._objects[WORKLOAD.name].values()]
            if workload not in names:
                yield f"PodGroup {new['metadata']['name']} was created before its Workload"
        owners = [_controller(one) for one in self._objects[kind].values()]
        for uid in {uid for uid in owners if uid and owners.count(uid) > 1}:
            yield f"Job {uid} has {owners.count(uid)} {kind}s"


def _is_tracked(pod: Object) -> bool:
    return TRACKING_FINALIZER in pod["metadata"].get("finalizers", ())


def _has_terminated(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def _controller(obj: Object) -> str:
    owners = obj["metadata"].get("ownerReferences") or ()
    return next((str(one["uid"]) for one in owners if one.get("controller")), "")
