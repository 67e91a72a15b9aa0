"""The page's modules in an engine without a browser: each alone, then all against a server.

What a browser adds (layout, the policy, real keys) is asked in `test_chromium.py`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tools.control_plane import Access, ControlPlane

HERE = Path(__file__).parent
ALONE = sorted(path.name for path in HERE.glob("*.test.mjs"))
OLDEST = 20


def node() -> str:
    """The engine, if there is one that knows how to run tests."""
    found = shutil.which("node")
    if found is None:
        pytest.skip("node is not on the PATH")
    said = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
    if int(said.removeprefix("v").split(".")[0]) < OLDEST:
        pytest.skip(f"node is older than {OLDEST}: {said.strip()}")
    return found


def run(name: str, env: Mapping[str, str]) -> None:
    """One file of tests; what it says if one of them fails."""
    found = subprocess.run(
        [node(), "--test", str(HERE / name)],
        capture_output=True, text=True, timeout=50, env={**os.environ, **env}, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout[-6000:]


@pytest.mark.parametrize("name", ALONE)
def test_modules_do_what_they_say(name: str) -> None:
    run(name, {})


def surroundings(access: Access, folder: Path) -> dict[str, str]:
    """What a page of that server has to know."""
    authority = folder / "authority.pem"
    authority.write_text(access.authority)
    server = f"https://{access.host}:{access.port}"
    return {"SERVER": server, "TOKEN": access.token, "NODE_EXTRA_CA_CERTS": str(authority)}


def test_the_page_follows_a_running_cluster(tmp_path: Path) -> None:
    shape = "cpu=8,memory=8Gi,example.com/gpu=4"
    options = ("--data", ":memory:", "--nodes", "4", "--shape", shape, "--topology", "block=2")
    node()
    with ControlPlane(*options) as plane:
        run("page.live.mjs", surroundings(plane.access, tmp_path))


def test_the_page_finds_a_server_again_that_was_away(tmp_path: Path) -> None:
    engine, config = node(), tmp_path / "kubeconfig"
    kept = ("--data", str(tmp_path / "data"), "--kubeconfig", str(config))
    with ControlPlane(*kept, "--nodes", "2"):
        access = Access.read(config)
        env = {**os.environ, **surroundings(access, tmp_path)}
        page = subprocess.Popen(
            [engine, str(HERE / "away.live.mjs")], stdout=subprocess.PIPE, text=True, env=env
        )
        assert page.stdout is not None
        assert page.stdout.readline() == "live\n"
    with page, ControlPlane(*kept, "--nodes", "3", "--listen", f"127.0.0.1:{access.port}"):
        said = page.stdout.read().splitlines()
    assert (said[:2], said[2][:7]) == (["not up to date", "live"], "3 nodes")
