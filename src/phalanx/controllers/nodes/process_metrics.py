"""What the processes of pods use, measured now and then and sent to the server for `kubectl top`.

A process counts with all that it started, by the session that they share. Read from `/proc`: where
there is none (off Linux) nothing is measured and nothing is sent.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from phalanx.api.errors import ApiError
from phalanx.api.kinds import POD_METRICS
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from phalanx.client.client import Client
from phalanx.client.transports import Unreachable

#: Seconds between two looks.
_SAMPLE_INTERVAL = 5.0
_PROC = Path("/proc")


class ProcessUsage(NamedTuple):
    """Seconds of CPU since the beginning, and bytes of memory at present."""

    cpu: float
    memory: int


_NO_USAGE = ProcessUsage(0.0, 0)


class MeteredPod(Protocol):
    """A pod whose processes run."""

    @property
    def key(self) -> Key:
        """What it is called."""
        ...

    @property
    def uid(self) -> str:
        """Which one it is."""
        ...

    @property
    def sessions(self) -> Mapping[str, int]:
        """The sessions of its processes, by container."""
        ...


class ProcessMetricsCollector:
    """Looks at what all the pods of a host use, and tells the server."""

    def __init__(self, client: Client, pods: Callable[[], Sequence[MeteredPod]]) -> None:
        self._client, self._pods = client, pods
        self._previous: Mapping[int, ProcessUsage] = {}

    async def run(self) -> None:
        """Look and tell until cancelled."""
        then = _now()
        while True:
            await asyncio.sleep(_SAMPLE_INTERVAL)
            now = _now()
            if pods := self._pods():
                spent = await asyncio.to_thread(usage_by_session)
                for pod in pods:
                    await self._post_metrics(
                        pod, self._container_usage(pod, spent, now - then), now - then
                    )
                self._previous = spent
            then = now

    def _container_usage(
        self, pod: MeteredPod, spent_usage: Mapping[int, ProcessUsage], elapsed: float
    ) -> list[Object]:
        """What its containers use; one that began since the last look had spent nothing by then."""
        used = []
        for name, session in pod.sessions.items():
            if session in spent_usage:
                cpu = spent_usage[session].cpu - self._previous.get(session, _NO_USAGE).cpu
                usage = {
                    "cpu": f"{max(round(cpu / elapsed * 1e3), 0)}m",
                    "memory": f"{spent_usage[session].memory}",
                }
                used.append({"name": name, "usage": usage})
        return used

    async def _post_metrics(self, pod: MeteredPod, usage: Sequence[Object], elapsed: float) -> None:
        """Tell the server of a pod; if it does not listen, it will be told of the next look."""
        if not usage:
            return
        body = {
            "apiVersion": POD_METRICS.api_version, "kind": POD_METRICS.name,
            "metadata": {"name": pod.key.name, "uid": pod.uid},
            "window": f"{round(elapsed)}s", "containers": usage,
        }  # fmt: skip
        with suppress(ApiError, Unreachable):
            await self._client.post(POD_METRICS.url_path(pod.key.namespace), body)


def _now() -> float:
    return asyncio.get_running_loop().time()


def usage_by_session() -> dict[int, ProcessUsage]:
    """What all processes of the machine have spent and hold, added up by session."""
    found: dict[int, ProcessUsage] = {}
    for session, spent in _read_processes():
        so_far = found.get(session, _NO_USAGE)
        found[session] = ProcessUsage(so_far.cpu + spent.cpu, so_far.memory + spent.memory)
    return found


def _read_processes() -> Iterator[tuple[int, ProcessUsage]]:
    """Each process by its session, with what its children spent that have ended."""
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
        # Behind the name, which may hold anything: state, parent, group, session, …
        fields = text.rpartition(")")[2].split()
        cpu = sum(map(int, fields[11:15])) / tick
        yield int(fields[3]), ProcessUsage(cpu, int(fields[21]) * page)
