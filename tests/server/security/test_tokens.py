"""Tokens and certificates: valid ones authenticate; invalid ones never count as anonymous."""

from __future__ import annotations

import asyncio
import base64
import os
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
    read_client_certificate,
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


# ---- issued tokens -------------------------------------------------------------------------------


def test_issued_token_is_valid_until_it_expires(tmp_path: Path) -> None:
    file = IssuedTokenFile(tmp_path / "tokens.json")
    token = file.create(ANN, EPOCH, 60)
    assert [file.user(token, EPOCH + after) for after in (0, 59, 60, 1e6)] == [ANN, ANN, None, None]
    assert file.user(file.create(ANN, EPOCH), EPOCH + 1e9) == ANN


def test_only_digests_are_stored_readable_by_their_owner_only(tmp_path: Path) -> None:
    file = IssuedTokenFile(tmp_path / "tokens.json")
    token = file.create(ANN, EPOCH)
    assert token.encode() not in file.path.read_bytes()
    assert token_digest(token).hex().encode() in file.path.read_bytes()
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_token_issued_or_revoked_by_another_process_takes_effect(
    tmp_path: Path,
) -> None:
    this_process, other_process = (IssuedTokenFile(tmp_path / "tokens.json") for _ in range(2))
    assert this_process.user("nothing", EPOCH) is None
    token = other_process.create(ANN, EPOCH)
    assert this_process.user(token, EPOCH) == ANN
    (issued,) = other_process.all()
    assert other_process.revoke(issued.id)
    assert not other_process.revoke(issued.id)
    assert this_process.user(token, EPOCH + 1) is None


def test_revoked_token_is_refused_after_the_wall_clock_was_set_back(tmp_path: Path) -> None:
    this_process, other_process = (IssuedTokenFile(tmp_path / "tokens.json") for _ in range(2))
    token = other_process.create(ANN, EPOCH)
    assert this_process.user(token, EPOCH) == ANN
    (issued,) = other_process.all()
    other_process.revoke(issued.id)
    assert this_process.user(token, EPOCH - 3600) is None


def test_revoked_token_is_refused_within_a_second_if_the_file_looks_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    time_passed = iter((0.0, 0.9, 1.0))
    this_process = IssuedTokenFile(tmp_path / "tokens.json", lambda: next(time_passed))
    other_process = IssuedTokenFile(this_process.path)
    token = other_process.create(ANN, EPOCH)
    unchanged = this_process.path.stat()
    monkeypatch.setattr(os, "stat", lambda path, **options: unchanged)
    assert this_process.user(token, EPOCH) == ANN
    (issued,) = other_process.all()
    other_process.revoke(issued.id)
    assert [this_process.user(token, EPOCH) for _ in range(2)] == [ANN, None]


def test_token_file_that_becomes_readable_for_others_is_no_longer_used(tmp_path: Path) -> None:
    file = IssuedTokenFile(tmp_path / "tokens.json")
    token = file.create(ANN, EPOCH)
    assert file.user(token, EPOCH) == ANN
    file.path.chmod(0o640)
    assert file.user(token, EPOCH) is None
    file.path.chmod(0o600)
    assert file.user(token, EPOCH) == ANN


def test_new_token_with_a_label_replaces_the_old_one(tmp_path: Path) -> None:
    file = IssuedTokenFile(tmp_path / "tokens.json")
    old, other = file.create(ADMIN, EPOCH, label="here"), file.create(ADMIN, EPOCH, label="there")
    new = file.create(ADMIN, EPOCH, label="here")
    assert [file.user(one, EPOCH) for one in (old, other, new)] == [None, ADMIN, ADMIN]


def test_token_file_that_others_may_read_is_not_used(tmp_path: Path) -> None:
    file = IssuedTokenFile(tmp_path / "tokens.json")
    token = file.create(ANN, EPOCH)
    file.path.chmod(0o640)
    with pytest.raises(InsecurePermissionsError, match="chmod 600"):
        file.all()
    assert IssuedTokenFile(file.path).user(token, EPOCH) is None


@pytest.mark.parametrize("content", [b"", b"{}", b"[{}]", b"\xff", b'[{"id":1}]'])
def test_invalid_token_file_authenticates_no_user(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokens.json"
    path.write_bytes(content)
    path.chmod(0o600)
    assert IssuedTokenFile(path).user("token", EPOCH) is None


# ---- authorization headers -----------------------------------------------------------------------

INVALID_HEADERS = {
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


@pytest.mark.parametrize("header", INVALID_HEADERS.values(), ids=INVALID_HEADERS)
@in_virtual_time
async def test_invalid_header_is_unauthorized_and_never_anonymous(
    header: str,
) -> None:
    api = await start_with_account(Tokens({"secret": ANN}))
    with pytest.raises(Unauthorized) as raised:
        api.server.access.authenticator.authenticate(header)
    assert raised.value.message == "Unauthorized"


@in_virtual_time
async def test_empty_header_is_anonymous_and_a_token_is_its_user() -> None:
    api = await start_with_account(Tokens({"secret": ANN}))
    authenticate_header = api.server.access.authenticator.authenticate
    assert [authenticate_header(text) for text in ("", "Bearer secret", "bearer  secret ")] == [
        ANONYMOUS, ANN, ANN,
    ]  # fmt: skip


# ---- service account tokens ----------------------------------------------------------------------


async def start_with_account(tokens: Tokens | None = None) -> Api:
    api = await Api.start(tokens=tokens)
    await api.create(SERVICE_ACCOUNT, {"metadata": {"name": "robot", "namespace": "default"}})
    return api


async def request_token(api: Api, path: str = ACCOUNT, /, **spec: object) -> ApiResponse:
    return await api.ask("POST", f"{path}/token", {"spec": spec})


async def issue_token(api: Api, **spec: object) -> str:
    response = await request_token(api, **spec)
    assert response.code == 201, response.body
    token: str = response.body["status"]["token"]
    return token


def authenticate(api: Api, token: str) -> UserInfo | None:
    return api.server.access.authenticator.user(token)


@in_virtual_time
async def test_service_account_token_is_valid_for_an_hour() -> None:
    api = await start_with_account()
    response = await request_token(api)
    assert response.body["status"]["expirationTimestamp"] == "2027-01-15T09:00:00Z"
    token = response.body["status"]["token"]
    user = authenticate(api, token)
    assert user is not None
    assert user.name == "system:serviceaccount:default:robot"
    assert user.groups == (
        "system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated",
    )  # fmt: skip
    assert response.header_values("warning") == []
    odd = await request_token(api, unheardOf=1)
    assert len(odd.header_values("warning")) == 1
    await asyncio.sleep(3599)
    assert authenticate(api, token) == user
    await asyncio.sleep(1)
    assert authenticate(api, token) is None


@pytest.mark.parametrize(
    ("seconds", "code", "granted"),
    [(600, 201, 600), (599, 422, 0), (0, 422, 0), (-1, 422, 0), (10**9, 201, 365 * 86400),
     (2**32 + 1, 422, 0), (None, 201, 3600)],
)  # fmt: skip
@in_virtual_time
async def test_expiration_seconds_are_validated_and_bounded(
    seconds: int | None, code: int, granted: int
) -> None:
    api = await start_with_account()
    response = await request_token(api, expirationSeconds=seconds)
    assert response.code == code
    if code == 201:
        assert response.body["spec"]["expirationSeconds"] == granted
    else:
        assert response.cause_reasons == [("spec.expirationSeconds", "FieldValueInvalid")]


@in_virtual_time
async def test_token_is_invalid_after_its_service_account_is_deleted() -> None:
    api = await start_with_account()
    token = await issue_token(api)
    await api.delete(SERVICE_ACCOUNT, "robot")
    assert authenticate(api, token) is None
    await api.create(SERVICE_ACCOUNT, {"metadata": {"name": "robot", "namespace": "default"}})
    assert authenticate(api, token) is None


@in_virtual_time
async def test_bound_token_is_invalid_after_its_object_is_deleted() -> None:
    api = await start_with_account()
    await api.create(POD, pod("p", spec={"serviceAccountName": "robot"}))
    await api.create(SECRET, {"metadata": {"name": "s", "namespace": "default"}})
    for kind, name in ((POD, "p"), (SECRET, "s")):
        reference = {"kind": kind.name, "apiVersion": "v1", "name": name}
        token = await issue_token(api, boundObjectRef=reference)
        assert authenticate(api, token) is not None
        await api.delete(kind, name)
        assert authenticate(api, token) is None, kind.name


@in_virtual_time
async def test_token_is_bound_only_to_an_existing_object_of_its_account() -> None:
    api = await start_with_account()
    await api.create(POD, pod("other"))
    await api.create(SECRET, {"metadata": {"name": "s", "namespace": "default"}})
    for reference, code in (
        ({"kind": "Pod", "name": "none"}, 404),
        ({"kind": "Pod", "name": "other"}, 400),
        ({"kind": "Pod", "name": "other", "uid": "x"}, 400),
        ({"kind": "Pod"}, 400),
        ({"kind": "Secret", "name": "s", "uid": "x"}, 409),
        ({"kind": "ConfigMap", "name": "c"}, 400),
        ({"kind": ""}, 400),
    ):
        assert (await request_token(api, boundObjectRef=reference)).code == code, reference
    wrong = {"kind": "Secret", "name": "s", "uid": "x"}
    found = await request_token(api, boundObjectRef=wrong)
    assert found.body["details"] == {"name": "s", "kind": "Secret"}
    missing = SERVICE_ACCOUNT.url_path("default", "missing")
    assert (await request_token(api, missing)).code == 404


@in_virtual_time
async def test_token_for_another_audience_does_not_authenticate() -> None:
    api = await start_with_account()
    token = await issue_token(api, audiences=["vault"])
    assert authenticate(api, token) is None
    both = await issue_token(api, audiences=["vault", ISSUER])
    assert authenticate(api, both) is not None


async def review_token(api: Api, token: str, *audiences: str) -> Object:
    spec = {"token": token, **({"audiences": list(audiences)} if audiences else {})}
    response = await api.ask("POST", TOKEN_REVIEW.url_path(), {"spec": spec})
    assert response.code == 201
    status: Object = response.body["status"]
    return status


@in_virtual_time
async def test_token_review_returns_user_and_audiences() -> None:
    api = await start_with_account(Tokens({"secret": ANN}))
    token = await issue_token(api, audiences=["vault"])
    found = await review_token(api, token, "vault", "other")
    assert (found["authenticated"], found["audiences"]) == (True, ["vault"])
    assert found["user"]["username"] == "system:serviceaccount:default:robot"
    assert found["user"]["extra"]["authentication.kubernetes.io/credential-id"]
    assert "authenticated" not in await review_token(api, token)
    assert (await review_token(api, "secret"))["user"]["username"] == "ann"
    assert "authenticated" not in await review_token(api, "secret", "vault")
    without = await api.ask("POST", TOKEN_REVIEW.url_path(), {"spec": {}})
    assert (without.code, without.body["reason"]) == (400, "BadRequest")


def change_part(token: str, number: int, change: Callable[[Object], object]) -> str:
    """Return a token with one changed part."""
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
    "no algorithm": lambda t: change_part(t, 0, lambda h: {**h, "alg": "none"}),
    "a secret's algorithm": lambda t: change_part(t, 0, lambda h: {**h, "alg": "HS256"}),
    "another key": lambda t: change_part(t, 0, lambda h: {**h, "kid": "x"}),
    "no head": lambda t: change_part(t, 0, lambda h: []),
    "a later end": lambda t: change_part(t, 1, lambda c: {**c, "exp": 1e12}),
    "another account": lambda t: change_part(t, 1, lambda c: {**c, "sub": "system:admin"}),
    "no claims": lambda t: change_part(t, 1, lambda c: 1),
    "a list": lambda t: change_part(t, 1, lambda c: [c]),
}


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES)
@in_virtual_time
async def test_forged_token_does_not_authenticate(forge: Callable[[str], str]) -> None:
    api = await start_with_account()
    token = await issue_token(api)
    assert authenticate(api, forge(token)) is None
    assert authenticate(api, token) is not None


@pytest.mark.parametrize(
    "change",
    [{"iss": "x"}, {"sub": "system:serviceaccount:default:other"}, {"kubernetes.io": None},
     {"kubernetes.io": {}}, {"aud": None}, {"aud": []}, {"exp": 0}],
    ids=str,
)  # fmt: skip
@in_virtual_time
async def test_signed_token_with_invalid_claims_does_not_authenticate(change: Object) -> None:
    signer = Signer.generate()
    api = await start_with_account(Tokens({}, signer=signer))
    claims = signer.verified_claims(await issue_token(api))
    assert claims is not None
    assert authenticate(api, signer.sign(claims)) is not None
    assert authenticate(api, signer.sign({**claims, **change})) is None


@in_virtual_time
async def test_token_of_another_server_does_not_authenticate() -> None:
    api, other = await start_with_account(), await start_with_account()
    assert authenticate(other, await issue_token(api)) is None


def test_signing_key_is_created_once_and_readable_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "key"
    first = Signer.load_or_create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Signer.load_or_create(path).verified_claims(first.sign({"a": 1})) == {"a": 1}


@in_virtual_time
async def test_service_accounts_may_read_the_issuer_and_its_keys() -> None:
    api = await start_with_account()
    user = authenticate(api, await issue_token(api))
    assert user is not None
    keys = await api.ask("GET", "/openid/v1/jwks", user=user)
    assert orjson.loads(keys.text)["keys"][0]["kty"] == "EC"
    issuer = await api.ask("GET", "/.well-known/openid-configuration", user=user)
    assert issuer.body["issuer"] == ISSUER
    assert (await api.ask("GET", "/openid/v1/jwks", user=ANN)).code == 403


# ---- certificates --------------------------------------------------------------------------------


def subject(*rows: tuple[str, str]) -> Object:
    names = tuple(((key, value),) for key, value in rows)
    return {"subject": names, "notAfter": "Jan 15 08:00:00 2027 GMT"}


def test_certificate_subject_sets_user_and_groups() -> None:
    certificate = subject(
        ("organizationName", "a"), ("organizationName", "b"), ("commonName", "ann")
    )
    user = UserInfo("ann", ("a", "b", "system:authenticated"))
    assert read_client_certificate(certificate) == (user, 1_800_000_000)


@pytest.mark.parametrize(
    "certificate", [{}, subject(), subject(("commonName", "")), subject(("organizationName", "a")),
              subject(("commonName", "a"), ("commonName", "b"))], ids=str,
)  # fmt: skip
def test_certificate_without_one_common_name_is_unauthorized(certificate: Object) -> None:
    with pytest.raises(Unauthorized):
        read_client_certificate(certificate)


def test_user_without_a_name_gets_no_token(tmp_path: Path) -> None:
    file = IssuedTokenFile(tmp_path / "tokens.json")
    for user in (authenticated_user(""), authenticated_user("ann", ("",))):
        with pytest.raises(ValueError, match="must have a name"):
            file.create(user, EPOCH)
    token = file.create(authenticated_user("ann"), EPOCH)
    file.path.write_text(file.path.read_text().replace('"ann"', '""'))
    assert IssuedTokenFile(file.path).user(token, EPOCH) is None
