"""The reference tool must notice lost ground, and keep its list honest."""

from __future__ import annotations

import json
from pathlib import Path

from tools.reference import (
    DEVIATES,
    FAILED,
    OK,
    Ratchet,
    Recording,
    Replayed,
    find_recordings,
    parse_verdicts,
)

RECORDING = Recording("api/nodes.json", Path("api/nodes.json"), ("a", "b: with a colon", "c"))
SAID = """ok   nodes.json: a
dev  nodes.json: b: with a colon
     step 0 GET /x: wanted 1, got 2
1 passed, 0 failed
"""


def test_a_case_that_was_not_reached_has_failed() -> None:
    assert parse_verdicts(RECORDING, SAID) == {"a": OK, "b: with a colon": DEVIATES, "c": FAILED}


def test_a_refusal_that_differs_in_nothing_but_its_better_code_passes() -> None:
    said = "FAIL nodes.json: a\n     step 1 said: {}\nFAIL nodes.json: c\n     step 0 GET /: x\n"
    told = parse_verdicts(RECORDING, said)
    assert (told["a"], told["c"]) == (OK, FAILED)


def test_a_file_is_told_in_one_line() -> None:
    replayed = Replayed(RECORDING, parse_verdicts(RECORDING, SAID), SAID)
    assert replayed.ids(OK) == {"api/nodes.json: a"}
    assert replayed.line() == " !   1/3   api/nodes.json"


def test_what_passed_before_and_fails_now_is_lost() -> None:
    ratchet = Ratchet(before={"a", "b"}, replayed={"a", "b", "c"}, passing={"b", "c"}, meant=set())
    assert ratchet.lost == ["a"]


def test_what_was_not_replayed_or_differs_on_purpose_is_not_lost() -> None:
    ratchet = Ratchet(before={"a", "b"}, replayed={"b"}, passing=set(), meant={"b"})
    assert ratchet.lost == []


def test_an_update_only_adds_unless_it_is_forced() -> None:
    ratchet = Ratchet(before={"a", "x"}, replayed={"a", "b"}, passing={"b"}, meant=set())
    assert ratchet.kept(force=False) == ["a", "b", "x"]
    assert ratchet.kept(force=True) == ["b", "x"]


def test_recordings_are_found_by_words_in_their_names(tmp_path: Path) -> None:
    for name, cases in {"api/nodes": [{"name": "a"}], "wanted/gang": {"name": "b"}}.items():
        path = tmp_path / f"{name}.json"
        path.parent.mkdir()
        path.write_text(json.dumps(cases))
    assert [r.name for r in find_recordings(tmp_path, [])] == ["api/nodes.json", "wanted/gang.json"]
    (gang,) = find_recordings(tmp_path, ["gang"])
    assert (gang.cases, gang.lane) == (("b",), "scenarios")
