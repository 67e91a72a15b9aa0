"""Golden scenarios: each YAML file in `tests/scenarios` has an expected timeline next to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.sim.scenario import parse_scenario
from phalanx.sim.simulation import run_scenario

FOLDER = Path(__file__).parent.parent / "scenarios"
FILES = sorted(FOLDER.glob("*.yaml"))


@pytest.mark.mostly_slow(quick_every=4)
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_scenario_gives_its_expected_timeline(file: Path, is_update: bool) -> None:
    expected, text = (
        file.with_suffix(".expected"),
        run_scenario(parse_scenario(file.read_text())).text(),
    )
    if is_update:
        expected.write_text(text)
    assert text == expected.read_text()


def test_every_expected_timeline_belongs_to_a_scenario() -> None:
    assert [file.stem for file in sorted(FOLDER.glob("*.expected"))] == [f.stem for f in FILES]
