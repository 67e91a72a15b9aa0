"""`phalanx up`: run a control plane in the foreground, or with --detach in the background.

The command checks its options, forks the process of scheduler, controllers and nodes
(`up_components`), and becomes the API server itself (`up_server`).
"""

from __future__ import annotations

import contextlib
import gc
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from phalanx.cli import background, options
from phalanx.cli.nodes import check_processes, node_options, parse_node_options
from phalanx.cli.options import (
    LogOptions,
    check_decision_log,
    decision_log_option,
    log_options,
)
from phalanx.cli.up_processes import AUDIT_FILE, IN_MEMORY, UpOptions, run_in_child_process
from phalanx.server.security.private_files import InsecurePermissionsError, check_private

if TYPE_CHECKING:
    from phalanx.scheduler.configuration.profiles import Profiles


@click.command()
@click.option(
    "--listen",
    default="127.0.0.1:6443",
    show_default=True,
    metavar="HOST:PORT",
    help="Address of the API server; port 0 chooses a free one.",
)
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="NAME",
    help="Another name or address of the server for its certificate; may be repeated.",
)
@click.option(
    "--data",
    default=None,
    metavar="DIR",
    help=f"Directory for objects, certificates and tokens; {IN_MEMORY} stores nothing on disk. "
    "[default: ~/.local/state/phalanx]",
)
@click.option(
    "--store",
    type=click.Choice(["sqlite", "memory"]),
    default=None,
    help="Store for objects: on disk, or in memory until the process ends. "
    f"[default: sqlite, but memory with --data {IN_MEMORY}]",
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
@click.option(
    "--config",
    "policy",
    type=click.Path(path_type=Path),
    default=None,
    metavar="FILE",
    help="KubeSchedulerConfiguration: how pods are placed.",
)
@decision_log_option
@click.option(
    "--audit-log",
    "audit",
    default="",
    metavar="FILE",
    help="File to record writes and refused requests in, with their user; none records nothing. "
    f"[default: DIR/{AUDIT_FILE}, but none with --data {IN_MEMORY}]",
)
@click.option(
    "--basic-workloads",
    "basic",
    type=click.Choice(["always", "never"]),
    default="always",
    show_default=True,
    help="Whether Jobs that are not gangs get a Workload and a PodGroup too.",
)
@click.option(
    "--without",
    default="",
    metavar="NAME,NAME",
    help=f"Components to leave out: {', '.join(options.COMPONENTS)}.",
)
@click.option("--detach", is_flag=True, help="Return when it is ready; it runs until phalanx down.")
@log_options
def command(
    *,
    listen: str,
    names: tuple[str, ...],
    data: str | None,
    store: str | None,
    config: Path | None,
    nodes: str,
    shape: str,
    topology: str,
    stages: Path | None,
    processes: bool,
    programs: Path | None,
    feature_gates: str,
    policy: Path | None,
    decisions: Path | None,
    audit: str,
    basic: str,
    without: str,
    detach: bool,
    log: LogOptions,
) -> None:
    """Run an API server with scheduler, controllers and simulated nodes.

    Prints one line that begins with "ready" on stdout once it serves. Log lines go to stderr, or
    with --detach to DIR/up.log.

    \b
    Example:
      phalanx up --detach --nodes 100 --shape cpu=8,memory=32Gi,nvidia.com/gpu=8
      export KUBECONFIG=~/.local/state/phalanx/kubeconfig
      kubectl get nodes
      phalanx down
    """
    host, port = options.parse_address(listen)
    check_processes(processes, programs, host)
    check_decision_log(decisions)
    data, store = _resolve_storage(data, store)
    settings = UpOptions(
        host=host,
        port=port,
        server_names=names,
        data=data,
        store=store,
        kubeconfig=config,
        nodes=parse_node_options(nodes, shape, topology),
        disabled=options.parse_components(without),
        gates=options.parse_feature_gates(feature_gates),
        profiles=_load_profiles(policy) if policy else None,
        decision_log=decisions,
        basic_workloads=basic == "always",
        audit=audit,
        stages=options.load_stage_rules(stages),
        run_processes=processes,
        programs=programs,
        log=log,
    )
    start = _start_detached if detach else _run
    start(settings)


def _resolve_storage(data: str | None, store: str | None) -> tuple[str, str]:
    """Return the values of --data and --store with their defaults filled in."""
    data = data or str(options.state_directory())
    store = store or ("memory" if data == IN_MEMORY else "sqlite")
    if data == IN_MEMORY and store != "memory":
        raise click.UsageError(
            f"--data {IN_MEMORY} stores nothing on disk; give --store {store} a directory"
        )
    return data, store


def _load_profiles(policy: Path) -> Profiles:
    # Imported here: without --config only the components' process needs it.
    from phalanx.cli.scheduler_configuration import load_configuration

    return load_configuration(policy).profiles


def _run(settings: UpOptions) -> None:
    # Start-up makes no garbage; tune_garbage_collector() enables the collector afterwards.
    gc.disable()
    settings.log.configure()
    with (
        _data_directory(settings) as folder,
        background.pid_file(settings.runtime_directory()),
        _component_process(settings) as sock,
    ):
        # Imported here: the process of the components imports its own modules at the same time.
        from phalanx.cli.up_server import run_server

        run_server(settings, folder, sock)


def _start_detached(settings: UpOptions) -> None:
    with _data_directory(settings):
        arguments = [
            argument for argument in sys.argv[sys.argv.index("up") + 1 :] if argument != "--detach"
        ]
        try:
            ready = background.start(arguments, settings.runtime_directory())
        except background.NotStarted as error:
            raise click.ClickException(str(error)) from None
    background.print_ready(ready)


@contextlib.contextmanager
def _component_process(settings: UpOptions) -> Iterator[socket.socket | None]:
    """Run all components in a child process; yield the socket to it. None if all are left out."""
    if settings.disabled.issuperset(options.COMPONENTS):
        yield None
        return

    def work(sock: socket.socket) -> None:
        from phalanx.cli.up_components import run_components

        run_components(sock, settings)

    with run_in_child_process(work) as sock:
        yield sock


@contextlib.contextmanager
def _data_directory(settings: UpOptions) -> Iterator[Path]:
    """Yield the directory of the certificates, which only this user may enter."""
    if settings.data == IN_MEMORY:
        with tempfile.TemporaryDirectory(prefix="phalanx-") as name:
            yield Path(name)
        return
    folder = Path(settings.data).expanduser()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_private(folder)
    except OSError as error:
        raise click.ClickException(f"cannot use {folder}: {error.strerror}") from None
    except InsecurePermissionsError as error:
        raise click.ClickException(str(error)) from None
    yield folder
