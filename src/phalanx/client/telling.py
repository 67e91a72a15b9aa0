"""A way to a server that says, once, what the server forbids: whoever runs a part would not know.

Around another transport. Loops try again what was refused, for ever; a missing right is for a
person to give. What they may not read, informers tell themselves.
"""

from __future__ import annotations

from collections.abc import Callable

from phalanx.api.errors import Forbidden
from phalanx.api.wire import Reply, Request, Stream
from phalanx.client.answers import refusal
from phalanx.client.transports import Transport

#: Different refusals that are told; more would be noise.
_MOST = 100


class Telling:
    """Carries like the transport inside it, and says what was forbidden."""

    def __init__(self, inner: Transport, say: Callable[[str], None]) -> None:
        self._inner, self._say = inner, say
        self._said: set[str] = set()

    async def send(self, request: Request) -> Reply | Stream:
        """Carry one request there and its answer back."""
        answer = await self._inner.send(request)
        if isinstance(answer, Reply) and answer.code == Forbidden.code and request.method != "GET":
            self._tell(str(refusal(answer)))
        return answer

    async def close(self) -> None:
        """Let go of connections."""
        await self._inner.close()

    def _tell(self, text: str) -> None:
        # The same right is missing for objects of all names.
        right = text.rpartition("is forbidden: ")[2]
        if right not in self._said and len(self._said) < _MOST:
            self._said.add(right)
            self._say(text)
