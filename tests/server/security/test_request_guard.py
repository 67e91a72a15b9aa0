"""Web pages in a browser on the same machine must not reach the control plane."""

from __future__ import annotations

import pytest

from phalanx.api.errors import ApiError, Forbidden, TooManyRequests, Unauthorized
from phalanx.api.wire import ANONYMOUS, UserInfo
from phalanx.server.security.authentication import ClientCertificate, Tokens
from phalanx.server.security.authorization import ADMIN
from phalanx.server.security.request_guard import MAX_USER_CONNECTIONS, RequestGuard
from phalanx.server.security.users import authenticated_user

TOKENS = Tokens({"secret": ADMIN})
ANN = authenticated_user("ann")


def create_guard(*more: str) -> RequestGuard:
    return RequestGuard(TOKENS, ("localhost", "127.0.0.1", "phalanx.example", *more))


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:6443", "LOCALHOST:1", "127.0.0.1:6443", "127.0.0.2", "[::1]:6443",
     "[::1]", "::1", "phalanx.example:443", "Phalanx.Example"],
)  # fmt: skip
def test_request_to_a_known_host_name_is_accepted(host: str) -> None:
    assert create_guard().authenticate({"host": host}, None) == ANONYMOUS


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:6443", "localhost.evil.example", "127.0.0.1.evil.example",
     "10.0.0.1", "[2001:db8::1]:6443", "localhost@evil.example", "127.1", "0x7f.1", ":6443"],
)  # fmt: skip
def test_request_to_an_unknown_host_name_is_forbidden(host: str) -> None:
    with pytest.raises(Forbidden):
        create_guard().authenticate({"host": host, "authorization": "Bearer secret"}, None)


def test_server_on_all_addresses_accepts_any_address_but_not_any_name() -> None:
    guard = create_guard("0.0.0.0")
    assert guard.authenticate({"host": "10.0.0.1:6443"}, None) == ANONYMOUS
    with pytest.raises(Forbidden):
        guard.authenticate({"host": "evil.example"}, None)


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
def test_cross_origin_request_is_forbidden_despite_a_valid_token(headers: dict[str, str]) -> None:
    request_headers = {"host": "localhost:6443", "authorization": "Bearer secret", **headers}
    with pytest.raises(Forbidden):
        create_guard().authenticate(request_headers, None)


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
def test_same_origin_request_and_navigation_are_accepted(headers: dict[str, str]) -> None:
    request_headers = {"host": "localhost:6443", "authorization": "Bearer secret", **headers}
    assert create_guard().authenticate(request_headers, None) == ADMIN


def test_rejection_is_reported_without_the_credential() -> None:
    reports: list[tuple[int, str]] = []

    def report(error: ApiError, headers: object) -> None:
        reports.append((error.code, error.message))

    guard = RequestGuard(TOKENS, ("localhost",), report)
    for headers in ({"host": "evil"}, {"host": "localhost", "authorization": "Bearer wrong"}):
        with pytest.raises(ApiError):
            guard.authenticate(headers, None)
    assert [code for code, _ in reports] == [403, 401]
    assert "wrong" not in str(reports)


def test_certificate_sets_the_user_but_does_not_excuse_an_invalid_token() -> None:
    guard, peer = create_guard(), ClientCertificate(ANN, float("inf"))
    assert guard.authenticate({"host": "localhost"}, peer) == ANN
    assert guard.authenticate({"host": "localhost", "authorization": "Bearer secret"}, peer) == ANN
    with pytest.raises(Unauthorized):
        guard.authenticate({"host": "localhost", "authorization": "Bearer wrong"}, peer)
    with pytest.raises(Unauthorized):
        guard.authenticate({"host": "localhost"}, Unauthorized())


def test_expired_certificate_is_unauthorized_also_with_a_valid_token() -> None:
    guard, peer = create_guard(), ClientCertificate(ANN, 0.0)
    for headers in ({"host": "localhost"}, {"host": "localhost", "authorization": "Bearer secret"}):
        with pytest.raises(Unauthorized):
            guard.authenticate(headers, peer)


def test_connections_per_user_are_limited() -> None:
    guard = create_guard()
    for _ in range(MAX_USER_CONNECTIONS):
        guard.add_connection(ANN)
    with pytest.raises(TooManyRequests) as report:
        guard.add_connection(ANN)
    assert report.value.retry_after == 1
    guard.add_connection(authenticated_user("bob"))
    guard.remove_connection(ANN)
    guard.add_connection(ANN)
    for _ in range(2 * MAX_USER_CONNECTIONS):
        guard.add_connection(ADMIN)


def test_connection_counts_of_gone_users_are_removed() -> None:
    guard = create_guard()
    for number in range(1000):
        user = UserInfo(f"u{number}")
        guard.add_connection(user)
        guard.remove_connection(user)
    assert not guard._connections
