"""What to ask an API server: verbs, kinds and options as requests. No I/O.

`client.Client` sends what is made here; `answers` reads what comes back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict
from urllib.parse import urlencode

import orjson

from phalanx.api.errors import BadRequest
from phalanx.api.kinds import Kind
from phalanx.api.meta import Key
from phalanx.api.wire import JSON, Object, Request

METHODS = {
    "get": "GET",
    "list": "GET",
    "watch": "GET",
    "create": "POST",
    "update": "PUT",
    "patch": "PATCH",
    "delete": "DELETE",
}
_NAMED = ("get", "update", "patch", "delete")
_WATCH = "watch=true&allowWatchBookmarks=true"


class Scope(TypedDict, total=False):
    """Which part of a collection; all of it where nothing is said."""

    namespace: str
    label_selector: str
    field_selector: str


def build(
    verb: str,
    kind: Kind,
    key: Key,
    *,
    subresource: str = "",
    query: Mapping[str, str | int] | None = None,
    body: bytes | Object = b"",
    content: str = JSON,
) -> Request:
    """A verb on an object, or on a collection where the name is empty. Drops empty options."""
    if verb in _NAMED and not key.name:
        raise BadRequest(f"the name of the {kind.name} to {verb} is empty")
    for part in key:
        _check_segment(part)
    options = urlencode({name: value for name, value in (query or {}).items() if value})
    if verb == "watch":
        options = f"{_WATCH}&{options}" if options else _WATCH
    path = kind.path(key.namespace, key.name, subresource)
    return Request(METHODS[verb], path, options, headers(body, content), body)


def collection(verb: str, kind: Kind, scope: Scope, query: Mapping[str, str | int]) -> Request:
    """A list or a watch of a part of a collection."""
    selectors = {
        "labelSelector": scope.get("label_selector", ""),
        "fieldSelector": scope.get("field_selector", ""),
    }
    return build(verb, kind, Key(scope.get("namespace", ""), ""), query={**selectors, **query})


def headers(body: bytes | Object, content: str = JSON) -> dict[str, str]:
    """What is said about a body, if there is one, and about the answer."""
    return {"accept": JSON, "content-type": content} if body else {"accept": JSON}


def is_watch(request: Request) -> bool:
    """Whether a request made here is to be answered in pieces."""
    return request.query.startswith(_WATCH)


def changes(change: Object | Sequence[Object]) -> bytes | Object:
    """The body of a patch: an object stays one, the operations of a JSON patch become bytes."""
    return change if isinstance(change, dict) else orjson.dumps(change)


def delete_options(uid: str, version: str, grace: int | None, propagation: str) -> Object:
    """How to delete, and what must still hold for it."""
    preconditions = {"uid": uid, "resourceVersion": version}
    options: Object = {
        "gracePeriodSeconds": grace,
        "preconditions": {name: value for name, value in preconditions.items() if value} or None,
        "propagationPolicy": propagation or None,
    }
    given = {name: value for name, value in options.items() if value is not None}
    return {"kind": "DeleteOptions", "apiVersion": "v1", **given}


def _check_segment(part: str) -> None:
    """A name is one segment of a path and must not be able to mean another path."""
    if part in (".", "..") or "/" in part or "%" in part:
        raise BadRequest(f'"{part}" is no name: "." and ".." are not, nor what holds "/" or "%"')
