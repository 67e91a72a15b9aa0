"""Rules and defaults of Secrets."""

from __future__ import annotations

import binascii
from typing import Any

import pytest

from phalanx.api.kinds import SECRET
from phalanx.api.validation.registry import validate
from phalanx.api.wire import Object
from tests.api.cause_summaries import CauseSummaries
from tests.api.stored_objects import change_stored, creation_causes, find_causes, make_stored


def encode(text: str) -> str:
    return binascii.b2a_base64(text.encode(), newline=False).decode()


def secret_of_type(kind: str, **data: str) -> Object:
    return {"type": f"kubernetes.io/{kind}", "stringData": {k.replace("_", "."): v
                                                            for k, v in data.items()}}  # fmt: skip


def test_texts_are_stored_as_what_they_encode_to() -> None:
    secret = make_stored(
        SECRET, {"stringData": {"user": "me", "pass": "new"}, "data": {"pass": "b2xk"}}
    )
    assert secret["data"] == {"user": encode("me"), "pass": encode("new")}
    assert "stringData" not in secret
    assert secret["type"] == "Opaque"


@pytest.mark.parametrize(
    ("secret", "causes"),
    [
        ({}, []),
        ({"type": "example.com/mine"}, []),
        ({"data": {"bad key": ""}}, ["data[bad key]: Invalid"]),
        ({"stringData": {"a": "x" * (1024 * 1024 + 2)}}, ["data: TooLong"]),
        (secret_of_type("tls", a="b"), ["data[tls.crt]: Required", "data[tls.key]: Required"]),
        (secret_of_type("tls", tls_crt="", tls_key=""), []),
        (secret_of_type("basic-auth"), ["data[username]: Required", "data[password]: Required"]),
        (secret_of_type("basic-auth", password="p"), []),
        (secret_of_type("ssh-auth"), ["data[ssh-privatekey]: Required"]),
        (secret_of_type("dockercfg"), ["data[.dockercfg]: Required"]),
        (secret_of_type("dockercfg", _dockercfg="{}"), []),
        (secret_of_type("dockercfg", _dockercfg="null"), []),
        (secret_of_type("dockercfg", _dockercfg="[]"), ["data[.dockercfg]: Invalid"]),
        (
            secret_of_type("dockerconfigjson", _dockerconfigjson="{"),
            ["data[.dockerconfigjson]: Invalid"],
        ),
        (
            secret_of_type("service-account-token"),
            ["metadata.annotations[kubernetes.io/service-account.name]: Required"],
        ),
    ],
)
def test_a_secret_of_a_known_type_holds_its_keys(secret: Object, causes: CauseSummaries) -> None:
    assert creation_causes(SECRET, secret) == causes


def test_a_token_names_its_account() -> None:
    meta = {"annotations": {"kubernetes.io/service-account.name": "robot"}}
    assert (
        creation_causes(SECRET, {"metadata": meta, **secret_of_type("service-account-token")}) == []
    )


def test_a_key_for_a_shell_is_not_empty() -> None:
    key = {"type": "kubernetes.io/ssh-auth", "stringData": {"ssh-privatekey": "k"}}
    assert creation_causes(SECRET, key) == []


def test_what_a_secret_holds_is_never_repeated() -> None:
    (cause,) = validate(
        SECRET, make_stored(SECRET, secret_of_type("dockercfg", _dockercfg="hush")), None
    )
    assert "hush" not in cause.message
    assert encode("hush") not in cause.message


@pytest.mark.parametrize(
    ("immutable", "change", "causes"),
    [
        (False, {"data": {"a": "Mg=="}}, []),
        (False, {"type": "example.com/x"}, ["type: Invalid"]),
        (True, {"data": {"a": "Mg=="}}, ["data: Forbidden"]),
        (True, {"immutable": False}, ["immutable: Forbidden"]),
        (True, {"metadata": {"name": "x", "namespace": "n", "labels": {"a": "b"}}}, []),
    ],
)
def test_a_secret_may_be_closed(immutable: bool, change: Any, causes: CauseSummaries) -> None:
    old = make_stored(SECRET, {"data": {"a": "MQ=="}, "immutable": immutable})
    del old["metadata"]["uid"]
    assert find_causes(SECRET, change_stored(SECRET, old, **change), old) == causes
