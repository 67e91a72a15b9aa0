"""The table of branch coverage and its floors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.coverage_floors import main


def write_report(folder: Path, **covered: int) -> str:
    files = {
        f"src/phalanx/{package}/module.py": {
            "summary": {
                "covered_lines": lines,
                "num_statements": 80,
                "covered_branches": 20,
                "num_branches": 20,
            }
        }
        for package, lines in covered.items()
    }
    path = folder / "report.json"
    path.write_text(json.dumps({"files": files}))
    return str(path)


def test_packages_above_their_floors_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([write_report(tmp_path, api=76, store=71)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "api             96.0 %   floor 95 %",
        "store           91.0 %   floor 90 %",
    ]


def test_package_below_its_floor_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([write_report(tmp_path, api=71, store=71)]) == 1
    assert "api             91.0 %   floor 95 %  below the floor" in capsys.readouterr().out
