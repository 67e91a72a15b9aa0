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
from phalanx.api.feature_gates import WORKLOAD_RESOURCE_CLAIMS, FeatureGates
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
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.cronjobs.controller import CronJobController
from phalanx.controllers.disruption import DisruptionController
from phalanx.controllers.event_recorder import EventRecorder
from phalanx.controllers.garbage_collector import GarbageCollector
from phalanx.controllers.jobs.controller import MANAGED_BY_NAMES, JobController
from phalanx.controllers.jobs.workload_manager import options_from_gates
from phalanx.controllers.namespaces import NamespaceController
from phalanx.controllers.nodes.node_lifecycle import NodeLifecycle
from phalanx.controllers.nodes.taint_eviction import TaintEviction
from phalanx.controllers.pod_garbage_collector import PodGarbageCollector
from phalanx.controllers.pod_groups.composite_groups import CompositeGroups
from phalanx.controllers.pod_groups.protection import PodGroupProtection
from phalanx.controllers.pod_groups.replica_groups import ReplicaGroups
from phalanx.controllers.reconcile_loop import Informers
from phalanx.controllers.resource_claims.controller import ResourceClaimController
from phalanx.controllers.resource_claims.reservations import ClaimReservationController
from phalanx.controllers.role_aggregation import ClusterRoleAggregationController
from phalanx.controllers.service_accounts import ServiceAccountController
from phalanx.controllers.ttl_after_finished import TTLAfterFinishedController
from phalanx.randomness import Random

#: Something that runs until it is cancelled.
Runnable = Callable[[], Coroutine[None, None, None]]
#: Every controller that is on where nobody says otherwise.
ALL_DEFAULT = "*"


@dataclass(frozen=True, slots=True)
class ControllerContext:
    """What controllers are made with.

    `kinds` are those that the server knows, in the order of discovery; it `is_foreign` if it is not
    one of ours.
    """

    client: Client
    informers: Informers
    clock: Clock
    random: Random
    gates: FeatureGates
    kinds: Sequence[Kind]
    basic_workloads: bool = True
    is_foreign: bool = False

    def new_recorder(self, name: str) -> EventRecorder:
        """Somebody who writes events under a name."""
        return EventRecorder(self.client, self.clock, self.random, name)

    @property
    def has_pod_groups(self) -> bool:
        """Whether there are PodGroups."""
        return POD_GROUP in self.kinds


class ControllerDescriptor(NamedTuple):
    """One row. `also` is what kube-controller-manager calls it.

    One that is at home `abroad` is on by itself on a foreign API server too, which has its own of
    all the others.
    """

    name: str
    build: Callable[[ControllerContext], list[Runnable]]
    required_kinds: tuple[Kind, ...]
    aliases: tuple[str, ...] = ()
    runs_on_foreign: bool = False


def _build_job(context: ControllerContext) -> list[Runnable]:
    recorder = context.new_recorder("job-controller")
    missing = next((kind for kind in (WORKLOAD, POD_GROUP) if kind not in context.kinds), None)
    managers = (OWN_JOB_CONTROLLER,) if context.is_foreign else MANAGED_BY_NAMES
    settings = options_from_gates(context.gates, include_basic=context.basic_workloads)
    jobs = JobController(
        context.client, context.informers, context.clock, recorder, settings, managers, missing
    )  # fmt: skip
    return [recorder.run, jobs.run]


def _build_cron_job(context: ControllerContext) -> list[Runnable]:
    recorder = context.new_recorder("cronjob-controller")
    return [
        recorder.run,
        CronJobController(context.client, context.informers, context.clock, recorder.record).run,
    ]


def _build_node_lifecycle(context: ControllerContext) -> list[Runnable]:
    recorder = context.new_recorder("node-controller")
    lifecycle = NodeLifecycle(context.client, context.informers, context.clock, recorder.record)
    return [recorder.run, lifecycle.run]


def _build_taint_eviction(context: ControllerContext) -> list[Runnable]:
    recorder = context.new_recorder("taint-eviction-controller")
    eviction = TaintEviction(context.client, context.informers, context.clock, recorder.record)
    return [recorder.run, eviction.run]


def _build_resource_claims(context: ControllerContext) -> list[Runnable]:
    recorder = context.new_recorder("resource_claim")
    groups, shares = context.has_pod_groups, context.gates.is_enabled(WORKLOAD_RESOURCE_CLAIMS)
    making = ResourceClaimController(
        context.client, context.informers, recorder.record, groups=groups, share_claims=shares
    )
    using = ClaimReservationController(context.client, context.informers, groups=groups and shares)
    return [recorder.run, making.run, using.run]


def _build_garbage_collector(context: ControllerContext) -> list[Runnable]:
    recorder = context.new_recorder("garbage-collector")
    garbage = GarbageCollector(context.client, context.informers, recorder.record, context.kinds)
    return [recorder.run, garbage.run]


CONTROLLERS = (
    ControllerDescriptor(
        "podgroup-protection",
        lambda b: [PodGroupProtection(b.client, b.informers).run],
        (POD_GROUP, POD),
        ("podgroup-protection-controller",),
    ),
    ControllerDescriptor(
        "composite-groups",
        lambda b: [CompositeGroups(b.client, b.informers, b.clock).run],
        (COMPOSITE_POD_GROUP, POD_GROUP),
    ),
    ControllerDescriptor(
        "namespace",
        lambda b: [NamespaceController(b.client, b.informers).run],
        (NAMESPACE,),
        ("namespace-controller",),
    ),
    ControllerDescriptor(
        "disruption",
        lambda b: [DisruptionController(b.client, b.informers, b.clock).run],
        (POD_DISRUPTION_BUDGET, POD),
        ("disruption-controller",),
    ),
    ControllerDescriptor("job", _build_job, (JOB, POD), ("job-controller",), runs_on_foreign=True),
    ControllerDescriptor("cronjob", _build_cron_job, (CRON_JOB, JOB), ("cronjob-controller",)),
    ControllerDescriptor(
        "ttl",
        lambda b: [TTLAfterFinishedController(b.client, b.informers, b.clock).run],
        (JOB,),
        ("ttl-after-finished-controller",),
    ),
    ControllerDescriptor(
        "serviceaccount",
        lambda b: [ServiceAccountController(b.client, b.informers).run],
        (SERVICE_ACCOUNT, NAMESPACE),
        ("serviceaccount-controller",),
    ),
    ControllerDescriptor(
        "role-aggregation",
        lambda b: [ClusterRoleAggregationController(b.client, b.informers).run],
        (CLUSTER_ROLE,),
        ("clusterrole-aggregation-controller",),
    ),
    ControllerDescriptor(
        "node", _build_node_lifecycle, (NODE, LEASE, POD), ("node-lifecycle-controller",)
    ),
    ControllerDescriptor(
        "taint-eviction", _build_taint_eviction, (NODE, POD), ("taint-eviction-controller",)
    ),
    ControllerDescriptor(
        "podgc",
        lambda b: [PodGarbageCollector(b.client, b.informers, b.clock).run],
        (POD, NODE),
        ("pod-garbage-collector-controller",),
    ),
    ControllerDescriptor(
        "resourceclaim",
        _build_resource_claims,
        (RESOURCE_CLAIM, RESOURCE_CLAIM_TEMPLATE, POD),
        ("resourceclaim-controller",),
    ),
    ControllerDescriptor(
        "replica-groups",
        lambda b: [ReplicaGroups(b.client, b.informers).run],
        (POD_GROUP, WORKLOAD, POD),
    ),
    ControllerDescriptor(
        "garbage", _build_garbage_collector, (NAMESPACE,), ("garbage-collector-controller",)
    ),
)

_BY_NAME = {name: row for row in CONTROLLERS for name in (row.name, *row.aliases)}


class UnknownController(ValueError):
    """Somebody names a controller that there is not."""


class ControllerSelection:
    """Which controllers somebody wants: `*` the usual ones, `x` this one too, `-x` not this one."""

    def __init__(self, names: Iterable[str] = (ALL_DEFAULT,)) -> None:
        names = tuple(names)
        self._includes_default = ALL_DEFAULT in names
        named = [word for word in names if word != ALL_DEFAULT]
        self._enabled = {_find_controller(word) for word in named if not word.startswith("-")}
        self._disabled = {_find_controller(word[1:]) for word in named if word.startswith("-")}

    def select(self, *, is_foreign: bool) -> list[ControllerDescriptor]:
        """Those that are wanted beside such a server."""
        return [row for row in CONTROLLERS if self._is_selected(row, is_foreign)]

    def _is_selected(self, controller: ControllerDescriptor, is_foreign: bool) -> bool:
        if controller in self._disabled:
            return False
        return controller in self._enabled or (
            self._includes_default and (controller.runs_on_foreign or not is_foreign)
        )


def _find_controller(name: str) -> ControllerDescriptor:
    if name not in _BY_NAME:
        known = ", ".join(row.name for row in CONTROLLERS)
        raise UnknownController(f"{name!r} is no controller; there are {known}")
    return _BY_NAME[name]


def build_controllers(
    context: ControllerContext, controllers: Iterable[ControllerDescriptor]
) -> list[Runnable]:
    """The parts of all that are wanted and have what they need."""
    return [
        part
        for row in controllers
        if not missing_kinds(context.kinds, row)
        for part in row.build(context)
    ]


def missing_kinds(kinds: Sequence[Kind], controller: ControllerDescriptor) -> list[Kind]:
    """What a controller needs and a server does not know."""
    return [kind for kind in controller.required_kinds if kind not in kinds]
