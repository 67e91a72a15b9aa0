"""The server process of `phalanx up`: the API server on a TLS port, over a store.

Imported after the component process is forked, which imports `up_components` at the same time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import uvloop

from phalanx.api.core import Pod
from phalanx.api.errors import ApiError, NotFound
from phalanx.api.kinds import JOB, JOB_SET, KINDS, LEADER_WORKER_SET, NODE, POD
from phalanx.api.meta import Key
from phalanx.api.wire import Handler, UserInfo
from phalanx.cli.background import (
    RunningProcess,
    StartMessages,
    describe_page,
    describe_stored_objects,
    print_ready,
    record_address,
)
from phalanx.cli.cluster_state import IN_MEMORY, context_name
from phalanx.cli.component_runner import stop_signals
from phalanx.cli.event_loop_watchdog import watch_event_loop
from phalanx.cli.nodes import LOOPBACK_HOSTS
from phalanx.cli.queue_reporter import QueueReporter
from phalanx.cli.up_processes import (
    AUDIT_DISABLED,
    AUDIT_FILE,
    ComponentProcess,
    ComponentsExited,
    ComponentSupervisor,
    UpOptions,
    tune_garbage_collector,
)
from phalanx.cli.user_kubeconfig import USER_KUBECONFIG, merge_cluster
from phalanx.client import kubeconfig
from phalanx.client.client import Client
from phalanx.client.transports import InProcessTransport
from phalanx.clock import Clock, WallClock
from phalanx.controllers.nodes.pod_status import disruption_patch
from phalanx.randomness import SystemRandom
from phalanx.server.app import Server
from phalanx.server.http_server import bind_socket, raise_descriptor_limit, serve_http
from phalanx.server.kubernetes_service import (
    advertised_address,
    ensure_kubernetes_service,
    run_kubernetes_service,
)
from phalanx.server.security.audit import AuditFile, AuditLog
from phalanx.server.security.keyring import CLUSTER_NAMES, LOCAL_NAMES, Keyring, renew_certificates
from phalanx.server.security.private_files import InsecurePermissionsError
from phalanx.server.security.request_guard import RefusalHandler
from phalanx.server.security.sign_in import SignInCodes
from phalanx.server.security.users import ADMIN, MASTERS
from phalanx.store.kv import Store, StoreFailed, StoreUnusable
from phalanx.store.memory import MemoryStore
from phalanx.store.sqlite import SqliteStore

#: The kinds whose objects `phalanx up` counts when it finds an earlier start's.
_WORKLOAD_KINDS = (LEADER_WORKER_SET, JOB_SET, JOB, POD)


def run_server(settings: UpOptions, folder: Path, components: ComponentProcess | None) -> None:
    """Serve until a signal, or until the store fails."""
    raise_descriptor_limit()
    try:
        uvloop.run(_serve(settings, folder, components))
    except ComponentsExited as error:
        raise click.ClickException(f"stopped: {error}") from None
    except (ApiError, kubeconfig.KubeconfigError) as error:
        raise click.ClickException(str(error)) from None


async def _serve(settings: UpOptions, folder: Path, components: ComponentProcess | None) -> None:
    clock, random = WallClock(), SystemRandom()
    sock, keyring, names = _open_socket(settings), _open_keyring(folder), _extra_names(settings)
    tls, authority = keyring.tls_context(names, clock.now())
    failures: list[Exception] = []
    async with stop_signals() as stopped:

        def stop(error: Exception) -> None:
            if not stopped.is_set():
                failures.append(error)
                stopped.set()

        store = _open_store(settings, folder, stop)
        notice = _describe_stored_workloads(store, folder)
        server = Server(
            store,
            clock,
            random,
            kinds=KINDS,
            tokens=keyring.tokens(),
            gates=settings.gates,
            limit_critical_pods=settings.server.limit_critical_pods,
            service_ranges=settings.server.service_ranges,
            certificate_authority=keyring.authority(),
            admit_service_accounts=settings.admits_service_accounts,
            event_ttl=settings.storage.event_ttl,
            webhook_urls=settings.webhook_urls,
            compiler=ThreadPoolExecutor(1, "compiler"),
        )
        hosts = (*LOCAL_NAMES, *CLUSTER_NAMES, *names, settings.host)
        file = settings.kubeconfig or settings.runtime_directory() / "kubeconfig"
        token = keyring.admin_token(_existing_token(file), file, clock.now())
        url = _server_url(settings.host, sock)
        async with (
            _audit_log(server, settings, folder, clock=clock) as on_refused,
            _start_server(
                server, store, settings, components=components, root_ca=authority
            ) as handle,
            serve_http(
                handle,
                server.access.authenticator,
                sock,
                tls=tls,
                hosts=hosts,
                on_refused=on_refused,
                check_level=server.check_level,
            ),
            _watchdog(server),
            _page_data(server, settings, file),
            _background_task(renew_certificates(tls, folder, names, clock=clock)),
            _kubernetes_service(server, sock),
        ):
            _publish_address(settings, file, url, ca_pem=authority.decode(), token=token)
            codes = server.page_api.codes
            page = describe_page(url, codes.issue(ADMIN.name, token) if codes else "")
            print_ready(StartMessages(f"ready {url} kubeconfig {file}", page, notice))
            tune_garbage_collector()
            await stopped.wait()
    if failures:
        raise click.ClickException(f"stopped: {failures[0]}")


def _publish_address(settings: UpOptions, file: Path, url: str, *, ca_pem: str, token: str) -> None:
    """Write the administrator's kubeconfig."""
    cluster = settings.storage.cluster
    context = context_name(cluster) if cluster else "phalanx"
    kubeconfig.write(file, url, ca_pem=ca_pem, token=token, name=context)
    if settings.storage.merge_kubeconfig:
        merge_cluster(USER_KUBECONFIG, file, context_name(cluster))
    process = RunningProcess(
        os.getpid(),
        url,
        file,
        has_objects_in_memory=settings.storage.store == "memory",
        has_keys_in_memory=settings.storage.data == IN_MEMORY,
    )
    record_address(settings.runtime_directory(), process)


@contextlib.asynccontextmanager
async def _start_server(
    server: Server,
    store: Store,
    settings: UpOptions,
    *,
    components: ComponentProcess | None,
    root_ca: bytes,
) -> AsyncIterator[Handler]:
    """Start the server, supervise the component process if there is one; yield the handler."""
    await server.start()
    if settings.plan:
        settings.plan.begin()
        if settings.plan.retired:
            client = Client(InProcessTransport(server.handle, UserInfo("phalanx", (MASTERS,))))
            await _delete_nodes(client, settings.plan.retired, WallClock().now())
            settings.plan.complete()
    if components is None:
        yield server.handle
    else:
        supervisor = ComponentSupervisor(server.handle, components, root_ca)
        if "scheduler" not in settings.disabled:
            names = settings.profiles.policies if settings.profiles else ()
            server.health.add_scheduler_checks(lambda: supervisor.outage, names)
        async with supervisor.running():
            yield supervisor.answer
    await server.context.dynamic_admission.close()
    await store.close()


async def _delete_nodes(client: Client, names: Collection[str], now: float) -> None:
    """Delete nodes, and end their pods as disrupted, so that controllers replace them."""
    for pod in (await client.list(POD, Pod)).items:
        if pod.occupied_node not in names:
            continue
        message = "phalanx up --recreate-nodes has replaced the node"
        failed = disruption_patch(pod, "NodeRecreated", message, now=now, phase="Failed")
        with contextlib.suppress(NotFound):
            await client.patch(
                POD,
                pod.metadata.key,
                failed.change,
                content=failed.content,
                subresource=failed.subresource,
            )
            await client.delete(POD, pod.metadata.key, uid=pod.metadata.uid, grace=0)
    for name in names:
        with contextlib.suppress(NotFound):
            await client.delete(NODE, Key("", name))


def _open_store(settings: UpOptions, folder: Path, stop: Callable[[StoreFailed], None]) -> Store:
    if settings.storage.store == "memory":
        return MemoryStore()
    try:
        return SqliteStore(
            folder, on_failure=stop, accept_data_loss=settings.storage.accept_data_loss
        )
    except StoreUnusable as error:
        raise click.ClickException(str(error)) from None


def _describe_stored_workloads(store: Store, folder: Path) -> str:
    """Say which workloads the store has already; "" if none."""
    counts = {kind.name: store.count(kind.store_prefix()) for kind in _WORKLOAD_KINDS}
    return describe_stored_objects(counts, folder)


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
    server: Server, settings: UpOptions, folder: Path, *, clock: Clock
) -> AsyncIterator[RefusalHandler | None]:
    """Attach the audit log to the server; yield its handler of refused requests, None without."""
    default = AUDIT_DISABLED if settings.storage.data == IN_MEMORY else str(folder / AUDIT_FILE)
    target = settings.audit or default
    if target == AUDIT_DISABLED:
        yield None
        return
    server.audit = audit = AuditLog(AuditFile(Path(target)).append, clock)
    try:
        yield audit.record_refusal
    finally:
        audit.close()


@contextlib.asynccontextmanager
async def _watchdog(server: Server) -> AsyncIterator[None]:
    with watch_event_loop(server.metrics, "server"):
        yield


@contextlib.asynccontextmanager
async def _page_data(server: Server, settings: UpOptions, file: Path) -> AsyncIterator[None]:
    """Give the page the queue, the utilisation and, on loopback addresses, sign-in codes."""
    reporter = QueueReporter(file)
    server.page_api.queue = reporter.latest
    if settings.host in LOOPBACK_HOSTS:
        server.page_api.codes = SignInCodes(server.context.clock.now)
    async with reporter.running(), _background_task(server.page_api.sampler.run()):
        yield


@contextlib.asynccontextmanager
async def _kubernetes_service(server: Server, sock: socket.socket) -> AsyncIterator[None]:
    """Keep the Service `kubernetes` and its EndpointSlice at the address of the socket."""
    address, port = advertised_address(sock), sock.getsockname()[1]
    await ensure_kubernetes_service(server.context, address, port)
    async with _background_task(run_kubernetes_service(server.context, address, port)):
        yield


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
