"""`phalanx nodes`: run simulated nodes alone, against any API server.

Also defines the node options that `phalanx up` and `phalanx run` share with it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click

from phalanx import logs
from phalanx.api.core import PROCESS_NODE_TYPE, SIMULATED_NODE_TYPE
from phalanx.cli import options
from phalanx.cli.component_runner import (
    ReadyPrinter,
    ServerConnection,
    listen_option,
    open_health_socket,
    run_component,
)
from phalanx.cli.connection import server_options
from phalanx.cli.options import LogOptions, log_options
from phalanx.clock import WallClock
from phalanx.controllers.nodes.container_process import ProcessHost
from phalanx.controllers.nodes.node_pool import NodePoolRunner, SimulatedNode
from phalanx.controllers.nodes.simulated_devices import EXAMPLE
from phalanx.randomness import SystemRandom

F = TypeVar("F", bound=Callable[..., Any])

LOG = logs.component("nodes")

#: Hosts that only this machine reaches.
LOOPBACK_HOSTS = ("127.0.0.1", "::1", "localhost")


def node_options(command: F) -> F:
    """Add the options that describe nodes and how they run pods."""
    for option in (
        click.option(
            "--programs",
            type=click.Path(path_type=Path, exists=True, file_okay=False),
            default=None,
            metavar="DIR",
            help="Directory in which --run-processes looks for programs first.",
        ),
        click.option(
            "--run-processes/--no-run-processes",
            "processes",
            default=False,
            help="Run the commands of pods as processes of this machine and this user, for service "
            "accounts that may run processes.phalanx.dev.",
        ),
        click.option(
            "--stages",
            type=click.Path(path_type=Path),
            default=None,
            metavar="FILE",
            help="File of rules: how long simulated pods take to start, run and stop.",
        ),
        click.option(
            "--topology",
            default="",
            metavar="block=2,rack=4",
            help="Topology domains over which the nodes are spread.",
        ),
        click.option(
            "--shape",
            default="",
            metavar="cpu=8,memory=32Gi",
            help="Resources of each node.",
        ),
        click.option(
            "--devices",
            multiple=True,
            metavar=EXAMPLE,
            help="Devices of each node, published as ResourceSlices; may be given several times.",
        ),
        click.option(
            "--nodes",
            default="3",
            show_default=True,
            metavar="FILE|N",
            help="Number of simulated nodes, or a cluster file that lists pools.",
        ),
    ):
        command = option(command)
    return command


def parse_node_options(
    nodes: str, shape: str, topology: str, *, devices: Sequence[str] = ()
) -> list[SimulatedNode]:
    """Return the nodes that `--nodes`, `--shape`, `--topology` and `--devices` describe."""
    given = options.parse_device_options(devices)
    capacity = options.parse_shape(shape, "--shape")
    found = options.parse_nodes(nodes, capacity, options.parse_topology(topology))
    return [replace(node, devices=node.devices or given) for node in found]


def check_processes(processes: bool, programs: Path | None, server: str) -> None:
    """Raise a usage error unless the API server that commands come from is on this machine."""
    if programs and not processes:
        raise click.UsageError("--programs needs --run-processes")
    if processes and server not in LOOPBACK_HOSTS:
        raise click.UsageError(
            f"--run-processes runs the commands that the API server sends; {server} is not a "
            "loopback address"
        )


@contextmanager
def process_host(processes: bool, programs: Path | None) -> Iterator[ProcessHost | None]:
    """Yield the host on which pods run as processes, with a temporary directory; None if not."""
    if not processes:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="phalanx-", ignore_cleanup_errors=True) as root:
        yield ProcessHost(Path(root), programs.absolute() if programs else None)


@click.command()
@server_options
@node_options
@listen_option
@log_options
def nodes_command(
    *,
    config: Path | None,
    context: str,
    nodes: str,
    shape: str,
    topology: str,
    devices: tuple[str, ...],
    stages: Path | None,
    processes: bool,
    programs: Path | None,
    listen: str,
    log: LogOptions,
) -> None:
    """Run simulated nodes alone, against any API server.

    The nodes register and simulate the pods that are bound to them; nothing is executed unless
    --run-processes is given. An existing Node that Phalanx did not create is not touched.

    \b
    Example:
      phalanx nodes --kubeconfig here.kubeconfig --nodes 100 --topology rack=4
    """
    pool = parse_node_options(nodes, shape, topology, devices=devices)
    rules = options.load_stage_rules(stages)
    sock = open_health_socket(listen)
    server = ServerConnection(config, context, LOG)
    check_processes(processes, programs, urlsplit(server.url).hostname or "")
    log.configure()
    with process_host(processes, programs) as host:
        runner = NodePoolRunner(
            server.client,
            WallClock(),
            SystemRandom(),
            on_ready=ReadyPrinter(server, "nodes"),
            nodes=with_node_type(pool, host),
            rules=rules,
            host=host,
        )
        run_component(server, runner, sock)


def with_node_type(nodes: Sequence[SimulatedNode], host: ProcessHost | None) -> list[SimulatedNode]:
    """Label the nodes as simulated, or as process nodes if there is a host for processes."""
    node_type = SIMULATED_NODE_TYPE if host is None else PROCESS_NODE_TYPE
    return [replace(node, node_type=node_type) for node in nodes]
