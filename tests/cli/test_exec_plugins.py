"""Programs that a kubeconfig names as the source of its credential run only if allowed."""

from __future__ import annotations

import os
import pty
import select
import sys
from pathlib import Path

import pytest
import yaml

from phalanx.api.wire import Object
from phalanx.cli.main import main
from tests.cli.commands import COMMAND_TIMEOUT, FORKS, phalanx
from tests.cli.test_every_command import QUERIES
from tools.control_plane import ControlPlane

EXEC_V1 = "client.authentication.k8s.io/v1"


class PluginConfig:
    """A kubeconfig whose credential comes from a plugin, which leaves a file when it runs."""

    def __init__(self, folder: Path, server: str = "http://127.0.0.1:1", token: str = "x") -> None:
        self.file, self.ran = folder / "config", folder / "ran"
        self.env = {"XDG_STATE_HOME": str(folder / "state"), "KUBECONFIG": ""}
        self.allowed = folder / "state" / "phalanx" / "allowed-exec-plugins"
        status = f'{{"apiVersion": "{EXEC_V1}", "kind": "ExecCredential", '
        status += f'"status": {{"token": "{token}"}}}}'
        script = folder / "plugin"
        script.write_text(f"#!/bin/sh\ntouch {self.ran}\necho '{status}'\n")
        script.chmod(0o755)
        self.content: Object = {
            "current-context": "one",
            "contexts": [{"name": "one", "context": {"cluster": "one", "user": "one"}}],
            "clusters": [{"name": "one", "cluster": {"server": server}}],
            "users": [{"name": "one", "user": {"exec": {
                "apiVersion": EXEC_V1, "command": "./plugin", "args": ["a b"],
                "interactiveMode": "Never",
            }}}],
        }  # fmt: skip
        self.write()

    @classmethod
    def of(cls, plane: ControlPlane, folder: Path) -> PluginConfig:
        """Return one for a control plane, with the administrator's token."""
        known = yaml.safe_load(plane.kubeconfig.read_text())
        found = cls(folder, token=known["users"][0]["user"]["token"])
        found.content["clusters"][0]["cluster"] = known["clusters"][0]["cluster"]
        found.write()
        return found

    def write(self) -> None:
        self.file.write_text(yaml.safe_dump(self.content))


@pytest.mark.parametrize("command", [*QUERIES, "scheduler", "controllers", "nodes"])
def test_plugin_does_not_run_without_permission(command: str, tmp_path: Path) -> None:
    plugin = PluginConfig(tmp_path)
    args = QUERIES.get(command, [command])
    done = phalanx(*args, "--kubeconfig", str(plugin.file), env=plugin.env)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"Error: the kubeconfig runs the program {tmp_path}/plugin 'a b' for the credential; "
        "if you trust it, add --allow-exec\n"
    )
    assert not plugin.ran.exists()


def test_debug_does_not_run_the_plugin_without_permission(tmp_path: Path) -> None:
    plugin = PluginConfig(tmp_path)
    done = phalanx(
        "debug", str(tmp_path / "bundle"), "--kubeconfig", str(plugin.file), env=plugin.env
    )
    assert done.returncode == 0
    assert "add --allow-exec" in done.stderr
    assert not plugin.ran.exists()


def test_plugin_runs_with_allow_exec(plane: ControlPlane, tmp_path: Path) -> None:
    plugin = PluginConfig.of(plane, tmp_path)
    done = phalanx("top", "--kubeconfig", str(plugin.file), "--allow-exec", env=plugin.env)
    assert (done.returncode, done.stderr) == (0, "")
    assert plugin.ran.exists()
    assert not plugin.allowed.exists()


def test_credential_before_a_plugin_needs_no_permission(
    plane: ControlPlane, tmp_path: Path
) -> None:
    plugin = PluginConfig.of(plane, tmp_path)
    known = yaml.safe_load(plane.kubeconfig.read_text())
    plugin.content["users"][0]["user"]["token"] = known["users"][0]["user"]["token"]
    plugin.write()
    done = phalanx("top", "--kubeconfig", str(plugin.file), env=plugin.env)
    assert (done.returncode, done.stderr) == (0, "")
    assert not plugin.ran.exists()


def test_answer_on_a_terminal_counts_once_or_always(plane: ControlPlane, tmp_path: Path) -> None:
    plugin = PluginConfig.of(plane, tmp_path)
    question = f"{tmp_path}/plugin 'a b'"
    for answer, code, runs in (("", 1, False), ("yes", 0, True)):
        found, text = answer_on_terminal(plugin, answer)
        assert (found, plugin.ran.exists(), question in text) == (code, runs, True), text
        assert not plugin.allowed.exists()
        plugin.ran.unlink(missing_ok=True)
    assert answer_on_terminal(plugin, "always")[0] == 0
    assert plugin.allowed.stat().st_mode & 0o777 == 0o600
    plugin.ran.unlink()
    args = ("queue", "--kubeconfig", str(plugin.file))
    assert phalanx(*args, env=plugin.env).returncode == 0
    assert plugin.ran.exists()
    exec_ = plugin.content["users"][0]["user"]["exec"]
    for change in ({"args": ["c"]}, {"env": [{"name": "LD_PRELOAD", "value": "./evil.so"}]}):
        exec_ |= change
        plugin.write()
        assert phalanx(*args, env=plugin.env).returncode == 1
    exec_ |= {"args": ["a b"], "env": None}
    plugin.write()
    assert phalanx(*args, env=plugin.env).returncode == 0
    plugin.allowed.chmod(0o660)
    assert phalanx(*args, env=plugin.env).returncode == 1


def test_question_shows_the_environment_of_the_program(tmp_path: Path) -> None:
    plugin = PluginConfig(tmp_path)
    variable = {"name": "LD_PRELOAD", "value": "./evil\x1b[8m.so"}
    plugin.content["users"][0]["user"]["exec"]["env"] = [variable]
    plugin.write()
    code, text = answer_on_terminal(plugin, "no")
    assert code == 1
    assert f"'LD_PRELOAD=./evil\\x1b[8m.so' {tmp_path}/plugin 'a b'" in text


def answer_on_terminal(plugin: PluginConfig, answer: str) -> tuple[int, str]:
    """Run `phalanx queue` on a terminal and answer its question."""
    master, terminal = pty.openpty()
    environment = {**os.environ, **plugin.env, "TERM": "dumb"}
    args = ["queue", "--kubeconfig", str(plugin.file)]
    process = FORKS.Process(target=run_on_terminal, args=(args, environment, os.ttyname(terminal)))
    process.start()
    text = ""
    try:
        while "[no]:" not in text:
            assert select.select([master], [], [], COMMAND_TIMEOUT)[0], text
            text += os.read(master, 4096).decode()
        os.write(master, f"{answer}\n".encode())
        process.join(COMMAND_TIMEOUT)
        assert process.exitcode is not None
        return process.exitcode, text.replace("\r\n", "\n")
    finally:
        process.kill()
        process.join()
        os.close(terminal)
        os.close(master)


def run_on_terminal(args: list[str], env: dict[str, str], terminal: str) -> None:
    """Run `phalanx` with this terminal as stdin, stdout and stderr."""
    for number in range(3):
        os.dup2(os.open(terminal, os.O_RDWR | os.O_NOCTTY), number)
    # The forked process has read from /dev/null before.
    sys.stdin = os.fdopen(0)
    os.environ.clear()
    os.environ.update(env)
    main(args, prog_name="phalanx")
