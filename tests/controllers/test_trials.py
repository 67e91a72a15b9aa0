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
from phalanx.chance import Chance
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.claims.resourceclaims import ResourceClaims
from phalanx.controllers.claims.use import ClaimUse
from phalanx.controllers.cron.cronjobs import CronJobs
from phalanx.controllers.groups.compositegroups import CompositeGroups
from phalanx.controllers.groups.podgroups import Protection
from phalanx.controllers.groups.replicagroups import ReplicaGroups
from phalanx.controllers.loop import Informers
from phalanx.controllers.nodes.nodelifecycle import NodeLifecycle
from phalanx.controllers.nodes.tainteviction import TaintEviction
from phalanx.controllers.upkeep.disruption import Disruption
from phalanx.controllers.upkeep.garbage import Garbage
from phalanx.controllers.upkeep.namespaces import Namespaces
from phalanx.controllers.upkeep.podgarbage import PodGarbage
from phalanx.controllers.upkeep.roleaggregation import RoleAggregation
from phalanx.controllers.upkeep.serviceaccounts import ServiceAccounts
from phalanx.controllers.upkeep.ttl import TimeToLive
from tests.controllers import acts, claimacts, nodeacts
from tests.controllers.jobs.work import collectors, subject
from tests.controllers.trials import End, Scenario, Trouble, crashes, gaps, judge, play
from tests.controllers.trialstage import Part, Run, Stage, kubelets


def part(make: Callable[[Client, Informers, Clock], Any]) -> Part:
    """A controller as a part of a control plane."""

    def started(client: Client, informers: Informers, clock: Clock, chance: Chance) -> list[Run]:
        return [make(client, informers, clock).run]

    return started


#: What users do.
Act = Callable[[Stage], Coroutine[Any, Any, None]]


class Case(NamedTuple):
    """A controller, and a scenario that it is put through."""

    subject: Part
    scenario: Scenario


COMPANY = (kubelets, subject(), collectors)
GROUPS = (POD_GROUP, POD, WORKLOAD)
protection = part(lambda c, i, t: Protection(c, i))
composites = part(lambda c, i, t: CompositeGroups(c, i, t))
replicas = part(lambda c, i, t: ReplicaGroups(c, i))
garbage = part(lambda c, i, t: Garbage(c, i))
namespaces = part(lambda c, i, t: Namespaces(c, i))
disruption = part(lambda c, i, t: Disruption(c, i, t))
cron = part(lambda c, i, t: CronJobs(c, i, t))
time_to_live = part(lambda c, i, t: TimeToLive(c, i, t))
accounts = part(lambda c, i, t: ServiceAccounts(c, i))
aggregation = part(lambda c, i, t: RoleAggregation(c, i))
claims = part(lambda c, i, t: ResourceClaims(c, i))
claim_use = part(lambda c, i, t: ClaimUse(c, i))
lifecycle = part(lambda c, i, t: NodeLifecycle(c, i, t))
eviction = part(lambda c, i, t: TaintEviction(c, i, t))
pod_garbage = part(lambda c, i, t: PodGarbage(c, i, t, kept=2))

#: A controller, the kinds that its end is judged by, who else is there, and its acts.
PLAYS: list[tuple[Part, tuple[Kind, ...], tuple[Part, ...], tuple[Act, ...]]] = [
    (protection, (POD_GROUP, POD), (kubelets,), (
        acts.protects_a_group, acts.protects_a_group_that_gains_a_member,
        acts.lets_go_of_groups_that_nobody_is_in,
    )),
    (composites, (COMPOSITE_POD_GROUP, POD_GROUP), (), (
        acts.counts_groups_of_groups, acts.says_what_groups_of_groups_have_lost,
        acts.lets_groups_of_groups_go_from_below,
    )),
    (replicas, GROUPS, (kubelets, collectors), (
        acts.makes_replica_groups, acts.makes_replica_groups_again,
        acts.makes_no_replica_groups_for_those_who_are_done,
    )),
    (garbage, (CONFIG_MAP,), (), (
        acts.collects, acts.collects_from_below, acts.takes_nobody_for_a_namesake,
    )),
    (namespaces, (NAMESPACE, CONFIG_MAP, POD), (kubelets, protection), (
        acts.empties_a_namespace, acts.empties_two_namespaces,
        acts.empties_a_namespace_and_its_namesake_stays,
    )),
    (disruption, (POD_DISRUPTION_BUDGET, POD), (kubelets,), (
        acts.counts_for_a_budget, acts.counts_for_a_budget_that_comes_late,
        acts.counts_for_a_budget_that_is_made_again,
    )),
    (cron, (CRON_JOB, JOB), COMPANY, (
        acts.starts_by_the_clock, acts.starts_nothing_while_it_runs,
        acts.starts_in_place_of_what_runs,
    )),
    (time_to_live, (JOB, POD, WORKLOAD), COMPANY, (
        acts.clears_away_in_time, acts.clears_away_at_once,
        acts.clears_away_when_that_is_said_later,
    )),
    (accounts, (SERVICE_ACCOUNT, NAMESPACE), (namespaces,), (
        acts.gives_accounts, acts.gives_accounts_to_many, acts.gives_no_account_to_who_goes,
    )),
    (aggregation, (CLUSTER_ROLE,), (), (
        acts.gathers_rules, acts.gathers_rules_no_more, acts.gathers_rules_of_those_who_gather,
    )),
    (claims, (RESOURCE_CLAIM, POD), (kubelets,), (
        claimacts.makes_claims, claimacts.makes_claims_when_it_is_known_how,
        claimacts.makes_claims_for_a_group,
    )),
    (claim_use, (RESOURCE_CLAIM, POD), (kubelets, claims), (
        claimacts.reserves_for_those_who_run, claimacts.gives_back_what_nobody_uses,
        claimacts.deletes_claims_of_those_who_are_done,
    )),
    (lifecycle, (NODE, POD), (kubelets,), (
        nodeacts.notices_silence, nodeacts.notices_who_speaks_again, nodeacts.marks_what_nodes_say,
    )),
    (eviction, (POD,), (kubelets,), (
        nodeacts.drives_out, nodeacts.drives_out_in_time,
        nodeacts.drives_out_nobody_when_all_is_well_again,
    )),
    (pod_garbage, (POD,), (), (
        nodeacts.gives_up_pods_of_a_lost_node, nodeacts.gives_up_pods_of_a_broken_node,
    )),
    (pod_garbage, (POD,), (kubelets,), (nodeacts.thins_out_what_has_ended,)),
]  # fmt: skip
CASES = [
    Case(subject, Scenario(act.__name__, act, kinds, cast))
    for subject, kinds, cast, played in PLAYS
    for act in played
]
EACH = pytest.mark.parametrize("one", CASES, ids=lambda one: one.scenario.name)


def calmly(one: Case) -> End:
    """The end where nothing goes wrong; there must be one."""
    calm = play(one.scenario, one.subject)
    assert calm.tally.writes > 0
    assert (calm.wrongs, calm.unrest) == ([], [])
    return calm


@EACH
def test_whatever_write_it_is_killed_after_the_end_is_the_same(one: Case) -> None:
    calm = calmly(one)
    assert judge(one.scenario, one.subject, crashes(calm, most=4), calm) == []


@EACH
def test_whoever_takes_over_may_at_first_see_the_past(one: Case) -> None:
    calm = calmly(one)
    for past in (1, 8):
        assert judge(one.scenario, one.subject, crashes(calm, past=past, most=2), calm) == []


@EACH
def test_what_was_never_seen_does_not_matter(one: Case) -> None:
    calm = calmly(one)
    assert judge(one.scenario, one.subject, gaps(calm, most=3), calm) == []


@pytest.mark.soak
@pytest.mark.timeout(900)
@EACH
def test_every_write_and_every_event_may_be_the_one(one: Case) -> None:
    calm = calmly(one)
    for past in (0, 1, 2, 3, 5, 8):
        assert judge(one.scenario, one.subject, crashes(calm, past=past, most=999), calm) == []
    assert judge(one.scenario, one.subject, gaps(calm, most=999), calm) == []


@EACH
def test_events_may_come_twice_and_out_of_order(one: Case) -> None:
    assert judge(one.scenario, one.subject, [Trouble(babbles=True)], calmly(one)) == []
