"""The reference tool reports cases that passed before and fail now, and keeps its list."""

from __future__ import annotations

import json
from pathlib import Path

from phalanx.api.wire import Object
from tools.foreign_forms import FORMS
from tools.reference import (
    DEVIATES,
    FAILED,
    OK,
    Ratchet,
    Recording,
    Replayed,
    find_recordings,
    parse_verdicts,
    translate_recordings,
)

RECORDING = Recording("api/nodes.json", Path("api/nodes.json"), ("a", "b: with a colon", "c"))
OUTPUT = """ok   nodes.json: a
dev  nodes.json: b: with a colon
     step 0 GET /x: wanted 1, got 2
1 passed, 0 failed
"""


def test_case_without_a_verdict_has_failed() -> None:
    assert parse_verdicts(RECORDING, OUTPUT) == {"a": OK, "b: with a colon": DEVIATES, "c": FAILED}


def test_failure_that_differs_only_in_a_better_code_passes() -> None:
    output = "FAIL nodes.json: a\n     step 1 said: {}\nFAIL nodes.json: c\n     step 0 GET /: x\n"
    verdicts = parse_verdicts(RECORDING, output)
    assert (verdicts["a"], verdicts["c"]) == (OK, FAILED)


def test_replayed_file_is_summarised_in_one_line() -> None:
    replayed = Replayed(RECORDING, parse_verdicts(RECORDING, OUTPUT), OUTPUT)
    assert replayed.ids(OK) == {"api/nodes.json: a"}
    assert replayed.line() == " !   1/3   api/nodes.json"


def test_case_that_passed_before_and_fails_now_is_lost() -> None:
    ratchet = Ratchet(before={"a", "b"}, replayed={"a", "b", "c"}, passing={"b", "c"}, meant=set())
    assert ratchet.lost == ["a"]


def test_case_not_replayed_or_different_on_purpose_is_not_lost() -> None:
    ratchet = Ratchet(before={"a", "b"}, replayed={"b"}, passing=set(), meant={"b"})
    assert ratchet.lost == []


def test_update_only_adds_cases_unless_forced() -> None:
    ratchet = Ratchet(before={"a", "x"}, replayed={"a", "b"}, passing={"b"}, meant=set())
    assert ratchet.kept(force=False) == ["a", "b", "x"]
    assert ratchet.kept(force=True) == ["b", "x"]


def test_recordings_are_selected_by_parts_of_their_names(tmp_path: Path) -> None:
    for name, cases in {"api/nodes": [{"name": "a"}], "wanted/gang": {"name": "b"}}.items():
        path = tmp_path / f"{name}.json"
        path.parent.mkdir()
        path.write_text(json.dumps(cases))
    assert [r.name for r in find_recordings(tmp_path, [])] == ["api/nodes.json", "wanted/gang.json"]
    (gang,) = find_recordings(tmp_path, ["gang"])
    assert (gang.cases, gang.plane_type) == (("b",), "scenarios")


def test_only_scenarios_that_a_form_can_express_are_replayed_on_a_foreign_server(
    tmp_path: Path,
) -> None:
    source = tmp_path / "reference" / "scenarios"
    source.mkdir(parents=True)
    policies: dict[str, Object] = {"gang-a": {"gang": {"minCount": 2}}, "basic-b": {"basic": {}}}
    for name, policy in policies.items():
        group = {
            "kind": "PodGroup",
            "metadata": {"name": "g"},
            "spec": {"schedulingPolicy": policy},
        }
        case = {
            "name": name,
            "steps": [{"create": [group]}],
            "outcome": {"groups": {}, "facts": {}},
        }
        (source / f"{name}.json").write_text(json.dumps(case))
    found = find_recordings(tmp_path / "reference", [])
    names = {
        form: [one.path.name for one in translate_recordings(found, FORMS[form], tmp_path)]
        for form in ("custom-resources", "volcano")
    }
    assert names == {
        "custom-resources": ["basic-b.json", "gang-a.json"],
        "volcano": ["gang-a.json"],
    }
    # Groups of other projects have no conditions and owners as recorded.
    compared = json.loads((tmp_path / "gang-a.json").read_text())["better"]
    assert compared == {"groups": {}, "then": []}
