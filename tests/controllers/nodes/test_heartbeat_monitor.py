"""Nodes without heartbeats."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from phalanx.controllers.nodes.node_lifecycle import HeartbeatMonitor


def test_a_node_with_recent_heartbeats_is_not_unresponsive() -> None:
    monitor = HeartbeatMonitor(50)
    monitor.record_heartbeat("a", 0)
    assert monitor.sweep(50) == []
    monitor.record_heartbeat("a", 50)
    assert monitor.sweep(100) == []
    assert monitor.sweep(100.1) == ["a"]
    assert monitor.is_unresponsive("a")


def test_a_node_is_reported_unresponsive_once_until_its_next_heartbeat() -> None:
    monitor = HeartbeatMonitor(50)
    monitor.record_heartbeat("a", 0)
    assert [monitor.sweep(60), monitor.sweep(70)] == [["a"], []]
    monitor.record_heartbeat("a", 80)
    assert not monitor.is_unresponsive("a")
    assert monitor.sweep(131) == ["a"]


def test_a_node_without_heartbeats_or_forgotten_is_unknown() -> None:
    monitor = HeartbeatMonitor(50)
    monitor.record_heartbeat("a", 0)
    monitor.sweep(60)
    monitor.forget("a")
    monitor.forget("b")
    assert list(monitor) == []
    assert not monitor.is_unresponsive("a")
    assert "a" not in monitor


def test_all_are_unresponsive_only_if_there_are_nodes_and_none_has_heartbeats() -> None:
    monitor = HeartbeatMonitor(50)
    assert not monitor.are_all_unresponsive
    monitor.record_heartbeat("a", 0)
    monitor.record_heartbeat("b", 40)
    monitor.sweep(60)
    assert not monitor.are_all_unresponsive
    monitor.sweep(100)
    assert monitor.are_all_unresponsive
    monitor.record_heartbeat("b", 101)
    assert not monitor.are_all_unresponsive


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 40), st.booleans())))
def test_sweeps_equal_a_full_scan_of_all_nodes(
    steps: list[tuple[str, int, bool]],
) -> None:
    monitor, heartbeats, now = HeartbeatMonitor(50), dict[str, int](), 0
    for name, pause, is_heartbeat in steps:
        now += pause
        if is_heartbeat:
            monitor.record_heartbeat(name, now)
            heartbeats[name] = now
        else:
            monitor.sweep(now)
            assert {one for one in "abcd" if monitor.is_unresponsive(one)} == {
                one for one, when in heartbeats.items() if when < now - 50
            }
    assert sorted(monitor) == sorted(heartbeats)
