"""One pod on a process node, from its start to its end.

    may it? ─▶ programs ─▶ init containers, one after another ─▶ containers, side by side ─▶ report

Containers that end are started again as the restart policy says, after a pause that grows. Told to
stop, it asks its processes to end (SIGTERM) and ends them itself (SIGKILL) when their time is over.
Reports every change of the pod's status; deletes nothing, that is `processnodes`' part.

The kubelet of process nodes: starts a run for each pod that is bound there, and sees it off.

Never on by itself: somebody asks for such nodes by name of the option, and only pods on Nodes that
were made for it, of service accounts that may, are run (`podruns`). A pod that was running when
nobody ran it any more has failed: its processes are gone.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from phalanx.api.core import Pod
from phalanx.api.errors import ApiError, NotFound
from phalanx.api.kinds import POD, SUBJECT_ACCESS_REVIEW
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
    Delete,
    Informers,
    NodeClient,
    new_work_queue,
    perform,
    run_workers,
)

#: Seconds before a container is started again: the first time, and at most.
_MIN_BACKOFF, _MAX_BACKOFF = 10.0, 300.0
#: Seconds between two tries to report.
_REPORT_RETRY_SECONDS = 1.0
#: Longer than anybody waits.
_NO_DEADLINE = 1e9
#: Exit code of what could not be started.
_NOT_STARTED = 128


@dataclass(slots=True)
class _Container:
    """A container of the pod: what it is, and how it is at present."""

    name: str
    image: str
    command: ContainerCommand
    state: Object = field(default_factory=lambda: {"waiting": {"reason": "PodInitializing"}})
    restarts: int = 0
    started_at: str = ""
    exit_code: int | None = None

    def status(self) -> Object:
        """What is reported of it."""
        is_ready = "running" in self.state
        return container_status(
            self.name, self.image, self.state, ready=is_ready, restarts=self.restarts
        )


class PodRun:
    """The run of one pod, which is this very one and no namesake."""

    def __init__(self, host: ProcessHost, client: Client, clock: Clock, pod: Pod) -> None:
        self._host, self._client, self._clock, self._pod = host, client, clock, pod
        self._stopping, self._grace = asyncio.Event(), 0.0
        self._init_containers: list[_Container] = []
        self._containers: list[_Container] = []
        self._processes: dict[str, ContainerProcess] = {}
        self._policy, self._start_time = "Always", ""
        self._deadline_seconds = _NO_DEADLINE
        self._reporting = asyncio.Lock()
        #: Why it ends, if not by itself.
        self._termination: Object = {}

    @property
    def uid(self) -> str:
        """Which pod it is."""
        return self._pod.metadata.uid

    @property
    def key(self) -> Key:
        """What it is called."""
        return self._pod.metadata.key

    @property
    def sessions(self) -> dict[str, int]:
        """The sessions of the processes that run at present, by container."""
        return {name: process.session for name, process in self._processes.items()}

    def stop(self, grace: float) -> None:
        """Ask it to end within so many seconds; a shorter time may be given later."""
        self._grace = grace
        self._stopping.set()
        if not grace:
            for process in self._processes.values():
                process.signal(signal.SIGKILL)

    async def run(self) -> None:
        """Run it to its end, and report that."""
        folder = self._host.pod_directory(self.uid)
        try:
            await self._prepare()
        except UnsupportedContainer as refusal:
            await self._report(rejected_status("Refused", f"{refusal}"))
            return
        expiry = asyncio.create_task(self._enforce_deadline())
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            await self._run_containers()
        finally:
            expiry.cancel()
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def _prepare(self) -> None:
        """Find out what is to be run, and whether it may."""
        found = await self._client.get(POD, self._pod.metadata.key)
        if found["metadata"]["uid"] != self.uid:
            raise UnsupportedContainer("it is gone")
        await self._check_permission(found)
        spec = found["spec"]
        folder = self._host.pod_directory(self.uid)
        usual = self._host.environment(folder, spec.get("hostname") or found["metadata"]["name"])
        self._policy, self._start_time = spec.get("restartPolicy", "Always"), self._now()
        self._init_containers = [
            _build_container(found, one, usual) for one in spec.get("initContainers") or ()
        ]
        self._containers = [_build_container(found, one, usual) for one in spec["containers"]]
        self._deadline_seconds = min(
            spec.get("activeDeadlineSeconds") or _NO_DEADLINE, _NO_DEADLINE
        )

    async def _check_permission(self, found: Object) -> None:
        """Only a service account that was expressly allowed to has its processes run."""
        space, name = found["metadata"]["namespace"], service_account_of(found)
        wish = {"verb": "run", "group": "phalanx.dev", "resource": "processes", "namespace": space}
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{space}"]
        spec = {
            "user": f"system:serviceaccount:{space}:{name}", "resourceAttributes": wish,
            "groups": [*groups, "system:authenticated"],
        }  # fmt: skip
        review = {
            "apiVersion": SUBJECT_ACCESS_REVIEW.api_version, "kind": SUBJECT_ACCESS_REVIEW.name,
            "spec": spec,
        }  # fmt: skip
        told = await self._client.post(SUBJECT_ACCESS_REVIEW.url_path(), review)
        if not told["status"].get("allowed"):
            raise UnsupportedContainer(
                f"service account {space}/{name} may not run processes; "
                'grant it the verb "run" on "processes" of the group phalanx.dev'
            )

    async def _enforce_deadline(self) -> None:
        """End it when it has been active for too long."""
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
        await self._report({**self._status(), "phase": self._final_phase(), **self._termination})

    async def _run_init_container(self, container: _Container) -> bool:
        """Run an init container until it ends well; whether it did."""
        while await self._run_once(container):
            if self._policy == "Never" or not await self._back_off(container):
                return False
        return not self._stopping.is_set()

    async def _run_container(self, container: _Container) -> None:
        """Run a container for as long as the restart policy says."""
        while True:
            code = await self._run_once(container)
            over = self._policy == "Never" or (self._policy == "OnFailure" and code == 0)
            if over or not await self._back_off(container):
                break
        if any("running" in one.state for one in self._containers):
            await self._report(self._status())

    async def _run_once(self, container: _Container) -> int:
        """Run a container's program to its end; its exit code."""
        if self._stopping.is_set():
            return container.exit_code or 0
        metadata = self._pod.metadata
        output = ContainerOutput(
            self._client, metadata.key, self.uid, container.name, container.restarts
        )  # fmt: skip
        folder = self._host.pod_directory(self.uid)
        try:
            process = await ContainerProcess.start(container.command, folder, output)
        except OSError:
            self._record_exit(container, _NOT_STARTED, "StartError")
            return _NOT_STARTED
        self._processes[container.name] = process
        container.started_at = self._now()
        container.state = {"running": {"startedAt": container.started_at}}
        ending = asyncio.create_task(self._enforce_stop(process))
        try:
            await self._report(self._status())
            code = await process.wait()
        finally:
            ending.cancel()
            del self._processes[container.name]
        self._record_exit(container, code)
        return code

    async def _enforce_stop(self, process: ContainerProcess) -> None:
        """End a process that is told to stop and takes longer than it has."""
        await self._stopping.wait()
        process.signal(signal.SIGTERM)
        await asyncio.sleep(self._grace)
        process.signal(signal.SIGKILL)

    async def _back_off(self, container: _Container) -> bool:
        """Wait before a container is started again; False if it is not to be."""
        pause = min(_MIN_BACKOFF * 2**container.restarts, _MAX_BACKOFF)
        message = f"back-off {pause:g}s restarting failed container"
        container.state = {"waiting": {"reason": "CrashLoopBackOff", "message": message}}
        await self._report(self._status())
        try:
            await asyncio.wait_for(self._stopping.wait(), pause)
        except TimeoutError:
            container.restarts += 1
            return True
        self._record_exit(container, container.exit_code or 0)
        return False

    def _record_exit(self, container: _Container, code: int, reason: str = "") -> None:
        container.exit_code = code
        container.state = {"terminated": {
            "exitCode": code, "reason": reason or ("Completed" if code == 0 else "Error"),
            "startedAt": container.started_at or self._now(), "finishedAt": self._now(),
        }}  # fmt: skip

    def _final_phase(self) -> str:
        ended = [*self._init_containers, *self._containers]
        well = all(one.exit_code == 0 for one in ended) and not self._termination
        return "Succeeded" if well else "Failed"

    def _status(self) -> Object:
        """How it is at present."""
        is_up = any(one.started_at for one in self._containers)
        ready = all("running" in one.state for one in self._containers)
        return {
            "phase": "Running" if is_up else "Pending", "startTime": self._start_time,
            "podIP": LOOPBACK, "podIPs": [{"ip": LOOPBACK}], "hostIP": LOOPBACK,
            "conditions": readiness_conditions(self._now(), ready=ready),
            "initContainerStatuses": [one.status() for one in self._init_containers],
            "containerStatuses": [one.status() for one in self._containers],
        }  # fmt: skip

    async def _report(self, status: Object) -> None:
        """Say how it is, however often it takes; if it is gone, nobody needs to know."""
        async with self._reporting:
            while True:
                try:
                    await perform(self._client, status_patch(self._pod, status))
                    return
                except NotFound:
                    return
                except (ApiError, Unreachable) as error:
                    if isinstance(error, ApiError) and error.code < 500 and error.code != 429:
                        return
                await asyncio.sleep(_REPORT_RETRY_SECONDS)

    def _now(self) -> str:
        return timestamp(self._clock.now())


def _build_container(pod: Object, container: Object, base_env: Mapping[str, str]) -> _Container:
    try:
        found = build_container_command(pod, container, base_env)
    except UnsupportedContainer as refusal:
        raise UnsupportedContainer(f"container {container['name']}: {refusal}") from None
    return _Container(container["name"], container.get("image", ""), found)


#: Pods that run side by side at most; the others wait.
_MAX_PODS = 256
#: Seconds until a pod is looked at again that could not be started, or whose namesake still runs.
_RECHECK_SECONDS = 1.0
#: Seconds that processes have when the nodes themselves end, and that are waited for that.
_STOP_GRACE, _STOP_TIMEOUT = 0.8, 1.2
_NODE_RESTARTED_STATUS = rejected_status(
    "NodeRestarted", "its processes ended with the nodes that ran them"
)


class ProcessKubelets:
    """The kubelets of the process nodes of these names, all in one; each asks as its node.

    What they measure they tell together, by the `client`.
    """

    def __init__(
        self, client: Client, informers: Informers, clock: Clock, names: Collection[str],
        host: ProcessHost, node_client: NodeClient | None = None,
    ) -> None:  # fmt: skip
        self._client, self._clock, self._names, self._host = client, clock, names, host
        self._node_client = node_client or (lambda name: client)
        self._pods = informers.of(POD, Pod).cache
        self._queue = new_work_queue(client, type(self).__name__)
        self._runs: dict[Key, tuple[PodRun, asyncio.Task[None]]] = {}
        self._finished_uids: dict[Key, str] = {}
        self._tasks = asyncio.TaskGroup()
        self._pods.subscribe(self._on_pod_changed)

    async def run(self) -> None:
        """Run what is bound there until cancelled; then everything ends."""
        async with asyncio.TaskGroup() as self._tasks:
            consumption = ProcessMetricsCollector(
                self._client, lambda: [run for run, _ in self._runs.values()]
            )
            self._tasks.create_task(consumption.run())
            try:
                await run_workers(self._queue, self._sync_pod)
            finally:
                await self._stop_all()

    async def _stop_all(self) -> None:
        """Have everything end, soon; what has not ended then is ended by force."""
        runs = list(self._runs.values())
        for run, _ in runs:
            run.stop(_STOP_GRACE)
        if runs:
            await asyncio.wait([task for _, task in runs], timeout=_STOP_TIMEOUT)
        for _, task in runs:
            task.cancel()

    async def _sync_pod(self, key: Key) -> float | None:
        """Do whatever is due about a pod; in how many seconds to look again."""
        pod, (run, _) = self._pods.get(key), self._runs.get(key, (None, None))
        if run is not None:
            return self._sync_running_pod(run, pod)
        if pod is None or pod.spec.node_name not in self._names:
            self._finished_uids.pop(key, None)
            return None
        client = self._node_client(pod.spec.node_name)
        is_done = pod.is_terminal or self._finished_uids.get(key) == pod.metadata.uid
        if pod.metadata.deletion_timestamp:
            await perform(client, Delete(POD, key, pod.metadata.uid, grace=0))
        elif not is_done and pod.status.phase != "Pending":
            await perform(client, status_patch(pod, _NODE_RESTARTED_STATUS))
        elif not is_done:
            return self._start(key, pod)
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
        run = PodRun(self._host, self._node_client(pod.spec.node_name), self._clock, pod)
        self._runs[key] = run, self._tasks.create_task(self._run_pod(key, run))
        return None

    async def _run_pod(self, key: Key, run: PodRun) -> None:
        """A run from its start to its end, and a look at what is due then."""
        try:
            await run.run()
            self._finished_uids[key] = run.uid
            again = 0.0
        except (ApiError, Unreachable):
            again = _RECHECK_SECONDS
        finally:
            del self._runs[key]
        self._queue.add_after(key, again)

    def _on_pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        if pod is not None and pod.spec.node_name in self._names:
            self._queue.add(pod.metadata.key)
