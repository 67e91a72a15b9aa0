"""Every controller in trouble: killed, blind, misled, and always with the same end."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

import pytest

from phalanx.api.kinds import (
    CLUSTER_ROLE,
    COMPOSITE_POD_GROUP,
    CONFIG_MAP,
    CRON_JOB,
    JOB,
    NAMESPACE,
    NODE,
    POD,
    POD_DISRUPTION_BUDGET,
    POD_GROUP,
    RESOURCE_CLAIM,
    SERVICE_ACCOUNT,
    WORKLOAD,
    Kind,
)
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.cronjobs.controller import CronJobController
from phalanx.controllers.disruption import DisruptionController
from phalanx.controllers.garbage_collector import GarbageCollector
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
from tests.controllers import claim_scenarios as claimacts
from tests.controllers import node_scenarios as nodeacts
from tests.controllers import scenarios as acts
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
from tests.controllers.trial_cluster import PartBuilder, Runnable, TrialCluster, kubelets


def controller_part(make: Callable[[Client, Informers, Clock], Any]) -> PartBuilder:
    """A controller as a part of a control plane."""

    def started(
        client: Client, informers: Informers, clock: Clock, chance: Random
    ) -> list[Runnable]:
        return [make(client, informers, clock).run]

    return started


#: What users do.
ScenarioFunction = Callable[[TrialCluster], Coroutine[Any, Any, None]]


class TrialCase(NamedTuple):
    """A controller, and a scenario that it is put through."""

    subject: PartBuilder
    scenario: Scenario


JOB_PARTS = (kubelets, job_controller(), garbage_collectors)
GROUPS = (POD_GROUP, POD, WORKLOAD)
protection = controller_part(lambda c, i, t: PodGroupProtection(c, i))
composites = controller_part(lambda c, i, t: CompositeGroups(c, i, t))
replicas = controller_part(lambda c, i, t: ReplicaGroups(c, i))
garbage = controller_part(lambda c, i, t: GarbageCollector(c, i))
namespaces = controller_part(lambda c, i, t: NamespaceController(c, i))
disruption = controller_part(lambda c, i, t: DisruptionController(c, i, t))
cron = controller_part(lambda c, i, t: CronJobController(c, i, t))
time_to_live = controller_part(lambda c, i, t: TTLAfterFinishedController(c, i, t))
accounts = controller_part(lambda c, i, t: ServiceAccountController(c, i))
aggregation = controller_part(lambda c, i, t: ClusterRoleAggregationController(c, i))
claims = controller_part(lambda c, i, t: ResourceClaimController(c, i))
claim_use = controller_part(lambda c, i, t: ClaimReservationController(c, i))
lifecycle = controller_part(lambda c, i, t: NodeLifecycle(c, i, t))
eviction = controller_part(lambda c, i, t: TaintEviction(c, i, t))
pod_garbage = controller_part(lambda c, i, t: PodGarbageCollector(c, i, t, threshold=2))

#: A controller, the kinds that its end is judged by, who else is there, and its acts.
TRIALS: list[
    tuple[PartBuilder, tuple[Kind, ...], tuple[PartBuilder, ...], tuple[ScenarioFunction, ...]]
] = [
    (
        protection,
        (POD_GROUP, POD),
        (kubelets,),
        (
            acts.protects_a_group,
            acts.protects_a_group_that_gains_a_member,
            acts.lets_go_of_groups_that_nobody_is_in,
        ),
    ),
    (
        composites,
        (COMPOSITE_POD_GROUP, POD_GROUP),
        (),
        (
            acts.counts_groups_of_groups,
            acts.says_what_groups_of_groups_have_lost,
            acts.lets_groups_of_groups_go_from_below,
        ),
    ),
    (
        replicas,
        GROUPS,
        (kubelets, garbage_collectors),
        (
            acts.makes_replica_groups,
            acts.makes_replica_groups_again,
            acts.makes_no_replica_groups_for_those_who_are_done,
        ),
    ),
    (
        garbage,
        (CONFIG_MAP,),
        (),
        (
            acts.collects,
            acts.collects_from_below,
            acts.takes_nobody_for_a_namesake,
        ),
    ),
    (
        namespaces,
        (NAMESPACE, CONFIG_MAP, POD),
        (kubelets, protection),
        (
            acts.empties_a_namespace,
            acts.empties_two_namespaces,
            acts.empties_a_namespace_and_its_namesake_stays,
        ),
    ),
    (
        disruption,
        (POD_DISRUPTION_BUDGET, POD),
        (kubelets,),
        (
            acts.counts_for_a_budget,
            acts.counts_for_a_budget_that_comes_late,
            acts.counts_for_a_budget_that_is_made_again,
        ),
    ),
    (
        cron,
        (CRON_JOB, JOB),
        JOB_PARTS,
        (
            acts.starts_by_the_clock,
            acts.starts_nothing_while_it_runs,
            acts.starts_in_place_of_what_runs,
        ),
    ),
    (
        time_to_live,
        (JOB, POD, WORKLOAD),
        JOB_PARTS,
        (
            acts.clears_away_in_time,
            acts.clears_away_at_once,
            acts.clears_away_when_that_is_said_later,
        ),
    ),
    (
        accounts,
        (SERVICE_ACCOUNT, NAMESPACE),
        (namespaces,),
        (
            acts.gives_accounts,
            acts.gives_accounts_to_many,
            acts.gives_no_account_to_who_goes,
        ),
    ),
    (
        aggregation,
        (CLUSTER_ROLE,),
        (),
        (
            acts.gathers_rules,
            acts.gathers_rules_no_more,
            acts.gathers_rules_of_those_who_gather,
        ),
    ),
    (
        claims,
        (RESOURCE_CLAIM, POD),
        (kubelets,),
        (
            claimacts.makes_claims,
            claimacts.makes_claims_when_it_is_known_how,
            claimacts.makes_claims_for_a_group,
        ),
    ),
    (
        claim_use,
        (RESOURCE_CLAIM, POD),
        (kubelets, claims),
        (
            claimacts.reserves_for_those_who_run,
            claimacts.gives_back_what_nobody_uses,
            claimacts.deletes_claims_of_those_who_are_done,
        ),
    ),
    (
        lifecycle,
        (NODE, POD),
        (kubelets,),
        (
            nodeacts.notices_silence,
            nodeacts.notices_who_speaks_again,
            nodeacts.marks_what_nodes_say,
        ),
    ),
    (
        eviction,
        (POD,),
        (kubelets,),
        (
            nodeacts.drives_out,
            nodeacts.drives_out_in_time,
            nodeacts.drives_out_nobody_when_all_is_well_again,
        ),
    ),
    (
        pod_garbage,
        (POD,),
        (),
        (
            nodeacts.gives_up_pods_of_a_lost_node,
            nodeacts.gives_up_pods_of_a_broken_node,
        ),
    ),
    (pod_garbage, (POD,), (kubelets,), (nodeacts.thins_out_what_has_ended,)),
]
CASES = [
    TrialCase(subject, Scenario(act.__name__, act, kinds, cast))
    for subject, kinds, cast, played in TRIALS
    for act in played
]
EACH = pytest.mark.parametrize("one", CASES, ids=lambda one: one.scenario.name)


def run_calm(one: TrialCase) -> TrialResult:
    """The end where nothing goes wrong; there must be one."""
    calm = run_trial(one.scenario, one.subject)
    assert calm.tally.writes > 0
    assert (calm.violations, calm.late_writes) == ([], [])
    return calm


@EACH
def test_whatever_write_it_is_killed_after_the_end_is_the_same(one: TrialCase) -> None:
    calm = run_calm(one)
    assert compare_trials(one.scenario, one.subject, crashes(calm, most=4), calm) == []


@EACH
def test_whoever_takes_over_may_at_first_see_the_past(one: TrialCase) -> None:
    calm = run_calm(one)
    for past in (1, 8):
        assert (
            compare_trials(one.scenario, one.subject, crashes(calm, past=past, most=2), calm) == []
        )


@EACH
def test_what_was_never_seen_does_not_matter(one: TrialCase) -> None:
    calm = run_calm(one)
    assert compare_trials(one.scenario, one.subject, gaps(calm, most=3), calm) == []


@pytest.mark.soak
@pytest.mark.timeout(900)
@EACH
def test_every_write_and_every_event_may_be_the_one(one: TrialCase) -> None:
    calm = run_calm(one)
    for past in (0, 1, 2, 3, 5, 8):
        assert (
            compare_trials(one.scenario, one.subject, crashes(calm, past=past, most=999), calm)
            == []
        )
    assert compare_trials(one.scenario, one.subject, gaps(calm, most=999), calm) == []


@EACH
def test_events_may_come_twice_and_out_of_order(one: TrialCase) -> None:
    assert (
        compare_trials(one.scenario, one.subject, [Fault(repeats_events=True)], run_calm(one)) == []
    )
