"""TLS from an own authority: made at first start, kept in a folder, renewed before it ends.

The same authority vouches for clients: who shows a certificate of it is whom the certificate names.
One that it does not vouch for ends the handshake, so that nobody who shows one is taken for nobody.
"""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from phalanx.api.wire import User
from phalanx.clock import Clock
from phalanx.server.security.privacy import write_private

_AUTHORITY_DAYS, _SERVER_DAYS, _RENEW_DAYS = 3650, 365, 30
_DAY = 24 * 3600.0
#: Names that a local server always answers to.
LOCAL = ("localhost", "127.0.0.1", "::1")
#: Names by which clients inside a cluster know their API server.
CLUSTER = ("kubernetes", "kubernetes.default", "kubernetes.default.svc")

_SIGNS_CERTIFICATES = x509.KeyUsage(
    digital_signature=False, content_commitment=False, key_encipherment=False,
    data_encipherment=False, key_agreement=False, key_cert_sign=True, crl_sign=True,
    encipher_only=False, decipher_only=False,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, as files."""

    certificate: Path
    key: Path

    def lasts(self, now: datetime) -> bool:
        """Whether both are there and good for a while."""
        if not self.certificate.exists() or not self.key.exists():
            return False
        return self.read().not_valid_after_utc - now >= timedelta(days=_RENEW_DAYS)

    def read(self) -> x509.Certificate:
        """The certificate."""
        return x509.load_pem_x509_certificate(self.certificate.read_bytes())


def server_context(folder: Path, names: Sequence[str], now: float) -> tuple[ssl.SSLContext, bytes]:
    """The TLS context to serve with, and the authority's certificate for clients to trust."""
    authority, server = _lasting(folder, names, now)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(server.certificate, server.key)
    context.load_verify_locations(authority.certificate)
    context.verify_mode = ssl.CERT_OPTIONAL
    return context, authority.certificate.read_bytes()


async def renewing(
    context: ssl.SSLContext, folder: Path, names: Sequence[str], clock: Clock
) -> None:
    """Look once a day, until cancelled, whether what a context serves with must be renewed."""
    while True:
        await asyncio.sleep(_DAY)
        _, server = _lasting(folder, names, clock.now())
        context.load_cert_chain(server.certificate, server.key)


def client_certificate(folder: Path, user: User, days: int, now: float) -> tuple[str, str]:
    """A certificate and its key, as PEM texts, by which whoever shows them is that user."""
    authority, key = _authority(folder), ec.generate_private_key(ec.SECP256R1())
    moment, subject = datetime.fromtimestamp(now, UTC), _subject(user.name, user.groups)
    builder = _builder(subject, authority.read().subject, key, moment, days)
    certificate = _signed(builder, authority, ExtendedKeyUsageOID.CLIENT_AUTH)
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    return pem.decode(), _private(key).decode()


def _authority(folder: Path) -> Pair:
    return Pair(folder / "ca.crt", folder / "ca.key")


def _lasting(folder: Path, names: Sequence[str], now: float) -> tuple[Pair, Pair]:
    """The authority and the server, made or renewed where they do not last."""
    moment = datetime.fromtimestamp(now, UTC)
    authority, server = _authority(folder), Pair(folder / "server.crt", folder / "server.key")
    if not authority.lasts(moment):
        _make_authority(authority, moment)
    wanted = tuple(dict.fromkeys((*LOCAL, *CLUSTER, *names)))
    if not server.lasts(moment) or not _vouched(server, authority, wanted):
        _make_server(server, authority, wanted, moment)
    return authority, server


def _vouched(server: Pair, authority: Pair, names: Sequence[str]) -> bool:
    """Whether this authority has signed the server's certificate, for these names."""
    certificate = server.read()
    try:
        certificate.verify_directly_issued_by(authority.read())
    except (ValueError, TypeError, InvalidSignature):
        return False
    return set(_names(names)) == set(_subject_names(certificate))


def _subject_names(certificate: x509.Certificate) -> x509.SubjectAlternativeName:
    return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value


def _make_authority(pair: Pair, now: datetime) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject("phalanx-ca")
    builder = (
        _builder(subject, subject, key, now, _AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_SIGNS_CERTIFICATES, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    _write_pair(pair, builder.sign(key, hashes.SHA256()), key)


def _make_server(pair: Pair, authority: Pair, names: Sequence[str], now: datetime) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_subject("phalanx"), authority.read().subject, key, now, _SERVER_DAYS)
    builder = builder.add_extension(x509.SubjectAlternativeName(_names(names)), critical=False)
    _write_pair(pair, _signed(builder, authority, ExtendedKeyUsageOID.SERVER_AUTH), key)


def _signed(
    builder: x509.CertificateBuilder, authority: Pair, usage: x509.ObjectIdentifier
) -> x509.Certificate:
    """A certificate for one use, signed by the authority."""
    signer = serialization.load_pem_private_key(authority.key.read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    return (
        builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(issuer, critical=False)
        .sign(signer, hashes.SHA256())
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=days))
    )


def _write_pair(pair: Pair, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    write_private(pair.key, _private(key))
    write_private(pair.certificate, certificate.public_bytes(serialization.Encoding.PEM))


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _subject(name: str, groups: Sequence[str] = ()) -> x509.Name:
    rows = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*rows, x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _names(names: Sequence[str]) -> list[x509.GeneralName]:
    return [_name(name) for name in names]


def _name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
