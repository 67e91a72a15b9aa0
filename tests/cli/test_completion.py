from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.cli_user import CliUser, gang_job
from tests.cli.commands import phalanx
from tools.control_plane import ControlPlane

POD_SPEC = {"containers": [{"name": "main", "image": "none"}]}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_is_valid_shell(shell: str) -> None:
    done = phalanx("completion", shell)
    assert (done.returncode, done.stderr) == (0, "")
    assert "_PHALANX_COMPLETE" in done.stdout
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=done.stdout, text=True, check=True, timeout=10)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("phalanx wh", ["why", "what-if"]),
        ("phalanx why -o ", ["text", "json", "yaml"]),
        ("phalanx queue --all-", ["--all-namespaces"]),
    ],
)
def test_commands_options_and_values_are_completed(words: str, found: list[str]) -> None:
    env = {
        "_PHALANX_COMPLETE": "bash_complete", "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }  # fmt: skip
    lines = phalanx(env=env).stdout.splitlines()
    assert [line.partition(",")[2] for line in lines] == found


def test_unknown_shell_is_wrong_usage() -> None:
    assert phalanx("completion", "tcsh").returncode == 2


def test_names_of_the_cluster_are_completed() -> None:
    with ControlPlane("--data", ":memory:", "--nodes", "2", "--without", "scheduler") as plane:
        user = CliUser(plane.kubeconfig)
        user.create({"kind": "Pod", "metadata": {"name": "web"}, "spec": POD_SPEC})

        def complete(words: str) -> list[str]:
            env = {
                "_PHALANX_COMPLETE": "bash_complete", "COMP_WORDS": words,
                "COMP_CWORD": str(words.count(" ")), "KUBECONFIG": str(plane.kubeconfig),
            }  # fmt: skip
            done = phalanx(env=env)
            assert done.stderr == ""
            return [line.partition(",")[2] for line in done.stdout.splitlines()]

        user.create(gang_job("train", 1))
        user.eventually(
            lambda: complete(f"phalanx why -n {user.namespace} gang/") == ["gang/train"]
        )
        assert complete("phalanx why g") == ["gang/"]
        assert complete("phalanx why p") == ["podgroup/", "pod/"]
        assert complete(f"phalanx describe -n {user.namespace} po/w") == ["po/web"]
        assert complete("phalanx what-if --drain node-") == ["node-0", "node-1"]
        assert complete("phalanx queue -n kube-s") == ["kube-system"]


def test_names_of_clusters_are_completed(tmp_path: Path) -> None:
    for name in ("alpha", "beta"):
        folder = tmp_path / "phalanx" / "clusters" / name
        folder.mkdir(parents=True)
        (folder / "up.pid").write_text("1")
    for words in ("phalanx down a", "phalanx queue --cluster a", "phalanx backup --cluster a"):
        env = {
            "_PHALANX_COMPLETE": "bash_complete", "COMP_WORDS": words,
            "COMP_CWORD": str(words.count(" ")), "XDG_STATE_HOME": str(tmp_path),
        }  # fmt: skip
        assert phalanx(env=env).stdout.split() == ["plain,alpha"], words


def test_bash_leaves_no_space_after_the_kind() -> None:
    assert "[[ $value == */ ]] && compopt -o nospace" in phalanx("completion", "bash").stdout


def test_completion_is_silent_without_a_cluster(tmp_path: Path) -> None:
    env = {
        "_PHALANX_COMPLETE": "bash_complete", "COMP_WORDS": "phalanx why job/x", "COMP_CWORD": "2",
        "KUBECONFIG": str(tmp_path / "none"),
    }  # fmt: skip
    done = phalanx(env=env)
    assert (done.stdout.strip(), done.stderr) == ("", "")
