from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.custom_resources.json_path import (
    MAX_LENGTH,
    BadJsonPath,
    field_keys,
    find_values,
    parse_json_path,
)
from phalanx.api.wire import Object

WIDGET: Object = {
    "metadata": {"annotations": {"example.com/a.b": "x"}},
    "spec": {"sizes": [1, 2, 3], "on": True},
    "status": {
        "conditions": [
            {"type": "Ready", "status": "True", "at": 3},
            {"type": "Full", "status": "False", "at": 7},
        ]
    },
}


@pytest.mark.parametrize(
    ("path", "values"),
    [
        (".spec.sizes", [[1, 2, 3]]),
        (".spec.sizes[0]", [1]),
        (".spec.sizes[-1]", [3]),
        (".spec.sizes[7]", []),
        (".spec.sizes[*]", [1, 2, 3]),
        (".spec.sizes[1:]", [2, 3]),
        (".spec.sizes[:2]", [1, 2]),
        (".spec.on[0]", []),
        (".spec.*", [[1, 2, 3], True]),
        (".metadata.annotations['example.com/a.b']", ["x"]),
        (r".metadata.annotations.example\.com/a\.b", ["x"]),
        ('.status.conditions[?(@.type=="Ready")].status', ["True"]),
        (".status.conditions[?( @.type == 'Full' )].status", ["False"]),
        (".status.conditions[?(@.type!='Ready')].type", ["Full"]),
        (".status.conditions[?(@.at>5)].type", ["Full"]),
        (".status.conditions[?(@.at<=3.5)].type", ["Ready"]),
        (".status.conditions[?(@.type>5)].type", []),
        (".status.conditions[?(@.at)].type", ["Ready", "Full"]),
        (".status.conditions[?(@.nope)].type", []),
        (".status.phase.reason", []),
        ("", [WIDGET]),
    ],
)
def test_path_selects_values(path: str, values: list[Any]) -> None:
    assert list(find_values(parse_json_path(path), WIDGET)) == values


@pytest.mark.parametrize(
    "path", ["..spec", ".", "spec", ".a[", ".a[x]", ".a[?(@.b==c)]", "." + "a" * MAX_LENGTH]
)
def test_malformed_path_is_refused(path: str) -> None:
    with pytest.raises(BadJsonPath):
        parse_json_path(path)


def test_only_a_path_of_fields_has_keys() -> None:
    assert field_keys(".spec.replicas") == ("spec", "replicas")
    assert [field_keys(path) for path in ("", ".", ".spec[0]", ".spec..x", "spec")] == [()] * 5
