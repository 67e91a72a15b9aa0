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
from phalanx.api.feature_gates import DEFAULT_GATES, FeatureGates
from phalanx.api.kinds import KINDS, NAMESPACE, PRIORITY_CLASS, Kind
from phalanx.api.scheduling import SYSTEM_PRIORITY_CLASSES
from phalanx.api.wire import JSON, Object, Reply, Request, StreamReply, UserInfo
from phalanx.clock import Clock
from phalanx.randomness import Random
from phalanx.server import discovery
from phalanx.server import web_ui as page
from phalanx.server.admission import SYSTEM_NAMESPACES
from phalanx.server.admission_cache import AdmissionCache
from phalanx.server.context import ServerContext
from phalanx.server.custom_resources import CustomResourceRegistrar, resume_deletions
from phalanx.server.discovery import KindRegistry
from phalanx.server.request_info import RequestInfo, parse_query
from phalanx.server.request_metrics import RequestMetrics, register_gauges
from phalanx.server.routes import Route, resolve_route
from phalanx.server.security.audit import AUDIT_ID, READ_VERBS, AuditIds, AuditLog
from phalanx.server.security.authorization import ADMIN, AccessControl, Tokens
from phalanx.server.security.bootstrap_policy import ensure_bootstrap_policy
from phalanx.server.security.priority_levels import PriorityLevels
from phalanx.server.security.signing import ISSUER
from phalanx.server.serialization import encode_reply, negotiate
from phalanx.server.watches import WatchBroadcaster
from phalanx.server.write_handlers import insert
from phalanx.store.errors import StoreFailed
from phalanx.store.kv import Store
from phalanx.telemetry import METRICS_CONTENT_TYPE, Metrics, StageMeter

_log = logging.getLogger("phalanx.server")
_KUBERNETES_VERSION = ("1", "37")
_TEXT = "text/plain; charset=utf-8"


class Server:
    """The Kubernetes API over a store."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        random: Random,
        kinds: Sequence[Kind] = KINDS,
        tokens: Tokens | None = None,
        gates: FeatureGates = DEFAULT_GATES,
    ) -> None:
        self.metrics = Metrics()
        self.meter = StageMeter(self.metrics)
        hub = WatchBroadcaster(store, self.meter)
        registry = KindRegistry(gates.filter_served(kinds))
        self.access = AccessControl(store, clock, tokens or Tokens({}))
        self.context = ServerContext(
            store,
            clock,
            random,
            registry,
            hub,
            self.meter,
            self.access,
            gates,
            AdmissionCache(store),
        )
        self.priority_levels, self._audit_ids = PriorityLevels(), AuditIds(clock)
        #: Whoever writes down what was written and refused, if anybody does.
        self.audit: AuditLog | None = None
        self._request_metrics = RequestMetrics(self.metrics)
        register_gauges(self.metrics, gates, hub)
        CustomResourceRegistrar(self.context)

    async def start(self) -> None:
        """Make what every cluster has: the first namespaces, priority classes, roles."""
        for name in SYSTEM_NAMESPACES:
            await self._create_if_missing(NAMESPACE, {"metadata": {"name": name}})
        for name, value in SYSTEM_PRIORITY_CLASSES.items():
            await self._create_if_missing(
                PRIORITY_CLASS, {"metadata": {"name": name}, "value": value}
            )
        await ensure_bootstrap_policy(self.context.store, self.context.now_timestamp())
        await resume_deletions(self.context)

    async def handle(self, request: Request) -> Reply | StreamReply:
        """Answer a request, whatever it is."""
        begin, resolved, actor = perf_counter(), None, request.user
        answer: Reply | StreamReply
        try:
            request = self.access.impersonate(request)
            if resolved := self._resolve_or_forbid(request):
                answer = await self._authorize_and_handle(*resolved)
            else:
                answer = self._handle_non_resource_path(request)
        except ApiError as error:
            answer = error_reply(error)
        except StoreFailed as error:
            # No bug of ours, and whoever started the store is told by itself.
            answer = error_reply(ServerError(str(error)))
        except Exception:
            # A bug of ours: the client learns that, the log learns where; nothing was written.
            request = self._audit_ids.with_audit_id(request)
            _log.exception("%s %s %s", request.headers[AUDIT_ID], request.method, request.path)
            answer = error_reply(
                ServerError("an internal error occurred; the server's log has more")
            )
        if resolved:
            self._request_metrics.record(*resolved, answer.code, perf_counter() - begin)
        is_kept = (
            self.audit is not None and resolved is not None and resolved[0].verb not in READ_VERBS
        )
        if is_kept or answer.code >= 400 or AUDIT_ID in request.headers:
            answer = self._audit_response(request, actor, resolved, answer)
        return answer

    def _audit_response(
        self, request: Request, actor: UserInfo, resolved: tuple[Route, RequestInfo] | None,
        answer: Reply | StreamReply,
    ) -> Reply | StreamReply:  # fmt: skip
        """The answer under its number, by which it can be found in the audit log."""
        number = self._audit_ids.audit_id(request)
        route, call = resolved or (None, None)
        if self.audit is not None:
            verb = route.verb if route else request.method.lower()
            self.audit.record_response(number, request, actor, verb, call, answer)
        if answer.code < 400 and AUDIT_ID not in request.headers:
            return answer
        return replace(answer, headers=(*answer.headers, (AUDIT_ID, number)))

    async def _authorize_and_handle(self, route: Route, call: RequestInfo) -> Reply | StreamReply:
        """What is to be told besides is told with a refusal too: it may be what is to be mended."""
        with self.meter.stage("authorise"):
            self.access.authorize(call.request.user, route.verb, call)
        answer: Reply | StreamReply
        try:
            with self.priority_levels.level_for(route.verb, call):
                answer = await route.endpoint(self.context, call)
            if isinstance(answer, StreamReply):
                self.priority_levels.track_watch(call.request.user, answer)
        except ApiError as error:
            reply = error_reply(error)
            answer = replace(reply, headers=(*reply.headers, *call.warning_headers()))
        return _add_deprecation_warning(call.kind, answer)

    def _resolve_or_forbid(self, request: Request) -> tuple[Route, RequestInfo] | None:
        try:
            return resolve_route(self.context, request)
        except ApiError:
            # Who may not ask does not learn what there is.
            self.access.authorize_path(request.user, request.method, request.path)
            raise

    async def _create_if_missing(self, kind: Kind, obj: Object) -> None:
        name = obj["metadata"]["name"]
        if self.context.store.get(kind.store_key("", name)) is None:
            call = RequestInfo(Request("POST", kind.url_path(), user=ADMIN), kind)
            await insert(self.context, call, obj)

    def _handle_non_resource_path(self, request: Request) -> Reply:
        """A path that is not about objects."""
        path = request.path.rstrip("/") or "/"
        if page.is_ui_path(path):
            return page.serve_ui(request)
        self.access.authorize_path(request.user, request.method, path)
        answer = _PATH_HANDLERS.get(path) or _find_prefix_handler(path)
        reply = answer(self, request) if answer else _page_not_found()
        if request.method != "GET" and reply.code < 400:
            raise MethodNotAllowed
        return reply


PathHandler = Callable[[Server, Request], Reply]


def error_reply(error: ApiError) -> Reply:
    """An error as a client reads it."""
    headers: tuple[tuple[str, str], ...] = ()
    if error.retry_after:
        headers = (("retry-after", str(error.retry_after)),)
    return Reply(error.code, orjson.dumps(error.status()), headers=headers)


def _add_deprecation_warning(kind: Kind, reply: Reply | StreamReply) -> Reply | StreamReply:
    """The same, with a warning where the version that was asked is on its way out."""
    if not kind.deprecation:
        return reply
    text = kind.deprecation.replace("\\", "\\\\").replace('"', '\\"')
    return replace(reply, headers=(*reply.headers, ("warning", f'299 - "{text}"')))


def _page_not_found() -> Reply:
    return Reply(404, b"404 page not found\n", _TEXT)


def _json_reply(value: Object, request: Request) -> Reply:
    return encode_reply(Reply(200, orjson.dumps(value)), negotiate(request))


def _serve_health(server: Server, request: Request) -> Reply:
    return Reply(200, b"ok", _TEXT)


def _serve_version(server: Server, request: Request) -> Reply:
    major, minor = _KUBERNETES_VERSION
    return Reply(200, orjson.dumps({
        "major": major, "minor": minor, "gitVersion": f"v{major}.{minor}.0-phalanx.{__version__}",
        "gitCommit": "", "gitTreeState": "clean", "buildDate": "", "goVersion": "",
        "compiler": "", "platform": "",
    }))  # fmt: skip


def _serve_metrics(server: Server, request: Request) -> Reply:
    return Reply(200, server.metrics.render().encode(), METRICS_CONTENT_TYPE)


def _serve_core_versions(server: Server, request: Request) -> Reply:
    return _serve_discovery(server, request, core=True)


def _serve_api_groups(server: Server, request: Request) -> Reply:
    return _serve_discovery(server, request, core=False)


def _serve_discovery(server: Server, request: Request, *, core: bool) -> Reply:
    """Aggregated where the client takes that, in the first version that it names."""
    registry = server.context.registry
    for part in request.headers.get("accept", "").split(","):
        if "as=APIGroupDiscoveryList" in part:
            version = "v2beta1" if "v=v2beta1" in part else "v2"
            body = orjson.dumps(
                discovery.aggregated_discovery(registry, core=core, version=version)
            )
            form = f"g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList"
            return Reply(200, body, f"{JSON};{form}")
    return _json_reply(
        discovery.api_versions() if core else discovery.group_list(registry), request
    )


def _serve_openapi_index(server: Server, request: Request) -> Reply:
    return Reply(200, orjson.dumps(discovery.openapi_index(server.context.registry)))


def _serve_jwks(server: Server, request: Request) -> Reply:
    """By which keys anybody can verify tokens of service accounts."""
    signer = server.access.authenticator.service_account_tokens.signer
    return Reply(200, orjson.dumps({"keys": [signer.jwk]}), "application/jwk-set+json")


def _serve_oidc_configuration(server: Server, request: Request) -> Reply:
    return Reply(200, orjson.dumps({
        "issuer": ISSUER, "jwks_uri": f"{ISSUER}/openid/v1/jwks", "response_types_supported":
        ["id_token"], "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["ES256"],
    }))  # fmt: skip


#: How an OpenAPI v2 document in protobuf is asked for, by the first word that fits, and called.
_SWAGGER_PROTOBUF = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
_SWAGGER_REPLY = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"


def _serve_openapi_v2(server: Server, request: Request) -> Reply:
    """As JSON, or as protobuf for those who ask for that first."""
    accept = request.headers.get("accept", "*/*")
    if accept.split(",")[0].split(";")[0].strip() in (_SWAGGER_PROTOBUF, _SWAGGER_REPLY):
        found = discovery.openapi_v2_document(server.context.registry, protobuf=True)
        return Reply(200, found, _SWAGGER_REPLY)
    return Reply(200, discovery.openapi_v2_document(server.context.registry))


_PATH_HANDLERS: Mapping[str, PathHandler] = {
    "/healthz": _serve_health,
    "/livez": _serve_health,
    "/readyz": _serve_health,
    "/version": _serve_version,
    "/metrics": _serve_metrics,
    "/api": _serve_core_versions,
    "/apis": _serve_api_groups,
    "/openapi/v2": _serve_openapi_v2,
    "/openapi/v3": _serve_openapi_index,
    "/openid/v1/jwks": _serve_jwks,
    "/.well-known/openid-configuration": _serve_oidc_configuration,
}


def _find_prefix_handler(path: str) -> PathHandler | None:
    """`/api/v1`, `/apis/G`, `/apis/G/V`, `/openapi/v3/…`: present only if the group is served."""
    parts = path.strip("/").split("/")
    if parts[:2] == ["openapi", "v3"]:
        return lambda server, request: _serve_openapi_v3(server, request, parts[2:])
    if parts[0] in ("api", "apis"):
        return lambda server, request: _serve_resource_list(server, request, parts)
    return None


def _serve_resource_list(server: Server, request: Request, parts: list[str]) -> Reply:
    registry, found = server.context.registry, None
    if parts[0] == "api" and len(parts) == 2:
        found = discovery.resource_list(registry, "", parts[1])
    elif parts[0] == "apis" and len(parts) == 2:
        found = discovery.api_group(registry, parts[1])
    elif parts[0] == "apis" and len(parts) == 3:
        found = discovery.resource_list(registry, parts[1], parts[2])
    return _json_reply(found, request) if found else _page_not_found()


def _serve_openapi_v3(server: Server, request: Request, parts: list[str]) -> Reply:
    registry = server.context.registry
    group, version = (parts[1], parts[2]) if len(parts) == 3 else ("", parts[-1])
    if version not in registry.versions_by_group().get(group, ()):
        return _page_not_found()
    headers = (
        (("cache-control", "public, immutable"),) if "hash" in parse_query(request.query) else ()
    )
    return Reply(200, discovery.openapi_document(registry, group, version), headers=headers)
