"""Tokens and certificates: which count, which do not, and that none that does not falls back."""

from __future__ import annotations

import asyncio
import base64
import stat
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from phalanx.api.errors import Unauthorized
from phalanx.api.kinds import POD, SECRET, SERVICE_ACCOUNT, TOKEN_REVIEW
from phalanx.api.wire import ANONYMOUS, Object, UserInfo
from phalanx.server.security.authentication import (
    IssuedTokenFile,
    Tokens,
    certificate_user,
    token_digest,
)
from phalanx.server.security.authorization import ADMIN
from phalanx.server.security.private_files import InsecurePermissionsError
from phalanx.server.security.signing import ISSUER, Signer
from phalanx.server.security.users import authenticated_user
from tests.builders import in_virtual_time, pod
from tests.server.api import EPOCH, Api, ApiResponse

ANN = authenticated_user("ann", ("team",))
ACCOUNT = SERVICE_ACCOUNT.url_path("default", "robot")


# ---- tokens that were handed out -----------------------------------------------------------------


def test_a_token_that_was_handed_out_counts_until_its_time_is_over(tmp_path: Path) -> None:
    file = IssuedTokenFile(tmp_path / "tokens.json")
    token = file.create(ANN, EPOCH, 60)
    assert [file.user(token, EPOCH + after) for after in (0, 59, 60, 1e6)] == [ANN, ANN, None, None]
    assert file.user(file.create(ANN, EPOCH), EPOCH + 1e9) == ANN


def test_only_hashes_are_kept_and_only_the_owner_may_read_them(tmp_path: Path) -> None:
    file = IssuedTokenFile(tmp_path / "tokens.json")
    token = file.create(ANN, EPOCH)
    assert token.encode() not in file.path.read_bytes()
    assert token_digest(token).hex().encode() in file.path.read_bytes()
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_what_another_process_hands_out_counts_at_once_and_what_it_takes_back_soon(
    tmp_path: Path,
) -> None:
    ours, theirs = (IssuedTokenFile(tmp_path / "tokens.json") for _ in range(2))
    assert ours.user("nothing", EPOCH) is None
    token = theirs.create(ANN, EPOCH)
    assert ours.user(token, EPOCH) == ANN
    (handed,) = theirs.all()
    assert theirs.revoke(handed.id)
    assert not theirs.revoke(handed.id)
    assert ours.user(token, EPOCH + 1) is None


def test_a_new_token_for_a_place_replaces_the_old_one(tmp_path: Path) -> None:
    file = IssuedTokenFile(tmp_path / "tokens.json")
    old, other = file.create(ADMIN, EPOCH, label="here"), file.create(ADMIN, EPOCH, label="there")
    new = file.create(ADMIN, EPOCH, label="here")
    assert [file.user(one, EPOCH) for one in (old, other, new)] == [None, ADMIN, ADMIN]


def test_a_file_that_others_may_read_is_not_used(tmp_path: Path) -> None:
    file = IssuedTokenFile(tmp_path / "tokens.json")
    token = file.create(ANN, EPOCH)
    file.path.chmod(0o640)
    with pytest.raises(InsecurePermissionsError, match="chmod 600"):
        file.all()
    assert IssuedTokenFile(file.path).user(token, EPOCH) is None


@pytest.mark.parametrize("content", [b"", b"{}", b"[{}]", b"\xff", b'[{"id":1}]'])
def test_a_file_that_is_broken_knows_nobody(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokens.json"
    path.write_bytes(content)
    path.chmod(0o600)
    assert IssuedTokenFile(path).user("token", EPOCH) is None


# ---- what a header may hold ----------------------------------------------------------------------

WRONG = {
    "no token": "Bearer",
    "an empty token": "Bearer ",
    "another scheme": "Basic c2VjcmV0",
    "no scheme": "secret",
    "an unknown token": "Bearer secre",
    "a longer token": "Bearer secrets",
    "two tokens": "Bearer secret secret",
    "another case": "Bearer SECRET",
    "a quoted token": 'Bearer "secret"',
    "a comma": "Bearer secret, Bearer other",
    "a NUL": "Bearer secret\x00",
    "not ASCII": "Bearer sécret",
    "a surrogate": "Bearer \udcff",
    "three empty parts": "Bearer ..",
    "a long token": "Bearer " + "x" * 60_000,
    "only dots": "Bearer " + "." * 100,
}


@pytest.mark.parametrize("header", WRONG.values(), ids=WRONG)
@in_virtual_time
async def test_a_header_that_does_not_count_is_refused_and_never_taken_for_none(
    header: str,
) -> None:
    api = await a_robot(Tokens({"secret": ANN}))
    with pytest.raises(Unauthorized) as refused:
        api.server.access.authenticator.authenticate(header)
    assert refused.value.message == "Unauthorized"


@in_virtual_time
async def test_who_shows_nothing_is_nobody_and_who_shows_a_token_is_its_user() -> None:
    api = await a_robot(Tokens({"secret": ANN}))
    identify = api.server.access.authenticator.authenticate
    assert [identify(text) for text in ("", "Bearer secret", "bearer  secret ")] == [
        ANONYMOUS, ANN, ANN,
    ]  # fmt: skip


# ---- tokens of service accounts ------------------------------------------------------------------


async def a_robot(tokens: Tokens | None = None) -> Api:
    api = await Api.start(tokens=tokens)
    await api.create(SERVICE_ACCOUNT, {"metadata": {"name": "robot", "namespace": "default"}})
    return api


async def requested(api: Api, path: str = ACCOUNT, /, **spec: object) -> ApiResponse:
    return await api.ask("POST", f"{path}/token", {"spec": spec})


async def token_of(api: Api, **spec: object) -> str:
    answer = await requested(api, **spec)
    assert answer.code == 201, answer.body
    token: str = answer.body["status"]["token"]
    return token


def who(api: Api, token: str) -> UserInfo | None:
    return api.server.access.authenticator.user(token)


@in_virtual_time
async def test_an_account_is_known_by_its_token_for_an_hour() -> None:
    api = await a_robot()
    answer = await requested(api)
    assert answer.body["status"]["expirationTimestamp"] == "2027-01-15T09:00:00Z"
    token = answer.body["status"]["token"]
    user = who(api, token)
    assert user is not None
    assert user.name == "system:serviceaccount:default:robot"
    assert user.groups == (
        "system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated",
    )  # fmt: skip
    await asyncio.sleep(3599)
    assert who(api, token) == user
    await asyncio.sleep(1)
    assert who(api, token) is None


@pytest.mark.parametrize(
    ("seconds", "code", "given"),
    [(600, 201, 600), (599, 422, 0), (0, 422, 0), (-1, 422, 0), (10**9, 201, 365 * 86400),
     (2**32 + 1, 422, 0), (None, 201, 3600)],
)  # fmt: skip
@in_virtual_time
async def test_a_token_lasts_neither_too_short_nor_for_ever(
    seconds: int | None, code: int, given: int
) -> None:
    api = await a_robot()
    answer = await requested(api, expirationSeconds=seconds)
    assert answer.code == code
    if code == 201:
        assert answer.body["spec"]["expirationSeconds"] == given
    else:
        assert answer.cause_reasons == [("spec.expirationSeconds", "FieldValueInvalid")]


@in_virtual_time
async def test_a_token_ends_with_its_account() -> None:
    api = await a_robot()
    token = await token_of(api)
    await api.delete(SERVICE_ACCOUNT, "robot")
    assert who(api, token) is None
    await api.create(SERVICE_ACCOUNT, {"metadata": {"name": "robot", "namespace": "default"}})
    assert who(api, token) is None


@in_virtual_time
async def test_a_token_that_is_bound_ends_with_what_it_is_bound_to() -> None:
    api = await a_robot()
    await api.create(POD, pod("p", spec={"serviceAccountName": "robot"}))
    await api.create(SECRET, {"metadata": {"name": "s", "namespace": "default"}})
    for kind, name in ((POD, "p"), (SECRET, "s")):
        reference = {"kind": kind.name, "apiVersion": "v1", "name": name}
        token = await token_of(api, boundObjectRef=reference)
        assert who(api, token) is not None
        await api.delete(kind, name)
        assert who(api, token) is None, kind.name


@in_virtual_time
async def test_a_token_is_bound_only_to_what_is_there_and_is_the_accounts() -> None:
    api = await a_robot()
    await api.create(POD, pod("other"))
    for reference, code in (
        ({"kind": "Pod", "name": "none"}, 404),
        ({"kind": "Pod", "name": "other"}, 400),
        ({"kind": "Pod", "name": "other", "uid": "x"}, 409),
        ({"kind": "ConfigMap", "name": "c"}, 400),
        ({"kind": ""}, 400),
    ):
        assert (await requested(api, boundObjectRef=reference)).code == code, reference
    missing = SERVICE_ACCOUNT.url_path("default", "nobody")
    assert (await requested(api, missing)).code == 404


@in_virtual_time
async def test_a_token_for_others_is_none_of_ours() -> None:
    api = await a_robot()
    token = await token_of(api, audiences=["vault"])
    assert who(api, token) is None
    both = await token_of(api, audiences=["vault", ISSUER])
    assert who(api, both) is not None


async def reviewed(api: Api, token: str, *audiences: str) -> Object:
    spec = {"token": token, **({"audiences": list(audiences)} if audiences else {})}
    answer = await api.ask("POST", TOKEN_REVIEW.url_path(), {"spec": spec})
    assert answer.code == 201
    status: Object = answer.body["status"]
    return status


@in_virtual_time
async def test_a_review_says_whose_a_token_is_and_for_whom() -> None:
    api = await a_robot(Tokens({"secret": ANN}))
    token = await token_of(api, audiences=["vault"])
    found = await reviewed(api, token, "vault", "other")
    assert (found["authenticated"], found["audiences"]) == (True, ["vault"])
    assert found["user"]["username"] == "system:serviceaccount:default:robot"
    assert found["user"]["extra"]["authentication.kubernetes.io/credential-id"]
    assert not (await reviewed(api, token))["authenticated"]
    assert (await reviewed(api, "secret"))["user"]["username"] == "ann"
    assert not (await reviewed(api, "secret", "vault"))["authenticated"]
    assert not (await reviewed(api, ""))["authenticated"]


def part(token: str, number: int, change: Callable[[Object], object]) -> str:
    """A token of which one part says something else."""
    parts = token.split(".")
    raw = base64.urlsafe_b64decode(parts[number] + "=" * (-len(parts[number]) % 4))
    changed = orjson.dumps(change(orjson.loads(raw)))
    parts[number] = base64.urlsafe_b64encode(changed).decode().rstrip("=")
    return ".".join(parts)


FORGERIES: dict[str, Callable[[str], str]] = {
    "no signature": lambda t: t.rpartition(".")[0] + ".",
    "two parts": lambda t: t.rpartition(".")[0],
    "four parts": lambda t: f"{t}.x",
    "another signature": lambda t: t[:-4] + ("AAAA" if not t.endswith("AAAA") else "BBBB"),
    "padding": lambda t: f"{t}=",
    "a signature of zeros": lambda t: t.rpartition(".")[0] + "." + "A" * 86,
    "no algorithm": lambda t: part(t, 0, lambda h: {**h, "alg": "none"}),
    "a secret's algorithm": lambda t: part(t, 0, lambda h: {**h, "alg": "HS256"}),
    "another key": lambda t: part(t, 0, lambda h: {**h, "kid": "x"}),
    "no head": lambda t: part(t, 0, lambda h: []),
    "a later end": lambda t: part(t, 1, lambda c: {**c, "exp": 1e12}),
    "another account": lambda t: part(t, 1, lambda c: {**c, "sub": "system:admin"}),
    "no claims": lambda t: part(t, 1, lambda c: 1),
    "a list": lambda t: part(t, 1, lambda c: [c]),
}


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES)
@in_virtual_time
async def test_a_token_that_was_tampered_with_does_not_count(forge: Callable[[str], str]) -> None:
    api = await a_robot()
    token = await token_of(api)
    assert who(api, forge(token)) is None
    assert who(api, token) is not None


@pytest.mark.parametrize(
    "change",
    [{"iss": "x"}, {"sub": "system:serviceaccount:default:other"}, {"kubernetes.io": None},
     {"kubernetes.io": {}}, {"aud": None}, {"aud": []}, {"exp": 0}],
    ids=str,
)  # fmt: skip
@in_virtual_time
async def test_what_our_own_key_signed_must_still_be_whole(change: Object) -> None:
    signer = Signer.generate()
    api = await a_robot(Tokens({}, signer=signer))
    claims = signer.verified_claims(await token_of(api))
    assert claims is not None
    assert who(api, signer.sign(claims)) is not None
    assert who(api, signer.sign({**claims, **change})) is None


@in_virtual_time
async def test_a_token_of_another_server_does_not_count() -> None:
    api, other = await a_robot(), await a_robot()
    assert who(other, await token_of(api)) is None


def test_a_key_is_made_once_and_kept_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "key"
    first = Signer.load_or_create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Signer.load_or_create(path).verified_claims(first.sign({"a": 1})) == {"a": 1}


@in_virtual_time
async def test_anybody_with_an_account_can_learn_how_to_verify_tokens() -> None:
    api = await a_robot()
    user = who(api, await token_of(api))
    assert user is not None
    keys = await api.ask("GET", "/openid/v1/jwks", user=user)
    assert orjson.loads(keys.text)["keys"][0]["kty"] == "EC"
    issuer = await api.ask("GET", "/.well-known/openid-configuration", user=user)
    assert issuer.body["issuer"] == ISSUER
    assert (await api.ask("GET", "/openid/v1/jwks", user=ANN)).code == 403


# ---- certificates --------------------------------------------------------------------------------


def subject(*rows: tuple[str, str]) -> Object:
    return {"subject": tuple(((key, value),) for key, value in rows)}


def test_a_certificate_names_a_user_and_groups() -> None:
    shown = subject(("organizationName", "a"), ("organizationName", "b"), ("commonName", "ann"))
    assert certificate_user(shown) == UserInfo("ann", ("a", "b", "system:authenticated"))


@pytest.mark.parametrize(
    "shown", [{}, subject(), subject(("commonName", "")), subject(("organizationName", "a")),
              subject(("commonName", "a"), ("commonName", "b"))], ids=str,
)  # fmt: skip
def test_a_certificate_that_names_nobody_is_refused(shown: Object) -> None:
    with pytest.raises(Unauthorized):
        certificate_user(shown)
