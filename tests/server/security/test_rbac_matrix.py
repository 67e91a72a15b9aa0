"""Every identity by verb, kind and namespace, as bytes, against a table written by hand."""

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

PEOPLE = {
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
USERS = {**PEOPLE, **COMPONENTS, "master": ADMIN}
VERBS = {
    "get": "g", "list": "l", "watch": "w", "create": "c", "update": "u", "patch": "p",
    "delete": "d", "deletecollection": "D",
}  # fmt: skip
METHODS = {
    "get": "GET", "list": "GET", "watch": "GET", "create": "POST", "update": "PUT",
    "patch": "PATCH", "delete": "DELETE", "deletecollection": "DELETE",
}  # fmt: skip
#: Where the people have their roles, where they have none, and (for lists) everywhere at once.
HERE, THERE, EVERYWHERE = "default", "kube-system", ""


class Cell(NamedTuple):
    """One thing that can be asked."""

    kind: Kind
    part: str
    verb: str
    namespace: str

    @property
    def resource(self) -> str:
        what = f"{self.kind.plural}/{self.part}" if self.part else self.kind.plural
        return f"{what}.{self.kind.group}" if self.kind.group else what

    def bytes(self, token: str) -> bytes:
        """The request; nothing that it asks for is done."""
        named = bool(self.part) or self.verb in ("get", "update", "patch", "delete")
        path = self.kind.url_path(self.namespace, "x" if named else "", self.part)
        query = {"watch": "watch=1&timeoutSeconds=1"}.get(self.verb, "")
        if METHODS[self.verb] != "GET":
            query = "dryRun=All"
        content = MERGE_PATCH if self.verb == "patch" else JSON
        shown = (f"Authorization: Bearer {token}",) if token else ()
        target = f"{path}?{query}" if query else path
        body = b"" if METHODS[self.verb] == "GET" else b"{}"
        return request(METHODS[self.verb], target, f"Content-Type: {content}", *shown, body=body)


def cells() -> Iterator[Cell]:
    """All that is served, each kind in one of its versions."""
    kinds = {(kind.group, kind.plural): kind for kind in reversed(KINDS)}
    for kind in kinds.values():
        parts = {"": kind.verbs, **{part: SUBRESOURCES[part][3] for part in kind.subresources}}
        for part, verbs in parts.items():
            for verb in verbs:
                for namespace in _places(kind, part, verb):
                    yield Cell(kind, part, verb, namespace)


def _places(kind: Kind, part: str, verb: str) -> tuple[str, ...]:
    if not kind.namespaced:
        return (EVERYWHERE,)
    lists = verb in ("list", "watch") and not part
    return (HERE, THERE, EVERYWHERE) if lists else (HERE, THERE)


@cache
def table() -> Mapping[str, Mapping[str, str]]:
    """The hand-written table: resource -> identity -> letters."""
    lines = (Path(__file__).parent / "matrix.txt").read_text().splitlines()
    rows = [line.split() for line in lines if line and not line.startswith("#")]
    columns = ("viewer", "editor", "admin", "scheduler", "job", "node")
    return {row[0]: dict(zip(columns, row[1:], strict=True)) for row in rows}


def may(who: str, cell: Cell) -> bool:
    """What the table says."""
    if who == "master":
        return True
    is_here = cell.namespace == HERE or not cell.kind.namespaced
    return (who in COMPONENTS or is_here) and VERBS[cell.verb] in table()[cell.resource][who]


async def a_server() -> tuple[Api, HttpParser]:
    api = await Api.start(tokens=Tokens(USERS))
    for name, user in PEOPLE.items():
        await grant(api, user, ROLES[name], HERE)
    await api.create(SERVICE_ACCOUNT, {"metadata": {"name": "x", "namespace": HERE}})
    return api, HttpParser(RequestGuard(api.server.access.authenticator), HttpLimits())


async def is_refused(api: Api, parser: HttpParser, cell: Cell, token: str) -> int:
    """401 or 403 if the request was refused for want of a right, 0 if not."""
    (asked,) = parser.feed(cell.bytes(token))
    if not isinstance(asked.request, Request):
        return asked.request.code
    answer = await api.server.handle(asked.request)
    if isinstance(answer, StreamReply):
        await answer.chunks.aclose()
        return 0
    return answer.code if _is_about_rights(answer, cell) else 0


def _is_about_rights(answer: Reply, cell: Cell) -> bool:
    said = orjson.loads(answer.body).get("message", "") if answer.code == 403 else ""
    return f" cannot {cell.verb} resource " in said


def test_the_table_has_a_row_for_everything_that_is_served_and_no_other() -> None:
    assert set(table()) == {cell.resource for cell in cells()}
    letters = {letter for row in table().values() for text in row.values() for letter in text}
    assert letters == {*VERBS.values(), "-"}


@pytest.mark.parametrize("who", USERS)
@in_virtual_time
async def test_everybody_may_what_the_table_says_and_nothing_else(who: str) -> None:
    api, parser = await a_server()
    before = api.store.revision
    wrong = [
        cell
        for cell in cells()
        if (await is_refused(api, parser, cell, who) == 0) != may(who, cell)
    ]
    assert [(one.resource, one.verb, one.namespace) for one in wrong] == []
    assert api.store.revision == before


@pytest.mark.parametrize(("token", "code"), [("", 403), ("bad", 401)])
@in_virtual_time
async def test_nobody_may_anything_without_a_credential_that_counts(token: str, code: int) -> None:
    api, parser = await a_server()
    found = {await is_refused(api, parser, cell, token) for cell in cells()}
    assert found == {code}


@in_virtual_time
async def test_a_token_that_has_expired_is_as_good_as_a_bad_one(tmp_path: Path) -> None:
    file = IssuedTokenFile(tmp_path / "tokens.json")
    token = file.create(ADMIN, 0.0, 60.0)
    api = await Api.start(tokens=Tokens({}, file=file))
    parser = HttpParser(RequestGuard(api.server.access.authenticator), HttpLimits())
    assert {await is_refused(api, parser, cell, token) for cell in cells()} == {401}


def test_there_are_as_many_cells_as_there_should_be() -> None:
    assert len(list(cells())) * (len(USERS) + 3) > 2500
