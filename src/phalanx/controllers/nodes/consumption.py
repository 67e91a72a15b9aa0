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
_BETWEEN = 5.0
_PROC = Path("/proc")


class Spent(NamedTuple):
    """Seconds of CPU since the beginning, and bytes of memory at present."""

    cpu: float
    memory: int


_NOTHING = Spent(0.0, 0)


class Measured(Protocol):
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


class Consumption:
    """Looks at what all the pods of a host use, and tells the server."""

    def __init__(self, client: Client, pods: Callable[[], Sequence[Measured]]) -> None:
        self._client, self._pods = client, pods
        self._before: Mapping[int, Spent] = {}

    async def run(self) -> None:
        """Look and tell until cancelled."""
        then = _now()
        while True:
            await asyncio.sleep(_BETWEEN)
            now = _now()
            if pods := self._pods():
                spent = await asyncio.to_thread(spent_by_session)
                for pod in pods:
                    await self._tell(pod, self._used(pod, spent, now - then), now - then)
                self._before = spent
            then = now

    def _used(self, pod: Measured, spent: Mapping[int, Spent], elapsed: float) -> list[Object]:
        """What its containers use; one that began since the last look had spent nothing by then."""
        used = []
        for name, session in pod.sessions.items():
            if session in spent:
                cpu = spent[session].cpu - self._before.get(session, _NOTHING).cpu
                usage = {
                    "cpu": f"{max(round(cpu / elapsed * 1e3), 0)}m",
                    "memory": f"{spent[session].memory}",
                }
                used.append({"name": name, "usage": usage})
        return used

    async def _tell(self, pod: Measured, used: Sequence[Object], elapsed: float) -> None:
        """Tell the server of a pod; if it does not listen, it will be told of the next look."""
        if not used:
            return
        body = {
            "apiVersion": POD_METRICS.api_version, "kind": POD_METRICS.name,
            "metadata": {"name": pod.key.name, "uid": pod.uid},
            "window": f"{round(elapsed)}s", "containers": used,
        }  # fmt: skip
        with suppress(ApiError, Unreachable):
            await self._client.post(POD_METRICS.path(pod.key.namespace), body)


def _now() -> float:
    return asyncio.get_running_loop().time()


def spent_by_session() -> dict[int, Spent]:
    """What all processes of the machine have spent and hold, added up by session."""
    found: dict[int, Spent] = {}
    for session, spent in _processes():
        so_far = found.get(session, _NOTHING)
        found[session] = Spent(so_far.cpu + spent.cpu, so_far.memory + spent.memory)
    return found


def _processes() -> Iterator[tuple[int, Spent]]:
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
        yield int(fields[3]), Spent(cpu, int(fields[21]) * page)
