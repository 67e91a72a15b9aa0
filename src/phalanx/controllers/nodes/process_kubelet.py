"""The kubelet of process nodes: runs the containers of pods as local processes.

`ProcessKubelets` starts a `PodRun` for each pod that one of its nodes admits, stops it when the
pod is deleted, and then removes the pod object. `PodRun` is one pod from start to end:

    permission ─▶ commands ─▶ init containers, one by one ─▶ containers, concurrently ─▶ status

Containers restart as the restart policy says, with a growing back-off. A stop sends SIGTERM, and
SIGKILL after the grace period. Every change is written to the pod status.

Process nodes exist only where a user asks for them (`--run-processes`), and run only pods whose
service account has been granted the verb "run" on "processes". A pod that was running when the
process of its kubelet ended has failed: its processes are gone.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from phalanx import logs
from phalanx.api.core import Pod
from phalanx.api.errors import ApiError, Forbidden, NotFound
from phalanx.api.kinds import POD, RESOURCE_CLAIM, SUBJECT_ACCESS_REVIEW
from phalanx.api.meta import Key, timestamp
from phalanx.api.wire import Object
from phalanx.client.client import Client
from phalanx.client.transports import Unreachable
from phalanx.clock import Clock
from phalanx.controllers.nodes.container_process import (
    LOOPBACK,
    ContainerCommand,
    ContainerOutput,
    ContainerProcess,
    ProcessHost,
    UnsupportedContainer,
    build_container_command,
    claim_names,
    device_variables,
    extended_claim_name,
    extended_resource_variables,
    service_account_of,
)
from phalanx.controllers.nodes.pod_status import (
    container_status,
    readiness_conditions,
    rejected_status,
    status_patch,
)
from phalanx.controllers.nodes.process_metrics import ProcessMetricsCollector
from phalanx.controllers.reconcile_loop import (
    Action,
    Delete,
    Informers,
    NodeClient,
    new_work_queue,
    perform,
    run_workers,
    treat_denial_as_stale,
)

if TYPE_CHECKING:
    from phalanx.controllers.nodes.pod_admission import PodAdmission

LOG = logs.component("process-kubelet")

#: First and maximum back-off in seconds before a container restarts.
_MIN_BACKOFF, _MAX_BACKOFF = 10.0, 300.0
#: Seconds between two attempts to write the status.
_REPORT_RETRY_SECONDS = 1.0
#: Seconds: practically without limit.
_NO_DEADLINE = 1e9
#: Exit code of a container that could not be started.
_NOT_STARTED = 128


@dataclass(slots=True)
class _Container:
    """A container of the pod: its command and current state."""

    name: str
    image: str
    command: ContainerCommand
    state: Object = field(default_factory=lambda: {"waiting": {"reason": "PodInitializing"}})
    restarts: int = 0
    started_at: str = ""
    exit_code: int | None = None

    def status(self) -> Object:
        """Return the container status."""
        is_ready = "running" in self.state
        return container_status(
            self.name, self.image, self.state, ready=is_ready, restarts=self.restarts
        )


class PodRun:
    """Runs one pod, identified by its uid."""

    def __init__(self, host: ProcessHost, client: Client, clock: Clock, *, pod: Pod) -> None:
        self._host, self._client, self._clock, self._pod = host, client, clock, pod
        self._stopping, self._grace = asyncio.Event(), 0.0
        self._init_containers: list[_Container] = []
        self._containers: list[_Container] = []
        self._processes: dict[str, ContainerProcess] = {}
        self._policy, self._start_time = "Always", ""
        self._deadline_seconds = _NO_DEADLINE
        self._reporting = asyncio.Lock()
        #: Status fields that say why the pod was stopped, if it did not end by itself.
        self._termination: Object = {}

    @property
    def uid(self) -> str:
        """The uid of the pod."""
        return self._pod.metadata.uid

    @property
    def key(self) -> Key:
        """Namespace and name of the pod."""
        return self._pod.metadata.key

    @property
    def sessions(self) -> dict[str, int]:
        """The session ids of running processes, by container."""
        return {name: process.session for name, process in self._processes.items()}

    def stop(self, grace: float) -> None:
        """Stop the pod within a grace period, which a later call may shorten."""
        self._grace = grace
        self._stopping.set()
        if not grace:
            for process in self._processes.values():
                process.signal(signal.SIGKILL)

    async def run(self) -> None:
        """Run the pod to its end and write its final status."""
        folder = self._host.pod_directory(self.uid)
        try:
            await self._prepare()
        except UnsupportedContainer as error:
            LOG.info("pod rejected", kind="Pod", key=self.key, reason=error)
            await self._report(rejected_status("Refused", str(error)))
            return
        expiry = asyncio.create_task(self._enforce_deadline())
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            await self._run_containers()
        finally:
            expiry.cancel()
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def _prepare(self) -> None:
        """Check the permission and build the commands; raises UnsupportedContainer."""
        found = await self._client.get(POD, self._pod.metadata.key)
        if found["metadata"]["uid"] != self.uid:
            raise UnsupportedContainer("the pod was deleted")
        await self._check_permission(found)
        spec = found["spec"]
        folder = self._host.pod_directory(self.uid)
        base_env = self._host.environment(folder, spec.get("hostname") or found["metadata"]["name"])
        claims = {
            entry: await self._get_claim(found, name) for entry, name in claim_names(found).items()
        }
        extended = extended_claim_name(found)
        extended_claim = await self._get_claim(found, extended) if extended else {}

        def build(container: Object) -> _Container:
            devices = {
                **device_variables(container, claims),
                **extended_resource_variables(container, found, extended_claim),
            }
            return _build_container(found, container, {**base_env, **devices})

        self._policy, self._start_time = spec.get("restartPolicy", "Always"), self._now()
        self._init_containers = [build(one) for one in spec.get("initContainers") or ()]
        self._containers = [build(one) for one in spec["containers"]]
        self._deadline_seconds = min(
            spec.get("activeDeadlineSeconds") or _NO_DEADLINE, _NO_DEADLINE
        )

    async def _get_claim(self, pod: Object, name: str) -> Object:
        """Return a resource claim of a pod; raises UnsupportedContainer without it."""
        try:
            return await self._client.get(RESOURCE_CLAIM, Key(pod["metadata"]["namespace"], name))
        except NotFound:
            raise UnsupportedContainer(f'resourceclaim "{name}" not found') from None

    async def _check_permission(self, found: Object) -> None:
        """Raise UnsupportedContainer unless the service account may run processes."""
        namespace, name = found["metadata"]["namespace"], service_account_of(found)
        review = {
            "apiVersion": SUBJECT_ACCESS_REVIEW.api_version,
            "kind": SUBJECT_ACCESS_REVIEW.name,
            "spec": {
                "user": f"system:serviceaccount:{namespace}:{name}",
                "groups": [
                    "system:serviceaccounts",
                    f"system:serviceaccounts:{namespace}",
                    "system:authenticated",
                ],
                "resourceAttributes": {
                    "verb": "run",
                    "group": "phalanx.dev",
                    "resource": "processes",
                    "namespace": namespace,
                },
            },
        }
        answer = await self._client.post(SUBJECT_ACCESS_REVIEW.url_path(), review)
        if not answer["status"].get("allowed"):
            raise UnsupportedContainer(
                f"service account {namespace}/{name} may not run processes; "
                'grant it the verb "run" on "processes" of the group phalanx.dev'
            )

    async def _enforce_deadline(self) -> None:
        """Stop the pod after its activeDeadlineSeconds."""
        await asyncio.sleep(self._deadline_seconds)
        self._termination = {
            "reason": "DeadlineExceeded",
            "message": "Pod was active on the node longer than the specified deadline",
        }
        self.stop(float(self._pod.spec.termination_grace_period_seconds or 0))

    async def _run_containers(self) -> None:
        for container in self._init_containers:
            if not await self._run_init_container(container):
                break
        else:
            async with asyncio.TaskGroup() as group:
                for container in self._containers:
                    group.create_task(self._run_container(container))
        containers = [*self._init_containers, *self._containers]
        succeeded = all(one.exit_code == 0 for one in containers) and not self._termination
        phase = "Succeeded" if succeeded else "Failed"
        LOG.debug("pod finished", kind="Pod", key=self.key, phase=phase)
        await self._report({**self._status(), "phase": phase, **self._termination})

    async def _run_init_container(self, container: _Container) -> bool:
        """Run an init container until it succeeds; returns whether it did."""
        while await self._run_once(container):
            if self._policy == "Never" or not await self._back_off(container):
                return False
        return not self._stopping.is_set()

    async def _run_container(self, container: _Container) -> None:
        """Run a container as often as the restart policy says."""
        while True:
            code = await self._run_once(container)
            is_final = self._policy == "Never" or (self._policy == "OnFailure" and code == 0)
            if is_final or not await self._back_off(container):
                break
        if any("running" in one.state for one in self._containers):
            await self._report(self._status())

    async def _run_once(self, container: _Container) -> int:
        """Run the command of a container once; returns its exit code."""
        if self._stopping.is_set():
            return container.exit_code or 0
        output = ContainerOutput(
            self._client,
            self.key,
            self.uid,
            container=container.name,
            restart=container.restarts,
        )
        folder = self._host.pod_directory(self.uid)
        try:
            process = await ContainerProcess.start(container.command, folder, output)
        except OSError as error:
            LOG.warning(
                "container not started",
                kind="Pod",
                key=self.key,
                container=container.name,
                reason=error,
            )
            self._record_exit(container, _NOT_STARTED, "StartError")
            return _NOT_STARTED
        LOG.debug("container started", kind="Pod", key=self.key, container=container.name)
        self._processes[container.name] = process
        container.started_at = self._now()
        container.state = {"running": {"startedAt": container.started_at}}
        stopper = asyncio.create_task(self._enforce_stop(process))
        try:
            await self._report(self._status())
            code = await process.wait()
        finally:
            stopper.cancel()
            del self._processes[container.name]
        LOG.debug(
            "container exited", kind="Pod", key=self.key, container=container.name, exit_code=code
        )
        self._record_exit(container, code)
        return code

    async def _enforce_stop(self, process: ContainerProcess) -> None:
        """Terminate a process on stop: SIGTERM, then SIGKILL after the grace period."""
        await self._stopping.wait()
        process.signal(signal.SIGTERM)
        await asyncio.sleep(self._grace)
        process.signal(signal.SIGKILL)

    async def _back_off(self, container: _Container) -> bool:
        """Wait before a container restarts; returns False if the pod was stopped meanwhile."""
        delay = min(_MIN_BACKOFF * 2**container.restarts, _MAX_BACKOFF)
        LOG.warning(
            "container restarts after back-off",
            kind="Pod",
            key=self.key,
            container=container.name,
            exit_code=container.exit_code,
            attempt=container.restarts + 1,
            backoff=delay,
        )
        message = f"back-off {delay:g}s restarting failed container"
        container.state = {"waiting": {"reason": "CrashLoopBackOff", "message": message}}
        await self._report(self._status())
        try:
            await asyncio.wait_for(self._stopping.wait(), delay)
        except TimeoutError:
            container.restarts += 1
            return True
        self._record_exit(container, container.exit_code or 0)
        return False

    def _record_exit(self, container: _Container, code: int, reason: str = "") -> None:
        container.exit_code = code
        terminated = {
            "exitCode": code,
            "reason": reason or ("Completed" if code == 0 else "Error"),
            "startedAt": container.started_at or self._now(),
            "finishedAt": self._now(),
        }
        container.state = {"terminated": terminated}

    def _status(self) -> Object:
        """Return the current pod status."""
        has_started = any(container.started_at for container in self._containers)
        ready = all("running" in container.state for container in self._containers)
        return {
            "phase": "Running" if has_started else "Pending",
            "startTime": self._start_time,
            "podIP": LOOPBACK,
            "podIPs": [{"ip": LOOPBACK}],
            "hostIP": LOOPBACK,
            "conditions": readiness_conditions(self._now(), ready=ready),
            "initContainerStatuses": [container.status() for container in self._init_containers],
            "containerStatuses": [container.status() for container in self._containers],
        }

    async def _report(self, status: Object) -> None:
        """Write the status, with retries; gives up if the pod is gone or the write is invalid."""
        async with self._reporting:
            attempt = 0
            while True:
                attempt += 1
                try:
                    await perform(self._client, status_patch(self._pod, status))
                    return
                except NotFound:
                    return
                except (ApiError, Unreachable) as error:
                    if isinstance(error, Forbidden) and self._stopping.is_set():
                        return  # A node may not write to a pod that others have deleted.
                    if isinstance(error, ApiError) and error.code < 500 and error.code != 429:
                        LOG.warning("status rejected", kind="Pod", key=self.key, reason=error)
                        return
                    LOG.warning(
                        "status not written, retrying",
                        kind="Pod",
                        key=self.key,
                        attempt=attempt,
                        backoff=_REPORT_RETRY_SECONDS,
                        reason=error,
                    )
                await asyncio.sleep(_REPORT_RETRY_SECONDS)

    def _now(self) -> str:
        return timestamp(self._clock.now())


def _build_container(pod: Object, container: Object, base_env: Mapping[str, str]) -> _Container:
    try:
        command = build_container_command(pod, container, base_env)
    except UnsupportedContainer as error:
        raise UnsupportedContainer(f"container {container['name']}: {error}") from None
    return _Container(container["name"], container.get("image", ""), command)


#: Pods that run at the same time; further ones wait.
_MAX_PODS = 256
#: Seconds until a pod is synced again that cannot start yet.
_RECHECK_SECONDS = 1.0
#: Grace period of processes at shutdown, and how long the shutdown waits for them.
_STOP_GRACE, _STOP_TIMEOUT = 0.8, 1.2
_NODE_RESTARTED_STATUS = rejected_status(
    "NodeRestarted", "the processes of the pod ended with the process node that ran them"
)


class ProcessKubelets:
    """The kubelets of all process nodes of a host.

    Requests about a pod use `node_client(node)` if given; metrics are sent with `client`.
    """

    def __init__(
        self,
        client: Client,
        informers: Informers,
        clock: Clock,
        *,
        names: Collection[str],
        admission: PodAdmission,
        host: ProcessHost,
        node_client: NodeClient | None = None,
    ) -> None:
        self._client, self._clock, self._names, self._host = client, clock, names, host
        self._node_client = node_client or (lambda name: client)
        self._pods = informers.of(Pod).cache
        self._admission = admission
        self._queue = new_work_queue(client, type(self).__name__)
        self._runs: dict[Key, tuple[PodRun, asyncio.Task[None]]] = {}
        self._finished_uids: dict[Key, str] = {}
        self._tasks = asyncio.TaskGroup()
        self._pods.subscribe(self._on_pod_changed)

    async def run(self) -> None:
        """Run bound pods until cancelled; then stop all processes."""
        async with asyncio.TaskGroup() as self._tasks:
            metrics = ProcessMetricsCollector(
                self._client, lambda: [run for run, _ in self._runs.values()]
            )
            self._tasks.create_task(metrics.run())
            try:
                await run_workers(self._queue, self._sync_pod)
            finally:
                await self._stop_all()

    async def _stop_all(self) -> None:
        """Stop all pods with a short grace period, then cancel the rest."""
        runs = list(self._runs.values())
        for run, _ in runs:
            run.stop(_STOP_GRACE)
        if runs:
            await asyncio.wait([task for _, task in runs], timeout=_STOP_TIMEOUT)
        for _, task in runs:
            task.cancel()

    async def _sync_pod(self, key: Key) -> float | None:
        """Start, stop, fail or remove a pod; returns after how many seconds to sync it again."""
        pod, (run, _) = self._pods.get(key), self._runs.get(key, (None, None))
        if run is not None:
            return self._sync_running_pod(run, pod)
        if pod is None or pod.spec.node_name not in self._names:
            self._finished_uids.pop(key, None)
            return None
        is_done = pod.is_terminal or self._finished_uids.get(key) == pod.metadata.uid
        actions: Sequence[Action] = ()
        if pod.metadata.deletion_timestamp:
            actions = [Delete(POD, key, pod.metadata.uid, grace=0)]
        elif not is_done and pod.status.phase != "Pending":
            actions = [status_patch(pod, _NODE_RESTARTED_STATUS)]
        elif not is_done and (rejection := self._admission.check(pod)) is not None:
            LOG.info("pod rejected", kind="Pod", key=key, reason=rejection.message)
            actions = rejection.actions(pod, timestamp(self._clock.now()))
        elif not is_done:
            return self._start(key, pod)
        try:
            for action in actions:
                await perform(self._node_client(pod.spec.node_name), action)
        except ApiError as error:
            treat_denial_as_stale(self._queue, key, error)
            raise
        return None

    def _sync_running_pod(self, run: PodRun, pod: Pod | None) -> float | None:
        if pod is None or pod.metadata.uid != run.uid:
            run.stop(0)
            return _RECHECK_SECONDS
        if pod.metadata.deletion_timestamp:
            run.stop(float(pod.metadata.deletion_grace_period_seconds))
        return None

    def _start(self, key: Key, pod: Pod) -> float | None:
        if len(self._runs) >= _MAX_PODS:
            return _RECHECK_SECONDS
        LOG.debug("pod starting", kind="Pod", key=key, node=pod.spec.node_name)
        run = PodRun(self._host, self._node_client(pod.spec.node_name), self._clock, pod=pod)
        self._runs[key] = run, self._tasks.create_task(self._run_pod(key, run))
        return None

    async def _run_pod(self, key: Key, run: PodRun) -> None:
        """Run a pod to its end and sync it again."""
        try:
            await run.run()
            self._finished_uids[key] = run.uid
            delay = 0.0
        except (ApiError, Unreachable) as error:
            delay = _RECHECK_SECONDS
            LOG.warning("pod not run, retrying", kind="Pod", key=key, backoff=delay, reason=error)
        except Exception as error:
            delay, message = _RECHECK_SECONDS, "pod not run, retrying"
            self._client.errors.contain(error, LOG, message, controller="nodes", key=key)
        finally:
            del self._runs[key]
        self._queue.add_after(key, delay)

    def _on_pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        if pod is not None and pod.spec.node_name in self._names:
            self._queue.add(pod.metadata.key)
