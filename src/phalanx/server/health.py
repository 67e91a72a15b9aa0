"""`/livez`, `/readyz` and `/healthz`: named checks, in the format of kube-apiserver.

    GET /readyz                    ok, or 500 with the line of every check
    GET /readyz?verbose            the line of every check
    GET /readyz?exclude=scheduler  without a check
    GET /readyz/scheduler          one check

    [+]ping ok
    [+]log ok
    [+]etcd ok
    [-]scheduler failed: no scheduler is running
    readyz check failed

`/metrics/slis` shows the same as metrics.

`/livez` and `/healthz` say that the process answers and that its store works; the check of the
store has the name that clients of Kubernetes know. `/readyz` includes what the process that runs
the server has added: `phalanx up` its scheduler.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from urllib.parse import parse_qs

from phalanx.api.wire import Reply, Request

#: Returns why a check fails; "" if it passes.
HealthCheck = Callable[[], str]

#: Why the check of the scheduler fails.
NO_SCHEDULER = "no scheduler is running"
#: The check of each scheduler name, where a configuration names the schedulers, after this.
PROFILE_CHECK = "scheduler-"
HEALTH_ENDPOINTS = ("livez", "readyz", "healthz")
_READINESS = "readyz"
_TEXT = "text/plain; charset=utf-8"


class HealthChecks:
    """The checks of one server; all but that of the store pass if it answers at all."""

    def __init__(self, check_store: HealthCheck = lambda: "") -> None:
        self._common: dict[str, HealthCheck] = {
            "ping": lambda: "",
            "log": lambda: "",
            "etcd": check_store,
        }
        self._readiness: dict[str, HealthCheck] = {}

    def add_scheduler_checks(self, check: HealthCheck, names: Collection[str] = ()) -> None:
        """Add the check of the scheduler, and one for each name of a configured profile."""
        for name in ("scheduler", *(f"{PROFILE_CHECK}{one}" for one in names)):
            self.add_readiness_check(name, check)

    def add_readiness_check(self, name: str, check: HealthCheck) -> None:
        """Add a check to `/readyz`."""
        self._readiness[name] = check

    def serve(self, request: Request) -> Reply:
        """Answer a request for an endpoint or for one check of it."""
        endpoint, _, name = request.path.strip("/").partition("/")
        checks = self._checks(endpoint)
        if name:
            return _serve_check(checks.get(name))
        query = parse_qs(request.query, keep_blank_values=True)
        excluded, is_failed, lines = set(query.get("exclude", ())), False, list[str]()
        for check_name, check in checks.items():
            if check_name in excluded:
                lines.append(f"[+]{check_name} excluded: ok\n")
            elif reason := check():
                is_failed = True
                lines.append(f"[-]{check_name} failed: {reason}\n")
            else:
                lines.append(f"[+]{check_name} ok\n")
        if unknown := sorted(excluded.difference(checks)):
            # The names are of the client: quoted, they cannot control a terminal.
            names = ",".join(map(json.dumps, unknown))
            lines.append(f"warn: some health checks cannot be excluded: no matches for {names}\n")
        if not is_failed and "verbose" not in query:
            return Reply(200, b"ok", _TEXT)
        lines.append(f"{endpoint} check {'failed' if is_failed else 'passed'}\n")
        return Reply(500 if is_failed else 200, "".join(lines).encode(), _TEXT)

    def render_metrics(self) -> str:
        """Return whether each check passes now, as the metrics of `/metrics/slis`."""
        rows = [
            (name, endpoint, check)
            for endpoint in HEALTH_ENDPOINTS
            for name, check in self._checks(endpoint).items()
        ]
        lines = ["# TYPE kubernetes_healthcheck gauge"]
        for name, endpoint, check in rows:
            labels = f'name="{name}",type="{endpoint}"'
            lines.append(f"kubernetes_healthcheck{{{labels}}} {0 if check() else 1}")
        return "\n".join(lines) + "\n"

    def _checks(self, endpoint: str) -> dict[str, HealthCheck]:
        return {**self._common, **(self._readiness if endpoint == _READINESS else {})}


def _serve_check(check: HealthCheck | None) -> Reply:
    if check is None:
        return Reply(404, b"404 page not found\n", _TEXT)
    if reason := check():
        return Reply(500, f"internal server error: {reason}\n".encode(), _TEXT)
    return Reply(200, b"ok", _TEXT)
