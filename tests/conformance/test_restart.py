"""A server that stops or is killed and restarts, as its clients see it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from kubernetes import client

from tests.conformance.official_client import (
    NOT_ROOT_CA,
    config_map,
    connected,
    version,
    watched,
)
from tools.control_plane import ControlPlane


@pytest.mark.mostly_slow(quick_every=2)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_acknowledged_writes_survive_a_restart_and_watches_continue(
    tmp_path: Path, number: signal.Signals
) -> None:
    options = ("--data", str(tmp_path / "data"), "--nodes", "0")
    with ControlPlane(*options) as plane, connected(plane.kubeconfig) as api:
        core = client.CoreV1Api(api)
        since = version(core.list_namespaced_config_map("default"))
        made = [core.create_namespaced_config_map("default", config_map(name)) for name in "abc"]
        core.delete_namespaced_config_map("a", "default")
        os.kill(plane.pid, number)
    with ControlPlane(*options) as plane, connected(plane.kubeconfig) as api:
        core = client.CoreV1Api(api)
        lists = core.list_namespaced_config_map
        found = [item.metadata for item in lists("default", field_selector=NOT_ROOT_CA).items]
        assert found == [item.metadata for item in made[1:]]
        last = core.create_namespaced_config_map("default", config_map("d"))
        events = watched(
            lists, "default", first=5, resource_version=since, field_selector=NOT_ROOT_CA
        )
        assert [(kind, item.metadata.name) for kind, item in events] == [
            ("ADDED", "a"), ("ADDED", "b"), ("ADDED", "c"), ("DELETED", "a"), ("ADDED", "d"),
        ]  # fmt: skip
        revisions = [int(version(item)) for _, item in events]
        assert revisions == sorted(set(revisions))
        assert revisions[-1] == int(version(last))
