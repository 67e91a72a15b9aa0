"""What whole racks hold, kept from one cycle to the next."""

from __future__ import annotations

import random

import pytest

from phalanx.api.core import ContainerPort
from phalanx.scheduler.cluster.cache import Cache
from phalanx.scheduler.cluster.shape import Shape, shape_of
from phalanx.scheduler.placing import sites as module
from phalanx.scheduler.placing.sites import Sites, sites_of
from phalanx.scheduler.policy import DEFAULT
from tests.scheduler.builders import cluster, node, pod

SMALL = shape_of(pod("s", cpu="1"))
WEB = shape_of(pod("w", cpu="1", ports=(ContainerPort(host_port=80),)))
STRANGE = shape_of(pod("x", asks={"moon.com/dust": "1"}))


def racks(count: int, size: int) -> Cache:
    """So many racks of so many nodes, and a node that is in none."""
    names = [(f"r{r}", f"n{r}-{i}") for r in range(count) for i in range(size)]
    return cluster([node("lone"), *(node(name, {"rack": rack}) for rack, name in names)])


def kept(cache: Cache, shape: Shape = SMALL) -> Sites:
    snapshot = cache.snapshot()
    return sites_of(snapshot, DEFAULT, shape, snapshot.domains("rack").places, "rack")


def sums(sites: Sites) -> list[list[int]]:
    return [table.tolist() for table in (sites.held, *sites.room, *sites.taken)]


def made_anew(cache: Cache, shape: Shape) -> list[list[int]]:
    snapshot = cache.snapshot()
    return sums(Sites(snapshot, DEFAULT, shape, snapshot.domains("rack").places))


def run(cache: Cache, name: str, on: str, **amounts: str) -> None:
    one = pod(name, on=on, asks=amounts, phase="Running")
    cache.pod(one.metadata.key, one)


def test_a_pod_moves_the_sums_of_its_own_rack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATCH_SHARE", 0)
    cache = racks(3, 2)
    first = kept(cache)
    assert first.held.tolist() == [8, 8, 8]
    run(cache, "p", "n1-0", cpu="3")
    run(cache, "q", "lone", cpu="3")
    assert kept(cache) is first
    assert first.held.tolist() == [8, 5, 8]


@pytest.mark.parametrize("shape", [SMALL, WEB, STRANGE])
@pytest.mark.parametrize("seed", range(5))
def test_what_is_kept_is_what_would_be_found_anew(
    seed: int, shape: Shape, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PATCH_SHARE", 0)
    chance, cache = random.Random(seed), racks(4, 3)
    for number in range(40):
        name = f"n{chance.randrange(4)}-{chance.randrange(3)}"
        ports = (ContainerPort(host_port=80),) if chance.random() < 0.3 else ()
        one = pod(f"p{number % 12}", on=name, cpu=chance.choice(("0", "1", "3")), ports=ports)
        cache.pod(one.metadata.key, one if chance.random() < 0.7 else None)
        if chance.random() < 0.1:
            rack = f"r{chance.randrange(4)}"
            cache.node(name, node(name, {"rack": rack}, cordoned=chance.random() < 0.5))
        assert sums(kept(cache, shape)) == made_anew(cache, shape)


def test_they_are_made_anew_when_a_node_is_another_or_too_much_has_changed() -> None:
    cache = racks(2, 2)
    first = kept(cache)
    cache.node("n0-0", node("n0-0", {"rack": "r0"}, cordoned=True))
    second = kept(cache)
    assert second is not first
    assert second.held.tolist() == [4, 8]
    run(cache, "p", "n1-0", cpu="1")
    assert kept(cache) is not second


def test_some_of_the_racks_are_not_kept() -> None:
    snapshot = racks(3, 1).snapshot()
    some = snapshot.domains("rack").places[1:]
    assert sites_of(snapshot, DEFAULT, SMALL, some, "rack").held.tolist() == [4, 4]
    assert snapshot.sites == {}


def test_the_memory_of_shapes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SITES_LIMIT", 2)
    cache = racks(2, 1)
    for cpu in ("1", "2", "3"):
        kept(cache, shape_of(pod("p", cpu=cpu)))
    assert [sites.held.tolist() for sites in cache.snapshot().sites.values()] == [[2, 2], [1, 1]]
