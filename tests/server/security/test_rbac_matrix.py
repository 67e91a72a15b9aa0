"""Every identity by verb, kind and namespace, as HTTP requests, compared with matrix.txt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import orjson
import pytest

from phalanx.api.kinds import KINDS, SERVICE_ACCOUNT, Kind
from phalanx.api.wire import JSON, MERGE_PATCH, Reply, Request, StreamReply
from phalanx.server.discovery import SUBRESOURCES
from phalanx.server.http_parser import HttpLimits, HttpParser
from phalanx.server.security.authentication import IssuedTokenFile, Tokens
from phalanx.server.security.authorization import ADMIN
from phalanx.server.security.request_guard import RequestGuard
from phalanx.server.security.users import authenticated_user, node_user, service_account_user
from tests.builders import in_virtual_time
from tests.server.api import Api
from tests.server.http_peers import request
from tests.server.security.rbac_fixtures import grant

HUMAN_USERS = {
    "viewer": authenticated_user("viewer"),
    "editor": authenticated_user("editor"),
    "admin": authenticated_user("boss"),
}
ROLES = {"viewer": "view", "editor": "edit", "admin": "admin"}
COMPONENTS = {
    "scheduler": authenticated_user("system:kube-scheduler"),
    "job": service_account_user("kube-system", "job-controller"),
    "node": node_user("n1"),
}
USERS = {**HUMAN_USERS, **COMPONENTS, "master": ADMIN}
VERBS = {
    "get": "g", "list": "l", "watch": "w", "create": "c", "update": "u", "patch": "p",
    "delete": "d", "deletecollection": "D",
}  # fmt: skip
METHODS = {
    "get": "GET", "list": "GET", "watch": "GET", "create": "POST", "update": "PUT",
    "patch": "PATCH", "delete": "DELETE", "deletecollection": "DELETE",
}  # fmt: skip
#: The namespace in which the users have roles, one in which they have none, and all (for lists).
DEFAULT, SYSTEM, ALL_NAMESPACES = "default", "kube-system", ""


class MatrixRequest(NamedTuple):
    """One request: kind, subresource, verb and namespace."""

    kind: Kind
    subresource: str
    verb: str
    namespace: str

    @property
    def resource(self) -> str:
        plural = f"{self.kind.plural}/{self.subresource}" if self.subresource else self.kind.plural
        return f"{plural}.{self.kind.group}" if self.kind.group else plural

    def bytes(self, token: str) -> bytes:
        """Encode the request as a dry run."""
        has_name = bool(self.subresource) or self.verb in ("get", "update", "patch", "delete")
        path = self.kind.url_path(self.namespace, "x" if has_name else "", self.subresource)
        query = {"watch": "watch=1&timeoutSeconds=1"}.get(self.verb, "")
        if METHODS[self.verb] != "GET":
            query = "dryRun=All"
        content = MERGE_PATCH if self.verb == "patch" else JSON
        headers = (f"Authorization: Bearer {token}",) if token else ()
        target = f"{path}?{query}" if query else path
        body = b"" if METHODS[self.verb] == "GET" else b"{}"
        return request(METHODS[self.verb], target, f"Content-Type: {content}", *headers, body=body)


def matrix_requests() -> Iterator[MatrixRequest]:
    """Yield all requests that the server serves, each kind in one version."""
    kinds = {(kind.group, kind.plural): kind for kind in reversed(KINDS)}
    for kind in kinds.values():
        subresources = {
            "": kind.verbs,
            **{subresource: SUBRESOURCES[subresource][3] for subresource in kind.subresources},
        }
        for subresource, verbs in subresources.items():
            for verb in verbs:
                for namespace in _namespaces(kind, subresource, verb):
                    yield MatrixRequest(kind, subresource, verb, namespace)


def _namespaces(kind: Kind, subresource: str, verb: str) -> tuple[str, ...]:
    if not kind.namespaced:
        return (ALL_NAMESPACES,)
    lists = verb in ("list", "watch") and not subresource
    return (DEFAULT, SYSTEM, ALL_NAMESPACES) if lists else (DEFAULT, SYSTEM)


@cache
def load_matrix() -> Mapping[str, Mapping[str, str]]:
    """Parse matrix.txt: resource -> identity -> letters of verbs."""
    lines = (Path(__file__).parent / "matrix.txt").read_text().splitlines()
    rows = [line.split() for line in lines if line and not line.startswith("#")]
    columns = ("viewer", "editor", "admin", "scheduler", "job", "node")
    return {row[0]: dict(zip(columns, row[1:], strict=True)) for row in rows}


def matrix_allows(identity: str, tested: MatrixRequest) -> bool:
    """Whether the table allows a request."""
    if identity == "master":
        return True
    has_role = tested.namespace == DEFAULT or not tested.kind.namespaced
    return (identity in COMPONENTS or has_role) and VERBS[tested.verb] in load_matrix()[
        tested.resource
    ][identity]


async def start_server() -> Api:
    api = await Api.start(tokens=Tokens(USERS))
    for name, user in HUMAN_USERS.items():
        await grant(api, user, ROLES[name], DEFAULT)
    await api.create(SERVICE_ACCOUNT, {"metadata": {"name": "x", "namespace": DEFAULT}})
    return api


async def rejection_code(api: Api, tested: MatrixRequest, token: str) -> int:
    """Return 401 or 403 if authentication or authorization rejects the request, else 0."""
    # A refused request with a body is the last one of its parser.
    parser = HttpParser(RequestGuard(api.server.access.authenticator), HttpLimits())
    (parsed,) = parser.feed(tested.bytes(token))
    if not isinstance(parsed.request, Request):
        return parsed.request.code
    reply = await api.server.handle(parsed.request)
    if isinstance(reply, StreamReply):
        await reply.chunks.aclose()
        return 0
    return reply.code if _is_authorization_failure(reply, tested) else 0


def _is_authorization_failure(reply: Reply, tested: MatrixRequest) -> bool:
    message = orjson.loads(reply.body).get("message", "") if reply.code == 403 else ""
    return f" cannot {tested.verb} resource " in message


def test_matrix_has_exactly_one_row_per_served_resource() -> None:
    assert set(load_matrix()) == {tested.resource for tested in matrix_requests()}
    letters = {letter for row in load_matrix().values() for text in row.values() for letter in text}
    assert letters == {*VERBS.values(), "-"}


@pytest.mark.parametrize("identity", USERS)
@in_virtual_time
async def test_every_identity_may_exactly_what_the_matrix_allows(identity: str) -> None:
    api = await start_server()
    before = api.store.revision
    wrong = [
        tested
        for tested in matrix_requests()
        if (await rejection_code(api, tested, identity) == 0) != matrix_allows(identity, tested)
    ]
    assert [(tested.resource, tested.verb, tested.namespace) for tested in wrong] == []
    assert api.store.revision == before


@pytest.mark.parametrize(("token", "code"), [("", 403), ("bad", 401)])
@in_virtual_time
async def test_missing_or_invalid_credential_is_rejected_everywhere(token: str, code: int) -> None:
    api = await start_server()
    found = {await rejection_code(api, tested, token) for tested in matrix_requests()}
    assert found == {code}


@in_virtual_time
async def test_expired_token_is_rejected_everywhere(tmp_path: Path) -> None:
    file = IssuedTokenFile(tmp_path / "tokens.json")
    token = file.create(ADMIN, 0.0, 60.0)
    api = await Api.start(tokens=Tokens({}, file=file))
    assert {await rejection_code(api, tested, token) for tested in matrix_requests()} == {401}


def test_matrix_covers_at_least_2500_requests() -> None:
    assert len(list(matrix_requests())) * (len(USERS) + 3) > 2500
