"""A transport that hides the group of custom resources, as if its server did not answer."""

from __future__ import annotations

import orjson
from msgspec.structs import replace

from phalanx.api.wire import Reply, Request, StreamReply
from phalanx.client.transports import InProcessTransport
from phalanx.server.security.authorization import ADMIN
from tests.controllers.cluster import Cluster


class HidingTransport:
    """Hides the group `example.com` from discovery and requests while `is_hiding`."""

    def __init__(
        self, c: Cluster, freshness: str = "Current", *, hides_discovery: bool = True
    ) -> None:
        self._inner = InProcessTransport(c.plane.server.handle, ADMIN)
        self._freshness, self._hides_discovery = freshness, hides_discovery
        self.is_hiding = False

    async def send(self, request: Request) -> Reply | StreamReply:
        if self.is_hiding and request.path.startswith("/apis/example.com"):
            return Reply(404, b"404 page not found", "text/plain")
        answer = await self._inner.send(request)
        is_hidden = self.is_hiding and self._hides_discovery and request.path == "/apis"
        if is_hidden and isinstance(answer, Reply):
            groups = orjson.loads(answer.body)
            for group in groups["items"]:
                if group["metadata"]["name"] == "example.com":
                    version = {"version": "v1", "resources": [], "freshness": self._freshness}
                    group["versions"] = [version]
            return replace(answer, body=orjson.dumps(groups))
        return answer

    async def close(self) -> None:
        """Do nothing."""
