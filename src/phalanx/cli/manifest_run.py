"""A run of manifests: submit them and observe their gangs until all have run.

`ManifestRun` runs them on a temporary control plane of its own; `cluster_run.ClusterRun` overrides
how a cluster that others use too is written and read. `run_outcome` has the result.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from phalanx.api.batch import COMPLETE, FAILED, Job
from phalanx.api.core import Pod
from phalanx.api.errors import ApiError, Forbidden
from phalanx.api.kinds import EVENT, JOB, NAMESPACE, POD
from phalanx.api.meta import ObjectMeta, Ref
from phalanx.cli.cluster_queries import read_cluster, report_scheduler_bugs
from phalanx.cli.followed_objects import FollowedState, read_states
from phalanx.cli.job_status import describe_failed_pods
from phalanx.cli.manifests import Manifest
from phalanx.cli.run_outcome import InterruptionCounter, RunHistory, RunOutcome
from phalanx.cli.sandbox import ManifestRejected, create_objects, lacks_pods
from phalanx.cli.why import explain_pending
from phalanx.client.client import Client
from phalanx.controllers.nodes.simulated_kubelet import BadStages, stages_of
from phalanx.scheduler.diagnosis.diagnosis import summarize_pending
from phalanx.scheduler.diagnosis.queue_order import (
    NOT_TRIED_YET,
    WorkloadRow,
    WorkloadState,
    list_workloads,
)
from phalanx.scheduler.queue.scheduler_state import ClusterObjects

#: Gangs that the summary explains as `phalanx why` does, and owners that can be asked about.
_MAX_EXPLAINED, _EXPLAINED_OWNERS = 3, ("job", "jobset", "leaderworkerset")
#: Sentences about gangs that wait which a run finds out; each takes a decision.
_MAX_SUMMARIES = 100
#: Seconds between two reads of the cluster, and reads without a change after which the run ends.
#: Between two reads the control plane, which is on the same event loop, does all that it can do:
#: on a slow machine so many reads take longer.
POLL_INTERVAL, QUIET_READS = 0.1, 20

ProgressCallback = Callable[[Sequence[WorkloadRow]], None]


@dataclass(frozen=True, slots=True)
class RunObjects:
    """The objects of a run at one moment."""

    cluster: ClusterObjects
    jobs: Sequence[Job]
    #: How far the submitted objects are that have pods; bare pods may be missing.
    states: Sequence[FollowedState] = ()


@dataclass(frozen=True, slots=True)
class RunObservation(RunObjects):
    """The objects of a run at one moment, and their gangs."""

    gangs: Sequence[WorkloadRow] = ()

    def progress(self) -> list[Any]:
        """Return a value that changes whenever a gang makes progress."""
        return [(gang.ref, gang.state, gang.started, gang.ended) for gang in self.gangs]

    def is_settled(self) -> bool:
        """Return whether every submitted gang runs, has run, or has a reason to wait."""
        if any(map(lacks_pods, self.jobs)):
            return False
        if waiting := [gang for gang in self.gangs if not has_started(gang)]:
            # The next pod of a StatefulSet is not created while one waits.
            return all(map(_has_reason, waiting))
        return not self.is_starting

    @property
    def is_starting(self) -> bool:
        """Whether a submitted object has yet to create pods."""
        return FollowedState.STARTING in self.states


class ManifestRun:
    """Submits batches of manifests in turn and follows them to their end."""

    poll_interval = POLL_INTERVAL

    def __init__(
        self,
        client: Client,
        batches: Sequence[Sequence[Manifest]],
        timeout: float | None,
        *,
        on_progress: ProgressCallback,
        has_processes: bool,
        with_logs: bool,
    ) -> None:
        self._client, self._batches = client, list(batches)
        self._timeout, self._on_progress = timeout, on_progress
        self._has_processes, self._with_logs = has_processes, with_logs
        self._interruptions, self._history = InterruptionCounter(), RunHistory()
        self._kinds = {manifest.kind for batch in batches for manifest in batch}
        #: Why a gang waits, by gang and message of the scheduler.
        self._summaries: dict[tuple[Ref, str], str] = {}
        self._seen: RunObservation | None = None

    async def run(self) -> RunOutcome:
        """Submit and observe until all gangs have run, nothing changes, or the time is over.

        After ^C, which cancels the task, the outcome is what was observed last.
        """
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        start = loop.time()
        try:
            return await self._observe_until_end(start)
        except asyncio.CancelledError:
            if self._seen is None or task is None:
                raise
            task.uncancel()
            return await self._create_outcome(self._seen, loop.time() - start, is_interrupted=True)

    async def _observe_until_end(self, start: float) -> RunOutcome:
        time, quiet_reads = asyncio.get_running_loop().time, 0
        await self._prepare()
        await self._submit(self._batches.pop(0))
        progress: list[Any] = []
        while True:
            seen = self._seen = await self._observe()
            quiet_reads = quiet_reads + 1 if seen.progress() == progress else 0
            progress = seen.progress()
            timed_out = self._timeout is not None and time() - start > self._timeout
            is_quiet = quiet_reads > QUIET_READS
            if self._batches and (seen.is_settled() or is_quiet):
                await self._submit(self._batches.pop(0))
                quiet_reads = 0
            elif self._is_complete(seen) or timed_out or (is_quiet and not self._may_change(seen)):
                return await self._create_outcome(seen, time() - start, timed_out=timed_out)
            await asyncio.sleep(self.poll_interval)

    async def _prepare(self) -> None:
        """Create the namespaces that the files name."""
        namespaces = [one for batch in self._batches for one in _namespace_manifests(batch)]
        await create_objects(self._client, namespaces)

    async def _submit(self, batch: Sequence[Manifest]) -> None:
        await create_objects(self._client, batch)

    async def _read(self) -> RunObjects:
        """Read the objects that are observed: all of the control plane."""
        cluster, jobs = await read_cluster(self._client), await self._client.list(JOB, Job)
        states = await read_states(self._client, self._kinds)
        return RunObjects(cluster, jobs.items, list(states.values()))

    async def _observe(self) -> RunObservation:
        seen = await self._read()
        cluster = seen.cluster
        gangs = await self._summarize(cluster, list_workloads(cluster, include_all=True))
        self._on_progress(gangs)
        ended = {one.ref for one in gangs if one.state is WorkloadState.ENDED and not one.failed}
        for namespace, title in self._completed_owners(seen):
            ended |= self._history.note_end(namespace, title)
        self._interruptions.observe(cluster, ended)
        self._history.observe(cluster, gangs)
        return RunObservation(cluster, seen.jobs, seen.states, gangs)

    def _completed_owners(self, seen: RunObjects) -> list[tuple[str, str]]:
        """Return the namespaces and titles of complete Jobs, whose pods may be deleted already."""
        complete = [job.metadata for job in seen.jobs if job.true_condition(COMPLETE)]
        return [(meta.namespace, f"Job/{meta.name}") for meta in complete]

    async def _summarize(
        self, cluster: ClusterObjects, gangs: Sequence[WorkloadRow]
    ) -> list[WorkloadRow]:
        """Say of the gangs that wait why they do, as `phalanx why` does; once for each message."""
        rows = []
        for gang in gangs:
            if gang.state is WorkloadState.WAITING and _has_reason(gang):
                asked = gang.ref, gang.message
                if asked not in self._summaries and len(self._summaries) < _MAX_SUMMARIES:
                    whole = await self._read_for_diagnosis(cluster)
                    with report_scheduler_bugs():
                        self._summaries[asked] = summarize_pending(gang.ref, whole) if whole else ""
                gang = replace(gang, summary=self._summaries.get(asked, ""))
            rows.append(gang)
        return rows

    async def _read_for_diagnosis(self, cluster: ClusterObjects) -> ClusterObjects | None:
        """Return all objects of the cluster, by which a gang is explained; None if unreadable."""
        return cluster

    def _is_complete(self, seen: RunObservation) -> bool:
        """Whether all gangs have started, no running pod will end, and no Job creates more pods."""
        if not seen.gangs or self._batches or not all(map(has_started, seen.gangs)):
            return False
        if seen.is_starting:
            return False
        running = [pod for pod in seen.cluster.pods if pod.occupied_node]
        owners = {ref.uid for pod in running for ref in pod.metadata.owner_references}
        will_create_pods = any(
            not job.is_finished and job.metadata.uid not in owners for job in seen.jobs
        )
        return not will_create_pods and not self._will_end(seen)

    def _may_change(self, seen: RunObservation) -> bool:
        """Whether it is worth waiting although nothing has changed for a while."""
        waits_to_retry = any(
            job.status.failed and not job.status.active and not job.is_finished
            for job in seen.jobs
            if not job.spec.suspend
        )
        return waits_to_retry or self._will_end(seen)

    def _will_end(self, seen: RunObservation) -> bool:
        """Whether a running pod ends by itself."""
        running = [pod for pod in seen.cluster.pods if pod.occupied_node]
        return any(self._has_processes or _terminates(pod) for pod in running)

    async def _create_outcome(
        self,
        seen: RunObservation,
        seconds: float,
        *,
        timed_out: bool = False,
        is_interrupted: bool = False,
    ) -> RunOutcome:
        gangs, nodes, domains = self._history.restore(seen.cluster, seen.gangs)
        if not (gangs or seen.jobs or seen.states):
            raise ManifestRejected("the files contain nothing to run: no Job, PodGroup or Pod")
        pods = list(seen.cluster.pods)
        return RunOutcome(
            gangs=gangs,
            nodes=nodes,
            domains=domains,
            seconds=seconds,
            timed_out=timed_out,
            is_interrupted=is_interrupted,
            limit=self._timeout or 0.0,
            interruptions=self._interruptions,
            failed_jobs=await self._failed_jobs(seen),
            explanations=await self._explain(gangs),
            logs=await self._container_logs(pods) if self._with_logs else {},
        )

    async def _explain(self, gangs: Sequence[WorkloadRow]) -> list[str]:
        """Diagnose the first gangs that wait, each under the name that the user knows."""
        waiting = (WorkloadState.WAITING, WorkloadState.HELD)
        pending = [gang for gang in gangs if gang.state in waiting and not gang.has_run]
        names: dict[tuple[str, str], None] = {}
        for gang in sorted(pending, key=lambda gang: (gang.title, gang.ref)):
            is_known = gang.argument.partition("/")[0] in _EXPLAINED_OWNERS
            own_name = f"{gang.kind}/{gang.ref.name}"
            names[gang.ref.namespace, gang.argument if is_known else own_name] = None
        return [
            await explain_pending(self._client, name, namespace)
            for namespace, name in list(names)[:_MAX_EXPLAINED]
        ]

    async def _failed_jobs(self, seen: RunObservation) -> dict[str, str]:
        """The Jobs that failed, are suspended or got no pods, each with the reason."""
        reasons: dict[str, str] = {}
        owners = {ref.uid for pod in seen.cluster.pods for ref in pod.metadata.owner_references}
        for job in seen.jobs:
            title, failure = f"Job/{job.metadata.name}", job.true_condition(FAILED)
            if failure:
                pods = describe_failed_pods(seen.cluster.pods, JOB, job.metadata.key)
                ends = [line.strip() for line in pods if "exit code" in line]
                text = "; ".join([f"{failure.reason}: {failure.message}", *ends])
                reasons[title] = f"failed, {text}"
            elif job.spec.suspend:
                reasons[title] = "is suspended"
            elif not job.is_finished and job.metadata.uid not in owners:
                reasons[title] = f"has no pods: {await self._last_warning(job.metadata)}"
        return reasons

    async def _last_warning(self, meta: ObjectMeta) -> str:
        """Return the last event that warns about an object, or why there is none."""
        selector = f"involvedObject.uid={meta.uid},type=Warning"
        try:
            events = await self._client.list(
                EVENT, namespace=meta.namespace, field_selector=selector
            )
        except Forbidden:
            return "its events may not be read"
        return (
            str(events.items[-1].get("message", ""))
            if events.items
            else ("there is no event about it")
        )

    async def _container_logs(self, pods: Sequence[Pod]) -> dict[str, list[str]]:
        """The log lines of containers, by pod name, or by pod and container if it has several."""
        lines: dict[str, list[str]] = {}
        for pod in sorted(pods, key=lambda pod: pod.metadata.key):
            path = POD.url_path(*pod.metadata.key, "log")
            for container in pod.spec.containers:
                name = pod.metadata.name
                if len(pod.spec.containers) > 1:
                    name = f"{name} {container.name}"
                with contextlib.suppress(ApiError):
                    text = await self._client.get_raw(path, {"container": container.name})
                    lines[name] = text.decode(errors="replace").splitlines()
        return lines


def _namespace_manifests(manifests: Sequence[Manifest]) -> list[Manifest]:
    """The namespaces of the manifests: a temporary cluster has every namespace that is named."""
    names = dict.fromkeys(
        manifest.key.namespace for manifest in manifests if manifest.key.namespace
    )
    head = {"apiVersion": NAMESPACE.api_version, "kind": NAMESPACE.name}
    return [Manifest(NAMESPACE, {**head, "metadata": {"name": name}}) for name in names]


def _has_reason(gang: WorkloadRow) -> bool:
    is_pending = gang.state in (WorkloadState.WAITING, WorkloadState.HELD)
    return is_pending and gang.reason != NOT_TRIED_YET


def has_started(gang: WorkloadRow) -> bool:
    """Return whether all pods of a gang have started, or have ended."""
    return gang.state is WorkloadState.ENDED or (not gang.pending and gang.started == gang.placed)


def _terminates(pod: Pod) -> bool:
    try:
        return stages_of(pod.metadata).run is not None
    except BadStages:
        return False
