"""RunTimes: when the pods on nodes are expected to end.

An expected end comes from the first of these sources that knows one:

    1. activeDeadlineSeconds of the pod or of its Job
    2. the annotation `phalanx.dev/expected-run-time` of the pod, its PodGroup or its Job
    3. the median run time of earlier pods of the same owner, or else of the same template

The first two are declared limits: a pending entity with such a limit may start in reserved room if
it ends in time. A median only estimates when room becomes free. Pods of controllers that replace
ended pods, and `restartPolicy: Always` pods without a declared limit, never end.

Observations are collected and evaluated only when a plan needs them: without a waiting entity an
observed pod costs one dictionary entry, and none if its end cannot depend on a Job or PodGroup.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from itertools import chain
from math import inf, isfinite
from statistics import median
from typing import NamedTuple

from phalanx.api.batch import EXPECTED_RUN_TIME_ANNOTATION, JobRunTime, parse_run_time
from phalanx.api.core import Pod
from phalanx.api.meta import Key, ObjectMeta, OwnerReference, parse_timestamp
from phalanx.scheduler.cluster.pod_shape import shape_of
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.reservation.pod_ends import PodEnds

#: The kinds of controllers that replace every pod that ends.
REPLACING_OWNERS = frozenset(
    {
        "DaemonSet",
        "Deployment",
        "LeaderWorkerSet",
        "ReplicaSet",
        "ReplicationController",
        "StatefulSet",
    }
)
#: How many run times a median is taken from, and of how many owners and templates they are kept.
_SAMPLES, _HISTORY_LIMIT = 32, 4096
#: How many observations are evaluated between two yields.
_PODS_PER_STEP = 1000
#: How many objects a reservation names that it waits for, and how many topology domains.
MAX_NAMES = 8


class _PodOnNode(NamedTuple):
    """A pod that occupies a node, observed or assumed since `since`."""

    pod: Pod
    node: str
    since: float


class EndRange(NamedTuple):
    """Between which times a pod ends, in seconds since the epoch; `inf` if that is unknown."""

    earliest: float
    expected: float
    latest: float


class RunLimit(NamedTuple):
    """How long a pod may run, and until when; `inf`: without a bound."""

    seconds: float
    until: float = inf

    def end_after(self, start: float) -> float:
        """Return when a pod has ended that starts at a time."""
        return min(start + self.seconds, self.until)


class RunTimes:
    """What one scheduler knows about the run times of pods. Bounded by the pods on nodes."""

    def __init__(self) -> None:
        self.ends = PodEnds()
        #: The pods that end and are on a node, and the changes that `update` has not applied yet.
        self._pods: dict[Key, _PodOnNode] = {}
        self._changed: dict[Key, _PodOnNode | None] = {}
        self._jobs: dict[str, JobRunTime] = {}
        self._job_uids: dict[Key, str] = {}
        self._group_run_times: dict[Key, float] = {}
        #: The pods whose end depends on a Job (by uid) or a PodGroup (by key).
        self._dependents: dict[Hashable, dict[Key, None]] = {}
        self._history: dict[Hashable, tuple[float, ...]] = {}
        #: Whether the pods on nodes, or their ends, have changed since the last plan.
        self.is_changed = False

    def observe_pod(self, key: Key, pod: Pod | None, now: float) -> None:
        """A pod was created, changed or (None) deleted."""
        if pod is not None and not pod.spec.node_name:
            if key in self._changed or key in self._pods:
                self.is_changed = True
                self._forget(key)
            return
        self.is_changed = True
        if pod is not None and not pod.is_terminal and not _never_ends(pod):
            since = self._known_since(key, pod, now)
            self._changed[key] = _PodOnNode(pod, pod.spec.node_name, since)
        else:
            if pod is not None and pod.status.phase == "Succeeded":
                self._remember(pod, now)
            self._forget(key)

    def assume_pod(self, key: Key, pod: Pod, node: str, *, now: float) -> None:
        """A pod is about to be bound to a node."""
        self._changed[key] = _PodOnNode(pod, node, now)

    def observe_group(self, key: Key, meta: ObjectMeta | None) -> bool:
        """A PodGroup was created, changed or (None) deleted; whether run times have changed."""
        run_time = parse_run_time(meta.annotations) if meta else None
        if self._group_run_times.get(key) == run_time:
            return False
        if run_time is None:
            del self._group_run_times[key]
        else:
            self._group_run_times[key] = run_time
        self._renew(key)
        return True

    def observe_job(self, key: Key, job: JobRunTime | None) -> bool:
        """A Job was created, changed or (None) deleted; whether run times have changed."""
        old_uid = self._job_uids.pop(key, "")
        old = self._jobs.pop(old_uid, None)
        if job is not None:
            self._job_uids[key], self._jobs[job.uid] = job.uid, job
        if old == job:
            return False
        self._renew(old_uid)
        self._renew(job.uid if job else "")
        return True

    def update(self) -> Iterator[int]:
        """Bring `ends` up to date; yields after some pods.

        Pods may be observed between two steps: a change that was replaced or taken back is not
        applied.
        """
        for number, key in enumerate(list(self._changed), 1):
            if key not in self._changed:
                continue
            on_node = self._changed.pop(key)
            self._remove(key)
            end = self._expected_end(on_node) if on_node is not None else None
            if on_node is not None and end is not None:
                self._pods[key] = on_node
                self.ends.set(key, on_node.node, shape_of(on_node.pod), end=end)
                for dependency in _dependencies(on_node.pod):
                    self._dependents.setdefault(dependency, {})[key] = None
            if number % _PODS_PER_STEP == 0:
                yield number

    def find_limits(self, entity: Entity) -> frozenset[RunLimit] | None:
        """Return the limits that the members declare; None if one of them has none."""
        found: set[RunLimit] = set()
        for pod in _distinct_pods(entity):
            limit = self._find_limit(pod)
            if limit is None or _is_replaced(pod):
                return None
            found.add(limit)
        return frozenset(found)

    def declared_end(self, entity: Entity, now: float) -> float | None:
        """Return until when all members will have ended if they start now; None if unknown."""
        return find_last_end(self.find_limits(entity), now)

    def end_after(self, entity: Entity, start: float) -> float | None:
        """Return when an entity that starts at a time ends: `inf` if unknown, None if never."""
        ends = [self._end_of_pod(pod, start) for pod in _distinct_pods(entity)]
        return None if None in ends else max(end for end in ends if end is not None)

    def name_last(
        self, ends: Mapping[Key, float], added: Mapping[Key, str], namespace: str
    ) -> tuple[str, ...]:
        """Name the owners of pods that end, the last one first.

        `added` are the owners of pods that have not started; names of other namespaces say so.
        """
        names: dict[str, None] = {}
        by_end: dict[float, list[Key]] = {}
        for key, end in ends.items():
            by_end.setdefault(end, []).append(key)
        # Equal ends are ordered by name: the same cluster gives the same message. Mostly a few of
        # the last ends suffice.
        for key in chain.from_iterable(sorted(by_end[end]) for end in sorted(by_end, reverse=True)):
            name = added.get(key) or self.owner_of(key)
            if key.namespace != namespace:
                name += f" in {key.namespace}"
            # An entity that starts before another one is no running workload.
            names[f"{name} (not started)" if key in added else name] = None
            if len(names) == MAX_NAMES:
                break
        return tuple(names)

    def end_range(self, pod: Pod, since: float, now: float) -> EndRange | None:
        """Return between which times a pod that started at some time ends; None if never.

        A pod that has outlived what is known of it may end at any moment, or never.
        """
        if pod.metadata.deletion_timestamp:
            end = max(parse_timestamp(pod.metadata.deletion_timestamp), now)
            return EndRange(end, end, end)
        if self._end_of_pod(pod, since) is None:
            return None
        declared = self._declared_end(pod, since)
        found = (self._history.get(source) for source in _history_keys(pod))
        seconds = next((samples for samples in found if samples), None)
        earliest = since + min(seconds) if seconds else now
        expected = latest = inf
        if seconds:
            expected, latest = since + median(seconds), since + max(seconds)
        if declared is not None:
            expected = declared
            is_deadline = self._has_deadline(pod)
            latest = declared if is_deadline or latest == inf else max(latest, declared)
        expected, latest = (end if end >= now else inf for end in (expected, latest))
        return EndRange(max(min(earliest, expected), now), expected, max(expected, latest))

    def _has_deadline(self, pod: Pod) -> bool:
        owner = _owner_of(pod)
        job = self._jobs.get(owner.uid) if owner else None
        deadlines = (pod.spec.active_deadline_seconds, job.active_deadline_seconds if job else None)
        return any(deadline is not None for deadline in deadlines)

    def owner_of(self, key: Key) -> str:
        """Name the owner of a pod that ends: `job/a`; without an owner, its group or itself."""
        found = self._pods.get(key)
        return f"pod/{key.name}" if found is None else name_owner(found.pod)

    def _known_since(self, key: Key, pod: Pod, now: float) -> float:
        """When a pod started, as its status says, or else when it was first seen on its node."""
        if pod.status.start_time:
            return parse_timestamp(pod.status.start_time)
        known = self._changed.get(key) or self._pods.get(key)
        if known is None or known.pod.metadata.uid != pod.metadata.uid:
            return now
        return known.since

    def _forget(self, key: Key) -> None:
        if key in self._pods:
            self._changed[key] = None
        else:
            self._changed.pop(key, None)

    def _remove(self, key: Key) -> None:
        if (old := self._pods.pop(key, None)) is None:
            return
        self.ends.remove(key)
        for dependency in _dependencies(old.pod):
            dependents = self._dependents[dependency]
            del dependents[key]
            if not dependents:
                del self._dependents[dependency]

    def _renew(self, dependency: Hashable) -> None:
        """The limit of a Job or PodGroup changed: evaluate its pods again."""
        for key in self._dependents.get(dependency, ()):
            self.is_changed = True
            self._changed.setdefault(key, self._pods[key])

    def _expected_end(self, on_node: _PodOnNode) -> float | None:
        """Return when a pod is expected to end: `inf` if unknown, None if never."""
        pod = on_node.pod
        if pod.metadata.deletion_timestamp:
            return parse_timestamp(pod.metadata.deletion_timestamp)
        return self._end_of_pod(pod, on_node.since)

    def _end_of_pod(self, pod: Pod, since: float) -> float | None:
        if _is_replaced(pod):
            return None
        declared = self._declared_end(pod, since)
        if declared is not None:
            return declared
        if pod.spec.restart_policy == "Always":
            return None
        for source in _history_keys(pod):
            if source in self._history:
                return since + median(self._history[source])
        return inf

    def _declared_end(self, pod: Pod, since: float) -> float | None:
        """Return the end that a pod declares that started at a time; None if it declares none."""
        limit = self._find_limit(pod)
        return None if limit is None else limit.end_after(since)

    def _find_limit(self, pod: Pod) -> RunLimit | None:
        """Return the limit that deadlines, or else annotations, declare; None if there are none."""
        owner = _owner_of(pod) if pod.metadata.owner_references else None
        job = self._jobs.get(owner.uid) if owner else None
        seconds = inf if (own := pod.spec.active_deadline_seconds) is None else float(own)
        until = inf
        if job is not None and job.active_deadline_seconds is not None:
            # The deadline of a Job counts from its start, whenever its pods start.
            if job.start_time is None:
                seconds = min(seconds, job.active_deadline_seconds)
            else:
                until = job.start_time + job.active_deadline_seconds
        if seconds < inf or until < inf:
            return RunLimit(seconds, until)
        run_time = parse_run_time(pod.metadata.annotations)
        if run_time is None and pod.group is not None:
            run_time = self._group_run_times.get(pod.group)
        if run_time is None and job is not None:
            run_time = job.expected_run_time
        return None if run_time is None else RunLimit(run_time)

    def _remember(self, pod: Pod, now: float) -> None:
        """Keep the run time of a pod that succeeded, for the median."""
        finished = pod.finish_time
        if not pod.status.start_time:
            known = self._changed.get(pod.metadata.key) or self._pods.get(pod.metadata.key)
            start = known.since if known else now
        else:
            start = parse_timestamp(pod.status.start_time)
        seconds = (now if finished is None else finished) - start
        if seconds <= 0 or not isfinite(seconds):
            return
        for source in _history_keys(pod):
            samples = (*self._history.pop(source, ()), seconds)
            self._history[source] = samples[-_SAMPLES:]
            if len(self._history) > _HISTORY_LIMIT:
                del self._history[next(iter(self._history))]


def find_last_end(limits: Iterable[RunLimit] | None, start: float) -> float | None:
    """Return until when all pods with these limits have ended if they start at a time.

    None if there is a pod without a limit.
    """
    return None if limits is None else max([start, *(one.end_after(start) for one in limits)])


def _distinct_pods(entity: Entity) -> Iterator[Pod]:
    """Yield the pods of an entity, of equal ones in a row the first: their run times are equal."""
    known = None
    for member in entity.members:
        # Equal pods share one spec, which names their group.
        if known is None or not (
            member.pod.spec is known.pod.spec
            and member.shape is known.shape
            and member.pod.metadata.owner_references == known.pod.metadata.owner_references
            and _run_time_text(member.pod) == _run_time_text(known.pod)
        ):
            yield member.pod
            known = member


def _run_time_text(pod: Pod) -> str | None:
    return pod.metadata.annotations.get(EXPECTED_RUN_TIME_ANNOTATION)


def name_owner(pod: Pod) -> str:
    """Name the owner of a pod: `job/a`; without an owner, its group or itself."""
    if owner := _owner_of(pod):
        return f"{owner.kind.lower()}/{owner.name}"
    return f"podgroup/{pod.group.name}" if pod.group else f"pod/{pod.metadata.name}"


def _owner_of(pod: Pod) -> OwnerReference | None:
    """The controller of a pod; without one, its first owner."""
    meta = pod.metadata
    return meta.controller or next(iter(meta.owner_references), None)


def _never_ends(pod: Pod) -> bool:
    """Whether a pod without owner and PodGroup runs until it is deleted."""
    spec, meta = pod.spec, pod.metadata
    return (
        spec.scheduling_group is None
        and not meta.owner_references
        and spec.restart_policy == "Always"
        and spec.active_deadline_seconds is None
        and not meta.deletion_timestamp
        and parse_run_time(meta.annotations) is None
    )


def _is_replaced(pod: Pod) -> bool:
    """Whether the owner of a pod replaces it when it ends, so that its room never becomes free."""
    return any(owner.kind in REPLACING_OWNERS for owner in pod.metadata.owner_references)


def _dependencies(pod: Pod) -> Iterator[Hashable]:
    """Yield the uid of the owner and the key of the PodGroup, on which the end may depend."""
    if owner := _owner_of(pod):
        yield owner.uid
    if pod.group:
        yield pod.group


def _history_keys(pod: Pod) -> Iterable[Hashable]:
    """Return under what a run time is kept: the owner, and the template."""
    owner = _owner_of(pod)
    images = tuple(container.image for container in pod.spec.containers)
    template = (pod.metadata.namespace, owner.kind if owner else "", images, shape_of(pod))
    return (owner.uid, template) if owner else (template,)
