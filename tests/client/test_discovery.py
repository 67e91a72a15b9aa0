from __future__ import annotations

import asyncio

import pytest

from phalanx.api.errors import ServerError
from phalanx.api.kinds import GROUP_BINDING, KINDS, POD, POD_GROUP
from phalanx.api.wire import Reply, Request, StreamReply
from phalanx.client.client import Client, is_served, served_kinds
from phalanx.client.transports import InProcessTransport
from phalanx.clock import LoopClock
from phalanx.randomness import SeededRandom
from phalanx.server.app import Server
from phalanx.server.security.authorization import ADMIN
from phalanx.store.memory import MemoryStore
from tests.builders import in_virtual_time


@in_virtual_time
async def test_discovery_reports_which_kinds_a_server_serves() -> None:
    clock = LoopClock(asyncio.get_running_loop(), 0)
    kinds = [kind for kind in KINDS if kind is not GROUP_BINDING]
    server = Server(MemoryStore(), clock, SeededRandom(1), kinds)
    client = Client(InProcessTransport(server.handle, ADMIN))
    assert [await is_served(client, kind) for kind in (POD, POD_GROUP, GROUP_BINDING)] == [
        True, True, False,
    ]  # fmt: skip
    assert await served_kinds(client, [GROUP_BINDING, POD_GROUP, POD]) == [POD_GROUP, POD]


class CannedTransport:
    """Answers every request with the same reply."""

    def __init__(self, code: int, body: bytes) -> None:
        self._reply = Reply(code, body)

    async def send(self, request: Request) -> Reply | StreamReply:
        return self._reply

    async def close(self) -> None:
        """Do nothing: there is no connection."""


@in_virtual_time
async def test_missing_kind_is_not_served_and_an_unreadable_reply_is_an_error() -> None:
    other = Client(CannedTransport(200, b'{"resources": [{"name": "others"}]}'))
    assert not await is_served(other, GROUP_BINDING)
    assert not await is_served(Client(CannedTransport(404, b"404 page not found")), GROUP_BINDING)
    with pytest.raises(ServerError, match="cannot be read"):
        await is_served(Client(CannedTransport(200, b"<html>")), GROUP_BINDING)
