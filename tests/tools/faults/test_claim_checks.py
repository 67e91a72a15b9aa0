"""The invariants of claims find what they are for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from msgspec.structs import replace

from phalanx.api.kinds import (
    NODE,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    RESOURCE_CLAIM,
    Kind,
)
from phalanx.api.meta import Condition, Key
from phalanx.api.scheduling import POD_GROUP_INITIALLY_SCHEDULED, PodGroup, PodGroupStatus
from phalanx.api.storage import BIND_COMPLETED, SELECTED_NODE
from phalanx.api.wire import Object, Request, UserInfo
from phalanx.client.client import Client
from phalanx.client.transports import InProcessTransport
from phalanx.clock import LoopClock
from phalanx.controllers.scheduling.group_reports import BINDING_INCOMPLETE
from phalanx.randomness import SeededRandom
from phalanx.server.app import Server
from phalanx.server.security.authorization import MASTERS
from phalanx.sim import virtual_time as loop
from phalanx.sim.simulation import EPOCH
from phalanx.store.memory import MemoryStore
from tests.builders import node, pod
from tests.scheduler.builders import gang
from tests.scheduler.builders import pod as group_pod
from tools.faults.claim_checks import ClaimAuditor, check_request
from tools.faults.claim_plan import DEVICE_DRIVER, LOCAL, device_requests, volume, volume_claim
from tools.faults.fault_run import check_whole_gangs
from tools.faults.model import StoreLogReader

CLAIM = Key("default", "c")
DEVICE = {"request": "gpu", "driver": DEVICE_DRIVER, "pool": "n", "device": "gpu-0"}


def audit(
    act: Callable[[Client], Awaitable[Any]], by_hand: Collection[str] = ()
) -> tuple[list[str], list[str]]:
    """Return the violations after users acted, and those at rest."""

    async def main() -> tuple[list[str], list[str]]:
        now = asyncio.get_running_loop()
        store = MemoryStore(lambda: 0.0)
        log = StoreLogReader(store)
        auditor = ClaimAuditor(log, now.time, horizon=5.0, manually_bound=by_hand)
        server = Server(store, LoopClock(now, EPOCH), SeededRandom(1))
        await server.start()
        client = Client(InProcessTransport(server.handle, UserInfo("user", (MASTERS,))))
        await act(client)
        return auditor.audit(), list(auditor.check_at_rest())

    return loop.run_virtual(main)


async def create(client: Client, kind: Kind, made: Object) -> None:
    await client.create(kind, {k: v for k, v in made.items() if k not in ("apiVersion", "kind")})


async def bind(client: Client, name: str) -> None:
    body = {"metadata": {"name": name}, "target": {"kind": "Node", "name": "n"}}
    await client.post(POD.url_path("default", name, "binding"), body)


def test_pod_that_was_bound_by_hand_may_lack_its_volume() -> None:
    uids: list[str] = []

    async def act(client: Client) -> None:
        await create(client, NODE, node("n"))
        await create(client, PERSISTENT_VOLUME_CLAIM, volume_claim(CLAIM, LOCAL))
        mounted = [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]
        await create(client, POD, pod("p", spec={"volumes": mounted}))
        uids.append((await client.get(POD, Key("default", "p")))["metadata"]["uid"])
        await asyncio.sleep(10)
        await bind(client, "p")

    assert audit(act, uids)[0] == []


def test_pod_without_its_volume_or_devices_is_found() -> None:
    async def act(client: Client) -> None:
        await create(client, NODE, node("n"))
        await create(client, PERSISTENT_VOLUME_CLAIM, volume_claim(CLAIM, LOCAL))
        meta = {"name": "c", "namespace": "default"}
        await create(client, RESOURCE_CLAIM, {"metadata": meta, "spec": device_requests()})
        spec = {
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}],
            "resourceClaims": [{"name": "g", "resourceClaimName": "c"}],
        }
        await create(client, POD, pod("p", spec=spec))
        await asyncio.sleep(10)
        await bind(client, "p")

    found, _ = audit(act)
    assert found == [
        "pod default/p got a node, but claim default/c has no volume",
        "pod default/p got a node, but claim default/c has no devices",
    ]


def test_volume_of_two_claims_is_found() -> None:
    async def act(client: Client) -> None:
        await create(client, PERSISTENT_VOLUME, volume("v", 1, "n"))
        for name in ("c", "d"):
            claim = volume_claim(Key("default", name), LOCAL)
            claim["spec"]["volumeName"] = "v"
            claim["metadata"]["annotations"] = {BIND_COMPLETED: "yes"}
            await create(client, PERSISTENT_VOLUME_CLAIM, claim)

    assert audit(act)[0] == ["volume v is bound to claims default/c and default/d"]


def test_selected_node_and_allocation_that_are_left_behind_are_found() -> None:
    async def act(client: Client) -> None:
        claim = volume_claim(CLAIM, LOCAL)
        claim["metadata"]["annotations"] = {SELECTED_NODE: "n"}
        await create(client, PERSISTENT_VOLUME_CLAIM, claim)
        meta = {"name": "c", "namespace": "default"}
        await create(client, RESOURCE_CLAIM, {"metadata": meta, "spec": device_requests()})
        status = {"allocation": {"devices": {"results": [DEVICE]}}}
        await client.patch(RESOURCE_CLAIM, CLAIM, {"status": status}, subresource="status")

    assert audit(act)[1] == [
        "claim default/c is allocated, but reserved for no living pod or group",
        "claim default/c keeps its selected node n",
    ]


def test_scheduler_may_not_delete_claims_for_volumes() -> None:
    path = PERSISTENT_VOLUME_CLAIM.url_path("default", "c")
    assert check_request(Request("DELETE", path)) == f"a scheduler sent DELETE {path}"
    assert check_request(Request("PATCH", path)) == ""


HALF_BOUND = "gang default/g was never placed, yet 1 of the 2 members that it needs are bound"


def test_partly_bound_gang_is_accepted_only_if_it_lost_members_and_says_so() -> None:
    def incomplete_gang(reason: str) -> PodGroup:
        condition = Condition(POD_GROUP_INITIALLY_SCHEDULED, "False", reason)
        return replace(gang("g", 2), status=PodGroupStatus(conditions=(condition,)))

    bound, waiting = group_pod("a", "g", on="n"), group_pod("b", "g")
    leaving = group_pod("b", "g", deleting=True)
    says_so, silent = incomplete_gang(BINDING_INCOMPLETE), incomplete_gang("SchedulerError")
    assert check_whole_gangs([bound], [says_so]) == []
    assert check_whole_gangs([bound, leaving], [says_so]) == []
    assert check_whole_gangs([bound], [silent]) == [HALF_BOUND]
    assert check_whole_gangs([bound, waiting], [says_so]) == [HALF_BOUND]
    evicted = group_pod("a", "g", on="n", deleting=True)
    assert check_whole_gangs([evicted, waiting], [silent]) == []
