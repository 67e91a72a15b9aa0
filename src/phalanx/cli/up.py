"""`phalanx up`: a whole control plane in the foreground."""

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
from phalanx.cli.nodes import check_processes, node_options
from phalanx.cli.options import check_decision_log, decision_log_option
from phalanx.cli.up_processes import IN_MEMORY, UpOptions, run_in_child_process
from phalanx.server.security.private_files import InsecurePermissionsError, check_private

if TYPE_CHECKING:
    from phalanx.scheduler.configuration.profiles import Profiles

_AUDIT_FILE = "audit.log"


@click.command()
@click.option(
    "--listen",
    default="127.0.0.1:6443",
    show_default=True,
    metavar="HOST:PORT",
    help="Where to serve; port 0 takes any free one.",
)
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="NAME",
    help="Another name or address by which clients know the server; may be given again.",
)
@click.option(
    "--data",
    default=None,
    metavar="DIR",
    help=f"Where to keep objects, certificates and token; {IN_MEMORY} keeps nothing. "
    "[default: a folder of the user's]",
)
@click.option(
    "--store",
    type=click.Choice(["sqlite", "memory"]),
    default=None,
    help=f"Where objects are kept: on disk, or in memory until the end. "
    f"[default: sqlite, but memory with --data {IN_MEMORY}]",
)
@click.option(
    "--kubeconfig",
    "config",
    type=click.Path(path_type=Path),
    default=None,
    metavar="FILE",
    help="Where to write the kubeconfig. [default: DIR/kubeconfig]",
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
    help="How pods are placed: a KubeSchedulerConfiguration.",
)
@decision_log_option
@click.option(
    "--audit-log",
    "audit",
    default="",
    metavar="FILE",
    help="Where to write who wrote what and who was refused; none writes nothing. "
    f"[default: DIR/{_AUDIT_FILE}, but none with --data {IN_MEMORY}]",
)
@click.option(
    "--basic-workloads",
    "basic",
    type=click.Choice(["always", "never"]),
    default="always",
    show_default=True,
    help="Whether Jobs that are no gangs get a Workload and a PodGroup too.",
)
@click.option(
    "--without",
    default="",
    metavar="PART,PART",
    help=f"Parts to leave out: {', '.join(options.COMPONENTS)}.",
)
@click.option(
    "--detach", is_flag=True, help="Return when it is ready, and let it run until phalanx down."
)
def command(
    listen: str, names: tuple[str, ...], data: str | None, store: str, config: Path | None,
    nodes: str, shape: str, topology: str, stages: Path | None, processes: bool,
    programs: Path | None, feature_gates: str, policy: Path | None, decisions: Path | None,
    audit: str, basic: str, without: str, detach: bool,
) -> None:  # fmt: skip
    """Run an API server, with scheduler, controllers and simulated nodes beside it.

    \b
    Example:
      phalanx up --detach --nodes 100 --shape cpu=8,memory=32Gi,nvidia.com/gpu=8
      export KUBECONFIG=~/.local/state/phalanx/kubeconfig
      kubectl get nodes
      phalanx down
    """
    # Until it is ready there is no garbage to look for; `settle` sees to it then.
    gc.disable()
    host, port = options.parse_address(listen)
    left_out, gates = options.parse_components(without), options.parse_feature_gates(feature_gates)
    wanted = options.parse_nodes(
        nodes, options.parse_shape(shape), options.parse_topology(topology)
    )
    rules = options.load_stage_rules(stages)
    check_processes(processes, programs, host)
    place = data or str(options.state_directory())
    kept = store or ("memory" if place == IN_MEMORY else "sqlite")
    if place == IN_MEMORY and kept != "memory":
        raise click.UsageError(f"--data {IN_MEMORY} keeps nothing; give --store {kept} a folder")
    profiles = _load_profiles(policy) if policy else None
    check_decision_log(decisions)
    settings = UpOptions(
        host, port, names, place, kept, config, wanted, left_out, gates, profiles, decisions,
        basic == "always", audit, rules, processes, programs,
    )  # fmt: skip
    if detach:
        _start_detached(settings)
        return
    with (
        _data_directory(settings) as folder,
        background.pid_file(settings.runtime_directory()),
        _component_process(settings) as line,
    ):
        # Only now, while the crew's process loads its own half.
        from phalanx.cli.up_server import run_server

        run_server(settings, folder, line)


def _load_profiles(policy: Path) -> Profiles:
    """How pods are placed by a file; loaded here only to tell whoever typed it what is wrong."""
    from phalanx.cli.scheduler_configuration import load_configuration

    return load_configuration(policy).profiles


def _start_detached(settings: UpOptions) -> None:
    """The same in the background, once it is ready."""
    with _data_directory(settings):
        own = [word for word in sys.argv[sys.argv.index("up") + 1 :] if word != "--detach"]
        try:
            ready = background.start(own, settings.runtime_directory())
        except background.NotStarted as error:
            raise click.ClickException(str(error)) from None
    background.print_ready(ready)


@contextlib.contextmanager
def _component_process(settings: UpOptions) -> Iterator[socket.socket | None]:
    """All but the server in a process of its own, if there is any; where it can be asked."""
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
    """The folder of the certificates: for ourselves alone, or gone at the end."""
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
