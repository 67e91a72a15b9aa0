"""What is measured of whoever uses the API: work queues and informers, read when somebody asks.

A `client.Client` carries the Metrics of its process; a loop and an informer report themselves there
when they are made.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Any, Protocol

from phalanx.client.workqueue import WorkQueue
from phalanx.telemetry import Counter, Gauge, Histogram, Metrics, Row, exponential

#: From ten nanoseconds on, as in Kubernetes.
_BOUNDS = exponential(1e-8, 10, 12)

DEPTH = Row(Gauge, "workqueue_depth", "Keys that wait to be worked on.", ("name",))
ADDS = Row(Counter, "workqueue_adds_total", "Keys that were added.", ("name",))
RETRIES = Row(
    Counter, "workqueue_retries_total", "Keys that are worked on again after a failure.", ("name",)
)  # fmt: skip
WAITED = Row(
    Histogram, "workqueue_queue_duration_seconds", "Seconds that a key waits to be worked on.",
    ("name",), _BOUNDS,
)  # fmt: skip
WORKED = Row(
    Histogram, "workqueue_work_duration_seconds", "Seconds that a key is worked on.",
    ("name",), _BOUNDS,
)  # fmt: skip
OBJECTS = Row(
    Gauge, "phalanx_informer_objects", "Objects that an informer holds.", ("resource",)
)  # fmt: skip
FAILING = Row(
    Gauge, "phalanx_informer_failing", "1 if an informer cannot follow the server.", ("resource",)
)  # fmt: skip

ROWS = (DEPTH, ADDS, RETRIES, WAITED, WORKED, OBJECTS, FAILING)


def observe_queue(metrics: Metrics, name: str, queue: WorkQueue[Any]) -> None:
    """Have told how a work queue goes."""
    depth, adds = metrics.of(DEPTH, name), metrics.of(ADDS, name)
    retries = metrics.of(RETRIES, name)
    queue.waited = metrics.of(WAITED, name).observe
    queue.worked = metrics.of(WORKED, name).observe

    def read(queue: WorkQueue[Any]) -> None:
        depth.value, adds.value, retries.value = len(queue), queue.adds, queue.retries

    metrics.watch(queue, read)


class Follower(Protocol):
    """An informer, as far as it is measured."""

    failure: Any

    @property
    def cache(self) -> Sized:
        """What it holds."""
        ...


def observe_informer(metrics: Metrics, resource: str, informer: Follower) -> None:
    """Have told how an informer goes."""
    held, failing = metrics.of(OBJECTS, resource), metrics.of(FAILING, resource)

    def read(informer: Follower) -> None:
        held.value, failing.value = len(informer.cache), informer.failure is not None

    metrics.watch(informer, read)
