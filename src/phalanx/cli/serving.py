"""The server's side of `phalanx up`: the API on a port, over a store, with the crew at its side.

Loaded when the crew's process has been begun, which loads its own half meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path

import click
import uvloop

from phalanx.api.errors import ApiError
from phalanx.api.kinds import KINDS
from phalanx.api.wire import Handler
from phalanx.chance import TrueChance
from phalanx.cli.apart import Ended, attended, settle
from phalanx.cli.background import announce
from phalanx.cli.nodes import LOOPBACK
from phalanx.cli.settings import MEMORY, Settings
from phalanx.cli.signals import signals
from phalanx.client import kubeconfig
from phalanx.clock import Clock, WallClock
from phalanx.server.app import Server
from phalanx.server.certificates import CLUSTER, LOCAL, renewing
from phalanx.server.listener import bind_socket, listening
from phalanx.server.security.audit import Audit, AuditFile
from phalanx.server.security.door import Refused
from phalanx.server.security.keyring import Keyring
from phalanx.server.security.privacy import Exposed
from phalanx.store.errors import StoreBroken, StoreRefused
from phalanx.store.kv import Store
from phalanx.store.memory import MemoryStore
from phalanx.store.sqlite import SqliteStore

_AUDIT, _NO_AUDIT = "audit.log", "none"


def serve(settings: Settings, folder: Path, line: socket.socket | None) -> None:
    """Serve until a signal, or until the crew at the other end of the line or the store ends."""
    try:
        uvloop.run(_served(settings, folder, line))
    except Ended as error:
        raise click.ClickException(f"stopped: {error}") from None
    except (ApiError, kubeconfig.KubeconfigError) as error:
        raise click.ClickException(str(error)) from None


async def _served(settings: Settings, folder: Path, line: socket.socket | None) -> None:
    clock, chance = WallClock(), TrueChance()
    sock = _listen(settings)
    keyring, names = _keyring(folder), _names(settings)
    tls, authority = keyring.serving(names, clock.now())
    ends: list[Exception] = []
    async with signals() as stopped:

        def stop(error: Exception) -> None:
            if not stopped.is_set():
                ends.append(error)
                stopped.set()

        store = _open(settings, folder, stop)
        server = Server(store, clock, chance, KINDS, keyring.tokens(), settings.gates)
        hosts = (*LOCAL, *CLUSTER, *names, settings.host)
        file = settings.kubeconfig or settings.home() / "kubeconfig"
        token = keyring.admin_token(_present_token(file), file, clock.now())
        url = _url(settings.host, sock)
        async with (
            _audited(server, settings, folder, clock) as refused,
            _serving(server, store, line, stop) as handle,
            listening(handle, server.access.authenticator, sock, tls, hosts=hosts, refused=refused),
            _beside(renewing(tls, folder, names, clock)),
        ):
            kubeconfig.write(file, url, authority.decode(), token)
            announce(f"ready {url} kubeconfig {file}")
            settle()
            await stopped.wait()
    if ends:
        raise click.ClickException(f"stopped: {ends[0]}")


@contextlib.asynccontextmanager
async def _serving(
    server: Server, store: Store, line: socket.socket | None, stop: Callable[[Exception], None]
) -> AsyncIterator[Handler]:
    """Have the server serve its crew, if it has one; the handler for everybody else."""
    await server.start()
    if line is None:
        yield server.handle
    else:
        async with attended(server.handle, line, stop) as handle:
            yield handle
    await store.close()


def _open(settings: Settings, folder: Path, stop: Callable[[StoreBroken], None]) -> Store:
    """The store that was asked for; one that cannot be opened is refused with its reason."""
    if settings.store == "memory":
        return MemoryStore()
    try:
        return SqliteStore(folder, on_broken=stop)
    except StoreRefused as error:
        raise click.ClickException(str(error)) from None


def _listen(settings: Settings) -> socket.socket:
    try:
        return bind_socket(settings.host, settings.port)
    except OSError as error:
        where = f"{settings.host}:{settings.port}"
        raise click.ClickException(
            f"cannot listen on {where}: {error.strerror}; choose another with --listen"
        ) from None


def _keyring(folder: Path) -> Keyring:
    try:
        return Keyring(folder)
    except Exposed as error:
        raise click.ClickException(str(error)) from None


def _present_token(file: Path) -> str:
    """The token that a kubeconfig of an earlier start holds, if it is one of ours."""
    try:
        return kubeconfig.read([file]).token if file.exists() else ""
    except kubeconfig.KubeconfigError:
        return ""


@contextlib.asynccontextmanager
async def _audited(
    server: Server, settings: Settings, folder: Path, clock: Clock
) -> AsyncIterator[Refused | None]:
    """Have written down what is written and refused, unless nobody wants that."""
    usual = _NO_AUDIT if settings.data == MEMORY else str(folder / _AUDIT)
    wanted = settings.audit or usual
    if wanted == _NO_AUDIT:
        yield None
        return
    server.audit = audit = Audit(AuditFile(Path(wanted)).append, clock)
    try:
        yield audit.refused
    finally:
        audit.close()


@contextlib.asynccontextmanager
async def _beside(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Have something run for as long as the context lasts."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()


def _names(settings: Settings) -> list[str]:
    """The names of the server beside those that every one has."""
    is_usual = settings.host in (*LOOPBACK, "0.0.0.0", "::")
    return list(settings.names) if is_usual else [settings.host, *settings.names]


def _url(host: str, sock: socket.socket) -> str:
    port = sock.getsockname()[1]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"https://[{shown}]:{port}" if ":" in shown else f"https://{shown}:{port}"
