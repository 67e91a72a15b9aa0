"""Every controller under faults: crashes, missed, stale and duplicate events; same result."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

import pytest

from phalanx.api.apps import ReplicationController
from phalanx.api.kinds import (
    CLUSTER_ROLE,
    COMPOSITE_POD_GROUP,
    CONFIG_MAP,
    CONTROLLER_REVISION,
    CRON_JOB,
    DAEMON_SET,
    DEPLOYMENT,
    ENDPOINT_SLICE,
    ENDPOINTS,
    JOB,
    LEADER_WORKER_SET,
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
    SERVICE,
    SERVICE_ACCOUNT,
    STATEFUL_SET,
    STORAGE_CLASS,
    WORKLOAD,
    Kind,
)
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.cron_jobs.controller import CronJobController
from phalanx.controllers.daemon_sets.controller import DaemonSetController
from phalanx.controllers.deployments.controller import DeploymentController
from phalanx.controllers.disruption import DisruptionController
from phalanx.controllers.endpoints.controller import EndpointSliceController
from phalanx.controllers.garbage_collector import GarbageCollector
from phalanx.controllers.leader_worker_sets.controller import LeaderWorkerSetController
from phalanx.controllers.namespace_objects import RootCAPublisher, ServiceAccountController
from phalanx.controllers.namespaces import NamespaceController
from phalanx.controllers.nodes.node_lifecycle import NodeLifecycle
from phalanx.controllers.nodes.taint_eviction import TaintEviction
from phalanx.controllers.pod_garbage_collector import PodGarbageCollector
from phalanx.controllers.pod_groups import CompositeGroups, PodGroupProtection, ReplicaGroups
from phalanx.controllers.reconcile_loop import Informers
from phalanx.controllers.replica_sets.controller import ReplicaSetController
from phalanx.controllers.resource_claims.controller import ResourceClaimController
from phalanx.controllers.resource_claims.reservations import ClaimReservationController
from phalanx.controllers.role_aggregation import ClusterRoleAggregationController
from phalanx.controllers.stateful_sets.controller import StatefulSetController
from phalanx.controllers.ttl_after_finished import TTLAfterFinishedController
from phalanx.controllers.volumes.binder import VolumeBinder
from phalanx.controllers.volumes.ephemeral import EphemeralVolumeController
from phalanx.controllers.volumes.protection import ClaimProtection, VolumeProtection
from phalanx.controllers.volumes.provisioner import SimulatedProvisioner
from phalanx.randomness import Random
from tests.controllers import (
    claim_scenarios,
    custom_resource_scenarios,
    lws_scenarios,
    node_scenarios,
    replica_scenarios,
    scenarios,
    volume_scenarios,
)
from tests.controllers.fault_trials import (
    Fault,
    Scenario,
    TrialResult,
    compare_trials,
    crashes,
    gaps,
    run_trial,
)
from tests.controllers.jobs.job_controller_harness import garbage_collectors, job_controller
from tests.controllers.trial_cluster import (
    PartBuilder,
    Runnable,
    TrialCluster,
    count_unobserved,
    kubelets,
)


def controller_part(make: Callable[[Client, Informers, Clock], Any]) -> PartBuilder:
    """Return a builder of one controller."""

    def build(client: Client, informers: Informers, clock: Clock, random: Random) -> list[Runnable]:
        return [make(client, informers, clock).run]

    return build


async def load_root_ca() -> str:
    return "PEM"


#: The actions of users in a scenario.
ScenarioFunction = Callable[[TrialCluster], Coroutine[Any, Any, None]]


class TrialCase(NamedTuple):
    """A controller and a scenario."""

    subject: PartBuilder
    scenario: Scenario


JOB_PARTS = (kubelets, job_controller(), garbage_collectors)
GROUPS = (POD_GROUP, POD, WORKLOAD)
protection = controller_part(lambda c, i, t: PodGroupProtection(c, i))
composites = controller_part(lambda c, i, t: CompositeGroups(c, i, t))
replicas = controller_part(lambda c, i, t: ReplicaGroups(c, i))
garbage = controller_part(lambda c, i, t: GarbageCollector(c, i))
namespaces = controller_part(lambda c, i, t: NamespaceController(c, i, t))
disruption = controller_part(
    lambda c, i, t: DisruptionController(c, i, t, record=lambda event: None)
)
cron = controller_part(lambda c, i, t: CronJobController(c, i, t))
time_to_live = controller_part(lambda c, i, t: TTLAfterFinishedController(c, i, t))
accounts = controller_part(lambda c, i, t: ServiceAccountController(c, i))
root_certificates = controller_part(lambda c, i, t: RootCAPublisher(c, i, load_root_ca))
aggregation = controller_part(lambda c, i, t: ClusterRoleAggregationController(c, i))
claims = controller_part(lambda c, i, t: ResourceClaimController(c, i))
claim_use = controller_part(lambda c, i, t: ClaimReservationController(c, i))
lifecycle = controller_part(lambda c, i, t: NodeLifecycle(c, i, t))
eviction = controller_part(lambda c, i, t: TaintEviction(c, i, t))
pod_garbage = controller_part(lambda c, i, t: PodGarbageCollector(c, i, t, threshold=2))

replica_sets = controller_part(lambda c, i, t: ReplicaSetController(c, i, t))
replication_controllers = controller_part(
    lambda c, i, t: ReplicaSetController(c, i, t, struct=ReplicationController)
)
daemon_sets = controller_part(lambda c, i, t: DaemonSetController(c, i, t))
deployments = controller_part(lambda c, i, t: DeploymentController(c, i, t))
leader_worker_sets = controller_part(lambda c, i, t: LeaderWorkerSetController(c, i, t))
stateful_sets = controller_part(lambda c, i, t: StatefulSetController(c, i, t))
binder = controller_part(lambda c, i, t: VolumeBinder(c, i))
claim_protection = controller_part(lambda c, i, t: ClaimProtection(c, i, t))
volume_protection = controller_part(lambda c, i, t: VolumeProtection(c, i))
ephemeral_volumes = controller_part(lambda c, i, t: EphemeralVolumeController(c, i))


def endpoint_slices(
    client: Client, informers: Informers, clock: Clock, random: Random
) -> list[Runnable]:
    subject = EndpointSliceController(client, informers)
    return [subject.run, subject.run_mirrors]


def provisioner(
    client: Client, informers: Informers, clock: Clock, random: Random
) -> list[Runnable]:
    subject = SimulatedProvisioner(client, informers, clock, random=random)
    return [subject.run_class, subject.run_claims, subject.run_volumes]


VOLUME_KINDS = (PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM)
GROUP_KINDS = (COMPOSITE_POD_GROUP, *GROUPS)
SET_KINDS = (STATEFUL_SET, POD, CONTROLLER_REVISION, PERSISTENT_VOLUME_CLAIM)

#: A controller, the kinds that are compared, the other components, and the scenarios.
TRIALS: list[
    tuple[PartBuilder, tuple[Kind, ...], tuple[PartBuilder, ...], tuple[ScenarioFunction, ...]]
] = [
    (
        protection,
        (POD_GROUP, POD),
        (kubelets,),
        (
            scenarios.protects_a_group,
            scenarios.protects_a_group_that_gains_a_member,
            scenarios.releases_groups_without_members,
        ),
    ),
    (
        composites,
        (COMPOSITE_POD_GROUP, POD_GROUP),
        (),
        (
            scenarios.counts_children_of_composites,
            scenarios.marks_degraded_composites,
            scenarios.removes_composites_from_the_leaves,
        ),
    ),
    (
        replicas,
        GROUPS,
        (kubelets, garbage_collectors),
        (
            scenarios.creates_replica_groups,
            scenarios.recreates_replica_groups,
            scenarios.creates_no_replica_groups_for_finished_pods,
        ),
    ),
    (
        garbage,
        (CONFIG_MAP,),
        (),
        (
            scenarios.collects_dependents,
            scenarios.collects_foreground_deletions,
            scenarios.distinguishes_recreated_owners,
            custom_resource_scenarios.collects_children_of_custom_resources,
            custom_resource_scenarios.collects_children_of_recreated_custom_resources,
        ),
    ),
    (
        root_certificates,
        (CONFIG_MAP, NAMESPACE),
        (namespaces,),
        (
            custom_resource_scenarios.publishes_the_root_certificate,
            custom_resource_scenarios.restores_the_root_certificate,
            custom_resource_scenarios.publishes_no_root_certificate_in_a_deleted_namespace,
        ),
    ),
    (
        namespaces,
        (NAMESPACE, CONFIG_MAP, POD),
        (kubelets, protection),
        (
            scenarios.empties_a_namespace,
            scenarios.empties_two_namespaces,
            scenarios.empties_a_namespace_that_is_recreated,
        ),
    ),
    (
        disruption,
        (POD_DISRUPTION_BUDGET, POD),
        (kubelets,),
        (
            scenarios.counts_for_a_budget,
            scenarios.counts_for_a_late_budget,
            scenarios.counts_for_a_recreated_budget,
        ),
    ),
    (
        cron,
        (CRON_JOB, JOB),
        JOB_PARTS,
        (
            scenarios.starts_jobs_on_schedule,
            scenarios.forbids_concurrent_jobs,
            scenarios.replaces_running_jobs,
        ),
    ),
    (
        time_to_live,
        (JOB, POD, WORKLOAD),
        JOB_PARTS,
        (
            scenarios.deletes_jobs_after_their_ttl,
            scenarios.deletes_jobs_with_zero_ttl,
            scenarios.deletes_jobs_whose_ttl_is_set_later,
        ),
    ),
    (
        accounts,
        (SERVICE_ACCOUNT, NAMESPACE),
        (namespaces,),
        (
            scenarios.creates_service_accounts,
            scenarios.creates_service_accounts_in_many_namespaces,
            scenarios.creates_no_service_account_in_a_deleted_namespace,
        ),
    ),
    (
        aggregation,
        (CLUSTER_ROLE,),
        (),
        (
            scenarios.aggregates_rules,
            scenarios.removes_aggregated_rules,
            scenarios.aggregates_aggregated_rules,
        ),
    ),
    (
        claims,
        (RESOURCE_CLAIM, POD),
        (kubelets,),
        (
            claim_scenarios.creates_claims,
            claim_scenarios.creates_claims_once_the_template_exists,
            claim_scenarios.creates_claims_for_a_group,
        ),
    ),
    (
        claim_use,
        (RESOURCE_CLAIM, POD),
        (kubelets, claims),
        (
            claim_scenarios.reserves_for_running_pods,
            claim_scenarios.deallocates_an_unused_claim,
            claim_scenarios.deletes_claims_of_finished_pods,
        ),
    ),
    (
        lifecycle,
        (NODE, POD),
        (kubelets,),
        (
            node_scenarios.marks_unresponsive_node,
            node_scenarios.unmarks_node_with_heartbeats,
            node_scenarios.taints_by_conditions,
        ),
    ),
    (
        eviction,
        (POD,),
        (kubelets,),
        (
            node_scenarios.evicts,
            node_scenarios.evicts_after_toleration,
            node_scenarios.cancels_eviction,
        ),
    ),
    (
        pod_garbage,
        (POD,),
        (),
        (
            node_scenarios.collects_pods_of_a_lost_node,
            node_scenarios.collects_pods_of_an_out_of_service_node,
        ),
    ),
    (pod_garbage, (POD,), (kubelets,), (node_scenarios.collects_terminated_pods,)),
    (
        binder,
        VOLUME_KINDS,
        (),
        (
            volume_scenarios.binds_the_smallest_volumes,
            volume_scenarios.binds_named_and_reserved_volumes,
            volume_scenarios.releases_volumes,
            volume_scenarios.loses_a_volume,
        ),
    ),
    (
        claim_protection,
        VOLUME_KINDS,
        (kubelets, binder),
        (
            volume_scenarios.protects_a_claim_in_use,
            volume_scenarios.says_which_claims_are_unused,
        ),
    ),
    (volume_protection, VOLUME_KINDS, (binder,), (volume_scenarios.releases_deleted_volumes,)),
    (
        ephemeral_volumes,
        (PERSISTENT_VOLUME_CLAIM, POD),
        (),
        (volume_scenarios.creates_ephemeral_claims,),
    ),
    (
        provisioner,
        (*VOLUME_KINDS, STORAGE_CLASS),
        (binder, claim_protection, volume_protection),
        (
            volume_scenarios.provisions_and_deletes_volumes,
            volume_scenarios.gives_back_claims_that_cannot_be_provisioned,
        ),
    ),
    (
        stateful_sets,
        SET_KINDS,
        (kubelets, garbage_collectors, claim_protection),
        (
            volume_scenarios.scales_a_stateful_set,
            volume_scenarios.updates_a_stateful_set_and_goes_back,
            volume_scenarios.updates_a_parallel_stateful_set,
            volume_scenarios.deletes_claims_by_their_policy,
            volume_scenarios.adopts_pods_and_limits_the_history,
        ),
    ),
    (
        replica_sets,
        (REPLICA_SET, POD),
        (kubelets, garbage_collectors),
        (replica_scenarios.scales_a_replica_set, replica_scenarios.adopts_and_releases_pods),
    ),
    (
        replication_controllers,
        (REPLICATION_CONTROLLER, POD),
        (kubelets,),
        (replica_scenarios.replaces_pods_of_a_replication_controller,),
    ),
    (
        deployments,
        (DEPLOYMENT, REPLICA_SET, POD),
        (kubelets, replica_sets, garbage_collectors),
        (
            replica_scenarios.rolls_out_a_deployment_and_goes_back,
            replica_scenarios.scales_a_deployment_during_a_rollout,
            replica_scenarios.recreates_a_deployment,
            replica_scenarios.adopts_replica_sets,
        ),
    ),
    (
        leader_worker_sets,
        (LEADER_WORKER_SET, STATEFUL_SET, CONTROLLER_REVISION, SERVICE, *GROUP_KINDS),
        (kubelets, stateful_sets, garbage_collectors, protection),
        (
            lws_scenarios.scales_a_leader_worker_set,
            lws_scenarios.updates_groups_with_a_surge,
            lws_scenarios.updates_groups_down_to_a_partition_and_goes_back,
            lws_scenarios.recreates_a_group,
            lws_scenarios.resizes_groups_with_subgroups,
            lws_scenarios.starts_workers_after_their_leaders,
        ),
    ),
    (
        daemon_sets,
        (DAEMON_SET, POD, CONTROLLER_REVISION),
        (kubelets, garbage_collectors),
        (
            replica_scenarios.follows_the_nodes,
            replica_scenarios.updates_a_daemon_set,
        ),
    ),
    (
        endpoint_slices,
        (ENDPOINT_SLICE, ENDPOINTS),
        (kubelets, garbage_collectors),
        (
            replica_scenarios.publishes_endpoints_of_a_service,
            replica_scenarios.mirrors_endpoints,
        ),
    ),
]
CASES = [
    TrialCase(subject, Scenario(run.__name__, run, kinds, others))
    for subject, kinds, others, scenarios_of_subject in TRIALS
    for run in scenarios_of_subject
]
EACH = pytest.mark.parametrize("one", CASES, ids=lambda one: one.scenario.name)


def run_calm(one: TrialCase) -> TrialResult:
    """Run a scenario without faults; it must write something and keep all invariants."""
    calm = run_trial(one.scenario, one.subject)
    assert calm.tally.writes > 0
    assert (calm.violations, calm.late_writes) == ([], [])
    return calm


@pytest.mark.mostly_slow(quick_every=6)
@EACH
def test_a_crash_after_any_write_leads_to_the_same_result(one: TrialCase) -> None:
    calm = run_calm(one)
    assert compare_trials(one.scenario, one.subject, crashes(calm, most=4), calm) == []


@pytest.mark.slow
@EACH
def test_a_restart_with_a_stale_list_leads_to_the_same_result(one: TrialCase) -> None:
    calm = run_calm(one)
    for past in (1, 8):
        assert (
            compare_trials(one.scenario, one.subject, crashes(calm, past=past, most=2), calm) == []
        )


@pytest.mark.slow
@EACH
def test_missed_events_lead_to_the_same_result(one: TrialCase) -> None:
    calm = run_calm(one)
    assert compare_trials(one.scenario, one.subject, gaps(calm, most=3), calm) == []


@pytest.mark.soak
@pytest.mark.timeout(900)
@EACH
def test_a_fault_at_every_write_and_event_leads_to_the_same_result(one: TrialCase) -> None:
    calm = run_calm(one)
    for past in (0, 1, 2, 3, 5, 8):
        assert (
            compare_trials(one.scenario, one.subject, crashes(calm, past=past, most=999), calm)
            == []
        )
    assert compare_trials(one.scenario, one.subject, gaps(calm, most=999), calm) == []


@pytest.mark.mostly_slow(quick_every=6)
@EACH
def test_duplicate_and_reordered_events_lead_to_the_same_result(one: TrialCase) -> None:
    assert (
        compare_trials(one.scenario, one.subject, [Fault(repeats_events=True)], run_calm(one)) == []
    )


@pytest.mark.parametrize(("generation", "missed"), [(4, 0), (5, 1)])
def test_a_trial_compares_the_observed_generation_with_that_of_the_object(
    generation: int, missed: int
) -> None:
    obj = {"metadata": {"generation": generation}, "status": {"observedGeneration": 4}}
    assert count_unobserved(obj)["status"] == {"observedGeneration": missed}
