"""Protobuf bodies: recorded ones, ones made by hand, all that schemas allow, and broken ones."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable
from functools import cache
from importlib import resources
from itertools import count
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.api import messages
from phalanx.api.definitions import (
    Node,
    UnknownDefinition,
    additions,
    definition,
    is_reference,
)
from phalanx.api.meta import seconds, timestamp
from phalanx.api.protobuf import FORMS, MAGIC, MAX_DEPTH, BadProtobuf, decode
from phalanx.api.schema import schema
from phalanx.api.wire import Object

# ---- a writer of protobuf ------------------------------------------------------------------------

NUMBERS = ("bool", "int32", "int64")


def varint(number: int) -> bytes:
    number &= 2**64 - 1
    parts = []
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*parts, number))


def chunk(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def numeral(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def envelope(version: str, kind: str, raw: bytes) -> bytes:
    told = chunk(1, version.encode()) + chunk(2, kind.encode())
    return MAGIC + chunk(1, told) + chunk(2, raw)


def moment(text: str) -> Object:
    whole, _, fraction = text.removesuffix("Z").partition(".")
    return {"seconds": round(seconds(whole + "Z")), "nanos": int(fraction or 0) * 1000}


def int_or_string(value: int | str) -> Object:
    return {"type": 1, "strVal": value} if isinstance(value, str) else {"type": 0, "intVal": value}


#: What a message that JSON shows in another form holds.
FIELDS: dict[str, Callable[[Any], Object]] = {
    "api.resource.Quantity": lambda text: {"string": text},
    "meta.v1.FieldsV1": lambda value: {"Raw": value},
    "meta.v1.MicroTime": moment,
    "meta.v1.Time": moment,
    "runtime.RawExtension": lambda value: {"raw": value},
    "util.intstr.IntOrString": int_or_string,
}
BYTES: dict[str, Callable[[Any], bytes]] = {
    "string": str.encode,
    "bytes": b64decode,
    "json": orjson.dumps,
}


@cache
def names(message: str) -> tuple[str, ...]:
    """The fields of a message as JSON shows them."""
    rows = messages.fields(message).values()
    return tuple(own for name, node in rows for own in ((name,) if name else names(str(node))))


def content(kind: str, value: Any) -> bytes:
    if kind in BYTES:
        return BYTES[kind](value)
    told = FIELDS[kind](value) if kind in FIELDS else value
    parts = []
    for number, (name, node) in messages.fields(kind).items():
        if not name:
            inner = {key: told[key] for key in names(str(node)) if key in told}
            parts.append(field(int(number), node, inner))
        elif name in told:
            parts.append(field(int(number), node, told[name]))
    return b"".join(parts)


def field(number: int, node: messages.Node, value: Any) -> bytes:
    if isinstance(node, str):
        return numeral(number, value) if node in NUMBERS else chunk(number, content(node, value))
    if "l" in node:
        return b"".join(field(number, node["l"], item) for item in value)
    pairs = ((field(1, "string", key), field(2, node["m"], item)) for key, item in value.items())
    return b"".join(chunk(number, key + item) for key, item in pairs)


def encode(message: str, obj: Object) -> bytes:
    return envelope(obj["apiVersion"], obj["kind"], content(message, obj))


def pod(spec: bytes) -> Object:
    """What a Pod with that spec has in it."""
    told: Object = decode(envelope("v1", "Pod", chunk(2, spec)))["spec"]
    return told


def meta(content: bytes) -> Object:
    """What a ConfigMap with that metadata has in it."""
    told: Object = decode(envelope("v1", "ConfigMap", chunk(1, content)))["metadata"]
    return told


# ---- bodies that kubectl sent, and what it shows as JSON of the same -----------------------------

SENT = {
    "create namespace team-a": (
        "azhzAAoPCgJ2MRIJTmFtZXNwYWNlEh4KFgoGdGVhbS1hEgAaACIAKgAyADgAQgASABoCCgAaACIA",
        '{"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "team-a", '
        '"creationTimestamp": null}, "spec": {}, "status": {}}',
    ),
    "create configmap mixed --from-file=bin.dat --from-literal=a=b": (
        "azhzAAoPCgJ2MRIJQ29uZmlnTWFwEi8KFQoFbWl4ZWQSABoAIgAqADIAOABCABIGCgFhEgFiGg4KB2Jpbi5kYXQSAw"
        "D/ARoAIgA=",
        '{"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "mixed", '
        '"creationTimestamp": null}, "data": {"a": "b"}, "binaryData": {"bin.dat": "AP8B"}}',
    ),
    "create job pi --image=perl -- perl -e 'print 1'": (
        "azhzAAoPCghiYXRjaC92MRIDSm9iEooBChIKAnBpEgAaACIAKgAyADgAQgASajJoChAKABIAGgAiACoAMgA4AEIAEl"
        "QSMQoCcGkSBHBlcmwaBHBlcmwaAi1lGgdwcmludCAxKgBCAGoAcgCAAQCIAQCQAQCiAQAaBU5ldmVyMgBCAEoAUgBY"
        "AGAAaACCAQCKAQCaAQDCAQAaCCAAKAAwADoAGgAiAA==",
        '{"kind": "Job", "apiVersion": "batch/v1", "metadata": {"name": "pi", '
        '"creationTimestamp": null}, "spec": {"template": {"metadata": {"creationTimestamp": '
        'null}, "spec": {"containers": [{"name": "pi", "image": "perl", "command": ["perl", '
        '"-e", "print 1"], "resources": {}}], "restartPolicy": "Never"}}}, "status": {}}',
    ),
    "create priorityclass high --value=1000 --description=d --preemption-policy=Never": (
        "azhzAAolChRzY2hlZHVsaW5nLms4cy5pby92MRINUHJpb3JpdHlDbGFzcxIlChQKBGhpZ2gSABoAIgAqADIAOABCAB"
        "DoBxgAIgFkKgVOZXZlchoAIgA=",
        '{"kind": "PriorityClass", "apiVersion": "scheduling.k8s.io/v1", "metadata": {"name": '
        '"high", "creationTimestamp": null}, "value": 1000, "description": "d", '
        '"preemptionPolicy": "Never"}',
    ),
}
DRAIN = "azhzAAoTCgJ2MRINRGVsZXRlT3B0aW9ucxIAGgAiAA=="
CAN_I = (
    "azhzAAoyChdhdXRob3JpemF0aW9uLms4cy5pby92MRIXU2VsZlN1YmplY3RBY2Nlc3NSZXZpZXcSPwoQCgASABoA"
    "IgAqADIAOABCABIhCh8KB2RlZmF1bHQSBmNyZWF0ZRoAIgAqBHBvZHMyADoAGggIABIAGgAgABoAIgA="
)
TOKEN = (
    "azhzAAooChhhdXRoZW50aWNhdGlvbi5rOHMuaW8vdjESDFRva2VuUmVxdWVzdBIdChAKABIAGgAiACoAMgA4AEIA"
    "EgMgkBwaBAoAEgAaACIA"
)


@pytest.mark.parametrize("command", SENT)
def test_what_kubectl_sends_means_what_it_shows(command: str) -> None:
    body, text = SENT[command]
    sent, shown = decode(b64decode(body)), orjson.loads(text)
    kind = schema(str(messages.message_name(sent["apiVersion"], sent["kind"])))
    assert list(sent)[:2] == ["apiVersion", "kind"]
    kind.conform(sent)
    kind.conform(shown)
    assert sent == shown


def test_what_is_present_is_kept_even_when_it_says_nothing() -> None:
    told = decode(b64decode(SENT["create namespace team-a"][0]))
    assert (told["spec"], told["status"]) == ({}, {"phase": ""})
    assert told["metadata"] == {
        "name": "team-a", "generateName": "", "namespace": "", "selfLink": "", "uid": "",
        "resourceVersion": "", "generation": 0, "creationTimestamp": None,
    }  # fmt: skip


def test_requests_that_are_no_objects_are_read_too() -> None:
    assert decode(b64decode(DRAIN)) == {"apiVersion": "v1", "kind": "DeleteOptions"}
    assert decode(b64decode(TOKEN))["spec"] == {"expirationSeconds": 3600}
    asked = decode(b64decode(CAN_I))["spec"]["resourceAttributes"]
    assert (asked["namespace"], asked["verb"], asked["resource"]) == ("default", "create", "pods")


# ---- bodies made by hand -------------------------------------------------------------------------

NAMESPACE = (
    b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09Namespace\x12\x17"
    b"\x0a\x15\x0a\x06team-a"  # metadata.name
    b"\x5a\x0b\x0a\x04tier\x12\x03gpu"  # metadata.labels
)
POD = (
    b"k8s\0\x0a\x09\x0a\x02v1\x12\x03Pod\x12\x4b"
    b"\x0a\x03\x0a\x01p"  # metadata.name
    b"\x12\x44\x12\x34\x0a\x01c\x12\x03img"  # spec.containers: name, image
    b"\x32\x08\x18\x90\x3f\x22\x03TCP"  # ports: containerPort, protocol
    b"\x42\x20\x0a\x0f\x0a\x06memory\x12\x05\x0a\x031Gi"  # resources.limits
    b"\x12\x0d\x0a\x03cpu\x12\x06\x0a\x04500m"  # resources.requests
    b"\x20\x1e"  # spec.terminationGracePeriodSeconds
    b"\xc8\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"  # spec.priority
)
JOB = (
    b"k8s\0\x0a\x0f\x0a\x08batch/v1\x12\x03Job\x12\x18"
    b"\x0a\x03\x0a\x01j"  # metadata.name
    b"\x12\x11\x08\x04\x10\x04\x38\x00"  # spec.parallelism, completions, backoffLimit
    b"\x4a\x07Indexed\x50\x01"  # spec.completionMode, suspend
)
CONFIG_MAP = (
    b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12\x19"
    b"\x0a\x03\x0a\x01m"  # metadata.name
    b"\x12\x06\x0a\x01a\x12\x01b"  # data
    b"\x1a\x08\x0a\x01k\x12\x03\x00\xff\x01"  # binaryData
    b"\x20\x01"  # immutable
)
DELETE_OPTIONS = (
    b"k8s\0\x0a\x19\x0a\x08batch/v1\x12\x0dDeleteOptions\x12\x1e"
    b"\x08\x00"  # gracePeriodSeconds
    b"\x12\x09\x0a\x03u-1\x12\x0242"  # preconditions: uid, resourceVersion
    b"\x22\x0aBackground"  # propagationPolicy
    b"\x2a\x03All"  # dryRun
)
LEASE = (
    b"k8s\0\x0a\x1f\x0a\x16coordination.k8s.io/v1\x12\x05Lease\x12\x12"
    b"\x12\x10\x0a\x01h\x10\x28"  # spec.holderIdentity, leaseDurationSeconds
    b"\x22\x09\x08\x80\xf2\xd6\xca\x06\x10\xe8\x07"  # spec.renewTime: seconds, nanos
)
BY_HAND = {
    NAMESPACE: '{"apiVersion": "v1", "kind": "Namespace",'
    ' "metadata": {"name": "team-a", "labels": {"tier": "gpu"}}}',
    POD: '{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": ['
    '{"name": "c", "image": "img", "ports": [{"containerPort": 8080, "protocol": "TCP"}],'
    ' "resources": {"limits": {"memory": "1Gi"}, "requests": {"cpu": "500m"}}}],'
    ' "terminationGracePeriodSeconds": 30, "priority": -1}}',
    JOB: '{"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {'
    '"parallelism": 4, "completions": 4, "backoffLimit": 0, "completionMode": "Indexed",'
    ' "suspend": true}}',
    CONFIG_MAP: '{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"},'
    ' "data": {"a": "b"}, "binaryData": {"k": "AP8B"}, "immutable": true}',
    DELETE_OPTIONS: '{"apiVersion": "batch/v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0,'
    ' "preconditions": {"uid": "u-1", "resourceVersion": "42"},'
    ' "propagationPolicy": "Background", "dryRun": ["All"]}',
    LEASE: '{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": {'
    '"holderIdentity": "h", "leaseDurationSeconds": 40,'
    ' "renewTime": "2026-01-01T00:00:00.000001Z"}}',
}


@pytest.mark.parametrize("body", BY_HAND, ids=lambda body: orjson.loads(BY_HAND[body])["kind"])
def test_a_body_made_by_hand_is_read(body: bytes) -> None:
    assert decode(body) == orjson.loads(BY_HAND[body])


# ---- how protobuf may say things -----------------------------------------------------------------


def test_what_is_not_known_is_stepped_over() -> None:
    strange = numeral(99, 2**63) + chunk(98, b"x") + b"\x85\x06abcd" + b"\x81\x06abcdefgh"
    assert meta(strange + chunk(1, b"n") + strange) == {"name": "n"}


def test_of_several_values_the_last_counts_but_objects_grow_together() -> None:
    halves = chunk(1, chunk(1, b"a") + chunk(3, b"ns")) + chunk(1, chunk(1, b"b"))
    told = decode(envelope("v1", "ConfigMap", halves))
    assert told["metadata"] == {"name": "b", "namespace": "ns"}


def test_numbers_have_a_sign_and_a_width() -> None:
    assert pod(numeral(4, -5) + numeral(25, 2**32 - 2)) == {
        "terminationGracePeriodSeconds": -5,
        "priority": -2,
    }
    assert pod(numeral(4, 2**63 - 1) + numeral(25, 2**33 + 7)) == {
        "terminationGracePeriodSeconds": 2**63 - 1,
        "priority": 7,
    }


def test_lists_of_numbers_may_be_packed() -> None:
    groups = numeral(4, 1) + chunk(4, varint(2) + varint(-3)) + numeral(4, 4)
    assert pod(chunk(14, groups)) == {"securityContext": {"supplementalGroups": [1, 2, -3, 4]}}


def test_entries_may_leave_out_key_and_value() -> None:
    assert meta(chunk(11, chunk(1, b"k")) + chunk(11, b"")) == {"labels": {"k": "", "": ""}}
    assert pod(chunk(32, chunk(1, b"cpu"))) == {"overhead": {"cpu": "0"}}
    extra = chunk(2, chunk(5, chunk(1, b"k")))
    review = decode(envelope("authorization.k8s.io/v1", "SubjectAccessReview", extra))
    assert review["spec"]["extra"] == {"k": []}


def test_a_field_without_a_name_is_part_of_its_holder() -> None:
    secret = chunk(6, chunk(1, b"s"))
    volume = chunk(1, b"v") + chunk(2, secret)
    assert pod(chunk(1, volume)) == {"volumes": [{"name": "v", "secret": {"secretName": "s"}}]}


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        (b"", None),
        (numeral(1, 0) + numeral(2, 0), "1970-01-01T00:00:00Z"),
        (numeral(1, -1), "1969-12-31T23:59:59Z"),
        (numeral(1, -62135596800), "0001-01-01T00:00:00Z"),
        (numeral(1, 1767225600) + numeral(2, 999_999_999), "2026-01-01T00:00:00Z"),
    ],
)
def test_a_time_is_whole_seconds_and_nothing_when_unset(fields: bytes, shown: str | None) -> None:
    assert meta(chunk(8, fields)) == {"creationTimestamp": shown}


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        (b"", 0),
        (numeral(2, 80) + chunk(3, b"http"), 80),
        (numeral(1, 1) + numeral(2, 80) + chunk(3, b"http"), "http"),
        (numeral(1, 1), ""),
    ],
)
def test_a_number_or_text_is_what_its_type_says(fields: bytes, shown: int | str) -> None:
    port = chunk(1, chunk(4, fields))
    told = decode(envelope("v1", "Service", chunk(2, port)))["spec"]
    assert told == {"ports": [{"targetPort": shown}]}


@pytest.mark.parametrize(("raw", "shown"), [(b"", None), (b'{"f:a":{}}', {"f:a": {}})])
def test_embedded_json_is_shown_as_it_is(raw: bytes, shown: Any) -> None:
    entry = chunk(7, chunk(1, raw))
    assert meta(chunk(17, entry)) == {"managedFields": [{"fieldsV1": shown}]}


def test_an_empty_envelope_is_read_as_far_as_it_goes() -> None:
    head = MAGIC + chunk(1, chunk(1, b"v1") + chunk(2, b"Pod"))
    assert decode(head) == {"apiVersion": "v1", "kind": "Pod"}


def test_no_field_can_pretend_another_kind() -> None:
    sly = envelope("v1", "ObjectReference", chunk(1, b"Pod") + chunk(3, b"n"))
    assert decode(sly) == {"apiVersion": "v1", "kind": "ObjectReference", "name": "n"}


# ---- what is refused -----------------------------------------------------------------------------

GOOD = envelope("v1", "ConfigMap", b"")


def nested(levels: int) -> bytes:
    """A Workload of groups in groups."""
    group = b""
    for _ in range(levels - 1):
        group = chunk(9, group)
    return envelope("scheduling.k8s.io/v1alpha3", "Workload", chunk(2, chunk(3, group)))


def managed(raw: bytes) -> bytes:
    """A ConfigMap with JSON in its managed fields."""
    return envelope("v1", "ConfigMap", chunk(1, chunk(17, chunk(7, chunk(1, raw)))))


TOO_LONG = "a field is longer than what it is part of"
TOO_DEEP = "the body is nested deeper than 100 levels"
REFUSED = (
    (b"", "the body does not begin with k8s and a zero byte"),
    (b'{"kind":"Pod"}', "the body does not begin with k8s and a zero byte"),
    (MAGIC, 'no message is known for kind "" of API version ""'),
    (envelope("v1", "Toy", b""), 'no message is known for kind "Toy" of API version "v1"'),
    (envelope("x/v1", "Job", b""), 'no message is known for kind "Job" of API version "x/v1"'),
    (GOOD + chunk(3, b"gzip"), 'the content encoding "gzip" is not known'),
    (GOOD + b"\x8a", TOO_LONG),
    (GOOD + b"\x0a", TOO_LONG),
    (GOOD + b"\x0a\x05abcd", TOO_LONG),
    (GOOD + b"\x79abcdefg", TOO_LONG),
    (GOOD + b"\x0a" + varint(2**64 - 1), TOO_LONG),
    (envelope("v1", "Pod", chunk(2, b"\x20\x80") + chunk(3, b"")), TOO_LONG),
    (envelope("v1", "Pod", chunk(2, chunk(14, chunk(4, b"\x80")))), TOO_LONG),
    (GOOD + b"\xff" * 10 + b"\x01", "a number has more than ten bytes"),
    (GOOD + b"\x02\x00", "a field has the number 0"),
    (GOOD + b"\x0b\x0c", "field 1 has the wrong wire type 3"),
    (GOOD + b"\x7b\x7c", "field 15 has the wrong wire type 3"),
    (GOOD + b"\x08\x01", "field 1 has the wrong wire type 0"),
    (envelope("v1", "ConfigMap", chunk(4, b"\x01")), "field 4 has the wrong wire type 2"),
    (envelope("v1", "ConfigMap", chunk(1, chunk(1, b"\xff"))), "a text is not UTF-8"),
    (
        envelope("v1", "Pod", chunk(1, chunk(8, numeral(1, 2**62)))),
        "a time is outside the years 1 to 9999",
    ),
    (
        envelope("v1", "Service", chunk(2, chunk(1, chunk(4, numeral(1, 2))))),
        "a value is neither a number nor a text",
    ),
    (managed(b"{"), "an embedded object is not JSON"),
    (managed(b'{"a":' * 2000 + b"0" + b"}" * 2000), "an embedded object is not JSON"),
    (managed(b"[" * 200 + b"]" * 200), TOO_DEEP),
    (nested(MAX_DEPTH), TOO_DEEP),
    (nested(2_000), TOO_DEEP),
)


@pytest.mark.parametrize(("body", "why"), REFUSED, ids=count())
def test_a_malformed_body_is_refused_in_one_sentence(body: bytes, why: str) -> None:
    with pytest.raises(BadProtobuf) as refused:
        decode(body)
    assert str(refused.value) == why


def test_up_to_the_limit_nesting_is_allowed() -> None:
    told: Any = decode(nested(MAX_DEPTH - 1))["spec"]
    for _ in range(MAX_DEPTH - 1):
        told = told["compositePodGroupTemplates"][0]
    assert told == {}
    decode(managed(b"[" * 90 + b"]" * 90))


# ---- the facts -----------------------------------------------------------------------------------

MESSAGES = orjson.loads((resources.files("phalanx.api") / "messages.json").read_bytes())
HEAD = ("apiVersion", "kind")


def told_by_schema(name: str) -> dict[str, Any] | None:
    """The fields of a definition without what protobuf does not tell; None if it has none."""
    try:
        node = definition(name)
    except UnknownDefinition:
        return None
    if isinstance(node, str):
        return None
    left_out = (*(HEAD if "g" in node else ()), *additions().get(name, ()))
    return {key: bare(inner) for key, inner in node["p"].items() if key not in left_out}


def bare(node: Any) -> Any:
    if isinstance(node, str):
        return node
    kind = next(key for key in "tlm" if key in node)
    inner = bare(node[kind])
    return inner if kind == "t" else {kind: inner}


def told_by_message(name: str) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for key, node in messages.fields(name).values():
        told.update({key: shown(node)} if key else told_by_message(str(node)))
    return told


def shown(node: messages.Node) -> Any:
    """A node as schemas have it: texts in a message of their own are a list."""
    if isinstance(node, dict):
        return {key: shown(inner) for key, inner in node.items()}
    return {"l": "string"} if MESSAGES.get(node) == {"1": ["items", {"l": "string"}]} else node


def test_messages_and_schemas_tell_the_same() -> None:
    both = {name: known for name in MESSAGES if (known := told_by_schema(name)) is not None}
    assert len(both) > 400
    assert {name: told_by_message(name) for name in both} == both


def test_every_reference_of_a_message_leads_somewhere() -> None:
    for name in MESSAGES:
        for _, node in messages.fields(name).values():
            item = node if isinstance(node, str) else node.get("l") or node["m"]
            assert ("." in item) == (item in MESSAGES), f"{name}: {item}"
    assert [name for name in FORMS if name not in MESSAGES] == []


def test_no_map_holds_numbers() -> None:
    nodes = [node for name in MESSAGES for _, node in messages.fields(name).values()]
    held = {node["m"] for node in nodes if isinstance(node, dict) and "m" in node}
    assert held.isdisjoint({"bool", "int32", "int64"})


@pytest.mark.parametrize(
    ("version", "kind", "name"),
    [
        ("v1", "Pod", "core.v1.Pod"),
        ("rbac.authorization.k8s.io/v1", "Role", "rbac.v1.Role"),
        ("batch/v1", "DeleteOptions", "meta.v1.DeleteOptions"),
        ("phalanx.dev/v1alpha1", "DeleteOptions", "meta.v1.DeleteOptions"),
        ("v2", "Pod", None),
        ("batch.example.com/v1", "Job", None),
    ],
)
def test_messages_are_found_by_version_and_kind(version: str, kind: str, name: str | None) -> None:
    assert messages.message_name(version, kind) == name


# ---- all that schemas allow ----------------------------------------------------------------------

INT32 = st.integers(-(2**31), 2**31 - 1)
TIMES = st.integers(-(10**10), 10**11).map(timestamp)
JSON = st.recursive(
    st.none() | st.booleans() | INT32 | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "string": st.text(max_size=4),
    "bool": st.booleans(),
    "int32": INT32,
    "int64": st.integers(-(2**63), 2**63 - 1),
    "bytes": st.binary(max_size=5).map(lambda content: b64encode(content).decode()),
    "time": TIMES,
    "microtime": st.builds("{:.19}.{:06}Z".format, TIMES, st.integers(0, 999_999)),
    "quantity": st.sampled_from(("0", "1500m", "-1", "4Gi", "1e3")),
    "int-or-string": INT32 | st.text(max_size=4),
    "opaque": st.dictionaries(st.text(max_size=3), JSON, max_size=2),
}
#: Objects in objects, no deeper than this.
DEPTH = 9


def drawn(draw: st.DrawFn, node: Node, depth: int) -> Any:
    kind = node if isinstance(node, str) else node.get("t", "")
    target = definition(kind) if is_reference(kind) else kind
    if isinstance(target, dict):
        ours = additions().get(kind, {})
        return struct(draw, {k: n for k, n in target["p"].items() if k not in ours}, depth)
    if target:
        return draw(SCALARS[target])
    assert isinstance(node, dict)
    if "l" in node:
        return [drawn(draw, node["l"], depth) for _ in range(draw(st.integers(1, 2)))]
    keys = draw(st.lists(st.text(max_size=3), min_size=1, max_size=2))
    return {key: drawn(draw, node["m"], depth) for key in keys}


def struct(draw: st.DrawFn, known: dict[str, Node], depth: int) -> Object:
    """A few fields, but more of them near the root."""
    if depth == DEPTH or not known:
        return {}
    some = st.lists(st.sampled_from(list(known)), max_size=max(2, 5 - depth), unique=True)
    return {name: drawn(draw, known[name], depth + 1) for name in draw(some)}


@st.composite
def objects(draw: st.DrawFn, name: str, version: str) -> Object:
    node = definition(name)
    assert isinstance(node, dict)
    known = {key: inner for key, inner in node["p"].items() if key not in HEAD}
    head = {"apiVersion": version, "kind": name.rpartition(".")[2]}
    return head | struct(draw, known, 0)


KINDS = {
    "batch.v1.Job": "batch/v1",
    "coordination.v1.Lease": "coordination.k8s.io/v1",
    "core.v1.ConfigMap": "v1",
    "core.v1.Event": "v1",
    "core.v1.Node": "v1",
    "core.v1.Pod": "v1",
    "resource.v1.ResourceClaim": "resource.k8s.io/v1",
    "scheduling.v1alpha3.CompositePodGroup": "scheduling.k8s.io/v1alpha3",
    "scheduling.v1alpha3.PodGroup": "scheduling.k8s.io/v1alpha3",
    "scheduling.v1alpha3.Workload": "scheduling.k8s.io/v1alpha3",
    "scheduling.v1beta1.PodGroup": "scheduling.k8s.io/v1beta1",
    "scheduling.v1beta1.Workload": "scheduling.k8s.io/v1beta1",
}


@given(st.data())
@pytest.mark.parametrize("name", KINDS)
def test_what_is_written_is_read_again(name: str, data: st.DataObject) -> None:
    obj = data.draw(objects(name, KINDS[name]))
    assert decode(encode(name, obj)) == obj


# ---- broken bodies -------------------------------------------------------------------------------

BODIES = (*BY_HAND, *(b64decode(body) for body, _ in SENT.values()), nested(3), managed(b"{}"))
EDITS = st.tuples(
    st.sampled_from(("set", "cut", "add")), st.integers(0, 400), st.binary(max_size=3)
)


def broken(body: bytes, edits: list[tuple[str, int, bytes]]) -> bytes:
    for how, at, some in edits:
        at %= len(body) + 1
        rest = {"set": at + len(some), "cut": at + 1 + len(some), "add": at}[how]
        body = body[:at] + (b"" if how == "cut" else some) + body[rest:]
    return body


def is_read_or_refused(body: bytes) -> bool:
    try:
        return orjson.dumps(decode(body)) != b""
    except BadProtobuf as error:
        return str(error) != ""


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_a_body_that_ends_early_is_read_or_refused(body: bytes) -> None:
    assert all(is_read_or_refused(body[:end]) for end in range(len(body)))


@settings(max_examples=400)
@given(st.sampled_from(BODIES), st.lists(EDITS, min_size=1, max_size=4))
def test_a_broken_body_is_read_or_refused(body: bytes, edits: list[tuple[str, int, bytes]]) -> None:
    assert is_read_or_refused(broken(body, edits))


@given(st.sampled_from(sorted(KINDS.items())), st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(kind: tuple[str, str], raw: bytes) -> None:
    name, version = kind
    assert is_read_or_refused(envelope(version, name.rpartition(".")[2], raw))
