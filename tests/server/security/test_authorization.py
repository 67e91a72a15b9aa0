from __future__ import annotations

import pytest

from phalanx.api.errors import Unauthorized
from phalanx.api.kinds import KINDS
from phalanx.api.wire import ANONYMOUS, Request, UserInfo
from phalanx.server.security.authorization import ADMIN, Tokens
from tests.builders import in_virtual_time
from tests.server.api import Api
from tests.server.conftest import ListeningServer

TOKENS = Tokens({"secret": ADMIN, "other": UserInfo("other")})
PUBLIC = ("/healthz", "/livez", "/readyz", "/version")
PRIVATE = ("/api/v1/pods", "/apis", "/api", "/metrics", "/openapi/v3", "/", "/nowhere")


# ---- who asks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", ["Bearer secret", "bearer secret", "Bearer  secret "])
def test_a_token_is_its_user(header: str) -> None:
    assert TOKENS.authenticate(header) == ADMIN
    assert TOKENS.authenticate("Bearer other").name == "other"


def test_who_shows_nothing_is_nobody() -> None:
    assert TOKENS.authenticate("") == ANONYMOUS


@pytest.mark.parametrize(
    "header",
    ["Bearer wrong", "Bearer", "Bearer ", "secret", "Basic secret", "Bearer secret x", "Bearer é"],
)
def test_a_wrong_credential_is_never_taken_for_none(header: str) -> None:
    with pytest.raises(Unauthorized):
        TOKENS.authenticate(header)


# ---- and may they --------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(PUBLIC))
@in_virtual_time
async def test_anybody_may_ask_for_health_and_version(path: str) -> None:
    api = await Api.start()
    assert (await api.ask("GET", path, user=ANONYMOUS)).code == 200


@pytest.mark.parametrize("user", [ANONYMOUS, UserInfo("joe")], ids=str)
@in_virtual_time
async def test_nobody_else_may_do_anything(user: UserInfo) -> None:
    api = await Api.start()
    before = api.store.revision
    for path in PRIVATE:
        answer = await api.ask("GET", path, user=user)
        assert (answer.code, answer.body["reason"]) == (403, "Forbidden")
    for kind in KINDS:
        path = kind.url_path("default" if kind.namespaced else "")
        for method, at in (("POST", path), ("GET", path), ("DELETE", path), ("PUT", f"{path}/a"),
                           ("PATCH", f"{path}/a"), ("GET", f"{path}/a")):  # fmt: skip
            answer = await api.ask(method, at, {"metadata": {"name": "a"}}, user=user)
            assert answer.code in (403, 405), (method, at)
    watch = await api.ask("GET", "/api/v1/pods", query={"watch": "true"}, user=user)
    assert watch.code == 403
    assert api.store.revision == before


@in_virtual_time
async def test_whoever_is_known_may_ask_what_is_served_and_about_oneself() -> None:
    api, joe = await Api.start(), UserInfo("joe", ("system:authenticated",))
    before = api.store.revision
    assert (await api.ask("GET", "/apis", user=joe)).code == 200
    for kind in KINDS:
        path = kind.url_path("default" if kind.namespaced else "")
        answer = await api.ask("POST", path, {"metadata": {"name": "a"}}, user=joe)
        is_about_oneself = kind.name.startswith("SelfSubject")
        assert answer.code in ((201, 422) if is_about_oneself else (403,)), kind
        assert (await api.ask("GET", path, user=joe)).code in (403, 405)
    assert (await api.ask("GET", "/metrics", user=joe)).code == 403
    assert api.store.revision == before


@in_virtual_time
async def test_a_refusal_says_who_may_not_do_what_where() -> None:
    api = await Api.start()
    answer = await api.ask(
        "POST", "/api/v1/namespaces/default/pods/a/binding", user=UserInfo("joe")
    )
    assert answer.body["message"] == (
        'pods "a" is forbidden: User "joe" cannot create resource "pods/binding" in API group "" '
        'in the namespace "default"'
    )
    answer = await api.ask("GET", "/api/v1/nodes", user=UserInfo("joe"))
    assert answer.body["message"] == (
        'nodes is forbidden: User "joe" cannot list resource "nodes" in API group "" at the '
        "cluster scope"
    )


@in_virtual_time
async def test_who_may_not_ask_does_not_learn_what_there_is() -> None:
    api = await Api.start()
    known = await api.ask("GET", "/api/v1/namespaces/default/pods/a", user=ANONYMOUS)
    unknown = await api.ask("GET", "/api/v1/namespaces/default/dragons/a", user=ANONYMOUS)
    assert known.code == unknown.code == 403


# ---- over the network ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "token", "code"),
    [
        ("/healthz", "", 200),
        ("/version", "", 200),
        ("/api/v1/pods", "", 403),
        ("/metrics", "", 403),
        ("/api/v1/pods", "wrong", 401),
        ("/healthz", "wrong", 401),
    ],
)
def test_without_a_token_there_is_health_and_with_a_wrong_one_there_is_nothing(
    https: ListeningServer, path: str, token: str, code: int
) -> None:
    answer = https.send(Request("GET", path), token)
    assert answer.code == code
    if code >= 400:
        assert (answer.body["kind"], answer.body["code"]) == ("Status", code)
