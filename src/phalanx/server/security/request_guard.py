"""Checks of every request before it is handled: Host, Origin, credential, connection limits.

A web page in a local browser can send requests to this machine. It cannot choose the Host header,
so DNS rebinding is detected, nor suppress the Origin header. `http_parser` calls the guard when a
request is complete; the guard reads no body.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from phalanx.api.errors import ApiError, Forbidden, TooManyRequests, Unauthorized
from phalanx.api.wire import UserInfo
from phalanx.server.security.authentication import RequestAuthenticator, certificate_user
from phalanx.server.security.users import MASTERS

#: Maximum number of connections per user; each watch takes one.
MAX_USER_CONNECTIONS = 200
#: Size of the cache of accepted Host headers.
_MAX_CACHED_HOSTS = 64
#: Called with each refused request.
RefusalHandler = Callable[[ApiError, Mapping[str, str]], None]


class RequestGuard:
    """Authenticates requests and refuses foreign hosts and origins."""

    def __init__(
        self,
        authenticator: RequestAuthenticator,
        hosts: Iterable[str] | None = None,
        on_refused: RefusalHandler | None = None,
    ) -> None:
        self._authenticator, self._on_refused = authenticator, on_refused
        self._allowed_hosts = None if hosts is None else frozenset(host.lower() for host in hosts)
        self._accepted_hosts: set[str] = set()
        self._connections: Counter[str] = Counter()

    def authenticate(
        self, headers: Mapping[str, str], peer: UserInfo | ApiError | None
    ) -> UserInfo:
        """Return the user of a request; `peer` is the user of the client certificate, if any.

        Raises Forbidden for a foreign Host or Origin, Unauthorized for an invalid credential.
        """
        try:
            return self._check_request(headers, peer)
        except (Forbidden, Unauthorized) as error:
            if self._on_refused is not None:
                self._on_refused(error, headers)
            raise

    def _check_request(
        self, headers: Mapping[str, str], peer: UserInfo | ApiError | None
    ) -> UserInfo:
        host = headers.get("host", "")
        if self._allowed_hosts is not None and host not in self._accepted_hosts:
            self._check_host(host)
        if "origin" in headers or "sec-fetch-site" in headers:
            _check_origin(headers, host)
        if isinstance(peer, ApiError):
            raise peer
        # A token must be valid even if the client certificate already identifies the user.
        user = self._authenticator.authenticate(headers.get("authorization", ""))
        return peer or user

    def _check_host(self, host: str) -> None:
        if host and not _is_allowed_host(_host_name(host), self._allowed_hosts or frozenset()):
            raise Forbidden("forbidden: this server is not known by the name in the Host header")
        if len(self._accepted_hosts) < _MAX_CACHED_HOSTS:
            self._accepted_hosts.add(host)

    def peer_user(self, certificate: Mapping[str, Any] | None) -> UserInfo | ApiError | None:
        """Return the user of a verified client certificate, or an error if it names none."""
        if not certificate:
            return None
        try:
            return certificate_user(certificate)
        except Unauthorized as error:
            return error

    def add_connection(self, user: UserInfo) -> None:
        """Count a connection of a user. Raises TooManyRequests."""
        if MASTERS in user.groups:
            return
        if self._connections[user.name] >= MAX_USER_CONNECTIONS:
            message = f"there are already {MAX_USER_CONNECTIONS} connections of this user"
            raise TooManyRequests(message, retry_after=1)
        self._connections[user.name] += 1

    def remove_connection(self, user: UserInfo) -> None:
        """Release a connection of a user."""
        if MASTERS not in user.groups:
            self._connections[user.name] -= 1
            if not self._connections[user.name]:
                del self._connections[user.name]


def _host_name(host: str) -> str:
    """Return a Host header without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.rpartition(":")[0].lower() if host.count(":") == 1 else host.lower()


def _is_allowed_host(name: str, names: frozenset[str]) -> bool:
    """Whether a host is one of ours; an IP address cannot be rebound by DNS."""
    if name in names:
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or bool(names & _WILDCARD_ADDRESSES)


#: Listening on these accepts addresses that are not known beforehand.
_WILDCARD_ADDRESSES = frozenset({"0.0.0.0", "::"})


def _check_origin(headers: Mapping[str, str], host: str) -> None:
    """Raise Forbidden for a request of a page of another origin."""
    origin = headers.get("origin")
    if origin is not None:
        if urlsplit(origin).netloc.lower() != host.lower() or not host:
            raise Forbidden("forbidden: cross-origin requests are not allowed")
        return
    site, mode = headers.get("sec-fetch-site"), headers.get("sec-fetch-mode")
    if site in ("cross-site", "same-site") and mode != "navigate":
        raise Forbidden("forbidden: cross-origin requests are not allowed")
