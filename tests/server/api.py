"""An API server in process and in virtual time: requests in, replies and watch events out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import Executor
from contextlib import aclosing
from typing import NamedTuple
from urllib.parse import urlencode

import orjson

from phalanx.api.kinds import GROUP_BINDING, Kind
from phalanx.api.wire import JSON, Object, Reply, Request, StreamReply, UserInfo
from phalanx.clock import LoopClock
from phalanx.randomness import SeededRandom
from phalanx.server.app import Server
from phalanx.server.security.authorization import ADMIN, Tokens
from phalanx.store.memory import MemoryStore

#: The start of virtual time: 2027-01-15T08:00:00Z.
EPOCH = 1_800_000_000.0


class ApiResponse(NamedTuple):
    """A decoded reply."""

    code: int
    body: Object
    text: bytes = b""
    kind: str = JSON
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def cause_reasons(self) -> list[tuple[str, str]]:
        """The field and the reason of each cause of a refusal."""
        return [(cause["field"], cause["reason"]) for cause in self.body["details"]["causes"]]

    def header_values(self, name: str) -> list[str]:
        """The values of a header."""
        return [value for header, value in self.headers if header.lower() == name]


class WatchEvent(NamedTuple):
    """The type, name and revision of a watch event, and its object."""

    type: str
    name: str
    revision: int
    object: Object

    def __str__(self) -> str:
        return f"{self.type} {self.name}"


class Api:
    """A server that has only the objects of every cluster, and its administrator."""

    def __init__(
        self,
        latency: Callable[[], float] | None = None,
        tokens: Tokens | None = None,
        webhook_urls: Mapping[str, str] | None = None,
        compiler: Executor | None = None,
    ) -> None:
        self.store = MemoryStore(latency)
        clock = LoopClock(asyncio.get_running_loop(), EPOCH)
        self.server = Server(
            self.store,
            clock,
            SeededRandom(1),
            tokens=tokens,
            webhook_urls=webhook_urls,
            compiler=compiler,
        )

    @classmethod
    async def start(
        cls,
        latency: Callable[[], float] | None = None,
        tokens: Tokens | None = None,
        compiler: Executor | None = None,
    ) -> Api:
        api = cls(latency, tokens, compiler=compiler)
        await api.server.start()
        return api

    async def ask(
        self,
        method: str,
        path: str,
        body: object = b"",
        *,
        user: UserInfo = ADMIN,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, object] | None = None,
    ) -> ApiResponse:
        """Send one request; a body that is not bytes is sent as JSON."""
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        request = Request(method, path, urlencode(query or {}), headers or {}, data, user)
        reply = await self.server.handle(request)
        assert isinstance(reply, Reply)
        return read(reply)

    async def create(self, kind: Kind, *objects: Object) -> list[Object]:
        """Create objects, which must succeed; return the replies."""
        made = []
        for obj in objects:
            path = kind.url_path(obj["metadata"].get("namespace", ""))
            answer = await self.ask("POST", path, obj)
            assert answer.code == 201, answer.body
            made.append(answer.body)
        return made

    async def get(self, kind: Kind, name: str, namespace: str = "default") -> Object:
        answer = await self.ask("GET", kind.url_path(namespace, name))
        assert answer.code == 200, answer.body
        return answer.body

    async def list_default(self, kind: Kind, query: Mapping[str, object] | None = None) -> Object:
        """List the default namespace."""
        answer = await self.ask("GET", kind.url_path("default"), query=query)
        assert answer.code == 200, answer.body
        return answer.body

    async def patch(
        self,
        kind: Kind,
        name: str,
        change: object,
        content: str = "merge",
        *,
        part: str = "",
        **query: object,
    ) -> ApiResponse:
        """Patch one object of the default namespace."""
        known = {"merge": "merge-patch", "json": "json-patch", "strategic": "strategic-merge-patch"}
        headers = {"content-type": f"application/{known[content]}+json"}
        path = kind.url_path("default", name, part)
        return await self.ask("PATCH", path, change, headers=headers, query=query)

    async def delete(
        self, kind: Kind, name: str, options: object = b"", **query: object
    ) -> ApiResponse:
        return await self.ask("DELETE", kind.url_path("default", name), options, query=query)

    async def bind_group(self, *bindings: tuple[Object, str], **query: object) -> ApiResponse:
        """Bind pods to nodes with one GroupBinding."""
        rows = [
            {"name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"], "node": node}
            for pod, node in bindings
        ]
        path = GROUP_BINDING.url_path("default")
        return await self.ask("POST", path, {"bindings": rows}, query=query)

    async def bind(self, pod: str, node: str, **query: object) -> ApiResponse:
        """Bind one pod with a Binding."""
        path = f"/api/v1/namespaces/default/pods/{pod}/binding"
        return await self.ask("POST", path, {"target": {"kind": "Node", "name": node}}, query=query)

    async def watch(
        self,
        kind: Kind,
        query: Mapping[str, object] | None = None,
        *,
        since: int | None = None,
        seconds: int = 1,
        accept: str = JSON,
    ) -> list[WatchEvent]:
        """All events of a watch of the default namespace that lasts so many seconds."""
        chunks = self.chunks(kind, query, since=since, seconds=seconds, accept=accept)
        return [event async for chunk in chunks for event in events(chunk)]

    async def chunks(
        self,
        kind: Kind,
        query: Mapping[str, object] | None = None,
        *,
        since: int | None = None,
        seconds: int = 1,
        accept: str = JSON,
    ) -> AsyncGenerator[bytes, None]:
        """The chunks of a watch."""
        begin = {} if since is None else {"resourceVersion": since}
        options = {"watch": "true", "timeoutSeconds": seconds, **begin, **(query or {})}
        request = Request(
            "GET", kind.url_path("default"), urlencode(options), {"accept": accept}, b"", ADMIN
        )
        answer = await self.server.handle(request)
        assert isinstance(answer, StreamReply), answer
        async with aclosing(answer.chunks) as chunks:
            async for chunk in chunks:
                yield chunk


def read(reply: Reply) -> ApiResponse:
    """Decode a reply, if it is JSON."""
    body = orjson.loads(reply.body) if reply.content_type.startswith(JSON) else {}
    return ApiResponse(reply.code, body, reply.body, reply.content_type, reply.headers)


def events(chunk: bytes) -> list[WatchEvent]:
    """The events of whole lines."""
    return [_parse_event(orjson.loads(line)) for line in chunk.splitlines()]


def _parse_event(line: Object) -> WatchEvent:
    shown = line["object"]
    meta = shown["rows"][0]["object"]["metadata"] if "rows" in shown else shown["metadata"]
    version = meta.get("resourceVersion", "0")
    return WatchEvent(line["type"], meta.get("name", ""), int(version), shown)


def names(listing: Object) -> list[str]:
    """The names of the objects of a list."""
    return [item["metadata"]["name"] for item in listing["items"]]


def revision(obj: Object) -> int:
    return int(obj["metadata"]["resourceVersion"])
