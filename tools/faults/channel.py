"""A faulty transport between one scheduler and the server.

Requests are lost, executed without a reply, refused, or delivered late; watches lag, break and
repeat events. A request that reached the server is executed even if its sender is killed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from enum import Enum

from phalanx.api.errors import ApiError, ServerError, TooManyRequests
from phalanx.api.kinds import EVENT, GROUP_BINDING, GROUP_EVICTION
from phalanx.api.wire import Reply, Request, StreamReply
from phalanx.client.protocol import is_watch
from phalanx.client.transports import Transport, Unreachable
from phalanx.randomness import Random
from phalanx.server.app import error_reply

#: Minimum and maximum delay of a late request in seconds.
DELAY = (0.2, 4.0)
_SERVER_NAME = "the server"


class RequestFault(Enum):
    """A fault of a request."""

    LOST = "it never arrives"
    UNANSWERED = "it is carried out, but the answer is lost"
    LATE = "the sender hears nothing; it is carried out seconds later"
    SLOW = "it is carried out at once, the answer takes seconds"
    FAILED = "the server says that it has failed"
    BUSY = "the server asks to come back later"


class FaultyChannel:
    """The transport of one scheduler; `lag` is the delay of its watches in seconds."""

    def __init__(self, inner: Transport, random: Random) -> None:
        self.lag = 0.0
        self.duplicates_events = False
        #: Whether the server rejects the scheduler's events.
        self.rejects_events = False
        self._inner, self._random = inner, random
        self._bind_faults: deque[RequestFault] = deque()
        self._eviction_faults: deque[RequestFault] = deque()
        self._random_faults: tuple[float, float, tuple[RequestFault, ...]] = (0.0, 0.0, ())
        self._watches: list[_FaultyWatch] = []
        self._in_flight: set[asyncio.Task[Reply | StreamReply]] = set()

    def fail_binds(self, faults: tuple[RequestFault, ...]) -> None:
        """Inject faults into the next binds, one each."""
        self._bind_faults.extend(faults)

    def fail_evictions(self, faults: tuple[RequestFault, ...]) -> None:
        """Inject faults into the next evictions, one each."""
        self._eviction_faults.extend(faults)

    def fail_requests(self, until: float, share: float, faults: tuple[RequestFault, ...]) -> None:
        """Let a share of all requests fail for a while."""
        self._random_faults = until, share, faults

    def break_watches(self) -> None:
        """Break all watches; undelivered events are lost."""
        for line in self._watches:
            line.break_off()

    def heal(self) -> None:
        """End all faults."""
        self.lag, self.duplicates_events = 0.0, False
        self._bind_faults.clear()
        self._eviction_faults.clear()
        self._random_faults = (0.0, 0.0, ())

    async def send(self, request: Request) -> Reply | StreamReply:
        """Send a request, subject to faults."""
        if self.rejects_events and request.path.rpartition("/")[2] == EVENT.plural:
            return error_reply(TooManyRequests("events are rejected"))
        fault = self._next_fault(request)
        if fault is not None and not is_watch(request):
            return await _FAULT_HANDLERS[fault](self, request)
        if fault is not None:
            raise Unreachable(_SERVER_NAME, fault.value)
        if request.method == "GET":
            answer = await self._inner.send(request)
            if isinstance(answer, Reply):
                return answer
            chunks = _FaultyWatch(self).chunks(answer.chunks, self._watches)
            return StreamReply(answer.code, chunks)
        return await self._execute(request)

    async def close(self) -> None:
        """Wait for requests in flight."""
        while self._in_flight:
            await asyncio.wait(self._in_flight)

    def _next_fault(self, request: Request) -> RequestFault | None:
        if self._bind_faults and request.path.endswith((GROUP_BINDING.plural, "/binding")):
            return self._bind_faults.popleft()
        if self._eviction_faults and request.path.endswith(GROUP_EVICTION.plural):
            return self._eviction_faults.popleft()
        until, share, faults = self._random_faults
        if asyncio.get_running_loop().time() < until and self._random.between(0, 1) < share:
            return faults[int(self._random.between(0, len(faults)))]
        return None

    async def _execute(self, request: Request, after: float = 0.0) -> Reply | StreamReply:
        """Execute a request even if its sender is cancelled."""
        return await asyncio.shield(self._start_request(request, after))

    def _start_request(self, request: Request, after: float) -> asyncio.Task[Reply | StreamReply]:
        async def deliver() -> Reply | StreamReply:
            if after:
                await asyncio.sleep(after)
            return await self._inner.send(request)

        task = asyncio.create_task(deliver())
        self._in_flight.add(task)
        task.add_done_callback(self._in_flight.discard)
        return task

    async def _drop_request(self, request: Request) -> Reply:
        raise Unreachable(_SERVER_NAME, RequestFault.LOST.value)

    async def _drop_reply(self, request: Request) -> Reply:
        await self._execute(request)
        raise Unreachable(_SERVER_NAME, RequestFault.UNANSWERED.value)

    async def _delay_request(self, request: Request) -> Reply:
        self._start_request(request, self._random.between(*DELAY))
        raise Unreachable(_SERVER_NAME, RequestFault.LATE.value)

    async def _delay_reply(self, request: Request) -> Reply | StreamReply:
        answer = await self._execute(request)
        await asyncio.sleep(self._random.between(*DELAY))
        return answer

    async def _fail_request(self, request: Request) -> Reply:
        return error_reply(ServerError(RequestFault.FAILED.value))

    async def _reject_busy(self, request: Request) -> Reply:
        asked = int(self._random.between(0, 3))
        error: ApiError = TooManyRequests(RequestFault.BUSY.value, retry_after=asked or None)
        return error_reply(error)


_FAULT_HANDLERS: Mapping[
    RequestFault, Callable[[FaultyChannel, Request], Awaitable[Reply | StreamReply]]
] = {
    RequestFault.LOST: FaultyChannel._drop_request,
    RequestFault.UNANSWERED: FaultyChannel._drop_reply,
    RequestFault.LATE: FaultyChannel._delay_request,
    RequestFault.SLOW: FaultyChannel._delay_reply,
    RequestFault.FAILED: FaultyChannel._fail_request,
    RequestFault.BUSY: FaultyChannel._reject_busy,
}


class _FaultyWatch:
    """One watch with faults."""

    def __init__(self, channel: FaultyChannel) -> None:
        self._channel = channel
        self._waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    def break_off(self) -> None:
        """Drop undelivered events and end."""
        while not self._waiting.empty():
            self._waiting.get_nowait()
        self._waiting.put_nowait((0.0, b""))

    async def chunks(
        self, source: AsyncGenerator[bytes, None], lines: list[_FaultyWatch]
    ) -> AsyncGenerator[bytes, None]:
        """Yield the events in order, possibly late or repeated."""
        loop = asyncio.get_running_loop()
        carrying = asyncio.create_task(self._forward(source))
        lines.append(self)
        try:
            while True:
                due, chunk = await self._waiting.get()
                if due > loop.time():
                    await asyncio.sleep(due - loop.time())
                if not chunk:
                    return
                yield chunk
                if self._channel.duplicates_events:
                    yield chunk
        finally:
            lines.remove(self)
            carrying.cancel()

    async def _forward(self, source: AsyncGenerator[bytes, None]) -> None:
        loop = asyncio.get_running_loop()
        async with aclosing(source):
            async for chunk in source:
                self._waiting.put_nowait((loop.time() + self._channel.lag, chunk))
        self._waiting.put_nowait((0.0, b""))
