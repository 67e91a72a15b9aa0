"""What `phalanx scheduler`, `controllers` and `nodes` have in common: one part beside a server.

Their options, the line that says that they are ready, what they say besides (on stderr), their
small port, and the way they end.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import click
import uvloop

from phalanx.api.errors import Unauthorized
from phalanx.chance import TrueChance
from phalanx.cli.connection import access
from phalanx.cli.health import health
from phalanx.cli.signals import signals
from phalanx.client import kubeconfig
from phalanx.client.client import Client
from phalanx.client.telling import Telling

F = TypeVar("F", bound=Callable[..., Any])


class Part(Protocol):
    """What runs beside a server until it is cancelled."""

    @property
    def trouble(self) -> str:
        """Why it is not ready, if it is not."""
        ...

    async def run(self) -> None:
        """Run."""
        ...

    async def wind_up(self) -> None:
        """Bring what is under way to an end, soon."""
        ...


def listen_option(command: F) -> F:
    """`--listen`."""
    return click.option(
        "--listen", default="", metavar="HOST:PORT",
        help="Where to answer /metrics, /livez and /readyz; port 0 takes any free one."
        " [default: nowhere]",
    )(command)  # fmt: skip


def part_options(command: F) -> F:
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


def identity() -> str:
    """As whom the leadership is stood for: nobody else is called like that."""
    return f"{socket.gethostname()}_{TrueChance().uid()}"


class Connected:
    """A server, found by the options, and a client of it that says what the server forbids."""

    def __init__(self, config: Path | None, context: str) -> None:
        try:
            server = access(config, context)
            self.client = Client(Telling(kubeconfig.transport(server), say))
        except kubeconfig.KubeconfigError as error:
            raise click.ClickException(str(error)) from None
        self.url = server.server


def run_beside(server: Connected, part: Part, sock: socket.socket | None) -> None:
    """Run to the end, which is a signal, or that the server does not know the credential."""
    if not _ran(server.client, part, sock):
        raise click.ClickException(f"{server.url} does not accept the credential")


def _ran(client: Client, part: Part, sock: socket.socket | None) -> bool:
    """Run to the end; False if the server refused the credential."""
    is_known = True
    try:
        uvloop.run(_run(client, part, sock))
    except* Unauthorized:
        is_known = False
    return is_known


async def _run(client: Client, part: Part, sock: socket.socket | None) -> None:
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(client.close)
        await stack.enter_async_context(health(sock, client.metrics, lambda: part.trouble))
        if sock is not None:
            host, port, *_ = sock.getsockname()
            say(f"metrics at http://{f'[{host}]' if ':' in host else host}:{port}/metrics")
        async with signals() as stopped, asyncio.TaskGroup() as group:
            running = group.create_task(part.run())
            await stopped.wait()
            await part.wind_up()
            running.cancel()


class Ready:
    """Says on stdout, the first time, that the work is done; later ones are news."""

    def __init__(self, server: str, what: str) -> None:
        self._server, self._what, self._said = server, what, False

    def __call__(self, names: Sequence[str]) -> None:
        """Say so, and of what."""
        click.echo(f"ready {self._server} {self._what} {','.join(names)}", err=self._said)
        self._said = True


def say(text: str) -> None:
    """What is going on, on stderr."""
    click.echo(text, err=True)
