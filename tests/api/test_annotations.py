from __future__ import annotations

import pytest

from phalanx.api.resources import USAGE_ANNOTATION, BadUsage, parse_usage_annotation


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("cpu=250m", {"cpu": "250m"}),
        ("cpu=1, memory=1Gi", {"cpu": "1", "memory": "1Gi"}),
    ],
)
def test_usage_annotation_is_parsed(text: str, found: dict[str, str]) -> None:
    assert parse_usage_annotation({USAGE_ANNOTATION: text} if text else {}) == found


@pytest.mark.parametrize("text", ["cpu", "cpu=", "cpu=-1", "gpu=1", "cpu=1;memory=2", "cpu=much"])
def test_malformed_usage_annotation_is_refused(text: str) -> None:
    with pytest.raises(BadUsage, match="is not of the form cpu=250m,memory=1Gi"):
        parse_usage_annotation({USAGE_ANNOTATION: text})
