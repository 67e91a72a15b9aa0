"""The image of `phalanx install`, built and run without a container engine.

A soak (`make soak ARGS="-k image"`): the steps of the Dockerfile install packages from the index.
"""

from __future__ import annotations

import base64
import os
import re
import shlex
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest
import yaml

from phalanx.api.wire import Object
from tests.cli.commands import COMMAND_TIMEOUT, WAIT_LIMIT, Kubectl, first_line, start_up
from tests.cli.test_foreign_servers import FORMS, NO_WORKLOAD_APIS, gang
from tests.cli.test_install import find, install
from tests.image_build import ImageBuild, ImageStage, parse_dockerfile

ROOT = Path(__file__).parent.parent
ACCOUNT_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"


def test_image_runs_our_command_as_an_unprivileged_user() -> None:
    found = parse_dockerfile((ROOT / "Dockerfile").read_text())
    last = {one.name: one.text for one in found}
    assert last["USER"] == "65532:65532"
    assert last["ENTRYPOINT"] == '["phalanx"]'
    copied = [one.text for one in found if one.name == "COPY"]
    for source in (word for text in copied for word in text.split()[:-1] if "=" not in word):
        assert source == "/opt/phalanx" or (ROOT / source).exists(), source


def test_lock_file_has_the_packages_of_every_python() -> None:
    entries = re.split(r"\n(?=\S)", (ROOT / "requirements.lock").read_text())
    single = [one.partition("==")[0] for one in entries if one.count("--hash") == 1]
    # Only a package without compiled code is the same file for every version of Python.
    for name in single:
        wheel = distribution(name).read_text("WHEEL") or ""
        assert "Root-Is-Purelib: true" in wheel, name


def has_mount_namespaces() -> bool:
    """Whether this user may mount file systems in a namespace of its own."""
    if shutil.which("unshare") is None:
        return False
    probe = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(probe, capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> ImageStage:
    if not has_mount_namespaces():
        pytest.skip("this user may not create mount namespaces")
    folder = tmp_path_factory.mktemp("image")
    settings = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    python = Path(sys.base_prefix, "bin", "python3").resolve()
    return ImageBuild(ROOT, folder, python, settings).build()


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_image_has_what_the_package_declares_and_no_tools(image: ImageStage) -> None:
    done = image.run(" ".join([*image.entrypoint, "--version"]))
    assert done.stdout.startswith("phalanx, version"), done.stderr
    programs = {path.name for path in (image.files / "opt/phalanx/bin").iterdir()}
    assert "phalanx" in programs
    assert not programs & {"pip", "hatchling", "pytest", "ruff", "mypy"}
    done = image.run("id -u; python -c 'import highspy'; touch /opt/phalanx/x || echo unwritable")
    assert done.stdout.split() == ["65532", "unwritable"]


def write_secrets(image: ImageStage, kubectl: Kubectl, account: str) -> dict[str, str]:
    """Write what a kubelet mounts for a service account; return the variables that it sets."""
    content: Object = yaml.safe_load(kubectl.kubeconfig.read_text())
    cluster: Object = content["clusters"][0]["cluster"]
    folder = image.files / ACCOUNT_FOLDER.lstrip("/")
    folder.mkdir(parents=True, exist_ok=True)
    token = kubectl("create", "token", account, "-n", "phalanx-system").strip()
    (folder / "token").write_text(token)
    (folder / "namespace").write_text("phalanx-system")
    authority = cluster.get("certificate-authority-data", "")
    (folder / "ca.crt").write_bytes(base64.b64decode(authority))
    host, _, port = cluster["server"].removeprefix("https://").rpartition(":")
    return {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}


@pytest.mark.soak
@pytest.mark.timeout(4 * COMMAND_TIMEOUT)
def test_installed_container_places_a_gang_with_a_read_only_file_system(
    image: ImageStage, tmp_path: Path
) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not on the PATH")
    config = tmp_path / "kubeconfig"
    with start_up(
        "--data", ":memory:", "--without", "scheduler,controllers", "--nodes", "3",
        "--shape", "cpu=4", "--feature-gates", NO_WORKLOAD_APIS, "--kubeconfig", str(config),
    ) as up:  # fmt: skip
        assert first_line(up).startswith("ready")
        manifests = install()
        kubectl = Kubectl(config, "", tmp_path)
        text = yaml.safe_dump_all(manifests)
        kubectl("apply", "--server-side", "--validate=strict", "-f", "-", text=text)
        settings = find(manifests, "ConfigMap", "phalanx-scheduler")["data"]["scheduler.yaml"]
        (image.files / "etc/phalanx").mkdir(parents=True, exist_ok=True)
        (image.files / "etc/phalanx/scheduler.yaml").write_text(settings)
        variables = write_secrets(image, kubectl, "phalanx-scheduler")
        template = find(manifests, "Deployment", "phalanx-scheduler")["spec"]["template"]
        (container,) = template["spec"]["containers"]
        words = [*container["command"], *container["args"]]
        # The port of the manifest may be in use here.
        words[words.index("--listen") + 1] = "127.0.0.1:0"
        process = image.start(f"exec {shlex.join(words)}", variables, read_only=True)
        try:
            assert first_line(process).endswith("schedulerName phalanx-scheduler\n")
            pods = Kubectl(config, "default", tmp_path)
            pods.apply(*gang(FORMS["custom resources"], "train", 3, "3"))
            pods("wait", "--for=condition=Ready", "pod", "--all", WAIT_LIMIT)
            process.terminate()
            _, errors = process.communicate(timeout=COMMAND_TIMEOUT)
            assert process.returncode == 0, errors
            assert "forbidden" not in errors
        finally:
            process.kill()
            process.communicate()
