"""A cluster on a TLS port, in its own thread and in real time: for clients in any language."""

from __future__ import annotations

import asyncio
import os
import secrets
import ssl
import subprocess
from collections.abc import Coroutine, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from phalanx.client import kubeconfig
from phalanx.clock import WallClock
from phalanx.randomness import SystemRandom
from phalanx.server.http_server import bind_socket, serve_http
from phalanx.server.security.authorization import ADMIN, Tokens
from phalanx.server.security.keyring import server_tls_context
from phalanx.store.memory import MemoryStore
from phalanx.testing.blocking import Phalanx
from phalanx.testing.cluster import Cluster, running_cluster, unwrap_exception_group
from phalanx.testing.settings import Settings

T = TypeVar("T")

_HOST = "127.0.0.1"
#: Seconds between SIGTERM and SIGKILL of a program.
_TERMINATE_TIMEOUT = 5.0


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """The TLS identity of servers: created once and used by any number of clusters."""

    tls: ssl.SSLContext
    ca: str

    @classmethod
    def create(cls, folder: Path) -> ServerIdentity:
        """Load the identity in a directory, or create one there."""
        tls, authority = server_tls_context(folder, [], WallClock().now())
        return cls(tls, authority.decode())


class Served(Phalanx):
    """A cluster that listens on a free loopback port, over TLS."""

    def __init__(self, cluster: Cluster, url: str, config: Path) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        super().__init__(cluster, self._run_coroutine)
        self.url = url
        #: The file of the administrator's kubeconfig.
        self.kubeconfig = config

    @contextmanager
    def program(self, *command: str | Path) -> Iterator[subprocess.Popen[bytes]]:
        """Run a program with $KUBECONFIG set for the duration of the context.

        A program that ends by itself with an exit code other than 0 fails the test.
        """
        environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig)}
        with subprocess.Popen(list(map(str, command)), env=environment) as process:
            try:
                yield process
                code = process.poll()
                assert not code, f"{' '.join(map(str, command))} ended with exit code {code}"
            finally:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_TERMINATE_TIMEOUT)
                process.kill()

    def stop(self) -> None:
        """Stop the cluster."""
        # The loop is closed already if the cluster has failed.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stopped.set)

    async def wait_until_stopped(self) -> None:
        """Wait until `stop` is called."""
        await self._stopped.wait()

    def _run_coroutine(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self._loop.is_closed():
            coroutine.close()
            raise RuntimeError("the control plane has failed; its error follows after the test")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


@contextmanager
def serving(
    settings: Settings, folder: Path, identity: ServerIdentity | None = None
) -> Iterator[Served]:
    """Serve a cluster for the duration of the context; write its kubeconfig to the directory."""
    identity = identity or ServerIdentity.create(folder)
    started: Future[Served] = Future()
    with ThreadPoolExecutor(1, "phalanx") as thread:
        ended = thread.submit(
            lambda: uvloop.run(_serve(settings, folder, identity, started=started))
        )
        either: list[Future[Any]] = [started, ended]
        wait(either, return_when=FIRST_COMPLETED)
        if not started.done():
            with unwrap_exception_group():
                ended.result()
        served = started.result()
        try:
            yield served
        finally:
            served.stop()
            with unwrap_exception_group():
                ended.result()


async def _serve(
    settings: Settings, folder: Path, identity: ServerIdentity, started: Future[Served]
) -> None:
    token = secrets.token_urlsafe(32)
    tokens, sock = Tokens({token: ADMIN}), bind_socket(_HOST, 0)
    port = sock.getsockname()[1]
    url, config = f"https://{_HOST}:{port}", folder / f"kubeconfig-{port}"
    async with (
        running_cluster(
            settings, MemoryStore(), WallClock(), random=SystemRandom(), tokens=tokens
        ) as cluster,
        serve_http(cluster.plane.server.handle, tokens, sock, tls=identity.tls),
    ):
        kubeconfig.write(config, url, ca_pem=identity.ca, token=token)
        served = Served(cluster, url, config)
        started.set_result(served)
        await served.wait_until_stopped()
