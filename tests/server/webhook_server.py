"""A webhook server over TLS with a certificate authority of its own, in the test's event loop."""

from __future__ import annotations

import asyncio
import base64
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from phalanx.api.kinds import (
    CONFIG_MAP,
    MUTATING_WEBHOOK_CONFIGURATION,
    VALIDATING_WEBHOOK_CONFIGURATION,
    Kind,
)
from phalanx.api.wire import Object
from phalanx.clock import WallClock
from phalanx.server.security.keyring import server_tls_context
from tests.server.api import Api, ApiResponse

#: A name in the certificate; it is valid for the local host too.
SERVICE_NAME = "hooks.default.svc"
#: Returns the response to the request of a review.
Respond = Callable[[Object], Object]
Handle = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(slots=True)
class WebhookServer:
    """Answers at each path with one function, and keeps the requests of the reviews."""

    port: int
    ca_bundle: str
    responses: dict[str, Respond] = field(default_factory=dict)
    #: Paths that do not answer with a review.
    handlers: dict[str, Handle] = field(default_factory=dict)
    requests: list[Object] = field(default_factory=list)
    is_closing: asyncio.Event = field(default_factory=asyncio.Event)

    def client_config(self, path: str) -> Object:
        return {"url": f"https://127.0.0.1:{self.port}{path}", "caBundle": self.ca_bundle}

    def on(self, path: str, respond: Respond) -> Object:
        """Answer reviews at a path; return the clientConfig."""
        self.responses[path] = respond
        return self.client_config(path)

    async def hang(self, request: web.Request) -> web.StreamResponse:
        """Answer nothing before the test ends."""
        await self.is_closing.wait()
        return web.Response(status=500)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        if handler := self.handlers.get(request.path):
            return await handler(request)
        review = orjson.loads(await request.read())
        self.requests.append(review["request"])
        response = {"uid": review["request"]["uid"], "allowed": True}
        response |= self.responses[request.path](review["request"])
        answer = {"kind": review["kind"], "apiVersion": review["apiVersion"], "response": response}
        return web.json_response(answer)


@asynccontextmanager
async def webhook_server(folder: Path) -> AsyncIterator[WebhookServer]:
    """Serve webhooks on a free port while the context lasts."""
    tls, authority = server_tls_context(folder, [SERVICE_NAME], WallClock().now())
    hooks = WebhookServer(0, base64.b64encode(authority).decode())
    app = web.Application(client_max_size=64 << 20)
    app.router.add_post("/{path:.*}", hooks.serve)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    hooks.port = runner.addresses[0][1]
    try:
        yield hooks
    finally:
        hooks.is_closing.set()
        await runner.cleanup()


@asynccontextmanager
async def hooked_api(folder: Path) -> AsyncIterator[tuple[Api, WebhookServer]]:
    """An API server and a webhook server."""
    api = await Api.start()
    async with webhook_server(folder) as hooks:
        try:
            yield api, hooks
        finally:
            await api.server.context.dynamic_admission.close()


def rule(*resources: str, operations: tuple[str, ...] = ("*",), **facts: Any) -> Object:
    return {
        "operations": list(operations), "apiGroups": ["*"], "apiVersions": ["*"],
        "resources": list(resources), **facts,
    }  # fmt: skip


def webhook(
    config: Object, *rules: Object, name: str = "check.example.com", **facts: Any
) -> Object:
    return {
        "name": name, "clientConfig": config, "rules": list(rules), "sideEffects": "None",
        "admissionReviewVersions": ["v1"], **facts,
    }  # fmt: skip


async def configure(
    api: Api, *webhooks: Object, name: str = "hooks", mutating: bool = False
) -> None:
    kind = MUTATING_WEBHOOK_CONFIGURATION if mutating else VALIDATING_WEBHOOK_CONFIGURATION
    await api.create(kind, {"metadata": {"name": name}, "webhooks": list(webhooks)})


def deny(message: str = "no", **status: Any) -> Respond:
    return lambda request: {"allowed": False, "status": {"message": message, **status}}


def allow(**response: Any) -> Respond:
    return lambda request: response


def patch(*operations: Object) -> Respond:
    encoded = base64.b64encode(orjson.dumps(list(operations))).decode()
    return lambda request: {"patchType": "JSONPatch", "patch": encoded}


def add(path: str, value: Any) -> Object:
    return {"op": "add", "path": path, "value": value}


Trial = Callable[[Api, WebhookServer], Coroutine[Any, Any, None]]


def with_hooks(trial: Trial) -> Callable[[Path], None]:
    """Run a test with an API server and a webhook server in one event loop."""

    @functools.wraps(trial)
    def run(tmp_path: Path) -> None:
        async def both() -> None:
            async with hooked_api(tmp_path) as (api, hooks):
                await trial(api, hooks)

        asyncio.run(both())

    del run.__wrapped__
    return run


def config_map(name: str = "c", **facts: Any) -> Object:
    return {"metadata": {"name": name, "namespace": "default", **facts}, "data": {"a": "b"}}


async def post(api: Api, obj: Object, kind: Kind = CONFIG_MAP, **query: object) -> ApiResponse:
    return await api.ask("POST", kind.url_path("default"), obj, query=query)


def condition(expression: str) -> list[Object]:
    return [{"name": "c", "expression": expression}]
