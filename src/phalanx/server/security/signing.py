"""Seals: by which the server knows again what it once handed out, and takes nothing else for it.

A sealed text names its bytes openly; nobody can change them, make others up, or show them for
another purpose than they were sealed for. Nothing of it is stored. `Signer` keeps the key.

Tokens of service accounts: signed, for a time, an audience, perhaps bound to an object.

A JSON Web Token (ES256) that anybody can verify by the keys at `/openid/v1/jwks`. Ours to accept it
is more: the account, and what the token is bound to, must still be there, with the same uid. So a
token ends with its pod. Nothing of it is stored.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, utils

from phalanx.api.kinds import NODE, POD, SECRET, SERVICE_ACCOUNT, Kind
from phalanx.api.meta import parse_timestamp as moment
from phalanx.api.wire import Object, UserInfo
from phalanx.server.security.private_files import write_private
from phalanx.server.security.users import service_account_name, service_account_user
from phalanx.store.kv import StoreReader

#: Bytes of a mark: more than anybody can try.
_SIGNATURE_BYTES = 16


class HmacSigner:
    """What a key seals, and what it opens again."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def sign(self, raw: bytes, purpose: str) -> str:
        """Bytes as a text, for one purpose."""
        return base64url_encode(self._signature(raw, purpose) + raw)

    def verify(self, text: str, purpose: str) -> bytes | None:
        """The bytes of a text that was sealed here for that purpose; None of any other."""
        found = base64url_decode(text)
        mark, raw = found[:_SIGNATURE_BYTES], found[_SIGNATURE_BYTES:]
        return raw if hmac.compare_digest(mark, self._signature(raw, purpose)) else None

    def _signature(self, raw: bytes, purpose: str) -> bytes:
        # Two digests, so that no purpose runs on into the bytes that follow it.
        key = hmac.digest(self._key, purpose.encode(errors="surrogatepass"), "sha256")
        return hmac.digest(key, raw, "sha256")[:_SIGNATURE_BYTES]


def base64url_encode(raw: bytes) -> str:
    """Bytes as a part of a token: the letters that need no escape in a URL or a header."""
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def base64url_decode(text: str) -> bytes:
    """Bytes of a part of a token; none if it is not written as such a part is."""
    try:
        raw = base64.b64decode(text.encode() + b"=" * (-len(text) % 4), b"-_", validate=True)
    except (ValueError, binascii.Error):
        return b""
    # Another spelling of the same bytes is another token, and not ours.
    return raw if base64url_encode(raw) == text else b""


ISSUER = "https://kubernetes.default.svc.cluster.local"
#: What a token may be bound to.
BINDABLE: dict[str, Kind] = {"Pod": POD, "Secret": SECRET, "Node": NODE}
_KUBERNETES_CLAIMS = "kubernetes.io"
_ALGORITHM = ec.ECDSA(hashes.SHA256())
#: No token of ours is longer, and half of its signature.
_MAX_TOKEN_LENGTH, _SIGNATURE_HALF = 8 * 1024, 32
#: Verified tokens that are remembered; then all are forgotten.
_MAX_VERIFIED_TOKENS = 10_000
#: Seconds for which a pod that is being deleted keeps its token.
_DELETION_GRACE_SECONDS = 60.0


class Signer:
    """The key that signs tokens, and from which seals are made."""

    def __init__(self, key: ec.EllipticCurvePrivateKey) -> None:
        self._key, self._public = key, key.public_key()
        point = self._public.public_bytes(
            serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
        )
        self.key_id = base64url_encode(hashlib.sha256(point).digest())
        self.jwk = {
            "use": "sig", "kty": "EC", "kid": self.key_id, "alg": "ES256", "crv": "P-256",
            "x": base64url_encode(point[1:33]), "y": base64url_encode(point[33:]),
        }  # fmt: skip

    @classmethod
    def generate(cls) -> Signer:
        """A new key that nobody keeps."""
        return cls(ec.generate_private_key(ec.SECP256R1()))

    @classmethod
    def load_or_create(cls, path: Path) -> Signer:
        """The key in a file, made at first."""
        if not path.exists():
            key = ec.generate_private_key(ec.SECP256R1())
            write_private(path, key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ))  # fmt: skip
        found = serialization.load_pem_private_key(path.read_bytes(), None)
        assert isinstance(found, ec.EllipticCurvePrivateKey)
        return cls(found)

    def hmac_signer(self) -> HmacSigner:
        """A seal that is the same for as long as this key is, and tells nothing of it."""
        number = self._key.private_numbers().private_value.to_bytes(_SIGNATURE_HALF, "big")
        return HmacSigner(hmac.digest(number, b"seal", "sha256"))

    def sign(self, claims: Object) -> str:
        """Claims as a token."""
        head = {"alg": "ES256", "kid": self.key_id}
        text = ".".join(base64url_encode(orjson.dumps(part)) for part in (head, claims))
        r, s = utils.decode_dss_signature(self._key.sign(text.encode(), _ALGORITHM))
        return f"{text}.{base64url_encode(r.to_bytes(_SIGNATURE_HALF, 'big') + s.to_bytes(_SIGNATURE_HALF, 'big'))}"

    def verified_claims(self, token: str) -> Object | None:
        """What a token claims, if it was signed by this key."""
        text, _, signature = token.rpartition(".")
        head, _, body = text.partition(".")
        if len(token) > _MAX_TOKEN_LENGTH or _decode_json_part(head) != {
            "alg": "ES256",
            "kid": self.key_id,
        }:
            return None
        raw = base64url_decode(signature)
        if len(raw) != 2 * _SIGNATURE_HALF:
            return None
        r, s = (
            int.from_bytes(part, "big") for part in (raw[:_SIGNATURE_HALF], raw[_SIGNATURE_HALF:])
        )
        try:
            self._public.verify(utils.encode_dss_signature(r, s), text.encode(), _ALGORITHM)
        except InvalidSignature:
            return None
        return _decode_json_part(body)


@dataclass(frozen=True, slots=True)
class ServiceAccountClaims:
    """What a token is for: an account, for whom to read, until when, bound to what."""

    namespace: str
    name: str
    uid: str
    audiences: tuple[str, ...]
    expires: float
    #: Kind, name and uid of what it is bound to.
    bound_object: tuple[str, str, str] | None = None


class ServiceAccountTokens:
    """Makes and accepts tokens of the accounts in a store."""

    def __init__(self, store: StoreReader, signer: Signer) -> None:
        self._store, self.signer = store, signer
        self._verified: dict[bytes, tuple[UserInfo, ServiceAccountClaims]] = {}

    def issue(self, account: ServiceAccountClaims, now: float, token_id: str) -> str:
        """A token, of a number of its own."""
        claims: Object = {"namespace": account.namespace}
        claims["serviceaccount"] = {"name": account.name, "uid": account.uid}
        if account.bound_object:
            kind, name, uid = account.bound_object
            claims[kind.lower()] = {"name": name, "uid": uid}
        return self.signer.sign({
            "iss": ISSUER, "sub": service_account_name(account.namespace, account.name),
            "aud": list(account.audiences), "exp": int(account.expires), "iat": int(now),
            "nbf": int(now), "jti": token_id, _KUBERNETES_CLAIMS: claims,
        })  # fmt: skip

    def user(self, token: str, now: float, audiences: Sequence[str] = (ISSUER,)) -> UserInfo | None:
        """Whose a token is, if it counts now and is for one of these audiences."""
        found = self._verified.get(_token_digest(token)) or self._verify(token)
        if found is None:
            return None
        user, account = found
        if account.expires <= now or not set(audiences) & set(account.audiences):
            return None
        return user if self._is_valid(account, now) else None

    def audiences(self, token: str) -> tuple[str, ...]:
        """For whom a token is that was accepted."""
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
        """Whether the account, and what the token is bound to, are still there."""
        place = account.namespace
        if not self._exists(SERVICE_ACCOUNT, place, account.name, account.uid, now):
            return False
        if account.bound_object is None:
            return True
        kind, name, uid = account.bound_object
        return self._exists(BINDABLE[kind], place, name, uid, now)

    def _exists(self, kind: Kind, namespace: str, name: str, uid: str, now: float) -> bool:
        record = self._store.get(kind.store_key(namespace, name))
        if record is None:
            return False
        meta = orjson.loads(record.value)["metadata"]
        end = meta.get("deletionTimestamp")
        return meta["uid"] == uid and (end is None or now < moment(end) + _DELETION_GRACE_SECONDS)


def _parse_claims(claims: Object) -> ServiceAccountClaims | None:
    """What claims are about; None if they are not such as we make."""
    try:
        own: Any = claims[_KUBERNETES_CLAIMS]
        who = own["serviceaccount"]
        bound = [(kind, own[kind.lower()]) for kind in BINDABLE if kind.lower() in own]
        found = bound[0] if bound else None
        reference = (found[0], found[1]["name"], found[1]["uid"]) if found else None
        audiences, place = tuple(claims["aud"]), own["namespace"]
        account = ServiceAccountClaims(
            place, who["name"], who["uid"], audiences, claims["exp"], reference
        )
    except (KeyError, TypeError):
        return None
    is_ours = claims.get("iss") == ISSUER
    is_whole = claims.get("sub") == service_account_name(account.namespace, account.name)
    return account if is_ours and is_whole else None


def _user_extra(claims: Object, account: ServiceAccountClaims) -> tuple[tuple[str, str], ...]:
    """What else is known about whoever shows a token."""
    prefix = "authentication.kubernetes.io/"
    rows = [(f"{prefix}credential-id", f"JTI={claims.get('jti', '')}")]
    if account.bound_object and account.bound_object[0] != "Secret":
        kind, name, uid = account.bound_object
        rows += [(f"{prefix}{kind.lower()}-name", name), (f"{prefix}{kind.lower()}-uid", uid)]
    return tuple(rows)


def _decode_json_part(text: str) -> Object | None:
    try:
        found = orjson.loads(base64url_decode(text))
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def _token_digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()
