"""One `phalanx up` for all tests that only read it, and a namespace for each test."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.commands import Kubectl
from tools.control_plane import ControlPlane

NUMBERS = itertools.count()


SHAPE = ("--nodes", "2", "--shape", "cpu=8,memory=8Gi,example.com/gpu=4")


@pytest.fixture(scope="session", autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A state directory of the tests' own: control planes of other runs are not found."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def plane() -> Iterator[ControlPlane]:
    """A control plane of two nodes of 8 CPU and 4 GPUs each."""
    with ControlPlane("--data", ":memory:", *SHAPE) as found:
        yield found


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home directory of kubectl, with its discovery cache."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def kubectl(plane: ControlPlane, home: Path) -> Iterator[Kubectl]:
    """kubectl in a namespace that is deleted after the test."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not on the PATH")
    found = Kubectl(plane.kubeconfig, f"test-{next(NUMBERS)}", home)
    found("create", "namespace", found.namespace)
    yield found
    found("delete", "namespace", found.namespace, "--wait=false")
