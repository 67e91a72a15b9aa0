from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.api import errors
from phalanx.api.core import Pod
from phalanx.api.wire import Object, Reply
from phalanx.client.protocol import (
    MAX_EVENT_BYTES,
    MAX_RETRY_AFTER,
    WatchDecoder,
    WatchEvent,
    decode_reply,
    list_page_type,
    retry_after,
)

from .fake_api import bookmark, line, pod, refused, reply

STREAM = line("ADDED", pod("a", 5)) + line("MODIFIED", pod("a", 7)) + bookmark(9)


def names(events: list[WatchEvent[Pod]]) -> list[tuple[str, str, int]]:
    return [(event.type, event.object.metadata.name, event.revision) for event in events]


def test_an_answer_is_read_into_a_struct_or_a_dict() -> None:
    answer = reply(pod("a", 5, node="n"))
    assert decode_reply(answer, Pod).spec.node_name == "n"
    assert decode_reply(answer, dict) == pod("a", 5, node="n")


def test_a_page_holds_structs_and_the_way_to_the_next() -> None:
    answer = reply({"metadata": {"resourceVersion": "9", "continue": "t"}, "items": [pod("a", 5)]})
    page = decode_reply(answer, list_page_type(Pod))
    assert [found.metadata.name for found in page.items or ()] == ["a"]
    assert (page.metadata.resource_version, page.metadata.more) == ("9", "t")


def test_a_page_may_say_that_it_has_no_items() -> None:
    assert decode_reply(reply({"metadata": {}, "items": None}), list_page_type(Pod)).items is None


@pytest.mark.parametrize(
    "error",
    [
        errors.NotFound("gone", name="a", kind="pods"),
        errors.Conflict("changed"),
        errors.AlreadyExists("there"),
        errors.Invalid("bad", causes=[errors.Cause("spec.x", "FieldValueInvalid", "Invalid")]),
        errors.Expired("too old"),
        errors.TooManyRequests("later", retry_after=3),
    ],
)
def test_a_refusal_is_raised_as_the_error_that_the_server_meant(error: errors.ApiError) -> None:
    with pytest.raises(type(error)) as raised:
        decode_reply(refused(error), Pod)
    assert raised.value.status() == error.status()


@pytest.mark.parametrize(
    ("code", "body", "expected"),
    [
        (401, b"Unauthorized", errors.Unauthorized),
        (403, b"<html>", errors.Forbidden),
        (404, b"404 page not found", errors.NotFound),
        (410, b'{"reason": "Gone", "message": "old"}', errors.Expired),
        (429, b"", errors.TooManyRequests),
        (504, b"upstream", errors.Timeout),
        (502, b"Bad Gateway", errors.ServerError),
        (302, b"", errors.ServerError),
        (500, b'{"details": [], "reason": {}}', errors.ServerError),
        (500, b'{"details": "x"}', errors.ServerError),
    ],
)
def test_a_refusal_that_is_no_status_is_judged_by_its_code(
    code: int, body: bytes, expected: type[errors.ApiError]
) -> None:
    with pytest.raises(errors.ApiError) as raised:
        decode_reply(Reply(code, body), Pod)
    assert type(raised.value) is expected


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'"\xff"', b'{"metadata": 1}', b'{"metadata":{},"x":' + b"[" * 10**5],
)
def test_an_answer_that_makes_no_sense_is_a_server_error(body: bytes) -> None:
    with pytest.raises(errors.ServerError, match="cannot be read"):
        decode_reply(Reply(200, body), Pod)


@pytest.mark.parametrize(
    ("code", "asked", "wait"),
    [
        (429, "2", 2.0),
        (503, "1", 1.0),
        (429, "86400", MAX_RETRY_AFTER),
        (429, "Wed, 21 Oct 2026 07:28:00 GMT", None),
        (429, "-1", None),
        (500, "1", None),
        (200, "1", None),
    ],
)
def test_only_a_busy_server_is_given_the_time_it_asks_for(
    code: int, asked: str, wait: float | None
) -> None:
    assert retry_after(reply({}, code, Retry_After=asked)) == wait


def test_a_busy_server_that_names_no_time_is_not_asked_again() -> None:
    assert retry_after(reply({}, 429)) is None


def test_a_watch_becomes_events_and_remembers_where_to_resume() -> None:
    decoder = WatchDecoder(Pod, since=4)
    assert names(decoder.feed(STREAM)) == [("ADDED", "a", 5), ("MODIFIED", "a", 7)]
    assert decoder.revision == 9


def test_a_watch_without_a_struct_gives_dicts() -> None:
    decoder = WatchDecoder(dict)
    assert decoder.feed(STREAM)[0] == WatchEvent("ADDED", pod("a", 5), 5)
    assert decoder.revision == 9


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_it_does_not_matter_where_the_pieces_of_a_watch_are_cut(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    decoder = WatchDecoder(Pod)
    pieces = [STREAM[start:end] for start, end in pairwise(edges)]
    events = [event for piece in pieces for event in decoder.feed(piece)]
    assert names(events) == [("ADDED", "a", 5), ("MODIFIED", "a", 7)]
    assert decoder.revision == 9
    assert decoder.error is None


def test_an_event_that_is_not_complete_does_not_move_the_revision() -> None:
    decoder = WatchDecoder(Pod, since=4)
    assert decoder.feed(line("ADDED", pod("a", 5))[:-1]) == []
    assert decoder.revision == 4


def test_the_place_to_resume_never_moves_back() -> None:
    decoder = WatchDecoder(Pod, since=8)
    decoder.feed(line("ADDED", pod("a", 5)) + bookmark(6))
    assert decoder.revision == 8


def test_the_last_word_of_a_watch_comes_after_the_events_before_it_and_ends_it() -> None:
    decoder = WatchDecoder(Pod)
    last = line("ERROR", errors.Expired("too old").status())
    assert len(decoder.feed(line("ADDED", pod("a", 5)) + last)) == 1
    assert isinstance(decoder.error, errors.Expired)
    assert decoder.feed(STREAM) == []


@pytest.mark.parametrize(
    "bad",
    [
        b"nonsense\n",
        b"{}\n",
        line("RENAMED", pod("a", 5)),
        line("ADDED", {"metadata": {"name": "a", "resourceVersion": "x"}}),
        line("ADDED", {"metadata": None}),
        line("BOOKMARK", {}),
        line("ERROR", {"code": "x", "details": 1}),
        b'{"type":"ERROR","object":[]}\n',
    ],
)
@pytest.mark.parametrize("struct", [Pod, dict])
def test_a_watch_event_that_makes_no_sense_is_a_server_error(
    bad: bytes, struct: type[Pod | Object]
) -> None:
    decoder = WatchDecoder(struct)
    assert decoder.feed(bad) == []
    assert isinstance(decoder.error, errors.ServerError)


@given(st.binary())
def test_whatever_bytes_come_a_watch_gives_events_or_our_own_error(data: bytes) -> None:
    decoder = WatchDecoder(dict)
    decoder.feed(data)
    decoder.feed(b"\n")
    assert decoder.error is None or isinstance(decoder.error, errors.ApiError)


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_watch_event_beyond_all_measure_is_refused(end: bytes) -> None:
    decoder = WatchDecoder(dict)
    decoder.feed(b" " * MAX_EVENT_BYTES)
    assert decoder.error is None
    decoder.feed(b"{" + end)
    assert "has more than" in str(decoder.error)
