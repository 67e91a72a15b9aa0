"""Pages that a user happens to look at must not reach a control plane on their machine."""

from __future__ import annotations

import pytest

from phalanx.api.errors import ApiError, Forbidden, TooManyRequests, Unauthorized
from phalanx.api.wire import ANONYMOUS, UserInfo
from phalanx.server.security.authentication import Tokens
from phalanx.server.security.authorization import ADMIN
from phalanx.server.security.request_guard import MAX_USER_CONNECTIONS, RequestGuard
from phalanx.server.security.users import authenticated_user

TOKENS = Tokens({"secret": ADMIN})
ANN = authenticated_user("ann")


def door(*more: str) -> RequestGuard:
    return RequestGuard(TOKENS, ("localhost", "127.0.0.1", "phalanx.example", *more))


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:6443", "LOCALHOST:1", "127.0.0.1:6443", "127.0.0.2", "[::1]:6443",
     "[::1]", "::1", "phalanx.example:443", "Phalanx.Example"],
)  # fmt: skip
def test_the_server_answers_to_its_names(host: str) -> None:
    assert door().authenticate({"host": host}, None) == ANONYMOUS


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:6443", "localhost.evil.example", "127.0.0.1.evil.example",
     "10.0.0.1", "[2001:db8::1]:6443", "localhost@evil.example", "127.1", "0x7f.1", ":6443"],
)  # fmt: skip
def test_and_to_no_other(host: str) -> None:
    with pytest.raises(Forbidden):
        door().authenticate({"host": host, "authorization": "Bearer secret"}, None)


def test_who_listens_everywhere_is_reached_by_any_address_but_not_by_any_name() -> None:
    open_door = door("0.0.0.0")
    assert open_door.authenticate({"host": "10.0.0.1:6443"}, None) == ANONYMOUS
    with pytest.raises(Forbidden):
        open_door.authenticate({"host": "evil.example"}, None)


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": ""},
        {"origin": "https://localhost"},
        {"origin": "https://localhost:6443.evil.example"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
        {"sec-fetch-site": "same-site"},
    ],
    ids=str,
)
def test_a_page_from_elsewhere_is_refused_whatever_it_shows(headers: dict[str, str]) -> None:
    shown = {"host": "localhost:6443", "authorization": "Bearer secret", **headers}
    with pytest.raises(Forbidden):
        door().authenticate(shown, None)


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://localhost:6443"},
        {"sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "none"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"},
    ],
    ids=str,
)
def test_our_own_page_and_a_link_to_it_are_not(headers: dict[str, str]) -> None:
    shown = {"host": "localhost:6443", "authorization": "Bearer secret", **headers}
    assert door().authenticate(shown, None) == ADMIN


def test_whoever_is_turned_away_is_heard_of_but_not_what_they_showed() -> None:
    heard: list[tuple[int, str]] = []

    def refused(error: ApiError, headers: object) -> None:
        heard.append((error.code, error.message))

    shut = RequestGuard(TOKENS, ("localhost",), refused)
    for headers in ({"host": "evil"}, {"host": "localhost", "authorization": "Bearer wrong"}):
        with pytest.raises(ApiError):
            shut.authenticate(headers, None)
    assert [code for code, _ in heard] == [403, 401]
    assert "wrong" not in str(heard)


def test_a_certificate_decides_but_does_not_excuse_a_wrong_token() -> None:
    assert door().authenticate({"host": "localhost"}, ANN) == ANN
    assert door().authenticate({"host": "localhost", "authorization": "Bearer secret"}, ANN) == ANN
    with pytest.raises(Unauthorized):
        door().authenticate({"host": "localhost", "authorization": "Bearer wrong"}, ANN)
    with pytest.raises(Unauthorized):
        door().authenticate({"host": "localhost"}, Unauthorized())


def test_nobody_has_more_connections_than_their_share() -> None:
    shared = door()
    for _ in range(MAX_USER_CONNECTIONS):
        shared.add_connection(ANN)
    with pytest.raises(TooManyRequests) as refused:
        shared.add_connection(ANN)
    assert refused.value.retry_after == 1
    shared.add_connection(authenticated_user("bob"))
    shared.remove_connection(ANN)
    shared.add_connection(ANN)
    for _ in range(2 * MAX_USER_CONNECTIONS):
        shared.add_connection(ADMIN)


def test_counting_leaves_nothing_behind() -> None:
    shared = door()
    for number in range(1000):
        user = UserInfo(f"u{number}")
        shared.add_connection(user)
        shared.remove_connection(user)
    assert not shared._connections
