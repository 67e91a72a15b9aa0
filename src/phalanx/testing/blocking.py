"""The verbs of `cluster` for tests that do not await: each blocks until its answer is there."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from phalanx.api.errors import ApiError
from phalanx.testing.cluster import Cluster, NotReached

P = ParamSpec("P")
T = TypeVar("T")


class CoroutineRunner(Protocol):
    """Whoever has the loop that a cluster lives on."""

    def __call__(self, question: Coroutine[Any, Any, T], /) -> T:
        """Have a coroutine run there to its end; its result."""
        ...


def _blocking(
    verb: Callable[Concatenate[Cluster, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Phalanx, P], T]:
    @wraps(verb)
    def method(self: Phalanx, /, *args: P.args, **kwargs: P.kwargs) -> T:
        __tracebackhide__ = True
        try:
            return self.drive(verb(self.cluster, *args, **kwargs))
        except (ApiError, NotReached) as error:
            # The test is told off, not we: how it came here says nothing to its author.
            raise error.with_traceback(None) from None

    return method


class Phalanx:
    """A control plane of a test's own, in whichever time its loop has."""

    def __init__(self, cluster: Cluster, drive: CoroutineRunner) -> None:
        #: The same with async verbs, for programs that run on its loop.
        self.cluster = cluster
        self.drive = drive

    nodes = _blocking(Cluster.nodes)
    apply = _blocking(Cluster.apply)
    get = _blocking(Cluster.get)
    find = _blocking(Cluster.find)
    delete = _blocking(Cluster.delete)
    wait_for = _blocking(Cluster.wait_for)
    wait_for_all = _blocking(Cluster.wait_for_all)
    wait_gone = _blocking(Cluster.wait_gone)
    why = _blocking(Cluster.why)
    wrongs = _blocking(Cluster.wrongs)
