from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec import convert

from phalanx.api.errors import Conflict
from phalanx.api.kinds import GROUP_BINDING, NAMESPACE, POD, POD_GROUP
from phalanx.api.meta import Key, Ref, pod_group_ref
from phalanx.api.scheduling import PodGroup
from phalanx.api.wire import Reply, Request, StreamReply
from phalanx.client.client import Client
from phalanx.client.transports import Unreachable
from phalanx.controllers.scheduling import binder as module
from phalanx.controllers.scheduling.binder import BindAttempt, BindResult, GroupBinder, PreBindQueue
from phalanx.scheduler.decision import Binding, Placed
from phalanx.scheduler.entity import Entity
from tests.builders import in_virtual_time, node, pod, pod_group
from tests.controllers.cluster import Cluster, LaggingTransport, cluster


class BinderFixture:
    """A binder on a cluster without a scheduler, and the results of its attempts."""

    def __init__(self, c: Cluster, transport: LaggingTransport) -> None:
        self.c, self.transport = c, transport
        self.results: dict[str, BindResult] = {}
        self.binder = GroupBinder(Client(transport), self._on_finished)

    def _on_finished(self, outcome: BindResult) -> None:
        assert outcome.attempt.entity.key.name not in self.results
        self.results[outcome.attempt.entity.key.name] = outcome

    async def attempt(
        self, name: str, pods: int, *, on: str = "n1", space: str = "default"
    ) -> BindAttempt:
        """Create pods and return an attempt to bind them."""
        bindings = []
        for number in range(pods):
            made = pod(f"{name}-{number}", namespace=space, cpu="1")
            uid = (await self.c.client.create(POD, made))["metadata"]["uid"]
            bindings.append(Binding(Key(space, f"{name}-{number}"), uid, on))
        return attempt(name, *bindings, space=space)

    @property
    def transactions(self) -> list[list[str]]:
        """The pods of each GroupBinding request."""
        sent = [
            request for request in self.transport.requests if GROUP_BINDING.plural in request.path
        ]
        return [
            [row["name"] for row in request.body["bindings"]]
            for request in sent
            if isinstance(request.body, dict)
        ]

    @property
    def succeeded(self) -> dict[str, bool]:
        """Whether each attempt succeeded."""
        for outcome in self.results.values():
            assert (outcome.bound or tuple(outcome.failures)) == outcome.attempt.placed.bindings
        return {name: outcome.has_quorum for name, outcome in self.results.items()}


def attempt(name: str, *bindings: Binding, space: str = "default") -> BindAttempt:
    return BindAttempt(Entity(Ref("Pod", space, name), None, ()), Placed(None, bindings))


@asynccontextmanager
async def running_binder(latency: float = 1.0) -> AsyncIterator[BinderFixture]:
    without = ["scheduler", "nodes"]
    async with cluster(without=without, latency=lambda: latency) as c:
        await c.add_node(node("n1", cpu="100"))
        found = BinderFixture(c, LaggingTransport(c.plane))
        running = asyncio.create_task(found.binder.run())
        yield found
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@in_virtual_time
async def test_a_gang_is_bound_in_one_transaction() -> None:
    async with running_binder() as b:
        b.binder.submit(await b.attempt("a", 3))
        assert b.binder.is_busy
        await asyncio.sleep(2)
        assert (b.transactions, b.succeeded) == ([["a-0", "a-1", "a-2"]], {"a": True})
        assert not b.binder.is_busy
        assert sorted(await b.c.node_by_pod()) == ["a-0", "a-1", "a-2"]


@in_virtual_time
async def test_gangs_queued_during_a_transaction_share_the_next_one() -> None:
    async with running_binder() as b:
        attempts = [await b.attempt(name, 2) for name in "abcd"]
        b.binder.submit(attempts[0])
        await asyncio.sleep(0.1)
        for one in attempts[1:]:
            b.binder.submit(one)
        await asyncio.sleep(5)
        assert b.transactions == [
            ["a-0", "a-1"], ["b-0", "b-1", "c-0", "c-1", "d-0", "d-1"],
        ]  # fmt: skip
        assert b.succeeded == dict.fromkeys("abcd", True)


@in_virtual_time
async def test_a_failed_transaction_is_split_so_that_only_the_invalid_gang_fails() -> None:
    async with running_binder() as b:
        attempts = [await b.attempt(name, 2) for name in "abc"]
        await b.c.delete(POD, "b-1")
        for one in attempts:
            b.binder.submit(one)
        await asyncio.sleep(10)
        assert b.succeeded == {"a": True, "b": False, "c": True}
        assert {type(error) for error in b.results["b"].failures.values()} == {Conflict}
        assert sorted(await b.c.node_by_pod()) == ["a-0", "a-1", "c-0", "c-1"]
        assert b.transactions[1:] == [["a-0", "a-1"], ["b-0", "b-1"], ["c-0", "c-1"]]


@in_virtual_time
async def test_split_gangs_are_bound_in_their_original_order() -> None:
    async with running_binder() as b:
        await b.c.add_node(node("small", cpu="3"))
        attempts = [await b.attempt(name, 2, on="small") for name in "ab"]
        for one in attempts:
            b.binder.submit(one)
        await asyncio.sleep(10)
        assert b.succeeded == {"a": True, "b": False}


@in_virtual_time
async def test_every_namespace_has_its_own_transaction_in_order() -> None:
    async with running_binder() as b:
        await b.c.client.create(NAMESPACE, {"metadata": {"name": "x"}})
        spaces = {"a": "default", "b": "x", "c": "x", "d": "default"}
        attempts = [await b.attempt(name, 1, space=space) for name, space in spaces.items()]
        for one in attempts:
            b.binder.submit(one)
        await asyncio.sleep(10)
        assert b.transactions == [["a-0"], ["b-0", "c-0"], ["d-0"]]
        assert b.succeeded == dict.fromkeys("abcd", True)


@in_virtual_time
async def test_a_transaction_is_limited_in_pods_but_never_splits_a_gang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "BATCH", 4)
    async with running_binder() as b:
        attempts = [
            await b.attempt(name, size) for name, size in zip("abcd", (2, 2, 1, 7), strict=True)
        ]
        for one in attempts:
            b.binder.submit(one)
        await asyncio.sleep(10)
        assert [len(pods) for pods in b.transactions] == [4, 1, 7]
        assert b.succeeded == dict.fromkeys("abcd", True)


class BrokenTransport(LaggingTransport):
    """A transport that loses the answers of writes."""

    async def send(self, request: Request) -> Reply | StreamReply:
        await super().send(request)
        raise Unreachable("the server", "it closed the connection")


@in_virtual_time
async def test_a_lost_answer_is_a_failure_and_binds_nothing_twice() -> None:
    async with cluster(without=["scheduler", "nodes"]) as c:
        await c.add_node(node("n1", cpu="100"))
        b = BinderFixture(c, BrokenTransport(c.plane))
        running = asyncio.create_task(b.binder.run())
        b.binder.submit(await b.attempt("a", 2))
        b.binder.submit(await b.attempt("b", 2))
        await asyncio.sleep(5)
        assert b.succeeded == {"a": False, "b": False}
        assert len(await c.node_by_pod()) == 4
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@in_virtual_time
async def test_attempt_may_fail_with_the_claims_of_its_gang_as_soon_as_it_is_queued() -> None:
    class FailingClaims(PreBindQueue):
        """Lets the claims of the first attempt fail, just after another one was queued."""

        def is_needed(self, attempt: BindAttempt) -> bool:
            return attempt is first

        async def bind_claims(self, attempt: BindAttempt) -> BindAttempt:
            binder.submit(late)
            raise Conflict("provisioning failed")

    async with running_binder() as b:
        made = await b.c.client.create(POD_GROUP, pod_group("g", 3))
        gang = convert(made, PodGroup)
        entity = Entity(pod_group_ref(gang.metadata.key), gang, ())
        first, late = [BindAttempt(entity, (await b.attempt(name, 2)).placed) for name in "ab"]
        finished: list[BindResult] = []
        binder = GroupBinder(Client(b.transport), finished.append, pre_binds=FailingClaims())
        running = asyncio.create_task(binder.run())
        binder.submit(first)
        await asyncio.sleep(5)
        assert [outcome.has_quorum for outcome in finished] == [False, False]
        binder.submit(await b.attempt("c", 1))
        await asyncio.sleep(5)
        running.cancel()
        assert sorted(await b.c.node_by_pod()) == ["c-0"]


@in_virtual_time
async def test_attempts_that_depend_on_failed_members_fail_too() -> None:
    async with running_binder() as b:
        made = await b.c.client.create(POD_GROUP, pod_group("g", 3))
        gang = convert(made, PodGroup)
        first, late, other = [await b.attempt(name, 2) for name in "abc"]
        lost = [binding._replace(node="nowhere") for binding in first.placed.bindings]
        finished: list[BindResult] = []
        binder = GroupBinder(Client(b.transport), finished.append)
        for placed in (Placed(gang.metadata.key, tuple(lost)), late.placed):
            binder.submit(BindAttempt(Entity(pod_group_ref(gang.metadata.key), gang, ()), placed))
        binder.submit(other)
        running = asyncio.create_task(binder.run())
        await asyncio.sleep(20)
        running.cancel()
        assert [outcome.has_quorum for outcome in finished] == [False, False, True]
        assert sorted(await b.c.node_by_pod()) == ["c-0", "c-1"]
