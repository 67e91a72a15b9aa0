"""Properties of protobuf bodies: round trips of generated objects, corrupt bodies."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.api.definitions import SchemaNode, definition, is_reference, load_additions
from phalanx.api.meta import timestamp
from phalanx.api.protobuf import BadProtobuf, decode
from phalanx.api.wire import Object
from tests.api.protobuf_bodies import HANDWRITTEN_BODIES, KUBECTL_BODIES
from tests.api.protobuf_encoder import (
    TYPE_META_FIELDS,
    config_map_with_managed_fields,
    encode,
    encode_envelope,
    nested_workload,
)

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
    "any": st.dictionaries(st.text(max_size=3), JSON, max_size=2),
}
#: The depth limit of generated objects.
DEPTH = 9


def draw_node(draw: st.DrawFn, node: SchemaNode, depth: int) -> Any:
    kind = node if isinstance(node, str) else node.get("t", "")
    target = definition(kind) if is_reference(kind) else kind
    if isinstance(target, dict):
        ours = load_additions().get(kind, {})
        return draw_struct(draw, {k: n for k, n in target["p"].items() if k not in ours}, depth)
    if target:
        return draw(SCALARS[target])
    assert isinstance(node, dict)
    if "l" in node:
        return [draw_node(draw, node["l"], depth) for _ in range(draw(st.integers(1, 2)))]
    keys = draw(st.lists(st.text(max_size=3), min_size=1, max_size=2))
    return {key: draw_node(draw, node["m"], depth) for key in keys}


def draw_struct(draw: st.DrawFn, known: dict[str, SchemaNode], depth: int) -> Object:
    """Draw some fields, more of them near the root."""
    if depth == DEPTH or not known:
        return {}
    some = st.lists(st.sampled_from(list(known)), max_size=max(2, 5 - depth), unique=True)
    return {name: draw_node(draw, known[name], depth + 1) for name in draw(some)}


@st.composite
def objects(draw: st.DrawFn, name: str, version: str) -> Object:
    node = definition(name)
    assert isinstance(node, dict)
    known = {key: inner for key, inner in node["p"].items() if key not in TYPE_META_FIELDS}
    head = {"apiVersion": version, "kind": name.rpartition(".")[2]}
    return head | draw_struct(draw, known, 0)


KINDS = {
    "batch.v1.Job": "batch/v1",
    "coordination.v1.Lease": "coordination.k8s.io/v1",
    "core.v1.ConfigMap": "v1",
    "discovery.v1.EndpointSlice": "discovery.k8s.io/v1",
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
def test_decoding_reverses_encoding(name: str, data: st.DataObject) -> None:
    obj = data.draw(objects(name, KINDS[name]))
    assert decode(encode(name, obj)) == obj


# ---- broken bodies -------------------------------------------------------------------------------

BODIES = (
    *HANDWRITTEN_BODIES,
    *(b64decode(body) for body, _ in KUBECTL_BODIES.values()),
    nested_workload(3),
    config_map_with_managed_fields(b"{}"),
)
EDITS = st.tuples(
    st.sampled_from(("set", "cut", "add")), st.integers(0, 400), st.binary(max_size=3)
)


def corrupt(body: bytes, edits: list[tuple[str, int, bytes]]) -> bytes:
    for how, at, some in edits:
        at %= len(body) + 1
        rest = {"set": at + len(some), "cut": at + 1 + len(some), "add": at}[how]
        body = body[:at] + (b"" if how == "cut" else some) + body[rest:]
    return body


def is_decoded_or_refused(body: bytes) -> bool:
    try:
        return orjson.dumps(decode(body)) != b""
    except BadProtobuf as error:
        return str(error) != ""


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_truncated_body_is_decoded_or_refused(body: bytes) -> None:
    assert all(is_decoded_or_refused(body[:end]) for end in range(len(body)))


@settings(max_examples=400)
@given(st.sampled_from(BODIES), st.lists(EDITS, min_size=1, max_size=4))
def test_corrupt_body_is_decoded_or_refused(
    body: bytes, edits: list[tuple[str, int, bytes]]
) -> None:
    assert is_decoded_or_refused(corrupt(body, edits))


@given(st.sampled_from(sorted(KINDS.items())), st.binary(max_size=60))
def test_any_bytes_are_decoded_or_refused(kind: tuple[str, str], raw: bytes) -> None:
    name, version = kind
    assert is_decoded_or_refused(encode_envelope(version, name.rpartition(".")[2], raw))
