"""Terms beside a server that changes; `test_scheduler_runner` tests waiting and election."""

from __future__ import annotations

import asyncio

from phalanx.api.errors import ApiError, NotFound
from phalanx.api.kinds import POD_GROUP
from phalanx.api.wire import Request
from tests.builders import in_virtual_time
from tests.controllers.cluster import cluster
from tests.controllers.test_controller_manager import ALL, SERVER_ONLY, running_controllers
from tests.controllers.test_scheduler_runner import BlockableTransport

_GROUP_PATH = f"/apis/{POD_GROUP.api_version}"


def hide_groups(request: Request) -> ApiError | None:
    """Do not serve one API group version."""
    return NotFound("404 page not found") if request.path.startswith(_GROUP_PATH) else None


@in_virtual_time
async def test_new_kinds_start_another_term() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        transport = BlockableTransport(c.plane.server)
        transport.refuse = hide_groups
        async with running_controllers(c, transport=transport) as controllers:
            without = ("podgroup-protection", "composite-groups", "replica-groups")
            assert controllers.ready_names == [[name for name in ALL if name not in without]]
            await asyncio.sleep(300)
            assert len(controllers.ready_names) == 1
            transport.refuse = lambda request: None
            await asyncio.sleep(70)
            assert controllers.ready_names[1:] == [ALL]
            message = "the API server serves other kinds than before; starting over"
            assert message in controllers.messages


@in_virtual_time
async def test_a_failed_discovery_does_not_end_the_term() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        transport = BlockableTransport(c.plane.server)
        async with running_controllers(c, transport=transport) as controllers:
            transport.refuse = lambda request: (
                ApiError("later") if request.path == "/api/v1" else None
            )
            await asyncio.sleep(300)
            assert len(controllers.ready_names) == 1
            assert controllers.messages == ["controllers started"]
            (failed, *_) = [x for x in controllers.log.lines if x.message == "discovery failed"]
            assert (failed.level, failed.fields) == ("DEBUG", {"reason": "later"})
