from __future__ import annotations

import asyncio
import re
from dataclasses import replace

import pytest

from phalanx.api.kinds import POD
from phalanx.api.wire import Object
from phalanx.controllers.nodes.simulated_kubelet import RUN_SECONDS
from phalanx.controllers.scheduling.metrics import (
    EVENT_LABELS,
    METRIC_SPECS,
    SchedulingMetrics,
)
from phalanx.scheduler.cluster.cache import SchedulerCache
from phalanx.scheduler.decision import ClusterEvent
from phalanx.scheduler.policy import DEFAULT_PROFILES
from phalanx.scheduler.queue.queued_entity import QueueTrigger
from phalanx.scheduler.queue.scheduling_queue import TRANSITIONS, SchedulingQueue
from phalanx.telemetry import Metrics
from tests.builders import gang, in_virtual_time, pod, pod_group, priority_class
from tests.controllers.cluster import Cluster, cluster, simulated_nodes
from tests.scheduler import builders as build


def samples_of(metrics: Metrics, name: str) -> dict[str, float]:
    """The series of a metric that are not 0."""
    found = re.findall(rf"^{name}(?:{{(.*)}})? (\S+)$", metrics.render(), re.MULTILINE)
    return {labels: float(number) for labels, number in found if float(number)}


def scrape(c: Cluster, name: str) -> dict[str, float]:
    return samples_of(c.plane.server.metrics, f"scheduler_{name}")


PROFILE = 'profile="default-scheduler"'


@in_virtual_time
async def test_attempts_are_counted_by_pod_and_by_group() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="4")) as c:
        await c.create(*gang("a", 3, cpu="1"), pod("big", cpu="8"))
        await c.until_placed("a-0", "a-1", "a-2")
        assert scrape(c, "schedule_attempts_total") == {
            f'result="scheduled",{PROFILE}': 3,
            f'result="unschedulable",{PROFILE}': 1,
        }
        assert scrape(c, "podgroup_schedule_attempts_total") == {f'result="scheduled",{PROFILE}': 1}
        assert scrape(c, "scheduling_algorithm_duration_seconds_count") == {"": 1}
        assert scrape(c, "podgroup_scheduling_algorithm_duration_seconds_count") == {"": 1}


@in_virtual_time
async def test_the_duration_of_an_attempt_includes_the_binding() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="4"), latency=lambda: 0.5) as c:
        await c.create(*gang("a", 2, cpu="1"))
        await c.until_placed("a-0", "a-1")
        seconds = scrape(c, "scheduling_attempt_duration_seconds_sum")
        assert seconds == {f'result="scheduled",{PROFILE}': pytest.approx(1, abs=0.1)}
        groups = scrape(c, "podgroup_scheduling_attempt_duration_seconds_sum")
        assert groups == {f'result="scheduled",{PROFILE}': pytest.approx(0.5, abs=0.1)}


@in_virtual_time
async def test_the_sli_duration_starts_when_a_pod_is_ready_to_be_scheduled() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="4")) as c:
        group, *members = gang("a", 2, cpu="1")
        await c.create(group, members[0])
        await asyncio.sleep(50)
        await c.create(members[1])
        await c.until_placed("a-0", "a-1")
        assert scrape(c, "pod_scheduling_sli_duration_seconds_count") == {'attempts="1"': 2}
        assert sum(scrape(c, "pod_scheduling_sli_duration_seconds_sum").values()) < 1
        assert scrape(c, "pod_scheduling_attempts_sum") == {"": 2}


@in_virtual_time
async def test_a_bound_pod_is_observed_with_duration_and_attempts() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="4")) as c:
        await c.create(pod("old", cpu="4"))
        await c.until_placed("old")
        await c.create(pod("new", cpu="4"))
        await asyncio.sleep(20)
        await c.delete(POD, "old")
        await c.until_placed("new")
        ((label, seconds),) = scrape(c, "pod_scheduling_sli_duration_seconds_sum").items()
        assert seconds == pytest.approx(20, abs=1)
        tried = int(label.removeprefix('attempts="').removesuffix('"'))
        assert scrape(c, "pod_scheduling_attempts_sum") == {"": 1 + tried}


@in_virtual_time
async def test_pending_pods_are_counted_by_queue() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="4")) as c:
        await c.create(pod("big", cpu="8"), pod("held", gates=["quota"]))
        await c.create(*gang("short", 2, minimum=3), pod("lost", "nowhere"))
        await asyncio.sleep(1)
        assert scrape(c, "pending_pods") == {
            'queue="unschedulable"': 1, 'queue="gated"': 3, 'queue="incomplete"': 1,
        }  # fmt: skip
        assert scrape(c, "queued_entities") == {
            'queue="unschedulable",type="pod"': 1, 'queue="gated",type="pod"': 1,
            'queue="gated",type="podgroup"': 1, 'queue="incomplete",type="podgroup"': 1,
        }  # fmt: skip
        assert 'queue="active"' in c.plane.server.metrics.render()


@in_virtual_time
async def test_unschedulable_pods_are_counted_by_plugin() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="4")) as c:
        await c.create(pod("big", cpu="8"), pod("held", gates=["quota"]))
        await c.create(*gang("large", 9, cpu="1"), pod("lost", "nowhere"))
        await c.create(pod("picky", cpu="8", spec={"nodeSelector": {"disk": "ssd"}}))
        await asyncio.sleep(1)
        assert scrape(c, "unschedulable_pods") == {
            f'plugin="NodeAffinity",{PROFILE}': 1,
            f'plugin="NodeResourcesFit",{PROFILE}': 2,
            f'plugin="GangScheduling",{PROFILE}': 9,
            f'plugin="SchedulingGates",{PROFILE}': 1,
        }


@in_virtual_time
async def test_incoming_pods_are_counted_by_queue_and_event() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="4")) as c:
        await c.create(*gang("a", 3, cpu="2"))
        await asyncio.sleep(0.5)
        entities = scrape(c, "queue_incoming_entities_total")
        assert entities['queue="active",event="PodAdd",type="podgroup"'] == 1
        failed = 'queue="unschedulable",event="ScheduleAttemptFailure"'
        assert entities[f'{failed},type="podgroup"'] == 1
        assert scrape(c, "queue_incoming_pods_total")[failed] == 3


@in_virtual_time
async def test_the_cache_size_is_measured() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="4")) as c:
        await c.create(*gang("a", 3, cpu="1"), pod("big", cpu="8"))
        await c.until_placed("a-0", "a-1", "a-2")
        await asyncio.sleep(1)
        assert scrape(c, "cache_size") == {'type="nodes"': 2, 'type="pods"': 3}


@in_virtual_time
async def test_informer_events_are_measured() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="4")) as c:
        await c.create(*gang("a", 3, cpu="1"))
        await c.until_placed("a-0", "a-1", "a-2")
        await c.delete(POD, "a-0")
        await asyncio.sleep(60)
        counts = scrape(c, "event_handling_duration_seconds_count")
        assert counts['event="NodeAdd"'] == 2
        assert counts['event="PodAdd"'] == 3
        assert counts['event="PodGroupAdd"'] == 1
        assert counts['event="PodDelete"'] == 1
        assert counts['event="PodUpdate"'] >= 3


@in_virtual_time
async def test_a_pod_that_has_ended_is_not_observed_again() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="4")) as c:
        ending = pod("a", cpu="1")
        ending["metadata"]["annotations"] = {RUN_SECONDS: "5"}
        await c.create(ending)
        await asyncio.sleep(60)
        counts = scrape(c, "event_handling_duration_seconds_count")
        assert counts['event="PodDelete"'] == 1
        await c.delete(POD, "a")
        await asyncio.sleep(60)
        assert scrape(c, "event_handling_duration_seconds_count") == counts


@in_virtual_time
async def test_the_pods_of_a_bind_transaction_are_measured() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="4")) as c:
        await c.create(*gang("a", 3, cpu="1"))
        await c.until_placed("a-0", "a-1", "a-2")
        metrics = c.plane.server.metrics
        assert samples_of(metrics, "phalanx_scheduler_bind_batch_pods_sum") == {"": 3}
        assert samples_of(metrics, "phalanx_scheduler_bind_batch_pods_count") == {"": 1}


@in_virtual_time
async def test_work_queues_and_informers_are_measured_too() -> None:
    async with cluster(nodes=simulated_nodes(2, cpu="4")) as c:
        await c.create(pod("big", cpu="8"))
        await asyncio.sleep(5)
        metrics = c.plane.server.metrics
        assert samples_of(metrics, "phalanx_informer_objects")['resource="pods"'] == 1
        assert samples_of(metrics, "phalanx_informer_failing") == {}
        assert (
            samples_of(metrics, "workqueue_adds_total")[
                'name="SchedulingStatusWriter.reconcile_pod"'
            ]
            >= 1
        )
        assert 'workqueue_depth{name="SchedulingStatusWriter.reconcile_pod"} 0' in metrics.render()


async def fill_cluster(c: Cluster, *, group: Object | None = None, budget: bool = False) -> None:
    """Fill a node with two pods of lower priority, optionally of a group."""
    await c.create(priority_class("low", 10), priority_class("high", 100))
    if group is not None:
        await c.create(important(group, "low"))
    if budget:
        await c.create(BUDGET)
    name = group["metadata"]["name"] if group else ""
    for number in range(2):
        made = pod(f"low-{number}", name, cpu="2", meta={"labels": {"app": "low"}})
        await c.create(important(made, "low"))
    await c.until_placed("low-0", "low-1")


def important(obj: Object, name: str) -> Object:
    obj["spec"]["priorityClassName"] = name
    return obj


BUDGET: Object = {
    "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
    "metadata": {"name": "b", "namespace": "default"},
    "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "low"}}},
}  # fmt: skip


@in_virtual_time
async def test_a_preempting_gang_waits_on_preemption() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="4")) as c:
        await fill_cluster(c)
        await c.create(*(important(one, "high") for one in gang("g", 2, cpu="2")))
        await c.until_placed("g-0", "g-1")
        attempts = scrape(c, "podgroup_schedule_attempts_total")
        assert attempts.pop(f'result="waiting_on_preemption",{PROFILE}') >= 1
        assert attempts == {f'result="scheduled",{PROFILE}': 1}
        assert scrape(c, "podgroup_scheduling_attempt_duration_seconds_count").keys() == {
            f'result="waiting_on_preemption",{PROFILE}', f'result="scheduled",{PROFILE}',
        }  # fmt: skip


@in_virtual_time
async def test_victims_of_groups_and_of_pods_are_separate_metrics() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="4")) as c:
        await fill_cluster(c)
        await c.create(*(important(one, "high") for one in gang("g", 2, cpu="2")))
        await c.until_placed("g-0", "g-1")
        assert scrape(c, "workload_preemption_attempts_total").keys() == {'result="Success"'}
        assert scrape(c, "workload_preemption_victims_sum") == {"": 2}
        assert scrape(c, "preemption_attempts_total") == scrape(c, "preemption_victims_count") == {}
        seconds = scrape(c, "preemption_execution_duration_seconds_count")
        assert seconds == {'preemptor="podgroup",result="success"': 1}


@in_virtual_time
async def test_victims_of_a_pod_are_counted() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="4")) as c:
        await fill_cluster(c)
        await c.create(important(pod("p", cpu="4"), "high"))
        await c.until_placed("p")
        assert scrape(c, "preemption_attempts_total")[""] >= 1
        assert scrape(c, "preemption_victims_sum") == {"": 2}
        assert scrape(c, "workload_preemption_attempts_total") == {}
        assert scrape(c, "workload_preemption_victims_count") == {}
        assert scrape(c, "preemption_workload_disruptions_count") == {}
        assert scrape(c, "preemption_pdb_violations_total") == {}


@in_virtual_time
async def test_disrupted_groups_and_violated_budgets_are_counted() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="4")) as c:
        group = pod_group("w", 2)
        group["spec"]["disruptionMode"] = {"all": {}}
        await fill_cluster(c, group=group, budget=True)
        await c.create(important(pod("p", cpu="2"), "high"))
        await c.until_placed("p")
        assert scrape(c, "preemption_workload_disruptions_sum") == {'preemptor="pod"': 1}
        assert scrape(c, "preemption_pdb_violations_total") == {'preemptor="pod"': 2}


@in_virtual_time
async def test_preemptions_whose_victims_are_not_proven_best_are_counted() -> None:
    async with cluster(nodes=simulated_nodes(13, cpu="1")) as c:
        await c.create(priority_class("low", 10), priority_class("high", 100))
        await c.create(*(important(pod(f"low-{n}", cpu="1"), "low") for n in range(13)))
        await c.until_placed(*(f"low-{n}" for n in range(13)))
        term = {"labelSelector": {}, "topologyKey": "kubernetes.io/hostname"}
        picky = important(pod("picky", cpu="1"), "high")
        picky["spec"]["affinity"] = {
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
        }
        await c.create(picky)
        await c.until_placed("picky")
        counted = samples_of(
            c.plane.server.metrics, "phalanx_scheduler_preemption_not_optimal_total"
        )
        assert counted == {'preemptor="pod"': 1}


@in_virtual_time
@pytest.mark.parametrize(
    ("priority", "result"),
    [("polite", "Unschedulable"), ("low", "UnschedulableAndUnresolvable")],
)
async def test_preemption_attempts_are_counted_if_they_do_not_help(
    priority: str, result: str
) -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="4")) as c:
        await fill_cluster(c)
        await c.create(priority_class("polite", 100, preemptionPolicy="Never"))
        group, *members = (important(one, priority) for one in gang("g", 2, cpu="2"))
        if priority == "polite":
            group["spec"]["preemptionPolicy"] = "Never"
        await c.create(group, *members)
        await asyncio.sleep(0.5)
        assert scrape(c, "workload_preemption_attempts_total").keys() == {f'result="{result}"'}


@in_virtual_time
async def test_generated_and_feasible_placements_are_counted() -> None:
    racks = [
        replace(one, labels={"rack": rack})
        for one, rack in zip(simulated_nodes(3, cpu="4"), "aab", strict=True)
    ]
    async with cluster(nodes=racks) as c:
        group, *members = [*gang("g", 2, cpu="2"), pod("g-2", "g", cpu="3")]
        group["spec"]["schedulingPolicy"]["gang"]["minCount"] = 3
        group["spec"]["schedulingConstraints"] = {"topology": [{"key": "rack"}]}
        await c.create(group, *members)
        await c.until_placed("g-0", "g-1", "g-2")
        assert scrape(c, "generated_placements_total") == {PROFILE: 2}
        assert scrape(c, "placement_evaluations_total") == {
            f'result="feasible",{PROFILE}': 1, f'result="infeasible",{PROFILE}': 1,
        }  # fmt: skip


def test_pods_that_arrive_during_an_attempt_are_pending() -> None:
    metrics, queue = Metrics(), SchedulingQueue()
    watched = SchedulingMetrics(metrics, queue, SchedulerCache(), profiles=DEFAULT_PROFILES)
    queue.observe_group(build.gang("g", 1), 0.0)
    queue.observe_pod(build.pod("g-0", "g"), 0.0)
    assert queue.pop(1.0) is not None
    assert samples_of(metrics, "scheduler_pending_pods") == {}
    queue.observe_pod(build.pod("g-1", "g"), 2.0)
    assert samples_of(metrics, "scheduler_pending_pods") == {'queue="pending"': 1}
    assert watched is not None


def test_every_queue_event_has_a_label() -> None:
    metrics, queue = Metrics(), SchedulingQueue()
    watched = SchedulingMetrics(metrics, queue, SchedulerCache(), profiles=DEFAULT_PROFILES)
    queue.observe_pod(build.pod("p"), 0.0)
    (arrival,) = queue.arrivals
    stimuli = {stimulus for _, stimulus in TRANSITIONS} - {QueueTrigger.POPPED}
    for stimulus in stimuli:
        queue.arrivals[arrival._replace(cause=stimulus)] = 1
    assert len(samples_of(metrics, "scheduler_queue_incoming_entities_total")) >= len(stimuli)
    assert watched is not None


def test_every_metric_has_its_own_name() -> None:
    names = [row.name for row in METRIC_SPECS]
    assert len(set(names)) == len(names)


def test_every_event_that_can_queue_an_entity_has_a_label() -> None:
    # Nothing is queued because it was popped.
    assert {*ClusterEvent, *QueueTrigger} - EVENT_LABELS.keys() == {QueueTrigger.POPPED}
