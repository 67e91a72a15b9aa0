"""Leader election of the official Python client on a Lease of Phalanx."""

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

#: Creates a candidate of the election with this name.
NewCandidate = Callable[[str], Any]


@pytest.fixture
def new_candidate(api: client.ApiClient, namespace: str) -> NewCandidate:
    def create(name: str) -> Any:
        lock = _lock.LeaseLock("leader", namespace, name)
        lock.api_instance = client.CoordinationV1Api(api)
        return _election.LeaderElection(_config.Config(
            lock, LEASE_SECONDS, RENEW_SECONDS, RETRY_SECONDS,
            onstarted_leading=lambda: None, onstopped_leading=lambda: None,
        ))  # fmt: skip

    return create


def try_to_lead(candidate: Any) -> bool:
    """Try once to become or stay the leader."""
    return bool(candidate.try_acquire_or_renew())


def race(candidates: Sequence[Any]) -> list[bool]:
    """Let all candidates try at the same time."""
    start = Barrier(len(candidates))

    def run(candidate: Any) -> bool:
        start.wait(240)
        return try_to_lead(candidate)

    with ThreadPoolExecutor(len(candidates)) as pool:
        return list(pool.map(run, candidates))


def expire_lease_for(candidate: Any) -> None:
    """Make the last observation of a candidate as old as the lease duration."""
    candidate.observed_time_milliseconds -= LEASE_SECONDS * 1000


def holder(api: client.ApiClient, namespace: str) -> str | None:
    spec = client.CoordinationV1Api(api).read_namespaced_lease("leader", namespace).spec
    assert spec is not None
    return spec.holder_identity


def test_one_of_many_concurrent_candidates_becomes_the_leader(
    api: client.ApiClient, namespace: str, new_candidate: NewCandidate
) -> None:
    candidates = [new_candidate(f"candidate-{n}") for n in range(CANDIDATES)]
    won = race(candidates)
    assert sum(won) == 1
    assert holder(api, namespace) == candidates[won.index(True)].election_config.lock.identity


def test_the_leader_renews_and_the_others_wait(
    api: client.ApiClient, namespace: str, new_candidate: NewCandidate
) -> None:
    leader, follower = new_candidate("leader"), new_candidate("follower")
    assert [try_to_lead(one) for one in (leader, follower, leader, follower)] == [
        True, False, True, False,
    ]  # fmt: skip
    assert holder(api, namespace) == "leader"


def test_a_renewed_lease_is_not_taken_over(new_candidate: NewCandidate) -> None:
    leader, follower = new_candidate("leader"), new_candidate("follower")
    assert [try_to_lead(leader), try_to_lead(follower)] == [True, False]
    expire_lease_for(follower)
    assert try_to_lead(leader)
    assert not try_to_lead(follower)


@pytest.mark.slow
def test_one_of_many_candidates_takes_over_an_expired_lease(
    api: client.ApiClient, namespace: str, new_candidate: NewCandidate
) -> None:
    leader = new_candidate("leader")
    candidates = [new_candidate(f"candidate-{n}") for n in range(CANDIDATES)]
    assert try_to_lead(leader)
    assert not any(try_to_lead(candidate) for candidate in candidates)
    for candidate in candidates:
        expire_lease_for(candidate)
    won = race(candidates)
    assert sum(won) == 1
    assert holder(api, namespace) == f"candidate-{won.index(True)}"
    assert not try_to_lead(leader)
