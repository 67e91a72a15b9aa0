"""Capacities of topology domains, kept from one cycle to the next."""

from __future__ import annotations

import random

import pytest

from phalanx.api.core import ContainerPort
from phalanx.scheduler.cluster.cache import SchedulerCache
from phalanx.scheduler.cluster.pod_shape import PodShape, shape_of
from phalanx.scheduler.placement import topology_domains
from phalanx.scheduler.placement.topology_domains import (
    DOMAIN_CAPACITIES,
    DomainCapacities,
    domain_capacities_of,
)
from phalanx.scheduler.policy import DEFAULT_POLICY
from tests.scheduler.builders import cluster, node, pod

SMALL = shape_of(pod("s", cpu="1"))
WEB = shape_of(pod("w", cpu="1", ports=(ContainerPort(host_port=80),)))
UNKNOWN = shape_of(pod("x", requests={"moon.com/dust": "1"}))


def racks(count: int, size: int) -> SchedulerCache:
    """Racks with equally many nodes, and a node without a rack."""
    names = [(f"r{r}", f"n{r}-{i}") for r in range(count) for i in range(size)]
    return cluster([node("lone"), *(node(name, {"rack": rack}) for rack, name in names)])


def cached_capacities(cache: SchedulerCache, shape: PodShape = SMALL) -> DomainCapacities:
    snapshot = cache.snapshot()
    return domain_capacities_of(
        snapshot,
        DEFAULT_POLICY,
        shape,
        placements=snapshot.domains("rack").placements,
        key="rack",
    )


def sums(capacities: DomainCapacities) -> list[list[int]]:
    return [
        table.tolist()
        for table in (capacities.pod_capacity, *capacities.allocatable, *capacities.requested)
    ]


def rebuilt_sums(cache: SchedulerCache, shape: PodShape) -> list[list[int]]:
    snapshot = cache.snapshot()
    return sums(
        DomainCapacities(
            snapshot, DEFAULT_POLICY, shape, placements=snapshot.domains("rack").placements
        )
    )


def run(cache: SchedulerCache, name: str, on: str, **amounts: str) -> None:
    one = pod(name, on=on, requests=amounts, phase="Running")
    cache.update_pod(one.metadata.key, one)


def test_a_pod_changes_the_sums_of_its_own_rack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology_domains, "_PATCH_SHARE", 0)
    cache = racks(3, 2)
    first = cached_capacities(cache)
    assert first.pod_capacity.tolist() == [8, 8, 8]
    run(cache, "p", "n1-0", cpu="3")
    run(cache, "q", "lone", cpu="3")
    assert cached_capacities(cache) is first
    assert first.pod_capacity.tolist() == [8, 5, 8]


@pytest.mark.parametrize("shape", [SMALL, WEB, UNKNOWN])
@pytest.mark.parametrize("seed", range(5))
def test_updated_capacities_equal_recomputed_ones(
    seed: int, shape: PodShape, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topology_domains, "_PATCH_SHARE", 0)
    rng, cache = random.Random(seed), racks(4, 3)
    for number in range(40):
        name = f"n{rng.randrange(4)}-{rng.randrange(3)}"
        ports = (ContainerPort(host_port=80),) if rng.random() < 0.3 else ()
        one = pod(f"p{number % 12}", on=name, cpu=rng.choice(("0", "1", "3")), ports=ports)
        cache.update_pod(one.metadata.key, one if rng.random() < 0.7 else None)
        if rng.random() < 0.1:
            rack = f"r{rng.randrange(4)}"
            cache.update_node(name, node(name, {"rack": rack}, cordoned=rng.random() < 0.5))
        assert sums(cached_capacities(cache, shape)) == rebuilt_sums(cache, shape)


def test_capacities_are_recomputed_when_a_node_or_too_many_loads_changed() -> None:
    cache = racks(2, 2)
    first = cached_capacities(cache)
    cache.update_node("n0-0", node("n0-0", {"rack": "r0"}, cordoned=True))
    second = cached_capacities(cache)
    assert second is not first
    assert second.pod_capacity.tolist() == [4, 8]
    run(cache, "p", "n1-0", cpu="1")
    assert cached_capacities(cache) is not second


def test_capacities_of_some_racks_are_not_cached() -> None:
    snapshot = racks(3, 1).snapshot()
    some = snapshot.domains("rack").placements[1:]
    assert domain_capacities_of(
        snapshot, DEFAULT_POLICY, SMALL, placements=some, key="rack"
    ).pod_capacity.tolist() == [4, 4]
    assert DOMAIN_CAPACITIES.of(snapshot) == {}


def test_the_cache_of_capacities_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology_domains, "_DOMAIN_CAPACITIES_LIMIT", 2)
    cache = racks(2, 1)
    for cpu in ("1", "2", "3"):
        cached_capacities(cache, shape_of(pod("p", cpu=cpu)))
    assert [
        capacities.pod_capacity.tolist()
        for capacities in DOMAIN_CAPACITIES.of(cache.snapshot()).values()
    ] == [[2, 2], [1, 1]]
