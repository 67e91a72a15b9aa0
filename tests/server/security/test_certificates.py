from __future__ import annotations

import ipaddress
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509

from phalanx.server.security.keyring import CLUSTER_NAMES, LOCAL_NAMES, server_tls_context
from phalanx.server.security.private_files import write_private

DAY = 86_400.0
NOW = 1_800_000_000.0


def certificate(folder: Path, name: str = "server") -> x509.Certificate:
    return x509.load_pem_x509_certificate((folder / f"{name}.crt").read_bytes())


def certificate_names(folder: Path) -> list[str]:
    found = certificate(folder).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return [str(name.value) for name in found.value]


def is_trusted(folder: Path, now: float) -> bool:
    """Whether a client that trusts the authority accepts the server certificate at this time."""
    authority, server, time = certificate(folder, "ca"), certificate(folder), to_datetime(now)
    server.verify_directly_issued_by(authority)
    return all(
        cert.not_valid_before_utc <= time < cert.not_valid_after_utc for cert in (authority, server)
    )


def to_datetime(now: float) -> datetime:
    return datetime.fromtimestamp(now, UTC)


def test_first_start_creates_an_authority_and_a_server_certificate(
    tmp_path: Path,
) -> None:
    _, authority = server_tls_context(tmp_path, [], NOW)
    assert authority == (tmp_path / "ca.crt").read_bytes()
    assert is_trusted(tmp_path, NOW)
    constraints = certificate(tmp_path, "ca").extensions.get_extension_for_class(
        x509.BasicConstraints
    )
    assert constraints.value.ca


def test_key_files_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    server_tls_context(tmp_path, [], NOW)
    files = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert files == dict.fromkeys(("ca.crt", "ca.key", "server.crt", "server.key"), 0o600)


def test_server_certificate_has_local_cluster_and_configured_names(tmp_path: Path) -> None:
    server_tls_context(tmp_path, ["example.org", "10.1.2.3"], NOW)
    addresses = {str(ipaddress.ip_address(name)) for name in LOCAL_NAMES if name != "localhost"}
    assert {"localhost", *addresses, *CLUSTER_NAMES, "example.org", "10.1.2.3"} == set(
        certificate_names(tmp_path)
    )


def test_valid_certificates_are_kept(tmp_path: Path) -> None:
    server_tls_context(tmp_path, [], NOW)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    server_tls_context(tmp_path, [], NOW + 300 * DAY)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("days", [340, 400, 3000])
def test_server_certificate_is_renewed_before_it_expires(tmp_path: Path, days: int) -> None:
    server_tls_context(tmp_path, [], NOW)
    before = certificate(tmp_path).serial_number
    _, authority = server_tls_context(tmp_path, [], NOW + days * DAY)
    assert certificate(tmp_path).serial_number != before
    assert authority == (tmp_path / "ca.crt").read_bytes()
    assert is_trusted(tmp_path, NOW + days * DAY)


def test_new_names_create_a_new_certificate_of_the_same_authority(tmp_path: Path) -> None:
    _, before = server_tls_context(tmp_path, [], NOW)
    _, after = server_tls_context(tmp_path, ["example.org"], NOW)
    assert (before, "example.org" in certificate_names(tmp_path)) == (after, True)
    assert is_trusted(tmp_path, NOW)


@pytest.mark.parametrize("days", [3621, 3640, 3700, 9000])
def test_renewed_authority_issues_a_new_server_certificate(tmp_path: Path, days: int) -> None:
    _, before = server_tls_context(tmp_path, [], NOW)
    server_tls_context(tmp_path, [], NOW + 3500 * DAY)
    _, after = server_tls_context(tmp_path, [], NOW + days * DAY)
    assert before != after
    assert is_trusted(tmp_path, NOW + days * DAY)


@pytest.mark.parametrize("missing", ["ca.crt", "ca.key", "server.crt", "server.key"])
def test_missing_key_files_are_created_again(tmp_path: Path, missing: str) -> None:
    server_tls_context(tmp_path, [], NOW)
    (tmp_path / missing).unlink()
    server_tls_context(tmp_path, [], NOW)
    assert is_trusted(tmp_path, NOW)


def test_private_file_is_replaced_atomically_and_readable_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_bytes(b"old")
    path.chmod(0o644)
    write_private(path, b"new")
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"new", 0o600)
    assert [entry.name for entry in tmp_path.iterdir()] == ["token"]


def test_private_file_is_not_written_through_a_symbolic_link(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"theirs")
    (tmp_path / "token").symlink_to(target)
    (tmp_path / ".token.new").symlink_to(target)
    write_private(tmp_path / "token", b"ours")
    assert (target.read_bytes(), (tmp_path / "token").read_bytes()) == (b"theirs", b"ours")
