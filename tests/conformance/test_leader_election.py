"""Leader election of the official Python client on a Lease of ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from kubernetes import client
from kubernetes.leaderelection import electionconfig, leaderelection
from kubernetes.leaderelection.resourcelock import leaselock

_election: Any = leaderelection
_config: Any = electionconfig
_lock: Any = leaselock

LEASE_SECONDS, RENEW_SECONDS, RETRY_SECONDS = 15, 10, 2
CANDIDATES = 8

#: A candidate of the election of this test, by name.
Stand = Callable[[str], Any]


@pytest.fixture
def stand(api: client.ApiClient, space: str) -> Stand:
    def made(name: str) -> Any:
        lock = _lock.LeaseLock("leader", space, name)
        lock.api_instance = client.CoordinationV1Api(api)
        return _election.LeaderElection(_config.Config(
            lock, LEASE_SECONDS, RENEW_SECONDS, RETRY_SECONDS,
            onstarted_leading=lambda: None, onstopped_leading=lambda: None,
        ))  # fmt: skip

    return made


def leads(candidate: Any) -> bool:
    """Try once to become or to stay the leader."""
    return bool(candidate.try_acquire_or_renew())


def race(candidates: Sequence[Any]) -> list[bool]:
    """Let all try at the same time."""
    start = Barrier(len(candidates))

    def run(candidate: Any) -> bool:
        start.wait(10)
        return leads(candidate)

    with ThreadPoolExecutor(len(candidates)) as pool:
        return list(pool.map(run, candidates))


def has_waited_long_enough(candidate: Any) -> None:
    """Have its last look at the lease be as long ago as the lease lasts."""
    candidate.observed_time_milliseconds -= LEASE_SECONDS * 1000


def holder(api: client.ApiClient, space: str) -> str | None:
    spec = client.CoordinationV1Api(api).read_namespaced_lease("leader", space).spec
    assert spec is not None
    return spec.holder_identity


def test_of_many_that_begin_at_once_one_leads(
    api: client.ApiClient, space: str, stand: Stand
) -> None:
    candidates = [stand(f"candidate-{n}") for n in range(CANDIDATES)]
    won = race(candidates)
    assert sum(won) == 1
    assert holder(api, space) == candidates[won.index(True)].election_config.lock.identity


def test_who_leads_goes_on_and_who_follows_waits(
    api: client.ApiClient, space: str, stand: Stand
) -> None:
    leader, follower = stand("leader"), stand("follower")
    assert [leads(leader), leads(follower), leads(leader), leads(follower)] == [
        True, False, True, False,
    ]  # fmt: skip
    assert holder(api, space) == "leader"


def test_a_lease_that_is_renewed_is_seen_as_new(stand: Stand) -> None:
    leader, follower = stand("leader"), stand("follower")
    assert [leads(leader), leads(follower)] == [True, False]
    has_waited_long_enough(follower)
    assert leads(leader)
    assert not leads(follower)


def test_of_many_that_see_a_lease_expire_one_takes_over(
    api: client.ApiClient, space: str, stand: Stand
) -> None:
    leader = stand("leader")
    candidates = [stand(f"candidate-{n}") for n in range(CANDIDATES)]
    assert leads(leader)
    assert not any(leads(candidate) for candidate in candidates)
    for candidate in candidates:
        has_waited_long_enough(candidate)
    won = race(candidates)
    assert sum(won) == 1
    assert holder(api, space) == f"candidate-{won.index(True)}"
    assert not leads(leader)
