"""The server: one door, `handle(Request) -> Reply | Stream`, for HTTP and in-process alike.

    request ─▶ route ─▶ authorise ─▶ lane ─▶ endpoint ─▶ reply ─▶ audit
                 │
                 └─▶ paths that are not about objects: discovery, schemas, health, metrics, page

The one place where an ApiError becomes a Status body.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter

import orjson
from msgspec.structs import replace

from phalanx import __version__
from phalanx.api.errors import ApiError, MethodNotAllowed, ServerError
from phalanx.api.gates import DEFAULT, Gates
from phalanx.api.kinds import KINDS, NAMESPACE, PRIORITY_CLASS, Kind
from phalanx.api.priorityclasses import SYSTEM_CLASSES
from phalanx.api.wire import JSON, Object, Reply, Request, Stream, User
from phalanx.chance import Chance
from phalanx.clock import Clock
from phalanx.server import discovery, page
from phalanx.server.access import ADMIN, Access, Tokens
from phalanx.server.admission import LASTING
from phalanx.server.call import Call, parse_query
from phalanx.server.context import Context
from phalanx.server.customresources import Definitions, resume
from phalanx.server.metrics import Requests, observe
from phalanx.server.negotiation import in_media, negotiate
from phalanx.server.registry import Registry
from phalanx.server.routes import Route, resolve
from phalanx.server.security.accounttokens import ISSUER
from phalanx.server.security.audit import AUDIT_ID, READS, Audit, Numbers
from phalanx.server.security.bootstrap import ensure
from phalanx.server.security.lanes import Lanes
from phalanx.server.twins import Twins
from phalanx.server.watches import Hub
from phalanx.server.writing import insert
from phalanx.store.errors import StoreBroken
from phalanx.store.kv import Store
from phalanx.telemetry import TEXT, Meter, Metrics

_log = logging.getLogger("phalanx.server")
_KUBERNETES = ("1", "37")
_TEXT = "text/plain; charset=utf-8"


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
        registry = Registry(gates.served(kinds))
        self.access = Access(store, clock, tokens or Tokens({}))
        self.context = Context(
            store, clock, chance, registry, hub, self.meter, self.access, gates, Twins(store)
        )
        self.lanes, self._numbers = Lanes(), Numbers(clock)
        #: Whoever writes down what was written and refused, if anybody does.
        self.audit: Audit | None = None
        self._requests = Requests(self.metrics)
        observe(self.metrics, gates, hub)
        Definitions(self.context)

    async def start(self) -> None:
        """Make what every cluster has: the first namespaces, priority classes, roles."""
        for name in LASTING:
            await self._ensure(NAMESPACE, {"metadata": {"name": name}})
        for name, value in SYSTEM_CLASSES.items():
            await self._ensure(PRIORITY_CLASS, {"metadata": {"name": name}, "value": value})
        await ensure(self.context.store, self.context.stamp())
        await resume(self.context)

    async def handle(self, request: Request) -> Reply | Stream:
        """Answer a request, whatever it is."""
        begin, resolved, actor = perf_counter(), None, request.user
        answer: Reply | Stream
        try:
            request = self.access.acting(request)
            if resolved := self._resolved(request):
                answer = await self._answered(*resolved)
            else:
                answer = self._other(request)
        except ApiError as error:
            answer = refusal(error)
        except StoreBroken as error:
            # No bug of ours, and whoever started the store is told by itself.
            answer = refusal(ServerError(str(error)))
        except Exception:
            # A bug of ours: the client learns that, the log learns where; nothing was written.
            request = self._numbers.given(request)
            _log.exception("%s %s %s", request.headers[AUDIT_ID], request.method, request.path)
            answer = refusal(ServerError("an internal error occurred; the server's log has more"))
        if resolved:
            self._requests.count(*resolved, answer.code, perf_counter() - begin)
        is_kept = self.audit is not None and resolved is not None and resolved[0].verb not in READS
        if is_kept or answer.code >= 400 or AUDIT_ID in request.headers:
            answer = self._noted(request, actor, resolved, answer)
        return answer

    def _noted(
        self, request: Request, actor: User, resolved: tuple[Route, Call] | None,
        answer: Reply | Stream,
    ) -> Reply | Stream:  # fmt: skip
        """The answer under its number, by which it can be found in the audit log."""
        number = self._numbers.of(request)
        route, call = resolved or (None, None)
        if self.audit is not None:
            verb = route.verb if route else request.method.lower()
            self.audit.answered(number, request, actor, verb, call, answer)
        if answer.code < 400 and AUDIT_ID not in request.headers:
            return answer
        return replace(answer, headers=(*answer.headers, (AUDIT_ID, number)))

    async def _answered(self, route: Route, call: Call) -> Reply | Stream:
        """What is to be told besides is told with a refusal too: it may be what is to be mended."""
        with self.meter.stage("authorise"):
            self.access.authorise(call.request.user, route.verb, call)
        answer: Reply | Stream
        try:
            with self.lanes.of(route.verb, call):
                answer = await route.endpoint(self.context, call)
            if isinstance(answer, Stream):
                self.lanes.hold(call.request.user, answer)
        except ApiError as error:
            reply = refusal(error)
            answer = replace(reply, headers=(*reply.headers, *call.warning_headers()))
        return _deprecated(call.kind, answer)

    def _resolved(self, request: Request) -> tuple[Route, Call] | None:
        try:
            return resolve(self.context, request)
        except ApiError:
            # Who may not ask does not learn what there is.
            self.access.authorise_path(request.user, request.method, request.path)
            raise

    async def _ensure(self, kind: Kind, obj: Object) -> None:
        name = obj["metadata"]["name"]
        if self.context.store.get(kind.key("", name)) is None:
            call = Call(Request("POST", kind.path(), user=ADMIN), kind)
            await insert(self.context, call, obj)

    def _other(self, request: Request) -> Reply:
        """A path that is not about objects."""
        path = request.path.rstrip("/") or "/"
        if page.is_page(path):
            return page.serve(request)
        self.access.authorise_path(request.user, request.method, path)
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


def _keys(server: Server, request: Request) -> Reply:
    """By which keys anybody can verify tokens of service accounts."""
    signer = server.access.authenticator.accounts.signer
    return Reply(200, orjson.dumps({"keys": [signer.jwk]}), "application/jwk-set+json")


def _issuer(server: Server, request: Request) -> Reply:
    return Reply(200, orjson.dumps({
        "issuer": ISSUER, "jwks_uri": f"{ISSUER}/openid/v1/jwks", "response_types_supported":
        ["id_token"], "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["ES256"],
    }))  # fmt: skip


#: How an OpenAPI v2 document in protobuf is asked for, by the first word that fits, and called.
_SWAGGER_PROTOBUF = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
_SWAGGER_REPLY = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"


def _swagger(server: Server, request: Request) -> Reply:
    """As JSON, or as protobuf for those who ask for that first."""
    accept = request.headers.get("accept", "*/*")
    if accept.split(",")[0].split(";")[0].strip() in (_SWAGGER_PROTOBUF, _SWAGGER_REPLY):
        found = discovery.swagger(server.context.registry, protobuf=True)
        return Reply(200, found, _SWAGGER_REPLY)
    return Reply(200, discovery.swagger(server.context.registry))


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
    "/openid/v1/jwks": _keys,
    "/.well-known/openid-configuration": _issuer,
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
