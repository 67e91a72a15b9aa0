"""`phalanx nodes`: nodes of our own alone, beside any API server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from phalanx.chance import TrueChance
from phalanx.cli import options
from phalanx.cli.connection import server_options
from phalanx.cli.health import health_socket
from phalanx.cli.running import Connected, Ready, listen_option, run_beside, say
from phalanx.clock import WallClock
from phalanx.controllers.park import Park, Voice

F = TypeVar("F", bound=Callable[..., Any])


def node_options(command: F) -> F:
    """`--nodes`, `--shape`, `--topology` and `--stages`: which nodes there are, how pods live."""
    for option in (
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


@click.command()
@server_options
@node_options
@listen_option
def command(
    config: Path | None, context: str, nodes: str, shape: str, topology: str, stages: Path | None,
    listen: str,
) -> None:  # fmt: skip
    """Run nodes alone, against any API server.

    They register and pretend to run what is bound to them; nothing is executed. A Node that is
    there already and not one of ours is left alone.

    \b
    Example:
      phalanx nodes --kubeconfig here.kubeconfig --nodes 100 --topology rack=4
    """
    wanted = options.nodes(nodes, options.shape(shape), options.topology(topology))
    rules = options.stage_rules(stages)
    sock = health_socket(listen)
    server = Connected(config, context)
    voice = Voice(say, Ready(server.url, "nodes"))
    park = Park(server.client, WallClock(), TrueChance(), voice, wanted, rules)
    run_beside(server, park, sock)
