"""Bodies, patches, selectors, rules and tokens at their limits: none stalls the event loop.

Each row is the most expensive known input of its format that is not refused for its size alone, and
the same beyond the limit.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import orjson
import pytest
import yaml

from phalanx.api.kinds import CONFIG_MAP, CUSTOM_RESOURCE_DEFINITION, NODE, POD, RESOURCE_QUOTA
from phalanx.api.patch import MAX_OPERATIONS, MAX_PATH_LEVELS, apply_patch
from phalanx.api.protobuf import MAGIC
from phalanx.api.schema import schema
from phalanx.api.selectors import MAX_LENGTH
from phalanx.api.wire import APPLY_PATCH, JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, Object
from phalanx.server.request_bodies import MAX_METADATA_VALUES, MAX_NAME_LENGTH, MAX_OBJECT_VALUES
from phalanx.server.serialization import (
    MAX_BODY_BYTES,
    MAX_BODY_VALUES,
    MAX_YAML_BYTES,
    PROTOBUF,
    YAML,
)
from tests.api.custom_resource_definitions import (
    custom_resource_definition,
    resource_schema,
    served_version,
)
from tests.builders import in_virtual_time, pod
from tests.loop_stalls import measure_stall
from tests.server.api import Api, ApiResponse
from tests.server.widget_fixtures import WIDGETS, api_with_widgets

MAPS, PODS, NODES = CONFIG_MAP.url_path("default"), POD.url_path("default"), NODE.url_path()
BIG = CONFIG_MAP.url_path("default", "big")
NAMED = b'{"metadata":{"name":"a"},'
CONTAINER = b'"spec":{"containers":[{"name":"c","image":"i"'


def items(
    opening: bytes,
    item: bytes,
    closing: bytes,
    *,
    values: int,
    limit: int = MAX_OBJECT_VALUES - 50,
    size: int = MAX_BODY_BYTES,
    separator: bytes = b",",
) -> bytes:
    """A body with as many items as the limits of values and bytes allow; %d is their number."""
    count = limit // values
    if (room := size - len(opening) - len(closing)) < count * (len(item) + 6):
        count = room // (len(item) + 6)
    numbers = item.count(b"%d")
    return opening + separator.join(item % ((n,) * numbers) for n in range(count)) + closing


class Body(NamedTuple):
    """A body for a new object, and the code of the reply."""

    path: str
    body: bytes
    code: int
    media: str = "application/json"


BODIES = {
    # Syntax and structure of JSON
    "unterminated string below brackets": Body(MAPS, b"[" * 300 + b'"' + b'\\"' * 40_000, 400),
    "escaped quotes": Body(MAPS, b"[" * 300 + b'"\\" ' * 700_000, 400),
    "brackets": Body(MAPS, b"[" * MAX_BODY_BYTES, 400),
    "empty lists": Body(MAPS, b"[" + b"[]," * (MAX_BODY_BYTES // 3 - 2), 413),
    "empty strings": Body(MAPS, b"[" + b'"",' * (MAX_BODY_BYTES // 3 - 2), 413),
    "many values": Body(
        MAPS, NAMED + b'"x":[' + b",".join([b"{}"] * (MAX_BODY_VALUES - 20)) + b"]}", 413
    ),
    "unknown fields": Body(MAPS, items(NAMED, b'"x%d":1', b"}", values=1), 201),
    "unknown fields of many items": Body(
        PODS, items(NAMED + b'"spec":{"containers":[', b'{"x":1}', b"]}}", values=2), 422
    ),
    "unknown fields behind a long key": Body(
        MAPS,
        items(b'{"%s":[' % (b"x" * 10**6), b"[]", b'],"metadata":{"name":"a","x":1}}', values=1),
        413,
    ),
    "duplicate fields": Body(
        MAPS, NAMED + b",".join([b'"x" :1'] * (MAX_BODY_VALUES // 2)) + b"}", 201
    ),
    "one string": Body(MAPS, NAMED + b'"x":"' + b"a" * (MAX_BODY_BYTES - 50) + b'"}', 201),
    # JSON: objects of many fields or items
    "data": Body(MAPS, items(NAMED + b'"data":{', b'"k%d":""', b"}}", values=1), 201),
    "finalizers": Body(
        MAPS,
        items(
            b'{"metadata":{"name":"a","finalizers":[', b'"a/k%d"', b"]}}",
            values=1, limit=MAX_METADATA_VALUES - 50,
        ),
        201,
    ),
    "owners without fields": Body(
        MAPS,
        items(
            b'{"metadata":{"name":"a","ownerReferences":[', b"{}", b"]}}",
            values=1, limit=MAX_METADATA_VALUES - 50,
        ),
        422,
    ),
    "containers": Body(
        PODS,
        items(NAMED + b'"spec":{"containers":[', b'{"name":"c%d","image":"i"}', b"]}}", values=3),
        201,
    ),
    "containers without fields": Body(
        PODS, items(NAMED + b'"spec":{"containers":[', b"{}", b"]}}", values=1), 422
    ),
    "devices without fields": Body(
        PODS, items(NAMED + CONTAINER + b',"volumeDevices":[', b"{}", b"]}]}}", values=1), 422
    ),
    "ports": Body(
        PODS,
        items(NAMED + CONTAINER + b',"ports":[', b'{"containerPort":%d}', b"]}]}}", values=2),
        422,
    ),
    "resources": Body(
        PODS,
        items(NAMED + CONTAINER + b',"resources":{"limits":{', b'"a.b/k%d":1', b"}}}]}}", values=1),
        201,
    ),
    "taints": Body(
        NODES,
        items(NAMED + b'"spec":{"taints":[', b'{"key":"a%d","effect":"NoExecute"}', b"]}}",
              values=3),
        201,
    ),
    "scopes": Body(
        RESOURCE_QUOTA.url_path("default"),
        items(NAMED + b'"spec":{"scopes":[', b'"x%d"', b"]}}", values=1),
        422,
    ),
    # YAML
    "YAML of empty items": Body(
        MAPS, b"metadata: {name: a}\nx:\n" + b"- \n" * (MAX_YAML_BYTES // 3 - 10), 400, YAML
    ),
    "YAML in flow style": Body(MAPS, b"[" + b"a," * (MAX_YAML_BYTES // 2 - 2) + b"]", 400, YAML),
    "YAML below brackets": Body(MAPS, b"[" * 240 + b"a," * (MAX_YAML_BYTES // 2 - 200), 400, YAML),
    "YAML brackets": Body(MAPS, b"[" * MAX_YAML_BYTES, 400, YAML),
    "YAML keys": Body(
        MAPS,
        items(b"metadata: {name: a}\ndata:\n", b'  k%d: ""', b"\n", values=2, size=MAX_YAML_BYTES,
              separator=b"\n"),
        201,
        YAML,
    ),
    "YAML merges": Body(
        MAPS,
        b"metadata: {name: a}\nx: &x {"
        + b", ".join(b"k%d: 1" % n for n in range(15_000))
        + b"}\ny: {<<: ["
        + b", ".join([b"*x"] * 90)
        + b"]}\n",
        400,
        YAML,
    ),
    "YAML over its limit": Body(MAPS, b"a: " + b"x" * MAX_YAML_BYTES, 413, YAML),
}  # fmt: skip


def protobuf_field(number: int, content: bytes) -> bytes:
    """A field with a length."""
    size, left = b"", len(content)
    while left > 0x7F:
        size, left = size + bytes([left & 0x7F | 0x80]), left >> 7
    return bytes([number << 3 | 2]) + size + bytes([left]) + content


def protobuf_pod(spec: bytes) -> bytes:
    type_meta = protobuf_field(1, b"v1") + protobuf_field(2, b"Pod")
    return MAGIC + protobuf_field(1, type_meta) + protobuf_field(2, protobuf_field(2, spec))


BODIES |= {
    "protobuf of empty containers": Body(
        PODS, protobuf_pod(b"\x12\x00" * (MAX_BODY_BYTES // 2 - 50)), 400, PROTOBUF
    ),
    "protobuf within the limit": Body(
        PODS, protobuf_pod(b"\x12\x00" * MAX_OBJECT_VALUES), 413, PROTOBUF
    ),
}


async def assert_no_stall(
    request: Callable[[Api], Awaitable[ApiResponse]],
    *codes: int,
    prepare: Callable[[], Awaitable[Api]] = Api.start,
) -> None:
    answer, stall = await measure_stall(request, prepare)
    assert answer.code in codes, answer.text[:500]
    assert stall.is_accepted, stall


@pytest.mark.mostly_slow(quick_every=3)
@pytest.mark.parametrize("name", BODIES)
@in_virtual_time
async def test_no_body_stalls_the_event_loop(name: str) -> None:
    row = BODIES[name]
    headers = {"content-type": row.media}
    await assert_no_stall(
        lambda api: api.ask("POST", row.path, row.body, headers=headers), row.code
    )


# ---- patches -------------------------------------------------------------------------------------


async def api_with_big_config_map(values: int = MAX_OBJECT_VALUES // 2) -> Api:
    api = await Api.start()
    await api.create(
        CONFIG_MAP,
        {
            "metadata": {"name": "big", "namespace": "default", "finalizers": ["a/b"]},
            "data": {f"k{n}": "" for n in range(values)},
        },
    )
    return api


def operations(operation: Object, *, count: int = MAX_OPERATIONS) -> bytes:
    return orjson.dumps([operation] * count)


DEEP_PATHS = [
    {"op": "add", "path": "/x" * level, "value": {}} for level in range(1, MAX_PATH_LEVELS // 100)
]
PATCHES: dict[str, tuple[str, bytes, int]] = {
    "tests": (JSON_PATCH, operations({"op": "test", "path": "/data/k7", "value": ""}), 200),
    "replacements": (
        JSON_PATCH, operations({"op": "replace", "path": "/data/k7", "value": "x"}), 200
    ),
    "copies of a field": (
        JSON_PATCH, operations({"op": "copy", "from": "/data/k1", "path": "/data/k2"}), 200
    ),
    "copies of all": (JSON_PATCH, operations({"op": "copy", "from": "/data", "path": "/x"}), 413),
    "moves": (JSON_PATCH, operations({"op": "move", "from": "/data/k1", "path": "/data/k1"}), 200),
    "deep paths": (JSON_PATCH, orjson.dumps(DEEP_PATHS), 413),
    "long list": (
        JSON_PATCH,
        orjson.dumps([
            {"op": "replace", "path": "/metadata/finalizers", "value": ["a/b"] * 2_000},
            *[{"op": "add", "path": "/metadata/finalizers/0", "value": "a/b"}] * 9_000,
        ]),
        200,
    ),
    "removals": (MERGE_PATCH, items(b'{"data":{', b'"m%d":null', b"}}", values=1), 200),
    "additions": (
        MERGE_PATCH, items(b'{"data":{', b'"m%d":""', b"}}", values=1, limit=12_000), 200
    ),
    "too many additions": (
        MERGE_PATCH,
        items(b'{"data":{', b'"m%d":""', b"}}", values=1, limit=MAX_BODY_VALUES - 9),
        413,
    ),
    "deleted items": (
        STRATEGIC_PATCH,
        items(b'{"metadata":{"$deleteFromPrimitiveList/finalizers":[', b'"%d"', b"]}}", values=1,
              limit=MAX_BODY_VALUES - 9),
        200,
    ),
    "retained keys": (
        STRATEGIC_PATCH,
        items(b'{"data":{"$retainKeys":[', b'"k%d"', b"]}}", values=1, limit=MAX_BODY_VALUES - 9),
        200,
    ),
    "united items": (
        STRATEGIC_PATCH,
        items(b'{"metadata":{"finalizers":[', b'"a/f%d"', b"]}}", values=1, limit=12_000),
        200,
    ),
}  # fmt: skip


@pytest.mark.mostly_slow(quick_every=3)
@pytest.mark.parametrize("name", PATCHES)
@in_virtual_time
async def test_no_patch_stalls_the_event_loop(name: str) -> None:
    media, body, code = PATCHES[name]
    headers = {"content-type": media}
    await assert_no_stall(
        lambda api: api.ask("PATCH", BIG, body, headers=headers),
        code,
        prepare=api_with_big_config_map,
    )


@in_virtual_time
async def test_a_patch_may_order_8000_items() -> None:
    """The bound is 100 ms, for a patch that changes and reverses the whole list."""
    owners = [
        {"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": f"u{n}"} for n in range(8_000)
    ]
    wanted = [{**owner, "name": "b"} for owner in reversed(owners)]
    change = {
        "ownerReferences": wanted,
        "$setElementOrder/ownerReferences": [{"uid": owner["uid"]} for owner in wanted],
    }

    async def prepare() -> Object:
        return {"metadata": {"name": "a", "ownerReferences": [dict(owner) for owner in owners]}}

    async def reorder(obj: Object) -> Object:
        return apply_patch(
            STRATEGIC_PATCH, schema("core.v1.ConfigMap"), obj, patch={"metadata": change}
        )

    result, stall = await measure_stall(reorder, prepare, bound=0.1)
    assert result["metadata"]["ownerReferences"] == wanted
    assert stall.is_accepted, stall


@in_virtual_time
async def test_an_object_may_have_8000_owners_in_any_order() -> None:
    owner = b'{"apiVersion":"v1","kind":"Pod","name":"a","uid":"u%d"}'
    body = items(
        b'{"metadata":{"name":"a","ownerReferences":[', owner, b"]}}", values=5, limit=40_000
    )
    order = items(b'{"metadata":{"$setElementOrder/ownerReferences":[', b'{"uid":"u%d"}', b"]}}",
                  values=1, limit=8_000)  # fmt: skip

    async def prepare() -> Api:
        api = await Api.start()
        assert (await api.ask("POST", MAPS, body)).code == 201
        return api

    headers = {"content-type": STRATEGIC_PATCH}
    await assert_no_stall(
        lambda api: api.ask("PATCH", f"{MAPS}/a", order, headers=headers), 200, prepare=prepare
    )


APPLIED = b'{"apiVersion":"v1","kind":"%s","metadata":{"name":"big"'
CONFIGURATIONS = {
    "data": (BIG, items(APPLIED % b"ConfigMap" + b'},"data":{', b'"key%d":""', b"}}", values=1)),
    "finalizers": (
        BIG,
        items(APPLIED % b"ConfigMap" + b',"finalizers":[', b'"a/k%d"', b"]}}", values=1),
    ),
    "containers": (
        POD.url_path("default", "big"),
        items(APPLIED % b"Pod" + b'},"spec":{"containers":[', b'{"name":"c%d","image":"i"}', b"]}}",
              values=3),
    ),
}  # fmt: skip


@pytest.mark.mostly_slow(quick_every=3)
@pytest.mark.parametrize("name", CONFIGURATIONS)
@in_virtual_time
async def test_no_applied_configuration_stalls_the_event_loop(name: str) -> None:
    path, body = CONFIGURATIONS[name]

    def apply(body: bytes, manager: str = "one") -> Callable[[Api], Awaitable[ApiResponse]]:
        headers, query = {"content-type": APPLY_PATCH}, {"fieldManager": manager}
        return lambda api: api.ask("PATCH", path, body, headers=headers, query=query)

    async def api_with_applied_object() -> Api:
        api = await Api.start()
        assert (await apply(body)(api)).code == 201
        return api

    await assert_no_stall(apply(body), 201)
    if name == "data":
        others, prepare = body.replace(b'"key', b'"new'), api_with_applied_object
        await assert_no_stall(apply(others), 200, prepare=prepare)
        await assert_no_stall(apply(body.replace(b'""', b'"x"'), "two"), 409, prepare=prepare)


@in_virtual_time
async def test_json_sent_as_apply_patch_may_be_larger_than_yaml() -> None:
    api = await Api.start()
    query, headers = {"fieldManager": "m"}, {"content-type": APPLY_PATCH}
    data = {"x": "y" * (2 * MAX_YAML_BYTES)}
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "big"}, "data": data}
    answer = await api.ask("PATCH", BIG, config, headers=headers, query=query)
    assert (answer.code, answer.body["data"]) == (201, data)
    text = yaml.safe_dump(config).encode()
    refused = await api.ask("PATCH", BIG, text, headers=headers, query=query)
    assert refused.code == 413
    assert str(MAX_YAML_BYTES) in refused.body["message"]


@in_virtual_time
async def test_patches_and_configurations_cannot_grow_an_object_beyond_its_limit() -> None:
    api = await api_with_big_config_map()
    finalizers = {"metadata": {"finalizers": [f"a/f{n}" for n in range(MAX_METADATA_VALUES)]}}
    assert (await api.patch(CONFIG_MAP, "big", finalizers)).code == 413
    data = {"data": {f"k{n}": "" for n in range(MAX_OBJECT_VALUES + 1)}}
    assert (await api.patch(CONFIG_MAP, "big", data)).code == 413
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "big"},
        "data": {f"more{n}": "" for n in range(MAX_OBJECT_VALUES // 2)},
    }
    headers, query = {"content-type": APPLY_PATCH}, {"fieldManager": "m"}
    answer = await api.ask("PATCH", BIG, config, headers=headers, query=query)
    assert answer.code == 413


# ---- reads ---------------------------------------------------------------------------------------

SELECTORS: dict[str, Object] = {
    "label values": {"labelSelector": f"a in ({','.join(f'k{n}' for n in range(1400))})"},
    "absent labels": {"labelSelector": ",".join(f"!k{n}" for n in range(1400))},
    "field selector": {"fieldSelector": ",".join(f"metadata.name!=k{n}" for n in range(400))},
    "continue token": {"limit": 1, "continue": "A" * 8000},
    "parentheses": {"labelSelector": "a in (" + "(" * (MAX_LENGTH - 10)},
}


@pytest.mark.parametrize("name", SELECTORS)
@in_virtual_time
async def test_no_query_stalls_the_event_loop(name: str) -> None:
    query = SELECTORS[name]

    async def api_with_pods() -> Api:
        api = await Api.start()
        await api.create(POD, *(pod(f"p{n}", meta={"labels": {"a": "b"}}) for n in range(500)))
        return api

    await assert_no_stall(
        lambda api: api.ask("GET", PODS, query=query), 200, 400, prepare=api_with_pods
    )


@pytest.mark.mostly_slow(quick_every=2)
@pytest.mark.parametrize("accept", ["application/yaml", "application/yaml;as=Table;v=v1"])
@in_virtual_time
async def test_a_list_of_thousands_as_yaml_does_not_stall_the_event_loop(accept: str) -> None:
    api = await Api.start()
    strange = "é\x7f\u2028\x85\ufeff: #"
    await api.create(
        POD, *(pod(f"p{n}", meta={"annotations": {"a": strange}}) for n in range(1500))
    )

    async def prepare() -> Api:
        return api

    answer, stall = await measure_stall(
        lambda api: api.ask("GET", PODS, headers={"accept": accept}), prepare
    )
    assert stall.is_accepted, stall
    json_accept = accept.replace("yaml", "json")
    expected = await api.ask("GET", PODS, headers={"accept": json_accept}, query={"limit": 30})
    part = await api.ask("GET", PODS, headers={"accept": accept}, query={"limit": 30})
    assert len(part.text) > 2**15  # in flow style, like the long list
    assert yaml.load(part.text, Loader=yaml.CSafeLoader) == expected.body
    assert answer.text.count(strange.encode()[:2]) >= 1500


@in_virtual_time
async def test_a_large_object_as_yaml_does_not_stall_the_event_loop() -> None:
    headers = {"accept": "application/yaml"}
    await assert_no_stall(
        lambda api: api.ask("GET", BIG, headers=headers), 200, prepare=api_with_big_config_map
    )


# ---- rules of custom resources -------------------------------------------------------------------

RULES: dict[str, tuple[list[str], list[str]]] = {
    "nested loops": (["self.all(x, self.exists(y, y == -1) || true)"], []),
    "several nested loops": (["self.all(x, self.exists(y, y == -1) || true)"] * 4, []),
    "sets": (["self.all(x, sets.equivalent(self, self))"], []),
    "searches": (["self.all(x, string(x).matches('^(a+)+$') || true)"] * 4, []),
    "matches": (["self.map(x, string(x)).join(',').findAll('[0-9]').size() > 0"] * 4, []),
    "rules of items": ([], ["true"] * 50),
}


@pytest.mark.mostly_slow(quick_every=3)
@pytest.mark.parametrize("name", RULES)
@in_virtual_time
async def test_no_validation_rule_stalls_the_event_loop(name: str) -> None:
    of_list, of_items = ([{"rule": rule} for rule in rules] for rules in RULES[name])
    numbers = {
        "type": "array",
        "items": {"type": "integer", "x-kubernetes-validations": of_items},
        "x-kubernetes-validations": of_list,
    }
    version = served_version(schema=resource_schema(numbers=numbers))
    widget = {"metadata": {"name": "w"}, "spec": {"numbers": list(range(MAX_OBJECT_VALUES - 100))}}
    await assert_no_stall(
        lambda api: api.ask("POST", WIDGETS, widget),
        201,
        422,
        prepare=lambda: api_with_widgets(version),
    )


@pytest.mark.parametrize("name_length", [MAX_NAME_LENGTH, 10**6])
@pytest.mark.parametrize("part", ['"x%d":1', '"a%d":"b"'])
@in_virtual_time
async def test_no_errors_below_a_long_name_stall_the_event_loop(
    part: str, name_length: int
) -> None:
    numbers = {f"a{n}": {"type": "integer"} for n in range(500)}
    parts = {"type": "object", "additionalProperties": {"type": "object", "properties": numbers}}
    version = served_version(schema=resource_schema(parts=parts))
    opening = b'{"metadata":{"name":"w"},"spec":{"parts":{"%s":{' % (b"k" * name_length)
    body = items(opening, part.encode(), b"}}}}", values=1)
    is_unknown = part.startswith('"x')
    await assert_no_stall(
        lambda api: api.ask("POST", WIDGETS, body),
        413 if name_length > MAX_NAME_LENGTH else 201 if is_unknown else 422,
        prepare=lambda: api_with_widgets(version),
    )


@pytest.mark.parametrize(
    "rule", ["1" * 100_000 + " > 0", "(" * 90_000, "'" + "a" * 900_000 + "' == ''", "!" * 90_000]
)
@in_virtual_time
async def test_no_text_of_a_rule_stalls_the_event_loop(rule: str) -> None:
    number = {"type": "integer", "x-kubernetes-validations": [{"rule": rule}]}
    definition = custom_resource_definition(served_version(schema=resource_schema(size=number)))
    path = CUSTOM_RESOURCE_DEFINITION.url_path()
    await assert_no_stall(lambda api: api.ask("POST", path, definition), 201, 422)
