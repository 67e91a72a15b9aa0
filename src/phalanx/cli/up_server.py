"""The server process of `phalanx up`: the API server on a TLS port, over a store.

Imported after the component process is forked, which imports `up_components` at the same time.
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
    AUDIT_FILE,
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

#: Value of --audit-log that switches the audit log off.
_AUDIT_DISABLED = "none"


def run_server(settings: UpOptions, folder: Path, component_socket: socket.socket | None) -> None:
    """Serve until a signal, until the component process ends, or until the store fails."""
    try:
        uvloop.run(_serve(settings, folder, component_socket))
    except ComponentsExited as error:
        raise click.ClickException(f"stopped: {error}") from None
    except (ApiError, kubeconfig.KubeconfigError) as error:
        raise click.ClickException(str(error)) from None


async def _serve(settings: UpOptions, folder: Path, component_socket: socket.socket | None) -> None:
    clock, random = WallClock(), SystemRandom()
    sock = _open_socket(settings)
    keyring, names = _open_keyring(folder), _extra_names(settings)
    tls, authority = keyring.tls_context(names, clock.now())
    failures: list[Exception] = []
    async with stop_signals() as stopped:

        def stop(error: Exception) -> None:
            if not stopped.is_set():
                failures.append(error)
                stopped.set()

        store = _open_store(settings, folder, stop)
        server = Server(
            store, clock, random, kinds=KINDS, tokens=keyring.tokens(), gates=settings.gates
        )
        hosts = (*LOCAL_NAMES, *CLUSTER_NAMES, *names, settings.host)
        file = settings.kubeconfig or settings.runtime_directory() / "kubeconfig"
        token = keyring.admin_token(_existing_token(file), file, clock.now())
        url = _server_url(settings.host, sock)
        async with (
            _audit_log(server, settings, folder, clock=clock) as on_refused,
            _start_server(server, store, component_socket, stop=stop) as handle,
            serve_http(
                handle,
                server.access.authenticator,
                sock,
                tls=tls,
                hosts=hosts,
                on_refused=on_refused,
            ),
            _background_task(renew_certificates(tls, folder, names, clock=clock)),
        ):
            kubeconfig.write(file, url, ca_pem=authority.decode(), token=token)
            print_ready(f"ready {url} kubeconfig {file}")
            tune_garbage_collector()
            await stopped.wait()
    if failures:
        raise click.ClickException(f"stopped: {failures[0]}")


@contextlib.asynccontextmanager
async def _start_server(
    server: Server,
    store: Store,
    component_socket: socket.socket | None,
    stop: Callable[[Exception], None],
) -> AsyncIterator[Handler]:
    """Start the server, serve the component process if there is one, and yield the handler."""
    await server.start()
    if component_socket is None:
        yield server.handle
    else:
        async with serve_components(server.handle, component_socket, stop) as handle:
            yield handle
    await store.close()


def _open_store(settings: UpOptions, folder: Path, stop: Callable[[StoreFailed], None]) -> Store:
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
        address = f"{settings.host}:{settings.port}"
        raise click.ClickException(
            f"cannot listen on {address}: {error.strerror}; choose another with --listen"
        ) from None


def _open_keyring(folder: Path) -> Keyring:
    try:
        return Keyring(folder)
    except InsecurePermissionsError as error:
        raise click.ClickException(str(error)) from None


def _existing_token(file: Path) -> str:
    """The token in the kubeconfig of an earlier start; "" if there is none."""
    try:
        return kubeconfig.load([file]).token if file.exists() else ""
    except kubeconfig.KubeconfigError:
        return ""


@contextlib.asynccontextmanager
async def _audit_log(
    server: Server, settings: UpOptions, folder: Path, clock: Clock
) -> AsyncIterator[RefusalHandler | None]:
    """Attach the audit log to the server; yield its handler of refused requests, None without."""
    default = _AUDIT_DISABLED if settings.data == IN_MEMORY else str(folder / AUDIT_FILE)
    target = settings.audit or default
    if target == _AUDIT_DISABLED:
        yield None
        return
    server.audit = audit = AuditLog(AuditFile(Path(target)).append, clock)
    try:
        yield audit.record_refusal
    finally:
        audit.close()


@contextlib.asynccontextmanager
async def _background_task(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()


def _extra_names(settings: UpOptions) -> list[str]:
    """The names that the certificate needs in addition to those of every server."""
    if settings.host in (*LOOPBACK_HOSTS, "0.0.0.0", "::"):
        return list(settings.server_names)
    return [settings.host, *settings.server_names]


def _server_url(host: str, sock: socket.socket) -> str:
    port = sock.getsockname()[1]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"https://[{shown}]:{port}" if ":" in shown else f"https://{shown}:{port}"
