"""CustomResourceDefinitions of thousands of fields and rules do not stall the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from copy import deepcopy
from typing import Any, ParamSpec, TypeVar

import orjson
import pytest

from phalanx.api import protobuf_encoder
from phalanx.api.custom_resources.compiled_schemas import share_schema
from phalanx.api.kinds import CUSTOM_RESOURCE_DEFINITION
from phalanx.api.wire import APPLY_PATCH, MERGE_PATCH, Object
from phalanx.server.objects import encoder
from phalanx.server.serialization import PROTOBUF
from phalanx.store.kv import StoreWrite
from tests.api.custom_resource_definitions import (
    custom_resource_definition,
    object_schema,
    resource_schema,
    served_version,
)
from tests.loop_stalls import measure_stall
from tests.server.api import Api, ApiResponse
from tests.server.widget_fixtures import WIDGETS, codes, crd, widget
from tests.store.sqlite_stores import in_real_time

P = ParamSpec("P")
T = TypeVar("T")
Query = dict[str, str] | None

PATH = CUSTOM_RESOURCE_DEFINITION.url_path()
NAME = CUSTOM_RESOURCE_DEFINITION.url_path("", "widgets.example.com")
TEXT: Object = {"type": "string"}
MERGE = {"content-type": MERGE_PATCH}


def define_fields(count: int, *, name: str = "v1", **facts: Any) -> Object:
    fields = {f"p{at}": TEXT for at in range(count)}
    return served_version(name, resource_schema(**fields), **facts)


def define_rules(count: int, *, per_field: int) -> Object:
    fields = {
        f"p{first}": {
            "type": "integer",
            "x-kubernetes-validations": [
                {"rule": f"self > {at}"} for at in range(first, first + per_field)
            ],
        }
        for first in range(0, count, per_field)
    }
    return served_version(schema=resource_schema(**fields))


def define_levels(levels: int, fields: int) -> Object:
    schema = TEXT
    for _ in range(levels):
        schema = object_schema(a=schema, **{f"b{at}": TEXT for at in range(fields)})
    return served_version(schema=resource_schema(a=schema))


def make_definition(*versions: Object, **names: Any) -> Object:
    return custom_resource_definition(*versions, names=names or None)


DEFINITIONS: dict[str, Callable[[], list[Object]]] = {
    "60,000 fields": lambda: [define_fields(60_000)],
    "5,000 rules of a field": lambda: [define_rules(5_000, per_field=5_000)],
    "5,000 rules of 250 fields": lambda: [define_rules(5_000, per_field=20)],
    "70 levels": lambda: [define_levels(70, 200)],
    "100 versions": lambda: [
        define_fields(500 + at, name=f"v{at + 1}", storage=at == 0) for at in range(100)
    ],
}


class HeldExecutor(Executor):
    """Runs what it is given when a test says so."""

    def __init__(self) -> None:
        self.held: asyncio.Queue[Callable[[], None]] = asyncio.Queue()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        self.held.put_nowait(lambda: future.set_result(fn(*args, **kwargs)))
        return future

    async def run_next(self) -> None:
        """Wait until something is given, and run it."""
        (await self.held.get())()


async def assert_no_stall(
    request: Callable[[Api], Awaitable[ApiResponse]], prepare: Callable[[], Awaitable[Api]]
) -> None:
    answer, stall = await measure_stall(request, prepare)
    assert answer.code in (200, 201), answer.text[:500]
    assert stall.is_accepted, stall


@pytest.mark.slow
@pytest.mark.parametrize("name", DEFINITIONS)
@in_real_time
async def test_no_definition_stalls_the_event_loop(name: str) -> None:
    definition = make_definition(*DEFINITIONS[name]())
    body = orjson.dumps(definition)
    fields = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    fields["spec"]["properties"]["more"] = TEXT
    spec = orjson.dumps({"spec": definition["spec"]})
    apply = {"fieldManager": "m", "force": "true"}
    with ThreadPoolExecutor(1) as compiler:

        async def start() -> Api:
            return await Api.start(compiler=compiler)

        async def start_with_definition() -> Api:
            api = await start()
            assert (await api.ask("POST", PATH, body)).code == 201
            return api

        await assert_no_stall(lambda api: api.ask("POST", PATH, body), start)
        await assert_no_stall(
            lambda api: api.ask("PATCH", NAME, spec, headers=MERGE), start_with_definition
        )
        await assert_no_stall(
            lambda api: api.ask("POST", PATH, body, query={"dryRun": "All"}), start
        )
        await assert_no_stall(lambda api: api.ask("DELETE", NAME), start_with_definition)
        api = await start_with_definition()

        async def prepare() -> Api:
            return api

        headers = {"content-type": APPLY_PATCH}
        for request in (
            lambda api: api.ask("PATCH", NAME, body, headers=headers, query=apply),
            lambda api: api.ask("GET", NAME, headers={"accept": PROTOBUF}),
            lambda api: api.ask("GET", PATH, headers={"accept": PROTOBUF}),
            lambda api: api.ask("GET", WIDGETS),
            lambda api: api.ask("GET", "/openapi/v3/apis/example.com/v1"),
        ):
            await assert_no_stall(request, prepare)


@pytest.mark.slow
@pytest.mark.parametrize("query", [None, {"dryRun": "All"}], ids=["stored", "dry run"])
@in_real_time
async def test_no_definition_in_protobuf_stalls_the_event_loop(query: Query) -> None:
    """The definition has nearly as many fields as a protobuf body may have records."""
    body = protobuf_encoder.encode(make_definition(define_fields(24_500)))
    headers = {"content-type": PROTOBUF, "accept": PROTOBUF}
    with ThreadPoolExecutor(1) as compiler:
        await assert_no_stall(
            lambda api: api.ask("POST", PATH, body, headers=headers, query=query),
            lambda: Api.start(compiler=compiler),
        )


@in_real_time
async def test_other_requests_are_served_while_a_definition_is_checked() -> None:
    compiler = HeldExecutor()
    api = await Api.start(compiler=compiler)
    body = make_definition(define_rules(400, per_field=400))
    writing = asyncio.create_task(api.ask("POST", PATH, body))
    compile_schema = await compiler.held.get()
    assert codes(await api.ask("GET", "/api/v1/namespaces/default")) == [200]
    assert codes(await api.ask("GET", NAME), await api.ask("GET", WIDGETS)) == [404, 404]
    compile_schema()
    assert codes(await writing, await api.ask("GET", WIDGETS)) == [201, 200]
    valid = {**widget(), "spec": {"p0": 5_000}}
    invalid = {**widget("x"), "spec": {"p0": 7}}
    answers = [await api.ask("POST", WIDGETS, one) for one in (valid, invalid)]
    assert codes(*answers) == [201, 422]


@in_real_time
async def test_large_definition_is_compiled_only_when_its_schema_changes() -> None:
    compiler = HeldExecutor()
    api = await Api.start(compiler=compiler)
    writing = asyncio.create_task(api.ask("POST", PATH, make_definition(define_fields(1_200))))
    await compiler.run_next()
    assert codes(await writing) == [201]
    note = {"metadata": {"annotations": {"a": "b"}}}
    assert codes(await api.ask("PATCH", NAME, note, headers=MERGE)) == [200]
    assert codes(await api.ask("DELETE", NAME)) == [200]
    assert compiler.held.empty()


@in_real_time
async def test_large_invalid_schema_is_refused_as_a_small_one() -> None:
    compiler = HeldExecutor()
    api = await Api.start(compiler=compiler)

    def ask(count: int) -> Awaitable[ApiResponse]:
        version = define_fields(count)
        version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["x"] = {}
        body = {**make_definition(version), "surplus": 1}
        return api.ask("POST", PATH, body, query={"fieldValidation": "Warn"})

    small = await ask(1)
    writing = asyncio.ensure_future(ask(1_300))
    await compiler.run_next()
    large = await writing
    assert codes(small, large) == [422, 422]
    assert large.body == small.body
    assert [one for one in large.headers if one[0] == "warning"] == [
        one for one in small.headers if one[0] == "warning"
    ]


@in_real_time
async def test_two_large_definitions_cannot_have_the_same_names() -> None:
    compiler = HeldExecutor()
    api = await Api.start(compiler=compiler)
    one = make_definition(define_fields(1_400), shortNames=["w"])
    two = custom_resource_definition(
        define_fields(1_401), kind="Gadget", names={"shortNames": ["w"]}
    )
    writing = asyncio.gather(*(api.ask("POST", PATH, body) for body in (one, two)))
    for compile_schema in [await compiler.held.get(), await compiler.held.get()]:
        compile_schema()
    answers = await writing
    assert codes(*answers) == [201, 201]
    accepted = [one.body["status"]["acceptedNames"].get("shortNames") for one in answers]
    assert sorted(accepted, key=str) == [None, ["w"]]


@in_real_time
async def test_patches_of_a_definition_that_is_compiled_all_count() -> None:
    compiler = HeldExecutor()
    api = await Api.start(compiler=compiler)
    writing = asyncio.create_task(api.ask("POST", PATH, make_definition(define_fields(1_500))))
    await compiler.run_next()
    assert codes(await writing) == [201]
    spec = make_definition(define_fields(1_501))["spec"]
    changing = asyncio.create_task(api.ask("PATCH", NAME, {"spec": spec}, headers=MERGE))
    compile_schema = await compiler.held.get()
    note = {"metadata": {"annotations": {"a": "b"}}}
    assert codes(await api.ask("PATCH", NAME, note, headers=MERGE)) == [200]
    compile_schema()
    assert codes(await changing) == [200]
    stored = await crd(api)
    assert stored["metadata"]["annotations"] == {"a": "b"}
    schema = stored["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert len(schema["properties"]["spec"]["properties"]) == 1_501


@in_real_time
async def test_rules_of_a_definition_are_limited_unless_it_is_stored() -> None:
    api = await Api.start()
    accepted = make_definition(define_rules(20, per_field=20))
    assert codes(await api.ask("POST", PATH, accepted)) == [201]
    spec = make_definition(define_rules(5_001, per_field=5_001))["spec"]
    refused = await api.ask("PATCH", NAME, {"spec": spec}, headers=MERGE)
    assert refused.code == 422
    assert refused.body["details"]["causes"] == [{
        "reason": "FieldValueForbidden",
        "message": "Forbidden: must have at most 5000 validation rules in all versions, not 5001",
        "field": "spec.versions",
    }]  # fmt: skip
    stored = await crd(api)
    stored["spec"]["versions"] = spec["versions"]
    key = CUSTOM_RESOURCE_DEFINITION.store_key("", "widgets.example.com")
    revision = int(stored["metadata"]["resourceVersion"])
    await api.store.commit([StoreWrite(key, encoder(stored), revision)])
    note = {"metadata": {"annotations": {"a": "b"}}}
    assert codes(await api.ask("PATCH", NAME, note, headers=MERGE)) == [200]


def test_equal_schemas_are_shared() -> None:
    schema = resource_schema(size=TEXT)
    shared = share_schema(schema)
    assert share_schema(deepcopy(schema)) is shared
    assert share_schema(resource_schema(weight=TEXT)) is not shared
