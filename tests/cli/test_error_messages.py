"""Errors of commands: one plain sentence on stderr with what to do, never a traceback."""

from __future__ import annotations

import re
from errno import EACCES
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

from phalanx.cli.main import main
from phalanx.cli.manifests import load_manifests
from phalanx.library import Cluster
from tests.builders import pod
from tests.cli.cli_user import CliUser
from tools.control_plane import ControlPlane

POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("---\nkind: Job\nspec:\n  a: [1\n  b: 2\n", "line 5, column 4: did not find "),
        ("\ta: 1\n", "line 1, column 1: found character that cannot start any token"),
        ('{"kind": "Job",', "line 2, column 1: did not find expected node content"),
        ("hello", "a manifest must be an object, not 'hello'"),
        ("kind: List\nitems: [hello]", "a manifest must be an object, not '\"hello\"'"),
        ("kind: List\nitems: 5", "the items of a List must be a list"),
        ("apiVersion: [v1]\nkind: {a: 1}", "apiVersion and kind must be strings"),
        ("apiVersion: v1\nkind: Pdo", 'unknown kind "Pdo" in v1; did you mean Pod in v1?'),
        ("apiVersion: v1\nkind: Job", "did you mean Job in batch/v1?"),
        ("a: [", "job.yaml: invalid YAML: line 2, column 1: "),
        (f"{POD}  containers: 5\n", 'Pod "a": spec.containers must be a list, not a number'),
        (f"{POD}  hostNetwork: [1]\n", "spec.hostNetwork must be true or false, not a list"),
        (f"{POD}  affinity: many\n", "spec.affinity must be an object, not a string"),
    ],
)
def test_manifest_that_is_no_object_is_reported_with_its_place(
    tmp_path: Path, text: str, message: str
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    with pytest.raises(click.ClickException) as refused:
        load_manifests([str(file)], "default")
    assert refused.value.message.startswith(f"{file}: ")
    assert message in refused.value.message
    assert "\n" not in refused.value.message


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("status",), 'there is no cluster "default"; create one with phalanx up'),
        (("down", "mine"), 'there is no cluster "mine"; create one with phalanx up'),
        (("delete", "mine", "--yes"), 'there is no cluster "mine"; create one with phalanx up'),
        (("queue", "--cluster", "mine"), 'there is no cluster "mine"; create one with phalanx up'),
        (("queue", "--kubeconfig", "{folder}"), "{folder} cannot be read: Is a directory"),
        (("status", "--data", "{folder}"), "{folder} is not a data directory of phalanx up"),
        (("status", "--data", "{folder}/x"), "{folder}/x is not a data directory of phalanx up"),
        (("delete", "--data", "{folder}", "--yes"), "{folder} is not a data directory of"),
        (("up", "--data", "{folder}/file"), "cannot use {folder}/file: it is not a directory"),
    ],
)
def test_command_about_a_cluster_that_does_not_exist_fails_with_the_fix(
    tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    (tmp_path / "file").touch()
    env = {"HOME": str(tmp_path), "KUBECONFIG": "", "XDG_STATE_HOME": ""}
    args = [word.format(folder=tmp_path) for word in words]
    done = CliRunner().invoke(main, args, env=env)
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith(f"Error: {message.format(folder=tmp_path)}")


@pytest.mark.parametrize("words", [["clusters"], ["status"], ["status", "--data", "x"]])
def test_directory_without_permission_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refuse)
    env = {"HOME": str(tmp_path), "KUBECONFIG": "", "XDG_STATE_HOME": ""}
    done = CliRunner().invoke(main, words, env=env)
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith("Error: cannot use ")
    assert done.stderr.endswith(": Permission denied\n")


def test_unknown_context_is_reported_with_the_contexts_of_the_file(plane: ControlPlane) -> None:
    words = ["queue", "--kubeconfig", str(plane.kubeconfig), "--context", "prod"]
    done = CliRunner().invoke(main, words)
    assert (done.exit_code, done.stderr) == (
        1, f'Error: {plane.kubeconfig} has no context "prod"; available: phalanx\n',
    )  # fmt: skip


def test_rejected_credential_is_reported_with_the_fix(plane: ControlPlane, tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    config.write_text(re.sub(r"token: \S+", "token: wrong", plane.kubeconfig.read_text()))
    done = CliRunner().invoke(main, ["queue", "--kubeconfig", str(config)])
    assert done.exit_code == 1
    assert done.stderr.startswith("Error: https://127.0.0.1:")
    assert " rejects the credential of the kubeconfig; " in done.stderr
    assert done.stderr.count("\n") == 1


def test_untrusted_certificate_is_not_reported_as_a_server_that_is_down(
    plane: ControlPlane, tmp_path: Path
) -> None:
    config = tmp_path / "kubeconfig"
    content = yaml.safe_load(plane.kubeconfig.read_text())
    del content["clusters"][0]["cluster"]["certificate-authority-data"]
    config.write_text(yaml.safe_dump(content))
    done = CliRunner().invoke(main, ["queue", "--kubeconfig", str(config)])
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert "its certificate is not trusted: " in done.stderr
    assert "is it running?" not in done.stderr


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("diagnose", ["why", "pod/train"]),
        ("forecast", ["what-if", "--add-nodes", "1"]),
    ],
)
def test_exception_of_the_scheduling_cycle_is_one_sentence(
    plane: ControlPlane, monkeypatch: pytest.MonkeyPatch, method: str, words: list[str]
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise KeyError("node-7")

    user = CliUser(plane.kubeconfig)
    user.create(pod("train", cpu="99"))
    monkeypatch.setattr(Cluster, method, fail)
    done = CliRunner().invoke(
        main, [*words, "--kubeconfig", str(plane.kubeconfig), "-n", user.namespace]
    )
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith("Error: the scheduling cycle failed with KeyError ('node-7') at ")
    assert "report it with the support bundle of phalanx debug" in done.stderr


@pytest.mark.parametrize("option", ["--audit-log", "--decision-log"])
def test_log_in_a_directory_that_does_not_exist_is_wrong_usage(tmp_path: Path, option: str) -> None:
    file = tmp_path / "nowhere" / "log"
    done = CliRunner().invoke(main, ["up", "--data", str(tmp_path / "data"), option, str(file)])
    assert done.exit_code == 2
    assert f"cannot write {option} {file}: its directory does not exist\n" in done.stderr
