"""Who is heard when too many ask: each sort of request has a lane, and room of its own in it.

    lane      who and what                                              at once
    free      masters, and the cluster's own components                 no limit
    urgent    leases, bindings, what nodes do                           200
    reads     all other reads                                           200
    writes    all other writes                                          100
    watches   open ones, of everybody but the free                      1000, of one user 100

So a tenant who floods the server with pods keeps nobody from renewing a lease or binding what is
there. What finds its lane full is refused at once and asked to come back: nothing queues up.
"""

from __future__ import annotations

import weakref
from collections import Counter
from types import TracebackType

from phalanx.api.errors import TooManyRequests
from phalanx.api.kinds import BINDING, GROUP_BINDING, LEASE, LEASE_RENEWAL
from phalanx.api.wire import Stream, User
from phalanx.server.call import Call
from phalanx.server.security.users import MASTERS, NODES

_COMPONENTS = ("system:kube-", "system:phalanx:", "system:serviceaccount:kube-system:")
_URGENT = frozenset({BINDING, GROUP_BINDING, LEASE, LEASE_RENEWAL})
_READS = frozenset({"get", "list"})
#: Seconds after which whoever was refused may come back.
_LATER = 1


class Lane:
    """Room for so many requests at once; entered as a context."""

    __slots__ = ("busy", "limit", "name")

    def __init__(self, name: str, limit: float) -> None:
        self.name, self.limit, self.busy = name, limit, 0

    def __enter__(self) -> None:
        if self.busy >= self.limit:
            raise _too_many(f"the server has {self.busy} {self.name} under way")
        self.busy += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.busy -= 1


class Lanes:
    """The lanes of one server."""

    def __init__(
        self, *, urgent: int = 200, reads: int = 200, writes: int = 100, watches: int = 1000,
        own_watches: int = 100,
    ) -> None:  # fmt: skip
        self._free = Lane("requests", float("inf"))
        self._urgent, self._reads = Lane("urgent requests", urgent), Lane("reads", reads)
        self._writes = Lane("writes", writes)
        self._most, self._most_own = watches, own_watches
        self._watching: Counter[str] = Counter()

    def of(self, verb: str, call: Call) -> Lane:
        """The lane of a request."""
        user = call.request.user
        if is_free(user):
            return self._free
        is_node = NODES in user.groups and verb != "watch"
        if call.kind in _URGENT or call.subresource == "binding" or is_node:
            return self._urgent
        if verb == "watch":
            self._check_watches(user)
        return self._reads if verb in _READS else self._free if verb == "watch" else self._writes

    def hold(self, user: User, stream: Stream) -> None:
        """Count a watch as long as anybody holds its stream."""
        if not is_free(user):
            self._watching[user.name] += 1
            weakref.finalize(stream.chunks, self._let_go, user.name).atexit = False

    def _let_go(self, name: str) -> None:
        self._watching[name] -= 1
        if not self._watching[name]:
            del self._watching[name]

    def _check_watches(self, user: User) -> None:
        if self._watching[user.name] >= self._most_own:
            raise _too_many(f"there are already {self._most_own} watches of this user")
        if self._watching.total() >= self._most:
            raise _too_many(f"there are already {self._most} watches")


def is_free(user: User) -> bool:
    """Whether somebody has all the room there is."""
    return MASTERS in user.groups or user.name.startswith(_COMPONENTS)


def _too_many(why: str) -> TooManyRequests:
    return TooManyRequests(f"too many requests, please try again later: {why}", retry_after=_LATER)
