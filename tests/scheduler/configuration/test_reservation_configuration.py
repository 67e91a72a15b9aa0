"""The plugin Reservation in a KubeSchedulerConfiguration."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.scheduler.configuration.scheduler_configuration import (
    API_VERSION,
    KIND,
    SchedulerConfiguration,
    parse_configuration,
)
from phalanx.scheduler.plugins.settings_plugins import ReservationArgs
from phalanx.scheduler.policy import DEFAULT_POLICY


def parse(args: dict[str, Any] | None = None, plugins: dict[str, Any] | None = None) -> Any:
    profile: dict[str, Any] = {"plugins": plugins or {}}
    if args is not None:
        profile["pluginConfig"] = [{"name": "Reservation", "args": args}]
    return parse_configuration({"apiVersion": API_VERSION, "kind": KIND, "profiles": [profile]})


def reservation_of(found: Any) -> ReservationArgs:
    assert isinstance(found, SchedulerConfiguration), found
    return found.profiles.policies["default-scheduler"].reservation


def test_reservations_are_on_by_default() -> None:
    assert DEFAULT_POLICY.reservation == reservation_of(parse())
    args = reservation_of(parse({}))
    assert (args.after_seconds, args.mode, args.depth, args.max_hold_seconds) == (
        60, "Easy", 32, 3600,
    )  # fmt: skip


@pytest.mark.parametrize("mode", ["Easy", "Conservative", "Strict", "Off"])
def test_arguments_are_read(mode: str) -> None:
    args = reservation_of(parse({"afterSeconds": 5, "mode": mode, "depth": 2, "maxHoldSeconds": 9}))
    assert (args.after_seconds, args.mode, args.depth, args.max_hold_seconds) == (5, mode, 2, 9)


@pytest.mark.parametrize(
    ("args", "field"),
    [
        ({"mode": "easy"}, "mode"),
        ({"afterSeconds": -1}, "afterSeconds"),
        ({"maxHoldSeconds": -1}, "maxHoldSeconds"),
        ({"depth": 0}, "depth"),
        ({"afterSecond": 1}, "afterSecond"),
        ({"afterSeconds": "60"}, "afterSeconds"),
    ],
)
def test_wrong_arguments_are_errors_with_their_path(args: dict[str, Any], field: str) -> None:
    (cause,) = parse(args)
    assert cause.field == f"profiles[0].pluginConfig[0].args.{field}"


@pytest.mark.parametrize("point", ["multiPoint", "reserve"])
def test_disabled_plugin_makes_no_reservations(point: str) -> None:
    found = parse({"mode": "Strict"}, {point: {"disabled": [{"name": "Reservation"}]}})
    assert reservation_of(found).mode == "Off"
