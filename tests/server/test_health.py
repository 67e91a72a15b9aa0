"""The health endpoints: named checks, in the format of kube-apiserver."""

from __future__ import annotations

import pytest

from phalanx.api.wire import Request
from phalanx.server.health import HealthChecks


def get(checks: HealthChecks, path: str) -> tuple[int, str]:
    path, _, query = path.partition("?")
    reply = checks.serve(Request("GET", path, query))
    return reply.code, reply.body.decode()


@pytest.fixture
def failing() -> HealthChecks:
    checks = HealthChecks()
    checks.add_readiness_check("scheduler", lambda: "no scheduler is running")
    return checks


@pytest.mark.parametrize("endpoint", ["livez", "readyz", "healthz"])
def test_endpoint_answers_ok_or_with_the_line_of_every_check(endpoint: str) -> None:
    checks = HealthChecks()
    assert get(checks, f"/{endpoint}") == (200, "ok")
    verbose = f"[+]ping ok\n[+]log ok\n[+]etcd ok\n{endpoint} check passed\n"
    assert get(checks, f"/{endpoint}?verbose") == (200, verbose)
    assert get(checks, f"/{endpoint}/ping?verbose") == (200, "ok")
    assert get(checks, f"/{endpoint}/none")[0] == 404


def test_a_failed_check_makes_the_server_not_ready_but_leaves_it_alive(
    failing: HealthChecks,
) -> None:
    lines = "[+]ping ok\n[+]log ok\n[+]etcd ok\n[-]scheduler failed: no scheduler is running\n"
    assert get(failing, "/readyz") == (500, f"{lines}readyz check failed\n")
    assert get(failing, "/readyz/scheduler") == (
        500,
        "internal server error: no scheduler is running\n",
    )
    assert get(failing, "/livez") == get(failing, "/healthz") == (200, "ok")


@pytest.mark.parametrize("endpoint", ["livez", "readyz", "healthz"])
def test_a_failed_store_fails_every_endpoint(endpoint: str) -> None:
    checks = HealthChecks(lambda: "the store has failed")
    assert get(checks, f"/{endpoint}")[0] == 500
    assert get(checks, f"/{endpoint}/etcd") == (
        500,
        "internal server error: the store has failed\n",
    )
    assert get(checks, f"/{endpoint}?exclude=etcd") == (200, "ok")


def test_an_excluded_check_is_not_made(failing: HealthChecks) -> None:
    assert get(failing, "/readyz?exclude=scheduler") == (200, "ok")
    assert get(failing, "/readyz?verbose&exclude=scheduler&exclude=none") == (
        200,
        "[+]ping ok\n[+]log ok\n[+]etcd ok\n[+]scheduler excluded: ok\n"
        'warn: some health checks cannot be excluded: no matches for "none"\n'
        "readyz check passed\n",
    )


def test_names_of_the_client_are_quoted(failing: HealthChecks) -> None:
    warning = get(failing, "/livez?verbose&exclude=%1b[8m%0aok")[1].splitlines()[-2]
    assert warning.endswith(r'no matches for "\u001b[8m\nok"')


def test_checks_are_metrics_too(failing: HealthChecks) -> None:
    lines = failing.render_metrics().splitlines()
    assert 'kubernetes_healthcheck{name="ping",type="livez"} 1' in lines
    assert 'kubernetes_healthcheck{name="scheduler",type="readyz"} 0' in lines
