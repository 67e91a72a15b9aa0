from __future__ import annotations

import io
import json

import pytest
import yaml

from phalanx.cli.output import (
    JSON,
    YAML,
    LiveDisplay,
    StyledLine,
    align_columns,
    colorize,
    format_structured,
    pluralize,
    progress_bar,
)


@pytest.mark.parametrize(
    ("done", "total", "picture"),
    [
        (0, 0, "░░░░"),
        (0, 9, "░░░░"),
        (1, 100, "█░░░"),
        (99, 100, "███░"),
        (2, 4, "██░░"),
        (4, 4, "████"),
        (9, 4, "████"),
    ],
)
def test_a_bar_is_full_only_if_all_is_done(done: int, total: int, picture: str) -> None:
    assert progress_bar(done, total, 4) == picture


def test_cells_stand_below_each_other() -> None:
    assert list(align_columns([("A", "B"), ("long", "x")])) == ["A      B", "long   x"]


def test_one_is_not_many() -> None:
    assert (pluralize(1, "pod"), pluralize(2, "pod")) == ("1 pod", "2 pods")


def test_json_and_yaml_mean_the_same() -> None:
    value = {"b": [1, None], "a": "ä"}
    assert (
        json.loads(format_structured(value, JSON))
        == yaml.safe_load(format_structured(value, YAML))
        == value
    )


def test_a_live_part_is_drawn_over_and_never_longer_than_the_screen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("LINES", "3")
    out = io.StringIO()
    live = LiveDisplay(out)
    live.draw([StyledLine("a line that is too long", "green")])
    live.draw([StyledLine("1"), StyledLine("2"), StyledLine("3")])
    first, second = out.getvalue().split("\x1b[1A")
    assert colorize(StyledLine("a line that is too l", "green")) in first
    assert second.endswith("1\n… and 2 more lines\n")
