"""Who has not been heard of for too long."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from phalanx.controllers.nodes.node_lifecycle import HeartbeatMonitor


def test_whoever_is_heard_in_time_is_not_silent() -> None:
    silence = HeartbeatMonitor(50)
    silence.record_heartbeat("a", 0)
    assert silence.sweep(50) == []
    silence.record_heartbeat("a", 50)
    assert silence.sweep(100) == []
    assert silence.sweep(100.1) == ["a"]
    assert silence.is_silent("a")


def test_each_becomes_silent_once_until_heard_again() -> None:
    silence = HeartbeatMonitor(50)
    silence.record_heartbeat("a", 0)
    assert [silence.sweep(60), silence.sweep(70)] == [["a"], []]
    silence.record_heartbeat("a", 80)
    assert not silence.is_silent("a")
    assert silence.sweep(131) == ["a"]


def test_whoever_was_never_heard_of_or_is_forgotten_is_not_known() -> None:
    silence = HeartbeatMonitor(50)
    silence.record_heartbeat("a", 0)
    silence.sweep(60)
    silence.forget("a")
    silence.forget("b")
    assert list(silence) == []
    assert not silence.is_silent("a")
    assert "a" not in silence


def test_silence_is_total_when_there_are_some_and_none_is_heard() -> None:
    silence = HeartbeatMonitor(50)
    assert not silence.are_all_silent
    silence.record_heartbeat("a", 0)
    silence.record_heartbeat("b", 40)
    silence.sweep(60)
    assert not silence.are_all_silent
    silence.sweep(100)
    assert silence.are_all_silent
    silence.record_heartbeat("b", 101)
    assert not silence.are_all_silent


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 40), st.booleans())))
def test_it_is_as_if_every_name_were_looked_at_every_time(
    steps: list[tuple[str, int, bool]],
) -> None:
    silence, heard, now = HeartbeatMonitor(50), dict[str, int](), 0
    for name, pause, is_heard in steps:
        now += pause
        if is_heard:
            silence.record_heartbeat(name, now)
            heard[name] = now
        else:
            silence.sweep(now)
            assert {one for one in "abcd" if silence.is_silent(one)} == {
                one for one, when in heard.items() if when < now - 50
            }
    assert sorted(silence) == sorted(heard)
