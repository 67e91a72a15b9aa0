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
    natural_key,
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
def test_bar_is_full_only_if_all_is_done(done: int, total: int, picture: str) -> None:
    assert progress_bar(done, total, 4) == picture


def test_columns_are_aligned() -> None:
    assert list(align_columns([("A", "B"), ("long", "x")])) == ["A      B", "long   x"]


def test_nouns_are_pluralized() -> None:
    assert (pluralize(1, "pod"), pluralize(2, "pod")) == ("1 pod", "2 pods")


def test_json_and_yaml_contain_the_same_value() -> None:
    value = {"b": [1, None], "a": "ä"}
    assert (
        json.loads(format_structured(value, JSON))
        == yaml.safe_load(format_structured(value, YAML))
        == value
    )


def test_live_display_redraws_in_place_and_fits_the_screen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("LINES", "3")
    out = io.StringIO()
    monkeypatch.setattr(out, "isatty", lambda: True)
    live = LiveDisplay(out)
    live.draw([StyledLine("a line that is too long", "green")])
    live.draw([StyledLine("1"), StyledLine("2"), StyledLine("3")])
    first, second = out.getvalue().split("\x1b[1A")
    assert colorize(StyledLine("a line that is too l", "green")) in first
    assert second.endswith("1\n… and 2 more lines\n")


def test_live_display_writes_every_list_to_a_file() -> None:
    out = io.StringIO()
    live = LiveDisplay(out)
    live.draw([StyledLine("first", "green")])
    live.draw([StyledLine("second"), StyledLine("third")])
    assert out.getvalue() == "first\n\nsecond\nthird\n\n"


def test_numbers_in_names_are_sorted_as_numbers() -> None:
    names = ["rack-10", "rack-2", "a", "rack-2-b", "9"]
    assert sorted(names, key=natural_key) == ["9", "a", "rack-2", "rack-2-b", "rack-10"]
