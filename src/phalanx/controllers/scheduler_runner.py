"""One scheduler beside an API server, wherever that is, for as many terms as it takes.

Above `scheduling`, which schedules, and `tenure`, which finds the server and has it elected; below
the command line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from phalanx.api.core import DEFAULT_SCHEDULER
from phalanx.api.feature_gates import DEFAULT_GATES as GATES
from phalanx.api.feature_gates import FeatureGates
from phalanx.api.kinds import GROUP_BINDING, NAMESPACE, POD_GROUP, SERVICE, Kind
from phalanx.client.client import Client, is_served
from phalanx.clock import Clock
from phalanx.controllers.leadership import (
    ElectionConfig,
    LeaderElectedRunner,
    LeaderTask,
    RunnerSpec,
)
from phalanx.controllers.reconcile_loop import Informers
from phalanx.controllers.scheduling.decision_log import DecisionLog
from phalanx.controllers.scheduling.exact_solver import AsyncSolver
from phalanx.controllers.scheduling.scheduler import Scheduler
from phalanx.randomness import Random
from phalanx.scheduler.configuration.profiles import Profiles, apply_feature_gates
from phalanx.scheduler.policy import DEFAULT_POLICY

#: Whose pods are placed where nobody says, on a server that is not one of ours.
FOREIGN_SCHEDULER = "phalanx-scheduler"
#: Seconds that what is under way at the end is waited for.
_DRAIN_TIMEOUT = 0.7
#: What it means that a kind may not be read.
_MISSING_KIND_EFFECTS: Mapping[Kind, str] = {
    NAMESPACE: "namespaces are taken to have no labels",
    SERVICE: "pods are not spread for the sake of services",
}


@dataclass(frozen=True, slots=True)
class SchedulingCapabilities:
    """What a server can do for a scheduler."""

    has_group_bindings: bool
    has_pod_groups: bool


@dataclass(frozen=True, slots=True)
class SchedulerRunnerCallbacks:
    """How it is told what is going on, and, once, that it schedules."""

    report: Callable[[str], None]
    on_ready: Callable[[Sequence[str]], None]


class SchedulerRunner:
    """A scheduler that runs against a server until it is cancelled.

    Without `profiles` it places what nobody else does, by the usual policy; without a candidacy it
    leads without asking. Its decisions go to the `log`.
    """

    def __init__(
        self,
        client: Client,
        clock: Clock,
        random: Random,
        callbacks: SchedulerRunnerCallbacks,
        profiles: Profiles | None = None,
        election: ElectionConfig | None = None,
        gates: FeatureGates = GATES,
        decision_log: DecisionLog | None = None,
        solver: AsyncSolver | None = None,
    ) -> None:
        self._client, self._clock, self._random, self._callbacks = client, clock, random, callbacks
        self._profiles, self._gates, self._decision_log, self._solver = (
            profiles,
            gates,
            decision_log,
            solver,
        )
        self._scheduler: Scheduler | None = None
        place = RunnerSpec(self._discover, self._build_task, _MISSING_KIND_EFFECTS)
        self._runner = LeaderElectedRunner(client, clock, random, callbacks.report, place, election)

    @property
    def not_ready_reason(self) -> str:
        """Why it is not ready to lead, if it is not."""
        return self._runner.not_ready_reason

    async def run(self) -> None:
        """Schedule, term after term."""
        await self._runner.run()

    async def drain(self) -> None:
        """Begin nothing more, and wait for what is under way, but not for long."""
        waited = 0.0
        if self._scheduler is not None:
            self._scheduler.stop_cycles()
        while self._scheduler is not None and self._scheduler.is_busy and waited < _DRAIN_TIMEOUT:
            await asyncio.sleep(0.01)
            waited += 0.01

    async def _discover(self) -> SchedulingCapabilities:
        kinds = (GROUP_BINDING, POD_GROUP)
        return SchedulingCapabilities(*[await is_served(self._client, kind) for kind in kinds])

    def _build_task(self, capabilities: SchedulingCapabilities, informers: Informers) -> LeaderTask:
        profiles = self._select_profiles(capabilities)
        scheduling = Scheduler(
            self._client,
            informers,
            self._clock,
            self._random,
            profiles,
            is_foreign=not capabilities.has_group_bindings,
            decision_log=self._decision_log,
            solver=self._solver,
        )

        async def schedule() -> None:
            self._scheduler = scheduling
            self._callbacks.on_ready(tuple(profiles.policies))
            try:
                await scheduling.run()
            finally:
                self._scheduler = None

        return LeaderTask(next(iter(profiles.policies)), schedule)

    def _select_profiles(self, capabilities: SchedulingCapabilities) -> Profiles:
        """Whose pods are placed, and how, on such a server."""
        name = DEFAULT_SCHEDULER if capabilities.has_group_bindings else FOREIGN_SCHEDULER
        profiles = apply_feature_gates(
            self._gates, self._profiles or Profiles({name: DEFAULT_POLICY})
        )
        if not capabilities.has_group_bindings:
            names = ", ".join(profiles.policies)
            self._callbacks.report(
                "the API server has no GroupBinding: pods are bound one by one, "
                f"and only those whose schedulerName is {names}"
            )
        if profiles.groups and not capabilities.has_pod_groups:
            self._callbacks.report(
                f"the API server has no {POD_GROUP.resource}: there are no gangs"
            )
        return replace(profiles, groups=profiles.groups and capabilities.has_pod_groups)
