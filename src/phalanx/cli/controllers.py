"""`phalanx controllers`: run the controllers alone, against any API server."""

from __future__ import annotations

from pathlib import Path

import click

from phalanx import logs
from phalanx.cli import options
from phalanx.cli.component_runner import (
    ReadyPrinter,
    ServerConnection,
    component_options,
    election_identity,
    open_health_socket,
    run_component,
)
from phalanx.cli.connection import server_options
from phalanx.cli.options import LogOptions
from phalanx.client.leader_election import LeaseTimings
from phalanx.clock import WallClock
from phalanx.controllers.controller_manager import (
    ControllerManager,
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

LOG = logs.component("controllers")

_CONTROLLER_NAMES = ", ".join(row.name for row in CONTROLLERS)


@click.command()
@server_options
@click.option(
    "--controllers",
    "wanted",
    default=ALL_DEFAULT,
    show_default=True,
    metavar="LIST",
    help=f"Comma-separated controllers to run: {ALL_DEFAULT} enables those that are on by default, "
    f"x enables x, -x disables x. Available: {_CONTROLLER_NAMES}. Where the API server is not "
    "Phalanx, only job is on by default, and those of PodGroups if these are custom resources.",
)
@click.option(
    "--basic-workloads",
    "basic",
    type=click.Choice(["always", "never"]),
    default="always",
    show_default=True,
    help="Whether Jobs that are not gangs get a Workload and a PodGroup too.",
)
@options.workload_parents_option
@component_options
def controllers_command(
    *,
    config: Path | None,
    context: str,
    wanted: str,
    basic: str,
    parents: str,
    elect: bool | None,
    feature_gates: str,
    listen: str,
    log: LogOptions,
) -> None:
    """Run the controllers alone, against any API server.

    Where the API server is not Phalanx, the Job controller manages only Jobs with managedBy
    phalanx.dev/job-controller, and all other controllers run only if they are named. Those
    of PodGroups also run where these are custom resources.

    \b
    Example:
      phalanx controllers --kubeconfig here.kubeconfig --controllers '*,-garbage'
    """
    gates = options.parse_feature_gates(feature_gates)
    try:
        names = [name.strip() for name in wanted.split(",") if name.strip()]
        selection = ControllerSelection(names)
    except UnknownController as error:
        raise click.BadParameter(str(error), param_hint="--controllers") from None
    election = None if elect is False else ElectionConfig(election_identity(), LeaseTimings())
    sock = open_health_socket(listen)
    server = ServerConnection(config, context, LOG)
    log.configure()
    manager = ControllerManager(
        server.client,
        WallClock(),
        SystemRandom(),
        on_ready=ReadyPrinter(server, "controllers"),
        config=ControllerManagerConfig(
            selection,
            gates,
            basic_workloads=basic == "always",
            workload_parents=options.parse_workload_parents(parents),
            load_root_ca=server.load_ca if server.ca else None,
        ),
        election=election,
    )
    run_component(server, manager, sock)
