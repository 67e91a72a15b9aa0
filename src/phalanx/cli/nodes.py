"""`phalanx nodes`: nodes of our own alone, beside any API server."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click

from phalanx.api.annotations import PROCESS_NODE_TYPE, SIMULATED_NODE_TYPE
from phalanx.cli import options
from phalanx.cli.component_runner import (
    ReadyPrinter,
    ServerConnection,
    listen_option,
    open_health_socket,
    print_status,
    run_component,
)
from phalanx.cli.connection import server_options
from phalanx.clock import WallClock
from phalanx.controllers.nodes.container_process import ProcessHost
from phalanx.controllers.nodes.node_pool import NodePoolCallbacks, NodePoolRunner, SimulatedNode
from phalanx.randomness import SystemRandom

#: Hosts that only this machine reaches.
LOOPBACK_HOSTS = ("127.0.0.1", "::1", "localhost")

F = TypeVar("F", bound=Callable[..., Any])


def node_options(command: F) -> F:
    """Which nodes there are, how simulated pods live, and whether processes are run instead."""
    for option in (
        click.option("--programs", type=click.Path(path_type=Path, exists=True, file_okay=False),
                     default=None, metavar="DIR",
                     help="Where --run-processes looks for programs first."),
        click.option("--run-processes", "processes", is_flag=True,
                     help="Really run the commands of pods, as processes of this machine and this "
                     "user, for service accounts that may run processes.phalanx.dev."),
        click.option("--stages", type=click.Path(path_type=Path), default=None, metavar="FILE",
                     help="How long simulated pods take to start, run and stop: a file of rules."),
        click.option("--topology", default="", metavar="block=2,rack=4",
                     help="How the nodes are spread over domains."),
        click.option("--shape", default="", metavar="cpu=8,memory=32Gi",
                     help="What each node has."),
        click.option("--nodes", default="3", show_default=True, metavar="FILE|N",
                     help="Simulated nodes: how many, or a cluster file that lists pools."),
    ):  # fmt: skip
        command = option(command)
    return command


def check_processes(processes: bool, programs: Path | None, server: str) -> None:
    """Refuse to run what comes over the network."""
    if programs and not processes:
        raise click.UsageError("--programs is of use with --run-processes only")
    if processes and server not in LOOPBACK_HOSTS:
        raise click.UsageError(
            f"--run-processes runs what the API server says, and {server} is no loopback address"
        )


@contextmanager
def process_host(processes: bool, programs: Path | None) -> Iterator[ProcessHost | None]:
    """What processes may have of this machine, if they are to be run: gone at the end."""
    if not processes:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="phalanx-", ignore_cleanup_errors=True) as root:
        yield ProcessHost(Path(root), programs.absolute() if programs else None)


@click.command()
@server_options
@node_options
@listen_option
def command(
    config: Path | None, context: str, nodes: str, shape: str, topology: str, stages: Path | None,
    processes: bool, programs: Path | None, listen: str,
) -> None:  # fmt: skip
    """Run nodes alone, against any API server.

    They register and pretend to run what is bound to them; nothing is executed unless
    --run-processes is given. A Node that is there already and not one of ours is left alone.

    \b
    Example:
      phalanx nodes --kubeconfig here.kubeconfig --nodes 100 --topology rack=4
    """
    wanted = options.parse_nodes(
        nodes, options.parse_shape(shape), options.parse_topology(topology)
    )
    rules = options.load_stage_rules(stages)
    sock = open_health_socket(listen)
    server = ServerConnection(config, context)
    check_processes(processes, programs, urlsplit(server.url).hostname or "")
    voice = NodePoolCallbacks(print_status, ReadyPrinter(server.url, "nodes"))
    with process_host(processes, programs) as host:
        park = NodePoolRunner(
            server.client,
            WallClock(),
            SystemRandom(),
            voice,
            with_node_type(wanted, host),
            rules,
            host,
        )
        run_component(server, park, sock)


def with_node_type(nodes: Sequence[SimulatedNode], host: ProcessHost | None) -> list[SimulatedNode]:
    """The nodes as what they are: simulated, or of processes."""
    sort = SIMULATED_NODE_TYPE if host is None else PROCESS_NODE_TYPE
    return [replace(node, node_type=sort) for node in nodes]
