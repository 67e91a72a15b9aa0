"""What must never be so about a Job and its pods, at any revision of the store.

a pod that has ended is let go only after the status of its Job has it
pods come after their group, and that after its Workload
a Job has one Workload and one PodGroup of its own at most
no Job has more successes than it asks for
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
    """Follows a store from its beginning."""

    def __init__(self) -> None:
        self._objects: dict[str, dict[str, Object]] = {kind.name: {} for kind in _KINDS.values()}
        #: Pods whose end a status has had, by uid, and indexes that one has called complete.
        self._recorded: set[str] = set()
        self._completed_indexes: set[tuple[str, int]] = set()

    def __call__(self, changes: Sequence[StoreChange]) -> list[str]:
        """What is wrong about what was committed."""
        return [word for change in changes for word in self._check_change(change)]

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
                yield f"pod {meta['name']} came before its group"
        is_let_go = old is not None and _is_tracked(old) and not _is_tracked(new)
        if not is_let_go or not _has_ended(new) or meta.get("deletionTimestamp"):
            return
        owner = (meta.get("ownerReferences") or [{}])[0].get("uid", "")
        index = int((meta.get("annotations") or {}).get(COMPLETION_INDEX, -1))
        is_known = meta["uid"] in self._recorded or (owner, index) in self._completed_indexes
        if self._is_running(owner) and not is_known:
            yield f"pod {meta['name']} was let go before it was written down"

    def _is_running(self, uid: str) -> bool:
        jobs = self._objects[JOB.name].values()
        one = next((job for job in jobs if job["metadata"]["uid"] == uid), None)
        conditions = (one or {}).get("status", {}).get("conditions") or ()
        return one is not None and not any(c["type"] in ("Complete", "Failed") for c in conditions)

    def _check_created(self, kind: str, new: Object) -> Iterator[str]:
        if kind == POD_GROUP.name:
            of = new["spec"].get("workloadRef", {}).get("workloadName")
            names = [one["metadata"]["name"] for one in self._objects[WORKLOAD.name].values()]
            if of not in names:
                yield f"PodGroup {new['metadata']['name']} came before its Workload"
        owners = [_controller(one) for one in self._objects[kind].values()]
        for uid in {uid for uid in owners if uid and owners.count(uid) > 1}:
            yield f"Job {uid} has {owners.count(uid)} {kind}s"


def _is_tracked(pod: Object) -> bool:
    return TRACKING_FINALIZER in pod["metadata"].get("finalizers", ())


def _has_ended(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def _controller(obj: Object) -> str:
    owners = obj["metadata"].get("ownerReferences") or ()
    return next((str(one["uid"]) for one in owners if one.get("controller")), "")
