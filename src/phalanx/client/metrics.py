"""Metrics of clients: work queues and informers.

A `Client` carries the Metrics of its process; reconcile loops and informers register there.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Any, Protocol

from phalanx.client.work_queue import WorkQueue
from phalanx.telemetry import Counter, Gauge, Histogram, Metrics, MetricSpec, exponential_buckets

#: From ten nanoseconds on, as in Kubernetes.
_BUCKETS = exponential_buckets(1e-8, 10, 12)

QUEUE_DEPTH = MetricSpec(Gauge, "workqueue_depth", "Keys that wait to be worked on.", ("name",))
QUEUE_ADDS = MetricSpec(Counter, "workqueue_adds_total", "Keys that were added.", ("name",))
QUEUE_RETRIES = MetricSpec(
    Counter, "workqueue_retries_total", "Keys that are worked on again after a failure.", ("name",)
)  # fmt: skip
QUEUE_DURATION = MetricSpec(
    Histogram, "workqueue_queue_duration_seconds", "Seconds that a key waits to be worked on.",
    ("name",), _BUCKETS,
)  # fmt: skip
WORK_DURATION = MetricSpec(
    Histogram, "workqueue_work_duration_seconds", "Seconds that a key is worked on.",
    ("name",), _BUCKETS,
)  # fmt: skip
INFORMER_OBJECTS = MetricSpec(
    Gauge, "phalanx_informer_objects", "Objects that an informer holds.", ("resource",)
)  # fmt: skip
INFORMER_FAILING = MetricSpec(
    Gauge, "phalanx_informer_failing", "1 if an informer cannot follow the server.", ("resource",)
)  # fmt: skip

METRICS = (
    QUEUE_DEPTH,
    QUEUE_ADDS,
    QUEUE_RETRIES,
    QUEUE_DURATION,
    WORK_DURATION,
    INFORMER_OBJECTS,
    INFORMER_FAILING,
)


def observe_queue(metrics: Metrics, name: str, queue: WorkQueue[Any]) -> None:
    """Register a work queue."""
    depth, adds = metrics.series(QUEUE_DEPTH, name), metrics.series(QUEUE_ADDS, name)
    retries = metrics.series(QUEUE_RETRIES, name)
    queue.on_dequeued = metrics.series(QUEUE_DURATION, name).observe
    queue.on_processed = metrics.series(WORK_DURATION, name).observe

    def read(queue: WorkQueue[Any]) -> None:
        depth.value, adds.value, retries.value = len(queue), queue.adds, queue.retries

    metrics.on_collect(queue, read)


class MeasuredInformer(Protocol):
    """An informer, as far as it is measured."""

    failure: Any

    @property
    def cache(self) -> Sized:
        """Its cache."""
        ...


def observe_informer(metrics: Metrics, resource: str, informer: MeasuredInformer) -> None:
    """Register an informer."""
    objects, failing = (
        metrics.series(INFORMER_OBJECTS, resource),
        metrics.series(INFORMER_FAILING, resource),
    )

    def read(informer: MeasuredInformer) -> None:
        objects.value, failing.value = len(informer.cache), informer.failure is not None

    metrics.on_collect(informer, read)
