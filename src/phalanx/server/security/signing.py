"""Signatures of the server: HMAC for opaque values, JSON Web Tokens for service accounts.

`HmacSigner` signs bytes that the server hands out and later accepts back, for one purpose each
(continue tokens). The bytes are readable; only this server can make them, and a value signed for
one purpose is refused for every other.

`ServiceAccountTokens` issues and accepts the tokens of service accounts: JSON Web Tokens signed
with ES256, which any client can verify with the keys at `/openid/v1/jwks`. PyJWT encodes them and
verifies their signatures. The server accepts a token only while its service account, and the object
that it is bound to, exist with the same uid, so that a pod's token ends with the pod. Nothing is
stored: the key in the keyring is the only state.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from phalanx.api.kinds import NODE, POD, SECRET, SERVICE_ACCOUNT, Kind
from phalanx.api.meta import parse_timestamp
from phalanx.api.wire import Object, UserInfo
from phalanx.server.security.private_files import write_private
from phalanx.server.security.users import service_account_name, service_account_user
from phalanx.store.kv import StoreReader

if TYPE_CHECKING:
    from jwt.types import Options

#: Length of an HMAC signature: beyond the reach of guessing.
_SIGNATURE_BYTES = 16


class HmacSigner:
    """Signs and verifies bytes with one secret key."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def sign(self, raw: bytes, purpose: str) -> str:
        """Return the bytes and their signature for one purpose, as URL-safe text."""
        return base64url_encode(self._signature(raw, purpose) + raw)

    def verify(self, text: str, purpose: str) -> bytes | None:
        """Return the bytes of a text that `sign` made for this purpose, else None."""
        found = base64url_decode(text)
        signature, raw = found[:_SIGNATURE_BYTES], found[_SIGNATURE_BYTES:]
        return raw if hmac.compare_digest(signature, self._signature(raw, purpose)) else None

    def _signature(self, raw: bytes, purpose: str) -> bytes:
        # Two digests: the end of the purpose cannot be confused with the start of the bytes.
        key = hmac.digest(self._key, purpose.encode(errors="surrogatepass"), "sha256")
        return hmac.digest(key, raw, "sha256")[:_SIGNATURE_BYTES]


def base64url_encode(raw: bytes) -> str:
    """Encode bytes as base64url without padding, as JSON Web Tokens do."""
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def base64url_decode(text: str) -> bytes:
    """Decode base64url without padding; malformed or non-canonical text gives no bytes."""
    try:
        raw = base64.b64decode(text.encode() + b"=" * (-len(text) % 4), b"-_", validate=True)
    except (ValueError, binascii.Error):
        return b""
    # A second spelling of the same bytes is refused: one token has one text.
    return raw if base64url_encode(raw) == text else b""


ISSUER = "https://kubernetes.default.svc.cluster.local"
#: Kinds of objects that a token may be bound to.
BINDABLE: dict[str, Kind] = {"Pod": POD, "Secret": SECRET, "Node": NODE}
_KUBERNETES_CLAIMS = "kubernetes.io"
_ALGORITHM = "ES256"
#: Longer tokens are refused before they are decoded.
_MAX_TOKEN_LENGTH = 8 * 1024
#: Size of the cache of verified tokens; a full cache is cleared.
_MAX_VERIFIED_TOKENS = 10_000
#: Seconds after its deletionTimestamp for which an object still counts as existing.
_DELETION_GRACE_SECONDS = 60.0
#: PyJWT verifies the signature alone: `ServiceAccountTokens` checks the claims against its clock.
_SIGNATURE_ONLY: Options = {
    "verify_signature": True,
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
    "verify_aud": False,
    "verify_iss": False,
    "verify_sub": False,
    "verify_jti": False,
}


class Signer:
    """The server's private key: signs and verifies tokens, and derives the HMAC key."""

    def __init__(self, key: ec.EllipticCurvePrivateKey) -> None:
        self._key, self._public = key, key.public_key()
        point = self._public.public_bytes(
            serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
        )
        self.key_id = base64url_encode(hashlib.sha256(point).digest())
        self.jwk = {
            "use": "sig",
            "kty": "EC",
            "kid": self.key_id,
            "alg": _ALGORITHM,
            "crv": "P-256",
            "x": base64url_encode(point[1:33]),
            "y": base64url_encode(point[33:]),
        }

    @classmethod
    def generate(cls) -> Signer:
        """Create a signer with a new key that is not saved."""
        return cls(ec.generate_private_key(ec.SECP256R1()))

    @classmethod
    def load_or_create(cls, path: Path) -> Signer:
        """Load the key from a file; create the file, for its owner alone, if it is absent."""
        if not path.exists():
            key = ec.generate_private_key(ec.SECP256R1())
            pem = key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
            write_private(path, pem)
        found = serialization.load_pem_private_key(path.read_bytes(), None)
        assert isinstance(found, ec.EllipticCurvePrivateKey)
        return cls(found)

    def hmac_signer(self) -> HmacSigner:
        """Return the HMAC signer whose key is derived from this one and does not reveal it."""
        number = self._key.private_numbers().private_value.to_bytes(32, "big")
        return HmacSigner(hmac.digest(number, b"seal", "sha256"))

    def sign(self, claims: Object) -> str:
        """Return the claims as a signed JSON Web Token."""
        import jwt  # imported late: a start-up without service account tokens does not need it

        # Kubernetes' tokens have no "typ" header; None removes the one that PyJWT adds.
        headers = {"kid": self.key_id, "typ": None}
        return jwt.encode(claims, self._key, algorithm=_ALGORITHM, headers=headers)

    def verified_claims(self, token: str) -> Object | None:
        """Return the claims of a token that this key signed, else None."""
        import jwt

        if len(token) > _MAX_TOKEN_LENGTH or not all(map(base64url_decode, token.split("."))):
            return None
        try:
            if jwt.get_unverified_header(token) != {"alg": _ALGORITHM, "kid": self.key_id}:
                return None
            found = jwt.decode(
                token, self._public, algorithms=[_ALGORITHM], options=_SIGNATURE_ONLY
            )
        except (jwt.InvalidTokenError, ValueError):
            return None
        return found


@dataclass(frozen=True, slots=True)
class ServiceAccountClaims:
    """What a token asserts: a service account, its audiences, its end, its bound object."""

    namespace: str
    name: str
    uid: str
    audiences: tuple[str, ...]
    expires: float
    #: Kind, name and uid of the object that the token is bound to.
    bound_object: tuple[str, str, str] | None = None


class ServiceAccountTokens:
    """Issues and accepts the tokens of the service accounts in a store."""

    def __init__(self, store: StoreReader, signer: Signer) -> None:
        self._store, self.signer = store, signer
        self._verified: dict[bytes, tuple[UserInfo, ServiceAccountClaims]] = {}

    def issue(self, account: ServiceAccountClaims, now: float, token_id: str) -> str:
        """Return a signed token with a unique id (`jti`)."""
        claims: Object = {"namespace": account.namespace}
        claims["serviceaccount"] = {"name": account.name, "uid": account.uid}
        if account.bound_object:
            kind, name, uid = account.bound_object
            claims[kind.lower()] = {"name": name, "uid": uid}
        return self.signer.sign(
            {
                "iss": ISSUER,
                "sub": service_account_name(account.namespace, account.name),
                "aud": list(account.audiences),
                "exp": int(account.expires),
                "iat": int(now),
                "nbf": int(now),
                "jti": token_id,
                _KUBERNETES_CLAIMS: claims,
            }
        )

    def user(self, token: str, now: float, audiences: Sequence[str] = (ISSUER,)) -> UserInfo | None:
        """Return the user of a token that is valid now for one of these audiences, else None."""
        found = self._verified.get(_token_digest(token)) or self._verify(token)
        if found is None:
            return None
        user, account = found
        if account.expires <= now or not set(audiences) & set(account.audiences):
            return None
        return user if self._is_valid(account, now) else None

    def audiences(self, token: str) -> tuple[str, ...]:
        """Return the audiences of a token whose signature was verified before."""
        found = self._verified.get(_token_digest(token))
        return found[1].audiences if found else ()

    def _verify(self, token: str) -> tuple[UserInfo, ServiceAccountClaims] | None:
        claims = self.signer.verified_claims(token) if token.count(".") == 2 else None
        account = _parse_claims(claims) if claims else None
        if claims is None or account is None:
            return None
        if len(self._verified) >= _MAX_VERIFIED_TOKENS:
            self._verified.clear()
        user = service_account_user(account.namespace, account.name, account.uid)
        known = UserInfo(user.name, user.groups, user.uid, _user_extra(claims, account))
        self._verified[_token_digest(token)] = known, account
        return known, account

    def _is_valid(self, account: ServiceAccountClaims, now: float) -> bool:
        """Whether the service account and the bound object still exist with the same uid."""
        namespace = account.namespace
        if not self._exists(SERVICE_ACCOUNT, namespace, account.name, uid=account.uid, now=now):
            return False
        if account.bound_object is None:
            return True
        kind, name, uid = account.bound_object
        return self._exists(BINDABLE[kind], namespace, name, uid=uid, now=now)

    def _exists(self, kind: Kind, namespace: str, name: str, *, uid: str, now: float) -> bool:
        record = self._store.get(kind.store_key(namespace, name))
        if record is None:
            return False
        meta = orjson.loads(record.value)["metadata"]
        end = meta.get("deletionTimestamp")
        return meta["uid"] == uid and (
            end is None or now < parse_timestamp(end) + _DELETION_GRACE_SECONDS
        )


def _parse_claims(claims: Object) -> ServiceAccountClaims | None:
    """Return the claims as a value; None if this server does not issue such claims."""
    try:
        own: Any = claims[_KUBERNETES_CLAIMS]
        subject = own["serviceaccount"]
        bound = [(kind, own[kind.lower()]) for kind in BINDABLE if kind.lower() in own]
        found = bound[0] if bound else None
        reference = (found[0], found[1]["name"], found[1]["uid"]) if found else None
        account = ServiceAccountClaims(
            namespace=own["namespace"],
            name=subject["name"],
            uid=subject["uid"],
            audiences=tuple(claims["aud"]),
            expires=claims["exp"],
            bound_object=reference,
        )
    except (KeyError, TypeError):
        return None
    is_ours = claims.get("iss") == ISSUER
    is_consistent = claims.get("sub") == service_account_name(account.namespace, account.name)
    return account if is_ours and is_consistent else None


def _user_extra(claims: Object, account: ServiceAccountClaims) -> tuple[tuple[str, str], ...]:
    """Return the `extra` fields of the token's user."""
    prefix = "authentication.kubernetes.io/"
    rows = [(f"{prefix}credential-id", f"JTI={claims.get('jti', '')}")]
    if account.bound_object and account.bound_object[0] != "Secret":
        kind, name, uid = account.bound_object
        rows += [(f"{prefix}{kind.lower()}-name", name), (f"{prefix}{kind.lower()}-uid", uid)]
    return tuple(rows)


def _token_digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()
