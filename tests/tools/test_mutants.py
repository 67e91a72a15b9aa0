"""Every mutant still applies to the source, and the tool leaves no mutated source behind."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tools import mutants
from tools.mutants import MUTANTS, ROOT, Mutant, MutantResult, apply_mutant, main, run_mutant

SOURCE = ROOT / "src" / "phalanx"


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_mutant_applies_to_the_source(mutant: Mutant) -> None:
    text = (SOURCE / mutant.file).read_text()
    changed = apply_mutant(mutant, text)
    assert changed != text
    ast.parse(changed)
    assert [test for test in mutant.tests if not (ROOT / test).exists()] == []


def test_mutant_that_does_not_apply_is_an_error() -> None:
    with pytest.raises(LookupError, match=r"a\.py does not contain this text exactly once: x"):
        apply_mutant(Mutant("", "a.py", "x", "y"), "x and x")


def create_mutant(folder: Path) -> tuple[Mutant, Path]:
    file = folder / "src" / "phalanx" / "a.py"
    file.parent.mkdir(parents=True)
    file.write_text("x = 1\n")
    return Mutant("one", "a.py", "x = 1", "x = 2", ("tests",)), file


@pytest.mark.parametrize(
    ("failing_modules", "found_by"),
    [
        ({"tools.faults"}, "faults"),
        ({"pytest", "tools.faults"}, "suite"),
        (set(), ""),
    ],
)
def test_mutant_is_found_by_its_tests_or_by_fault_runs_and_reverted(
    failing_modules: set[str], found_by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant, file = create_mutant(tmp_path)

    def fake_failure(copy: Path, timeout: float, module: str, *arguments: str) -> str:
        assert file.read_text() == "x = 2\n"
        return "found" if module in failing_modules else ""

    monkeypatch.setattr(mutants, "_failure", fake_failure)
    result = run_mutant(mutant, tmp_path)
    assert (result.found_by, result.message) == (found_by, "found" if found_by else "")
    assert file.read_text() == "x = 1\n"


def test_surviving_mutant_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mutants, "copy_repository", lambda folder: folder)
    monkeypatch.setattr(mutants, "_failure", lambda *words: "")
    monkeypatch.setattr(
        mutants, "run_mutant", lambda mutant, copy, **options: MutantResult("", "", 1.0)
    )
    assert main(["--only", "ledger"]) == 1
    assert "SURVIVED" in capsys.readouterr().out
    monkeypatch.setattr(
        mutants, "run_mutant", lambda mutant, copy, **options: MutantResult("suite", "E", 1.0)
    )
    assert main(["--only", "ledger"]) == 0


def test_suite_option_runs_only_the_tests_of_a_mutant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant, _ = create_mutant(tmp_path)
    modules_run: list[str] = []

    def fake_failure(copy: Path, timeout: float, module: str, *arguments: str) -> str:
        modules_run.append(module)
        return ""

    monkeypatch.setattr(mutants, "_failure", fake_failure)
    assert run_mutant(mutant, tmp_path, suite=True).found_by == ""
    assert modules_run == ["pytest"]


def test_failing_source_is_reported_before_any_mutant_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mutants, "copy_repository", lambda folder: folder)
    monkeypatch.setattr(mutants, "_failure", lambda *words: "seed 3: it broke")
    assert main(["--only", "ledger"]) == 2
    assert capsys.readouterr().out == "the unchanged source fails: seed 3: it broke\n"


@pytest.mark.soak
def test_every_mutant_is_caught() -> None:
    assert main([]) == 0
