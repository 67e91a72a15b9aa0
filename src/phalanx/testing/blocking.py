"""The methods of `Cluster` for tests that are not async: each blocks until its result is there."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from phalanx.api.errors import ApiError
from phalanx.testing.cluster import Cluster, NotReached

P = ParamSpec("P")
T = TypeVar("T")


class CoroutineRunner(Protocol):
    """Runs coroutines on the event loop of a cluster."""

    def __call__(self, question: Coroutine[Any, Any, T], /) -> T:
        """Run a coroutine to its end and return its result."""
        ...


def _blocking(
    method: Callable[Concatenate[Cluster, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Phalanx, P], T]:
    @wraps(method)
    def blocking_method(self: Phalanx, /, *args: P.args, **kwargs: P.kwargs) -> T:
        __tracebackhide__ = True
        try:
            return self.drive(method(self.cluster, *args, **kwargs))
        except (ApiError, NotReached) as error:
            # The frames between the test and the error do not help the author of the test.
            raise error.with_traceback(None) from None

    return blocking_method


class Phalanx:
    """A control plane for one test, in real or virtual time."""

    def __init__(self, cluster: Cluster, drive: CoroutineRunner) -> None:
        #: The same control plane with async methods, for coroutines that run on its loop.
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
