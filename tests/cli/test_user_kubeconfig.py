"""The user's own kubeconfig: contexts of clusters are added and removed, all else stays."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
import yaml

from phalanx.cli.user_kubeconfig import BACKUP_SUFFIX, merge_cluster, remove_cluster
from phalanx.client import kubeconfig

OTHER = """\
# mine
apiVersion: v1
kind: Config
preferences: {}
clusters:
- cluster: {server: https://example.org, insecure-skip-tls-verify: true}
  name: prod
users:
- name: ann
  user:
    token: 012
    auth-provider: {config: {expiry: 2026-01-01T00:00:00Z}}
contexts:
- context: {cluster: prod, user: ann, namespace: research}
  name: prod
current-context: prod
"""


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "kube" / "config"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "kubeconfig"
    kubeconfig.write(file, "https://127.0.0.1:1", ca_pem="CA", token="secret")
    return file


def test_merged_context_reaches_the_cluster_and_becomes_current_in_an_empty_file(
    target: Path, source: Path
) -> None:
    merge_cluster(target, source, "phalanx-a")
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert kubeconfig.load([target]) == kubeconfig.load([source])
    assert not target.with_name(target.name + BACKUP_SUFFIX).exists()
    assert [path.name for path in target.parent.iterdir()] == ["config"]


def test_other_entries_stay_and_the_first_change_keeps_a_copy(target: Path, source: Path) -> None:
    target.parent.mkdir()
    target.write_text(OTHER)
    for _ in range(2):
        merge_cluster(target, source, "phalanx-a")
    merged = yaml.load(target.read_text(), yaml.BaseLoader)
    for section, entries in yaml.load(OTHER, yaml.BaseLoader).items():
        kept = merged[section]
        assert (kept[:-1] if isinstance(entries, list) else kept) == entries
    assert [len(merged[section]) for section in ("clusters", "users", "contexts")] == [2, 2, 2]
    assert "token: 012\n" in target.read_text()
    assert kubeconfig.load([target], "phalanx-a").token == "secret"
    backup = target.with_name(target.name + BACKUP_SUFFIX)
    assert (backup.read_text(), stat.S_IMODE(backup.stat().st_mode)) == (OTHER, 0o600)


def test_removal_leaves_the_other_entries(target: Path, source: Path) -> None:
    target.parent.mkdir()
    target.write_text(OTHER)
    merge_cluster(target, source, "phalanx-a")
    merge_cluster(target, source, "phalanx-b")
    assert remove_cluster(target, "phalanx-a")
    assert not remove_cluster(target, "phalanx-a")
    assert kubeconfig.load([target], "phalanx-b").token == "secret"
    assert remove_cluster(target, "phalanx-b")
    assert yaml.load(target.read_text(), yaml.BaseLoader) == yaml.load(OTHER, yaml.BaseLoader)


def test_removal_of_the_current_context_leaves_none(target: Path, source: Path) -> None:
    merge_cluster(target, source, "phalanx-a")
    assert remove_cluster(target, "phalanx-a")
    assert yaml.safe_load(target.read_text())["current-context"] == ""


def test_removal_without_a_file_does_nothing(target: Path) -> None:
    assert not remove_cluster(target, "phalanx-a")
    assert not target.parent.exists()


def test_file_behind_a_link_is_changed_and_the_link_stays(target: Path, source: Path) -> None:
    target.parent.mkdir()
    real = target.with_name("real")
    real.write_text(OTHER)
    target.symlink_to(real)
    merge_cluster(target, source, "phalanx-a")
    assert target.is_symlink()
    assert kubeconfig.load([real], "phalanx-a").token == "secret"


@pytest.mark.parametrize(
    ("content", "message"),
    [("- a\n", "is not a kubeconfig"), ("a: [\n", "is not valid YAML")],
    ids=["list", "broken"],
)
def test_file_that_is_no_kubeconfig_is_not_changed(
    target: Path, source: Path, content: str, message: str
) -> None:
    target.parent.mkdir()
    target.write_text(content)
    with pytest.raises(kubeconfig.KubeconfigError, match=message):
        merge_cluster(target, source, "phalanx-a")
    assert target.read_text() == content


def test_locked_file_is_not_changed(target: Path, source: Path) -> None:
    target.parent.mkdir()
    target.with_name("config.lock").touch()
    with pytest.raises(kubeconfig.KubeconfigError, match="is locked by another program"):
        merge_cluster(target, source, "phalanx-a")
    assert not target.exists()
