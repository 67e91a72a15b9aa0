"""The recorded replies of Kubernetes that must keep passing, in process and over HTTPS."""

from __future__ import annotations

import asyncio
import http.client
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing

import pytest

from phalanx.api.wire import Reply, Request
from phalanx.clock import WallClock
from phalanx.randomness import SystemRandom
from phalanx.server.app import Server
from phalanx.server.security.authorization import ADMIN
from phalanx.store.memory import MemoryStore
from tests.recorded_cases import Case, Send, passing_cases, run
from tools.control_plane import ControlPlane

#: Makes the names of one case differ from those of every other on the same server.
WORDS = (f"{number:08}" for number in itertools.count())

Answer = tuple[int, Sequence[tuple[str, str]], bytes]


async def ask(server: Server, request: Request) -> Answer:
    """Send one request in process; a stream is read to its end, and a HEAD reply has no body."""
    answer = await server.handle(request)
    if isinstance(answer, Reply):
        return answer.code, answer.headers, b"" if request.method == "HEAD" else answer.body
    async with aclosing(answer.chunks) as chunks:
        return answer.code, answer.headers, b"".join([chunk async for chunk in chunks])


@pytest.fixture(scope="module")
def in_process() -> Iterator[Send]:
    server = Server(MemoryStore(), WallClock(), SystemRandom())
    with asyncio.Runner() as runner:
        runner.run(server.start())

        def send(
            method: str, path: str, query: str, headers: Mapping[str, str], body: bytes
        ) -> Answer:
            return runner.run(ask(server, Request(method, path, query, headers, body, ADMIN)))

        yield send


@pytest.fixture(scope="module")
def over_https() -> Iterator[Send]:
    options = ("--data", ":memory:", "--nodes", "0", "--without", "scheduler,controllers,nodes")
    with ControlPlane(*options) as plane:
        access = plane.access
        wire = http.client.HTTPSConnection(access.host, access.port, context=access.tls())

        def send(
            method: str, path: str, query: str, headers: Mapping[str, str], body: bytes
        ) -> Answer:
            sent = {"authorization": f"Bearer {access.token}", **headers}
            named = {name: value for name, value in sent.items() if value}
            wire.request(method, f"{path}?{query}" if query else path, body or None, named)
            answer = wire.getresponse()
            return answer.status, answer.getheaders(), answer.read()

        yield send
        wire.close()


CASES = passing_cases()


@pytest.mark.parametrize("case", [case for case in CASES if not case.names_a_token], ids=str)
def test_the_in_process_reply_is_as_recorded(case: Case, in_process: Send) -> None:
    assert run(case, in_process, next(WORDS)) == []


@pytest.mark.parametrize("case", [case for case in CASES if not case.is_generated], ids=str)
def test_the_https_reply_is_as_recorded(case: Case, over_https: Send) -> None:
    assert run(case, over_https, next(WORDS)) == []
