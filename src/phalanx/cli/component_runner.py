"""The signals that end a command which runs until it is told to stop.

What went wrong, as one sentence for whoever typed the command.

The small port of a part that runs by itself: is it alive, is it ready, what has it measured.

Plain HTTP without a credential, as for a kubelet and for Prometheus: nothing can be changed there.
`phalanx up` has the same on the API server itself.

What `phalanx scheduler`, `controllers` and `nodes` have in common: one part beside a server.

Their options, the line that says that they are ready, what they say besides (on stderr), their
small port, and the way they end.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import click
import uvloop

from phalanx.api.errors import ApiError, Unauthorized
from phalanx.cli.connection import load_client_config
from phalanx.cli.options import parse_address
from phalanx.client import kubeconfig
from phalanx.client.client import Client
from phalanx.client.kubeconfig import KubeconfigError
from phalanx.client.transports import DenialReportingTransport
from phalanx.randomness import SystemRandom
from phalanx.telemetry import METRICS_CONTENT_TYPE, Metrics

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextlib.asynccontextmanager
async def stop_signals() -> AsyncIterator[asyncio.Event]:
    """An event that SIGTERM and ^C set."""
    stopped, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, stopped.set)
    try:
        yield stopped
    finally:
        for number in _STOP_SIGNALS:
            loop.remove_signal_handler(number)


def plain_error(group: ExceptionGroup[Exception]) -> Exception:
    """What went wrong as one sentence, where it was not a bug."""
    known = group.subgroup((ApiError, KubeconfigError))
    leaf: Exception | None = known
    while isinstance(leaf, ExceptionGroup):
        leaf = leaf.exceptions[0]
    return click.ClickException(str(leaf)) if leaf else group


#: Seconds that answers under way at the end are waited for.
_SHUTDOWN_TIMEOUT = 0.5


def open_health_socket(text: str) -> socket.socket | None:
    """The port that `--listen` asks for, if it asks for one."""
    if not text:
        return None
    host, port = parse_address(text)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise click.ClickException(
            f"cannot listen on {text}: {error.strerror}; choose another with --listen"
        ) from None


@contextlib.asynccontextmanager
async def serve_health(
    sock: socket.socket | None, metrics: Metrics, not_ready_reason: Callable[[], str]
) -> AsyncIterator[None]:
    """Answer there while the context lasts. `trouble` says why it is not ready, if it is not."""
    if sock is None:
        yield
        return
    # Imported here: most of those who run a part do not ask for it.
    from aiohttp import web

    async def alive(request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def ready(request: web.Request) -> web.Response:
        wrong = not_ready_reason()
        return web.Response(text=wrong or "ok", status=503 if wrong else 200)

    async def measured(request: web.Request) -> web.Response:
        return web.Response(
            body=metrics.render().encode(), headers={"content-type": METRICS_CONTENT_TYPE}
        )

    pages = {"/livez": alive, "/healthz": alive, "/readyz": ready, "/metrics": measured}
    app = web.Application()
    app.add_routes([web.get(path, page) for path, page in pages.items()])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN_TIMEOUT)
    await runner.setup()
    try:
        await web.SockSite(runner, sock).start()
        yield
    finally:
        await runner.cleanup()


F = TypeVar("F", bound=Callable[..., Any])


class Component(Protocol):
    """What runs beside a server until it is cancelled."""

    @property
    def not_ready_reason(self) -> str:
        """Why it is not ready, if it is not."""
        ...

    async def run(self) -> None:
        """Run."""
        ...

    async def drain(self) -> None:
        """Bring what is under way to an end, soon."""
        ...


def listen_option(command: F) -> F:
    """`--listen`."""
    return click.option(
        "--listen", default="", metavar="HOST:PORT",
        help="Where to answer /metrics, /livez and /readyz; port 0 takes any free one."
        " [default: nowhere]",
    )(command)  # fmt: skip


def component_options(command: F) -> F:
    """`--leader-elect`, `--feature-gates` and `--listen`."""
    for option in (
        listen_option,
        click.option("--feature-gates", default="", metavar="A=true,B=false",
                     help="Features to switch on or off, by their names in Kubernetes."),
        click.option("--leader-elect/--no-leader-elect", "elect", default=None,
                     help="Whether to act only while holding a Lease, so that several can stand by."
                     " [default: yes]"),
    ):  # fmt: skip
        command = option(command)
    return command


def election_identity() -> str:
    """As whom the leadership is stood for: nobody else is called like that."""
    return f"{socket.gethostname()}_{SystemRandom().uid()}"


class ServerConnection:
    """A server, found by the options, and a client of it that says what the server forbids."""

    def __init__(self, config: Path | None, context: str) -> None:
        try:
            server = load_client_config(config, context)
            self.client = Client(
                DenialReportingTransport(kubeconfig.create_transport(server), print_status)
            )
        except kubeconfig.KubeconfigError as error:
            raise click.ClickException(str(error)) from None
        self.url = server.server


def run_component(
    server: ServerConnection, component: Component, sock: socket.socket | None
) -> None:
    """Run to the end, which is a signal, or that the server does not know the credential."""
    if not _run_to_end(server.client, component, sock):
        raise click.ClickException(f"{server.url} does not accept the credential")


def _run_to_end(client: Client, part: Component, sock: socket.socket | None) -> bool:
    """Run to the end; False if the server refused the credential."""
    is_known = True
    try:
        uvloop.run(_run(client, part, sock))
    except* Unauthorized:
        is_known = False
    return is_known


async def _run(client: Client, part: Component, sock: socket.socket | None) -> None:
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(client.close)
        await stack.enter_async_context(
            serve_health(sock, client.metrics, lambda: part.not_ready_reason)
        )
        if sock is not None:
            host, port, *_ = sock.getsockname()
            print_status(f"metrics at http://{f'[{host}]' if ':' in host else host}:{port}/metrics")
        async with stop_signals() as stopped, asyncio.TaskGroup() as group:
            running = group.create_task(part.run())
            await stopped.wait()
            await part.drain()
            running.cancel()


class ReadyPrinter:
    """Says on stdout, the first time, that the work is done; later ones are news."""

    def __init__(self, server: str, label: str) -> None:
        self._server, self._what, self._is_printed = server, label, False

    def __call__(self, names: Sequence[str]) -> None:
        """Say so, and of what."""
        click.echo(f"ready {self._server} {self._what} {','.join(names)}", err=self._is_printed)
        self._is_printed = True


def print_status(text: str) -> None:
    """What is going on, on stderr."""
    click.echo(text, err=True)
