"""The comparison of answers reports every difference that it does not ignore by rule."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.recorded_cases import (
    Case,
    answer_differences,
    decoded,
    differences,
    dig,
    fill,
    recorded_cases,
    run,
    seen,
)

OBJECT = {"metadata": {"name": "a", "uid": "*"}, "spec": {"replicas": 1, "paused": False}}


def test_every_recorded_answer_equals_itself() -> None:
    for step in (step for case in recorded_cases() for step in case.steps):
        answer = {**step["answer"], "warnings": len(step["answer"].get("warnings", ()))}
        answer.pop("message", None)
        assert answer_differences(step["answer"], answer) == []


@pytest.mark.parametrize(
    ("want", "got"),
    [
        ("*", 7),
        ("a*c", "abbc"),
        (None, ""),
        ({"a": None}, {}),
        ({}, {"a": ""}),
        ({"status": {}}, {}),
        ({}, {"metadata": {}}),
        ({}, {"managedFields": [{"manager": "x"}]}),
        ({"verbs": ["get", "list"]}, {"verbs": ["list", "get"]}),
    ],
)
def test_equivalent_answers_have_no_differences(want: Any, got: Any) -> None:
    assert differences(want, got) == []


@pytest.mark.parametrize(
    ("want", "got"),
    [
        ("*", None),
        ("a*c", "abb"),
        (True, 1),
        ({"a": 0}, {}),
        ({}, {"a": {}}),
        ({}, {"a": False}),
        ({"spec": {}}, {}),
        ([1], [1, 2]),
        ([1, 2], [2, 1]),
        ({"a": []}, {}),
        (OBJECT, {**OBJECT, "spec": {"replicas": 1}}),
    ],
)
def test_other_answers_differ(want: Any, got: Any) -> None:
    assert differences(want, got) != []


def test_a_difference_names_its_path() -> None:
    want = {"items": [{"spec": {"replicas": 1}}]}
    got = {"items": [{"spec": {"replicas": 2}}]}
    assert differences(want, got) == [".items[0].spec.replicas: wanted 1, got 2"]


def test_a_client_error_may_replace_a_recorded_500_and_a_success_may_not() -> None:
    want = {"code": 500, "reason": "InternalError", "causes": [], "details": {}}
    assert answer_differences(want, seen(400, [], {"reason": "BadRequest"})) == []
    assert answer_differences(want, seen(200, [], {})) != []


def test_only_the_number_of_warnings_is_compared() -> None:
    want = {"code": 200, "object": {}, "warnings": ['299 - "old"']}
    assert answer_differences(want, seen(200, [("Warning", '299 - "dated"')], {})) == []
    assert answer_differences(want, seen(200, [], {})) != []


def test_causes_count_in_any_order() -> None:
    want = {"code": 422, "causes": [["b", "X"], ["a", "X"]], "details": {"kind": "Pod"}}
    causes = [{"field": "a", "reason": "X"}, {"field": "b", "reason": "X"}]
    got = {"details": {"kind": "Pod", "causes": causes}}
    assert answer_differences(want, seen(422, [], got)) == []


def test_a_path_selects_list_items_by_index_and_by_name() -> None:
    value = {"items": [{"name": "x", "n": [5]}], "paths": {"api/v1": 3}}
    assert dig(value, "items.0.name") == "x"
    assert dig(value, "items[name=x].n.0") == 5
    assert dig(value, "paths[api/v1]") == 3
    assert dig(value, "items.4.name") is None
    assert dig(value, "items[name=y].n") is None


def test_placeholders_are_replaced_in_keys_and_values() -> None:
    assert fill({"{id}": ["in {ns}", 1]}, {"id": "x", "ns": "y"}) == {"x": ["in y", 1]}


def test_a_watch_is_compared_by_its_events() -> None:
    event = {"type": "ADDED", "object": {}}
    assert decoded("watch=1", 200, json.dumps(event).encode() + b"\n") == {"events": [event]}
    assert decoded("", 200, b"ok") == {"text": "ok"}


def test_a_case_runs_in_its_own_namespace_and_reuses_saved_values() -> None:
    asked: list[str] = []

    def send(
        method: str, path: str, query: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, Sequence[tuple[str, str]], bytes]:
        asked.append(f"{method} {path}")
        return 200, [], b'{"metadata": {"uid": "u-1"}}'

    answer = {"code": 200, "object": {"metadata": {"uid": "u-2"}}}
    save = {
        "request": {"method": "GET", "path": "/a"},
        "answer": answer,
        "save": {"u": "metadata.uid"},
    }
    use = {"request": {"method": "GET", "path": "/b/{ns}/{u}"}, "answer": {"code": 200}}
    found = run(Case("api/x.json", "x", [save, use], ["/c/{id}"]), send, "7")
    assert asked == [
        "POST /api/v1/namespaces",
        "GET /a",
        "GET /b/case-7/u-1",
        "DELETE /c/x7",
        "DELETE /api/v1/namespaces/case-7",
    ]
    assert found[0] == 'step 0, GET /a.object.metadata.uid: wanted "u-2", got "u-1"'
