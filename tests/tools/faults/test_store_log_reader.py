"""The decoded store log: every change once, in order, for all kinds."""

from __future__ import annotations

from functools import partial

from phalanx.api.kinds import NODE, POD, POD_GROUP
from phalanx.api.meta import Key
from phalanx.sim import virtual_time as loop
from tests.builders import gang, in_virtual_time, node, pod
from tests.controllers.cluster import cluster
from tools.faults.model import StoreLogReader


@in_virtual_time
async def test_reader_shows_the_objects_of_the_api_and_the_ledger() -> None:
    async with cluster(without=("scheduler", "nodes")) as cluster_:
        store_log = StoreLogReader(cluster_.store)
        await cluster_.add_node(node("n"))
        await cluster_.create(*gang("a", 2), pod("p", cpu="2"))
        await cluster_.bind("p", "n")
        assert {key.name: pod_.spec.node_name for key, pod_ in store_log.pods.items()} == {
            "a-0": "", "a-1": "", "p": "n",
        }  # fmt: skip
        assert list(store_log.groups) == [Key("default", "a")]
        assert store_log.ledger == {"n": {"cpu": 2000, "pods": 1}}
        await cluster_.client.delete(POD, Key("default", "p"), grace=0)
        assert (Key("default", "p") in store_log.pods, store_log.ledger) == (False, {})


@in_virtual_time
async def test_reader_keeps_the_order_of_changes_across_kinds() -> None:
    async with cluster(without=("scheduler", "nodes", "controllers")) as cluster_:
        store_log = StoreLogReader(cluster_.store)
        revisions: list[int] = []
        store_log.on_batch.append(revisions.append)
        await cluster_.add_node(node("n"))
        await cluster_.create(*gang("a", 1))
        await cluster_.delete(NODE, "n")
        changes = sorted(
            (event.revision, event.type, kind.name)
            for kind, log in store_log.log.items()
            for event in log
        )
        assert [(event_type, kind) for _, event_type, kind in changes] == [
            ("MODIFIED", NODE.name), ("MODIFIED", NODE.name), ("MODIFIED", POD_GROUP.name),
            ("MODIFIED", POD.name), ("DELETED", NODE.name),
        ]  # fmt: skip
        assert revisions == sorted(revisions)


def test_different_histories_have_different_digests() -> None:
    async def digest(cpu: str) -> str:
        async with cluster(without=("scheduler", "nodes")) as cluster_:
            store_log = StoreLogReader(cluster_.store)
            await cluster_.create(pod("p", cpu=cpu))
            return store_log.digest

    digests = [loop.run_virtual(partial(digest, cpu)) for cpu in "112"]
    assert digests[0] == digests[1] != digests[2]
