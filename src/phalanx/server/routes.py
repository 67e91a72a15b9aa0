"""From a path to what it means. The table of endpoints is the server's table of contents."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from phalanx.api.errors import BadRequest, MethodNotAllowed, NoSuchResource
from phalanx.api.kinds import (
    BINDING,
    GROUP_BINDING,
    GROUP_EVICTION,
    LEASE_RENEWAL,
    LOCAL_SUBJECT_ACCESS_REVIEW,
    NODE_METRICS,
    POD_METRICS,
    SELF_SUBJECT_ACCESS_REVIEW,
    SELF_SUBJECT_REVIEW,
    SELF_SUBJECT_RULES_REVIEW,
    SUBJECT_ACCESS_REVIEW,
    TOKEN_REVIEW,
    Kind,
)
from phalanx.api.wire import APPLY_PATCH, Reply, Request, StreamReply
from phalanx.server import auth_handlers as reviews
from phalanx.server import auth_handlers as tokenrequests
from phalanx.server import binding, eviction
from phalanx.server import deletion as deleting
from phalanx.server import eviction as groupevictions
from phalanx.server import lease_renewal as renewing
from phalanx.server import pod_logs as logs
from phalanx.server import read_handlers as reading
from phalanx.server import resource_metrics as figures
from phalanx.server import scale as scales
from phalanx.server import server_side_apply as applying
from phalanx.server import write_handlers as writing
from phalanx.server.context import ServerContext
from phalanx.server.request_info import RequestInfo, parse_query
from phalanx.server.serialization import media_type

Endpoint = Callable[[ServerContext, RequestInfo], Awaitable[Reply | StreamReply]]


@dataclass(frozen=True, slots=True)
class Route:
    """The verb that a request amounts to, for authorisation, and the function that does it."""

    verb: str
    endpoint: Endpoint


#: (method, what the path names) -> route. A subresource is named by itself.
ROUTES: Mapping[tuple[str, str], Route] = {
    ("GET", "collection"): Route("list", reading.list_or_watch),
    ("POST", "collection"): Route("create", writing.create),
    ("DELETE", "collection"): Route("deletecollection", deleting.delete_collection),
    ("GET", "object"): Route("get", reading.get_object),
    ("PUT", "object"): Route("update", writing.update),
    ("PATCH", "object"): Route("patch", writing.patch),
    ("DELETE", "object"): Route("delete", deleting.delete),
    ("GET", "status"): Route("get", reading.get_object),
    ("PUT", "status"): Route("update", writing.update),
    ("PATCH", "status"): Route("patch", writing.patch),
    ("PUT", "finalize"): Route("update", writing.update),
    **{
        (method, part): Route(verb, endpoint)
        for part in ("resize", "ephemeralcontainers")
        for method, verb, endpoint in (
            ("GET", "get", reading.get_object),
            ("PUT", "update", writing.update),
            ("PATCH", "patch", writing.patch),
        )
    },
    ("GET", "scale"): Route("get", scales.get_scale),
    ("PUT", "scale"): Route("update", scales.update_scale),
    ("PATCH", "scale"): Route("patch", scales.patch_scale),
    ("POST", "binding"): Route("create", binding.bind),
    ("POST", "eviction"): Route("create", eviction.evict),
    ("GET", "log"): Route("get", logs.read_log),
    ("POST", "log"): Route("create", logs.append_log),
    ("POST", "token"): Route("create", tokenrequests.issue_token),
}

#: Collections whose objects are never stored: a POST is an act.
CREATE_ONLY_ENDPOINTS: Mapping[Kind, Endpoint] = {
    BINDING: binding.bind,
    GROUP_BINDING: binding.bind_group,
    GROUP_EVICTION: groupevictions.evict_group,
    LEASE_RENEWAL: renewing.renew_leases,
    LOCAL_SUBJECT_ACCESS_REVIEW: reviews.access_review,
    POD_METRICS: figures.report_pod_metrics,
    SELF_SUBJECT_ACCESS_REVIEW: reviews.self_access_review,
    SELF_SUBJECT_REVIEW: reviews.self_review,
    SELF_SUBJECT_RULES_REVIEW: reviews.self_rules_review,
    SUBJECT_ACCESS_REVIEW: reviews.access_review,
    TOKEN_REVIEW: reviews.token_review,
}

#: Kinds whose objects are made when they are asked for.
COMPUTED_ENDPOINTS: Mapping[Kind, Endpoint] = {
    NODE_METRICS: figures.node_metrics,
    POD_METRICS: figures.pod_metrics,
}


def resolve_route(context: ServerContext, request: Request) -> tuple[Route, RequestInfo] | None:
    """The route and the call of a path about objects; None when it is about something else."""
    place = _split_path(request.path)
    if place is None:
        return None
    group, version, rest = place
    if not context.registry.serves(group, version):
        return None
    call = _build_request_info(context, request, group, version, rest)
    route = _find_route(call)
    if call.is_watch and route.endpoint is reading.list_or_watch:
        return Route("watch", reading.watch_objects), call
    call.check_timeout()
    return route, call


def _split_path(path: str) -> tuple[str, str, list[str]] | None:
    """Group, version and the rest of the path, when there is a rest."""
    parts = path.strip("/").split("/")
    if "%" in path:
        parts = [unquote(part) for part in parts]
    if parts[0] == "api" and len(parts) > 2:
        return "", parts[1], parts[2:]
    if parts[0] == "apis" and len(parts) > 3:
        return parts[1], parts[2], parts[3:]
    return None


def _build_request_info(
    context: ServerContext, request: Request, group: str, version: str, rest: list[str]
) -> RequestInfo:
    """`[namespaces/NS/]PLURAL[/NAME[/SUBRESOURCE]]`; a Namespace's own parts are no namespaces."""
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and not _is_namespace_subresource(context, rest):
        namespace, rest = rest[1], rest[2:]
    plural, name, subresource, *more = *rest, *[""] * (3 - len(rest))
    kind = context.registry.find(group, version, plural)
    if kind is None or any(more) or bool(namespace) > kind.namespaced:
        raise NoSuchResource
    if subresource and subresource not in kind.subresources:
        raise NoSuchResource
    if name in (".", "..") or "/" in name or "%" in name:
        raise BadRequest(f'Name parameter invalid: "{name}": may not contain "/" or "%"')
    query = parse_query(request.query)
    return RequestInfo(request, kind, namespace, name, subresource, query)


def _is_namespace_subresource(context: ServerContext, rest: list[str]) -> bool:
    kind = context.registry.find("", "v1", "namespaces")
    return kind is not None and len(rest) == 3 and rest[2] in kind.subresources


def _find_route(call: RequestInfo) -> Route:
    method = call.request.method
    scope = call.subresource or ("object" if call.name else "collection")
    if scope == "collection" and method == "POST" and call.kind in CREATE_ONLY_ENDPOINTS:
        return Route("create", CREATE_ONLY_ENDPOINTS[call.kind])
    route = ROUTES.get((method, scope))
    nowhere = call.kind.namespaced and not call.namespace
    if route is None or (nowhere and route.verb != "list"):
        raise MethodNotAllowed
    if not call.subresource and route.verb not in call.kind.verbs:
        raise MethodNotAllowed
    if call.kind in COMPUTED_ENDPOINTS:
        return Route(route.verb, COMPUTED_ENDPOINTS[call.kind])
    if route.endpoint is writing.patch and media_type(call.request) == APPLY_PATCH:
        return Route("patch", applying.apply_configuration)
    return route
