"""Private files: written for their owner only, and refused if others could read or change them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

_GROUP_AND_OTHER_BITS = 0o077


class InsecurePermissionsError(Exception):
    """A file is accessible to others; the message says how to fix that."""


def check_private(path: Path) -> None:
    """Raise if a file or directory is a link, has another owner, or is open to others."""
    state = path.lstat()
    if stat.S_ISLNK(state.st_mode):
        raise InsecurePermissionsError(f"{path} is a symbolic link; use the path of its target")
    if state.st_uid != os.geteuid():
        raise InsecurePermissionsError(f"{path} belongs to another user")
    if state.st_mode & _GROUP_AND_OTHER_BITS:
        is_folder = stat.S_ISDIR(state.st_mode)
        what, mode = ("enter", 700) if is_folder else ("read", 600)
        raise InsecurePermissionsError(
            f"{path} holds keys but others may {what} it; run: chmod {mode} {path}"
        )


def check_private_folder(folder: Path) -> None:
    """Raise if a directory or anything in it is not private."""
    check_private(folder)
    for path in sorted(folder.iterdir()):
        check_private(path)


def write_private(path: Path, data: bytes) -> None:
    """Write a file atomically, readable by its owner only."""
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
