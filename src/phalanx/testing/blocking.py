"""Clusters for tests that are not async: each method blocks until its result is there.

Phalanx    the methods of `Cluster`, blocking
Virtual    in virtual time: sleeping takes no time, and all randomness comes from a seed
Served     on a TLS port, in its own thread and in real time: for clients in any language
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory
from threading import Thread, current_thread, main_thread
from typing import IO, Any, Concatenate, ParamSpec, Protocol, TypeVar

import uvloop

from phalanx.api.errors import ApiError
from phalanx.client import kubeconfig
from phalanx.clock import LoopClock, WallClock
from phalanx.randomness import SeededRandom, SystemRandom
from phalanx.server.http_server import bind_socket, serve_http
from phalanx.server.security.authorization import ADMIN, Tokens
from phalanx.server.security.keyring import server_tls_context
from phalanx.sim.simulation import EPOCH, LATENCY
from phalanx.sim.virtual_time import VirtualLoop
from phalanx.store.memory import MemoryStore
from phalanx.testing.cluster import (
    Cluster,
    NotReached,
    Settings,
    running_cluster,
    unwrap_exception_group,
)

P = ParamSpec("P")
T = TypeVar("T")

_HOST = "127.0.0.1"
#: Seconds between SIGTERM and SIGKILL of a program.
_TERMINATE_TIMEOUT = 5.0
#: Seconds between two checks whether a process is left.
_TERMINATE_POLL = 0.02
#: How much of the output of a program that has failed the error shows.
_OUTPUT_LINES = 40


class CoroutineRunner(Protocol):
    """Runs coroutines on the event loop of a cluster."""

    def __call__(self, question: Coroutine[Any, Any, T], /) -> T:
        """Run a coroutine to its end and return its result."""
        ...


def _blocking(
    method: Callable[Concatenate[Cluster, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Phalanx, P], T]:
    @wraps(method)
    def blocking_method(self: Phalanx, /, *args: P.args, **kwargs: P.kwargs) -> T:
        __tracebackhide__ = True
        try:
            return self.drive(method(self.cluster, *args, **kwargs))
        except (ApiError, FileNotFoundError, NotReached, ProgramFailed) as error:
            # The frames between the test and the error do not help the author of the test.
            raise error.with_traceback(None) from None

    return blocking_method


class Phalanx:
    """A control plane for one test, in real or virtual time."""

    def __init__(self, cluster: Cluster, drive: CoroutineRunner) -> None:
        #: The same control plane with async methods, for coroutines that run on its loop.
        self.cluster = cluster
        self.drive = drive

    nodes = _blocking(Cluster.nodes)
    apply = _blocking(Cluster.apply)
    get = _blocking(Cluster.get)
    find = _blocking(Cluster.find)
    delete = _blocking(Cluster.delete)
    wait_for = _blocking(Cluster.wait_for)
    wait_for_all = _blocking(Cluster.wait_for_all)
    wait_gone = _blocking(Cluster.wait_gone)
    why = _blocking(Cluster.why)
    wrongs = _blocking(Cluster.wrongs)


# ---- virtual time --------------------------------------------------------------------------------


class Virtual(Phalanx):
    """A cluster whose event loop runs only while the test runs a coroutine on it."""

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass; the test does not wait."""
        self.drive(asyncio.sleep(seconds))


def is_loop_running() -> bool:
    """Return whether an event loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@contextmanager
def virtually(settings: Settings) -> Iterator[Virtual]:
    """Run a cluster in virtual time for the duration of the context, on an event loop of its own.

    Raises RuntimeError where an event loop runs already, such as in a notebook.
    """
    if is_loop_running():
        raise RuntimeError(
            "an event loop runs in this thread already: start virtual time in another"
        )
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        ready, stopped = asyncio.Event(), asyncio.Event()
        clusters: list[Cluster] = []

        async def host() -> None:
            clock = LoopClock(runner.get_loop(), EPOCH)
            random = SeededRandom(settings.seed)
            store = MemoryStore(lambda: random.between(*LATENCY))
            async with running_cluster(settings, store, clock, random=random) as cluster:
                clusters.append(cluster)
                ready.set()
                await stopped.wait()

        hosting = runner.get_loop().create_task(host(), name="cluster")

        def drive(coroutine: Coroutine[Any, Any, T]) -> T:
            return runner.run(_run_while_hosted(hosting, coroutine))

        drive(ready.wait())
        try:
            yield Virtual(clusters[0], drive)
        finally:
            stopped.set()
            runner.run(_wait_for_end(hosting))


async def _run_while_hosted(hosting: asyncio.Task[None], coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end. If the cluster fails before, raise the cluster's error."""
    task = asyncio.ensure_future(coroutine)
    await asyncio.wait([task, hosting], return_when=asyncio.FIRST_COMPLETED)
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
        await _wait_for_end(hosting)
    return await task


async def _wait_for_end(hosting: asyncio.Task[None]) -> None:
    with unwrap_exception_group():
        await hosting


# ---- on a port -----------------------------------------------------------------------------------


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


class ProgramFailed(AssertionError):
    """A program under test has ended with an error; the message has the end of its output."""


class RunningProgram:
    """A program under test, and the future of its exit code."""

    def __init__(self, command: str, process: subprocess.Popen[bytes], output: Path) -> None:
        self._command, self._process, self._output = command, process, output
        self.ended: Future[int] = Future()
        Thread(target=lambda: self.ended.set_result(process.wait()), daemon=True).start()

    def find_failure(self) -> ProgramFailed | None:
        """Return an error if the program has ended by itself with an exit code other than 0."""
        code = self._process.poll()
        if not code:
            return None
        lines = self.read_output().splitlines()[-_OUTPUT_LINES:]
        shown = "\n".join(f"  {line}" for line in lines) or "  (no output)"
        return ProgramFailed(f"{self._command} ended with exit code {code}:\n{shown}")

    def read_output(self) -> str:
        """Return what the program has written to stdout and stderr."""
        return self._output.read_text(errors="replace")

    def terminate(self) -> None:
        """End the program and what it has started: SIGTERM, then SIGKILL.

        A second ^C ends the wait for those that handle SIGTERM.
        """
        try:
            is_running, until = self._signal(signal.SIGTERM), time.monotonic() + _TERMINATE_TIMEOUT
            while is_running and time.monotonic() < until:
                time.sleep(_TERMINATE_POLL)
                self._process.poll()
                is_running = self._signal(0)
        finally:
            self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> bool:
        """Send a signal to the process group; whether it has a process that can get it."""
        # macOS denies permission for a group whose last process has ended.
        try:
            os.killpg(self._process.pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True


def start_program(
    arguments: list[str], environment: dict[str, str], output: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Start a program in a process group of its own. Raises ProgramFailed if it does not start."""
    try:
        return subprocess.Popen(
            arguments,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
    except OSError as error:
        message = f"{shlex.join(arguments)} does not start: {error.strerror}"
        raise ProgramFailed(message) from None


@contextmanager
def signals_as_interrupt() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the run as ^C does: by default they would leave its programs."""
    is_main = current_thread() is main_thread()
    numbers = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if is_main and signal.getsignal(number) is signal.SIG_DFL
    ]
    for number in numbers:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


class Served(Phalanx):
    """A cluster that listens on a free loopback port, over TLS."""

    def __init__(self, cluster: Cluster, url: str, config: Path) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        super().__init__(cluster, self._run_coroutine)
        self._programs: list[RunningProgram] = []
        self.url = url
        #: The file of the administrator's kubeconfig.
        self.kubeconfig = config

    @contextmanager
    def program(self, *command: str | Path) -> Iterator[subprocess.Popen[bytes]]:
        """Run a program with $KUBECONFIG set for the duration of the context.

        A program that ends by itself with an exit code other than 0 fails the test, also while the
        test waits. Its output is printed when the context ends. The program leads a process group
        that ends with it: `go run` and shells do not end what they have started.
        """
        environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig)}
        arguments = [str(part) for part in command]
        with (
            NamedTemporaryFile(prefix="phalanx-") as output,
            signals_as_interrupt(),
            start_program(arguments, environment, output) as process,
        ):
            program = RunningProgram(shlex.join(arguments), process, Path(output.name))
            self._programs.append(program)
            try:
                yield process
                if failure := program.find_failure():
                    raise failure
            finally:
                self._programs.remove(program)
                program.terminate()
                sys.stdout.write(program.read_output())

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
        result = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        while not result.done():
            for program in self._programs:
                if failure := program.find_failure():
                    result.cancel()
                    raise failure
            ends = [program.ended for program in self._programs if not program.ended.done()]
            awaited: list[Future[Any]] = [result, *ends]
            wait(awaited, return_when=FIRST_COMPLETED)
        return result.result()


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
    settings: Settings, folder: Path, identity: ServerIdentity, *, started: Future[Served]
) -> None:
    token = secrets.token_urlsafe(32)
    tokens = Tokens({token: ADMIN})
    # The socket is closed too if the cluster does not start.
    with closing(bind_socket(_HOST, 0)) as sock:
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


@contextmanager
def control_plane(**settings: Any) -> Iterator[Served]:
    """Serve a cluster without pytest: for unittest, scripts and notebooks.

    The keyword arguments are those of `Settings`. The kubeconfig is in a temporary directory.
    """
    with (
        TemporaryDirectory(prefix="phalanx-") as folder,
        serving(Settings.of(settings), Path(folder)) as served,
    ):
        yield served
