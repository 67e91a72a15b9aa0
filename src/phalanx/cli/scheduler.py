"""`phalanx scheduler`: run the scheduler alone, against any API server."""

from __future__ import annotations

import re
from pathlib import Path

import click

from phalanx import logs
from phalanx.api.meta import Key
from phalanx.api.workload_sources import COMPAT_NAMES
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
from phalanx.cli.options import (
    LogOptions,
    check_log_directory,
    configuration_option,
    decision_log_option,
    open_decision_log,
)
from phalanx.cli.scheduler_configuration import load_configuration
from phalanx.client.leader_election import LeaseTimings
from phalanx.clock import WallClock
from phalanx.controllers.leadership import ElectionConfig
from phalanx.controllers.scheduler_runner import (
    FOREIGN_SCHEDULER,
    SchedulerRunner,
    SchedulerRunnerConfig,
)
from phalanx.controllers.scheduling.exact_solver import HighsSolver, ThreadedSolver
from phalanx.randomness import SystemRandom
from phalanx.scheduler.configuration.scheduler_configuration import (
    LeaderElectionConfiguration,
    SchedulerConfiguration,
)
from phalanx.scheduler.policy import DEFAULT_POLICY, Profiles

LOG = logs.component("scheduler")

#: The default Lease name of a KubeSchedulerConfiguration. kube-scheduler holds that Lease, so a
#: configuration that does not choose another name gets a Lease named after the scheduler.
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
    "names",
    multiple=True,
    metavar="NAME",
    help="Place pods with this schedulerName; repeatable. "
    f"[default: default-scheduler, but {FOREIGN_SCHEDULER} where the API server is not Phalanx]",
)
@click.option(
    "--compat",
    type=click.Choice(COMPAT_NAMES),
    multiple=True,
    help="Read the PodGroups of this project as gangs and write their status; repeatable.",
)
@click.option(
    "--preempt-foreign",
    "preempts_others",
    is_flag=True,
    help="Also evict pods of other schedulers where the API server is not Phalanx.",
)
@configuration_option("KubeSchedulerConfiguration: how pods are placed.")
@decision_log_option
@component_options
def scheduler_command(
    *,
    config: Path | None,
    context: str,
    names: tuple[str, ...],
    compat: tuple[str, ...],
    preempts_others: bool,
    policy: Path | None,
    decisions: Path | None,
    elect: bool | None,
    feature_gates: str,
    listen: str,
    log: LogOptions,
) -> None:
    """Run the scheduler alone, against any API server.

    \b
    Example:
      phalanx scheduler --kubeconfig here.kubeconfig
    """
    if names and policy:
        raise click.UsageError("--config names its schedulers itself; leave out --scheduler-name")
    gates = options.parse_feature_gates(feature_gates)
    configuration = load_configuration(policy) if policy else None
    profiles = Profiles(dict.fromkeys(names, DEFAULT_POLICY)) if names else None
    if configuration:
        profiles = configuration.profiles
    election = _election_config(configuration, elect)
    check_log_directory("--decision-log", decisions)
    sock = open_health_socket(listen)
    server = ServerConnection(config, context, LOG)
    log.configure()
    runner = SchedulerRunner(
        server.client,
        WallClock(),
        SystemRandom(),
        on_ready=ReadyPrinter(server, "schedulerName"),
        config=SchedulerRunnerConfig(
            profiles=profiles,
            gates=gates,
            decision_log=open_decision_log(decisions),
            solver=ThreadedSolver(HighsSolver()),
            compat=compat,
            preempts_others=preempts_others,
        ),
        election=election,
    )
    run_component(server, runner, sock)


def _election_config(
    configuration: SchedulerConfiguration | None, elect: bool | None
) -> ElectionConfig | None:
    """Return how to take part in leader election; `--leader-elect` overrides the file."""
    election = configuration.leader_election if configuration else LeaderElectionConfiguration()
    if not (election.leader_elect if elect is None else elect):
        return None
    timings = LeaseTimings(
        round(_duration_seconds(election.lease_duration)),
        _duration_seconds(election.renew_deadline),
        _duration_seconds(election.retry_period),
    )
    if not 0 < timings.retry_period < timings.renew_deadline < timings.lease_duration:
        raise click.UsageError(
            "leaderElection must have retryPeriod below renewDeadline below leaseDuration"
        )
    lease = Key(election.resource_namespace, election.resource_name)
    return ElectionConfig(
        election_identity(), timings, lease if lease.name != _KUBE_SCHEDULER_LEASE else None
    )


def _duration_seconds(duration: str) -> float:
    """Convert `1m30s` to seconds. The configuration's validation has checked the format."""
    parts = re.findall(r"([\d.]+) ?([a-zµ]+)", duration)
    return sum(float(number) * _DURATION_SECONDS[unit] for number, unit in parts)
