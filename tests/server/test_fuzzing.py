"""Hostile requests by the thousand, and hostile bytes by the ten thousand: never a 5xx.

A valid object of some kind with one hostile field is sent by POST, PUT or PATCH. One server gets
many in a row and must not be damaged by the previous ones. The suite tries 5,000 such requests, a
soak 200,000. Recorded requests of every kind and action are sent with mutations too.
"""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.api.errors import ApiError
from phalanx.api.kinds import CONFIG_MAP, POD, POD_GROUP, Kind
from phalanx.api.resources import BadQuantity, exact_value
from phalanx.api.selectors import BadSelector, parse_field_selector, parse_label_selector
from phalanx.api.wire import (
    APPLY_PATCH,
    JSON,
    JSON_PATCH,
    MERGE_PATCH,
    STRATEGIC_PATCH,
    Object,
    Request,
)
from phalanx.server.security.authorization import ADMIN
from phalanx.server.serialization import OBJECT_MEDIA_TYPES, YAML, load_body
from tests.api.protobuf_bodies import POD as POD_IN_PROTOBUF
from tests.builders import gang, in_virtual_time, pod
from tests.recorded_cases import Case, Words, decoded, dig, fill, recorded_cases
from tests.server.api import Api
from tests.server.test_hostile_input import BARE, KEYS, TEMPLATES, WORDS, assert_valid_reply, mutate
from tests.server.test_recorded import ask

#: Requests to one server, and to how many servers, in the suite and in a soak.
IN_A_ROW, ROWS, SOAK_ROWS = 100, 50, 2_000
#: How an object may be sent.
WAYS = ("POST", "PUT", JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH)
KINDS = (*TEMPLATES, *TEMPLATES, *BARE)
NUMBERS = (0, 1, -1, 2**31, 2**53, 2**63 - 1, -(2**63), 10**18, 0.5, 1e300, -1e-300)
DEEDS = ("replace", "replace", "remove", "add", "wrap", "double")


def hostile(rng: random.Random, depth: int = 2) -> Any:
    """Values that no schema expects."""
    match rng.randrange(8 if depth else 5):
        case 0 | 1:
            return rng.choice(WORDS)
        case 2:
            return rng.choice(NUMBERS)
        case 3:
            return rng.choice((None, True, False, "", [], {}))
        case 4:
            return "".join(chr(rng.randrange(1, 0xD800)) for _ in range(rng.randrange(6)))
        case 5 | 6:
            return {rng.choice(KEYS): hostile(rng, depth - 1) for _ in range(rng.randrange(3))}
        case _:
            return [hostile(rng, depth - 1) for _ in range(rng.randrange(3))]


def with_hostile_field(template: Object, rng: random.Random) -> Object:
    """An object with one hostile value, sometimes two."""
    wounds = 1 if rng.random() < 0.8 else 2
    return mutate(template, [
        (rng.randrange(10_000), rng.choice(DEEDS), rng.choice(KEYS), hostile(rng))
        for _ in range(wounds)
    ])  # fmt: skip


async def send(api: Api, kind: Kind, way: str, name: str, obj: Object) -> None:
    """Send one request; the reply must be a valid one."""
    path, namespace = kind.url_path("default" if kind.namespaced else ""), {"fieldManager": "fuzz"}
    if way == "POST":
        assert_valid_reply(await api.ask("POST", path, obj))
        return
    if way == "PUT":
        assert_valid_reply(await api.ask("PUT", f"{path}/{name}", obj))
        return
    body: object = obj
    if way == JSON_PATCH:
        body = [{"op": "add", "path": f"/{key}", "value": one} for key, one in obj.items()]
    elif way == APPLY_PATCH:
        body = {"apiVersion": kind.api_version, "kind": kind.name, **obj}
    query = namespace if way == APPLY_PATCH else {}
    headers = {"content-type": way}
    assert_valid_reply(await api.ask("PATCH", f"{path}/{name}", body, headers=headers, query=query))


async def start_full_server() -> Api:
    """A server with a minimal object of each kind."""
    api = await Api.start()
    for kind, template in (*TEMPLATES, *BARE):
        assert_valid_reply(
            await api.ask("POST", kind.url_path("default" if kind.namespaced else ""), template)
        )
    return api


def _rows() -> int:
    return SOAK_ROWS if settings.get_current_profile_name() == "soak" else ROWS


@settings(max_examples=_rows())
@given(st.integers(0, 2**32))
@in_virtual_time
async def test_one_hostile_field_never_breaks_the_server(seed: int) -> None:
    api, rng = await start_full_server(), random.Random(seed)
    for _ in range(IN_A_ROW):
        kind, template = rng.choice(KINDS)
        name = template["metadata"]["name"]
        await send(api, kind, rng.choice(WAYS), name, with_hostile_field(template, rng))
    for kind in (POD, POD_GROUP, CONFIG_MAP):
        assert (await api.ask("GET", kind.url_path())).code == 200


# ---- recorded requests ---------------------------------------------------------------------------

RECORDED = [case for case in recorded_cases() if not case.names_a_token]


def _body(request: Object, words: Words, rng: random.Random) -> bytes:
    """The body of a recorded request, unchanged or with a hostile value."""
    body = fill(request.get("body", ""), words)
    if isinstance(body, str):
        return body.encode()
    box = {"body": body}
    return orjson.dumps((with_hostile_field(box, rng) if rng.random() < 0.6 else box).get("body"))


async def send_mutated(api: Api, case: Case, rng: random.Random) -> None:
    """Send a recorded request with changes."""
    words: Words = {"ns": "default", "id": f"x{rng.randrange(10**6)}"}
    for step in case.steps:
        request = step["request"]
        path, _, query = fill(request["path"], words).partition("?")
        headers = {"content-type": request.get("type", JSON), "accept": request.get("accept", JSON)}
        body = _body(request, words, rng)
        answer = await ask(
            api.server, Request(request["method"], path, query, headers, body, ADMIN)
        )
        # 504 is the answer to a revision of the future.
        assert answer[0] < 500 or answer[0] == 504, (request, body, answer)
        found = decoded(query, answer[0], answer[2])
        for word, place in step.get("save", {}).items():
            words[word] = str(dig(found, place) or "")


@pytest.mark.parametrize("cases", [500, pytest.param(40_000, marks=pytest.mark.soak)])
def test_mutated_recorded_requests_never_break_the_server(cases: int) -> None:
    @in_virtual_time
    async def some(seed: int) -> None:
        rng, api = random.Random(seed), await Api.start()
        for _ in range(IN_A_ROW):
            await send_mutated(api, rng.choice(RECORDED), rng)

    for seed in range(cases // IN_A_ROW):
        some(seed)


# ---- bytes ---------------------------------------------------------------------------------------

SEEDS = {
    "JSON": orjson.dumps(pod("a", "g", cpu="1")),
    "YAML": b"metadata:\n  name: &n a\n  labels: {a: *n, b: 'c', d: \"e\"}\nspec: [1, 2.5, ~]\n",
    "a JSON patch": b'[{"op":"add","path":"/metadata/labels/a~1b","value":{"c":[1,null]}}]',
    "labels": b"a=b,c!=d,e in (f,g),h notin (i),j,!k,l>5,m<6",
    "fields": b"metadata.name=a,spec.nodeName!=b,status.phase==d",
    "a quantity": b"12345.678e-9",
    "protobuf": POD_IN_PROTOBUF,
}  # fmt: skip
#: Input that is difficult for parsers.
PIECES = (
    b"[", b"{", b"}", b"]", b'"', b"\\", b"\\u0000", b"\\ud800", b"\x00", b"\xff", b"\xc0\x80",
    b"~", b"&a ", b"*a", b"<<: ", b"!!", b"---\n", b"%", b",", b":", b"9" * 30, b"-", b"e999",
    b"NaN", b"(", b")", b" in ", b"\xef\xbb\xbf", b"1Ei", b"\r\n", b"=", b"../",
    b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",
)  # fmt: skip


def _reads(content: str) -> Callable[[bytes], object]:
    """Parse a body in some format without a kind."""
    accepted = (*OBJECT_MEDIA_TYPES, JSON_PATCH)
    return lambda raw: load_body(Request("POST", "/", "", {"content-type": content}, raw), accepted)


def _text(parse: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda raw: parse(raw.decode("utf-8", "surrogateescape"))


PARSERS: dict[str, Callable[[bytes], object]] = {
    "JSON": _reads(JSON),
    "YAML": _reads(YAML),
    "a JSON patch": _reads(JSON_PATCH),
    "labels": _text(parse_label_selector),
    "fields": _text(parse_field_selector),
    "a quantity": _text(exact_value),
    "protobuf": _reads("application/vnd.kubernetes.protobuf"),
}
REFUSALS = (ApiError, BadSelector, BadQuantity)


def mutate_bytes(raw: bytes, rng: random.Random) -> bytes:
    """Bytes of which some are changed, removed, doubled or replaced."""
    data = bytearray(raw)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(5):
            case 0:
                data[at:at] = rng.choice(PIECES)
            case 1:
                del data[at : at + rng.randint(1, 8)]
            case 2:
                data[at : at + 1] = bytes([rng.randrange(256)])
            case 3:
                end = at + rng.randint(1, 20)
                data[at:at] = data[at:end] * rng.randint(1, 4)
            case _:
                data[at : at + 4] = rng.choice(PIECES) * rng.randint(1, 3)
    return bytes(data)


#: How often bytes are mutated, in the suite and in a soak.
often = pytest.mark.parametrize("tries", [500, pytest.param(200_000, marks=pytest.mark.soak)])


@often
@pytest.mark.parametrize("name", PARSERS)
def test_no_bytes_break_a_parser(name: str, tries: int) -> None:
    rng, parse = random.Random(name), PARSERS[name]
    parse(SEEDS[name])
    tracemalloc.start()
    for _ in range(tries):
        raw = mutate_bytes(SEEDS[name], rng)
        try:
            parse(raw)
        except REFUSALS:
            continue
        except Exception as error:
            raise AssertionError(raw) from error
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 * 1024 * 1024


@often
@in_virtual_time
async def test_no_bytes_break_the_server_in_any_format(tries: int) -> None:
    rng, api = random.Random(7), await Api.start()
    await api.create(POD, pod("a"))
    await api.create(POD_GROUP, gang("g", 2)[0])
    formats: Sequence[tuple[str, str, str]] = (
        ("JSON", "POST", JSON), ("YAML", "POST", YAML), ("a JSON patch", "PATCH", JSON_PATCH),
        ("JSON", "PATCH", MERGE_PATCH), ("JSON", "PATCH", STRATEGIC_PATCH),
        ("YAML", "PATCH", APPLY_PATCH), ("protobuf", "POST", "application/vnd.kubernetes.protobuf"),
    )  # fmt: skip
    for _ in range(tries):
        seed, method, content = rng.choice(formats)
        path = POD.url_path("default", "" if method == "POST" else "a")
        query = {"fieldManager": "fuzz"} if content == APPLY_PATCH else {}
        body = mutate_bytes(SEEDS[seed], rng)
        answer = await api.ask(method, path, body, headers={"content-type": content}, query=query)
        assert_valid_reply(answer)


@often
@in_virtual_time
async def test_no_option_of_a_list_breaks_the_server(tries: int) -> None:
    rng, api = random.Random(9), await Api.start()
    await api.create(POD, pod("a"), pod("b"))
    first = await api.ask("GET", POD.url_path(), query={"limit": 1})
    options = {
        "labelSelector": SEEDS["labels"], "fieldSelector": SEEDS["fields"],
        "continue": first.body["metadata"]["continue"].encode(),
    }  # fmt: skip
    for _ in range(tries):
        name, seed = rng.choice(list(options.items()))
        text = mutate_bytes(seed, rng).decode("utf-8", "replace")
        answer = await api.ask("GET", POD.url_path(), query={name: text, "limit": 5})
        assert answer.code in (200, 400), answer.body
