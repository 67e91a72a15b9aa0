"""The authorizer of admission expressions: may a user make some request?

    authorizer.group("apps").resource("deployments").namespace("default").check("create").allowed()
    authorizer.path("/healthz").check("get").allowed()
    authorizer.requestResource.check("delete").allowed()

The caller passes the function that decides; nothing here knows users or roles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from phalanx.api.cel.declarations import (
    BOOL,
    STRING,
    CelType,
    FunctionOverload,
    ObjectField,
    method,
    no_extra_cost,
)
from phalanx.api.wire import Object


class AuthorizationQuery(NamedTuple):
    """A request that may be allowed or not; `service_account` is `namespace/name` or ""."""

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""
    service_account: str = ""


#: Decides whether a request is allowed.
AuthorizationCheck = Callable[[AuthorizationQuery], bool]


@dataclass(frozen=True, slots=True)
class PathCheck:
    """A path without its verb."""

    type_name: ClassVar[str] = "kubernetes.authorization.PathCheck"
    check: AuthorizationCheck
    query: AuthorizationQuery


@dataclass(frozen=True, slots=True)
class GroupCheck:
    """A group without its resource."""

    type_name: ClassVar[str] = "kubernetes.authorization.GroupCheck"
    check: AuthorizationCheck
    query: AuthorizationQuery


@dataclass(frozen=True, slots=True)
class ResourceCheck:
    """A resource without its verb."""

    type_name: ClassVar[str] = "kubernetes.authorization.ResourceCheck"
    check: AuthorizationCheck
    query: AuthorizationQuery


@dataclass(frozen=True, slots=True)
class AuthorizationDecision:
    """Whether a request is allowed."""

    type_name: ClassVar[str] = "kubernetes.authorization.Decision"
    is_allowed: bool


_PATH, _GROUP = CelType(PathCheck.type_name), CelType(GroupCheck.type_name)
_RESOURCE, _DECISION = CelType(ResourceCheck.type_name), CelType(AuthorizationDecision.type_name)
AUTHORIZER = CelType(
    "object",
    fields={"requestResource": ObjectField("requestResource", _RESOURCE)},
    path="kubernetes.authorization.Authorizer",
)
#: The key of the check in the value of an authorizer; no expression can select it.
_CHECK, _ACCOUNT = "(check)", "(service account)"
#: Steps that a check takes: it compares the rules of all roles of a user.
_CHECK_COST = 5_000


def authorizer_value(check: AuthorizationCheck, requested: AuthorizationQuery) -> Object:
    """Return the authorizer of a request, whose resource is `requested`."""
    return {"requestResource": ResourceCheck(check, requested), _CHECK: check, _ACCOUNT: ""}


def _query(authorizer: Object, **facts: str) -> AuthorizationQuery:
    return AuthorizationQuery("", service_account=authorizer[_ACCOUNT], **facts)


def _set(field: str) -> Callable[[ResourceCheck, str], ResourceCheck]:
    return lambda one, value: replace(one, query=one.query._replace(**{field: value}))


def _decide(one: Any, verb: str) -> AuthorizationDecision:
    return AuthorizationDecision(one.check(one.query._replace(verb=verb)))


AUTHORIZER_FUNCTIONS: list[FunctionOverload] = [
    method(
        "path", (AUTHORIZER, STRING), _PATH,
        lambda a, path: PathCheck(a[_CHECK], _query(a, path=path)), cost=no_extra_cost,
    ),
    method(
        "group", (AUTHORIZER, STRING), _GROUP,
        lambda a, group: GroupCheck(a[_CHECK], _query(a, group=group)), cost=no_extra_cost,
    ),
    method(
        "serviceAccount", (AUTHORIZER, STRING, STRING), AUTHORIZER,
        lambda a, namespace, name: {**a, _ACCOUNT: f"{namespace}/{name}"}, cost=no_extra_cost,
    ),
    method(
        "resource", (_GROUP, STRING), _RESOURCE,
        lambda one, name: ResourceCheck(one.check, one.query._replace(resource=name)),
    ),
    *(
        method(field, (_RESOURCE, STRING), _RESOURCE, _set(field))
        for field in ("subresource", "namespace", "name")
    ),
    *(
        method("check", (kind, STRING), _DECISION, _decide, cost=lambda values: _CHECK_COST)
        for kind in (_PATH, _RESOURCE)
    ),
    method("allowed", (_DECISION,), BOOL, lambda one: one.is_allowed),
    method("reason", (_DECISION,), STRING, lambda one: ""),
    method("errored", (_DECISION,), BOOL, lambda one: False),
    method("error", (_DECISION,), STRING, lambda one: ""),
]  # fmt: skip
