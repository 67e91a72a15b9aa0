"""Credentials that are created while a control plane runs."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.cli.commands import Kubectl, first_line, phalanx, start_up


@dataclass(frozen=True, slots=True)
class Plane:
    data: Path
    home: Path

    def kubectl(self, config: Path) -> Kubectl:
        return Kubectl(config, "default", self.home)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    home = tmp_path_factory.mktemp("keys")
    data = home / "data"
    with start_up("--nodes", "0", "--data", str(data)) as process:
        assert first_line(process).startswith("ready ")
        admin = Kubectl(data / "kubeconfig", "default", home)
        admin("create", "rolebinding", "team", "--clusterrole", "edit", "--group", "team")
        yield Plane(data, home)


def test_token_authenticates_a_user_until_it_is_revoked(plane: Plane, tmp_path: Path) -> None:
    file = tmp_path / "ann.kubeconfig"
    made = phalanx("token", "create", "ann", "--group", "team", "--for", "1h",
                   "--kubeconfig", str(file), "--data", str(plane.data))  # fmt: skip
    assert (made.returncode, made.stderr) == (0, "")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    ann = plane.kubectl(file)
    assert "ann" in ann("auth", "whoami")
    ann("create", "configmap", "c")
    assert "cannot list resource" in ann.run("get", "nodes").stderr
    listed = phalanx("token", "list", "--data", str(plane.data)).stdout
    (row,) = [line.split() for line in listed.splitlines() if "ann" in line]
    assert phalanx("token", "revoke", row[0], "--data", str(plane.data)).returncode == 0
    assert "must be logged in" in _wait_until_rejected(ann)


def _wait_until_rejected(user: Kubectl) -> str:
    for _ in range(50):
        done = user.run("get", "configmaps")
        if done.returncode:
            return done.stderr
    return ""


def test_client_certificate_authenticates_a_user(plane: Plane, tmp_path: Path) -> None:
    file = tmp_path / "bob.kubeconfig"
    made = phalanx("kubeconfig", "bob", str(file), "--group", "team", "--data", str(plane.data))
    assert (made.returncode, made.stdout) == (0, f"wrote {file}\n")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "bob" in plane.kubectl(file)("auth", "whoami")


def test_service_account_token_authenticates_it(plane: Plane) -> None:
    admin = plane.kubectl(plane.data / "kubeconfig")
    token = admin("create", "token", "default").strip()
    review = {
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token},
    }  # fmt: skip
    output = admin("create", "-o", "yaml", "-f", "-", text=yaml.safe_dump(review))
    assert "username: system:serviceaccount:default:default" in output
    account = ("--as", "system:serviceaccount:default:default")
    assert admin.run("auth", "can-i", "get", "pods", *account).stdout == "no\n"


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (
            ("token", "create", "x", "--for", "soon"),
            2,
            'invalid duration "soon"; use for example 30m',
        ),
        (("token", "create", "x", "--for", "soon"), 2, "Invalid value for --for: "),
        (("token", "create", ""), 2, "Invalid value for 'USER': must not be empty"),
        (("token", "create", "x", "--group", ""), 2, "Invalid value for '--group': must not be"),
        (("kubeconfig", "", "f"), 2, "Invalid value for 'USER': must not be empty"),
        (("token", "revoke", "nothing"), 1, "there is no token nothing"),
        (("kubeconfig", "x" * 65, "f"), 2, "Invalid value for USER: 'xxx"),
        (("kubeconfig", "x" * 65, "f"), 2, "does not fit into a certificate"),
        (("kubeconfig", "x", "f", "--days", "0"), 2, "0 is not in the range"),
    ],
)
def test_wrong_usage_is_rejected_in_one_line(
    plane: Plane, args: tuple[str, ...], code: int, message: str
) -> None:
    done = phalanx(*args, "--data", str(plane.data))
    assert done.returncode == code
    assert message in done.stderr


def test_token_needs_a_control_plane(tmp_path: Path) -> None:
    done = phalanx("token", "create", "x", "--data", str(tmp_path / "none"))
    assert (done.returncode, done.stderr) == (
        1, f"Error: {tmp_path / 'none'} does not exist; start phalanx up first\n",
    )  # fmt: skip


def test_up_rejects_a_directory_with_a_file_that_others_may_read(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    (data / "ca.key").touch(mode=0o600)
    (data / "ca.key").chmod(0o644)
    done = phalanx("up", "--listen", "127.0.0.1:0", "--data", str(data))
    assert done.returncode == 1
    assert done.stderr == (
        f"Error: {data / 'ca.key'} holds keys but others may read it; "
        f"run: chmod 600 {data / 'ca.key'}\n"
    )


def test_up_rejects_a_directory_that_is_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "data").symlink_to(tmp_path / "real")
    done = phalanx("up", "--listen", "127.0.0.1:0", "--data", str(tmp_path / "data"))
    assert done.returncode == 1
    assert "is a symbolic link" in done.stderr
