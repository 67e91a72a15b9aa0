from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.api.errors import BadRequest
from phalanx.testing.cluster import ManifestSource, load_objects

ONE, TWO = {"kind": "Pod", "metadata": {"name": "one"}}, {"kind": "Pod"}
TEXT = "# a comment\n---\nkind: Pod\nmetadata: {name: one}\n--- # and\nkind: Pod\n---\n"


@pytest.mark.parametrize("manifest", [TEXT, {"kind": "List", "items": [ONE, TWO]}])
def test_a_manifest_may_hold_several_objects(manifest: ManifestSource) -> None:
    assert list(load_objects(manifest)) == [ONE, TWO]


def test_a_file_goes_by_its_path_or_its_name(tmp_path: Path) -> None:
    path = tmp_path / "pods.yaml"
    path.write_text(TEXT)
    assert list(load_objects(path)) == list(load_objects(str(path))) == [ONE, TWO]


def test_words_mean_what_they_mean_to_the_server() -> None:
    [found] = load_objects("metadata:\n  creationTimestamp: 2026-01-01T00:00:00Z\n")
    assert found == {"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}}


def test_what_is_no_object_is_refused() -> None:
    with pytest.raises(BadRequest, match="'- kind: Pod' is none"):
        list(load_objects("- kind: Pod\n"))
