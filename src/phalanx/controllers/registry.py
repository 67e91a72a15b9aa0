"""The table of controllers: one row each with its name, required kinds and constructor.

    `phalanx up`            ─┐
    `phalanx controllers`   ─┴▶ selected rows ─▶ `build_controllers` ─▶ runnables

The rows are built in the order of the table; no row is run here. The scheduler is not a row: it has
a lease of its own (`scheduler_runner.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from phalanx.api.apps import ReplicaSet, ReplicationController
from phalanx.api.batch import OWN_JOB_CONTROLLER
from phalanx.api.feature_gates import WORKLOAD_RESOURCE_CLAIMS, FeatureGates
from phalanx.api.kinds import (
    CLUSTER_ROLE,
    COMPOSITE_POD_GROUP,
    CONFIG_MAP,
    CONTROLLER_REVISION,
    CRON_JOB,
    DAEMON_SET,
    DEPLOYMENT,
    DEVICE_TAINT_RULE,
    ENDPOINT_SLICE,
    ENDPOINTS,
    HORIZONTAL_POD_AUTOSCALER,
    JOB,
    JOB_SET,
    LEADER_WORKER_SET,
    LEASE,
    NAMESPACE,
    NODE,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    POD_DISRUPTION_BUDGET,
    POD_GROUP,
    REPLICA_SET,
    REPLICATION_CONTROLLER,
    RESOURCE_CLAIM,
    RESOURCE_CLAIM_TEMPLATE,
    RESOURCE_SLICE,
    SERVICE,
    SERVICE_ACCOUNT,
    STATEFUL_SET,
    STORAGE_CLASS,
    VALIDATING_ADMISSION_POLICY,
    WORKLOAD,
    Kind,
)
from phalanx.builder.ownership import SCHEDULING_PARENTS
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.admission_policies import PolicyStatusController
from phalanx.controllers.autoscaling import HorizontalController
from phalanx.controllers.cron_jobs.controller import CronJobController
from phalanx.controllers.daemon_sets.controller import DaemonSetController
from phalanx.controllers.deployments.controller import DeploymentController
from phalanx.controllers.disruption import DisruptionController
from phalanx.controllers.endpoints.controller import EndpointSliceController
from phalanx.controllers.event_recorder import EventRecorder, ObjectEvent
from phalanx.controllers.garbage_collector import GarbageCollector
from phalanx.controllers.job_sets.controller import JobSetController
from phalanx.controllers.jobs.controller import MANAGED_BY_NAMES, JobController
from phalanx.controllers.jobs.job_groups import JobGroups
from phalanx.controllers.jobs.workload_manager import options_from_gates
from phalanx.controllers.leader_worker_sets.controller import LeaderWorkerSetController
from phalanx.controllers.namespace_objects import RootCAPublisher, ServiceAccountController
from phalanx.controllers.namespaces import NamespaceController
from phalanx.controllers.nodes.node_lifecycle import NodeLifecycle
from phalanx.controllers.nodes.taint_eviction import TaintEviction
from phalanx.controllers.pod_garbage_collector import PodGarbageCollector
from phalanx.controllers.pod_groups import CompositeGroups, PodGroupProtection, ReplicaGroups
from phalanx.controllers.reconcile_loop import Informers, PodCreations
from phalanx.controllers.replica_sets.controller import ReplicaSetController
from phalanx.controllers.resource_claims.controller import ResourceClaimController
from phalanx.controllers.resource_claims.device_taint_eviction import DeviceTaintEviction
from phalanx.controllers.resource_claims.reservations import ClaimReservationController
from phalanx.controllers.role_aggregation import ClusterRoleAggregationController
from phalanx.controllers.stateful_sets.controller import StatefulSetController
from phalanx.controllers.ttl_after_finished import TTLAfterFinishedController
from phalanx.controllers.volumes.binder import VolumeBinder
from phalanx.controllers.volumes.ephemeral import EphemeralVolumeController
from phalanx.controllers.volumes.protection import ClaimProtection, VolumeProtection
from phalanx.controllers.volumes.provisioner import SimulatedProvisioner
from phalanx.randomness import Random

#: A coroutine function that runs until it is cancelled.
Runnable = Callable[[], Coroutine[None, None, None]]
#: Selects all controllers that are on by default.
ALL_DEFAULT = "*"


@dataclass(frozen=True, slots=True)
class ControllerContext:
    """The dependencies of controllers.

    `kinds` are those that the server serves, in the order of discovery. A server that is not
    Phalanx `is_foreign`. `load_root_ca` returns the certificate authority of the server as PEM
    text, if it is known. While the process `is_busy` with pods, events and counts wait, for at most
    two seconds.
    """

    client: Client
    informers: Informers
    clock: Clock
    random: Random
    gates: FeatureGates
    kinds: Sequence[Kind]
    basic_workloads: bool = True
    workload_parents: frozenset[tuple[str, str]] = SCHEDULING_PARENTS
    is_foreign: bool = False
    load_root_ca: Callable[[], Awaitable[str]] | None = None
    is_busy: Callable[[], bool] = lambda: False
    pod_creations: PodCreations = field(default_factory=PodCreations)

    def new_recorder(self, name: str) -> EventRecorder:
        """Return an event recorder for a component of this name."""
        return EventRecorder(
            self.client, self.clock, self.random, component=name, is_busy=self.is_busy
        )

    @property
    def has_pod_groups(self) -> bool:
        """Whether the server serves PodGroups."""
        return POD_GROUP in self.kinds


class ControllerDescriptor(NamedTuple):
    """One row of the table. `aliases` are the names in kube-controller-manager.

    A foreign API server has controllers of its own; only rows with `runs_on_foreign` are on by
    default there, and those with `runs_with_custom_groups` if its PodGroups are custom resources,
    which have no other controllers. Rows without `runs_on_phalanx` have no work on our own server.
    """

    name: str
    build: Callable[[ControllerContext], list[Runnable]]
    required_kinds: tuple[Kind, ...]
    aliases: tuple[str, ...] = ()
    runs_on_foreign: bool = False
    runs_with_custom_groups: bool = False
    runs_on_phalanx: bool = True
    requires_root_ca: bool = False


def _build_job(context: ControllerContext) -> list[Runnable]:
    recorder = context.new_recorder("job-controller")
    missing = next((kind for kind in (WORKLOAD, POD_GROUP) if kind not in context.kinds), None)
    options = options_from_gates(
        context.gates,
        include_basic=context.basic_workloads,
        parents=context.workload_parents,
    )
    jobs = JobController(
        context.client,
        context.informers,
        context.clock,
        recorder=recorder,
        options=options,
        managers=(OWN_JOB_CONTROLLER,) if context.is_foreign else MANAGED_BY_NAMES,
        missing_kind=missing,
        is_busy=context.is_busy,
        creations=context.pod_creations,
    )
    return [recorder.run, jobs.run]


def _build_job_groups(context: ControllerContext) -> list[Runnable]:
    recorder = context.new_recorder("job-groups")
    return [recorder.run, JobGroups(context.client, context.informers, recorder.record).run]


def _build_job_set(context: ControllerContext) -> list[Runnable]:
    recorder = context.new_recorder("jobset-controller")
    group_kinds = (WORKLOAD, POD_GROUP, COMPOSITE_POD_GROUP)
    job_sets = JobSetController(
        context.client,
        context.informers,
        context.clock,
        record=recorder.record,
        missing_kind=next((kind for kind in group_kinds if kind not in context.kinds), None),
        parents=context.workload_parents,
        is_busy=context.is_busy,
    )
    return [recorder.run, job_sets.run]


def _build_resource_claims(context: ControllerContext) -> list[Runnable]:
    recorder = context.new_recorder("resource_claim")
    groups, shares = context.has_pod_groups, context.gates.is_enabled(WORKLOAD_RESOURCE_CLAIMS)
    claims = ResourceClaimController(
        context.client, context.informers, recorder.record, groups=groups, share_claims=shares
    )
    reservations = ClaimReservationController(
        context.client, context.informers, groups=groups and shares
    )
    return [recorder.run, claims.run, reservations.run]


class _RecordingController(Protocol):
    """A controller that records events."""

    def __init__(
        self,
        client: Client,
        informers: Informers,
        clock: Clock,
        *,
        record: Callable[[ObjectEvent], None],
    ) -> None: ...

    async def run(self) -> None: ...


def _with_recorder(
    controller: type[_RecordingController], component: str
) -> Callable[[ControllerContext], list[Runnable]]:
    """Return a builder of a controller whose events name the component."""

    def build(context: ControllerContext) -> list[Runnable]:
        recorder = context.new_recorder(component)
        subject = controller(
            context.client, context.informers, context.clock, record=recorder.record
        )
        return [recorder.run, subject.run]

    return build


def _build_replica_sets(
    struct: type[ReplicaSet] | type[ReplicationController], name: str
) -> Callable[[ControllerContext], list[Runnable]]:
    def build(context: ControllerContext) -> list[Runnable]:
        recorder = context.new_recorder(name)
        controller = ReplicaSetController(
            context.client, context.informers, context.clock, struct=struct, record=recorder.record
        )
        return [recorder.run, controller.run]

    return build


def _build_device_taint_eviction(context: ControllerContext) -> list[Runnable]:
    recorder = context.new_recorder("device-taint-eviction-controller")
    eviction = DeviceTaintEviction(
        context.client, context.informers, context.clock, record=recorder.record
    )
    return [recorder.run, eviction.run, eviction.run_rules]


def _build_endpoint_slices(context: ControllerContext) -> list[Runnable]:
    endpoints = EndpointSliceController(context.client, context.informers)
    return [endpoints.run, endpoints.run_mirrors]


def _build_leader_worker_set(context: ControllerContext) -> list[Runnable]:
    recorder = context.new_recorder("leaderworkerset")
    leader_worker_sets = LeaderWorkerSetController(
        context.client,
        context.informers,
        context.clock,
        record=recorder.record,
        has_groups=all(kind in context.kinds for kind in (WORKLOAD, POD_GROUP)),
        parents=context.workload_parents,
    )
    return [recorder.run, leader_worker_sets.run]


def _build_volume_binder(context: ControllerContext) -> list[Runnable]:
    recorder = context.new_recorder("persistentvolume-controller")
    binder = VolumeBinder(context.client, context.informers, recorder.record)
    return [recorder.run, binder.run]


def _build_ephemeral_volumes(context: ControllerContext) -> list[Runnable]:
    recorder = context.new_recorder("ephemeral_volume")
    claims = EphemeralVolumeController(context.client, context.informers, recorder.record)
    return [recorder.run, claims.run]


def _build_simulated_provisioner(context: ControllerContext) -> list[Runnable]:
    recorder = context.new_recorder("simulated-provisioner")
    provisioner = SimulatedProvisioner(
        context.client,
        context.informers,
        context.clock,
        random=context.random,
        record=recorder.record,
    )
    return [
        recorder.run,
        provisioner.run_class,
        provisioner.run_claims,
        provisioner.run_volumes,
    ]


def _build_garbage_collector(context: ControllerContext) -> list[Runnable]:
    recorder = context.new_recorder("garbage-collector")
    garbage = GarbageCollector(
        context.client,
        context.informers,
        recorder.record,
        kinds=context.kinds,
        is_foreign=context.is_foreign,
    )
    return [recorder.run, garbage.run]


def _build_root_ca_publisher(context: ControllerContext) -> list[Runnable]:
    assert context.load_root_ca is not None
    return [RootCAPublisher(context.client, context.informers, context.load_root_ca).run]


CONTROLLERS = (
    ControllerDescriptor(
        "podgroup-protection",
        lambda c: [PodGroupProtection(c.client, c.informers).run],
        (POD_GROUP, POD),
        aliases=("podgroup-protection-controller",),
        runs_with_custom_groups=True,
    ),
    ControllerDescriptor(
        "composite-groups",
        lambda c: [CompositeGroups(c.client, c.informers, c.clock, is_busy=c.is_busy).run],
        (COMPOSITE_POD_GROUP, POD_GROUP),
        runs_with_custom_groups=True,
    ),
    ControllerDescriptor(
        "namespace",
        lambda c: [NamespaceController(c.client, c.informers, c.clock).run],
        (NAMESPACE,),
        aliases=("namespace-controller",),
    ),
    ControllerDescriptor(
        "disruption",
        _with_recorder(DisruptionController, "controllermanager"),
        (POD_DISRUPTION_BUDGET, POD),
        aliases=("disruption-controller",),
    ),
    ControllerDescriptor(
        "job", _build_job, (JOB, POD), aliases=("job-controller",), runs_on_foreign=True
    ),
    ControllerDescriptor(
        "job-groups",
        _build_job_groups,
        (JOB, POD_GROUP),
        runs_with_custom_groups=True,
        runs_on_phalanx=False,
    ),
    ControllerDescriptor(
        "jobset",
        _build_job_set,
        (JOB_SET, JOB, SERVICE, PERSISTENT_VOLUME_CLAIM),
        aliases=("jobset-controller",),
    ),
    ControllerDescriptor(
        "cronjob",
        _with_recorder(CronJobController, "cronjob-controller"),
        (CRON_JOB, JOB),
        aliases=("cronjob-controller",),
    ),
    ControllerDescriptor(
        "ttl",
        lambda c: [TTLAfterFinishedController(c.client, c.informers, c.clock).run],
        (JOB,),
        aliases=("ttl-after-finished-controller",),
    ),
    ControllerDescriptor(
        "serviceaccount",
        lambda c: [ServiceAccountController(c.client, c.informers).run],
        (SERVICE_ACCOUNT, NAMESPACE),
        aliases=("serviceaccount-controller",),
    ),
    ControllerDescriptor(
        "root-ca-certificate-publisher",
        _build_root_ca_publisher,
        (CONFIG_MAP, NAMESPACE),
        aliases=("root-ca-certificate-publisher-controller", "root-ca-cert-publisher"),
        requires_root_ca=True,
    ),
    ControllerDescriptor(
        "role-aggregation",
        lambda c: [ClusterRoleAggregationController(c.client, c.informers).run],
        (CLUSTER_ROLE,),
        aliases=("clusterrole-aggregation-controller",),
    ),
    ControllerDescriptor(
        "validatingadmissionpolicy-status",
        lambda c: [PolicyStatusController(c.client, c.informers, c.kinds).run],
        (VALIDATING_ADMISSION_POLICY,),
        aliases=("validatingadmissionpolicy-status-controller",),
    ),
    ControllerDescriptor(
        "node",
        _with_recorder(NodeLifecycle, "node-controller"),
        (NODE, LEASE, POD),
        aliases=("node-lifecycle-controller",),
    ),
    ControllerDescriptor(
        "taint-eviction",
        _with_recorder(TaintEviction, "taint-eviction-controller"),
        (NODE, POD),
        aliases=("taint-eviction-controller",),
    ),
    ControllerDescriptor(
        "podgc",
        lambda c: [PodGarbageCollector(c.client, c.informers, c.clock).run],
        (POD, NODE),
        aliases=("pod-garbage-collector-controller",),
    ),
    ControllerDescriptor(
        "resourceclaim",
        _build_resource_claims,
        (RESOURCE_CLAIM, RESOURCE_CLAIM_TEMPLATE, POD),
        aliases=("resourceclaim-controller",),
    ),
    ControllerDescriptor(
        "deployment",
        _with_recorder(DeploymentController, "deployment-controller"),
        (DEPLOYMENT, REPLICA_SET, POD),
        aliases=("deployment-controller",),
    ),
    ControllerDescriptor(
        "replicaset",
        _build_replica_sets(ReplicaSet, "replicaset-controller"),
        (REPLICA_SET, POD),
        aliases=("replicaset-controller",),
    ),
    ControllerDescriptor(
        "replicationcontroller",
        _build_replica_sets(ReplicationController, "replication-controller"),
        (REPLICATION_CONTROLLER, POD),
        aliases=("replicationcontroller-controller",),
    ),
    ControllerDescriptor(
        "device-taint-eviction",
        _build_device_taint_eviction,
        (RESOURCE_CLAIM, RESOURCE_SLICE, DEVICE_TAINT_RULE, POD),
        aliases=("device-taint-eviction-controller",),
    ),
    ControllerDescriptor(
        "daemonset",
        _with_recorder(DaemonSetController, "daemonset-controller"),
        (DAEMON_SET, CONTROLLER_REVISION, NODE, POD),
        aliases=("daemonset-controller",),
    ),
    ControllerDescriptor(
        "endpointslice",
        _build_endpoint_slices,
        (SERVICE, ENDPOINT_SLICE, ENDPOINTS, POD, NODE),
        aliases=(
            "endpointslice-controller",
            "endpoints-controller",
            "endpointslice-mirroring-controller",
        ),
    ),
    ControllerDescriptor(
        "statefulset",
        _with_recorder(StatefulSetController, "statefulset-controller"),
        (STATEFUL_SET, CONTROLLER_REVISION, PERSISTENT_VOLUME_CLAIM, POD),
        aliases=("statefulset-controller",),
    ),
    ControllerDescriptor(
        "leaderworkerset",
        _build_leader_worker_set,
        (LEADER_WORKER_SET, STATEFUL_SET, CONTROLLER_REVISION, SERVICE, NODE, POD),
        aliases=("leaderworkerset-controller",),
    ),
    ControllerDescriptor(
        "horizontal-pod-autoscaler",
        _with_recorder(HorizontalController, "horizontal-pod-autoscaler"),
        (HORIZONTAL_POD_AUTOSCALER,),
        aliases=("horizontal-pod-autoscaler-controller", "horizontalpodautoscaling"),
    ),
    ControllerDescriptor(
        "persistentvolume-binder",
        _build_volume_binder,
        (PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, STORAGE_CLASS, POD, NODE),
        aliases=("persistentvolume-binder-controller",),
    ),
    ControllerDescriptor(
        "pvc-protection",
        lambda c: [ClaimProtection(c.client, c.informers, c.clock).run],
        (PERSISTENT_VOLUME_CLAIM, POD),
        aliases=("persistentvolumeclaim-protection-controller",),
    ),
    ControllerDescriptor(
        "pv-protection",
        lambda c: [VolumeProtection(c.client, c.informers).run],
        (PERSISTENT_VOLUME,),
        aliases=("persistentvolume-protection-controller",),
    ),
    ControllerDescriptor(
        "ephemeral-volume",
        _build_ephemeral_volumes,
        (PERSISTENT_VOLUME_CLAIM, POD),
        aliases=("ephemeral-volume-controller",),
    ),
    ControllerDescriptor(
        "simulated-provisioner",
        _build_simulated_provisioner,
        (PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, STORAGE_CLASS, NODE),
    ),
    ControllerDescriptor(
        "replica-groups",
        lambda c: [ReplicaGroups(c.client, c.informers).run],
        (POD_GROUP, WORKLOAD, POD),
    ),
    ControllerDescriptor(
        "garbage", _build_garbage_collector, (NAMESPACE,), aliases=("garbage-collector-controller",)
    ),
)

_BY_NAME = {name: row for row in CONTROLLERS for name in (row.name, *row.aliases)}


class UnknownController(ValueError):
    """A selection names a controller that does not exist."""


class ControllerSelection:
    """Selected controllers: `*` those on by default, `x` this one too, `-x` not this one."""

    def __init__(self, names: Iterable[str] = (ALL_DEFAULT,)) -> None:
        names = tuple(names)
        self._includes_default = ALL_DEFAULT in names
        named = [entry for entry in names if entry != ALL_DEFAULT]
        self._enabled = {_find_controller(entry) for entry in named if not entry.startswith("-")}
        self._disabled = {_find_controller(entry[1:]) for entry in named if entry.startswith("-")}

    def select(
        self, *, is_foreign: bool, has_custom_groups: bool = False
    ) -> list[ControllerDescriptor]:
        """Return the rows selected for such a server, in the order of the table."""
        defaults = [
            row
            for row in CONTROLLERS
            if self._includes_default
            and (
                (row.runs_on_phalanx and not is_foreign)
                or row.runs_on_foreign
                or (row.runs_with_custom_groups and has_custom_groups)
            )
        ]
        return [
            row
            for row in CONTROLLERS
            if row not in self._disabled and (row in self._enabled or row in defaults)
        ]


def _find_controller(name: str) -> ControllerDescriptor:
    if name not in _BY_NAME:
        available = ", ".join(row.name for row in CONTROLLERS)
        raise UnknownController(f'unknown controller "{name}"; available: {available}')
    return _BY_NAME[name]


def build_controllers(
    context: ControllerContext, controllers: Iterable[ControllerDescriptor]
) -> list[Runnable]:
    """Build the selected controllers that have what they require; returns what to run."""
    return [
        runnable
        for row in controllers
        if not missing_kinds(context.kinds, row)
        and not (row.requires_root_ca and context.load_root_ca is None)
        for runnable in row.build(context)
    ]


def missing_kinds(kinds: Sequence[Kind], controller: ControllerDescriptor) -> list[Kind]:
    """Return the kinds that a controller requires and the server does not serve."""
    return [kind for kind in controller.required_kinds if kind not in kinds]
