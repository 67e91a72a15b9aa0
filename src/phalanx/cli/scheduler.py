"""`phalanx scheduler`: the scheduler alone, beside any API server."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Sequence
from pathlib import Path

import click
import uvloop

from phalanx.api.errors import Unauthorized
from phalanx.api.meta import Key
from phalanx.chance import TrueChance
from phalanx.cli import options
from phalanx.cli.configuration import load_configuration
from phalanx.cli.connection import access, server_options
from phalanx.cli.signals import signals
from phalanx.client import kubeconfig
from phalanx.client.client import Client
from phalanx.client.election import Terms
from phalanx.clock import WallClock
from phalanx.controllers.office import FOREIGN_SCHEDULER, Candidacy, Office, Voice
from phalanx.scheduler.configuration import Configuration, LeaderElection
from phalanx.scheduler.policy import DEFAULT
from phalanx.scheduler.profiles import Profiles

#: The name of a lease in a configuration that does not choose one; it is another scheduler's.
_NOT_OURS = LeaderElection().resource_name
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


@click.command()
@server_options
@click.option(
    "--scheduler-name",
    "name",
    default="",
    metavar="NAME",
    help="Whose pods to place, by their schedulerName. "
    f"[default: default-scheduler, but {FOREIGN_SCHEDULER} where the API server is not Phalanx]",
)
@click.option(
    "--config",
    "policy",
    type=click.Path(path_type=Path),
    default=None,
    metavar="FILE",
    help="How pods are placed: a KubeSchedulerConfiguration.",
)
@click.option(
    "--leader-elect/--no-leader-elect",
    "elect",
    default=None,
    help="Whether to schedule only while holding a Lease, so that several can stand by. "
    "[default: yes]",
)
@click.option(
    "--feature-gates",
    default="",
    metavar="A=true,B=false",
    help="Features to switch on or off, by their names in Kubernetes.",
)
def command(
    config: Path | None, context: str, name: str, policy: Path | None, elect: bool | None,
    feature_gates: str,
) -> None:  # fmt: skip
    """Run the scheduler alone, against any API server.

    \b
    Example:
      phalanx scheduler --kubeconfig here.kubeconfig
    """
    if name and policy:
        raise click.UsageError("--config names its schedulers itself; leave out --scheduler-name")
    gates = options.feature_gates(feature_gates)
    asked = load_configuration(policy) if policy else None
    profiles = asked.profiles if asked else Profiles({name: DEFAULT}) if name else None
    candidacy = _candidacy(asked, elect)
    try:
        server = access(config, context)
        client = kubeconfig.connect(server)
    except kubeconfig.KubeconfigError as error:
        raise click.ClickException(str(error)) from None
    voice = Voice(_say, _Ready(server.server))
    office = Office(client, WallClock(), TrueChance(), voice, profiles, candidacy, gates)
    if not _ran(client, office):
        raise click.ClickException(f"{server.server} does not accept the credential")


def _candidacy(asked: Configuration | None, elect: bool | None) -> Candidacy | None:
    """Whether and how the leadership is stood for; the command line has the last word."""
    wish = asked.leader_election if asked else LeaderElection()
    if not (wish.leader_elect if elect is None else elect):
        return None
    terms = Terms(
        round(_seconds(wish.lease_duration)), _seconds(wish.renew_deadline),
        _seconds(wish.retry_period),
    )  # fmt: skip
    if not 0 < terms.retry < terms.renew < terms.lease:
        raise click.UsageError(
            "leaderElection must have retryPeriod below renewDeadline below leaseDuration"
        )
    lease = Key(wish.resource_namespace, wish.resource_name)
    identity = f"{socket.gethostname()}_{TrueChance().uid()}"
    return Candidacy(identity, terms, lease if lease.name != _NOT_OURS else None)


def _seconds(duration: str) -> float:
    """`1m30s` in seconds; that it is a duration was checked where it was read."""
    parts = re.findall(r"([\d.]+) ?([a-zµ]+)", duration)
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def _ran(client: Client, office: Office) -> bool:
    """Run to the end; False if the server refused the credential."""
    is_known = True
    try:
        uvloop.run(_run(client, office))
    except* Unauthorized:
        is_known = False
    return is_known


async def _run(client: Client, office: Office) -> None:
    try:
        async with signals() as stopped, asyncio.TaskGroup() as group:
            running = group.create_task(office.run())
            await stopped.wait()
            await office.wind_up()
            running.cancel()
    finally:
        await client.close()


class _Ready:
    """Says on stdout, the first time, that pods are being placed; later ones are news."""

    def __init__(self, server: str) -> None:
        self._server, self._said = server, False

    def __call__(self, names: Sequence[str]) -> None:
        click.echo(f"ready {self._server} schedulerName {','.join(names)}", err=self._said)
        self._said = True


def _say(text: str) -> None:
    click.echo(text, err=True)
