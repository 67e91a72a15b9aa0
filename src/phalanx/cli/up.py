"""`phalanx up`: run a control plane in the foreground, or with --detach in the background.

The command checks its options, forks the process of scheduler, controllers and nodes
(`up_components`), and becomes the API server itself (`up_server`).
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from phalanx.api.core import PROCESS_NODE_TYPE, SIMULATED_NODE_TYPE
from phalanx.cli import background, options
from phalanx.cli.cluster_state import (
    DEFAULT_CLUSTER,
    IN_MEMORY,
    IN_MEMORY_CLUSTER,
    ClusterPlan,
    check_no_stored_objects,
    cluster_folder,
    create_folder,
    fingerprint_nodes,
    given_options,
    parse_cluster_name,
    plan_start,
    use_remembered_options,
)
from phalanx.cli.nodes import check_processes, node_options, parse_node_options
from phalanx.cli.options import (
    F,
    LogOptions,
    check_log_directory,
    configuration_option,
    decision_log_option,
    log_options,
)
from phalanx.cli.output import echo
from phalanx.cli.up_processes import (
    AUDIT_DISABLED,
    AUDIT_FILE,
    COMPONENT_SOCKET,
    ComponentProcess,
    ServerOptions,
    StorageOptions,
    UpOptions,
    ignore_stop_signals,
)
from phalanx.server.security.private_files import InsecurePermissionsError, check_private

if TYPE_CHECKING:
    from phalanx.scheduler.policy import Profiles

_DEFAULT_ADDRESS = "127.0.0.1:6443"


def _use_named_cluster(context: click.Context, option: click.Parameter, name: str) -> str:
    parse_cluster_name(context, option, name)
    use_remembered_options(context, option, name)
    return name


#: Options of the cluster and its store, from the last in the help to the first.
_STORAGE_OPTIONS = (
    click.option(
        "--accept-data-loss",
        is_flag=True,
        help="Start even if the store has lost acknowledged writes, and continue without them.",
    ),
    click.option(
        "--event-ttl",
        default="1h",
        show_default=True,
        metavar="DURATION",
        help="Time after its last write when an Event is deleted, for example 30m; 0: never.",
    ),
    click.option(
        "--store",
        type=click.Choice(["sqlite", "memory"]),
        default=None,
        help="Store for objects: on disk, or in memory until the process ends. "
        f"[default: sqlite, but memory with --data {IN_MEMORY}]",
    ),
    click.option(
        "--recreate-nodes",
        is_flag=True,
        help="Delete nodes of an earlier start with other node options, and end their pods.",
    ),
    click.option(
        "--merge-kubeconfig",
        is_flag=True,
        help="Also add the context phalanx-NAME to ~/.kube/config; phalanx delete removes it.",
    ),
    click.option(
        "--data",
        default=None,
        metavar="DIR",
        is_eager=True,
        callback=use_remembered_options,
        help=f"Directory for objects, certificates and tokens; {IN_MEMORY} stores nothing on "
        f"disk, in a cluster {IN_MEMORY_CLUSTER} unless --name names another. "
        "[default: ~/.local/state/phalanx]",
    ),
    click.option(
        "--name",
        default="",
        metavar="NAME",
        is_eager=True,
        callback=_use_named_cluster,
        help="Name of the cluster; each has its own data, options and kubeconfig. "
        f"[default: {DEFAULT_CLUSTER}]",
    ),
)


def _storage_options(command: F) -> F:
    """Add the options of cluster and store; the command gets them as `storage: StorageOptions`."""

    @functools.wraps(command)
    def with_storage(
        *args: Any,
        name: str,
        data: str | None,
        store: str | None,
        event_ttl: str,
        merge_kubeconfig: bool,
        recreate_nodes: bool,
        accept_data_loss: bool,
        **kwargs: Any,
    ) -> Any:
        if name and data not in (None, IN_MEMORY):
            raise click.UsageError("a named cluster has its own directory; leave out --data")
        if data and merge_kubeconfig:
            raise click.UsageError("--merge-kubeconfig adds clusters by name; leave out --data")
        data = data or str(cluster_folder(name))
        store = store or ("memory" if data == IN_MEMORY else "sqlite")
        if data == IN_MEMORY and store != "memory":
            raise click.UsageError(
                f"--data {IN_MEMORY} stores nothing on disk; give --store {store} a directory"
            )
        if data == IN_MEMORY:
            check_no_stored_objects(name or IN_MEMORY_CLUSTER)
        storage = StorageOptions(
            cluster=name,
            data=data,
            store=store,
            event_ttl=options.parse_duration(event_ttl, "--event-ttl"),
            merge_kubeconfig=merge_kubeconfig,
            recreate_nodes=recreate_nodes,
            accept_data_loss=accept_data_loss,
        )
        return command(*args, storage=storage, **kwargs)

    decorated: Any = with_storage
    for option in _STORAGE_OPTIONS:
        decorated = option(decorated)
    result: F = decorated
    return result


#: Options of the API server, from the last in the help to the first.
_SERVER_OPTIONS = (
    click.option(
        "--service-node-port-range",
        "node_ports",
        default="30000-32767",
        show_default=True,
        metavar="FIRST-LAST",
        help="Node ports of Services.",
    ),
    click.option(
        "--service-cluster-ip-range",
        "cluster_ips",
        default="10.96.0.0/12",
        show_default=True,
        metavar="CIDR[,CIDR]",
        help="Cluster IPs of Services; with a second range, of the other IP family, dual-stack.",
    ),
    click.option(
        "--service-account-tokens/--no-service-account-tokens",
        default=None,
        help="Give new pods their service account and mount its token, as the admission plugin "
        "ServiceAccount does; pods whose service account does not exist are refused. "
        "[default: yes, but no with --without controllers]",
    ),
    click.option(
        "--limit-critical-pods/--no-limit-critical-pods",
        default=False,
        help="Refuse pods of the system priority classes in namespaces without a ResourceQuota "
        "that selects the class; recommended for clusters that several teams share.",
    ),
)


def _server_options(command: F) -> F:
    """Add the options of the API server; the command gets them as `server: ServerOptions`."""

    @functools.wraps(command)
    def with_server(
        *args: Any,
        limit_critical_pods: bool,
        service_account_tokens: bool | None,
        cluster_ips: str,
        node_ports: str,
        **kwargs: Any,
    ) -> Any:
        server = ServerOptions(
            limit_critical_pods=limit_critical_pods,
            service_account_tokens=service_account_tokens,
            service_ranges=options.parse_service_ranges(cluster_ips, node_ports),
        )
        return command(*args, server=server, **kwargs)

    decorated: Any = with_server
    for option in _SERVER_OPTIONS:
        decorated = option(decorated)
    result: F = decorated
    return result


@click.command()
@_storage_options
@click.option(
    "--listen",
    default="",
    metavar="HOST:PORT",
    help="Address of the API server; port 0 chooses a free one. "
    f"[default: {_DEFAULT_ADDRESS}, but a free port with --name]",
)
@click.option(
    "--tls-name",
    "names",
    multiple=True,
    metavar="NAME",
    help="Another name or address of the server for its certificate; may be repeated.",
)
@click.option(
    "--kubeconfig",
    "config",
    type=click.Path(path_type=Path),
    default=None,
    metavar="FILE",
    help="File to write the administrator's kubeconfig to. [default: DIR/kubeconfig]",
)
@node_options
@click.option(
    "--feature-gates",
    default="",
    metavar="A=true,B=false",
    help="Features to switch on or off, by their names in Kubernetes.",
)
@configuration_option("KubeSchedulerConfiguration: how pods are placed.")
@decision_log_option
@click.option(
    "--audit-log",
    "audit",
    default="",
    metavar="FILE",
    help="File to record writes and refused requests in, with their user; none records nothing. "
    f"[default: DIR/{AUDIT_FILE}, but none with --data {IN_MEMORY}]",
)
@_server_options
@click.option(
    "--basic-workloads",
    "basic",
    type=click.Choice(["always", "never"]),
    default="always",
    show_default=True,
    help="Whether Jobs that are not gangs get a Workload and a PodGroup too.",
)
@options.workload_parents_option
@click.option(
    "--webhook-url",
    "webhooks",
    multiple=True,
    metavar="NAMESPACE/SERVICE=URL",
    help="URL of a local process that serves the webhooks of a Service, for example "
    "default/my-operator=https://127.0.0.1:9443; may be repeated.",
)
@click.option(
    "--without",
    default="",
    metavar="NAME,NAME",
    help=f"Components to leave out: {', '.join(options.COMPONENTS)}.",
)
@click.option("--detach", is_flag=True, help="Return when it is ready; it runs until phalanx down.")
@log_options
def up_command(
    *,
    listen: str,
    names: tuple[str, ...],
    storage: StorageOptions,
    config: Path | None,
    nodes: str,
    shape: str,
    topology: str,
    devices: tuple[str, ...],
    stages: Path | None,
    processes: bool,
    programs: Path | None,
    feature_gates: str,
    policy: Path | None,
    decisions: Path | None,
    audit: str,
    server: ServerOptions,
    basic: str,
    parents: str,
    webhooks: tuple[str, ...],
    without: str,
    detach: bool,
    log: LogOptions,
) -> None:
    """Run an API server with scheduler, controllers and simulated nodes.

    Prints one line that begins with "ready" once it serves. Log lines go to stderr, or with
    --detach to DIR/up.log. A cluster remembers its options: one not given has its former value.

    \b
    Example:
      phalanx up --detach --nodes 100 --shape cpu=8,memory=32Gi,nvidia.com/gpu=8
      KUBECONFIG=~/.local/state/phalanx/kubeconfig kubectl get nodes
      phalanx down
    """
    host, port = options.parse_address(listen or _default_address(storage))
    _check_files(decisions, audit, processes=processes, programs=programs, host=host)
    settings = UpOptions(
        host=host,
        port=port,
        server_names=names,
        storage=storage,
        kubeconfig=config,
        nodes=parse_node_options(nodes, shape, topology, devices=devices),
        disabled=options.parse_components(without),
        gates=options.parse_feature_gates(feature_gates),
        profiles=_load_profiles(policy) if policy else None,
        decision_log=decisions,
        basic_workloads=basic == "always",
        workload_parents=options.parse_workload_parents(parents),
        webhook_urls=options.parse_webhook_urls(webhooks),
        audit=audit,
        server=server,
        stages=options.load_stage_rules(stages),
        run_processes=processes,
        programs=programs,
        log=log,
    )
    (_start_detached if detach else _run)(replace(settings, plan=_plan_cluster(settings)))


def _check_files(
    decisions: Path | None, audit: str, *, processes: bool, programs: Path | None, host: str
) -> None:
    check_processes(processes, programs, host)
    check_log_directory("--decision-log", decisions)
    check_log_directory("--audit-log", Path(audit) if audit not in ("", AUDIT_DISABLED) else None)


def _default_address(storage: StorageOptions) -> str:
    """The address without --listen; a named cluster keeps the free port of its first start."""
    if not storage.cluster:
        return _DEFAULT_ADDRESS
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


def _plan_cluster(settings: UpOptions) -> ClusterPlan | None:
    """Plan what the data directory remembers of this start; nothing without objects on disk."""
    storage, nodes = settings.storage, None
    if storage.store == "memory":
        return None
    context = click.get_current_context()
    remembered = given_options(context)
    if settings.disabled and context.get_parameter_source("without") is ParameterSource.DEFAULT_MAP:
        names = ", ".join(sorted(settings.disabled))
        echo(f"without {names}, as at an earlier start; --without '' starts all", err=True)
    if storage.cluster:
        remembered.setdefault("listen", f"{settings.host}:{settings.port}")
    if "nodes" not in settings.disabled:
        node_type = PROCESS_NODE_TYPE if settings.run_processes else SIMULATED_NODE_TYPE
        nodes = fingerprint_nodes(settings.nodes, node_type)
    folder = Path(storage.data).expanduser()
    return plan_start(folder, remembered, nodes, recreate=storage.recreate_nodes)


def _load_profiles(policy: Path) -> Profiles:
    # Imported here: without --config only the components' process needs it.
    from phalanx.cli.scheduler_configuration import load_configuration

    return load_configuration(policy).profiles


def _run(settings: UpOptions) -> None:
    # Set by a server process that starts its component process again; not for its children.
    if number := os.environ.pop(COMPONENT_SOCKET, ""):
        _run_components(settings, socket.socket(fileno=int(number)))
        return
    # Start-up makes no garbage; tune_garbage_collector() enables the collector afterwards.
    gc.disable()
    settings.log.configure()
    is_in_memory = settings.storage.data == IN_MEMORY
    has_own_kubeconfig = is_in_memory and settings.kubeconfig is not None
    with (
        _data_directory(settings) as folder,
        background.pid_file(
            settings.runtime_directory(),
            is_required=not has_own_kubeconfig,
            is_in_memory=is_in_memory,
        ),
        _component_process(settings) as components,
    ):
        # Imported here: the process of the components imports its own modules at the same time.
        from phalanx.cli.up_server import run_server

        run_server(settings, folder, components)


def _start_detached(settings: UpOptions) -> None:
    with _data_directory(settings):
        arguments = [
            argument for argument in sys.argv[sys.argv.index("up") + 1 :] if argument != "--detach"
        ]
        folder = settings.runtime_directory()
        if settings.log.file is None:
            # Not only on stderr: a log file is rotated.
            arguments += ["--log-file", str(background.log_file(folder))]
        try:
            messages = background.start(arguments, folder)
        except background.NotStarted as error:
            raise click.ClickException(str(error)) from None
    background.print_ready(messages)


@contextlib.contextmanager
def _component_process(settings: UpOptions) -> Iterator[ComponentProcess | None]:
    """Run all components in a child process; yields None if all are left out."""
    if settings.disabled.issuperset(options.COMPONENTS):
        yield None
        return
    process = ComponentProcess(lambda sock: _run_components(settings, sock))
    try:
        yield process
    finally:
        process.end()


def _run_components(settings: UpOptions, sock: socket.socket) -> None:
    """Run all components in this process, with this end of the socket to the server process."""
    ignore_stop_signals()
    # Imported here: the server process imports its own modules at the same time.
    from phalanx.cli.up_components import run_components

    run_components(sock, settings)


@contextlib.contextmanager
def _data_directory(settings: UpOptions) -> Iterator[Path]:
    """Yield the directory of the certificates, which only this user may enter."""
    if settings.storage.data == IN_MEMORY:
        with tempfile.TemporaryDirectory(prefix="phalanx-") as name:
            yield Path(name)
        return
    folder = Path(settings.storage.data).expanduser()
    try:
        create_folder(folder)
        check_private(folder)
    except FileExistsError:
        raise click.ClickException(f"cannot use {folder}: it is not a directory") from None
    except OSError as error:
        raise click.ClickException(f"cannot use {folder}: {error.strerror}") from None
    except InsecurePermissionsError as error:
        raise click.ClickException(str(error)) from None
    yield folder
