from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.server.security.authorization import ADMIN
from phalanx.server.security.keyring import Keyring
from phalanx.server.security.private_files import (
    InsecurePermissionsError,
    check_private,
    check_private_folder,
)
from phalanx.server.security.users import authenticated_user
from tests.server.api import EPOCH


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    created = tmp_path / "data"
    created.mkdir(mode=0o700)
    return created


def test_admin_token_is_kept_while_it_is_valid(folder: Path) -> None:
    keyring, kubeconfig = Keyring(folder), folder / "kubeconfig"
    first = keyring.admin_token("", kubeconfig, EPOCH)
    assert keyring.issued_tokens.user(first, EPOCH) == ADMIN
    assert Keyring(folder).admin_token(first, kubeconfig, EPOCH) == first
    second = Keyring(folder).admin_token("lost", kubeconfig, EPOCH)
    assert second != first
    assert Keyring(folder).issued_tokens.user(first, EPOCH) is None


def test_token_of_another_user_is_not_used_as_admin_token(folder: Path) -> None:
    keyring = Keyring(folder)
    ann = keyring.issued_tokens.create(authenticated_user("ann"), EPOCH)
    assert keyring.admin_token(ann, folder / "kubeconfig", EPOCH) != ann


def test_service_account_key_survives_a_restart(folder: Path) -> None:
    first, second = (Keyring(folder).tokens().signer for _ in range(2))
    assert first.verified_claims(second.sign({"a": 1})) == {"a": 1}


@pytest.mark.parametrize("mode", [0o701, 0o710, 0o740, 0o777])
def test_folder_that_others_may_enter_is_rejected(folder: Path, mode: int) -> None:
    folder.chmod(mode)
    with pytest.raises(InsecurePermissionsError, match="chmod 700"):
        Keyring(folder)


@pytest.mark.parametrize("mode", [0o604, 0o620, 0o640, 0o644])
def test_key_file_that_others_may_read_or_write_is_rejected(folder: Path, mode: int) -> None:
    (folder / "ca.key").touch()
    (folder / "ca.key").chmod(mode)
    with pytest.raises(InsecurePermissionsError, match="chmod 600"):
        Keyring(folder)


def test_symbolic_link_is_rejected(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(InsecurePermissionsError, match="is a symbolic link"):
        check_private_folder(tmp_path / "link")
    (folder / "ca.key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InsecurePermissionsError, match="is a symbolic link"):
        check_private_folder(folder)
    check_private(folder)
