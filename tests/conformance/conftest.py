"""One `phalanx up` on a real disk for all clients; a namespace for each test."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes import client

from tests.cli.commands import Kubectl
from tests.conformance.official_client import ROOT_CA, connected, watched
from tools.control_plane import ControlPlane

NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane with three nodes of 8 CPU each and a data folder."""
    folder = tmp_path_factory.mktemp("plane") / "data"
    with ControlPlane("--data", str(folder), "--nodes", "3", "--shape", "cpu=8") as found:
        yield found


@pytest.fixture(scope="session")
def api(plane: ControlPlane) -> Iterator[client.ApiClient]:
    """The official Python client."""
    with connected(plane.kubeconfig) as found:
        yield found


@pytest.fixture
def namespace(api: client.ApiClient) -> Iterator[str]:
    """The name of a new namespace with its root certificate."""
    core, name = client.CoreV1Api(api), f"conformance-{os.getpid()}-{next(NUMBERS)}"
    core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name=name)))
    selector = f"metadata.name={ROOT_CA}"
    assert watched(core.list_namespaced_config_map, name, first=1, field_selector=selector)
    yield name
    core.delete_namespace(name)


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache folder of kubectl."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def kubectl(plane: ControlPlane, namespace: str, home: Path) -> Kubectl:
    """kubectl in a new namespace."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not on the PATH")
    return Kubectl(plane.kubeconfig, namespace, home)
