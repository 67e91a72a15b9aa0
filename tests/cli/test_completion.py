from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.cli.commands import phalanx


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
