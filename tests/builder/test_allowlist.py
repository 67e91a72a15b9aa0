"""The options that a controller lists as supported; all others are forbidden."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.builder import (
    All,
    Basic,
    Gang,
    Single,
    validate_disruption_mode,
    validate_scheduling_policy,
)
from phalanx.builder.config import Option


@pytest.mark.parametrize(
    ("block", "allowed", "forbidden"),
    [
        (None, (), []),
        ({}, (), []),
        ({"basic": {}}, (Basic, Gang), []),
        ({"gang": {"minCount": 2}}, (Basic, Gang), []),
        ({"basic": {}}, (Gang,), ["basic"]),
        ({"gang": {}}, (Basic,), ["gang"]),
        ({"gang": {}}, (), ["gang"]),
        ({"elastic": {}}, (Basic, Gang), ["elastic"]),
        ({"basic": {}, "elastic": {}}, (Basic, Gang), ["elastic"]),
    ],
)
def test_unlisted_policy_is_forbidden(
    block: Any, allowed: tuple[Option, ...], forbidden: list[str]
) -> None:
    assert [str(cause) for cause in validate_scheduling_policy(block, "spec.p", *allowed)] == [
        f"spec.p: Forbidden: {name} scheduling policy is not supported by this controller"
        for name in forbidden
    ]


@pytest.mark.parametrize(
    ("block", "allowed", "forbidden"),
    [
        (None, (), []),
        ({"single": {}}, (Single, All), []),
        ({"all": {}}, (Single,), ["all"]),
        ({"single": {}}, (All,), ["single"]),
        ({"half": {}}, (Single, All), ["half"]),
    ],
)
def test_unlisted_disruption_mode_is_forbidden(
    block: Any, allowed: tuple[Option, ...], forbidden: list[str]
) -> None:
    assert [str(cause) for cause in validate_disruption_mode(block, "spec.d", *allowed)] == [
        f"spec.d: Forbidden: the disruptionMode `{name}` is not supported by this controller"
        for name in forbidden
    ]
