"""What the page reads in addition to the Kubernetes API: queue, utilisation, sign-in."""

from __future__ import annotations

import pytest

from phalanx.api.errors import TooManyRequests
from phalanx.api.wire import Object, Request
from phalanx.server.security.sign_in import (
    CODE_TTL,
    MAX_CODES,
    MAX_USER_CODES,
    SignInCodes,
)
from tests.builders import in_virtual_time
from tests.server.api import EPOCH, Api
from tests.server.conftest import TOKEN, ListeningServer
from tests.server.security.rbac_fixtures import JOE, grant, make_role

QUEUE, UTILISATION = "/phalanx/v1/queue", "/phalanx/v1/utilisation"
CODES, SIGN_IN = "/phalanx/v1/sign-in-codes", "/phalanx/v1/sign-in"
REPORT: Object = {
    "at": "2027-01-15T08:00:00Z",
    "items": [{"namespace": "default", "name": "a"}, {"namespace": "team", "name": "b"}],
}
LISTS = {"apiGroups": ["", "scheduling.k8s.io"], "resources": ["pods", "podgroups"]}


@in_virtual_time
async def test_a_server_without_a_queue_says_so() -> None:
    api = await Api.start()
    answer = await api.ask("GET", QUEUE)
    assert (answer.code, "no queue" in answer.body["message"]) == (404, True)
    assert (await api.ask("GET", "/phalanx/v1/other")).code == 404
    assert (await api.ask("POST", QUEUE)).code == 405


@in_virtual_time
async def test_the_queue_is_pending_until_the_first_report() -> None:
    api = await Api.start()
    reports: list[Object | None] = [None, REPORT]
    api.server.page_api.queue = lambda: reports.pop(0)
    assert (await api.ask("GET", QUEUE)).code == 202
    answer = await api.ask("GET", QUEUE)
    assert (answer.code, answer.body) == (200, REPORT)


@in_virtual_time
async def test_the_queue_shows_only_namespaces_that_the_user_may_list() -> None:
    api = await Api.start()
    api.server.page_api.queue = lambda: REPORT
    assert (await api.ask("GET", QUEUE, user=JOE)).code == 403
    await make_role(api, "lists", LISTS | {"verbs": ["list"]})
    await grant(api, JOE, "lists", namespace="default")
    assert (await api.ask("GET", QUEUE, user=JOE)).code == 403
    assert (await api.ask("GET", QUEUE, user=JOE, query={"namespace": "team"})).code == 403
    own = await api.ask("GET", QUEUE, user=JOE, query={"namespace": "default"})
    assert [item["name"] for item in own.body["items"]] == ["a"]
    await grant(api, JOE, "lists")
    everything = await api.ask("GET", QUEUE, user=JOE)
    assert [item["name"] for item in everything.body["items"]] == ["a", "b"]


@in_virtual_time
async def test_the_utilisation_needs_the_right_to_list_nodes_and_pods() -> None:
    api = await Api.start()
    assert (await api.ask("GET", UTILISATION)).code == 200
    await make_role(api, "pods-only", LISTS | {"verbs": ["list"]})
    await grant(api, JOE, "pods-only")
    assert (await api.ask("GET", UTILISATION, user=JOE)).code == 403


# ---- sign-in codes -------------------------------------------------------------------------------


def test_a_code_is_redeemed_once_and_expires() -> None:
    now = 100.0
    codes = SignInCodes(lambda: now)
    first, second = codes.issue("joe", "one"), codes.issue("joe", "two")
    assert first != second
    assert (codes.redeem(first), codes.redeem(first), codes.redeem("wrong")) == ("one", None, None)
    now += CODE_TTL
    assert codes.redeem(second) is None


def test_new_codes_of_a_user_drop_only_its_own_oldest_codes() -> None:
    codes = SignInCodes(lambda: 0.0)
    of_ann = codes.issue("ann", "of ann")
    made = [codes.issue("joe", str(at)) for at in range(MAX_USER_CODES + 2)]
    assert [codes.redeem(code) for code in made[:3]] == [None, None, "2"]
    assert codes.redeem(of_ann) == "of ann"


def test_codes_of_many_users_drop_none_but_are_limited() -> None:
    now = 0.0
    codes = SignInCodes(lambda: now)
    made = [codes.issue(f"user-{at}", str(at)) for at in range(MAX_CODES)]
    now = 60.0
    with pytest.raises(TooManyRequests) as refused:
        codes.issue("one more", "x")
    assert refused.value.retry_after == CODE_TTL - 60 + 1
    assert [codes.redeem(code) for code in made] == [str(at) for at in range(MAX_CODES)]
    assert codes.redeem(codes.issue("one more", "x")) == "x"


@in_virtual_time
async def test_without_loopback_there_are_no_codes() -> None:
    api = await Api.start()
    assert (await api.ask("POST", CODES)).code == 404
    assert (await api.ask("POST", SIGN_IN, {"code": "x"})).code == 404


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'"x"', b'{"code": 1}', b"\xff", b"x" * 2000])
def test_a_malformed_sign_in_is_refused(https: ListeningServer, body: bytes) -> None:
    https.server.page_api.codes = SignInCodes(lambda: EPOCH)
    assert https.send(Request("POST", SIGN_IN, body=body), "").code in (400, 403)


def test_a_link_signs_in_once_and_not_from_a_foreign_page(https: ListeningServer) -> None:
    https.server.page_api.codes = SignInCodes(lambda: EPOCH)
    made = https.send(Request("POST", CODES))
    assert (made.code, made.body["path"]) == (201, f"/ui/#/sign-in/{made.body['code']}")
    body = b'{"code": "%s"}' % made.body["code"].encode()
    for foreign in (
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "https://127.0.0.1:1"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
    ):
        assert https.send(Request("POST", SIGN_IN, headers=foreign, body=body), "").code == 403
    own = {"origin": https.url}
    answer = https.send(Request("POST", SIGN_IN, headers=own, body=body), "")
    assert (answer.code, answer.body) == (200, {"token": TOKEN})
    assert answer.header_values("cache-control") == ["no-store"]
    again = https.send(Request("POST", SIGN_IN, headers=own, body=body), "")
    assert (again.code, "used up or expired" in again.body["message"]) == (403, True)


def test_only_a_user_with_a_token_gets_a_code(https: ListeningServer) -> None:
    https.server.page_api.codes = SignInCodes(lambda: EPOCH)
    assert https.send(Request("POST", CODES), "").code == 400
    assert https.send(Request("POST", CODES), "wrong").code == 401
