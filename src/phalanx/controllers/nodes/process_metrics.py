"""Measures CPU and memory of pod processes and sends them to the server, for `kubectl top`.

The usage of a container is that of all processes in its session. Reads `/proc`; without it (on
systems other than Linux) nothing is measured or sent.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from phalanx import logs
from phalanx.api.errors import ApiError
from phalanx.api.kinds import POD_METRICS
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from phalanx.client.client import Client
from phalanx.client.transports import Unreachable

LOG = logs.component("process-kubelet")

#: Seconds between two samples.
_SAMPLE_INTERVAL = 5.0
_PROC = Path("/proc")


class ProcessUsage(NamedTuple):
    """CPU seconds since the start, and current bytes of memory."""

    cpu: float
    memory: int


_NO_USAGE = ProcessUsage(0.0, 0)


class MeteredPod(Protocol):
    """A pod with running processes."""

    @property
    def key(self) -> Key:
        """Namespace and name."""
        ...

    @property
    def uid(self) -> str:
        """The uid of the pod."""
        ...

    @property
    def sessions(self) -> Mapping[str, int]:
        """The session ids of its processes, by container."""
        ...


class ProcessMetricsCollector:
    """Measures the usage of all pods of a host and sends it to the server."""

    def __init__(self, client: Client, pods: Callable[[], Sequence[MeteredPod]]) -> None:
        self._client, self._pods = client, pods
        self._previous: Mapping[int, ProcessUsage] = {}

    async def run(self) -> None:
        """Measure and send until cancelled."""
        loop = asyncio.get_running_loop()
        sampled_at = loop.time()
        while True:
            await asyncio.sleep(_SAMPLE_INTERVAL)
            now = loop.time()
            if pods := self._pods():
                usage = await asyncio.to_thread(usage_by_session)
                elapsed = now - sampled_at
                for pod in pods:
                    await self._post_metrics(
                        pod, self._container_usage(pod, usage, elapsed), elapsed
                    )
                self._previous = usage
            sampled_at = now

    def _container_usage(
        self, pod: MeteredPod, usage: Mapping[int, ProcessUsage], elapsed: float
    ) -> list[Object]:
        """Return the usage per container; a session without a previous sample started from zero."""
        containers: list[Object] = []
        for name, session in pod.sessions.items():
            if session in usage:
                cpu = usage[session].cpu - self._previous.get(session, _NO_USAGE).cpu
                amounts = {
                    "cpu": f"{max(round(cpu / elapsed * 1e3), 0)}m",
                    "memory": f"{usage[session].memory}",
                }
                containers.append({"name": name, "usage": amounts})
        return containers

    async def _post_metrics(self, pod: MeteredPod, usage: Sequence[Object], elapsed: float) -> None:
        """Send the usage of a pod; a sample that fails is dropped, the next one follows soon."""
        if not usage:
            return
        body = {
            "apiVersion": POD_METRICS.api_version,
            "kind": POD_METRICS.name,
            "metadata": {"name": pod.key.name, "uid": pod.uid},
            "window": f"{round(elapsed)}s",
            "containers": usage,
        }
        try:
            await self._client.post(POD_METRICS.url_path(pod.key.namespace), body)
        except (ApiError, Unreachable) as error:
            LOG.debug("pod metrics not sent", kind="Pod", key=pod.key, reason=error)


def usage_by_session() -> dict[int, ProcessUsage]:
    """Return the usage of all processes of the machine, summed by session."""
    totals: dict[int, ProcessUsage] = {}
    for session, usage in _read_processes():
        total = totals.get(session, _NO_USAGE)
        totals[session] = ProcessUsage(total.cpu + usage.cpu, total.memory + usage.memory)
    return totals


def _read_processes() -> Iterator[tuple[int, ProcessUsage]]:
    """Yield the session and usage of each process, including its terminated children."""
    if not _PROC.is_dir():
        return
    tick, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    for entry in os.scandir(_PROC):
        if not entry.name.isdecimal():
            continue
        try:
            text = (_PROC / entry.name / "stat").read_text(errors="replace")
        except OSError:
            continue
        # After the command name, which may contain anything: state, parent, group, session, …
        fields = text.rpartition(")")[2].split()
        cpu = sum(map(int, fields[11:15])) / tick
        yield int(fields[3]), ProcessUsage(cpu, int(fields[21]) * page)
