"""Named clusters: separate state, listed, chosen, stopped and deleted by their names."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import yaml

from tests.cli.commands import COMMAND_TIMEOUT, phalanx


@dataclass(frozen=True, slots=True)
class Owner:
    """A user with a home directory of its own."""

    home: Path

    @property
    def env(self) -> dict[str, str]:
        return {"HOME": str(self.home), "KUBECONFIG": "", "XDG_STATE_HOME": ""}

    def folder(self, name: str = "") -> Path:
        base = self.home / ".local" / "state" / "phalanx"
        return base / "clusters" / name if name else base

    def run(self, *args: str, **env: str) -> CompletedProcess[str]:
        return phalanx(*args, env={**self.env, **env})

    def start(self, name: str, *options: str) -> str:
        """Start a cluster in the background; return its URL."""
        done = self.run("up", "--detach", "--name", name, "--nodes", "1", *options)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()[1]

    def listed(self) -> dict[str, Any]:
        items = json.loads(self.run("clusters", "-o", "json").stdout)["items"]
        return {item["name"]: item for item in items}


@pytest.fixture(scope="module")
def ann(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Owner]:
    """A user with the clusters `one` and `two`, both running."""
    owner = Owner(tmp_path_factory.mktemp("home"))
    owner.start("one", "--merge-kubeconfig")
    owner.start("two")
    yield owner
    for name in owner.listed():
        owner.run("down", name)


@pytest.fixture
def bob(tmp_path: Path) -> Iterator[Owner]:
    """A user without clusters."""
    owner = Owner(tmp_path)
    yield owner
    for name in owner.listed():
        owner.run("down", name)


def test_clusters_have_their_own_url_data_and_kubeconfig(ann: Owner) -> None:
    listed = ann.listed()
    assert sorted(listed) == ["one", "two"]
    assert [listed[name]["state"] for name in ("one", "two")] == ["running", "running"]
    assert listed["one"]["url"] != listed["two"]["url"]
    for name, item in listed.items():
        assert item["directory"] == str(ann.folder(name))
        assert item["kubeconfig"] == str(ann.folder(name) / "kubeconfig")
        assert (item["nodes"], item["dataBytes"] > 0) == (1, True)


def test_table_of_clusters_has_a_row_for_each(ann: Owner) -> None:
    header, *rows = ann.run("clusters").stdout.splitlines()
    assert header.split() == ["NAME", "STATE", "URL", "NODES", "DATA"]
    assert [row.split()[:2] for row in rows] == [["one", "running"], ["two", "running"]]
    assert str(ann.folder("one")) in ann.run("clusters", "-o", "wide").stdout


def test_command_asks_the_named_cluster(ann: Owner) -> None:
    for arguments in (["--cluster", "one"], ["--context", "phalanx-one"]):
        done = ann.run("queue", *arguments)
        assert (done.returncode, done.stderr) == (0, "No gang runs or waits.\n")
    unknown = ann.run("queue", "--cluster", "three")
    assert (unknown.returncode, unknown.stderr) == (
        1, 'Error: there is no cluster "three"; available: one, two\n',
    )  # fmt: skip
    both = ann.run("queue", "--cluster", "one", "--kubeconfig", "x")
    assert both.returncode == 2


def test_command_without_a_cluster_lists_those_that_run(ann: Owner) -> None:
    done = ann.run("queue")
    message = "several clusters are running; choose one with --cluster: one, two"
    assert (done.returncode, done.stderr) == (1, f"Error: {message}\n")


def test_kubeconfig_variable_comes_before_the_running_clusters(ann: Owner) -> None:
    done = ann.run("queue", KUBECONFIG=str(ann.folder("two") / "kubeconfig"))
    assert (done.returncode, done.stderr) == (0, "No gang runs or waits.\n")


def test_a_cluster_is_named_by_argument_or_option(ann: Owner) -> None:
    for named in (["one"], ["--name", "one"], ["--cluster", "one"]):
        assert json.loads(ann.run("status", *named, "-o", "json").stdout)["name"] == "one"
    assert "two clusters are named" in ann.run("status", "one", "--name", "x").stderr


def test_status_of_a_running_cluster(ann: Owner) -> None:
    done = ann.run("status", "one")
    assert done.returncode == 0, done.stderr
    facts = dict(line.split(":", 1) for line in done.stdout.splitlines())
    assert {name: fact.strip() for name, fact in facts.items()}.items() >= {
        "cluster": "one",
        "state": "running",
        "url": ann.listed()["one"]["url"],
        "kubeconfig": str(ann.folder("one") / "kubeconfig"),
        "api server": "ready",
        "scheduler": "running",
        "controllers": "running",
        "nodes": "1 of 1 ready",
    }.items()
    data = json.loads(ann.run("status", "one", "-o", "json").stdout)
    assert data["version"].startswith("v1.")
    assert data["components"]["scheduler"] == "running"


def test_tokens_belong_to_the_named_cluster(ann: Owner) -> None:
    assert ann.run("token", "create", "eve", "--cluster", "one").returncode == 0
    assert "eve" in ann.run("token", "list", "--cluster", "one").stdout
    assert "eve" not in ann.run("token", "list", "--cluster", "two").stdout


def test_merged_context_is_in_the_kubeconfig_of_the_user(ann: Owner) -> None:
    merged = yaml.safe_load((ann.home / ".kube" / "config").read_text())
    assert [context["name"] for context in merged["contexts"]] == ["phalanx-one"]
    assert merged["clusters"][0]["cluster"]["server"] == ann.listed()["one"]["url"]


def test_cluster_lives_until_it_is_deleted(bob: Owner) -> None:
    url = bob.start("mine", "--merge-kubeconfig")
    busy = bob.run("up", "--name", "mine")
    assert busy.stderr.endswith(
        "; stop it with phalanx down mine, or choose another name with --name\n"
    )
    assert bob.run("down", "mine").stdout == f"stopped {bob.folder('mine')}\n"
    status = bob.run("status", "mine")
    assert (status.returncode, "stopped" in status.stdout) == (3, True)
    assert bob.start("mine") == url
    refused = bob.run("delete", "mine")
    assert (refused.returncode, refused.stderr) == (
        1, 'Error: to delete cluster "mine" with all its objects, add --yes\n',
    )  # fmt: skip
    assert bob.listed()["mine"]["state"] == "running"
    deleted = bob.run("delete", "mine", "--yes")
    assert (deleted.returncode, deleted.stdout) == (0, 'deleted cluster "mine"\n')
    assert not bob.folder("mine").exists()
    assert yaml.safe_load((bob.home / ".kube" / "config").read_text())["contexts"] == []
    again = bob.run("delete", "mine", "--yes")
    assert (again.returncode, again.stderr) == (
        1, 'Error: there is no cluster "mine"; create one with phalanx up\n',
    )  # fmt: skip


def test_only_running_cluster_is_the_default(bob: Owner) -> None:
    bob.start("mine")
    assert bob.run("queue").stderr == "No gang runs or waits.\n"
    assert bob.run("down").stderr.endswith("; running: mine\n")


def test_deletion_of_the_default_cluster_keeps_the_others_and_foreign_files(bob: Owner) -> None:
    for folder in (bob.folder(), bob.folder() / "clusters", bob.folder("other")):
        folder.mkdir(mode=0o700, parents=True)
    (bob.folder("other") / "service-accounts.key").touch(mode=0o600)
    started = bob.run("up", "--detach", "--nodes", "0", "--listen", "127.0.0.1:0")
    assert started.stdout.endswith(f"kubeconfig {bob.folder()}/kubeconfig\n")
    (bob.folder() / "notes.txt").write_text("mine")
    assert bob.run("delete", "--yes").stdout == 'deleted cluster "default"\n'
    assert sorted(path.name for path in bob.folder().iterdir()) == ["clusters", "notes.txt"]
    assert list(bob.listed()) == ["other"]


def test_directory_without_a_control_plane_is_never_deleted(bob: Owner) -> None:
    folder = bob.home / "project"
    folder.mkdir()
    names = ["ca.crt", "cluster.json", "kubeconfig", "server.key", "store.db"]
    for name in names:
        (folder / name).write_text("{}")
    done = bob.run("delete", "--data", str(folder), "--yes")
    assert (done.returncode, done.stderr) == (
        1, f"Error: {folder} is not a data directory of phalanx up\n",
    )  # fmt: skip
    assert sorted(path.name for path in folder.iterdir()) == names


@pytest.mark.parametrize(("answer", "code"), [("n\n", 1), ("y\n", 0)], ids=["no", "yes"])
def test_delete_asks_on_a_terminal(bob: Owner, answer: str, code: int) -> None:
    bob.folder("mine").mkdir(parents=True)
    (bob.folder("mine") / "service-accounts.key").touch()
    main, terminal = pty.openpty()
    try:
        os.write(main, answer.encode())
        done = subprocess.run(
            [sys.executable, "-m", "phalanx", "delete", "mine"], stdin=terminal,
            env={**os.environ, **bob.env}, capture_output=True, text=True,
            timeout=COMMAND_TIMEOUT, check=False,
        )  # fmt: skip
    finally:
        os.close(terminal)
        os.close(main)
    assert done.returncode == code, done.stderr
    assert 'Delete cluster "mine" (stopped, 0 nodes, 0 B)? [y/N]: ' in done.stderr
    assert bob.folder("mine").exists() == bool(code)


@pytest.mark.parametrize("name", ["a.example.org", "A", "../x", "-a", "x" * 41])
def test_name_that_is_no_cluster_name_is_wrong_usage(bob: Owner, name: str) -> None:
    done = bob.run("up", "--name", name)
    assert done.returncode == 2
    assert f'invalid cluster name "{name}"; use lower-case letters' in done.stderr
    assert ("--tls-name" in done.stderr) == ("." in name)


def test_named_cluster_has_no_other_directory(bob: Owner) -> None:
    for command in ("up --name x", "down x", "status x", "delete x"):
        done = bob.run(*command.split(), "--data", str(bob.home / "y"))
        assert done.returncode == 2
        assert "a named cluster has its own directory; leave out --data" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("delete", "", "--yes"),
        ("delete", "--name", "", "--yes"),
        ("down", ""),
        ("status", ""),
        ("up", "--name", ""),
        ("queue", "--cluster", ""),
        ("token", "list", "--cluster", ""),
        ("backup", "x.db", "--cluster", ""),
    ],
    ids=lambda words: " ".join(words),
)
def test_empty_name_is_wrong_usage_and_not_the_default_cluster(
    bob: Owner, words: tuple[str, ...]
) -> None:
    bob.folder().mkdir(parents=True)
    (bob.folder() / "service-accounts.key").touch(mode=0o600)
    done = bob.run(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert 'invalid cluster name ""; use lower-case letters' in done.stderr
    assert (bob.folder() / "service-accounts.key").exists()


def test_empty_environment_variable_of_an_option_is_no_value(bob: Owner) -> None:
    done = bob.run("queue", PHALANX_QUEUE_CLUSTER="")
    assert (done.returncode, "there is no kubeconfig at" in done.stderr) == (1, True)


MEMORY = ("up", "--detach", "--data", ":memory:", "--nodes", "0", "--listen", "127.0.0.1:0")


def test_two_clusters_in_memory_need_two_names(bob: Owner) -> None:
    assert bob.run(*MEMORY).returncode == 0
    second = bob.run(*MEMORY)
    assert (second.returncode, "in use by process" in second.stderr) == (1, True)
    assert bob.run(*MEMORY, "--name", "scratch").returncode == 0
    assert {name: (item["state"], item["store"]) for name, item in bob.listed().items()} == {
        "memory": ("running", "memory"),
        "scratch": ("running", "memory"),
    }
    assert bob.run("queue", "--cluster", "scratch").returncode == 0


def test_cluster_in_memory_does_not_pass_for_the_default_cluster(bob: Owner) -> None:
    assert bob.run("up", "--detach", "--nodes", "0", "--listen", "127.0.0.1:0").returncode == 0
    assert bob.run("down").returncode == 0
    before = (bob.folder() / "kubeconfig").read_text()
    assert bob.run(*MEMORY).returncode == 0
    assert (bob.folder() / "kubeconfig").read_text() == before
    listed = bob.listed()
    assert {name: item["state"] for name, item in listed.items()} == {
        "default": "stopped",
        "memory": "running",
    }
    rows = [line.split() for line in bob.run("clusters").stdout.splitlines()[1:]]
    assert [row[-2:] for row in rows if row[0] == "memory"] == [["in", "memory"]]
    status = bob.run("status", "--data", ":memory:")
    assert (status.returncode, "(in memory)" in status.stdout) == (0, True)
    assert bob.run("queue").stderr == "No gang runs or waits.\n"
    assert bob.run("down", "--data", ":memory:").stdout == f"stopped {bob.folder('memory')}\n"
    assert list(bob.listed()) == ["default"]


def test_cluster_in_memory_has_no_backup_and_no_keys_on_disk(bob: Owner, tmp_path: Path) -> None:
    config = tmp_path / "memory.kubeconfig"
    assert bob.run(*MEMORY, "--kubeconfig", str(config)).returncode == 0
    copy = str(tmp_path / "copy.db")
    for words in (("backup", copy), ("restore", copy)):
        for named in (("--data", ":memory:"), ("--cluster", "memory")):
            done = bob.run(*words, *named)
            assert (done.returncode, done.stdout) == (1, "")
            assert done.stderr == (
                f"Error: the control plane of {bob.folder('memory')} keeps its objects in memory; "
                "backup and restore need a cluster on disk\n"
            )
    new = str(tmp_path / "joe.kubeconfig")
    for line in ("token create joe", "token list", f"kubeconfig joe {new}"):
        done = bob.run(*line.split(), "--cluster", "memory")
        assert (done.returncode, done.stdout) == (1, "")
        assert f"keeps its keys in memory; use its kubeconfig {config}, or" in done.stderr
    assert not Path(new).exists()


def test_store_in_memory_beside_one_on_disk_has_no_backup(bob: Owner, tmp_path: Path) -> None:
    start = ("up", "--detach", "--nodes", "0", "--listen", "127.0.0.1:0")
    assert bob.run(*start).returncode == 0
    assert bob.run("down").returncode == 0
    assert bob.run(*start, "--store", "memory").returncode == 0
    assert bob.listed()["default"]["store"] == "memory"
    done = bob.run("backup", str(tmp_path / "copy.db"))
    assert (done.returncode, "keeps its objects in memory" in done.stderr) == (1, True)
    assert bob.run("token", "create", "joe").returncode == 0


def test_cluster_in_memory_does_not_take_the_name_of_one_on_disk(bob: Owner) -> None:
    bob.start("mine")
    bob.run("down", "mine")
    done = bob.run(*MEMORY, "--name", "mine")
    assert (done.returncode, done.stderr) == (
        1,
        'Error: cluster "mine" has objects on disk; choose another --name for one in memory, or '
        "run phalanx delete mine first\n",
    )


def test_user_kubeconfig_has_the_address_of_the_server_that_runs(
    bob: Owner, tmp_path: Path
) -> None:
    start = ("up", "--detach", "--nodes", "0", "--listen", "127.0.0.1:0")
    old = bob.run(*start).stdout.split()[1]
    assert bob.run("down").returncode == 0
    url = bob.run(*start, "--kubeconfig", str(tmp_path / "admin")).stdout.split()[1]
    assert url != old
    file = tmp_path / "joe"
    assert bob.run("token", "create", "joe", "--kubeconfig", str(file)).returncode == 0
    assert f"server: {url}\n" in file.read_text()


def test_command_names_the_cluster_to_start(bob: Owner, tmp_path: Path) -> None:
    url = bob.start("mine")
    config = bob.folder("mine") / "kubeconfig"
    (tmp_path / "other").write_text(config.read_text().replace(url, "https://127.0.0.1:1"))
    bob.run("down", "mine")
    for named in (("--cluster", "mine"), ("--kubeconfig", str(config))):
        done = bob.run("queue", *named)
        assert (done.returncode, done.stderr) == (
            1,
            f"Error: cannot reach {url}: Connection refused; is it running? "
            "(phalanx up --name mine)\n",
        )
    foreign = bob.run("queue", "--kubeconfig", str(tmp_path / "other"))
    assert foreign.stderr.endswith(": Connection refused; is it running?\n")


def test_list_without_clusters_says_so(bob: Owner) -> None:
    done = bob.run("clusters")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "There is no cluster; create one with phalanx up.\n"


def test_delete_that_cannot_remove_the_context_keeps_the_cluster(bob: Owner) -> None:
    key, lock = bob.folder("mine") / "service-accounts.key", bob.home / ".kube" / "config.lock"
    for file in (key, lock):
        file.parent.mkdir(parents=True)
        file.touch()
    (bob.home / ".kube" / "config").write_text("contexts: [{name: phalanx-mine}]\n")
    refused = bob.run("delete", "mine", "--yes")
    assert (refused.returncode, key.exists()) == (1, True)
    assert refused.stderr.endswith(f"if none changes it, delete {lock}\n")
    lock.unlink()
    assert bob.run("delete", "mine", "--yes").returncode == 0
    assert "phalanx-mine" not in (bob.home / ".kube" / "config").read_text()
