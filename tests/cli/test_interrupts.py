"""^C: exit code 130, the word `interrupted` or nothing, and never a traceback."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import COMMAND_TIMEOUT

#: Python imports a module of this name before any other: it sends ^C at the import of a module.
STOPPER = """
import os, signal, sys

class Stopper:
    def find_spec(self, name, path, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Stopper())
"""


@pytest.mark.parametrize("name", ["phalanx.cli.main", "click", "phalanx.cli.queue", "msgspec"])
def test_interrupt_during_the_imports_ends_the_command_quietly(tmp_path: Path, name: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(STOPPER.format(name=name))
    done = subprocess.run(
        [sys.executable, "-m", "phalanx", "queue"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, timeout=COMMAND_TIMEOUT, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_interrupt_of_a_command_has_exit_code_130(tmp_path: Path) -> None:
    manifests = tmp_path / "manifests.yaml"
    os.mkfifo(manifests)
    process = subprocess.Popen(
        [sys.executable, "-m", "phalanx", "run", "-f", str(manifests)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    # Opened when the command reads it; the command then waits for the end of the file.
    with manifests.open("w"):
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=COMMAND_TIMEOUT)
    assert (process.returncode, out, errors) == (130, "", "interrupted\n")


@pytest.mark.parametrize(
    ("typed", "code", "word"),
    [(b"\x03", 130, "interrupted"), (b"n\n", 1, "Aborted!")],
    ids=["interrupt", "no"],
)
def test_interrupt_of_a_question_is_not_the_answer_no(
    tmp_path: Path, typed: bytes, code: int, word: str
) -> None:
    folder = tmp_path / ".local" / "state" / "phalanx" / "clusters" / "mine"
    folder.mkdir(parents=True)
    (folder / "service-accounts.key").touch(mode=0o600)
    env = {"HOME": str(tmp_path), "KUBECONFIG": "", "XDG_STATE_HOME": ""}
    child, main = pty.fork()
    if child == 0:
        os.execve(
            sys.executable, [sys.executable, "-m", "phalanx", "delete", "mine"], os.environ | env
        )
    shown = b""
    while b"[y/N]: " not in shown:
        shown += os.read(main, 1024)
    # Readline misses a ^C between the question and its wait for the answer.
    while Path(f"/proc/{child}/stat").read_text().split()[2] != "S":
        os.sched_yield()
    os.write(main, typed)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    shown += os.read(main, 1024)
    os.close(main)
    assert status == code
    assert word in shown.decode()
    assert folder.exists()
