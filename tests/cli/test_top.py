from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.builders import gang
from tests.cli.cli_user import CliUser
from tests.cli.commands import COMMAND_TIMEOUT, phalanx
from tools.control_plane import ControlPlane


@pytest.fixture(scope="module")
def user() -> Iterator[CliUser]:
    """A user of two racks with one node each; one gang runs, one waits."""
    shape = ("--nodes", "2", "--shape", "cpu=8", "--topology", "rack=2")
    with ControlPlane("--data", ":memory:", *shape) as plane:
        found = CliUser(plane.kubeconfig)
        found.create(*gang("small", 2, cpu="2"), *gang("big", 3, cpu="7"))
        found.eventually(lambda: _is_settled(found))
        yield found


def _is_settled(user: CliUser) -> bool:
    return [line.reason for line in user.gangs()] == ["", "Unschedulable"]


def test_top_prints_once_without_a_terminal(user: CliUser) -> None:
    done = user.run("top")
    assert (done.returncode, done.stderr) == (0, "")
    text = done.stdout
    assert text.splitlines()[0] == "2 nodes, 2 pods placed, 3 waiting"
    assert "cpu      █████░░░░░░░░░░░░░░░   4 of 16" in text
    assert "\x1b" not in text
    tables = [line.partition(" ")[0] for line in text.splitlines()]
    assert [one for one in tables if one in ("GANG", "RACK", "NODE")] == ["GANG", "RACK", "NODE"]
    gangs = [line.split() for line in text.splitlines() if line.startswith("podgroup/")]
    assert [row[:2] + row[3:] for row in gangs] == [
        ["podgroup/small", "Running", "2/2"],
        ["podgroup/big", "Never", "0/3", "Unschedulable"],
    ]


def test_top_prints_json(user: CliUser) -> None:
    answer = json.loads(user.run("top", "-o", "json").stdout)
    assert (answer["cluster"]["nodes"], answer["cluster"]["used"]["cpu"]) == (2, 4000)
    assert [site["name"] for site in answer["nodes"]] == ["node-0", "node-1"]
    assert [gang["name"] for gang in answer["gangs"]] == ["small", "big"]


def test_top_shows_the_gangs_of_one_namespace(user: CliUser) -> None:
    other = CliUser(user.config)
    assert "No gang runs or waits." in other.run("top").stdout


@pytest.mark.slow
def test_top_refreshes_on_a_terminal_until_interrupted(user: CliUser) -> None:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "phalanx", "top", "--kubeconfig", str(user.config),
         "--interval", "0.1"],
        stdin=subprocess.DEVNULL, stdout=slave, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.close(slave)
    try:
        output = ""
        while output.count("2 nodes, 2 pods placed") < 2:
            output += os.read(master, 4096).decode(errors="replace")
        process.send_signal(signal.SIGINT)
        # The process blocks in the middle of a redraw until its output is read.
        with contextlib.suppress(OSError):
            while os.read(master, 4096):
                pass
        _, errors = process.communicate(timeout=COMMAND_TIMEOUT)
        assert (process.returncode, errors) == (0, "")
        assert "\x1b[32m" in output
    finally:
        process.kill()
        os.close(master)


def test_keys_change_the_table_and_quit(user: CliUser) -> None:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "phalanx", "top", "--kubeconfig", str(user.config)],
        stdin=slave, stdout=slave, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.close(slave)
    try:
        output = ""
        for key, shown in (
            ("\t", "Gangs: 1 of 2"),
            ("\r", "By rack: 1 of 2"),
            ("q", "Nodes of rack"),
        ):
            while shown not in output:
                output += os.read(master, 4096).decode(errors="replace")
            os.write(master, key.encode())
        with contextlib.suppress(OSError):
            while os.read(master, 4096):
                pass
        _, errors = process.communicate(timeout=COMMAND_TIMEOUT)
        assert (process.returncode, errors) == (0, "")
    finally:
        process.kill()
        os.close(master)


def test_wrong_usage() -> None:
    assert phalanx("top", "--interval", "0").returncode == 2
