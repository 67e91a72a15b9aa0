"""Protobuf bodies: recorded ones, handwritten ones, and refused ones."""

from __future__ import annotations

from base64 import b64decode
from itertools import count
from typing import Any

import orjson
import pytest

from phalanx.api import protobuf as messages
from phalanx.api.protobuf import MAGIC, MAX_DEPTH, BadProtobuf, decode
from phalanx.api.schema import schema
from tests.api.protobuf_bodies import (
    CAN_I_BODY,
    DRAIN_BODY,
    HANDWRITTEN_BODIES,
    KUBECTL_BODIES,
    TOKEN_BODY,
)
from tests.api.protobuf_encoder import (
    config_map_with_managed_fields,
    decode_metadata,
    decode_pod_spec,
    encode_bytes,
    encode_envelope,
    encode_number,
    encode_varint,
    nested_workload,
)


@pytest.mark.parametrize("command", KUBECTL_BODIES)
def test_recorded_bodies_of_kubectl_decode_to_its_json(command: str) -> None:
    body, text = KUBECTL_BODIES[command]
    sent, shown = decode(b64decode(body)), orjson.loads(text)
    kind = schema(str(messages.message_name(sent["apiVersion"], sent["kind"])))
    assert list(sent)[:2] == ["apiVersion", "kind"]
    kind.normalize(sent)
    kind.normalize(shown)
    assert sent == shown


def test_present_fields_are_kept_even_if_empty() -> None:
    decoded = decode(b64decode(KUBECTL_BODIES["create namespace team-a"][0]))
    assert (decoded["spec"], decoded["status"]) == ({}, {"phase": ""})
    assert decoded["metadata"] == {
        "name": "team-a", "generateName": "", "namespace": "", "selfLink": "", "uid": "",
        "resourceVersion": "", "generation": 0, "creationTimestamp": None,
    }  # fmt: skip


def test_options_and_reviews_are_decoded_too() -> None:
    assert decode(b64decode(DRAIN_BODY)) == {"apiVersion": "v1", "kind": "DeleteOptions"}
    assert decode(b64decode(TOKEN_BODY))["spec"] == {"expirationSeconds": 3600}
    attributes = decode(b64decode(CAN_I_BODY))["spec"]["resourceAttributes"]
    assert (attributes["namespace"], attributes["verb"], attributes["resource"]) == (
        "default",
        "create",
        "pods",
    )


@pytest.mark.parametrize(
    "body", HANDWRITTEN_BODIES, ids=lambda body: orjson.loads(HANDWRITTEN_BODIES[body])["kind"]
)
def test_encoded_body_is_decoded(body: bytes) -> None:
    assert decode(body) == orjson.loads(HANDWRITTEN_BODIES[body])


# ---- encodings of the same value -----------------------------------------------------------------


def test_unknown_fields_are_skipped() -> None:
    strange = (
        encode_number(99, 2**63) + encode_bytes(98, b"x") + b"\x85\x06abcd" + b"\x81\x06abcdefgh"
    )
    assert decode_metadata(strange + encode_bytes(1, b"n") + strange) == {"name": "n"}


def test_last_value_wins_but_messages_are_merged() -> None:
    halves = encode_bytes(1, encode_bytes(1, b"a") + encode_bytes(3, b"ns")) + encode_bytes(
        1, encode_bytes(1, b"b")
    )
    decoded = decode(encode_envelope("v1", "ConfigMap", halves))
    assert decoded["metadata"] == {"name": "b", "namespace": "ns"}


def test_numbers_have_a_sign_and_a_width() -> None:
    assert decode_pod_spec(encode_number(4, -5) + encode_number(25, 2**32 - 2)) == {
        "terminationGracePeriodSeconds": -5,
        "priority": -2,
    }
    assert decode_pod_spec(encode_number(4, 2**63 - 1) + encode_number(25, 2**33 + 7)) == {
        "terminationGracePeriodSeconds": 2**63 - 1,
        "priority": 7,
    }


def test_lists_of_numbers_may_be_packed() -> None:
    groups = (
        encode_number(4, 1)
        + encode_bytes(4, encode_varint(2) + encode_varint(-3))
        + encode_number(4, 4)
    )
    assert decode_pod_spec(encode_bytes(14, groups)) == {
        "securityContext": {"supplementalGroups": [1, 2, -3, 4]}
    }


def test_map_entries_may_omit_key_and_value() -> None:
    assert decode_metadata(encode_bytes(11, encode_bytes(1, b"k")) + encode_bytes(11, b"")) == {
        "labels": {"k": "", "": ""}
    }
    assert decode_pod_spec(encode_bytes(32, encode_bytes(1, b"cpu"))) == {"overhead": {"cpu": "0"}}
    extra = encode_bytes(2, encode_bytes(5, encode_bytes(1, b"k")))
    review = decode(encode_envelope("authorization.k8s.io/v1", "SubjectAccessReview", extra))
    assert review["spec"]["extra"] == {"k": []}


def test_field_without_name_is_inline() -> None:
    secret = encode_bytes(6, encode_bytes(1, b"s"))
    volume = encode_bytes(1, b"v") + encode_bytes(2, secret)
    assert decode_pod_spec(encode_bytes(1, volume)) == {
        "volumes": [{"name": "v", "secret": {"secretName": "s"}}]
    }


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        (b"", None),
        (encode_number(1, 0) + encode_number(2, 0), "1970-01-01T00:00:00Z"),
        (encode_number(1, -1), "1969-12-31T23:59:59Z"),
        (encode_number(1, -62135596800), "0001-01-01T00:00:00Z"),
        (encode_number(1, 1767225600) + encode_number(2, 999_999_999), "2026-01-01T00:00:00Z"),
    ],
)
def test_time_has_whole_seconds_and_is_absent_when_unset(fields: bytes, shown: str | None) -> None:
    assert decode_metadata(encode_bytes(8, fields)) == {"creationTimestamp": shown}


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        (b"", 0),
        (encode_number(2, 80) + encode_bytes(3, b"http"), 80),
        (encode_number(1, 1) + encode_number(2, 80) + encode_bytes(3, b"http"), "http"),
        (encode_number(1, 1), ""),
    ],
)
def test_int_or_string_is_decoded_by_its_type(fields: bytes, shown: int | str) -> None:
    port = encode_bytes(1, encode_bytes(4, fields))
    decoded = decode(encode_envelope("v1", "Service", encode_bytes(2, port)))["spec"]
    assert decoded == {"ports": [{"targetPort": shown}]}


@pytest.mark.parametrize(("raw", "shown"), [(b"", None), (b'{"f:a":{}}', {"f:a": {}})])
def test_embedded_json_is_decoded(raw: bytes, shown: Any) -> None:
    entry = encode_bytes(7, encode_bytes(1, raw))
    assert decode_metadata(encode_bytes(17, entry)) == {"managedFields": [{"fieldsV1": shown}]}


def test_envelope_without_content_is_an_object_without_fields() -> None:
    head = MAGIC + encode_bytes(1, encode_bytes(1, b"v1") + encode_bytes(2, b"Pod"))
    assert decode(head) == {"apiVersion": "v1", "kind": "Pod"}


def test_body_cannot_override_the_kind_of_its_envelope() -> None:
    sly = encode_envelope("v1", "ObjectReference", encode_bytes(1, b"Pod") + encode_bytes(3, b"n"))
    assert decode(sly) == {"apiVersion": "v1", "kind": "ObjectReference", "name": "n"}


# ---- what is refused -----------------------------------------------------------------------------


GOOD = encode_envelope("v1", "ConfigMap", b"")


TOO_LONG = "a field is longer than what it is part of"
TOO_DEEP = "the body is nested deeper than 100 levels"
REFUSED = (
    (b"", "the body does not begin with k8s and a zero byte"),
    (b'{"kind":"Pod"}', "the body does not begin with k8s and a zero byte"),
    (MAGIC, 'no message is known for kind "" of API version ""'),
    (encode_envelope("v1", "Toy", b""), 'no message is known for kind "Toy" of API version "v1"'),
    (
        encode_envelope("x/v1", "Job", b""),
        'no message is known for kind "Job" of API version "x/v1"',
    ),
    (GOOD + encode_bytes(3, b"gzip"), 'the content encoding "gzip" is not known'),
    (GOOD + b"\x8a", TOO_LONG),
    (GOOD + b"\x0a", TOO_LONG),
    (GOOD + b"\x0a\x05abcd", TOO_LONG),
    (GOOD + b"\x79abcdefg", TOO_LONG),
    (GOOD + b"\x0a" + encode_varint(2**64 - 1), TOO_LONG),
    (encode_envelope("v1", "Pod", encode_bytes(2, b"\x20\x80") + encode_bytes(3, b"")), TOO_LONG),
    (
        encode_envelope("v1", "Pod", encode_bytes(2, encode_bytes(14, encode_bytes(4, b"\x80")))),
        TOO_LONG,
    ),
    (GOOD + b"\xff" * 10 + b"\x01", "a number has more than ten bytes"),
    (GOOD + b"\x02\x00", "a field has the number 0"),
    (GOOD + b"\x0b\x0c", "field 1 has the wrong wire type 3"),
    (GOOD + b"\x7b\x7c", "field 15 has the wrong wire type 3"),
    (GOOD + b"\x08\x01", "field 1 has the wrong wire type 0"),
    (
        encode_envelope("v1", "ConfigMap", encode_bytes(4, b"\x01")),
        "field 4 has the wrong wire type 2",
    ),
    (
        encode_envelope("v1", "ConfigMap", encode_bytes(1, encode_bytes(1, b"\xff"))),
        "a text is not UTF-8",
    ),
    (
        encode_envelope("v1", "Pod", encode_bytes(1, encode_bytes(8, encode_number(1, 2**62)))),
        "a time is outside the years 1 to 9999",
    ),
    (
        encode_envelope(
            "v1", "Service", encode_bytes(2, encode_bytes(1, encode_bytes(4, encode_number(1, 2))))
        ),
        "a value is neither a number nor a text",
    ),
    (config_map_with_managed_fields(b"{"), "an embedded object is not JSON"),
    (
        config_map_with_managed_fields(b'{"a":' * 2000 + b"0" + b"}" * 2000),
        "an embedded object is not JSON",
    ),
    (config_map_with_managed_fields(b"[" * 200 + b"]" * 200), TOO_DEEP),
    (nested_workload(MAX_DEPTH), TOO_DEEP),
    (nested_workload(2_000), TOO_DEEP),
)


@pytest.mark.parametrize(("body", "why"), REFUSED, ids=count())
def test_malformed_body_is_refused_with_the_reason(body: bytes, why: str) -> None:
    with pytest.raises(BadProtobuf) as refused:
        decode(body)
    assert str(refused.value) == why


def test_nesting_is_allowed_up_to_the_limit() -> None:
    decoded: Any = decode(nested_workload(MAX_DEPTH - 1))["spec"]
    for _ in range(MAX_DEPTH - 1):
        decoded = decoded["compositePodGroupTemplates"][0]
    assert decoded == {}
    decode(config_map_with_managed_fields(b"[" * 90 + b"]" * 90))
