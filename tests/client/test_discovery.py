from __future__ import annotations

import asyncio

import pytest

from phalanx.api.errors import ServerError
from phalanx.api.kinds import GROUP_BINDING, KINDS, POD, POD_GROUP
from phalanx.api.wire import Reply, Request, Stream
from phalanx.chance import SeededChance
from phalanx.client.client import Client
from phalanx.client.discovery import served, serves
from phalanx.client.transports import InProcess
from phalanx.clock import LoopClock
from phalanx.server.access import ADMIN
from phalanx.server.app import Server
from phalanx.store.memory import MemoryStore
from tests.builders import in_virtual_time


@in_virtual_time
async def test_what_a_server_knows_is_found_and_what_it_does_not_know_is_not() -> None:
    clock = LoopClock(asyncio.get_running_loop(), 0)
    kinds = [kind for kind in KINDS if kind is not GROUP_BINDING]
    server = Server(MemoryStore(), clock, SeededChance(1), kinds)
    client = Client(InProcess(server.handle, ADMIN))
    assert [await serves(client, kind) for kind in (POD, POD_GROUP, GROUP_BINDING)] == [
        True, True, False,
    ]  # fmt: skip
    assert await served(client, [GROUP_BINDING, POD_GROUP, POD]) == [POD_GROUP, POD]


class Says:
    """A server that says one thing to everybody."""

    def __init__(self, code: int, body: bytes) -> None:
        self._reply = Reply(code, body)

    async def send(self, request: Request) -> Reply | Stream:
        return self._reply

    async def close(self) -> None:
        """Nothing is held."""


@in_virtual_time
async def test_a_group_without_the_kind_does_not_have_it_and_nonsense_is_an_error() -> None:
    other = Client(Says(200, b'{"resources": [{"name": "others"}]}'))
    assert not await serves(other, GROUP_BINDING)
    assert not await serves(Client(Says(404, b"404 page not found")), GROUP_BINDING)
    with pytest.raises(ServerError, match="cannot be read"):
        await serves(Client(Says(200, b"<html>")), GROUP_BINDING)
