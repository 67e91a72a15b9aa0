from __future__ import annotations

import io
import json

import pytest
import yaml

from phalanx.cli.live import Line, Live, painted
from phalanx.cli.paper import JSON, YAML, aligned, bar, counted, structured


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
    assert bar(done, total, 4) == picture


def test_cells_stand_below_each_other() -> None:
    assert list(aligned([("A", "B"), ("long", "x")])) == ["A      B", "long   x"]


def test_one_is_not_many() -> None:
    assert (counted(1, "pod"), counted(2, "pod")) == ("1 pod", "2 pods")


def test_json_and_yaml_mean_the_same() -> None:
    value = {"b": [1, None], "a": "ä"}
    assert json.loads(structured(value, JSON)) == yaml.safe_load(structured(value, YAML)) == value


def test_a_live_part_is_drawn_over_and_never_longer_than_the_screen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("LINES", "3")
    out = io.StringIO()
    live = Live(out)
    live.draw([Line("a line that is too long", "green")])
    live.draw([Line("1"), Line("2"), Line("3")])
    first, second = out.getvalue().split("\x1b[1A")
    assert painted(Line("a line that is too l", "green")) in first
    assert second.endswith("1\n… and 2 more lines\n")
