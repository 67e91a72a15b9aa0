"""`phalanx controllers`: the controllers alone, beside any API server."""

from __future__ import annotations

from pathlib import Path

import click

from phalanx.cli import options
from phalanx.cli.component_runner import (
    ReadyPrinter,
    ServerConnection,
    component_options,
    election_identity,
    open_health_socket,
    print_status,
    run_component,
)
from phalanx.cli.connection import server_options
from phalanx.client.leader_election import LeaseTimings
from phalanx.clock import WallClock
from phalanx.controllers.controller_manager import (
    ControllerManager,
    ControllerManagerCallbacks,
    ControllerManagerConfig,
)
from phalanx.controllers.leadership import ElectionConfig
from phalanx.controllers.registry import (
    ALL_DEFAULT,
    CONTROLLERS,
    ControllerSelection,
    UnknownController,
)
from phalanx.randomness import SystemRandom

_CONTROLLER_NAMES = ", ".join(row.name for row in CONTROLLERS)


@click.command()
@server_options
@click.option(
    "--controllers",
    "wanted",
    default=ALL_DEFAULT,
    show_default=True,
    metavar="LIST",
    help=f"Which ones, with commas: {ALL_DEFAULT} all that are usual, x this one too, -x not this one. "
    f"There are {_CONTROLLER_NAMES}. Where the API server is not Phalanx only job is usual.",
)
@click.option(
    "--basic-workloads",
    "basic",
    type=click.Choice(["always", "never"]),
    default="always",
    show_default=True,
    help="Whether Jobs that are no gangs get a Workload and a PodGroup too.",
)
@component_options
def command(
    config: Path | None, context: str, wanted: str, basic: str, elect: bool | None,
    feature_gates: str, listen: str,
) -> None:  # fmt: skip
    """Run the controllers alone, against any API server.

    Where that is not Phalanx, only Jobs with managedBy phalanx.dev/job-controller are looked after,
    and garbage collection and all the other controllers are off unless they are named.

    \b
    Example:
      phalanx controllers --kubeconfig here.kubeconfig --controllers '*,-garbage'
    """
    gates, selection = options.parse_feature_gates(feature_gates), _parse_selection(wanted)
    candidacy = None if elect is False else ElectionConfig(election_identity(), LeaseTimings())
    sock = open_health_socket(listen)
    server = ServerConnection(config, context)
    voice = ControllerManagerCallbacks(print_status, ReadyPrinter(server.url, "controllers"))
    wishes = ControllerManagerConfig(selection, gates, basic == "always")
    bureau = ControllerManager(server.client, WallClock(), SystemRandom(), voice, wishes, candidacy)
    run_component(server, bureau, sock)


def _parse_selection(text: str) -> ControllerSelection:
    try:
        return ControllerSelection(word.strip() for word in text.split(",") if word.strip())
    except UnknownController as error:
        raise click.BadParameter(str(error), param_hint="--controllers") from None
