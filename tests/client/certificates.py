"""A certificate authority for tests and the certificates that it issues."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)


@dataclass(frozen=True)
class Certificate:
    """A certificate and its private key, both in PEM."""

    pem: str
    key: str


class Authority:
    """Issues certificates for the loopback address."""

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _common_name(name)
        builder = _certificate_builder(self._name, self._name, self._key.public_key())
        usage = x509.KeyUsage(
            digital_signature=True, content_commitment=False, key_encipherment=False,
            data_encipherment=False, key_agreement=False, key_cert_sign=True, crl_sign=True,
            encipher_only=False, decipher_only=False,
        )  # fmt: skip
        signed = (
            builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.pem = signed.public_bytes(Encoding.PEM).decode()

    def issue(self, name: str, address: str = "127.0.0.1") -> Certificate:
        """Issue a certificate for a common name and an IP address."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _certificate_builder(_common_name(name), self._name, key.public_key())
        signed = (
            builder.add_extension(
                x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))]), critical=False
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
        return Certificate(signed.public_bytes(Encoding.PEM).decode(), text)


def server_tls(authority: Authority, folder: Path, address: str = "127.0.0.1") -> ssl.SSLContext:
    """Return a server context that presents a certificate and verifies an optional client's."""
    certificate = authority.issue("server", address)
    chain = folder / "server.pem"
    chain.write_text(certificate.pem + certificate.key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=authority.pem)
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_cert_chain(chain)
    return context


OURS, THEIRS = "ours", "theirs"


@cache
def authority(name: str) -> Authority:
    """Return the authority of this name, created once per test run."""
    return Authority(name)


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _certificate_builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return x509.CertificateBuilder(
        issuer, subject, key, x509.random_serial_number(), now - DAY, now + DAY
    ).add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
