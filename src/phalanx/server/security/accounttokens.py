"""Tokens of service accounts: signed, for a time, an audience, perhaps bound to an object.

A JSON Web Token (ES256) that anybody can verify by the keys at `/openid/v1/jwks`. Ours to accept it
is more: the account, and what the token is bound to, must still be there, with the same uid. So a
token ends with its pod. Nothing of it is stored.
"""

from __future__ import annotations

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
from phalanx.api.meta import seconds as moment
from phalanx.api.wire import Object, User
from phalanx.server.security.privacy import write_private
from phalanx.server.security.seals import Seal, decoded, encoded
from phalanx.server.security.users import service_account, service_account_name
from phalanx.store.kv import Reader

ISSUER = "https://kubernetes.default.svc.cluster.local"
#: What a token may be bound to.
BINDABLE: dict[str, Kind] = {"Pod": POD, "Secret": SECRET, "Node": NODE}
_CLAIMS = "kubernetes.io"
_ALGORITHM = ec.ECDSA(hashes.SHA256())
#: No token of ours is longer, and half of its signature.
_LONGEST, _HALF = 8 * 1024, 32
#: Verified tokens that are remembered; then all are forgotten.
_REMEMBERED = 10_000
#: Seconds for which a pod that is being deleted keeps its token.
_GRACE = 60.0


class Signer:
    """The key that signs tokens, and from which seals are made."""

    def __init__(self, key: ec.EllipticCurvePrivateKey) -> None:
        self._key, self._public = key, key.public_key()
        point = self._public.public_bytes(
            serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
        )
        self.id = encoded(hashlib.sha256(point).digest())
        self.jwk = {
            "use": "sig", "kty": "EC", "kid": self.id, "alg": "ES256", "crv": "P-256",
            "x": encoded(point[1:33]), "y": encoded(point[33:]),
        }  # fmt: skip

    @classmethod
    def made(cls) -> Signer:
        """A new key that nobody keeps."""
        return cls(ec.generate_private_key(ec.SECP256R1()))

    @classmethod
    def kept(cls, path: Path) -> Signer:
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

    def seal(self) -> Seal:
        """A seal that is the same for as long as this key is, and tells nothing of it."""
        number = self._key.private_numbers().private_value.to_bytes(_HALF, "big")
        return Seal(hmac.digest(number, b"seal", "sha256"))

    def sign(self, claims: Object) -> str:
        """Claims as a token."""
        head = {"alg": "ES256", "kid": self.id}
        text = ".".join(encoded(orjson.dumps(part)) for part in (head, claims))
        r, s = utils.decode_dss_signature(self._key.sign(text.encode(), _ALGORITHM))
        return f"{text}.{encoded(r.to_bytes(_HALF, 'big') + s.to_bytes(_HALF, 'big'))}"

    def claims(self, token: str) -> Object | None:
        """What a token claims, if it was signed by this key."""
        text, _, signature = token.rpartition(".")
        head, _, body = text.partition(".")
        if len(token) > _LONGEST or _object(head) != {"alg": "ES256", "kid": self.id}:
            return None
        raw = decoded(signature)
        if len(raw) != 2 * _HALF:
            return None
        r, s = (int.from_bytes(part, "big") for part in (raw[:_HALF], raw[_HALF:]))
        try:
            self._public.verify(utils.encode_dss_signature(r, s), text.encode(), _ALGORITHM)
        except InvalidSignature:
            return None
        return _object(body)


@dataclass(frozen=True, slots=True)
class Account:
    """What a token is for: an account, for whom to read, until when, bound to what."""

    namespace: str
    name: str
    uid: str
    audiences: tuple[str, ...]
    expires: float
    #: Kind, name and uid of what it is bound to.
    bound: tuple[str, str, str] | None = None


class AccountTokens:
    """Makes and accepts tokens of the accounts in a store."""

    def __init__(self, store: Reader, signer: Signer) -> None:
        self._store, self.signer = store, signer
        self._verified: dict[bytes, tuple[User, Account]] = {}

    def issue(self, account: Account, now: float, number: str) -> str:
        """A token, of a number of its own."""
        claims: Object = {"namespace": account.namespace}
        claims["serviceaccount"] = {"name": account.name, "uid": account.uid}
        if account.bound:
            kind, name, uid = account.bound
            claims[kind.lower()] = {"name": name, "uid": uid}
        return self.signer.sign({
            "iss": ISSUER, "sub": service_account_name(account.namespace, account.name),
            "aud": list(account.audiences), "exp": int(account.expires), "iat": int(now),
            "nbf": int(now), "jti": number, _CLAIMS: claims,
        })  # fmt: skip

    def user(self, token: str, now: float, audiences: Sequence[str] = (ISSUER,)) -> User | None:
        """Whose a token is, if it counts now and is for one of these audiences."""
        found = self._verified.get(_digest(token)) or self._verify(token)
        if found is None:
            return None
        user, account = found
        if account.expires <= now or not set(audiences) & set(account.audiences):
            return None
        return user if self._stands(account, now) else None

    def audiences(self, token: str) -> tuple[str, ...]:
        """For whom a token is that was accepted."""
        found = self._verified.get(_digest(token))
        return found[1].audiences if found else ()

    def _verify(self, token: str) -> tuple[User, Account] | None:
        claims = self.signer.claims(token) if token.count(".") == 2 else None
        account = _account(claims) if claims else None
        if claims is None or account is None:
            return None
        if len(self._verified) >= _REMEMBERED:
            self._verified.clear()
        user = service_account(account.namespace, account.name, account.uid)
        known = User(user.name, user.groups, user.uid, _extra(claims, account))
        self._verified[_digest(token)] = known, account
        return known, account

    def _stands(self, account: Account, now: float) -> bool:
        """Whether the account, and what the token is bound to, are still there."""
        place = account.namespace
        if not self._is(SERVICE_ACCOUNT, place, account.name, account.uid, now):
            return False
        if account.bound is None:
            return True
        kind, name, uid = account.bound
        return self._is(BINDABLE[kind], place, name, uid, now)

    def _is(self, kind: Kind, namespace: str, name: str, uid: str, now: float) -> bool:
        record = self._store.get(kind.key(namespace, name))
        if record is None:
            return False
        meta = orjson.loads(record.value)["metadata"]
        end = meta.get("deletionTimestamp")
        return meta["uid"] == uid and (end is None or now < moment(end) + _GRACE)


def _account(claims: Object) -> Account | None:
    """What claims are about; None if they are not such as we make."""
    try:
        own: Any = claims[_CLAIMS]
        who = own["serviceaccount"]
        bound = [(kind, own[kind.lower()]) for kind in BINDABLE if kind.lower() in own]
        found = bound[0] if bound else None
        reference = (found[0], found[1]["name"], found[1]["uid"]) if found else None
        audiences, place = tuple(claims["aud"]), own["namespace"]
        account = Account(place, who["name"], who["uid"], audiences, claims["exp"], reference)
    except (KeyError, TypeError):
        return None
    is_ours = claims.get("iss") == ISSUER
    is_whole = claims.get("sub") == service_account_name(account.namespace, account.name)
    return account if is_ours and is_whole else None


def _extra(claims: Object, account: Account) -> tuple[tuple[str, str], ...]:
    """What else is known about whoever shows a token."""
    prefix = "authentication.kubernetes.io/"
    rows = [(f"{prefix}credential-id", f"JTI={claims.get('jti', '')}")]
    if account.bound and account.bound[0] != "Secret":
        kind, name, uid = account.bound
        rows += [(f"{prefix}{kind.lower()}-name", name), (f"{prefix}{kind.lower()}-uid", uid)]
    return tuple(rows)


def _object(text: str) -> Object | None:
    try:
        found = orjson.loads(decoded(text))
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()
