"""The modules of the page under node: each alone, then all with a server.

What needs a browser (layout, the content security policy, real keys) is in `test_chromium.py`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tools.control_plane import Access, ControlPlane

HERE = Path(__file__).parent
UNIT_TESTS = sorted(path.name for path in HERE.glob("*.test.mjs"))
#: The oldest major version of node with `node --test` as needed.
MIN_NODE_VERSION = 20


def node() -> str:
    """Return the path of node; skip the test if it is missing or too old."""
    found = shutil.which("node")
    if found is None:
        pytest.skip("node is not on the PATH")
    version = subprocess.run(
        [found, "--version"], capture_output=True, text=True, check=True
    ).stdout
    if int(version.removeprefix("v").split(".")[0]) < MIN_NODE_VERSION:
        pytest.skip(f"node is older than {MIN_NODE_VERSION}: {version.strip()}")
    return found


def run(name: str, env: Mapping[str, str]) -> None:
    """Run one file of tests; fail with its output."""
    found = subprocess.run(
        [node(), "--test", str(HERE / name)],
        capture_output=True, text=True, timeout=240, env={**os.environ, **env}, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout[-6000:]


def test_page_requests_all_its_modules_at_once() -> None:
    # Otherwise each is requested when the module that imports it has arrived.
    folder = HERE.parent.parent / "src" / "phalanx" / "ui"
    index = (folder / "index.html").read_text()
    named = re.findall(r'(?:modulepreload" href|type="module" src)="([^"]+)"', index)
    assert sorted(named) == sorted(path.name for path in folder.glob("*.js"))


@pytest.mark.parametrize("name", UNIT_TESTS)
def test_modules_pass_their_tests(name: str) -> None:
    run(name, {})


def page_environment(access: Access, folder: Path) -> dict[str, str]:
    """Return the environment of a page of that server."""
    authority = folder / "authority.pem"
    authority.write_text(access.authority)
    server = f"https://{access.host}:{access.port}"
    return {"SERVER": server, "TOKEN": access.token, "NODE_EXTRA_CA_CERTS": str(authority)}


def test_page_follows_a_running_cluster(tmp_path: Path) -> None:
    shape = "cpu=8,memory=8Gi,example.com/gpu=4"
    options = ("--data", ":memory:", "--nodes", "4", "--shape", shape, "--topology", "block=2")
    node()
    with ControlPlane(*options) as plane:
        run("page.live.mjs", page_environment(plane.access, tmp_path))


@pytest.mark.slow
def test_page_reconnects_to_a_restarted_server(tmp_path: Path) -> None:
    executable, config = node(), tmp_path / "kubeconfig"
    options = ("--data", str(tmp_path / "data"), "--kubeconfig", str(config))
    with ControlPlane(*options, "--nodes", "2"):
        access = Access.read(config)
        env = {**os.environ, **page_environment(access, tmp_path)}
        page = subprocess.Popen(
            [executable, str(HERE / "away.live.mjs")], stdout=subprocess.PIPE, text=True, env=env
        )
        assert page.stdout is not None
        assert page.stdout.readline() == "live\n"
    with page, ControlPlane(*options, "--nodes", "3", "--listen", f"127.0.0.1:{access.port}"):
        states = page.stdout.read().splitlines()
    assert (states[:2], states[2][:7]) == (["not up to date", "live"], "3 nodes")
