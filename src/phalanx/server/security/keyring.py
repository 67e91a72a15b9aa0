"""Keys and certificates of a server, in a private directory.

The server has a certificate authority of its own, created at the first start. It signs the server's
certificate, which is renewed before it expires, and client certificates; a client certificate of
another authority ends the TLS handshake. `phalanx up` opens the keyring to serve; `phalanx token`
and `phalanx kubeconfig` open it to issue credentials.
"""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from phalanx.api.wire import UserInfo
from phalanx.clock import Clock
from phalanx.server.security.authentication import TOKEN_FILE_NAME, IssuedTokenFile, Tokens
from phalanx.server.security.private_files import check_private_folder, write_private
from phalanx.server.security.signing import Signer
from phalanx.server.security.users import ADMIN

_CA_DAYS, _SERVER_DAYS, _RENEW_DAYS = 3650, 365, 30
_DAY = 24 * 3600.0
#: Names in the certificate of every local server.
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
#: Names by which clients inside a cluster call the API server.
CLUSTER_NAMES = ("kubernetes", "kubernetes.default", "kubernetes.default.svc")

_CA_KEY_USAGE = x509.KeyUsage(
    digital_signature=False, content_commitment=False, key_encipherment=False,
    data_encipherment=False, key_agreement=False, key_cert_sign=True, crl_sign=True,
    encipher_only=False, decipher_only=False,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CertificatePair:
    """A certificate and its key, as files."""

    certificate: Path
    key: Path

    def is_fresh(self, now: datetime) -> bool:
        """Whether both files exist and the certificate is valid for 30 more days."""
        if not self.certificate.exists() or not self.key.exists():
            return False
        return self.read().not_valid_after_utc - now >= timedelta(days=_RENEW_DAYS)

    def read(self) -> x509.Certificate:
        """Return the certificate."""
        return x509.load_pem_x509_certificate(self.certificate.read_bytes())


def server_tls_context(
    folder: Path, names: Sequence[str], now: float
) -> tuple[ssl.SSLContext, bytes]:
    """Return the TLS context of the server, and the CA certificate for clients."""
    authority, server = _ensure_certificates(folder, names, now)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(server.certificate, server.key)
    context.load_verify_locations(authority.certificate)
    context.verify_mode = ssl.CERT_OPTIONAL
    return context, authority.certificate.read_bytes()


async def renew_certificates(
    context: ssl.SSLContext, folder: Path, names: Sequence[str], *, clock: Clock
) -> None:
    """Check once a day, until cancelled, whether the certificate must be renewed."""
    while True:
        await asyncio.sleep(_DAY)
        _, server = _ensure_certificates(folder, names, clock.now())
        context.load_cert_chain(server.certificate, server.key)


def client_certificate(folder: Path, user: UserInfo, *, days: int, now: float) -> tuple[str, str]:
    """Return a client certificate for a user and its key, as PEM texts."""
    authority, key = _ca_pair(folder), ec.generate_private_key(ec.SECP256R1())
    moment, subject = datetime.fromtimestamp(now, UTC), _subject_name(user.name, user.groups)
    issuer = authority.read().subject
    builder = _certificate_builder(subject, issuer, key, now=moment, days=days)
    certificate = _sign_certificate(builder, authority, ExtendedKeyUsageOID.CLIENT_AUTH)
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    return pem.decode(), _private_key_pem(key).decode()


def _ca_pair(folder: Path) -> CertificatePair:
    return CertificatePair(folder / "ca.crt", folder / "ca.key")


def _ensure_certificates(
    folder: Path, names: Sequence[str], now: float
) -> tuple[CertificatePair, CertificatePair]:
    """Create or renew the certificates of the authority and of the server."""
    moment = datetime.fromtimestamp(now, UTC)
    authority = _ca_pair(folder)
    server = CertificatePair(folder / "server.crt", folder / "server.key")
    if not authority.is_fresh(moment):
        _create_ca(authority, moment)
    all_names = tuple(dict.fromkeys((*LOCAL_NAMES, *CLUSTER_NAMES, *names)))
    if not server.is_fresh(moment) or not _is_issued_by(server, authority, all_names):
        _create_server_certificate(server, authority, all_names, now=moment)
    return authority, server


def _is_issued_by(
    server: CertificatePair, authority: CertificatePair, names: Sequence[str]
) -> bool:
    """Whether this authority signed the server's certificate for these names."""
    certificate = server.read()
    try:
        certificate.verify_directly_issued_by(authority.read())
    except (ValueError, TypeError, InvalidSignature):
        return False
    extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return set(_general_names(names)) == set(extension.value)


def _create_ca(pair: CertificatePair, now: datetime) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject_name("phalanx-ca")
    builder = (
        _certificate_builder(subject, subject, key, now=now, days=_CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_CA_KEY_USAGE, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    _write_pair(pair, builder.sign(key, hashes.SHA256()), key)


def _create_server_certificate(
    pair: CertificatePair, authority: CertificatePair, names: Sequence[str], *, now: datetime
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    subject, issuer = _subject_name("phalanx"), authority.read().subject
    builder = _certificate_builder(subject, issuer, key, now=now, days=_SERVER_DAYS)
    builder = builder.add_extension(
        x509.SubjectAlternativeName(_general_names(names)), critical=False
    )
    _write_pair(pair, _sign_certificate(builder, authority, ExtendedKeyUsageOID.SERVER_AUTH), key)


def _sign_certificate(
    builder: x509.CertificateBuilder, authority: CertificatePair, *usages: x509.ObjectIdentifier
) -> x509.Certificate:
    """Return a certificate for these usages, signed by the authority."""
    signer = serialization.load_pem_private_key(authority.key.read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    return (
        builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(issuer, critical=False)
        .sign(signer, hashes.SHA256())
    )


def _certificate_builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    *,
    now: datetime,
    days: int,
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


def _write_pair(
    pair: CertificatePair, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
) -> None:
    write_private(pair.key, _private_key_pem(key))
    write_private(pair.certificate, certificate.public_bytes(serialization.Encoding.PEM))


def _private_key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _subject_name(name: str, groups: Sequence[str] = ()) -> x509.Name:
    rows = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*rows, x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_names(names: Sequence[str]) -> list[x509.GeneralName]:
    return [_general_name(name) for name in names]


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


class CertificateAuthority:
    """Signs the certificate requests of users and nodes."""

    def __init__(self, folder: Path) -> None:
        self._pair = _ca_pair(folder)

    def certificate_pem(self) -> str:
        """Return the certificate of the authority."""
        return self._pair.certificate.read_text()

    def sign_request(
        self,
        request: x509.CertificateSigningRequest,
        usages: Collection[str],
        now: float,
        *,
        seconds: int | None,
    ) -> bytes:
        """Return a certificate with the subject, key and names of a request, as PEM.

        It is valid for a year or, if that is less, for these seconds, and no longer than the
        authority.
        """
        moment, issuer = datetime.fromtimestamp(now, UTC), self._pair.read()
        life = min(seconds or _SERVER_DAYS * _DAY, _SERVER_DAYS * _DAY)
        end = min(moment + timedelta(seconds=life), issuer.not_valid_after_utc)
        builder = (
            x509.CertificateBuilder(
                issuer_name=issuer.subject,
                subject_name=request.subject,
                public_key=request.public_key(),
            )
            .serial_number(x509.random_serial_number())
            .not_valid_before(moment - timedelta(minutes=5))
            .not_valid_after(end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        )
        # Without any usage the extension would forbid every one, TLS included.
        if not _KEY_USAGES.isdisjoint(usages):
            builder = builder.add_extension(_key_usage(usages), critical=True)
        if names := subject_alternatives(request):
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        purposes = [oid for name, oid in _EXTENDED_USAGES.items() if name in usages]
        signed = _sign_certificate(builder, self._pair, *purposes)
        return signed.public_bytes(serialization.Encoding.PEM)


#: Usages of requests that are purposes of the key; the others are ways to use it.
_EXTENDED_USAGES = {
    "client auth": ExtendedKeyUsageOID.CLIENT_AUTH,
    "server auth": ExtendedKeyUsageOID.SERVER_AUTH,
}


_KEY_USAGES = {"digital signature", "key encipherment"}


def _key_usage(usages: Collection[str]) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature="digital signature" in usages,
        content_commitment=False, key_encipherment="key encipherment" in usages,
        data_encipherment=False, key_agreement=False, key_cert_sign=False, crl_sign=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


def subject_alternatives(request: x509.CertificateSigningRequest) -> Sequence[x509.GeneralName]:
    """Return the alternative names that a request asks for."""
    try:
        found = request.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return ()
    return list(found.value)


_SIGNING_KEY_FILE = "service-accounts.key"


class Keyring:
    """The keys in one directory. Raises InsecurePermissionsError if it is not private."""

    def __init__(self, folder: Path) -> None:
        check_private_folder(folder)
        self._folder = folder
        self.issued_tokens = IssuedTokenFile(folder / TOKEN_FILE_NAME)

    def tls_context(self, names: Sequence[str], now: float) -> tuple[ssl.SSLContext, bytes]:
        """Return the TLS context of the server, and the CA certificate for clients."""
        return server_tls_context(self._folder, names, now)

    def tokens(self) -> Tokens:
        """Return the accepted tokens, including tokens that are issued later."""
        return Tokens(
            {},
            file=self.issued_tokens,
            signer=Signer.load_or_create(self._folder / _SIGNING_KEY_FILE),
        )

    def authority(self) -> CertificateAuthority:
        """Return the certificate authority, which `tls_context` has created."""
        return CertificateAuthority(self._folder)

    def admin_token(self, current: str, kubeconfig: Path, now: float) -> str:
        """Return the administrator's token: the one in the kubeconfig if valid, else a new one."""
        user = self.issued_tokens.user(current, now) if current else None
        if user is not None and user.name == ADMIN.name:
            return current
        return self.issued_tokens.create(ADMIN, now, label=str(kubeconfig))

    def create_client_certificate(
        self, name: str, groups: Sequence[str], *, days: int, now: float
    ) -> tuple[str, str]:
        """Return a client certificate for a user and its key."""
        return client_certificate(self._folder, UserInfo(name, tuple(groups)), days=days, now=now)

    @property
    def has_ca(self) -> bool:
        """Whether a server has created its certificate authority."""
        return (self._folder / "ca.key").exists()
