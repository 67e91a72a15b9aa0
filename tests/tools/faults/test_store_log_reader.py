"""The store's log, decoded: every change once, in order, whatever its kind."""

from __future__ import annotations

from functools import partial

from phalanx.api.kinds import NODE, POD, POD_GROUP
from phalanx.api.meta import Key
from phalanx.sim import virtual_time as loop
from tests.builders import gang, in_virtual_time, node, pod
from tests.controllers.cluster import cluster
from tools.faults.model import StoreLogReader


@in_virtual_time
async def test_it_shows_what_the_api_shows_and_what_the_ledger_counts() -> None:
    async with cluster(without=("scheduler", "nodes")) as c:
        tail = StoreLogReader(c.store)
        await c.add_node(node("n"))
        await c.create(*gang("a", 2), pod("p", cpu="2"))
        await c.bind("p", "n")
        assert {key.name: one.spec.node_name for key, one in tail.pods.items()} == {
            "a-0": "", "a-1": "", "p": "n",
        }  # fmt: skip
        assert list(tail.groups) == [Key("default", "a")]
        assert tail.ledger == {"n": {"cpu": 2000, "pods": 1}}
        await c.client.delete(POD, Key("default", "p"), grace=0)
        assert (Key("default", "p") in tail.pods, tail.ledger) == (False, {})


@in_virtual_time
async def test_it_keeps_the_order_in_which_things_of_all_kinds_happened() -> None:
    async with cluster(without=("scheduler", "nodes", "controllers")) as c:
        tail = StoreLogReader(c.store)
        revisions: list[int] = []
        tail.on_batch.append(revisions.append)
        await c.add_node(node("n"))
        await c.create(*gang("a", 1))
        await c.delete(NODE, "n")
        told = sorted(
            (event.revision, event.type, kind.name)
            for kind, log in tail.log.items()
            for event in log
        )
        assert [(what, kind) for _, what, kind in told] == [
            ("MODIFIED", NODE.name), ("MODIFIED", NODE.name), ("MODIFIED", POD_GROUP.name),
            ("MODIFIED", POD.name), ("DELETED", NODE.name),
        ]  # fmt: skip
        assert revisions == sorted(revisions)


def test_histories_that_differ_anywhere_have_different_digests() -> None:
    async def digest(cpu: str) -> str:
        async with cluster(without=("scheduler", "nodes")) as c:
            tail = StoreLogReader(c.store)
            await c.create(pod("p", cpu=cpu))
            return tail.digest

    digests = [loop.run_virtual(partial(digest, cpu)) for cpu in "112"]
    assert digests[0] == digests[1] != digests[2]
