"""What is asked of every request before it is heard: the right host, no foreign page, a credential.

A web page that its user happens to look at can send requests to this machine. It cannot choose the
Host that its browser sends (so that a name which was made to lead here is told from ours), nor
leave out from where it comes. `parser` asks when a request is whole; nothing here reads a body.
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

#: Connections that one user may have open: each watch of theirs takes one.
MAX_USER_CONNECTIONS = 200
#: Hosts, as they were written, that are remembered to be ours.
_MAX_CACHED_HOSTS = 64
#: Hears of whoever was turned away, and how.
RefusalHandler = Callable[[ApiError, Mapping[str, str]], None]


class RequestGuard:
    """Lets requests in as their user, or refuses them."""

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
        """Who asks. `peer` is whom the connection's certificate names, if it has one."""
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
        # Who shows a token too must show one that counts; known they are by their certificate.
        user = self._authenticator.authenticate(headers.get("authorization", ""))
        return peer or user

    def _check_host(self, host: str) -> None:
        if host and not _is_allowed_host(_host_name(host), self._allowed_hosts or frozenset()):
            raise Forbidden("forbidden: this server is not known by the name in the Host header")
        if len(self._accepted_hosts) < _MAX_CACHED_HOSTS:
            self._accepted_hosts.add(host)

    def peer_user(self, certificate: Mapping[str, Any] | None) -> UserInfo | ApiError | None:
        """Whom a certificate that was verified names; an error if it names nobody."""
        if not certificate:
            return None
        try:
            return certificate_user(certificate)
        except Unauthorized as error:
            return error

    def add_connection(self, user: UserInfo) -> None:
        """One more connection is this user's. Raises TooManyRequests when there are enough."""
        if MASTERS in user.groups:
            return
        if self._connections[user.name] >= MAX_USER_CONNECTIONS:
            message = f"there are already {MAX_USER_CONNECTIONS} connections of this user"
            raise TooManyRequests(message, retry_after=1)
        self._connections[user.name] += 1

    def remove_connection(self, user: UserInfo) -> None:
        """One of this user's connections is no longer theirs."""
        if MASTERS not in user.groups:
            self._connections[user.name] -= 1
            if not self._connections[user.name]:
                del self._connections[user.name]


def _host_name(host: str) -> str:
    """A Host header without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.rpartition(":")[0].lower() if host.count(":") == 1 else host.lower()


def _is_allowed_host(name: str, names: frozenset[str]) -> bool:
    """A name must be one of ours; no page can make a browser send an address as a name."""
    if name in names:
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or bool(names & _WILDCARD_ADDRESSES)


#: Who listens on these listens on addresses that are not known beforehand.
_WILDCARD_ADDRESSES = frozenset({"0.0.0.0", "::"})


def _check_origin(headers: Mapping[str, str], host: str) -> None:
    """A browser says from which page a request comes: it must be one of ours."""
    origin = headers.get("origin")
    if origin is not None:
        if urlsplit(origin).netloc.lower() != host.lower() or not host:
            raise Forbidden("forbidden: requests of pages from elsewhere are not answered")
        return
    site, mode = headers.get("sec-fetch-site"), headers.get("sec-fetch-mode")
    if site in ("cross-site", "same-site") and mode != "navigate":
        raise Forbidden("forbidden: requests of pages from elsewhere are not answered")
