"""A small API server for pods that lists, watches and misbehaves as a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from urllib.parse import parse_qs

import orjson

from phalanx.api.errors import ApiError, Expired, Timeout
from phalanx.api.wire import Object, Reply, Request, StreamReply
from phalanx.client.transports import Unreachable

Snapshot = dict[str, Object]


def pod(name: str, revision: int, *, uid: str = "", node: str = "") -> Object:
    """A pod as the server would give it."""
    meta = {"name": name, "namespace": "default", "uid": uid or name}
    return {
        "metadata": {**meta, "resourceVersion": str(revision)},
        "spec": {"nodeName": node} if node else {},
    }


def line(kind: str, thing: Object) -> bytes:
    """One watch event."""
    return orjson.dumps({"type": kind, "object": thing}) + b"\n"


def bookmark(revision: int) -> bytes:
    """An event that only says how far the watch has come."""
    return line("BOOKMARK", {"metadata": {"resourceVersion": str(revision)}})


def reply(thing: Object, code: int = 200, **headers: str) -> Reply:
    """An answer with an object."""
    named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return Reply(code, orjson.dumps(thing), headers=named)


def refused(error: ApiError, **headers: str) -> Reply:
    """An answer with a Status."""
    return reply(error.status(), error.code, **headers)


class FakeApi:
    """Pods with one history. `handle` is its door; everything else is for the test to pull."""

    def __init__(self) -> None:
        self.revision = 1
        self.snapshots: list[Snapshot] = [{}, {}]
        self.history: list[tuple[int, bytes]] = []
        self.floor = 0
        self.stale_lists: list[int] = []
        self.troubles: list[Reply | Exception] = []
        self.requests: list[Request] = []
        self._watches: list[asyncio.Queue[bytes | Exception | None]] = []

    @property
    def pods(self) -> Snapshot:
        """What there is now."""
        return self.snapshots[-1]

    @property
    def watched(self) -> int:
        """How many watches are open."""
        return len(self._watches)

    def put(self, name: str, *, node: str = "") -> None:
        """Create or change a pod."""
        old = self.pods.get(name)
        uid = old["metadata"]["uid"] if old else f"{name}-{self.revision + 1}"
        new = pod(name, self.revision + 1, uid=uid, node=node)
        self._write({**self.pods, name: new}, line("MODIFIED" if old else "ADDED", new))

    def remove(self, name: str) -> None:
        """Delete a pod."""
        meta = {**self.pods[name]["metadata"], "resourceVersion": str(self.revision + 1)}
        gone = {**self.pods[name], "metadata": meta}
        rest = {key: value for key, value in self.pods.items() if key != name}
        self._write(rest, line("DELETED", gone))

    def compact(self) -> None:
        """Forget the history."""
        self.floor, self.history = self.revision, []

    def cut(self, trouble: Exception | None = None) -> None:
        """End all watches, cleanly or not."""
        self._tell(trouble)
        self._watches.clear()

    def repeat(self, count: int) -> None:
        """Send the last events once more."""
        self._tell(b"".join(event for _, event in self.history[-count:]))

    def bookmark(self) -> None:
        """Say how far it is."""
        self._tell(bookmark(self.revision))

    def expire(self) -> None:
        """End all watches with a 410."""
        self._tell(line("ERROR", Expired("too old resource version").status()))
        self.cut()

    async def handle(self, request: Request) -> Reply | StreamReply:
        """Answer a list or a watch."""
        self.requests.append(request)
        await asyncio.sleep(0.01)
        if self.troubles:
            return _raised(self.troubles.pop(0))
        query = {name: values[0] for name, values in parse_qs(request.query).items()}
        return self._watch(query) if "watch" in query else self._list(query)

    def _write(self, pods: Snapshot, event: bytes) -> None:
        self.revision += 1
        self.snapshots.append(pods)
        self.history.append((self.revision, event))
        self._tell(event)

    def _tell(self, what: bytes | Exception | None) -> None:
        for watch in self._watches:
            watch.put_nowait(what)

    def _list(self, query: dict[str, str]) -> Reply:
        at, start = self.stale_lists.pop(0) if self.stale_lists else self.revision, 0
        if token := query.get("continue"):
            at, start = map(int, token.split("-"))
            if at < self.floor:
                return refused(Expired("the token is too old"))
        pods = [self.snapshots[at][name] for name in sorted(self.snapshots[at])]
        end = start + int(query.get("limit", len(pods)))
        more = f"{at}-{end}" if end < len(pods) else ""
        meta = {"resourceVersion": str(at), "continue": more}
        return reply({"metadata": meta, "items": pods[start:end]})

    def _watch(self, query: dict[str, str]) -> Reply | StreamReply:
        since = int(query["resourceVersion"])
        if since > self.revision:
            return refused(Timeout("the future has not come"))
        queue: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        if since < self.floor:
            queue.put_nowait(line("ERROR", Expired("too old resource version").status()))
            queue.put_nowait(None)
        else:
            if missed := b"".join(event for at, event in self.history if at > since):
                queue.put_nowait(missed)
            self._watches.append(queue)
        return StreamReply(200, self._chunks(queue))

    async def _chunks(
        self, queue: asyncio.Queue[bytes | Exception | None]
    ) -> AsyncGenerator[bytes, None]:
        try:
            while (chunk := await queue.get()) is not None:
                if isinstance(chunk, Exception):
                    raise chunk
                yield chunk
        finally:
            self._watches = [watch for watch in self._watches if watch is not queue]


def _raised(trouble: Reply | Exception) -> Reply:
    if isinstance(trouble, Exception):
        raise trouble
    return trouble


LOST = Unreachable("https://nowhere", "it closed the connection")
