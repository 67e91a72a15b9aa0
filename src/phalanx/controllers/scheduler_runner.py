"""Runs one scheduler beside an API server, in this process or elsewhere.

Stands above `scheduling/`, which schedules, and `leadership`, which waits for the server and holds
the lease; below the command line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from phalanx import logs
from phalanx.api.core import DEFAULT_SCHEDULER
from phalanx.api.feature_gates import DEFAULT_GATES as GATES
from phalanx.api.feature_gates import FeatureGates
from phalanx.api.kinds import (
    GROUP_BINDING,
    NAMESPACE,
    POD_GROUP,
    PRIORITY_CLASS,
    SERVICE,
    Kind,
)
from phalanx.api.workload_sources import WORKLOAD_SOURCES, ServedSources
from phalanx.client.client import Client, is_served
from phalanx.client.workload_sources import discover_sources
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
from phalanx.scheduler.policy import DEFAULT_POLICY, Profiles, apply_feature_gates

LOG = logs.component("scheduler")

#: The default scheduler name on an API server that is not Phalanx.
FOREIGN_SCHEDULER = "phalanx-scheduler"
#: Annotation of the Lease of a scheduler: the scheduler names that it serves.
SCHEDULER_NAMES = "phalanx.dev/scheduler-names"
#: Seconds that `drain` waits for binds and evictions under way.
_DRAIN_TIMEOUT = 0.7
#: What follows if reading a kind is forbidden.
_MISSING_KIND_EFFECTS: Mapping[Kind, str] = {
    NAMESPACE: "namespaceSelectors see namespaces without labels",
    PRIORITY_CLASS: "groups have the priority of their pods instead of that of their class",
    SERVICE: "pods are not spread by service",
    **{row.kind: "pods of these groups wait" for row in WORKLOAD_SOURCES if row.compat},
}


@dataclass(frozen=True, slots=True)
class SchedulingCapabilities:
    """What a server offers a scheduler."""

    has_group_bindings: bool
    sources: ServedSources


@dataclass(frozen=True, slots=True)
class SchedulerRunnerConfig:
    """What is scheduled, and how.

    Without `profiles` the pods of one scheduler name are placed with the default policy. PodGroups
    of the projects in `compat` are read as gangs. On a foreign server pods of other schedulers are
    evicted only with `preempts_others`.
    """

    profiles: Profiles | None = None
    gates: FeatureGates = GATES
    decision_log: DecisionLog | None = None
    solver: AsyncSolver | None = None
    compat: Collection[str] = ()
    preempts_others: bool = False


_DEFAULT_CONFIG = SchedulerRunnerConfig()


class SchedulerRunner:
    """Runs a scheduler against a server until cancelled.

    Without an `election` it schedules without holding a lease. `on_ready` is called with the
    scheduler names each time that the scheduler starts to schedule.
    """

    def __init__(
        self,
        client: Client,
        clock: Clock,
        random: Random,
        *,
        on_ready: Callable[[Sequence[str]], None],
        config: SchedulerRunnerConfig = _DEFAULT_CONFIG,
        election: ElectionConfig | None = None,
        log: logs.Log = LOG,
    ) -> None:
        self._client, self._clock, self._random = client, clock, random
        self._on_ready, self._config, self._log = on_ready, config, log
        self._scheduler: Scheduler | None = None
        spec = RunnerSpec(
            self._discover, self._build_task, _MISSING_KIND_EFFECTS, lambda found: found.sources
        )
        self._runner = LeaderElectedRunner(
            client, clock, random, log=log, spec=spec, election=election
        )

    @property
    def not_ready_reason(self) -> str:
        """Why the scheduler is not ready to lead; "" if it is."""
        return self._runner.not_ready_reason

    async def run(self) -> None:
        """Schedule, term after term."""
        await self._runner.run()

    async def drain(self) -> None:
        """Start no further cycle, and wait a short time for binds and evictions under way."""
        waited = 0.0
        if self._scheduler is not None:
            self._scheduler.stop_cycles()
        while self._scheduler is not None and self._scheduler.is_busy and waited < _DRAIN_TIMEOUT:
            await asyncio.sleep(0.01)
            waited += 0.01

    async def _discover(self) -> SchedulingCapabilities:
        return SchedulingCapabilities(
            has_group_bindings=await is_served(self._client, GROUP_BINDING),
            sources=await discover_sources(self._client, self._config.compat),
        )

    def _build_task(self, capabilities: SchedulingCapabilities, informers: Informers) -> LeaderTask:
        profiles = self._select_profiles(capabilities)
        informers.resolve_priority_classes()
        scheduler = Scheduler(
            informers.client,
            informers,
            self._clock,
            random=self._random,
            profiles=profiles,
            is_foreign=not capabilities.has_group_bindings,
            decision_log=self._config.decision_log,
            solver=self._config.solver,
        )

        async def schedule() -> None:
            self._scheduler = scheduler
            self._log.info("scheduling", schedulers=tuple(profiles.policies))
            self._on_ready(tuple(profiles.policies))
            try:
                await scheduler.run()
            finally:
                self._scheduler = None

        names = tuple(profiles.policies)
        return LeaderTask(names[0], schedule, {SCHEDULER_NAMES: ",".join(names)})

    def _select_profiles(self, capabilities: SchedulingCapabilities) -> Profiles:
        """Return the profiles for such a server, and log what the server lacks."""
        name = DEFAULT_SCHEDULER if capabilities.has_group_bindings else FOREIGN_SCHEDULER
        profiles = apply_feature_gates(
            self._config.gates, self._config.profiles or Profiles({name: DEFAULT_POLICY})
        )
        if not capabilities.has_group_bindings:
            self._log.info(
                "the API server has no GroupBinding: pods are bound one by one",
                schedulers=tuple(profiles.policies),
            )
        kinds = [row.kind.resource for row in capabilities.sources.of(POD_GROUP)]
        if profiles.groups and not kinds:
            self._log.warning(
                "the API server has no PodGroups: gang scheduling is off; see phalanx install",
                resource=POD_GROUP.resource,
            )
        elif kinds != [POD_GROUP.resource]:
            self._log.info("PodGroups are custom resources", resources=kinds)
        return replace(
            profiles,
            groups=profiles.groups and bool(kinds),
            spares_others=capabilities.sources.is_foreign and not self._config.preempts_others,
        )
