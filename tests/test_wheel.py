"""The wheel in an environment that has nothing but what the wheel declares."""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
NODES = ("--nodes", "8", "--shape", "cpu=16,memory=64Gi,nvidia.com/gpu=8")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "-q", "wheel", str(ROOT), "--no-deps"]
    subprocess.run([*command, "--no-build-isolation", "-w", str(folder)], check=True)
    [found] = folder.glob("phalanx-*.whl")
    return found


def requirements(name: str, extra: str, seen: set[str]) -> Iterator[Distribution]:
    """The installed distributions that a distribution declares, with those that they declare."""
    for text in distribution(name).requires or ():
        wanted = Requirement(text)
        applies = wanted.marker is None or wanted.marker.evaluate({"extra": extra})
        if applies and wanted.name not in seen:
            seen.add(wanted.name)
            yield distribution(wanted.name)
            yield from requirements(wanted.name, "", seen)


def link_distribution(found: Distribution, packages: Path) -> None:
    """Make an installed distribution visible in another environment."""
    tops = {
        path.parts[0] for path in found.files or () if path.parts[0] not in ("..", "__pycache__")
    }
    for top in tops:
        source, target = Path(str(found.locate_file(top))), packages / top
        if source.exists() and not target.exists():
            target.symlink_to(source)


def create_environment(folder: Path, wheel: Path, extra: str) -> Path:
    """Create an environment with the wheel and what it declares; return where its programs are."""
    venv.create(folder, with_pip=False)
    [packages] = folder.glob("lib/python*/site-packages")
    for found in requirements("phalanx", extra, set()):
        link_distribution(found, packages)
    command = [sys.executable, "-m", "pip", "-q", "--python", str(folder), "install", "--no-deps"]
    subprocess.run([*command, str(wheel)], check=True)
    return folder / "bin"


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("extra", ["", "exact"])
def test_wheel_runs_a_gang_with_what_it_declares(wheel: Path, tmp_path: Path, extra: str) -> None:
    programs = create_environment(tmp_path / "env", wheel, extra)
    assert run(programs / "phalanx", "--version", cwd=tmp_path).startswith("phalanx")
    manifest = ROOT / "examples" / "01-gang"
    out = run(programs / "phalanx", "run", "-f", manifest, *NODES, cwd=tmp_path)
    assert out.startswith("2 gangs ran, 0 did not")
    source = (
        "import importlib.util, phalanx; print(importlib.util.find_spec('highspy') is not None)"
    )
    has_solver = run(programs / "python", "-c", source, cwd=tmp_path).strip()
    assert has_solver == str(extra == "exact")
