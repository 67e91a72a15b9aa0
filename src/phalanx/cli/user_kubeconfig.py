"""Contexts of clusters in the user's own kubeconfig: `phalanx up --merge-kubeconfig` adds one.

The file is changed as YAML nodes, so that every other entry keeps its exact text and order; only
comments are lost, as with `kubectl config`. The first change keeps a copy of the file. A lock file
excludes kubectl and other programs, by the same convention.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import yaml

from phalanx.client import kubeconfig

USER_KUBECONFIG = Path("~/.kube/config")
BACKUP_SUFFIX, _LOCK_SUFFIX = ".before-phalanx", ".lock"
_SECTIONS = ("clusters", "users", "contexts")
_EMPTY = "apiVersion: v1\nkind: Config\nclusters: []\nusers: []\ncontexts: []\n"


def merge_cluster(target: Path, source: Path, name: str) -> None:
    """Copy the only cluster, user and context of `source` into `target` under a name.

    An entry of this name is replaced. The context becomes the current one if there is none.
    """
    content = yaml.safe_load(source.read_text())
    cluster, user = content["clusters"][0]["cluster"], content["users"][0]["user"]
    entries = {
        "clusters": {"name": name, "cluster": cluster},
        "users": {"name": name, "user": user},
        "contexts": {"name": name, "context": {"cluster": name, "user": name}},
    }
    with _edited(target) as root:
        for section, entry in entries.items():
            items = _section(root, section)
            items.value = [item for item in items.value if _text(item, "name") != name]
            items.value.append(yaml.compose(yaml.safe_dump(entry, sort_keys=False)))
            items.flow_style = False
        if not _text(root, "current-context"):
            _set(root, "current-context", yaml.compose(name))


def remove_cluster(target: Path, name: str) -> bool:
    """Remove the entries of a name; return whether there were any."""
    if not target.expanduser().exists() or name not in target.expanduser().read_text():
        return False
    found = False
    with _edited(target) as root:
        for section in _SECTIONS:
            items = _section(root, section)
            kept = [item for item in items.value if _text(item, "name") != name]
            found = found or len(kept) < len(items.value)
            items.value = kept
        if _text(root, "current-context") == name:
            _set(root, "current-context", yaml.compose('""'))
    return found


@contextlib.contextmanager
def _edited(target: Path) -> Iterator[yaml.MappingNode]:
    """Yield the root node of a kubeconfig, and write the file atomically at the end."""
    # A link stays a link: the file that it names is replaced.
    path = target.expanduser().resolve()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(path):
            root = yaml.compose(path.read_text() if path.exists() else _EMPTY) or yaml.compose(
                _EMPTY
            )
            if not isinstance(root, yaml.MappingNode):
                raise kubeconfig.KubeconfigError(f"{path} is not a kubeconfig")
            yield root
            backup = path.with_name(path.name + BACKUP_SUFFIX)
            if path.exists() and not backup.exists():
                kubeconfig.write_atomically(backup, path.read_text())
            kubeconfig.write_atomically(path, yaml.serialize(root))
    except OSError as error:
        raise kubeconfig.KubeconfigError(f"{path} cannot be written: {error.strerror}") from None
    except yaml.YAMLError:
        raise kubeconfig.KubeconfigError(f"{path} is not valid YAML") from None


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = path.with_name(path.name + _LOCK_SUFFIX)
    try:
        os.close(os.open(lock, os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        raise kubeconfig.KubeconfigError(
            f"{path} is locked by another program; if none changes it, delete {lock}"
        ) from None
    try:
        yield
    finally:
        lock.unlink()


def _find(mapping: yaml.Node, key: str) -> yaml.Node | None:
    if not isinstance(mapping, yaml.MappingNode):
        return None
    return next((value for name, value in mapping.value if name.value == key), None)


def _text(mapping: yaml.Node, key: str) -> str:
    value = _find(mapping, key)
    return str(value.value) if isinstance(value, yaml.ScalarNode) else ""


def _section(root: yaml.MappingNode, name: str) -> yaml.SequenceNode:
    """The list of a section, which is created if it is missing or null."""
    found = _find(root, name)
    if not isinstance(found, yaml.SequenceNode):
        found = yaml.compose("[]")
        _set(root, name, found)
    return found


def _set(root: yaml.MappingNode, key: str, value: yaml.Node) -> None:
    pairs = [(name, old) for name, old in root.value if name.value != key]
    root.value = [*pairs, (yaml.compose(key), value)]
