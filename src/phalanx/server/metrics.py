"""What the server measures of itself: requests by what they ask and how they end, watches, gates.

`app.Server` reports every request that is about objects, once it is answered. Names, labels and
bounds are those of Kubernetes.
"""

from __future__ import annotations

from collections.abc import Sized

from phalanx.api.gates import Gates
from phalanx.server import applying
from phalanx.server.call import Call
from phalanx.server.routes import Endpoint, Route
from phalanx.telemetry import STAGE_SECONDS, Counter, Gauge, Histogram, Metrics, Row

_ASKED = (
    "verb", "dry_run", "group", "version", "resource", "subresource", "scope", "component",
)  # fmt: skip

REQUESTS = Row(
    Counter, "apiserver_request_total", "Requests about objects, by how they ended.",
    (*_ASKED, "code"),
)  # fmt: skip
SECONDS = Row(
    Histogram, "apiserver_request_duration_seconds",
    "Seconds that requests about objects took, but for watches.", _ASKED,
    (
        0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0,
        10.0, 15.0, 20.0, 30.0, 45.0, 60.0,
    ),
)  # fmt: skip
WATCHES = Row(Gauge, "apiserver_longrunning_requests", "Watches that are open.", ("verb",))
FEATURES = Row(
    Gauge, "kubernetes_feature_enabled", "Feature gates: 1 if on.", ("name", "stage")
)  # fmt: skip

ROWS = (REQUESTS, SECONDS, WATCHES, FEATURES, STAGE_SECONDS)

_WATCH = "WATCH"
_VERBS = {
    "get": "GET", "list": "LIST", "watch": _WATCH, "create": "POST", "update": "PUT",
    "patch": "PATCH", "delete": "DELETE", "deletecollection": "DELETECOLLECTION",
}  # fmt: skip

#: All that the labels of a request are made from.
_Asked = tuple[Endpoint, object, str, bool, bool, bool, int]


class Requests:
    """The requests so far. What counts a request of a known sort is found by one look-up."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._known: dict[_Asked, tuple[Counter, Histogram | None]] = {}

    def count(self, route: Route, call: Call, code: int, seconds: float) -> None:
        """One request was answered."""
        asked = (
            route.endpoint, call.kind, call.subresource, bool(call.name), bool(call.namespace),
            call.dry_run, code,
        )  # fmt: skip
        known = self._known.get(asked)
        if known is None:
            known = self._known[asked] = self._series(route, call, code)
        count, histogram = known
        count.add()
        if histogram is not None:
            histogram.observe(seconds)

    def _series(self, route: Route, call: Call, code: int) -> tuple[Counter, Histogram | None]:
        kind, verb = call.kind, _verb(route)
        labels = (
            verb, "All" if call.dry_run else "", kind.group, kind.version, kind.plural,
            call.subresource, _scope(call), "apiserver",
        )  # fmt: skip
        histogram = None if verb == _WATCH else self._metrics.of(SECONDS, *labels)
        return self._metrics.of(REQUESTS, *labels, str(code)), histogram


def observe(metrics: Metrics, gates: Gates, hub: Sized) -> None:
    """Have told what is not counted but read: gates once, watches whenever somebody asks."""
    for name, stage, is_on in gates.states():
        metrics.of(FEATURES, name, stage).value = is_on
    open_watches = metrics.of(WATCHES, _WATCH)

    def read(hub: Sized) -> None:
        open_watches.value = len(hub)

    metrics.watch(hub, read)


def _verb(route: Route) -> str:
    return "APPLY" if route.endpoint is applying.apply_configuration else _VERBS[route.verb]


def _scope(call: Call) -> str:
    if call.name:
        return "resource"
    return "namespace" if call.namespace else "cluster"
