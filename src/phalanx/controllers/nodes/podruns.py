"""One pod on a process node, from its start to its end.

    may it? ─▶ programs ─▶ init containers, one after another ─▶ containers, side by side ─▶ report

Containers that end are started again as the restart policy says, after a pause that grows. Told to
stop, it asks its processes to end (SIGTERM) and ends them itself (SIGKILL) when their time is over.
Reports every change of the pod's status; deletes nothing, that is `processnodes`' part.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field

from phalanx.api.core import Pod
from phalanx.api.errors import ApiError, NotFound
from phalanx.api.kinds import POD, SUBJECT_ACCESS_REVIEW
from phalanx.api.meta import Key, timestamp
from phalanx.api.wire import Object
from phalanx.client.client import Client
from phalanx.client.transports import Unreachable
from phalanx.clock import Clock
from phalanx.controllers.actions import perform
from phalanx.controllers.nodes.disruptedpods import status_patch
from phalanx.controllers.nodes.podreports import conditions, container_status, refused
from phalanx.controllers.nodes.processes import Host, Output, Process
from phalanx.controllers.nodes.programs import LOOPBACK, Program, Refused, account, program

#: Seconds before a container is started again: the first time, and at most.
_FIRST_PAUSE, _LONGEST_PAUSE = 10.0, 300.0
#: Seconds between two tries to report.
_AGAIN = 1.0
#: Longer than anybody waits.
_FOR_EVER = 1e9
#: Exit code of what could not be started.
_NOT_STARTED = 128


@dataclass(slots=True)
class _Container:
    """A container of the pod: what it is, and how it is at present."""

    name: str
    image: str
    program: Program
    state: Object = field(default_factory=lambda: {"waiting": {"reason": "PodInitializing"}})
    restarts: int = 0
    begin: str = ""
    code: int | None = None

    def status(self) -> Object:
        """What is reported of it."""
        is_ready = "running" in self.state
        return container_status(
            self.name, self.image, self.state, ready=is_ready, restarts=self.restarts
        )


class PodRun:
    """The run of one pod, which is this very one and no namesake."""

    def __init__(self, host: Host, client: Client, clock: Clock, pod: Pod) -> None:
        self._host, self._client, self._clock, self._pod = host, client, clock, pod
        self._stopping, self._grace = asyncio.Event(), 0.0
        self._inits: list[_Container] = []
        self._containers: list[_Container] = []
        self._processes: dict[str, Process] = {}
        self._policy, self._begin = "Always", ""
        self._most = _FOR_EVER
        self._reporting = asyncio.Lock()
        #: Why it ends, if not by itself.
        self._fate: Object = {}

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
        folder = self._host.folder(self.uid)
        try:
            await self._prepare()
        except Refused as refusal:
            await self._report(refused("Refused", f"{refusal}"))
            return
        expiry = asyncio.create_task(self._expire())
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            await self._live()
        finally:
            expiry.cancel()
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def _prepare(self) -> None:
        """Find out what is to be run, and whether it may."""
        found = await self._client.get(POD, self._pod.metadata.key)
        if found["metadata"]["uid"] != self.uid:
            raise Refused("it is gone")
        await self._check_grant(found)
        spec = found["spec"]
        folder = self._host.folder(self.uid)
        usual = self._host.environment(folder, spec.get("hostname") or found["metadata"]["name"])
        self._policy, self._begin = spec.get("restartPolicy", "Always"), self._now()
        self._inits = [_made(found, one, usual) for one in spec.get("initContainers") or ()]
        self._containers = [_made(found, one, usual) for one in spec["containers"]]
        self._most = min(spec.get("activeDeadlineSeconds") or _FOR_EVER, _FOR_EVER)

    async def _check_grant(self, found: Object) -> None:
        """Only a service account that was expressly allowed to has its processes run."""
        space, name = found["metadata"]["namespace"], account(found)
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
        told = await self._client.post(SUBJECT_ACCESS_REVIEW.path(), review)
        if not told["status"].get("allowed"):
            raise Refused(
                f"service account {space}/{name} may not run processes; "
                'grant it the verb "run" on "processes" of the group phalanx.dev'
            )

    async def _expire(self) -> None:
        """End it when it has been active for too long."""
        await asyncio.sleep(self._most)
        self._fate = {
            "reason": "DeadlineExceeded",
            "message": "Pod was active on the node longer than the specified deadline",
        }
        self.stop(float(self._pod.spec.termination_grace_period_seconds or 0))

    async def _live(self) -> None:
        for container in self._inits:
            if not await self._completed(container):
                break
        else:
            async with asyncio.TaskGroup() as group:
                for container in self._containers:
                    group.create_task(self._kept(container))
        await self._report({**self._status(), "phase": self._outcome(), **self._fate})

    async def _completed(self, container: _Container) -> bool:
        """Run an init container until it ends well; whether it did."""
        while await self._run_once(container):
            if self._policy == "Never" or not await self._paused(container):
                return False
        return not self._stopping.is_set()

    async def _kept(self, container: _Container) -> None:
        """Run a container for as long as the restart policy says."""
        while True:
            code = await self._run_once(container)
            over = self._policy == "Never" or (self._policy == "OnFailure" and code == 0)
            if over or not await self._paused(container):
                break
        if any("running" in one.state for one in self._containers):
            await self._report(self._status())

    async def _run_once(self, container: _Container) -> int:
        """Run a container's program to its end; its exit code."""
        if self._stopping.is_set():
            return container.code or 0
        metadata = self._pod.metadata
        output = Output(
            self._client, metadata.key, self.uid, container.name, container.restarts
        )  # fmt: skip
        folder = self._host.folder(self.uid)
        try:
            process = await Process.started(container.program, folder, output)
        except OSError:
            self._note_end(container, _NOT_STARTED, "StartError")
            return _NOT_STARTED
        self._processes[container.name] = process
        container.begin = self._now()
        container.state = {"running": {"startedAt": container.begin}}
        ending = asyncio.create_task(self._watch_over(process))
        try:
            await self._report(self._status())
            code = await process.ended()
        finally:
            ending.cancel()
            del self._processes[container.name]
        self._note_end(container, code)
        return code

    async def _watch_over(self, process: Process) -> None:
        """End a process that is told to stop and takes longer than it has."""
        await self._stopping.wait()
        process.signal(signal.SIGTERM)
        await asyncio.sleep(self._grace)
        process.signal(signal.SIGKILL)

    async def _paused(self, container: _Container) -> bool:
        """Wait before a container is started again; False if it is not to be."""
        pause = min(_FIRST_PAUSE * 2**container.restarts, _LONGEST_PAUSE)
        message = f"back-off {pause:g}s restarting failed container"
        container.state = {"waiting": {"reason": "CrashLoopBackOff", "message": message}}
        await self._report(self._status())
        try:
            await asyncio.wait_for(self._stopping.wait(), pause)
        except TimeoutError:
            container.restarts += 1
            return True
        self._note_end(container, container.code or 0)
        return False

    def _note_end(self, container: _Container, code: int, reason: str = "") -> None:
        container.code = code
        container.state = {"terminated": {
            "exitCode": code, "reason": reason or ("Completed" if code == 0 else "Error"),
            "startedAt": container.begin or self._now(), "finishedAt": self._now(),
        }}  # fmt: skip

    def _outcome(self) -> str:
        ended = [*self._inits, *self._containers]
        well = all(one.code == 0 for one in ended) and not self._fate
        return "Succeeded" if well else "Failed"

    def _status(self) -> Object:
        """How it is at present."""
        is_up = any(one.begin for one in self._containers)
        ready = all("running" in one.state for one in self._containers)
        return {
            "phase": "Running" if is_up else "Pending", "startTime": self._begin,
            "podIP": LOOPBACK, "podIPs": [{"ip": LOOPBACK}], "hostIP": LOOPBACK,
            "conditions": conditions(self._now(), ready=ready),
            "initContainerStatuses": [one.status() for one in self._inits],
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
                await asyncio.sleep(_AGAIN)

    def _now(self) -> str:
        return timestamp(self._clock.now())


def _made(pod: Object, container: Object, usual: Mapping[str, str]) -> _Container:
    try:
        found = program(pod, container, usual)
    except Refused as refusal:
        raise Refused(f"container {container['name']}: {refusal}") from None
    return _Container(container["name"], container.get("image", ""), found)
