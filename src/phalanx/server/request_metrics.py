"""Metrics of the API server: requests, open watches, feature gates.

`app.Server` records every request about resources when it is answered. Names, labels and buckets
are those of Kubernetes.
"""

from __future__ import annotations

from collections.abc import Sized

from phalanx.api.feature_gates import FeatureGates
from phalanx.server.request_info import RequestInfo
from phalanx.server.routes import Endpoint, Route
from phalanx.server.server_side_apply import apply_configuration
from phalanx.telemetry import STAGE_SECONDS, Counter, Gauge, Histogram, Metrics, MetricSpec

_REQUEST_LABELS = (
    "verb", "dry_run", "group", "version", "resource", "subresource", "scope", "component",
)  # fmt: skip

REQUEST_TOTAL = MetricSpec(
    Counter, "apiserver_request_total", "Requests about resources, by status code.",
    (*_REQUEST_LABELS, "code"),
)  # fmt: skip
REQUEST_SECONDS = MetricSpec(
    Histogram, "apiserver_request_duration_seconds",
    "Latency of requests about resources in seconds, except watches.", _REQUEST_LABELS,
    (
        0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0,
        10.0, 15.0, 20.0, 30.0, 45.0, 60.0,
    ),
)  # fmt: skip
LONGRUNNING_REQUESTS = MetricSpec(
    Gauge, "apiserver_longrunning_requests", "Open watches.", ("verb",)
)
FEATURE_ENABLED = MetricSpec(
    Gauge, "kubernetes_feature_enabled", "Feature gates: 1 if enabled.", ("name", "stage")
)  # fmt: skip

SERVER_METRICS = (
    REQUEST_TOTAL,
    REQUEST_SECONDS,
    LONGRUNNING_REQUESTS,
    FEATURE_ENABLED,
    STAGE_SECONDS,
)

_WATCH_VERB = "WATCH"
_VERBS = {
    "get": "GET", "list": "LIST", "watch": _WATCH_VERB, "create": "POST", "update": "PUT",
    "patch": "PATCH", "delete": "DELETE", "deletecollection": "DELETECOLLECTION",
}  # fmt: skip

#: Everything that the labels of a request depend on.
_SeriesKey = tuple[Endpoint, object, str, bool, bool, bool, int]


class RequestMetrics:
    """Counts requests. The series of a known combination of labels is found by one look-up."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._series_cache: dict[_SeriesKey, tuple[Counter, Histogram | None]] = {}

    def record(self, route: Route, call: RequestInfo, code: int, seconds: float) -> None:
        """Count one answered request."""
        key = (
            route.endpoint,
            call.kind,
            call.subresource,
            bool(call.name),
            bool(call.namespace),
            call.dry_run,
            code,
        )
        series = self._series_cache.get(key)
        if series is None:
            series = self._series_cache[key] = self._series(route, call, code)
        counter, histogram = series
        counter.add()
        if histogram is not None:
            histogram.observe(seconds)

    def _series(
        self, route: Route, call: RequestInfo, code: int
    ) -> tuple[Counter, Histogram | None]:
        kind = call.kind
        verb = "APPLY" if route.endpoint is apply_configuration else _VERBS[route.verb]
        scope = "resource" if call.name else "namespace" if call.namespace else "cluster"
        labels = (
            verb, "All" if call.dry_run else "", kind.group, kind.version, kind.plural,
            call.subresource, scope, "apiserver",
        )  # fmt: skip
        histogram = None if verb == _WATCH_VERB else self._metrics.series(REQUEST_SECONDS, *labels)
        return self._metrics.series(REQUEST_TOTAL, *labels, str(code)), histogram


def register_gauges(metrics: Metrics, gates: FeatureGates, broadcaster: Sized) -> None:
    """Set the gauges of feature gates; read the number of open watches on each scrape."""
    for name, stage, is_on in gates.states():
        metrics.series(FEATURE_ENABLED, name, stage).value = is_on
    open_watches = metrics.series(LONGRUNNING_REQUESTS, _WATCH_VERB)

    def count_watches(watches: Sized) -> None:
        open_watches.value = len(watches)

    metrics.on_collect(broadcaster, count_watches)
