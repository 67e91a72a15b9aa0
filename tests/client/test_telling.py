from __future__ import annotations

import asyncio

from phalanx.api.errors import Forbidden
from phalanx.api.wire import Reply, Request, Stream
from phalanx.client.telling import Telling

_RIGHT = 'User "me" cannot create resource "pods" in API group ""'


class Guarded:
    """A server that forbids everything, by the name of what was asked for."""

    async def send(self, request: Request) -> Reply | Stream:
        name = request.path.rpartition("/")[2]
        error = Forbidden(f'pods "{name}" is forbidden: {_RIGHT}')
        return Reply(error.code, b'{"kind": "Status", "reason": "Forbidden", "message": "%s"}'
                     % str(error).replace('"', '\\"').encode())  # fmt: skip

    async def close(self) -> None:
        """Nothing is held."""


def test_a_right_that_is_missing_is_told_once_whatever_it_was_for() -> None:
    said: list[str] = []

    async def scenario() -> None:
        way = Telling(Guarded(), said.append)
        for method, name in (("GET", "x"), ("POST", "a"), ("POST", "b"), ("DELETE", "a")):
            answer = await way.send(Request(method, f"/api/v1/pods/{name}", "", {}, b""))
            assert answer.code == 403
        await way.close()

    asyncio.run(scenario())
    assert said == [f'pods "a" is forbidden: {_RIGHT}']
