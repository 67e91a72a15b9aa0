"""Routes: from the method and path of a request to the handler that answers it.

`ROUTES` lists the handlers of stored objects and their subresources; `CREATE_ONLY_ENDPOINTS` and
`COMPUTED_ENDPOINTS` list those of kinds that are never stored.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from urllib.parse import unquote

from phalanx.api.custom_resources.custom_kinds import CustomKind
from phalanx.api.errors import BadRequest, MethodNotAllowed, NoSuchResource
from phalanx.api.kinds import (
    BINDING,
    COMPONENT_STATUS,
    CUSTOM_RESOURCE_DEFINITION,
    GROUP_BINDING,
    GROUP_EVICTION,
    LEASE_RENEWAL,
    LOCAL_SUBJECT_ACCESS_REVIEW,
    NAMESPACE,
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
from phalanx.server import (
    auth_handlers,
    binding,
    component_statuses,
    deletion,
    eviction,
    lease_renewal,
    pod_logs,
    read_handlers,
    resource_metrics,
    scale,
    server_side_apply,
    write_handlers,
)
from phalanx.server.context import ServerContext
from phalanx.server.converted_store import handle_converted
from phalanx.server.custom_resources import handle_definition
from phalanx.server.request_info import RequestInfo, is_illegal_path_name, parse_query
from phalanx.server.serialization import media_type

Endpoint = Callable[[ServerContext, RequestInfo], Awaitable[Reply | StreamReply]]


@dataclass(frozen=True, slots=True)
class Route:
    """The verb of a request, for authorization, and its handler."""

    verb: str
    endpoint: Endpoint


#: (method, what the path names) -> route. Subresources are listed by their name.
ROUTES: Mapping[tuple[str, str], Route] = {
    ("GET", "collection"): Route("list", read_handlers.list_or_watch),
    ("POST", "collection"): Route("create", write_handlers.create),
    ("DELETE", "collection"): Route("deletecollection", deletion.delete_collection),
    ("GET", "object"): Route("get", read_handlers.get_object),
    ("PUT", "object"): Route("update", write_handlers.update),
    ("PATCH", "object"): Route("patch", write_handlers.patch),
    ("DELETE", "object"): Route("delete", deletion.delete),
    ("GET", "status"): Route("get", read_handlers.get_object),
    ("PUT", "status"): Route("update", write_handlers.update),
    ("PATCH", "status"): Route("patch", write_handlers.patch),
    ("PUT", "finalize"): Route("update", write_handlers.update),
    **{
        (method, part): Route(verb, endpoint)
        for part in ("approval", "resize", "ephemeralcontainers")
        for method, verb, endpoint in (
            ("GET", "get", read_handlers.get_object),
            ("PUT", "update", write_handlers.update),
            ("PATCH", "patch", write_handlers.patch),
        )
    },
    ("GET", "scale"): Route("get", scale.get_scale),
    ("PUT", "scale"): Route("update", scale.update_scale),
    ("PATCH", "scale"): Route("patch", scale.patch_scale),
    ("POST", "binding"): Route("create", binding.bind),
    ("POST", "eviction"): Route("create", eviction.evict),
    ("GET", "log"): Route("get", pod_logs.read_log),
    ("POST", "log"): Route("create", pod_logs.append_log),
    ("POST", "token"): Route("create", auth_handlers.issue_token),
}

#: Kinds that are never stored: a POST performs an action.
CREATE_ONLY_ENDPOINTS: Mapping[Kind, Endpoint] = {
    BINDING: binding.bind,
    GROUP_BINDING: binding.bind_group,
    GROUP_EVICTION: eviction.evict_group,
    LEASE_RENEWAL: lease_renewal.renew_leases,
    LOCAL_SUBJECT_ACCESS_REVIEW: auth_handlers.access_review,
    POD_METRICS: resource_metrics.report_pod_metrics,
    SELF_SUBJECT_ACCESS_REVIEW: auth_handlers.self_access_review,
    SELF_SUBJECT_REVIEW: auth_handlers.self_review,
    SELF_SUBJECT_RULES_REVIEW: auth_handlers.self_rules_review,
    SUBJECT_ACCESS_REVIEW: auth_handlers.access_review,
    TOKEN_REVIEW: auth_handlers.token_review,
}

#: Kinds that are never stored: objects are computed on request.
COMPUTED_ENDPOINTS: Mapping[Kind, Endpoint] = {
    COMPONENT_STATUS: component_statuses.component_statuses,
    NODE_METRICS: resource_metrics.node_metrics,
    POD_METRICS: resource_metrics.pod_metrics,
}


def resolve_route(context: ServerContext, request: Request) -> tuple[Route, RequestInfo] | None:
    """The route and the RequestInfo of a path about resources; None for other paths."""
    parts = _split_path(request.path)
    if parts is None:
        return None
    group, version, rest = parts
    if not context.registry.serves(group, version):
        return None
    request_info = _build_request_info(context, request, group=group, version=version, rest=rest)
    route = _find_route(request_info)
    if request_info.is_watch and (
        route.endpoint is read_handlers.list_or_watch or request_info.is_old_watch
    ):
        route = Route("watch", read_handlers.watch_objects)
    else:
        request_info.check_timeout()
    kind = request_info.kind
    if isinstance(kind, CustomKind) and kind.conversion is not None:
        endpoint = partial(handle_converted, verb=route.verb, endpoint=route.endpoint)
        route = Route(route.verb, endpoint)
    elif kind is CUSTOM_RESOURCE_DEFINITION and request_info.request.method != "GET":
        route = Route(route.verb, partial(handle_definition, endpoint=route.endpoint))
    return route, request_info


def _split_path(path: str) -> tuple[str, str, list[str]] | None:
    """Group, version and the rest of a path about resources."""
    parts = path.strip("/").split("/")
    if "%" in path:
        parts = [unquote(part) for part in parts]
    if parts[0] == "api" and len(parts) > 2:
        return "", parts[1], parts[2:]
    if parts[0] == "apis" and len(parts) > 3:
        return parts[1], parts[2], parts[3:]
    return None


def _build_request_info(
    context: ServerContext, request: Request, *, group: str, version: str, rest: list[str]
) -> RequestInfo:
    """Parse `[namespaces/NS/]PLURAL[/NAME[/SUBRESOURCE]]`, behind `watch/` in old paths."""
    namespace = ""
    query = parse_query(request.query)
    if rest[0] == "watch" and len(rest) > 1 and request.method == "GET":
        rest, query = rest[1:], {**query, "watch": "true"}
    has_namespace = rest[0] == "namespaces" and len(rest) > 2
    # `namespaces/NS/status` is a subresource, `namespaces/NS/pods` a resource.
    if has_namespace and (len(rest) > 3 or rest[2] not in NAMESPACE.subresources):
        namespace, rest = rest[1], rest[2:]
    plural, name, subresource, *more = *rest, *[""] * (3 - len(rest))
    kind = context.registry.find(group, version, plural)
    if kind is None or any(more) or bool(namespace) > kind.namespaced:
        raise NoSuchResource
    if subresource and subresource not in kind.subresources:
        raise NoSuchResource
    if is_illegal_path_name(name):
        raise BadRequest(f'Name parameter invalid: "{name}": may not contain "/" or "%"')
    return RequestInfo(request, kind, namespace, name, subresource, query)


def _find_route(request_info: RequestInfo) -> Route:
    method = request_info.request.method
    scope = request_info.subresource or ("object" if request_info.name else "collection")
    if scope == "collection" and method == "POST" and request_info.kind in CREATE_ONLY_ENDPOINTS:
        return Route("create", CREATE_ONLY_ENDPOINTS[request_info.kind])
    route = ROUTES.get((method, scope))
    lacks_namespace = request_info.kind.namespaced and not request_info.namespace
    if route is None or (lacks_namespace and route.verb != "list"):
        kind = request_info.kind
        # Kubernetes names the resource only where a definition serves it.
        raise (
            MethodNotAllowed(group=kind.group, kind=kind.plural)
            if kind.is_custom
            else (MethodNotAllowed())
        )
    if not request_info.subresource and route.verb not in request_info.kind.verbs:
        raise MethodNotAllowed
    if request_info.kind in COMPUTED_ENDPOINTS:
        return Route(route.verb, COMPUTED_ENDPOINTS[request_info.kind])
    if route.endpoint is write_handlers.patch and media_type(request_info.request) == APPLY_PATCH:
        return Route("patch", server_side_apply.apply_configuration)
    return route
