"""The server: one door, `handle(Request) -> Reply | Stream`, for HTTP and in-process alike.

    request ─▶ route ─▶ authorise ─▶ endpoint ─▶ reply
                 │
                 └─▶ paths that are not about objects: discovery, schemas, health, metrics

The one place where an ApiError becomes a Status body.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import perf_counter

import orjson

from phalanx import __version__
from phalanx.api.errors import ApiError, MethodNotAllowed, ServerError
from phalanx.api.gates import DEFAULT, Gates
from phalanx.api.kinds import KINDS, NAMESPACE, PRIORITY_CLASS, Kind
from phalanx.api.wire import JSON, Object, Reply, Request, Stream
from phalanx.chance import Chance
from phalanx.clock import Clock
from phalanx.server import discovery
from phalanx.server.access import ADMIN, Tokens, acting, authorise, authorise_path
from phalanx.server.admission import LASTING
from phalanx.server.call import Call, parse_query
from phalanx.server.context import Context
from phalanx.server.customresources import Definitions, resume
from phalanx.server.metrics import Requests, observe
from phalanx.server.negotiation import in_media, negotiate
from phalanx.server.registry import Registry
from phalanx.server.routes import Route, resolve
from phalanx.server.watches import Hub
from phalanx.server.writing import insert
from phalanx.store.kv import Store
from phalanx.telemetry import TEXT, Meter, Metrics

_log = logging.getLogger("phalanx.server")
_KUBERNETES = ("1", "37")
_TEXT = "text/plain; charset=utf-8"
#: Classes that are always there, for what the cluster itself needs.
_SYSTEM_CLASSES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


class Server:
    """The Kubernetes API over a store."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        chance: Chance,
        kinds: Sequence[Kind] = KINDS,
        tokens: Tokens | None = None,
        gates: Gates = DEFAULT,
    ) -> None:
        self.metrics = Metrics()
        self.meter = Meter(self.metrics)
        hub = Hub(store, self.meter)
        self.tokens = tokens or Tokens({})
        registry = Registry(gates.served(kinds))
        self.context = Context(store, clock, chance, registry, hub, self.meter, self.tokens, gates)
        self._requests = Requests(self.metrics)
        observe(self.metrics, gates, hub)
        Definitions(self.context)

    async def start(self) -> None:
        """Make what every cluster has: the first namespaces and the system's priority classes."""
        for name in LASTING:
            await self._ensure(NAMESPACE, {"metadata": {"name": name}})
        for name, value in _SYSTEM_CLASSES.items():
            await self._ensure(PRIORITY_CLASS, {"metadata": {"name": name}, "value": value})
        await resume(self.context)

    async def handle(self, request: Request) -> Reply | Stream:
        """Answer a request, whatever it is."""
        begin, resolved = perf_counter(), None
        answer: Reply | Stream
        try:
            request = acting(request)
            if resolved := self._resolved(request):
                answer = await self._answered(*resolved)
            else:
                answer = self._other(request)
        except ApiError as error:
            answer = refusal(error)
        except Exception:
            # A bug of ours: the client learns that, the log learns where; nothing was written.
            _log.exception("%s %s", request.method, request.path)
            answer = refusal(ServerError("an internal error occurred; the server's log has more"))
        if resolved:
            self._requests.count(*resolved, answer.code, perf_counter() - begin)
        return answer

    async def _answered(self, route: Route, call: Call) -> Reply | Stream:
        """What is to be told besides is told with a refusal too: it may be what is to be mended."""
        with self.meter.stage("authorise"):
            authorise(call.request.user, route.verb, call)
        answer: Reply | Stream
        try:
            answer = await route.endpoint(self.context, call)
        except ApiError as error:
            reply = refusal(error)
            answer = replace(reply, headers=(*reply.headers, *call.warning_headers()))
        return _deprecated(call.kind, answer)

    def _resolved(self, request: Request) -> tuple[Route, Call] | None:
        try:
            return resolve(self.context, request)
        except ApiError:
            # Who may not ask does not learn what there is.
            authorise_path(request.user, request.method, request.path)
            raise

    async def _ensure(self, kind: Kind, obj: Object) -> None:
        name = obj["metadata"]["name"]
        if self.context.store.get(kind.key("", name)) is None:
            call = Call(Request("POST", kind.path(), user=ADMIN), kind)
            await insert(self.context, call, obj)

    def _other(self, request: Request) -> Reply:
        """A path that is not about objects."""
        path = request.path.rstrip("/") or "/"
        authorise_path(request.user, request.method, path)
        answer = _PATHS.get(path) or _prefixed(path)
        reply = answer(self, request) if answer else _nowhere()
        if request.method != "GET" and reply.code < 400:
            raise MethodNotAllowed
        return reply


Answer = Callable[[Server, Request], Reply]


def refusal(error: ApiError) -> Reply:
    """An error as a client reads it."""
    headers: tuple[tuple[str, str], ...] = ()
    if error.retry_after:
        headers = (("retry-after", str(error.retry_after)),)
    return Reply(error.code, orjson.dumps(error.status()), headers=headers)


def _deprecated(kind: Kind, reply: Reply | Stream) -> Reply | Stream:
    """The same, with a warning where the version that was asked is on its way out."""
    if not kind.deprecation:
        return reply
    text = kind.deprecation.replace("\\", "\\\\").replace('"', '\\"')
    return replace(reply, headers=(*reply.headers, ("warning", f'299 - "{text}"')))


def _nowhere() -> Reply:
    return Reply(404, b"404 page not found\n", _TEXT)


def _json(value: Object, request: Request) -> Reply:
    return in_media(Reply(200, orjson.dumps(value)), negotiate(request))


def _healthy(server: Server, request: Request) -> Reply:
    return Reply(200, b"ok", _TEXT)


def _version(server: Server, request: Request) -> Reply:
    major, minor = _KUBERNETES
    return Reply(200, orjson.dumps({
        "major": major, "minor": minor, "gitVersion": f"v{major}.{minor}.0-phalanx.{__version__}",
        "gitCommit": "", "gitTreeState": "clean", "buildDate": "", "goVersion": "",
        "compiler": "", "platform": "",
    }))  # fmt: skip


def _metrics(server: Server, request: Request) -> Reply:
    return Reply(200, server.metrics.text().encode(), TEXT)


def _api(server: Server, request: Request) -> Reply:
    return _discovered(server, request, core=True)


def _apis(server: Server, request: Request) -> Reply:
    return _discovered(server, request, core=False)


def _discovered(server: Server, request: Request, *, core: bool) -> Reply:
    """Aggregated where the client takes that, in the first version that it names."""
    registry = server.context.registry
    for part in request.headers.get("accept", "").split(","):
        if "as=APIGroupDiscoveryList" in part:
            version = "v2beta1" if "v=v2beta1" in part else "v2"
            body = orjson.dumps(discovery.aggregated(registry, core=core, version=version))
            form = f"g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList"
            return Reply(200, body, f"{JSON};{form}")
    return _json(discovery.api_versions() if core else discovery.group_list(registry), request)


def _openapi_index(server: Server, request: Request) -> Reply:
    return Reply(200, orjson.dumps(discovery.openapi_index(server.context.registry)))


#: An OpenAPI v2 document in protobuf that says its version and nothing else.
_EMPTY_SWAGGER = b"\n\x032.0"
_SWAGGER_PROTOBUF = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"


def _swagger(server: Server, request: Request) -> Reply:
    """As JSON; a client that takes only protobuf is told to look at v3 by an empty document."""
    accept = request.headers.get("accept", "*/*")
    if "json" in accept or "*/*" in accept:
        return Reply(200, discovery.swagger(server.context.registry))
    return Reply(200, _EMPTY_SWAGGER, _SWAGGER_PROTOBUF)


_PATHS: Mapping[str, Answer] = {
    "/healthz": _healthy,
    "/livez": _healthy,
    "/readyz": _healthy,
    "/version": _version,
    "/metrics": _metrics,
    "/api": _api,
    "/apis": _apis,
    "/openapi/v2": _swagger,
    "/openapi/v3": _openapi_index,
}


def _prefixed(path: str) -> Answer | None:
    """`/api/v1`, `/apis/G`, `/apis/G/V`, `/openapi/v3/…`: present only if the group is served."""
    parts = path.strip("/").split("/")
    if parts[:2] == ["openapi", "v3"]:
        return lambda server, request: _document(server, request, parts[2:])
    if parts[0] in ("api", "apis"):
        return lambda server, request: _resources(server, request, parts)
    return None


def _resources(server: Server, request: Request, parts: list[str]) -> Reply:
    registry, found = server.context.registry, None
    if parts[0] == "api" and len(parts) == 2:
        found = discovery.resource_list(registry, "", parts[1])
    elif parts[0] == "apis" and len(parts) == 2:
        found = discovery.group(registry, parts[1])
    elif parts[0] == "apis" and len(parts) == 3:
        found = discovery.resource_list(registry, parts[1], parts[2])
    return _json(found, request) if found else _nowhere()


def _document(server: Server, request: Request, parts: list[str]) -> Reply:
    registry = server.context.registry
    group, version = (parts[1], parts[2]) if len(parts) == 3 else ("", parts[-1])
    if version not in registry.groups().get(group, ()):
        return _nowhere()
    headers = (
        (("cache-control", "public, immutable"),) if "hash" in parse_query(request.query) else ()
    )
    return Reply(200, discovery.openapi_document(registry, group, version), headers=headers)
