"""The controllers, one row each: what they are called, what they need, how they are made.

    `phalanx up`            ─┐
    `phalanx controllers`   ─┴▶ the rows that are wanted ─▶ parts, ready to run

The order counts: who comes first says how a kind is decoded, and the last take it as they find it.
Makes them and runs none. The scheduler is no row: it stands for election by itself (`office.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from phalanx.api.batch import OWN_JOB_CONTROLLER
from phalanx.api.gates import RESOURCE_CLAIMS, Gates
from phalanx.api.kinds import (
    CLUSTER_ROLE,
    COMPOSITE_POD_GROUP,
    CRON_JOB,
    JOB,
    LEASE,
    NAMESPACE,
    NODE,
    POD,
    POD_DISRUPTION_BUDGET,
    POD_GROUP,
    RESOURCE_CLAIM,
    RESOURCE_CLAIM_TEMPLATE,
    SERVICE_ACCOUNT,
    WORKLOAD,
    Kind,
)
from phalanx.chance import Chance
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.claims.resourceclaims import ResourceClaims
from phalanx.controllers.claims.use import ClaimUse
from phalanx.controllers.cron.cronjobs import CronJobs
from phalanx.controllers.groups.compositegroups import CompositeGroups
from phalanx.controllers.groups.podgroups import Protection
from phalanx.controllers.groups.replicagroups import ReplicaGroups
from phalanx.controllers.jobs.controller import MANAGERS, Jobs
from phalanx.controllers.jobs.groups import by_gates
from phalanx.controllers.loop import Informers
from phalanx.controllers.nodes.nodelifecycle import NodeLifecycle
from phalanx.controllers.nodes.tainteviction import TaintEviction
from phalanx.controllers.recorder import Recorder
from phalanx.controllers.upkeep.disruption import Disruption
from phalanx.controllers.upkeep.garbage import Garbage
from phalanx.controllers.upkeep.namespaces import Namespaces
from phalanx.controllers.upkeep.podgarbage import PodGarbage
from phalanx.controllers.upkeep.roleaggregation import RoleAggregation
from phalanx.controllers.upkeep.serviceaccounts import ServiceAccounts
from phalanx.controllers.upkeep.ttl import TimeToLive

#: Something that runs until it is cancelled.
Part = Callable[[], Coroutine[None, None, None]]
#: Every controller that is on where nobody says otherwise.
USUAL = "*"


@dataclass(frozen=True, slots=True)
class Bench:
    """What controllers are made with.

    `kinds` are those that the server knows, in the order of discovery; it `is_foreign` if it is not
    one of ours.
    """

    client: Client
    informers: Informers
    clock: Clock
    chance: Chance
    gates: Gates
    kinds: Sequence[Kind]
    basic_workloads: bool = True
    is_foreign: bool = False

    def recorder(self, name: str) -> Recorder:
        """Somebody who writes events under a name."""
        return Recorder(self.client, self.clock, self.chance, name)

    @property
    def has_groups(self) -> bool:
        """Whether there are PodGroups."""
        return POD_GROUP in self.kinds


class Controller(NamedTuple):
    """One row. `also` is what kube-controller-manager calls it.

    One that is at home `abroad` is on by itself on a foreign API server too, which has its own of
    all the others.
    """

    name: str
    make: Callable[[Bench], list[Part]]
    needs: tuple[Kind, ...]
    also: tuple[str, ...] = ()
    abroad: bool = False


def _job(bench: Bench) -> list[Part]:
    recorder = bench.recorder("job-controller")
    missing = next((kind for kind in (WORKLOAD, POD_GROUP) if kind not in bench.kinds), None)
    managers = (OWN_JOB_CONTROLLER,) if bench.is_foreign else MANAGERS
    settings = by_gates(bench.gates, basic=bench.basic_workloads)
    jobs = Jobs(
        bench.client, bench.informers, bench.clock, recorder, settings, managers, missing
    )  # fmt: skip
    return [recorder.run, jobs.run]


def _cron_job(bench: Bench) -> list[Part]:
    recorder = bench.recorder("cronjob-controller")
    return [
        recorder.run, CronJobs(bench.client, bench.informers, bench.clock, recorder.record).run,
    ]  # fmt: skip


def _node(bench: Bench) -> list[Part]:
    recorder = bench.recorder("node-controller")
    lifecycle = NodeLifecycle(bench.client, bench.informers, bench.clock, recorder.record)
    return [recorder.run, lifecycle.run]


def _taint(bench: Bench) -> list[Part]:
    recorder = bench.recorder("taint-eviction-controller")
    eviction = TaintEviction(bench.client, bench.informers, bench.clock, recorder.record)
    return [recorder.run, eviction.run]


def _claims(bench: Bench) -> list[Part]:
    recorder = bench.recorder("resource_claim")
    groups, shares = bench.has_groups, bench.gates.is_on(RESOURCE_CLAIMS)
    making = ResourceClaims(
        bench.client, bench.informers, recorder.record, groups=groups, shares=shares
    )
    using = ClaimUse(bench.client, bench.informers, groups=groups and shares)
    return [recorder.run, making.run, using.run]


def _garbage(bench: Bench) -> list[Part]:
    recorder = bench.recorder("garbage-collector")
    garbage = Garbage(bench.client, bench.informers, recorder.record, bench.kinds)
    return [recorder.run, garbage.run]


CONTROLLERS = (
    Controller(
        "podgroup-protection", lambda b: [Protection(b.client, b.informers).run],
        (POD_GROUP, POD), ("podgroup-protection-controller",),
    ),
    Controller(
        "composite-groups", lambda b: [CompositeGroups(b.client, b.informers, b.clock).run],
        (COMPOSITE_POD_GROUP, POD_GROUP),
    ),
    Controller(
        "namespace", lambda b: [Namespaces(b.client, b.informers).run],
        (NAMESPACE,), ("namespace-controller",),
    ),
    Controller(
        "disruption", lambda b: [Disruption(b.client, b.informers, b.clock).run],
        (POD_DISRUPTION_BUDGET, POD), ("disruption-controller",),
    ),
    Controller("job", _job, (JOB, POD), ("job-controller",), abroad=True),
    Controller("cronjob", _cron_job, (CRON_JOB, JOB), ("cronjob-controller",)),
    Controller(
        "ttl", lambda b: [TimeToLive(b.client, b.informers, b.clock).run],
        (JOB,), ("ttl-after-finished-controller",),
    ),
    Controller(
        "serviceaccount", lambda b: [ServiceAccounts(b.client, b.informers).run],
        (SERVICE_ACCOUNT, NAMESPACE), ("serviceaccount-controller",),
    ),
    Controller(
        "role-aggregation", lambda b: [RoleAggregation(b.client, b.informers).run],
        (CLUSTER_ROLE,), ("clusterrole-aggregation-controller",),
    ),
    Controller("node", _node, (NODE, LEASE, POD), ("node-lifecycle-controller",)),
    Controller("taint-eviction", _taint, (NODE, POD), ("taint-eviction-controller",)),
    Controller(
        "podgc", lambda b: [PodGarbage(b.client, b.informers, b.clock).run],
        (POD, NODE), ("pod-garbage-collector-controller",),
    ),
    Controller(
        "resourceclaim", _claims, (RESOURCE_CLAIM, RESOURCE_CLAIM_TEMPLATE, POD),
        ("resourceclaim-controller",),
    ),
    Controller(
        "replica-groups", lambda b: [ReplicaGroups(b.client, b.informers).run],
        (POD_GROUP, WORKLOAD, POD),
    ),
    Controller("garbage", _garbage, (NAMESPACE,), ("garbage-collector-controller",)),
)  # fmt: skip

_BY_NAME = {name: row for row in CONTROLLERS for name in (row.name, *row.also)}


class UnknownController(ValueError):
    """Somebody names a controller that there is not."""


class Selection:
    """Which controllers somebody wants: `*` the usual ones, `x` this one too, `-x` not this one."""

    def __init__(self, words: Iterable[str] = (USUAL,)) -> None:
        words = tuple(words)
        self._usual = USUAL in words
        named = [word for word in words if word != USUAL]
        self._on = {_row(word) for word in named if not word.startswith("-")}
        self._off = {_row(word[1:]) for word in named if word.startswith("-")}

    def among(self, *, is_foreign: bool) -> list[Controller]:
        """Those that are wanted beside such a server."""
        return [row for row in CONTROLLERS if self._wants(row, is_foreign)]

    def _wants(self, row: Controller, is_foreign: bool) -> bool:
        if row in self._off:
            return False
        return row in self._on or (self._usual and (row.abroad or not is_foreign))


def _row(name: str) -> Controller:
    if name not in _BY_NAME:
        known = ", ".join(row.name for row in CONTROLLERS)
        raise UnknownController(f"{name!r} is no controller; there are {known}")
    return _BY_NAME[name]


def made(bench: Bench, wanted: Iterable[Controller]) -> list[Part]:
    """The parts of all that are wanted and have what they need."""
    return [part for row in wanted if not lacking(bench.kinds, row) for part in row.make(bench)]


def lacking(kinds: Sequence[Kind], row: Controller) -> list[Kind]:
    """What a controller needs and a server does not know."""
    return [kind for kind in row.needs if kind not in kinds]
