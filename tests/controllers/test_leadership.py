"""Terms beside a server that changes; finding it and being elected are told of in `test_office`."""

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


def hidden(request: Request) -> ApiError | None:
    """A server that does not show a version of a group."""
    return NotFound("404 page not found") if request.path.startswith(_GROUP_PATH) else None


@in_virtual_time
async def test_kinds_that_come_later_begin_another_term() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        road = BlockableTransport(c.plane.server)
        road.refuse = hidden
        async with running_controllers(c, transport=road) as clerks:
            without = ("podgroup-protection", "composite-groups", "replica-groups")
            assert clerks.ready_names == [[name for name in ALL if name not in without]]
            await asyncio.sleep(300)
            assert len(clerks.ready_names) == 1
            road.refuse = lambda request: None
            await asyncio.sleep(70)
            assert clerks.ready_names[1:] == [ALL]
            assert clerks.messages[-1] == "the API server offers other kinds than before"


@in_virtual_time
async def test_a_question_without_an_answer_ends_no_term() -> None:
    async with cluster(without=SERVER_ONLY) as c:
        road = BlockableTransport(c.plane.server)
        async with running_controllers(c, transport=road) as clerks:
            road.refuse = lambda request: ApiError("later") if request.path == "/api/v1" else None
            await asyncio.sleep(300)
            assert (len(clerks.ready_names), clerks.messages) == (1, [])
