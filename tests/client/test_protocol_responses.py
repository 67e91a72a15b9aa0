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

from .fake_api import bookmark, pod, reply, status_reply, watch_event

STREAM = watch_event("ADDED", pod("a", 5)) + watch_event("MODIFIED", pod("a", 7)) + bookmark(9)


def summarise(events: list[WatchEvent[Pod]]) -> list[tuple[str, str, int]]:
    return [(event.type, event.object.metadata.name, event.revision) for event in events]


def test_reply_is_decoded_into_a_struct_or_a_dict() -> None:
    answer = reply(pod("a", 5, node="n"))
    assert decode_reply(answer, Pod).spec.node_name == "n"
    assert decode_reply(answer, dict) == pod("a", 5, node="n")


def test_list_page_holds_structs_and_the_continue_token() -> None:
    answer = reply({"metadata": {"resourceVersion": "9", "continue": "t"}, "items": [pod("a", 5)]})
    page = decode_reply(answer, list_page_type(Pod))
    assert [found.metadata.name for found in page.items or ()] == ["a"]
    assert (page.metadata.resource_version, page.metadata.more) == ("9", "t")


def test_list_page_may_have_null_items() -> None:
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
def test_status_reply_is_raised_as_the_matching_error(error: errors.ApiError) -> None:
    with pytest.raises(type(error)) as raised:
        decode_reply(status_reply(error), Pod)
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
def test_error_reply_without_a_status_is_classified_by_its_code(
    code: int, body: bytes, expected: type[errors.ApiError]
) -> None:
    with pytest.raises(errors.ApiError) as raised:
        decode_reply(Reply(code, body), Pod)
    assert type(raised.value) is expected


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'"\xff"', b'{"metadata": 1}', b'{"metadata":{},"x":' + b"[" * 10**5],
)
def test_unreadable_reply_is_a_server_error(body: bytes) -> None:
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
def test_retry_after_applies_to_429_and_503_only_and_is_bounded(
    code: int, asked: str, wait: float | None
) -> None:
    assert retry_after(reply({}, code, Retry_After=asked)) == wait


def test_busy_reply_without_retry_after_is_not_retried() -> None:
    assert retry_after(reply({}, 429)) is None


def test_watch_decoder_returns_events_and_keeps_the_revision() -> None:
    decoder = WatchDecoder(Pod, since=4)
    assert summarise(decoder.feed(STREAM)) == [("ADDED", "a", 5), ("MODIFIED", "a", 7)]
    assert decoder.revision == 9


def test_watch_decoder_without_a_struct_returns_dicts() -> None:
    decoder = WatchDecoder(dict)
    assert decoder.feed(STREAM)[0] == WatchEvent("ADDED", pod("a", 5), 5)
    assert decoder.revision == 9


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_watch_decoder_accepts_any_chunk_boundaries(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    decoder = WatchDecoder(Pod)
    pieces = [STREAM[start:end] for start, end in pairwise(edges)]
    events = [event for piece in pieces for event in decoder.feed(piece)]
    assert summarise(events) == [("ADDED", "a", 5), ("MODIFIED", "a", 7)]
    assert decoder.revision == 9
    assert decoder.error is None


def test_incomplete_event_does_not_move_the_revision() -> None:
    decoder = WatchDecoder(Pod, since=4)
    assert decoder.feed(watch_event("ADDED", pod("a", 5))[:-1]) == []
    assert decoder.revision == 4


def test_revision_of_a_watch_never_moves_back() -> None:
    decoder = WatchDecoder(Pod, since=8)
    decoder.feed(watch_event("ADDED", pod("a", 5)) + bookmark(6))
    assert decoder.revision == 8


def test_error_event_ends_the_watch_after_the_events_before_it() -> None:
    decoder = WatchDecoder(Pod)
    last = watch_event("ERROR", errors.Expired("too old").status())
    assert len(decoder.feed(watch_event("ADDED", pod("a", 5)) + last)) == 1
    assert isinstance(decoder.error, errors.Expired)
    assert decoder.feed(STREAM) == []


@pytest.mark.parametrize(
    "bad",
    [
        b"nonsense\n",
        b"{}\n",
        watch_event("RENAMED", pod("a", 5)),
        watch_event("ADDED", {"metadata": {"name": "a", "resourceVersion": "x"}}),
        watch_event("ADDED", {"metadata": None}),
        watch_event("BOOKMARK", {}),
        watch_event("ERROR", {"code": "x", "details": 1}),
        b'{"type":"ERROR","object":[]}\n',
    ],
)
@pytest.mark.parametrize("struct", [Pod, dict])
def test_invalid_watch_event_is_a_server_error(bad: bytes, struct: type[Pod | Object]) -> None:
    decoder = WatchDecoder(struct)
    assert decoder.feed(bad) == []
    assert isinstance(decoder.error, errors.ServerError)


@given(st.binary())
def test_any_bytes_decode_to_events_or_an_api_error(data: bytes) -> None:
    decoder = WatchDecoder(dict)
    decoder.feed(data)
    decoder.feed(b"\n")
    assert decoder.error is None or isinstance(decoder.error, errors.ApiError)


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_watch_event_above_the_size_limit_is_an_error(end: bytes) -> None:
    decoder = WatchDecoder(dict)
    decoder.feed(b" " * MAX_EVENT_BYTES)
    assert decoder.error is None
    decoder.feed(b"{" + end)
    assert "has more than" in str(decoder.error)
