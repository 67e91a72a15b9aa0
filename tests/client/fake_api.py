"""A small API server for pods that lists, watches and fails as a test requires."""

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
    """Return a pod as the server would send it."""
    metadata = {"name": name, "namespace": "default", "uid": uid or name}
    return {
        "metadata": {**metadata, "resourceVersion": str(revision)},
        "spec": {"nodeName": node} if node else {},
    }


def watch_event(kind: str, obj: Object) -> bytes:
    """Encode a watch event."""
    return orjson.dumps({"type": kind, "object": obj}) + b"\n"


def bookmark(revision: int) -> bytes:
    """Encode a bookmark event."""
    return watch_event("BOOKMARK", {"metadata": {"resourceVersion": str(revision)}})


def reply(obj: Object, code: int = 200, **headers: str) -> Reply:
    """Return a response with an object."""
    pairs = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return Reply(code, orjson.dumps(obj), headers=pairs)


def status_reply(error: ApiError, **headers: str) -> Reply:
    """Return a response with a Status."""
    return reply(error.status(), error.code, **headers)


class FakeApi:
    """Pods with one history. `handle` serves requests; tests call the other methods."""

    def __init__(self) -> None:
        self.revision = 1
        self.snapshots: list[Snapshot] = [{}, {}]
        self.history: list[tuple[int, bytes]] = []
        self.compacted_revision = 0
        self.stale_lists: list[int] = []
        self.failures: list[Reply | Exception] = []
        self.requests: list[Request] = []
        self._watches: list[asyncio.Queue[bytes | Exception | None]] = []

    @property
    def pods(self) -> Snapshot:
        """The pods at the current revision."""
        return self.snapshots[-1]

    @property
    def open_watches(self) -> int:
        """The number of open watches."""
        return len(self._watches)

    def put(self, name: str, *, node: str = "") -> None:
        """Create or update a pod."""
        old = self.pods.get(name)
        uid = old["metadata"]["uid"] if old else f"{name}-{self.revision + 1}"
        new = pod(name, self.revision + 1, uid=uid, node=node)
        self._write({**self.pods, name: new}, watch_event("MODIFIED" if old else "ADDED", new))

    def remove(self, name: str) -> None:
        """Delete a pod."""
        metadata = {**self.pods[name]["metadata"], "resourceVersion": str(self.revision + 1)}
        deleted = {**self.pods[name], "metadata": metadata}
        rest = {key: value for key, value in self.pods.items() if key != name}
        self._write(rest, watch_event("DELETED", deleted))

    def compact(self) -> None:
        """Drop the history."""
        self.compacted_revision, self.history = self.revision, []

    def cut(self, failure: Exception | None = None) -> None:
        """End all watches, with an error if one is given."""
        self._send(failure)
        self._watches.clear()

    def repeat(self, count: int) -> None:
        """Send the last events again."""
        self._send(b"".join(event for _, event in self.history[-count:]))

    def bookmark(self) -> None:
        """Send a bookmark with the current revision."""
        self._send(bookmark(self.revision))

    def expire(self) -> None:
        """End all watches with 410 Gone."""
        self._send(watch_event("ERROR", Expired("too old resource version").status()))
        self.cut()

    async def handle(self, request: Request) -> Reply | StreamReply:
        """Serve a list or a watch."""
        self.requests.append(request)
        await asyncio.sleep(0.01)
        if self.failures:
            return _raise_or_return(self.failures.pop(0))
        query = {name: values[0] for name, values in parse_qs(request.query).items()}
        return self._watch(query) if "watch" in query else self._list(query)

    def _write(self, pods: Snapshot, event: bytes) -> None:
        self.revision += 1
        self.snapshots.append(pods)
        self.history.append((self.revision, event))
        self._send(event)

    def _send(self, message: bytes | Exception | None) -> None:
        for watch in self._watches:
            watch.put_nowait(message)

    def _list(self, query: dict[str, str]) -> Reply:
        at, start = self.stale_lists.pop(0) if self.stale_lists else self.revision, 0
        if token := query.get("continue"):
            at, start = map(int, token.split("-"))
            if at < self.compacted_revision:
                return status_reply(Expired("the token is too old"))
        pods = [self.snapshots[at][name] for name in sorted(self.snapshots[at])]
        end = start + int(query.get("limit", len(pods)))
        more = f"{at}-{end}" if end < len(pods) else ""
        metadata = {"resourceVersion": str(at), "continue": more}
        return reply({"metadata": metadata, "items": pods[start:end]})

    def _watch(self, query: dict[str, str]) -> Reply | StreamReply:
        since = int(query["resourceVersion"])
        if since > self.revision:
            return status_reply(Timeout("the future has not come"))
        queue: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        if since < self.compacted_revision:
            queue.put_nowait(watch_event("ERROR", Expired("too old resource version").status()))
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


def _raise_or_return(failure: Reply | Exception) -> Reply:
    if isinstance(failure, Exception):
        raise failure
    return failure


CONNECTION_LOST = Unreachable("https://nowhere", "it closed the connection")
