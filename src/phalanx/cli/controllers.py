"""`phalanx controllers`: the controllers alone, beside any API server."""

from __future__ import annotations

from pathlib import Path

import click

from phalanx.chance import TrueChance
from phalanx.cli import options
from phalanx.cli.connection import server_options
from phalanx.cli.health import health_socket
from phalanx.cli.running import Connected, Ready, identity, part_options, run_beside, say
from phalanx.client.election import Terms
from phalanx.clock import WallClock
from phalanx.controllers.bureau import Bureau, Voice, Wishes
from phalanx.controllers.roster import CONTROLLERS, USUAL, Selection, UnknownController
from phalanx.controllers.tenure import Candidacy

_NAMES = ", ".join(row.name for row in CONTROLLERS)


@click.command()
@server_options
@click.option(
    "--controllers",
    "wanted",
    default=USUAL,
    show_default=True,
    metavar="LIST",
    help=f"Which ones, with commas: {USUAL} all that are usual, x this one too, -x not this one. "
    f"There are {_NAMES}. Where the API server is not Phalanx only job is usual.",
)
@click.option(
    "--basic-workloads",
    "basic",
    type=click.Choice(["always", "never"]),
    default="always",
    show_default=True,
    help="Whether Jobs that are no gangs get a Workload and a PodGroup too.",
)
@part_options
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
    gates, selection = options.feature_gates(feature_gates), _selection(wanted)
    candidacy = None if elect is False else Candidacy(identity(), Terms())
    sock = health_socket(listen)
    server = Connected(config, context)
    voice = Voice(say, Ready(server.url, "controllers"))
    wishes = Wishes(selection, gates, basic == "always")
    bureau = Bureau(server.client, WallClock(), TrueChance(), voice, wishes, candidacy)
    run_beside(server, bureau, sock)


def _selection(text: str) -> Selection:
    try:
        return Selection(word.strip() for word in text.split(",") if word.strip())
    except UnknownController as error:
        raise click.BadParameter(str(error), param_hint="--controllers") from None
