"""`phalanx scheduler`: the scheduler alone, beside any API server."""

from __future__ import annotations

import re
from pathlib import Path

import click

from phalanx.api.meta import Key
from phalanx.chance import TrueChance
from phalanx.cli import options
from phalanx.cli.configuration import load_configuration
from phalanx.cli.connection import server_options
from phalanx.cli.decisionlog import check_decision_log, decision_log, decision_log_option
from phalanx.cli.health import health_socket
from phalanx.cli.running import Connected, Ready, identity, part_options, run_beside, say
from phalanx.client.election import Terms
from phalanx.clock import WallClock
from phalanx.controllers.office import FOREIGN_SCHEDULER, Office, Voice
from phalanx.controllers.shell.exact import Beside, Solver
from phalanx.controllers.tenure import Candidacy
from phalanx.scheduler.policy import DEFAULT
from phalanx.scheduler.settings.configuration import Configuration, LeaderElection
from phalanx.scheduler.settings.profiles import Profiles

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
@decision_log_option
@part_options
def command(
    config: Path | None, context: str, name: str, policy: Path | None, decisions: Path | None,
    elect: bool | None, feature_gates: str, listen: str,
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
    check_decision_log(decisions)
    sock = health_socket(listen)
    server = Connected(config, context)
    voice = Voice(say, Ready(server.url, "schedulerName"))
    office = Office(
        server.client, WallClock(), TrueChance(), voice, profiles, candidacy, gates,
        decision_log(decisions), Beside(Solver()),
    )  # fmt: skip
    run_beside(server, office, sock)


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
    return Candidacy(identity(), terms, lease if lease.name != _NOT_OURS else None)


def _seconds(duration: str) -> float:
    """`1m30s` in seconds; that it is a duration was checked where it was read."""
    parts = re.findall(r"([\d.]+) ?([a-zµ]+)", duration)
    return sum(float(number) * _UNITS[unit] for number, unit in parts)
