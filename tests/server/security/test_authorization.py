from __future__ import annotations

import pytest

from phalanx.api.errors import Unauthorized
from phalanx.api.kinds import KINDS
from phalanx.api.wire import ANONYMOUS, Object, Request, UserInfo
from phalanx.server.security.authorization import ADMIN, Tokens
from tests.builders import in_virtual_time
from tests.server.api import Api
from tests.server.conftest import ListeningServer

TOKENS = Tokens({"secret": ADMIN, "other": UserInfo("other")})
PUBLIC = ("/healthz", "/livez", "/readyz", "/version")
PRIVATE = ("/api/v1/pods", "/apis", "/api", "/metrics", "/openapi/v3", "/", "/nowhere")


# ---- authentication ------------------------------------------------------------------------------


@pytest.mark.parametrize("header", ["Bearer secret", "bearer secret", "Bearer  secret "])
def test_token_authenticates_its_user(header: str) -> None:
    assert TOKENS.authenticate(header) == ADMIN
    assert TOKENS.authenticate("Bearer other").name == "other"


def test_request_without_a_credential_is_anonymous() -> None:
    assert TOKENS.authenticate("") == ANONYMOUS


@pytest.mark.parametrize(
    "header",
    ["Bearer wrong", "Bearer", "Bearer ", "secret", "Basic secret", "Bearer secret x", "Bearer é"],
)
def test_invalid_credential_is_unauthorized_and_not_anonymous(header: str) -> None:
    with pytest.raises(Unauthorized):
        TOKENS.authenticate(header)


# ---- authorization -------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(PUBLIC))
@in_virtual_time
async def test_anonymous_users_may_read_health_and_version(path: str) -> None:
    api = await Api.start()
    assert (await api.ask("GET", path, user=ANONYMOUS)).code == 200


@pytest.mark.parametrize("user", [ANONYMOUS, UserInfo("joe")], ids=str)
@in_virtual_time
async def test_users_without_roles_may_do_nothing_else(user: UserInfo) -> None:
    api = await Api.start()
    before = api.store.revision
    for path in PRIVATE:
        response = await api.ask("GET", path, user=user)
        assert (response.code, response.body["reason"]) == (403, "Forbidden")
    for kind in KINDS:
        path = kind.url_path("default" if kind.namespaced else "")
        for method, target in (
            ("POST", path),
            ("GET", path),
            ("DELETE", path),
            ("PUT", f"{path}/a"),
            ("PATCH", f"{path}/a"),
            ("GET", f"{path}/a"),
        ):
            response = await api.ask(method, target, {"metadata": {"name": "a"}}, user=user)
            assert response.code in (403, 405), (method, target)
    watch = await api.ask("GET", "/api/v1/pods", query={"watch": "true"}, user=user)
    assert watch.code == 403
    assert api.store.revision == before


@in_virtual_time
async def test_authenticated_users_may_read_discovery_and_review_themselves() -> None:
    api, joe = await Api.start(), UserInfo("joe", ("system:authenticated",))
    before = api.store.revision
    assert (await api.ask("GET", "/apis", user=joe)).code == 200
    for kind in KINDS:
        path = kind.url_path("default" if kind.namespaced else "")
        response = await api.ask("POST", path, {"metadata": {"name": "a"}}, user=joe)
        is_self_review = kind.name.startswith("SelfSubject")
        assert response.code in ((201, 400, 422) if is_self_review else (403,)), kind
        assert (await api.ask("GET", path, user=joe)).code in (403, 405)
    assert (await api.ask("GET", "/metrics", user=joe)).code == 403
    assert api.store.revision == before


@in_virtual_time
async def test_forbidden_message_names_user_verb_resource_and_namespace() -> None:
    api = await Api.start()
    response = await api.ask(
        "POST", "/api/v1/namespaces/default/pods/a/binding", user=UserInfo("joe")
    )
    assert response.body["message"] == (
        'pods "a" is forbidden: User "joe" cannot create resource "pods/binding" in API group "" '
        'in the namespace "default"'
    )
    response = await api.ask("GET", "/api/v1/nodes", user=UserInfo("joe"))
    assert response.body["message"] == (
        'nodes is forbidden: User "joe" cannot list resource "nodes" in API group "" at the '
        "cluster scope"
    )


@in_virtual_time
async def test_forbidden_response_does_not_reveal_which_resources_exist() -> None:
    api = await Api.start()
    known = await api.ask("GET", "/api/v1/namespaces/default/pods/a", user=ANONYMOUS)
    unknown = await api.ask("GET", "/api/v1/namespaces/default/dragons/a", user=ANONYMOUS)
    assert known.code == unknown.code == 403
    assert unknown.body["details"] == {"name": "a", "kind": "dragons"}


@pytest.mark.parametrize(
    ("method", "path", "details"),
    [
        (
            "GET",
            "/apis/none.example.com/v1/things",
            {"group": "none.example.com", "kind": "things"},
        ),
        ("DELETE", "/api/v1/namespaces", {"kind": "namespaces"}),
        ("PUT", "/api/v1/namespaces/a/b/c/d", {"name": "c", "kind": "b"}),
        ("GET", "/apis/none.example.com", None),
    ],
)
@in_virtual_time
async def test_path_that_is_not_served_is_forbidden_as_its_resource(
    method: str, path: str, details: Object | None
) -> None:
    api = await Api.start()
    response = await api.ask(method, path, user=ANONYMOUS)
    assert (response.code, response.body.get("details")) == (403, details)


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
def test_health_needs_no_token_and_an_invalid_token_is_always_rejected(
    https: ListeningServer, path: str, token: str, code: int
) -> None:
    response = https.send(Request("GET", path), token)
    assert response.code == code
    if code >= 400:
        assert (response.body["kind"], response.body["code"]) == ("Status", code)
