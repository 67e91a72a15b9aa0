"""Checks of every request before it is handled: Host, Origin, credential, and limits.

`RequestGuard` checks Host, Origin and credential of every request, and limits connections. A web
page in a local browser can send requests to this machine. It cannot choose the Host header, so DNS
rebinding is detected, nor suppress the Origin header. `http_parser` calls the guard at the end of
the headers, before it reads the body. `BodyMemory` limits the memory of all bodies, `ReplyMemory`
that of large replies which clients do not read.

`PriorityLevels` limits concurrent requests, so that one tenant cannot block the others:

    level     requests                                                  limit
    exempt    of masters and of the cluster's own components            none
    urgent    system leases, bindings, requests of nodes, not watches   200
    reads     all other reads                                           200
    writes    all other writes                                          100
    watches   open watches and followed logs of users not exempt        1000, 100 per user

A tenant that floods the server with pods does not block lease renewals and bindings. A request
whose level is full gets 429 with Retry-After at once; nothing is queued.
"""

from __future__ import annotations

import contextlib
import ipaddress
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any

from phalanx.api.errors import ApiError, Forbidden, TooManyRequests, Unauthorized
from phalanx.api.kinds import BINDING, GROUP_BINDING, LEASE, LEASE_RENEWAL
from phalanx.api.wire import Request, StreamReply, UserInfo
from phalanx.clock import Clock, WallClock
from phalanx.server.request_info import RequestInfo
from phalanx.server.security.authentication import (
    ClientCertificate,
    RequestAuthenticator,
    read_client_certificate,
)
from phalanx.server.security.users import MASTERS, NODES

#: Maximum number of connections per user; each watch takes one.
MAX_USER_CONNECTIONS = 200
_MIB = 1024 * 1024
#: Size of the cache of accepted Host headers.
_MAX_CACHED_HOSTS = 64
#: Called with each refused request.
RefusalHandler = Callable[[ApiError, Mapping[str, str]], None]
#: Raises TooManyRequests for a request, known without its body, whose priority level is full.
LevelCheck = Callable[[Request], None]


class RequestGuard:
    """Authenticates requests and refuses foreign hosts and origins."""

    def __init__(
        self,
        authenticator: RequestAuthenticator,
        hosts: Iterable[str] | None = None,
        on_refused: RefusalHandler | None = None,
        *,
        check_level: LevelCheck | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._authenticator, self._on_refused = authenticator, on_refused
        self._clock = clock or WallClock()
        self.check_level, self.bodies, self.replies = check_level, BodyMemory(), ReplyMemory()
        self._allowed_hosts = None if hosts is None else frozenset(host.lower() for host in hosts)
        self._accepted_hosts: set[str] = set()
        self._connections: Counter[str] = Counter()

    def authenticate(
        self, headers: Mapping[str, str], peer: ClientCertificate | ApiError | None
    ) -> UserInfo:
        """Return the user of a request; `peer` is the client certificate of the connection, if any.

        Raises Forbidden for a foreign Host or Origin, Unauthorized for an invalid credential.
        """
        try:
            return self._check_request(headers, peer)
        except (Forbidden, Unauthorized) as error:
            if self._on_refused is not None:
                self._on_refused(error, headers)
            raise

    def _check_request(
        self, headers: Mapping[str, str], peer: ClientCertificate | ApiError | None
    ) -> UserInfo:
        host = headers.get("host", "")
        if self._allowed_hosts is not None and host not in self._accepted_hosts:
            self._check_host(host)
        if "origin" in headers or "sec-fetch-site" in headers:
            _check_origin(headers, host)
        if isinstance(peer, ApiError):
            raise peer
        if self.has_expired(peer):
            raise Unauthorized
        # A token must be valid even if the client certificate already identifies the user.
        user = self._authenticator.authenticate(headers.get("authorization", ""))
        return peer.user if peer else user

    def _check_host(self, host: str) -> None:
        name = host.lower()
        if name.startswith("["):
            name = name[1:].partition("]")[0]
        elif name.count(":") == 1:
            name = name.rpartition(":")[0]
        if host and not _is_allowed_host(name, self._allowed_hosts or frozenset()):
            raise Forbidden("forbidden: this server is not known by the name in the Host header")
        if len(self._accepted_hosts) < _MAX_CACHED_HOSTS:
            self._accepted_hosts.add(host)

    def read_peer(
        self, certificate: Mapping[str, Any] | None
    ) -> ClientCertificate | ApiError | None:
        """Read a verified client certificate; an error if it names no user."""
        if not certificate:
            return None
        try:
            return read_client_certificate(certificate)
        except Unauthorized as error:
            return error

    def has_expired(self, peer: ClientCertificate | ApiError | None) -> bool:
        """Whether the certificate of a connection has expired; TLS checks that only at its start.

        A resumed TLS session does not check it at all.
        """
        return isinstance(peer, ClientCertificate) and peer.expires <= self._clock.now()

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


class BodyMemory:
    """The memory of request bodies, from the end of their headers until they are answered.

    A user may hold a part of it, and all tenants together leave a rest to masters, components and
    nodes, which have no limit but the total. A body that does not fit is refused at once: waiting
    for memory that other unfinished bodies hold could last until they time out.
    """

    def __init__(
        self, total: int = 64 * _MIB, per_user: int = 16 * _MIB, reserved: int = 16 * _MIB
    ) -> None:
        self._total, self._per_user, self._shared = total, per_user, total - reserved
        #: Bytes in use, in total and by the name of the user.
        self.used = 0
        self._used_by: dict[str, int] = {}

    def reserve(self, user: UserInfo, size: int) -> None:
        """Count bytes of a body. Raises TooManyRequests."""
        used = self._used_by.get(user.name, 0)
        if self.used + size > self._shared or used + size > self._per_user:
            if self.used + size > self._total:
                raise _too_many("all request bodies together are too large")
            if not is_exempt(user) and NODES not in user.groups:
                raise _too_many("the request bodies of this user or of all users are too large")
        self.used += size
        self._used_by[user.name] = used + size

    def release(self, user: UserInfo, size: int) -> None:
        """Stop counting bytes of a body."""
        self.used -= size
        rest = self._used_by[user.name] - size
        if rest:
            self._used_by[user.name] = rest
        else:
            del self._used_by[user.name]


class ReplyMemory:
    """The memory of large replies, until clients have read them.

    A tenant may always have one reply, of any size, unless those of all tenants are too large.
    Masters, components and nodes have no limit.
    """

    def __init__(self, total: int = 1024 * _MIB, per_user: int = 256 * _MIB) -> None:
        self._total, self._per_user = total, per_user
        #: Bytes in use, in total and by the name of the user.
        self.used = 0
        self._used_by: dict[str, int] = {}

    @contextlib.contextmanager
    def hold(self, request: Request, size: int) -> Iterator[None]:
        """Count a reply while it is written. Raises TooManyRequests for a read.

        A write has happened: its reply counts, but is never refused.
        """
        user = request.user
        if is_exempt(user) or NODES in user.groups:
            yield
            return
        used = self._used_by.get(user.name, 0)
        is_full = (used and used + size > self._per_user) or (
            self.used and self.used + size > self._total
        )
        if is_full and request.method in _READ_METHODS:
            raise _too_many("clients have not read earlier replies; read pages, with limit=500")
        self.used += size
        self._used_by[user.name] = used + size
        try:
            yield
        finally:
            self.used -= size
            self._used_by[user.name] -= size
            if not self._used_by[user.name]:
                del self._used_by[user.name]


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
        # "null" and every other value without an authority is of another origin.
        if origin.partition("://")[2].lower() != host.lower() or not host:
            raise Forbidden("forbidden: cross-origin requests are not allowed")
        return
    site, mode = headers.get("sec-fetch-site"), headers.get("sec-fetch-mode")
    if site in ("cross-site", "same-site") and mode != "navigate":
        raise Forbidden("forbidden: cross-origin requests are not allowed")


# ---- priority levels -----------------------------------------------------------------------------

_COMPONENT_PREFIXES = ("system:kube-", "system:phalanx:", "system:serviceaccount:kube-system:")
_URGENT_KINDS = frozenset({BINDING, GROUP_BINDING, LEASE, LEASE_RENEWAL})
#: The namespaces of the Leases of nodes and components.
_LEASE_NAMESPACES = frozenset({"kube-node-lease", "kube-system"})
_READ_VERBS, _READ_METHODS = frozenset({"get", "list"}), frozenset({"GET", "HEAD"})
#: Seconds in the Retry-After header.
_RETRY_AFTER_SECONDS = 1


class PriorityLevel:
    """A limit on concurrent requests; a context manager."""

    __slots__ = ("busy", "limit", "name")

    def __init__(self, name: str, limit: float) -> None:
        self.name, self.limit, self.busy = name, limit, 0

    def __enter__(self) -> None:
        if self.busy >= self.limit:
            raise _too_many(f"the server is handling {self.busy} {self.name}")
        self.busy += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.busy -= 1


class PriorityLevels:
    """The priority levels of one server."""

    def __init__(
        self, *, urgent: int = 200, reads: int = 200, writes: int = 100, watches: int = 1000,
        watches_per_user: int = 100,
    ) -> None:  # fmt: skip
        self._exempt = PriorityLevel("requests", float("inf"))
        self._urgent = PriorityLevel("urgent requests", urgent)
        self._reads, self._writes = PriorityLevel("reads", reads), PriorityLevel("writes", writes)
        self._max_watches, self._max_user_watches = watches, watches_per_user
        self._open_watches: Counter[str] = Counter()

    def level_for(self, verb: str, request_info: RequestInfo) -> PriorityLevel:
        """Return the priority level of a request. Raises TooManyRequests for one watch too many."""
        user = request_info.request.user
        if is_exempt(user):
            return self._exempt
        is_node = NODES in user.groups and verb != "watch"
        # Tenants have Leases of their own: these must not hold up those of nodes and components.
        is_urgent = request_info.kind in _URGENT_KINDS and (
            request_info.kind is not LEASE or request_info.namespace in _LEASE_NAMESPACES
        )
        if is_urgent or request_info.subresource == "binding" or is_node:
            return self._urgent
        is_followed_log = request_info.subresource == "log" and request_info.bool_option("follow")
        if verb == "watch" or is_followed_log:
            self._check_watch_limits(user)
            return self._exempt
        return self._reads if verb in _READ_VERBS else self._writes

    def is_any_full(self) -> bool:
        """Whether some request would be refused."""
        return (
            self._writes.busy >= self._writes.limit
            or self._reads.busy >= self._reads.limit
            or self._urgent.busy >= self._urgent.limit
        )

    def track_watch(self, user: UserInfo, stream: StreamReply) -> None:
        """Count a watch until its stream is closed."""
        if not is_exempt(user):
            self._open_watches[user.name] += 1
            weakref.finalize(stream.chunks, self._release_watch, user.name).atexit = False

    def _release_watch(self, name: str) -> None:
        self._open_watches[name] -= 1
        if not self._open_watches[name]:
            del self._open_watches[name]

    def _check_watch_limits(self, user: UserInfo) -> None:
        if self._open_watches[user.name] >= self._max_user_watches:
            raise _too_many(f"there are already {self._max_user_watches} watches of this user")
        if self._open_watches.total() >= self._max_watches:
            raise _too_many(f"there are already {self._max_watches} watches")


def is_exempt(user: UserInfo) -> bool:
    """Whether a user has no limits."""
    return MASTERS in user.groups or user.name.startswith(_COMPONENT_PREFIXES)


def _too_many(why: str) -> TooManyRequests:
    return TooManyRequests(
        f"too many requests, please try again later: {why}", retry_after=_RETRY_AFTER_SECONDS
    )
