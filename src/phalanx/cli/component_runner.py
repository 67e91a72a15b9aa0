"""Run one component against an API server; shared by `phalanx scheduler`, `controllers`, `nodes`.

Defines their common options, the connection to the server, the HTTP endpoint for /metrics, /livez
and /readyz, the `ready` line on stdout, and the end: a signal, or a credential that the server
rejects. Everything else that a component reports goes to the log.

The HTTP endpoint is plain HTTP without authentication, for kubelet probes and Prometheus: it is
read-only. `phalanx up` serves the same paths on its API server.
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
from phalanx.cli.connection import load_client_config, may_run_plugin
from phalanx.cli.event_loop_watchdog import watch_event_loop
from phalanx.cli.options import log_options, parse_address
from phalanx.cli.output import echo
from phalanx.client import kubeconfig
from phalanx.client.client import Client
from phalanx.client.kubeconfig import KubeconfigError
from phalanx.client.transports import DenialReportingTransport, RateLimitedTransport, Transport
from phalanx.logs import Log
from phalanx.randomness import SystemRandom
from phalanx.telemetry import METRICS_CONTENT_TYPE, Metrics

F = TypeVar("F", bound=Callable[..., Any])

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
#: Seconds to wait at the end for HTTP responses that are under way.
_SHUTDOWN_TIMEOUT = 0.5


class Component(Protocol):
    """A component that runs until it is cancelled."""

    @property
    def not_ready_reason(self) -> str:
        """Return why the component is not ready; "" if it is."""
        ...

    async def run(self) -> None:
        """Run until cancelled."""
        ...

    async def drain(self) -> None:
        """Start no new work and finish, within about a second, what is under way."""
        ...


# ---- options -------------------------------------------------------------------------------------


def listen_option(command: F) -> F:
    """Add `--listen`."""
    return click.option(
        "--listen",
        default="",
        metavar="HOST:PORT",
        help="Address of /metrics, /livez and /readyz; port 0 chooses a free one."
        " [default: not served]",
    )(command)


def _keep_option(ctx: click.Context, param: click.Parameter, value: float) -> None:
    ctx.meta[f"{__name__}.{param.name}"] = value


def component_options(command: F) -> F:
    """Add `--leader-elect`, `--feature-gates`, `--listen`, the request rate and the log options."""
    for option in (
        click.option(
            "--kube-api-burst",
            type=click.IntRange(1),
            default=100,
            show_default=True,
            expose_value=False,
            callback=_keep_option,
            help="Requests to the API server at once, with --kube-api-qps.",
        ),
        click.option(
            "--kube-api-qps",
            type=click.FloatRange(0),
            default=0.0,
            expose_value=False,
            callback=_keep_option,
            help="Requests to the API server per second at most. [default: 0, no limit]",
        ),
        log_options,
        listen_option,
        click.option(
            "--feature-gates",
            default="",
            metavar="A=true,B=false",
            help="Features to switch on or off, by their names in Kubernetes.",
        ),
        click.option(
            "--leader-elect/--no-leader-elect",
            "elect",
            default=None,
            help="Act only while holding a Lease, so that several replicas can run. [default: yes]",
        ),
    ):
        command = option(command)
    return command


def election_identity() -> str:
    """Return an identity for leader election that no other process has."""
    return f"{socket.gethostname()}_{SystemRandom().uid()}"


# ---- signals and errors --------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def stop_signals() -> AsyncIterator[asyncio.Event]:
    """Yield an event that SIGTERM and SIGINT set."""
    stopped, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, stopped.set)
    try:
        yield stopped
    finally:
        for number in _STOP_SIGNALS:
            loop.remove_signal_handler(number)


def plain_error(group: ExceptionGroup[Exception]) -> Exception:
    """Return the first API or kubeconfig error as a one-line error; the group if it has none."""
    leaf: Exception | None = group.subgroup((ApiError, KubeconfigError))
    while isinstance(leaf, ExceptionGroup):
        leaf = leaf.exceptions[0]
    return click.ClickException(str(leaf)) if leaf else group


# ---- the HTTP endpoint ---------------------------------------------------------------------------


def open_health_socket(text: str) -> socket.socket | None:
    """Listen on the address of `--listen`, if one is given."""
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
    """Serve /livez, /healthz, /readyz and /metrics for the duration of the context."""
    if sock is None:
        yield
        return
    # Imported here: a component without --listen does not need it.
    from aiohttp import web

    async def get_live(request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def get_ready(request: web.Request) -> web.Response:
        reason = not_ready_reason()
        return web.Response(text=reason or "ok", status=503 if reason else 200)

    async def get_metrics(request: web.Request) -> web.Response:
        return web.Response(
            body=metrics.render().encode(), headers={"content-type": METRICS_CONTENT_TYPE}
        )

    handlers = {
        "/livez": get_live,
        "/healthz": get_live,
        "/readyz": get_ready,
        "/metrics": get_metrics,
    }
    app = web.Application()
    app.add_routes([web.get(path, handler) for path, handler in handlers.items()])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN_TIMEOUT)
    await runner.setup()
    try:
        await web.SockSite(runner, sock).start()
        yield
    finally:
        await runner.cleanup()


# ---- running -------------------------------------------------------------------------------------


class ServerConnection:
    """The API server that the options name, and a client that logs each kind of denied write."""

    def __init__(self, config: Path | None, context: str, log: Log) -> None:
        try:
            server = load_client_config(config, context)
            transport: Transport = kubeconfig.create_transport(
                server, allow_exec=may_run_plugin(server)
            )
        except KubeconfigError as error:
            raise click.ClickException(str(error)) from None
        meta = click.get_current_context().meta
        if qps := meta.get(f"{__name__}.kube_api_qps"):
            transport = RateLimitedTransport(transport, qps, meta[f"{__name__}.kube_api_burst"])
        self.client = Client(DenialReportingTransport(transport, log.warning), raise_errors=False)
        self.url, self.ca, self.log = server.server, server.ca, log

    async def load_ca(self) -> str:
        """Return the certificate authority that the kubeconfig names, as PEM text."""
        return self.ca


class ReadyPrinter:
    """Prints `ready …` on stdout the first time that a component is ready; logs later times.

    A component becomes ready again when it is elected again or has lost and found its server.
    """

    def __init__(self, server: ServerConnection, label: str) -> None:
        self._server, self._label, self._is_printed = server, label, False

    def __call__(self, names: Sequence[str]) -> None:
        """Report that the component is ready, with the names of what it runs."""
        if self._is_printed:
            self._server.log.info("ready again", **{self._label: ",".join(names)})
        else:
            echo(f"ready {self._server.url} {self._label} {','.join(names)}")
        self._is_printed = True


def run_component(
    server: ServerConnection, component: Component, sock: socket.socket | None
) -> None:
    """Run a component until a signal. Raises if the server rejects the credential."""
    is_rejected = False
    try:
        uvloop.run(_run(server, component, sock))
    except* Unauthorized:
        is_rejected = True
    if is_rejected:
        raise click.ClickException(f"{server.url} rejects the credential of the kubeconfig")


async def _run(server: ServerConnection, component: Component, sock: socket.socket | None) -> None:
    client = server.client
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(client.close)
        stack.enter_context(watch_event_loop(client.metrics, server.log.name))
        await stack.enter_async_context(
            serve_health(sock, client.metrics, lambda: component.not_ready_reason)
        )
        if sock is not None:
            host, port, *_ = sock.getsockname()
            address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            server.log.info("serving metrics", url=f"http://{address}/metrics")
        async with stop_signals() as stopped, asyncio.TaskGroup() as group:
            running = group.create_task(component.run())
            await stopped.wait()
            await component.drain()
            running.cancel()
