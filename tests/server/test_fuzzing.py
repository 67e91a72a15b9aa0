"""Hostile requests by the thousand, and hostile bytes by the ten thousand: never a 5xx.

A sound object of some kind, one field of it hostile, sent by POST, PUT or PATCH: many in a row to
one server, which must not be harmed by those before. The suite tries 5,000 such requests, a soak
200,000. What was recorded of another server, of every kind and act, is sent again and harmed too.
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
from phalanx.api.quantity import BadQuantity, exact_value
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
from tests.server.test_hostile_input import BARE, KEYS, TEMPLATES, WORDS, assert_ours, mutated
from tests.server.test_recorded import ask

#: Requests to one server, and to how many servers, in the suite and in a soak.
IN_A_ROW, ROWS, SOAK_ROWS = 100, 50, 2_000
#: How an object may be sent.
WAYS = ("POST", "PUT", JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH)
KINDS = (*TEMPLATES, *TEMPLATES, *BARE)
NUMBERS = (0, 1, -1, 2**31, 2**53, 2**63 - 1, -(2**63), 10**18, 0.5, 1e300, -1e-300)
DEEDS = ("replace", "replace", "remove", "add", "wrap", "double")


def hostile(lots: random.Random, depth: int = 2) -> Any:
    """Something that nobody expects."""
    match lots.randrange(8 if depth else 5):
        case 0 | 1:
            return lots.choice(WORDS)
        case 2:
            return lots.choice(NUMBERS)
        case 3:
            return lots.choice((None, True, False, "", [], {}))
        case 4:
            return "".join(chr(lots.randrange(1, 0xD800)) for _ in range(lots.randrange(6)))
        case 5 | 6:
            return {lots.choice(KEYS): hostile(lots, depth - 1) for _ in range(lots.randrange(3))}
        case _:
            return [hostile(lots, depth - 1) for _ in range(lots.randrange(3))]


def harmed(sound: Object, lots: random.Random) -> Object:
    """An object with one thing in it that is hostile, and now and then two."""
    wounds = 1 if lots.random() < 0.8 else 2
    return mutated(sound, [
        (lots.randrange(10_000), lots.choice(DEEDS), lots.choice(KEYS), hostile(lots))
        for _ in range(wounds)
    ])  # fmt: skip


async def send(api: Api, kind: Kind, way: str, name: str, obj: Object) -> None:
    """One request, whose answer must be one of ours."""
    path, namespace = kind.url_path("default" if kind.namespaced else ""), {"fieldManager": "fuzz"}
    if way == "POST":
        assert_ours(await api.ask("POST", path, obj))
        return
    if way == "PUT":
        assert_ours(await api.ask("PUT", f"{path}/{name}", obj))
        return
    body: object = obj
    if way == JSON_PATCH:
        body = [{"op": "add", "path": f"/{key}", "value": one} for key, one in obj.items()]
    elif way == APPLY_PATCH:
        body = {"apiVersion": kind.api_version, "kind": kind.name, **obj}
    query = namespace if way == APPLY_PATCH else {}
    headers = {"content-type": way}
    assert_ours(await api.ask("PATCH", f"{path}/{name}", body, headers=headers, query=query))


async def a_full_server() -> Api:
    """One that has something of every kind of which next to nothing is enough."""
    api = await Api.start()
    for kind, sound in (*TEMPLATES, *BARE):
        assert_ours(
            await api.ask("POST", kind.url_path("default" if kind.namespaced else ""), sound)
        )
    return api


def _rows() -> int:
    return SOAK_ROWS if settings.get_current_profile_name() == "soak" else ROWS


@settings(max_examples=_rows())
@given(st.integers(0, 2**32))
@in_virtual_time
async def test_one_hostile_field_never_breaks_the_server(seed: int) -> None:
    api, lots = await a_full_server(), random.Random(seed)
    for _ in range(IN_A_ROW):
        kind, sound = lots.choice(KINDS)
        name = sound["metadata"]["name"]
        await send(api, kind, lots.choice(WAYS), name, harmed(sound, lots))
    for kind in (POD, POD_GROUP, CONFIG_MAP):
        assert (await api.ask("GET", kind.url_path())).code == 200


# ---- what was once recorded ----------------------------------------------------------------------

RECORDED = [case for case in recorded_cases() if not case.names_a_token]


def _body(asked: Object, words: Words, lots: random.Random) -> bytes:
    """The body of a recorded request, as it is or with something in it that is hostile."""
    body = fill(asked.get("body", ""), words)
    if isinstance(body, str):
        return body.encode()
    box = {"body": body}
    return orjson.dumps((harmed(box, lots) if lots.random() < 0.6 else box).get("body"))


async def again(api: Api, case: Case, lots: random.Random) -> None:
    """Ask what somebody asked once, not quite as they did."""
    words: Words = {"ns": "default", "id": f"x{lots.randrange(10**6)}"}
    for step in case.steps:
        asked = step["request"]
        path, _, query = fill(asked["path"], words).partition("?")
        headers = {"content-type": asked.get("type", JSON), "accept": asked.get("accept", JSON)}
        body = _body(asked, words, lots)
        answer = await ask(api.server, Request(asked["method"], path, query, headers, body, ADMIN))
        # 504 is the answer to a revision of the future.
        assert answer[0] < 500 or answer[0] == 504, (asked, body, answer)
        found = decoded(query, answer[0], answer[2])
        for word, place in step.get("save", {}).items():
            words[word] = str(dig(found, place) or "")


@pytest.mark.parametrize("cases", [500, pytest.param(40_000, marks=pytest.mark.soak)])
def test_what_was_recorded_never_breaks_the_server_when_it_is_harmed(cases: int) -> None:
    @in_virtual_time
    async def some(seed: int) -> None:
        lots, api = random.Random(seed), await Api.start()
        for _ in range(IN_A_ROW):
            await again(api, lots.choice(RECORDED), lots)

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
#: What parsers stumble over.
PIECES = (
    b"[", b"{", b"}", b"]", b'"', b"\\", b"\\u0000", b"\\ud800", b"\x00", b"\xff", b"\xc0\x80",
    b"~", b"&a ", b"*a", b"<<: ", b"!!", b"---\n", b"%", b",", b":", b"9" * 30, b"-", b"e999",
    b"NaN", b"(", b")", b" in ", b"\xef\xbb\xbf", b"1Ei", b"\r\n", b"=", b"../",
    b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",
)  # fmt: skip


def _reads(content: str) -> Callable[[bytes], object]:
    """A body in some format, read as far as no kind is needed."""
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


def garbled(raw: bytes, lots: random.Random) -> bytes:
    """Bytes of which some are others, gone, doubled, or replaced by something nasty."""
    data = bytearray(raw)
    for _ in range(lots.randint(1, 6)):
        at = lots.randrange(len(data) + 1)
        match lots.randrange(5):
            case 0:
                data[at:at] = lots.choice(PIECES)
            case 1:
                del data[at : at + lots.randint(1, 8)]
            case 2:
                data[at : at + 1] = bytes([lots.randrange(256)])
            case 3:
                end = at + lots.randint(1, 20)
                data[at:at] = data[at:end] * lots.randint(1, 4)
            case _:
                data[at : at + 4] = lots.choice(PIECES) * lots.randint(1, 3)
    return bytes(data)


#: How often bytes are garbled, in the suite and in a soak.
often = pytest.mark.parametrize("tries", [500, pytest.param(200_000, marks=pytest.mark.soak)])


@often
@pytest.mark.parametrize("name", PARSERS)
def test_no_bytes_break_a_parser(name: str, tries: int) -> None:
    lots, parse = random.Random(name), PARSERS[name]
    parse(SEEDS[name])
    tracemalloc.start()
    for _ in range(tries):
        raw = garbled(SEEDS[name], lots)
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
    lots, api = random.Random(7), await Api.start()
    await api.create(POD, pod("a"))
    await api.create(POD_GROUP, gang("g", 2)[0])
    formats: Sequence[tuple[str, str, str]] = (
        ("JSON", "POST", JSON), ("YAML", "POST", YAML), ("a JSON patch", "PATCH", JSON_PATCH),
        ("JSON", "PATCH", MERGE_PATCH), ("JSON", "PATCH", STRATEGIC_PATCH),
        ("YAML", "PATCH", APPLY_PATCH), ("protobuf", "POST", "application/vnd.kubernetes.protobuf"),
    )  # fmt: skip
    for _ in range(tries):
        seed, method, content = lots.choice(formats)
        path = POD.url_path("default", "" if method == "POST" else "a")
        query = {"fieldManager": "fuzz"} if content == APPLY_PATCH else {}
        body = garbled(SEEDS[seed], lots)
        answer = await api.ask(method, path, body, headers={"content-type": content}, query=query)
        assert_ours(answer)


@often
@in_virtual_time
async def test_no_option_of_a_list_breaks_the_server(tries: int) -> None:
    lots, api = random.Random(9), await Api.start()
    await api.create(POD, pod("a"), pod("b"))
    first = await api.ask("GET", POD.url_path(), query={"limit": 1})
    options = {
        "labelSelector": SEEDS["labels"], "fieldSelector": SEEDS["fields"],
        "continue": first.body["metadata"]["continue"].encode(),
    }  # fmt: skip
    for _ in range(tries):
        name, seed = lots.choice(list(options.items()))
        text = garbled(seed, lots).decode("utf-8", "replace")
        answer = await api.ask("GET", POD.url_path(), query={name: text, "limit": 5})
        assert answer.code in (200, 400), answer.body
