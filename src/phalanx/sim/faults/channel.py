"""The way between one scheduler and the server, on which everything can go wrong that does.

A Transport. Requests are lost, or carried out without an answer, or refused, or arrive when nobody
counts on them any more; watches lag, break off and stutter. What reaches the server is carried out
even if the sender dies meanwhile, as it is on any network.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from enum import Enum

from phalanx.api.errors import ApiError, ServerError, TooManyRequests
from phalanx.api.kinds import EVENT, GROUP_BINDING, GROUP_EVICTION
from phalanx.api.wire import Reply, Request, Stream
from phalanx.chance import Chance
from phalanx.client.requests import is_watch
from phalanx.client.transports import Transport, Unreachable
from phalanx.server.app import refusal

#: Seconds after which a request that is on its way too long still arrives.
LATE = (0.2, 4.0)
_SERVER = "the server"


class Trouble(Enum):
    """What can happen to a request."""

    LOST = "it never arrives"
    UNANSWERED = "it is carried out, but the answer is lost"
    LATE = "the sender hears nothing; it is carried out seconds later"
    SLOW = "it is carried out at once, the answer takes seconds"
    FAILED = "the server says that it has failed"
    BUSY = "the server asks to come back later"


class Channel:
    """One scheduler's way to the server. `lag` is how many seconds late its watches are."""

    def __init__(self, inner: Transport, chance: Chance) -> None:
        self.lag = 0.0
        self.stutters = False
        #: Whether nobody takes the events that a scheduler records.
        self.mutes_events = False
        self._inner, self._chance = inner, chance
        self._binds: deque[Trouble] = deque()
        self._evictions: deque[Trouble] = deque()
        self._weather: tuple[float, float, tuple[Trouble, ...]] = (0.0, 0.0, ())
        self._lines: list[_Line] = []
        self._carried: set[asyncio.Task[Reply | Stream]] = set()

    def spoil_binds(self, troubles: tuple[Trouble, ...]) -> None:
        """Have something happen to the next binds, one after the other."""
        self._binds.extend(troubles)

    def spoil_evictions(self, troubles: tuple[Trouble, ...]) -> None:
        """The same, to the next evictions."""
        self._evictions.extend(troubles)

    def spoil(self, until: float, share: float, troubles: tuple[Trouble, ...]) -> None:
        """Have a share of all requests go wrong for a while."""
        self._weather = until, share, troubles

    def cut(self) -> None:
        """Break all watches off; what was on its way is lost."""
        for line in self._lines:
            line.cut()

    def heal(self) -> None:
        """Nothing goes wrong any more."""
        self.lag, self.stutters = 0.0, False
        self._binds.clear()
        self._evictions.clear()
        self._weather = (0.0, 0.0, ())

    async def send(self, request: Request) -> Reply | Stream:
        """Carry a request as well as it goes."""
        if self.mutes_events and request.path.rpartition("/")[2] == EVENT.plural:
            return refusal(TooManyRequests("nobody takes events here"))
        trouble = self._trouble(request)
        if trouble is not None and not is_watch(request):
            return await _TROUBLES[trouble](self, request)
        if trouble is not None:
            raise Unreachable(_SERVER, trouble.value)
        if request.method == "GET":
            answer = await self._inner.send(request)
            return answer if isinstance(answer, Reply) else self._watched(answer)
        return await self._carry_out(request)

    async def close(self) -> None:
        """Wait for what is still on its way."""
        while self._carried:
            await asyncio.wait(self._carried)

    def _trouble(self, request: Request) -> Trouble | None:
        if self._binds and request.path.endswith(GROUP_BINDING.plural):
            return self._binds.popleft()
        if self._evictions and request.path.endswith(GROUP_EVICTION.plural):
            return self._evictions.popleft()
        until, share, troubles = self._weather
        if asyncio.get_running_loop().time() < until and self._chance.between(0, 1) < share:
            return troubles[int(self._chance.between(0, len(troubles)))]
        return None

    async def _carry_out(self, request: Request, after: float = 0.0) -> Reply | Stream:
        """Have it done, whatever becomes of whoever asked."""
        return await asyncio.shield(self._on_its_way(request, after))

    def _on_its_way(self, request: Request, after: float) -> asyncio.Task[Reply | Stream]:
        task = asyncio.create_task(self._arrive(request, after))
        self._carried.add(task)
        task.add_done_callback(self._carried.discard)
        return task

    async def _arrive(self, request: Request, after: float) -> Reply | Stream:
        if after:
            await asyncio.sleep(after)
        return await self._inner.send(request)

    async def _lose(self, request: Request) -> Reply:
        raise Unreachable(_SERVER, Trouble.LOST.value)

    async def _leave_unanswered(self, request: Request) -> Reply:
        await self._carry_out(request)
        raise Unreachable(_SERVER, Trouble.UNANSWERED.value)

    async def _be_late(self, request: Request) -> Reply:
        self._on_its_way(request, self._chance.between(*LATE))
        raise Unreachable(_SERVER, Trouble.LATE.value)

    async def _be_slow(self, request: Request) -> Reply | Stream:
        answer = await self._carry_out(request)
        await asyncio.sleep(self._chance.between(*LATE))
        return answer

    async def _fail(self, request: Request) -> Reply:
        return refusal(ServerError(Trouble.FAILED.value))

    async def _be_busy(self, request: Request) -> Reply:
        asked = int(self._chance.between(0, 3))
        error: ApiError = TooManyRequests(Trouble.BUSY.value, retry_after=asked or None)
        return refusal(error)

    def _watched(self, answer: Stream) -> Stream:
        line = _Line(self)
        return Stream(answer.code, line.chunks(answer.chunks, self._lines))


_TROUBLES: Mapping[Trouble, Callable[[Channel, Request], Awaitable[Reply | Stream]]] = {
    Trouble.LOST: Channel._lose,
    Trouble.UNANSWERED: Channel._leave_unanswered,
    Trouble.LATE: Channel._be_late,
    Trouble.SLOW: Channel._be_slow,
    Trouble.FAILED: Channel._fail,
    Trouble.BUSY: Channel._be_busy,
}


class _Line:
    """One watch on its way."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    def cut(self) -> None:
        """Lose what is on its way, and end."""
        while not self._waiting.empty():
            self._waiting.get_nowait()
        self._waiting.put_nowait((0.0, b""))

    async def chunks(
        self, source: AsyncGenerator[bytes, None], lines: list[_Line]
    ) -> AsyncGenerator[bytes, None]:
        """What comes out at the other end: in order, perhaps late, perhaps twice."""
        loop = asyncio.get_running_loop()
        carrying = asyncio.create_task(self._carry(source))
        lines.append(self)
        try:
            while True:
                due, chunk = await self._waiting.get()
                if due > loop.time():
                    await asyncio.sleep(due - loop.time())
                if not chunk:
                    return
                yield chunk
                if self._channel.stutters:
                    yield chunk
        finally:
            lines.remove(self)
            carrying.cancel()

    async def _carry(self, source: AsyncGenerator[bytes, None]) -> None:
        loop = asyncio.get_running_loop()
        async with aclosing(source):
            async for chunk in source:
                self._waiting.put_nowait((loop.time() + self._channel.lag, chunk))
        self._waiting.put_nowait((0.0, b""))
