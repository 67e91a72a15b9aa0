from __future__ import annotations

import tracemalloc

import orjson
import pytest

from phalanx.api.kinds import CONFIG_MAP, POD
from phalanx.api.selectors import MAX_LENGTH
from phalanx.api.wire import Object
from phalanx.server.serialization import MAX_BODY_BYTES, MAX_DEPTH
from tests.builders import in_virtual_time, pod
from tests.server.api import Api, ApiResponse

CONFIGS = CONFIG_MAP.url_path("default")
YAML = {"content-type": "application/yaml"}


async def post(body: bytes, *, yaml: bool = False) -> ApiResponse:
    """Create a config map from bytes, on a new server."""
    api = await Api.start()
    return await api.ask("POST", CONFIGS, body, headers=YAML if yaml else {})


def nested(depth: int) -> bytes:
    """An object whose `extra` is a list of lists of lists …"""
    brackets = depth - 1
    return b'{"metadata":{"name":"a"},"extra":' + b"[" * brackets + b"]" * brackets + b"}"


# ---- limits --------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_body_over_the_size_limit_is_refused() -> None:
    answer = await post(b'{"metadata":{"name":"' + b"a" * MAX_BODY_BYTES + b'"}}')
    assert (answer.code, answer.body["reason"]) == (413, "RequestEntityTooLarge")


@pytest.mark.parametrize(("depth", "code"), [(MAX_DEPTH, 201), (MAX_DEPTH + 1, 400), (10**6, 400)])
@in_virtual_time
async def test_a_body_over_the_depth_limit_is_refused(depth: int, code: int) -> None:
    assert (await post(nested(depth))).code == code


@in_virtual_time
async def test_brackets_in_strings_do_not_count_as_depth() -> None:
    text = '[{"\\' * 1000
    body = orjson.dumps({"metadata": {"name": "a"}, "data": {"x": text}})
    answer = await post(body)
    assert (answer.code, answer.body["data"]["x"]) == (201, text)


@pytest.mark.parametrize("opening", [b"[", b"{a: ", b"- "])
@in_virtual_time
async def test_deep_yaml_is_refused(opening: bytes) -> None:
    assert (await post(opening * 5000, yaml=True)).code == 400


@in_virtual_time
async def test_yaml_may_use_some_aliases() -> None:
    answer = await post(b"metadata: {name: a}\ndata: {a: &x hello, b: *x, c: *x}", yaml=True)
    assert answer.body["data"] == {"a": "hello", "b": "hello", "c": "hello"}


@in_virtual_time
async def test_yaml_aliases_cannot_expand_to_megabytes() -> None:
    rows = ["a0: &a0 [x,x,x,x,x,x,x,x,x]"]
    rows += [f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 7)]
    tracemalloc.start()
    try:
        answer = await post("\n".join(rows).encode(), yaml=True)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert answer.code in (400, 413)
    assert peak < 4 * MAX_BODY_BYTES


@in_virtual_time
async def test_yaml_that_expands_too_much_is_refused() -> None:
    text = b"metadata: {name: a}\ndata:\n  a0: &a0 " + b"x" * 200_000
    for number in range(1, 20):
        text += b"\n  a%d: *a0" % number
    assert (await post(text, yaml=True)).code in (400, 413)


@pytest.mark.parametrize("option", ["labelSelector", "fieldSelector"])
@in_virtual_time
async def test_a_selector_over_the_limit_is_refused(option: str) -> None:
    api = await Api.start()
    for method in ("GET", "DELETE"):
        query = {option: "a=b," * (MAX_LENGTH // 4 + 1)}
        assert (await api.ask(method, CONFIGS, query=query)).code == 400


@in_virtual_time
async def test_a_query_with_too_many_options_is_refused() -> None:
    api = await Api.start()
    query = {f"option{n}": "x" for n in range(101)}
    assert (await api.ask("GET", CONFIGS, query=query)).code == 400


@in_virtual_time
async def test_the_warnings_of_a_response_are_limited() -> None:
    body = {"metadata": {"name": "a"}, **{f"unknown{n}": 1 for n in range(1000)}}
    answer = await post(orjson.dumps(body))
    assert answer.code == 201
    assert len(answer.header_values("warning")) <= 50


# ---- invalid bodies ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"", b" ", b"{", b"}", b"nul", b"{'a': 1}", b'{"a": NaN}', b'{"a": 1e999}', b'{"a": 01}',
        b'{"metadata": {"name": "a"}} trailing', b"\xff\xfe{}", b'{"metadata":{"name":"\xff"}}',
        b'{"metadata":{"name":"\\ud800"}}', b'{"a":1,}', b"[]", b'"text"', b"5", b"true",
    ],
)  # fmt: skip
@in_virtual_time
async def test_a_body_that_is_not_a_json_object_is_a_bad_request(body: bytes) -> None:
    answer = await post(body)
    assert (answer.code, answer.body["reason"]) == (400, "BadRequest")


@pytest.mark.parametrize(
    "body",
    [
        b"", b"- a", b"text", b"a: [", b"a: b: c", b"a: !!binary aGk=", b"a: !!set {b}",
        b"a: !!python/object:os.system x", b"--- {a: 1}\n--- {b: 2}", b"&a [*a]", b"*missing",
        b"\xff\xfe\xfa", b"a: 99999999999999999999999999", b"\x00", b'a: "\\ud800"', b"? [a]\n: b",
        b"\t", b"%TAG ! x", b"<<: 5",
    ],
)  # fmt: skip
@in_virtual_time
async def test_yaml_that_json_cannot_express_is_a_bad_request(body: bytes) -> None:
    assert (await post(body, yaml=True)).code == 400


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2026-01-01", "2026-01-01"),
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
        ("1:30", "1:30"),
        ("22:22:22.5", "22:22:22.5"),
        ('"5"', "5"),
        ("'no'", "no"),
        ("|\n    two\n    lines", "two\nlines"),
    ],
)
@in_virtual_time
async def test_yaml_strings_stay_strings(text: str, value: str) -> None:
    answer = await post(f"metadata: {{name: a}}\ndata:\n  x: {text}\n".encode(), yaml=True)
    assert answer.code == 201, answer.body
    assert answer.body["data"]["x"].strip() == value


@pytest.mark.parametrize("text", ["no", "yes", "on", "off", "y", "n", "true", "5", "1.5", "0x10"])
@in_virtual_time
async def test_yaml_booleans_and_numbers_are_not_strings(text: str) -> None:
    answer = await post(f"metadata: {{name: a}}\ndata: {{x: {text}}}".encode(), yaml=True)
    assert answer.code == 400
    assert "ConfigMap.data of type string" in answer.body["message"]


@pytest.mark.parametrize("number", [10**19, 10**50, -(10**30), 1.5, 1e300, True, "5"])
@in_virtual_time
async def test_a_number_that_does_not_fit_is_a_bad_request(number: object) -> None:
    api = await Api.start()
    body = orjson.dumps(pod("a", spec={"activeDeadlineSeconds": "X"}))
    said = str(number).lower() if not isinstance(number, str) else f'"{number}"'
    answer = await api.ask("POST", POD.url_path("default"), body.replace(b'"X"', said.encode()))
    assert answer.code == 400


@pytest.mark.parametrize(
    "content", ["text/plain", "application/xml", "application/x-www-form-urlencoded", "x"]
)
@in_virtual_time
async def test_an_unsupported_media_type_is_refused(content: str) -> None:
    api = await Api.start()
    body: Object = {"metadata": {"name": "a"}}
    answer = await api.ask("POST", CONFIGS, body, headers={"content-type": content})
    assert answer.code == 415


@pytest.mark.parametrize("content", ["", "application/json; charset=utf-8", "APPLICATION/JSON"])
@in_virtual_time
async def test_several_media_types_mean_json(content: str) -> None:
    api = await Api.start()
    body: Object = {"metadata": {"name": "a"}}
    answer = await api.ask("POST", CONFIGS, body, headers={"content-type": content})
    assert answer.code == 201
