"""Replies in protobuf: what a client decodes equals the object in JSON."""

from __future__ import annotations

import json
from contextlib import aclosing
from pathlib import Path

import orjson
import pytest
import yaml

from phalanx.api.kinds import POD, SELF_SUBJECT_ACCESS_REVIEW
from phalanx.api.protobuf import decode, message_name
from phalanx.api.protobuf_encoder import encode, encode_event
from phalanx.api.wire import Object, Reply, Request, StreamReply
from phalanx.server.security.authorization import ADMIN
from tests.api.test_kubernetes_testdata import PATHS
from tests.builders import in_virtual_time, pod
from tests.server.api import Api

PROTOBUF = "application/vnd.kubernetes.protobuf"
METADATA = "as=PartialObjectMetadata;g=meta.k8s.io;v=v1"


@pytest.mark.parametrize("path", PATHS, ids=[path.stem for path in PATHS])
def test_every_field_survives_protobuf(path: Path) -> None:
    obj: Object = json.loads(path.read_text())
    encoded = encode(obj)
    assert encoded is not None
    assert decode(encoded) == obj


def test_a_kind_without_a_message_is_not_encoded() -> None:
    assert encode({"apiVersion": "example.com/v1", "kind": "Widget"}) is None


def test_extreme_values_survive_protobuf() -> None:
    meta = {
        "name": "é" * 200,
        "generation": -1,
        "creationTimestamp": "1969-12-31T23:59:59Z",
        "labels": {"b": "", "a": "x"},
        "managedFields": [{"fieldsV1": {"f:a": {}}}],
    }
    obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "binaryData": {"a": "AAE="}}
    encoded = encode(obj)
    assert encoded is not None
    assert decode(encoded) == obj


async def get(api: Api, path: str, accept: str, query: str = "") -> Reply | StreamReply:
    return await api.server.handle(Request("GET", path, query, {"accept": accept}, b"", ADMIN))


@in_virtual_time
async def test_objects_and_lists_are_served_as_protobuf() -> None:
    api = await Api.start()
    (made,) = await api.create(POD, pod("a"))
    one = await get(api, POD.url_path("default", "a"), PROTOBUF)
    assert isinstance(one, Reply)
    assert (one.content_type, decode(one.body)) == (PROTOBUF, made)
    several = await get(api, POD.url_path("default"), f"{PROTOBUF},application/json")
    assert isinstance(several, Reply)
    (item,) = decode(several.body)["items"]
    assert item["metadata"] == made["metadata"]
    bare = await get(api, POD.url_path("default", "a"), f"{PROTOBUF};{METADATA}")
    assert isinstance(bare, Reply)
    assert decode(bare.body)["metadata"] == made["metadata"]


@in_virtual_time
async def test_a_kind_without_a_message_is_served_as_json_or_not_at_all() -> None:
    api = await Api.start()
    path = "/apis/jobset.x-k8s.io/v1alpha2/jobsets"
    reply = await get(api, path, f"{PROTOBUF},application/json")
    assert (reply.code, reply.content_type) == (200, "application/json")
    assert (await get(api, path, PROTOBUF)).code == 406
    watch = "watch=true&timeoutSeconds=1"
    assert (await get(api, path, PROTOBUF, watch)).code == 406
    stream = await get(api, path, f"{PROTOBUF},application/json", watch)
    assert isinstance(stream, StreamReply)
    await stream.chunks.aclose()
    assert stream.content_type == "application/json"


@in_virtual_time
async def test_watch_events_are_frames() -> None:
    api = await Api.start()
    (made,) = await api.create(POD, pod("a"))
    stream = await get(api, POD.url_path("default"), PROTOBUF, "watch=true&timeoutSeconds=1")
    assert isinstance(stream, StreamReply)
    assert stream.content_type == f"{PROTOBUF};stream=watch"
    async with aclosing(stream.chunks) as chunks:
        content = b"".join([chunk async for chunk in chunks])
    line = orjson.dumps({"type": "ADDED", "object": made})
    assert content == encode_event(line)
    assert int.from_bytes(content[:4], "big") == len(content) - 4
    assert message_name("v1", "WatchEvent") == "meta.v1.WatchEvent"


def test_a_definition_survives_protobuf() -> None:
    schema = {
        "type": "object",
        "$schema": "s",
        "minimum": 1,
        "maximum": 0.5,
        "x-kubernetes-preserve-unknown-fields": True,
        "x-kubernetes-list-map-keys": ["a"],
        "default": {"a": [None, 1]},
        "enum": ["red", 3],
        "items": {"type": "string"},
        "additionalProperties": False,
        "properties": {"a": {"items": [{"type": "string"}], "additionalProperties": {"type": "x"}}},
        "dependencies": {"a": ["b"], "c": {"type": "object"}},
    }
    versions = [{"name": "v1", "served": True, "schema": {"openAPIV3Schema": schema}}]
    obj = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "versions": versions},
    }
    encoded = encode(obj)
    assert encoded is not None
    assert decode(encoded) == obj


@in_virtual_time
async def test_errors_and_reviews_have_the_media_type_that_the_client_prefers() -> None:
    api = await Api.start()
    review = {"spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}}
    for method, path, body, code in (
        ("GET", POD.url_path("default", "none"), b"", 404),
        ("POST", SELF_SUBJECT_ACCESS_REVIEW.url_path(), orjson.dumps(review), 201),
    ):
        plain = await api.ask(method, path, body)
        encoded = await api.ask(method, path, body, headers={"accept": PROTOBUF})
        assert (encoded.code, encoded.kind, decode(encoded.text)) == (code, PROTOBUF, plain.body)
        shown = await api.ask(method, path, body, headers={"accept": "application/yaml"})
        assert (shown.code, shown.kind) == (code, "application/yaml")
        assert yaml.safe_load(shown.text) == plain.body
    # A Table has no message, and the error that says so is JSON.
    table = f"{PROTOBUF};as=Table;g=meta.k8s.io;v=v1"
    refused = await api.ask("GET", POD.url_path("default"), headers={"accept": table})
    assert (refused.code, refused.body["reason"]) == (406, "NotAcceptable")
