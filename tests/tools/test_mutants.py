"""The planted bugs still fit the source, and the tool that plants them leaves no trace."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tools import mutants
from tools.mutants import MUTANTS, ROOT, Mutant, MutantResult, apply_mutant, main, run_mutant

SOURCE = ROOT / "src" / "phalanx"


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_a_mutation_still_applies_to_the_source(mutant: Mutant) -> None:
    text = (SOURCE / mutant.file).read_text()
    changed = apply_mutant(mutant, text)
    assert changed != text
    ast.parse(changed)
    assert [test for test in mutant.tests if not (ROOT / test).exists()] == []


def test_a_mutation_that_does_not_apply_is_an_error() -> None:
    with pytest.raises(LookupError, match=r"a\.py does not hold this once: x"):
        apply_mutant(Mutant("", "a.py", "x", "y"), "x and x")


def planted(folder: Path) -> tuple[Mutant, Path]:
    file = folder / "src" / "phalanx" / "a.py"
    file.parent.mkdir(parents=True)
    file.write_text("x = 1\n")
    return Mutant("one", "a.py", "x = 1", "x = 2", ("tests",)), file


@pytest.mark.parametrize(
    ("finds", "by"),
    [
        ({"tools.faults"}, "ordeals"),
        ({"pytest", "tools.faults"}, "suite"),
        (set(), ""),
    ],
)
def test_a_mutant_is_found_by_its_tests_or_else_by_ordeals_and_taken_out_again(
    finds: set[str], by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant, file = planted(tmp_path)

    def failure(copy: Path, patience: float, module: str, *arguments: str) -> str:
        assert file.read_text() == "x = 2\n"
        return "found" if module in finds else ""

    monkeypatch.setattr(mutants, "_failure", failure)
    verdict = run_mutant(mutant, tmp_path)
    assert (verdict.found_by, verdict.message) == (by, "found" if by else "")
    assert file.read_text() == "x = 1\n"


def test_a_survivor_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mutants, "copy_repository", lambda folder: folder)
    monkeypatch.setattr(mutants, "_failure", lambda *words: "")
    monkeypatch.setattr(
        mutants, "run_mutant", lambda mutant, copy, **asked: MutantResult("", "", 1.0)
    )
    assert main(["--only", "ledger"]) == 1
    assert "SURVIVED" in capsys.readouterr().out
    monkeypatch.setattr(
        mutants, "run_mutant", lambda mutant, copy, **asked: MutantResult("suite", "E", 1.0)
    )
    assert main(["--only", "ledger"]) == 0


def test_the_tests_beside_a_mutant_can_be_asked_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant, _ = planted(tmp_path)
    asked: list[str] = []

    def failure(copy: Path, patience: float, module: str, *arguments: str) -> str:
        asked.append(module)
        return ""

    monkeypatch.setattr(mutants, "_failure", failure)
    assert run_mutant(mutant, tmp_path, suite=True).found_by == ""
    assert asked == ["pytest"]


def test_nothing_is_said_of_mutants_where_the_source_itself_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mutants, "copy_repository", lambda folder: folder)
    monkeypatch.setattr(mutants, "_failure", lambda *words: "seed 3: it broke")
    assert main(["--only", "ledger"]) == 2
    assert capsys.readouterr().out == "the source itself is found to be wrong: seed 3: it broke\n"


@pytest.mark.soak
def test_every_mutant_is_caught() -> None:
    assert main([]) == 0
