"""Pods with as many constraints as the server accepts: no step of their cycle takes long.

The scheduler shares its event loop with all other components, and runs them between two steps.
"""

from __future__ import annotations

import asyncio
from functools import cache

import pytest
from msgspec import convert

from phalanx.api.core import Node, Pod
from phalanx.api.validation.pod_scheduling import MAX_NODE_REQUIREMENTS, MAX_PEER_TERMS
from phalanx.api.wire import Object
from phalanx.scheduler.cluster.cache import SchedulerCache
from phalanx.scheduler.cluster.peer_constraints import HOSTNAME, ZONE
from phalanx.scheduler.cycle import run_cycle
from phalanx.scheduler.decision import Decision, Placed, Preempting, Waiting
from phalanx.scheduler.entity import Entity
from phalanx.scheduler.policy import DEFAULT_POLICY
from phalanx.scheduler.preemption.evaluator import MAX_PREEMPTOR_TERMS, TOO_MANY_TERMS
from phalanx.scheduler.search.solver import SolverRequest, no_solver
from tests.builders import in_virtual_time
from tests.loop_stalls import measure_stall
from tests.scheduler.builders import alone, cluster, entity, gang, node, pod

NODES, PODS = 5_000, 2_000
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


@cache
def nodes_and_pods() -> tuple[list[Node], list[Pod]]:
    nodes = [
        node(f"n{i}", {HOSTNAME: f"n{i}", ZONE: f"z{i % 10}", "rank": str(i)}) for i in range(NODES)
    ]
    pods = [pod(f"p{i}", on=f"n{i % NODES}", labels={"app": f"a{i % 50}"}) for i in range(PODS)]
    return nodes, pods


async def large_cluster() -> SchedulerCache:
    nodes, pods = nodes_and_pods()
    cache = cluster(nodes, pods)
    cache.snapshot()
    return cache


def pod_with(spec: Object, name: str = "x") -> Pod:
    meta = {"name": name, "namespace": "default", "uid": name, "labels": {"app": "a1"}}
    return convert({"metadata": meta, "spec": {"containers": [{"name": "c"}], **spec}}, Pod)


def differing_selector(number: int) -> Object:
    """A selector that matches every pod."""
    expression = {"key": "app", "operator": "NotIn", "values": [f"b{number}"]}
    return {"matchExpressions": [expression]}


def peer_terms(count: int = MAX_PEER_TERMS, *, everywhere: bool = True) -> list[Object]:
    namespaces: Object = {"namespaceSelector": {}} if everywhere else {}
    return [
        {"labelSelector": differing_selector(n), "topologyKey": HOSTNAME, **namespaces}
        for n in range(count)
    ]


def node_requirements(operator: str, *values: str, key: str = "rank") -> list[Object]:
    return [
        {"key": key if key == "rank" else f"{key}{n}", "operator": operator,
         "values": [value.format(n) for value in values]}
        for n in range(MAX_NODE_REQUIREMENTS)
    ]  # fmt: skip


def node_affinity(requirements: list[Object]) -> Object:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": requirements}]}}}


SPECS: dict[str, Object] = {
    "pod affinity": {"affinity": {"podAffinity": {REQUIRED: peer_terms()}}},
    "pod anti-affinity": {"affinity": {"podAntiAffinity": {REQUIRED: peer_terms()}}},
    "preferred pods": {
        "affinity": {
            "podAffinity": {
                PREFERRED: [{"weight": 1, "podAffinityTerm": term} for term in peer_terms()]
            }
        }
    },
    "spread": {
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": f"k{n}", "whenUnsatisfiable": "ScheduleAnyway",
             "labelSelector": differing_selector(n)}
            for n in range(MAX_PEER_TERMS)
        ]
    },
    "required spread": {
        "topologySpreadConstraints": [
            {"maxSkew": 10_000, "topologyKey": HOSTNAME, "whenUnsatisfiable": "DoNotSchedule",
             "labelSelector": differing_selector(n)}
            for n in range(MAX_PEER_TERMS)
        ]
    },
    "tolerations": {
        "tolerations": [{"key": "k", "operator": "Equal", "value": f"{n}"} for n in range(7_000)]
    },
    "node selector": {"nodeSelector": {f"k{n}": "v" for n in range(MAX_NODE_REQUIREMENTS)}},
    "greater than": {"affinity": node_affinity(node_requirements("Gt", "{}"))},
    "values": {
        "affinity": node_affinity(node_requirements("NotIn", *(f"v{n}" for n in range(20))))
    },
    "other keys": {"affinity": node_affinity(node_requirements("DoesNotExist", key="k"))},
    "node names": {
        "affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [f"n{n}"]}]}
            for n in range(MAX_NODE_REQUIREMENTS)
        ]}}}
    },
}  # fmt: skip


async def decide_in_steps(one: Entity, cache: SchedulerCache) -> Decision:
    """Run a cycle as the scheduler does: other tasks run between two steps."""
    cycle, answer = run_cycle(one, cache.snapshot(), DEFAULT_POLICY), None
    while True:
        await asyncio.sleep(0)
        try:
            step = cycle.send(answer)
        except StopIteration as end:
            decision: Decision = end.value
            return decision
        answer = no_solver(step.program) if isinstance(step, SolverRequest) else None


@pytest.mark.mostly_slow(quick_every=4)
@pytest.mark.parametrize("name", SPECS)
@in_virtual_time
async def test_no_pod_stalls_the_scheduler(name: str) -> None:
    one = alone(pod_with(SPECS[name]))
    _, stall = await measure_stall(lambda cache: decide_in_steps(one, cache), large_cluster)
    assert stall.is_accepted, stall


@in_virtual_time
async def test_no_gang_of_pods_with_many_terms_stalls_the_scheduler() -> None:
    spec = {**SPECS["pod affinity"], "schedulingGroup": {"podGroupName": "g"}}
    members = [pod_with(spec, f"m{n}") for n in range(64)]
    one = entity(gang("g", len(members)), members)
    _, stall = await measure_stall(lambda cache: decide_in_steps(one, cache), large_cluster)
    assert stall.is_accepted, stall


@in_virtual_time
async def test_terms_of_running_pods_do_not_stall_the_scheduler() -> None:
    """Pods at the limit, each with other terms, that all reject the new pod from their nodes."""

    async def cluster_with_terms() -> SchedulerCache:
        nodes, _ = nodes_and_pods()
        running = []
        for number in range(100):
            terms = [
                {**term, "labelSelector": differing_selector(number * MAX_PEER_TERMS + n)}
                for n, term in enumerate(peer_terms())
            ]
            spec = {"nodeName": f"n{number}", "affinity": {"podAntiAffinity": {REQUIRED: terms}}}
            running.append(pod_with(spec, f"r{number}"))
        cache = cluster(nodes, running)
        cache.snapshot()
        return cache

    one = alone(pod_with({}))
    decision, stall = await measure_stall(
        lambda cache: decide_in_steps(one, cache), cluster_with_terms
    )
    assert isinstance(decision, Placed)
    assert int(decision.bindings[0].node.removeprefix("n")) >= 100
    assert stall.is_accepted, stall


@pytest.mark.parametrize(
    ("terms", "preempts"), [(MAX_PREEMPTOR_TERMS, True), (MAX_PREEMPTOR_TERMS + 1, False)]
)
@in_virtual_time
async def test_a_pod_with_many_terms_does_not_preempt(terms: int, *, preempts: bool) -> None:
    cache = cluster([node("a", {HOSTNAME: "a"})], [pod("low", on="a", cpu="4")])
    container = {"name": "c", "resources": {"requests": {"cpu": "1"}}}
    required = [
        {**term, "labelSelector": {"matchLabels": {"app": f"other{n}"}}}
        for n, term in enumerate(peer_terms(terms))
    ]
    spec = {
        "priority": 10,
        "containers": [container],
        "affinity": {"podAntiAffinity": {REQUIRED: required}},
    }
    decision = await decide_in_steps(alone(pod_with(spec)), cache)
    if terms <= MAX_PREEMPTOR_TERMS:
        assert isinstance(decision, Preempting)
    else:
        assert isinstance(decision, Waiting)
        assert decision.preemption == TOO_MANY_TERMS
