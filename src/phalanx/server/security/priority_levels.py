"""Priority levels: limits on concurrent requests, so that one tenant cannot block the others.

    level     requests                                                  limit
    exempt    of masters and of the cluster's own components            none
    urgent    leases, bindings, requests of nodes except watches        200
    reads     all other reads                                           200
    writes    all other writes                                          100
    watches   open watches of users that are not exempt                 1000, 100 per user

A tenant that floods the server with pods does not block lease renewals and bindings. A request
whose level is full gets 429 with Retry-After at once; nothing is queued.
"""

from __future__ import annotations

import weakref
from collections import Counter
from types import TracebackType

from phalanx.api.errors import TooManyRequests
from phalanx.api.kinds import BINDING, GROUP_BINDING, LEASE, LEASE_RENEWAL
from phalanx.api.wire import StreamReply, UserInfo
from phalanx.server.request_info import RequestInfo
from phalanx.server.security.users import MASTERS, NODES

_COMPONENT_PREFIXES = ("system:kube-", "system:phalanx:", "system:serviceaccount:kube-system:")
_URGENT_KINDS = frozenset({BINDING, GROUP_BINDING, LEASE, LEASE_RENEWAL})
_READ_VERBS = frozenset({"get", "list"})
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

    def level_for(self, verb: str, call: RequestInfo) -> PriorityLevel:
        """Return the priority level of a request. Raises TooManyRequests for one watch too many."""
        user = call.request.user
        if is_exempt(user):
            return self._exempt
        is_node = NODES in user.groups and verb != "watch"
        if call.kind in _URGENT_KINDS or call.subresource == "binding" or is_node:
            return self._urgent
        if verb == "watch":
            self._check_watch_limits(user)
            return self._exempt
        return self._reads if verb in _READ_VERBS else self._writes

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
