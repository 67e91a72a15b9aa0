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
from phalanx.cli.background import print_ready
from phalanx.cli.component_runner import stop_signals
from phalanx.cli.nodes import LOOPBACK_HOSTS
from phalanx.cli.up_processes import (
    IN_MEMORY,
    ComponentsExited,
    UpOptions,
    serve_components,
    tune_garbage_collector,
)
from phalanx.client import kubeconfig
from phalanx.clock import Clock, WallClock
from phalanx.randomness import SystemRandom
from phalanx.server.app import Server
from phalanx.server.http_server import bind_socket, serve_http
from phalanx.server.security.audit import AuditFile, AuditLog
from phalanx.server.security.keyring import CLUSTER_NAMES, LOCAL_NAMES, Keyring, renew_certificates
from phalanx.server.security.private_files import InsecurePermissionsError
from phalanx.server.security.request_guard import RefusalHandler
from phalanx.store.errors import StoreFailed, StoreUnusable
from phalanx.store.kv import Store
from phalanx.store.memory import MemoryStore
from phalanx.store.sqlite import SqliteStore

_AUDIT_FILE, _AUDIT_DISABLED = "audit.log", "none"


def run_server(settings: UpOptions, folder: Path, component_socket: socket.socket | None) -> None:
    """Serve until a signal, or until the crew at the other end of the line or the store ends."""
    try:
        uvloop.run(_serve(settings, folder, component_socket))
    except ComponentsExited as error:
        raise click.ClickException(f"stopped: {error}") from None
    except (ApiError, kubeconfig.KubeconfigError) as error:
        raise click.ClickException(str(error)) from None


async def _serve(settings: UpOptions, folder: Path, line: socket.socket | None) -> None:
    clock, chance = WallClock(), SystemRandom()
    sock = _open_socket(settings)
    keyring, names = _open_keyring(folder), _extra_names(settings)
    tls, authority = keyring.tls_context(names, clock.now())
    ends: list[Exception] = []
    async with stop_signals() as stopped:

        def stop(error: Exception) -> None:
            if not stopped.is_set():
                ends.append(error)
                stopped.set()

        store = _open_store(settings, folder, stop)
        server = Server(store, clock, chance, KINDS, keyring.tokens(), settings.gates)
        hosts = (*LOCAL_NAMES, *CLUSTER_NAMES, *names, settings.host)
        file = settings.kubeconfig or settings.runtime_directory() / "kubeconfig"
        token = keyring.admin_token(_existing_token(file), file, clock.now())
        url = _server_url(settings.host, sock)
        async with (
            _audit_log(server, settings, folder, clock) as refused,
            _start_server(server, store, line, stop) as handle,
            serve_http(
                handle, server.access.authenticator, sock, tls, hosts=hosts, on_refused=refused
            ),
            _background_task(renew_certificates(tls, folder, names, clock)),
        ):
            kubeconfig.write(file, url, authority.decode(), token)
            print_ready(f"ready {url} kubeconfig {file}")
            tune_garbage_collector()
            await stopped.wait()
    if ends:
        raise click.ClickException(f"stopped: {ends[0]}")


@contextlib.asynccontextmanager
async def _start_server(
    server: Server, store: Store, line: socket.socket | None, stop: Callable[[Exception], None]
) -> AsyncIterator[Handler]:
    """Have the server serve its crew, if it has one; the handler for everybody else."""
    await server.start()
    if line is None:
        yield server.handle
    else:
        async with serve_components(server.handle, line, stop) as handle:
            yield handle
    await store.close()


def _open_store(settings: UpOptions, folder: Path, stop: Callable[[StoreFailed], None]) -> Store:
    """The store that was asked for; one that cannot be opened is refused with its reason."""
    if settings.store == "memory":
        return MemoryStore()
    try:
        return SqliteStore(folder, on_failure=stop)
    except StoreUnusable as error:
        raise click.ClickException(str(error)) from None


def _open_socket(settings: UpOptions) -> socket.socket:
    try:
        return bind_socket(settings.host, settings.port)
    except OSError as error:
        where = f"{settings.host}:{settings.port}"
        raise click.ClickException(
            f"cannot listen on {where}: {error.strerror}; choose another with --listen"
        ) from None


def _open_keyring(folder: Path) -> Keyring:
    try:
        return Keyring(folder)
    except InsecurePermissionsError as error:
        raise click.ClickException(str(error)) from None


def _existing_token(file: Path) -> str:
    """The token that a kubeconfig of an earlier start holds, if it is one of ours."""
    try:
        return kubeconfig.load([file]).token if file.exists() else ""
    except kubeconfig.KubeconfigError:
        return ""


@contextlib.asynccontextmanager
async def _audit_log(
    server: Server, settings: UpOptions, folder: Path, clock: Clock
) -> AsyncIterator[RefusalHandler | None]:
    """Have written down what is written and refused, unless nobody wants that."""
    usual = _AUDIT_DISABLED if settings.data == IN_MEMORY else str(folder / _AUDIT_FILE)
    wanted = settings.audit or usual
    if wanted == _AUDIT_DISABLED:
        yield None
        return
    server.audit = audit = AuditLog(AuditFile(Path(wanted)).append, clock)
    try:
        yield audit.record_refusal
    finally:
        audit.close()


@contextlib.asynccontextmanager
async def _background_task(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Have something run for as long as the context lasts."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()


def _extra_names(settings: UpOptions) -> list[str]:
    """The names of the server beside those that every one has."""
    is_usual = settings.host in (*LOOPBACK_HOSTS, "0.0.0.0", "::")
    return list(settings.server_names) if is_usual else [settings.host, *settings.server_names]


def _server_url(host: str, sock: socket.socket) -> str:
    port = sock.getsockname()[1]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"https://[{shown}]:{port}" if ":" in shown else f"https://{shown}:{port}"
