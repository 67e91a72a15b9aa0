"""`phalanx scheduler`: the scheduler alone, beside any API server."""

from __future__ import annotations

import re
from pathlib import Path

import click

from phalanx.api.meta import Key
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
from phalanx.cli.options import check_decision_log, decision_log_option, open_decision_log
from phalanx.cli.scheduler_configuration import load_configuration
from phalanx.client.leader_election import LeaseTimings
from phalanx.clock import WallClock
from phalanx.controllers.leadership import ElectionConfig
from phalanx.controllers.scheduler_runner import (
    FOREIGN_SCHEDULER,
    SchedulerRunner,
    SchedulerRunnerCallbacks,
)
from phalanx.controllers.scheduling.exact_solver import HighsSolver, ThreadedSolver
from phalanx.randomness import SystemRandom
from phalanx.scheduler.configuration.profiles import Profiles
from phalanx.scheduler.configuration.scheduler_configuration import (
    LeaderElectionConfiguration,
    SchedulerConfiguration,
)
from phalanx.scheduler.policy import DEFAULT_POLICY

#: The name of a lease in a configuration that does not choose one; it is another scheduler's.
_KUBE_SCHEDULER_LEASE = LeaderElectionConfiguration().resource_name
_DURATION_SECONDS = {
    "h": 3600.0,
    "m": 60.0,
    "s": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
    "µs": 1e-6,
    "ns": 1e-9,
}


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
@component_options
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
    gates = options.parse_feature_gates(feature_gates)
    asked = load_configuration(policy) if policy else None
    profiles = asked.profiles if asked else Profiles({name: DEFAULT_POLICY}) if name else None
    candidacy = _election_config(asked, elect)
    check_decision_log(decisions)
    sock = open_health_socket(listen)
    server = ServerConnection(config, context)
    voice = SchedulerRunnerCallbacks(print_status, ReadyPrinter(server.url, "schedulerName"))
    office = SchedulerRunner(
        server.client, WallClock(), SystemRandom(), voice, profiles, candidacy, gates,
        open_decision_log(decisions), ThreadedSolver(HighsSolver()),
    )  # fmt: skip
    run_component(server, office, sock)


def _election_config(
    asked: SchedulerConfiguration | None, elect: bool | None
) -> ElectionConfig | None:
    """Whether and how the leadership is stood for; the command line has the last word."""
    wish = asked.leader_election if asked else LeaderElectionConfiguration()
    if not (wish.leader_elect if elect is None else elect):
        return None
    terms = LeaseTimings(
        round(_duration_seconds(wish.lease_duration)), _duration_seconds(wish.renew_deadline),
        _duration_seconds(wish.retry_period),
    )  # fmt: skip
    if not 0 < terms.retry_period < terms.renew_deadline < terms.lease_duration:
        raise click.UsageError(
            "leaderElection must have retryPeriod below renewDeadline below leaseDuration"
        )
    lease = Key(wish.resource_namespace, wish.resource_name)
    return ElectionConfig(
        election_identity(), terms, lease if lease.name != _KUBE_SCHEDULER_LEASE else None
    )


def _duration_seconds(duration: str) -> float:
    """`1m30s` in seconds; that it is a duration was checked where it was read."""
    parts = re.findall(r"([\d.]+) ?([a-zµ]+)", duration)
    return sum(float(number) * _DURATION_SECONDS[unit] for number, unit in parts)
