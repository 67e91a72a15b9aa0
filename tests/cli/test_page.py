"""`phalanx page` and what the page reads from `phalanx up`, over HTTPS."""

from __future__ import annotations

import json
import urllib.error
from collections import Counter
from pathlib import Path

import pytest

from tests.cli.commands import phalanx
from tests.ui.demo_cluster import gang_job, jobs_path, request, wait_for_states
from tools.control_plane import ControlPlane

SHAPE = "cpu=8,memory=8Gi,example.com/gpu=4"


@pytest.fixture
def plane() -> ControlPlane:
    return ControlPlane("--data", ":memory:", "--nodes", "4", "--shape", SHAPE)


@pytest.mark.slow
def test_page_has_the_states_of_the_command_and_signs_in_once(plane: ControlPlane) -> None:
    with plane:
        access = plane.access
        for name, members in (("fits", 3), ("waits", 2), ("giant", 20)):
            request(access, "POST", jobs_path(), gang_job(name, members, 4))
        items = wait_for_states(access, running=1, waiting=1, never=1)
        config = ("--kubeconfig", str(plane.kubeconfig))
        listed = json.loads(phalanx("queue", "-A", "--ended", "-o", "json", *config).stdout)
        states = Counter((item["state"], item["name"]) for item in listed["items"])
        assert Counter((item["state"], item["name"]) for item in items) == states
        url = phalanx("page", *config).stdout.strip()
        code = {"code": url.rpartition("/")[2]}
        assert request(access, "POST", "/phalanx/v1/sign-in", code) == {"token": access.token}
        with pytest.raises(urllib.error.HTTPError, match="403"):
            request(access, "POST", "/phalanx/v1/sign-in", code)


def test_page_needs_a_running_server(tmp_path: Path) -> None:
    done = phalanx("page", "--kubeconfig", str(tmp_path / "none"))
    assert (done.returncode, "there is no kubeconfig" in done.stderr) == (1, True)
