"""The server: `handle(Request) -> Reply | StreamReply`, called over HTTP and in process alike.

    request ─▶ route ─▶ authorize ─▶ priority level ─▶ handler ─▶ reply ─▶ audit, metrics
                 │
                 └─▶ non-resource paths: discovery, OpenAPI, health, metrics, web UI

The only module that turns an ApiError into a Status body. `http_server.py` puts it on the network;
`control_plane.py` connects controllers and scheduler to it without a network. `RequestMetrics`
records every request about resources when it is answered; names, labels and buckets of the metrics
are those of Kubernetes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence, Sized
from concurrent.futures import Executor
from time import perf_counter

import orjson
from msgspec.structs import replace

from phalanx import logs
from phalanx.api.errors import (
    ApiError,
    MethodNotAllowed,
    NoSuchResource,
    ServerError,
    ServiceUnavailable,
    Timeout,
    TooManyRequests,
    WebhookError,
)
from phalanx.api.feature_gates import DEFAULT_GATES, FeatureGates
from phalanx.api.kinds import KINDS, NAMESPACE, PRIORITY_CLASS, RESOURCE_QUOTA, Kind
from phalanx.api.scheduling import SYSTEM_PRIORITY_CLASSES
from phalanx.api.wire import JSON, Object, Reply, Request, StreamReply, UserInfo
from phalanx.clock import Clock
from phalanx.randomness import Random
from phalanx.server import discovery, web_ui
from phalanx.server.admission import SYSTEM_NAMESPACES, kinds_read
from phalanx.server.admission_cache import CACHED_KINDS, AdmissionCache
from phalanx.server.bootstrap_objects import ensure_bootstrap_objects
from phalanx.server.context import ServerContext
from phalanx.server.custom_resources import CustomResourceRegistrar, resume_deletions
from phalanx.server.discovery import KindRegistry
from phalanx.server.dynamic_admission.registry import DynamicAdmission
from phalanx.server.event_expiry import EVENT_TTL, EventExpirer
from phalanx.server.health import HEALTH_ENDPOINTS, HealthChecks
from phalanx.server.page_api import PageApi, is_page_api_path
from phalanx.server.request_info import RequestInfo, parse_query
from phalanx.server.resource_quotas import critical_pods_quota
from phalanx.server.routes import Endpoint, Route, resolve_route
from phalanx.server.security.audit import AUDIT_ID, READ_VERBS, AuditIds, AuditLog
from phalanx.server.security.authorization import ADMIN, AccessControl, Tokens
from phalanx.server.security.bootstrap_writer import ensure_bootstrap_policy
from phalanx.server.security.keyring import CertificateAuthority
from phalanx.server.security.request_guard import PriorityLevels
from phalanx.server.security.signing import ISSUER
from phalanx.server.serialization import encode_if_accepted, encode_reply, negotiate
from phalanx.server.server_side_apply import apply_configuration
from phalanx.server.service_allocator import ServiceRanges
from phalanx.server.watches import WatchBroadcaster, WatchIntervals
from phalanx.server.write_handlers import insert
from phalanx.store.kv import Store, StoreClosed, StoreFailed
from phalanx.telemetry import (
    METRICS_CONTENT_TYPE,
    STAGE_SECONDS,
    Counter,
    Gauge,
    Histogram,
    Metrics,
    MetricSpec,
    StageMeter,
)
from phalanx.version import __version__

LOG = logs.component("server")
_KUBERNETES_VERSION = ("1", "37")
_TEXT = "text/plain; charset=utf-8"
#: What clients read when the server has a bug; the traceback is in the log.
INTERNAL_ERROR = "internal error; see the server log"
#: What clients read that send a request while the process of the server ends.
STOPPING = "the server is stopping; try again later"


# ---- metrics -------------------------------------------------------------------------------------

_REQUEST_LABELS = (
    "verb", "dry_run", "group", "version", "resource", "subresource", "scope", "component",
)  # fmt: skip

REQUEST_TOTAL = MetricSpec(
    Counter, "apiserver_request_total", "Requests about resources, by status code.",
    (*_REQUEST_LABELS, "code"),
)  # fmt: skip
REQUEST_SECONDS = MetricSpec(
    Histogram, "apiserver_request_duration_seconds",
    "Latency of requests about resources in seconds, except watches.", _REQUEST_LABELS,
    (
        0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0,
        10.0, 15.0, 20.0, 30.0, 45.0, 60.0,
    ),
)  # fmt: skip
LONGRUNNING_REQUESTS = MetricSpec(
    Gauge, "apiserver_longrunning_requests", "Open watches.", ("verb",)
)
FEATURE_ENABLED = MetricSpec(
    Gauge, "kubernetes_feature_enabled", "Feature gates: 1 if enabled.", ("name", "stage")
)  # fmt: skip

SERVER_METRICS = (
    REQUEST_TOTAL,
    REQUEST_SECONDS,
    LONGRUNNING_REQUESTS,
    FEATURE_ENABLED,
    STAGE_SECONDS,
)

_WATCH_VERB = "WATCH"
_MAX_CACHED_SERIES = 10_000
_VERBS = {
    "get": "GET", "list": "LIST", "watch": _WATCH_VERB, "create": "POST", "update": "PUT",
    "patch": "PATCH", "delete": "DELETE", "deletecollection": "DELETECOLLECTION",
}  # fmt: skip

#: Everything that the labels of a request depend on.
_SeriesKey = tuple[Endpoint, object, str, bool, bool, bool, int]


class RequestMetrics:
    """Counts requests. The series of a known combination of labels is found by one look-up."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._series_cache: dict[_SeriesKey, tuple[Counter, Histogram | None]] = {}

    def record(self, route: Route, request_info: RequestInfo, code: int, *, seconds: float) -> None:
        """Count one answered request."""
        key = (
            route.endpoint,
            request_info.kind,
            request_info.subresource,
            bool(request_info.name),
            bool(request_info.namespace),
            request_info.dry_run,
            code,
        )
        series = self._series_cache.get(key)
        if series is None:
            # Each version of a CustomResourceDefinition is another kind.
            if len(self._series_cache) >= _MAX_CACHED_SERIES:
                self._series_cache.clear()
            series = self._series_cache[key] = self._series(route, request_info, code)
        counter, histogram = series
        counter.add()
        if histogram is not None:
            histogram.observe(seconds)

    def _series(
        self, route: Route, request_info: RequestInfo, code: int
    ) -> tuple[Counter, Histogram | None]:
        kind = request_info.kind
        verb = "APPLY" if route.endpoint is apply_configuration else _VERBS[route.verb]
        scope = "namespace" if request_info.namespace else "cluster"
        if request_info.name:
            scope = "resource"
        labels = (
            verb, "All" if request_info.dry_run else "", kind.group, kind.version, kind.plural,
            request_info.subresource, scope, "apiserver",
        )  # fmt: skip
        histogram = None if verb == _WATCH_VERB else self._metrics.series(REQUEST_SECONDS, *labels)
        return self._metrics.series(REQUEST_TOTAL, *labels, str(code)), histogram


def register_gauges(metrics: Metrics, gates: FeatureGates, broadcaster: Sized) -> None:
    """Set the gauges of feature gates; read the number of open watches on each scrape."""
    for name, stage, is_on in gates.states():
        metrics.series(FEATURE_ENABLED, name, stage).value = is_on
    open_watches = metrics.series(LONGRUNNING_REQUESTS, _WATCH_VERB)

    def count_watches(watches: Sized) -> None:
        open_watches.value = len(watches)

    metrics.on_collect(broadcaster, count_watches)


# ---- the server ----------------------------------------------------------------------------------


class Server:
    """The Kubernetes API over a store."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        random: Random,
        *,
        kinds: Sequence[Kind] = KINDS,
        tokens: Tokens | None = None,
        gates: FeatureGates = DEFAULT_GATES,
        limit_critical_pods: bool = False,
        service_ranges: ServiceRanges | None = None,
        certificate_authority: CertificateAuthority | None = None,
        admit_service_accounts: bool = False,
        keep_history: bool = True,
        event_ttl: float = EVENT_TTL,
        webhook_urls: Mapping[str, str] | None = None,
        watch_intervals: WatchIntervals | None = None,
        compiler: Executor | None = None,
    ) -> None:
        self.metrics = Metrics()
        self.meter = StageMeter(self.metrics)
        broadcaster = WatchBroadcaster(store, self.meter, watch_intervals)
        registry = KindRegistry(gates.filter_served(kinds))
        self.access = AccessControl(store, clock, tokens or Tokens({}))
        self.priority_levels, self._audit_ids = PriorityLevels(), AuditIds(clock)
        hooks = DynamicAdmission(store, registry, self.priority_levels, urls=webhook_urls or {})
        self.context = ServerContext(
            store,
            clock,
            random,
            registry=registry,
            watch_broadcaster=broadcaster,
            meter=self.meter,
            access=self.access,
            gates=gates,
            admission_cache=AdmissionCache(store, kinds_read("CREATE", *CACHED_KINDS)),
            dynamic_admission=hooks,
            limits_critical_pods=limit_critical_pods,
            service_ranges=service_ranges or ServiceRanges(),
            certificate_authority=certificate_authority,
            admits_service_accounts=admit_service_accounts,
            keeps_history=keep_history,
            compiler=compiler,
        )
        #: Set by the process that owns the audit file; None: no audit log.
        self.audit: AuditLog | None = None
        self._request_metrics, self._has_store_failed = RequestMetrics(self.metrics), False
        self.health = HealthChecks(lambda: "the store has failed" if self._has_store_failed else "")
        register_gauges(self.metrics, gates, broadcaster)
        CustomResourceRegistrar(self.context)
        self._event_expirer = EventExpirer(store, clock, event_ttl)
        self.page_api = PageApi(self.access, store, clock)

    async def start(self) -> None:
        """Create the objects that every cluster has: namespaces, priority classes, roles."""
        for name in SYSTEM_NAMESPACES:
            await self._create_if_missing(NAMESPACE, {"metadata": {"name": name}})
        for name, value in SYSTEM_PRIORITY_CLASSES.items():
            found = {"metadata": {"name": name}, "value": value}
            await self._create_if_missing(PRIORITY_CLASS, found)
        if self.context.limits_critical_pods:
            await self._create_if_missing(RESOURCE_QUOTA, critical_pods_quota())
        await ensure_bootstrap_policy(self.context.store, self.context.now_timestamp())
        await ensure_bootstrap_objects(self.context)
        await resume_deletions(self.context)
        self._event_expirer.start()

    async def handle(self, request: Request) -> Reply | StreamReply:
        """Answer a request; every error becomes a reply."""
        started, resolved, actor = perf_counter(), None, request.user
        reply: Reply | StreamReply
        try:
            request = self.access.impersonate(request)
            if resolved := self._resolve_or_forbid(request):
                reply = await self._authorize_and_handle(*resolved)
            else:
                reply = self._handle_non_resource_path(request)
        except ApiError as error:
            reply = _log_and_reply(request, error)
        except StoreClosed:
            # The process is stopping. The client sees a lost connection, or asks the next process.
            LOG.debug("request refused", method=request.method, path=request.path, reason=STOPPING)
            reply = error_reply(ServiceUnavailable(STOPPING, retry_after=1))
        except StoreFailed as error:
            self._log_store_failure(error)
            reply = error_reply(ServerError(str(error)))
        except Exception:
            # A bug in the server; nothing was written. The reply and the log have the audit id.
            request = self._audit_ids.with_audit_id(request)
            LOG.error(
                "request failed",
                exc_info=True,
                method=request.method,
                path=request.path,
                audit_id=request.headers[AUDIT_ID],
            )
            reply = error_reply(ServerError(INTERNAL_ERROR))
        if resolved:
            self._request_metrics.record(*resolved, reply.code, seconds=perf_counter() - started)
        is_audited = (
            self.audit is not None and resolved is not None and resolved[0].verb not in READ_VERBS
        )
        if is_audited or reply.code >= 400 or AUDIT_ID in request.headers:
            reply = self._audit_response(request, actor, resolved, reply=reply)
        return reply

    def check_level(self, request: Request) -> None:
        """Refuse a request whose priority level is full, before its body is read.

        Every other error is left to `handle`.
        """
        if not self.priority_levels.is_any_full():
            return
        actor, resolved = request.user, None
        with contextlib.suppress(ApiError):
            request = self.access.impersonate(request)
            resolved = resolve_route(self.context, request)
        if resolved is None:
            return
        route, request_info = resolved
        try:
            with self.priority_levels.level_for(route.verb, request_info):
                pass
        except TooManyRequests as error:
            self._request_metrics.record(route, request_info, error.code, seconds=0.0)
            self._audit_response(request, actor, resolved, reply=error_reply(error))
            raise

    def _log_store_failure(self, error: StoreFailed) -> None:
        # Every later request fails for the same reason: one line at ERROR is enough.
        if self._has_store_failed:
            LOG.debug("store failed", error=error)
        else:
            LOG.error("store failed", error=error)
        self._has_store_failed = True

    def _audit_response(
        self,
        request: Request,
        actor: UserInfo,
        resolved: tuple[Route, RequestInfo] | None,
        *,
        reply: Reply | StreamReply,
    ) -> Reply | StreamReply:
        """Record a reply in the audit log; return it with its audit id, if it shows one."""
        audit_id = self._audit_ids.audit_id(request)
        route, request_info = resolved or (None, None)
        if self.audit is not None:
            verb = route.verb if route else request.method.lower()
            self.audit.record_response(
                audit_id, request, actor, verb=verb, request_info=request_info, reply=reply
            )
        if reply.code < 400 and AUDIT_ID not in request.headers:
            return reply
        return replace(reply, headers=(*reply.headers, (AUDIT_ID, audit_id)))

    async def _authorize_and_handle(
        self, route: Route, request_info: RequestInfo
    ) -> Reply | StreamReply:
        """Authorize a request, enter its priority level and call its handler.

        Errors carry warnings too: they often explain the error.
        """
        with self.meter.stage("authorise"):
            self.access.authorize(request_info.request.user, route.verb, request_info)
        reply: Reply | StreamReply
        try:
            with self.priority_levels.level_for(route.verb, request_info):
                reply = await route.endpoint(self.context, request_info)
            if isinstance(reply, StreamReply):
                self.priority_levels.track_watch(request_info.request.user, reply)
        except ApiError as error:
            refusal = _log_and_reply(request_info.request, error)
            headers = (*refusal.headers, *request_info.warning_headers())
            reply = replace(refusal, headers=headers)
        reply = encode_if_accepted(request_info.request, request_info.kind, reply)
        return _add_deprecation_warning(request_info.kind, reply)

    def _resolve_or_forbid(self, request: Request) -> tuple[Route, RequestInfo] | None:
        try:
            return resolve_route(self.context, request)
        except ApiError:
            # A user without access to the path must not learn which resources exist.
            self.access.authorize_unserved(request.user, request.method, request.path)
            raise

    async def _create_if_missing(self, kind: Kind, obj: Object) -> None:
        name, namespace = obj["metadata"]["name"], obj["metadata"].get("namespace", "")
        if self.context.store.get(kind.store_key(namespace, name)) is None:
            request = Request("POST", kind.url_path(namespace), user=ADMIN)
            request_info = RequestInfo(request, kind, namespace)
            await insert(self.context, request_info, obj)

    def _handle_non_resource_path(self, request: Request) -> Reply:
        path = request.path.rstrip("/") or "/"
        if web_ui.is_ui_path(path):
            return web_ui.serve_ui(request)
        if is_page_api_path(path):
            return self.page_api.serve(request)
        # A rule for `/healthz` does not cover `/healthz/`.
        self.access.authorize_unserved(request.user, request.method, request.path)
        handler = _PATH_HANDLERS.get(path) or _find_prefix_handler(request.path)
        reply = handler(self, request) if handler else _page_not_found()
        if request.method != "GET" and reply.code < 400 and not _ignores_method(path):
            raise MethodNotAllowed
        return reply


def _ignores_method(path: str) -> bool:
    """Whether a path answers any method: Kubernetes does not route these by method."""
    parts = path.strip("/").split("/")
    is_group = parts[0] == "apis" and len(parts) < 3
    return is_group or parts[0] in (*HEALTH_ENDPOINTS, "metrics", "openapi")


PathHandler = Callable[[Server, Request], Reply]


def _log_and_reply(request: Request, error: ApiError) -> Reply:
    if error.code == 429:
        LOG.debug(
            "request refused",
            method=request.method,
            path=request.path,
            user=request.user.name,
            reason=error.message,
        )
    elif isinstance(error, Timeout | WebhookError):
        # Not a bug: clients retry, and any client can ask for a revision of the future.
        what = "request timed out" if isinstance(error, Timeout) else "request refused"
        LOG.warning(what, method=request.method, path=request.path, reason=error.message)
    elif error.code >= 500:
        LOG.error(
            "request failed",
            exc_info=True,
            method=request.method,
            path=request.path,
            code=error.code,
        )
    return error_reply(error)


def error_reply(error: ApiError) -> Reply:
    """The Status that a client reads for an error."""
    headers: tuple[tuple[str, str], ...] = ()
    if error.retry_after:
        headers = (("retry-after", str(error.retry_after)),)
    return Reply(error.code, orjson.dumps(error.status()), headers=headers)


def _add_deprecation_warning(kind: Kind, reply: Reply | StreamReply) -> Reply | StreamReply:
    if not kind.deprecation:
        return reply
    text = kind.deprecation.replace("\\", "\\\\").replace('"', '\\"')
    return replace(reply, headers=(*reply.headers, ("warning", f'299 - "{text}"')))


def _page_not_found() -> Reply:
    return Reply(404, b"404 page not found\n", _TEXT)


def _json_reply(value: Object, request: Request) -> Reply:
    return encode_reply(Reply(200, orjson.dumps(value)), negotiate(request))


def _serve_version(server: Server, request: Request) -> Reply:
    major, minor = _KUBERNETES_VERSION
    version = {
        "major": major,
        "minor": minor,
        "gitVersion": f"v{major}.{minor}.0-phalanx.{__version__}",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "",
        "goVersion": "",
        "compiler": "",
        "platform": "",
    }
    return Reply(200, orjson.dumps(version))


def _serve_metrics(server: Server, request: Request) -> Reply:
    return Reply(200, server.metrics.render().encode(), METRICS_CONTENT_TYPE)


def _serve_slis(server: Server, request: Request) -> Reply:
    return Reply(200, server.health.render_metrics().encode(), METRICS_CONTENT_TYPE)


def _serve_core_versions(server: Server, request: Request) -> Reply:
    return _serve_discovery(server, request, core=True)


def _serve_api_groups(server: Server, request: Request) -> Reply:
    return _serve_discovery(server, request, core=False)


def _serve_discovery(server: Server, request: Request, *, core: bool) -> Reply:
    """Answer with aggregated discovery if the client accepts it, else with the plain lists."""
    registry = server.context.registry
    for part in request.headers.get("accept", "").split(","):
        if "as=APIGroupDiscoveryList" in part:
            version = "v2beta1" if "v=v2beta1" in part else "v2"
            body = orjson.dumps(
                discovery.build_aggregated_discovery(registry, core=core, version=version)
            )
            parameters = f"g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList"
            return Reply(200, body, f"{JSON};{parameters}")
    return _json_reply(
        discovery.api_versions() if core else discovery.group_list(registry), request
    )


def _serve_openapi_index(server: Server, request: Request) -> Reply:
    return Reply(200, orjson.dumps(discovery.openapi_index(server.context.registry)))


def _serve_jwks(server: Server, request: Request) -> Reply:
    """The public keys that verify service account tokens."""
    signer = server.access.authenticator.service_account_tokens.signer
    return Reply(200, orjson.dumps({"keys": [signer.jwk]}), "application/jwk-set+json")


def _serve_oidc_configuration(server: Server, request: Request) -> Reply:
    configuration = {
        "issuer": ISSUER,
        "jwks_uri": f"{ISSUER}/openid/v1/jwks",
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["ES256"],
    }
    return Reply(200, orjson.dumps(configuration))


#: An OpenAPI v2 document without schemas: {"swagger": "2.0", "info": {…}} in protobuf and JSON.
_OPENAPI_V2_PROTOBUF = b"\n\x032.0\x12\r\n\x07Phalanx\x12\x02v1"
_OPENAPI_V2_JSON = {
    "swagger": "2.0",
    "info": {"title": "Phalanx", "version": "v1"},
    "paths": {},
    "definitions": {},
}
_OPENAPI_V2_PROTOBUF_TYPE = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"


def _serve_openapi_v2(server: Server, request: Request) -> Reply:
    """An empty document: kubectl reads schemas from OpenAPI v3.

    kubectl still requires v2 in protobuf to exist: it validates a `List`, and kinds that are not
    in v3, against it, and accepts kinds that v2 does not describe.
    """
    if "proto-openapi" in request.headers.get("accept", ""):
        return Reply(200, _OPENAPI_V2_PROTOBUF, _OPENAPI_V2_PROTOBUF_TYPE)
    return Reply(200, orjson.dumps(_OPENAPI_V2_JSON))


_PATH_HANDLERS: Mapping[str, PathHandler] = {
    "/version": _serve_version,
    "/metrics": _serve_metrics,
    "/metrics/slis": _serve_slis,
    "/api": _serve_core_versions,
    "/apis": _serve_api_groups,
    "/openapi/v2": _serve_openapi_v2,
    "/openapi/v3": _serve_openapi_index,
    "/openid/v1/jwks": _serve_jwks,
    "/.well-known/openid-configuration": _serve_oidc_configuration,
}


def _find_prefix_handler(path: str) -> PathHandler | None:
    """The handler of `/api/V`, `/apis/G`, `/apis/G/V`, `/openapi/v3/…` and health checks."""
    if path.rstrip("/") != path and path.strip("/") in HEALTH_ENDPOINTS:
        return None
    parts = path.strip("/").split("/")
    if parts[:2] == ["openapi", "v3"]:
        return lambda server, request: _serve_openapi_v3(server, request, parts[2:])
    if parts[0] in HEALTH_ENDPOINTS:
        return lambda server, request: server.health.serve(request)
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
    if found:
        return _json_reply(found, request)
    group = "" if parts[0] == "api" else parts[1]
    if group in registry.versions_by_group():
        raise NoSuchResource  # a version that is not served
    return _page_not_found()


def _serve_openapi_v3(server: Server, request: Request, parts: list[str]) -> Reply:
    registry = server.context.registry
    group, version = (parts[1], parts[2]) if len(parts) == 3 else ("", parts[-1])
    if version not in registry.versions_by_group().get(group, ()):
        return _page_not_found()
    names_revision = "hash" in parse_query(request.query)
    headers = (("cache-control", "public, immutable"),) if names_revision else ()
    return Reply(200, discovery.openapi_document(registry, group, version), headers=headers)
