"""A kopf operator with admission handlers: it registers its webhooks, and the server calls them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, watch

from phalanx.clock import WallClock
from phalanx.server.security.keyring import server_tls_context
from tests.conformance.official_client import connected
from tools.control_plane import ControlPlane

_watch: Any = watch  # It has no types.
OPERATOR = """
import kopf

@kopf.on.login()
def login(**arguments):
    return kopf.login_with_kubeconfig(**arguments)

@kopf.on.startup()
def configure(settings, **_):
    settings.admission.server = kopf.WebhookServer(
        addr="127.0.0.1", host="127.0.0.1", cafile="{folder}/ca.crt",
        certfile="{folder}/server.crt", pkeyfile="{folder}/server.key",
    )
    settings.admission.managed = "auto.kopf.dev"

@kopf.on.mutate("configmaps", operation="CREATE", labels={{"team": kopf.PRESENT}})
def set_owner(meta, patch, **_):
    patch.metadata.annotations["owner"] = meta["labels"]["team"]

@kopf.on.validate("configmaps", operation="CREATE")
def check_team(meta, warnings, **_):
    warnings.append("checked by kopf")
    if "team" not in (meta.get("labels") or {{}}):
        raise kopf.AdmissionError("the label team is missing", code=403)
"""


@contextmanager
def kopf_operator(folder: Path, kubeconfig: str) -> Iterator[None]:
    """Run the operator, with a certificate of its own authority, while the context lasts."""
    server_tls_context(folder, [], WallClock().now())
    program = folder / "admission_handlers.py"
    program.write_text(OPERATOR.format(folder=folder))
    arguments = [sys.executable, "-m", "kopf", "run", "--all-namespaces", str(program)]
    environment = {**os.environ, "KUBECONFIG": kubeconfig}
    with (folder / "kopf.log").open("wb") as log:
        process = subprocess.Popen(arguments, env=environment, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.kill()
            process.wait()


def wait_for_webhooks(api: client.ApiClient) -> None:
    """Wait until the operator has registered its handlers of both types."""
    admission = client.AdmissionregistrationV1Api(api)
    for read in (
        admission.list_mutating_webhook_configuration,
        admission.list_validating_webhook_configuration,
    ):
        events = _watch.Watch().stream(read, timeout_seconds=60)
        assert any(event["object"].webhooks for event in events)


def config_map(name: str, **labels: str) -> client.V1ConfigMap:
    return client.V1ConfigMap(metadata=client.V1ObjectMeta(name=name, labels=labels or None))


@pytest.mark.slow
def test_admission_handlers_of_kopf_change_and_refuse_objects(tmp_path: Path) -> None:
    folder = tmp_path / "operator"
    folder.mkdir(mode=0o700)
    with (
        ControlPlane("--data", str(tmp_path / "data"), "--nodes", "1") as plane,
        connected(plane.kubeconfig) as api,
        kopf_operator(folder, str(plane.kubeconfig)),
    ):
        wait_for_webhooks(api)
        core: Any = client.CoreV1Api(api)
        made, _, headers = core.create_namespaced_config_map_with_http_info(
            "default", config_map("a", team="red")
        )
        assert made.metadata.annotations == {"owner": "red"}
        assert headers["warning"] == '299 - "checked by kopf"'
        with pytest.raises(client.ApiException) as refused:
            core.create_namespaced_config_map("default", config_map("b"))
        assert refused.value.status == 403
        assert "denied the request: the label team is missing" in str(refused.value.body)
