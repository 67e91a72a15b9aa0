"""Replicas of the scheduler beside a foreign server, and the faults of their leader.

Each replica reaches the server through a link of its own, which can be cut: bytes stop, connections
stay open, as when a switch fails. The leader is found by the identity in the Lease, which each
replica logs when it is elected.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from phalanx.api.core import Pod
from phalanx.api.errors import ApiError
from phalanx.api.kinds import LEASE, POD
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from phalanx.client.client import Client

_LOCAL = "127.0.0.1"
_CHUNK_BYTES = 64 * 1024
#: Seconds between two reads of the state that is waited for.
_POLL_SECONDS = 0.1
#: Seconds after which a state is not reached any more; no limit for slow machines.
_HANG_SECONDS = 240.0
LEASE_KEY = Key("kube-system", "phalanx-scheduler")
_ACQUIRED = re.compile(r"leadership acquired .*identity=(\S+)")


class NetworkLink:
    """Forwards bytes between a port of its own and that of the server, except while it is cut."""

    def __init__(self, port: int) -> None:
        self._port, self._is_up = port, asyncio.Event()
        self._is_up.set()
        self._carriers: set[asyncio.Task[None]] = set()

    def cut(self) -> None:
        """Stop all bytes in both directions; connections stay open."""
        self._is_up.clear()

    def heal(self) -> None:
        """Let bytes pass again, also those that waited."""
        self._is_up.set()

    @contextlib.asynccontextmanager
    async def listen(self) -> AsyncIterator[int]:
        """Listen while the context lasts; yields the port."""
        server = await asyncio.start_server(self._open, _LOCAL, 0, limit=_CHUNK_BYTES)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            for carrier in self._carriers:
                carrier.cancel()
            await asyncio.gather(*self._carriers, return_exceptions=True)

    def _open(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        carrier = asyncio.create_task(self._carry(near, back))
        self._carriers.add(carrier)
        carrier.add_done_callback(self._carriers.discard)

    async def _carry(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        await self._is_up.wait()
        far, forth = await asyncio.open_connection(_LOCAL, self._port, limit=_CHUNK_BYTES)
        pumps = [
            asyncio.create_task(self._pump(near, forth)),
            asyncio.create_task(self._pump(far, back)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in (back, forth):
                end.transport.abort()
            for pump in pumps:
                pump.cancel()
            await asyncio.wait(pumps)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(_CHUNK_BYTES):
                await self._is_up.wait()
                sink.write(data)
                await sink.drain()


@dataclass(slots=True)
class Replica:
    """One scheduler process with its log and its link to the server."""

    process: subprocess.Popen[bytes]
    log: Path
    link: NetworkLink

    @property
    def identities(self) -> set[str]:
        """Return the identities with which it was elected."""
        return set(_ACQUIRED.findall(self.log.read_text()))

    def stop(self) -> None:
        """End the process at once."""
        self.process.kill()
        self.process.wait()


#: What happens to a leader, and what brings it back after the take-over.
Fault = tuple[Callable[[Replica], None], Callable[[Replica], None]]
FAULTS: dict[str, Fault] = {
    "killed": (lambda one: one.process.send_signal(signal.SIGKILL), lambda one: None),
    "stopped": (
        lambda one: one.process.send_signal(signal.SIGSTOP),
        lambda one: one.process.send_signal(signal.SIGCONT),
    ),
    "cut off": (lambda one: one.link.cut(), lambda one: one.link.heal()),
}


@dataclass(slots=True)
class ReplicaSet:
    """The replicas of the scheduler; as many as at the start after every fault."""

    kubeconfig: Path
    options: tuple[str, ...]
    folder: Path
    stack: contextlib.AsyncExitStack
    replicas: list[Replica] = field(default_factory=list)
    started: int = 0

    async def start(self) -> None:
        """Start one more replica."""
        self.started += 1
        config = yaml.safe_load(self.kubeconfig.read_text())
        cluster: Object = config["clusters"][0]["cluster"]
        host, _, port = cluster["server"].rpartition(":")
        link = NetworkLink(int(port))
        cluster["server"] = f"{host}:{await self.stack.enter_async_context(link.listen())}"
        own = self.folder / f"kubeconfig-{self.started}"
        own.touch(mode=0o600)
        own.write_text(yaml.safe_dump(config))
        log = self.folder / f"scheduler-{self.started}.log"
        replica = Replica(self._spawn(own, log), log, link)
        self.stack.callback(replica.stop)
        self.replicas.append(replica)

    def _spawn(self, config: Path, log: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "phalanx", "scheduler", "--kubeconfig", str(config)]
        with log.open("wb") as stderr:
            return subprocess.Popen(
                [*command, *self.options],
                stdout=subprocess.DEVNULL, stderr=stderr, stdin=subprocess.DEVNULL,
            )  # fmt: skip

    async def replace_ended(self) -> None:
        """Start a replica for each that was killed, as a Deployment does."""
        ended = [one for one in self.replicas if one.process.poll() is not None]
        for one in ended:
            self.replicas.remove(one)
            await self.start()

    def find(self, identity: str) -> Replica | None:
        """Return the replica that was elected with an identity."""
        return next((one for one in self.replicas if identity in one.identities), None)


async def wait_for(condition: Callable[[], object]) -> float:
    """Wait until an awaitable condition is true; return the seconds that it took."""
    begin = time.monotonic()
    while True:
        found = condition()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return time.monotonic() - begin
        assert time.monotonic() - begin < _HANG_SECONDS, "the state was not reached"
        await asyncio.sleep(_POLL_SECONDS)


async def lease_holder(client: Client) -> str:
    """Return the identity of the leader; "" if there is none."""
    try:
        spec = (await client.get(LEASE, LEASE_KEY)).get("spec") or {}
    except ApiError:
        return ""
    return str(spec.get("holderIdentity") or "")


@dataclass(frozen=True, slots=True)
class BoundMembers:
    """How many members of each gang have a node, and how many pods each node has."""

    by_gang: Counter[str]
    by_node: Counter[str]

    @classmethod
    async def read(cls, client: Client, label: str) -> BoundMembers:
        """Count all pods of a server."""
        pods = (await client.list(POD, Pod)).items
        bound = [pod for pod in pods if pod.spec.node_name]
        return cls(
            Counter(pod.metadata.labels[label] for pod in bound),
            Counter(pod.spec.node_name for pod in bound),
        )

    def partial(self, size: int) -> list[str]:
        """Return the gangs of which some members have a node and others have none."""
        return sorted(gang for gang, count in self.by_gang.items() if count != size)
