from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.api.errors import BadRequest
from phalanx.testing.cluster import ManifestSource, load_objects

ONE, TWO = {"kind": "Pod", "metadata": {"name": "one"}}, {"kind": "Pod"}
TEXT = "# a comment\n---\nkind: Pod\nmetadata: {name: one}\n--- # and\nkind: Pod\n---\n"


@pytest.mark.parametrize("manifest", [TEXT, {"kind": "List", "items": [ONE, TWO]}])
def test_manifest_may_contain_several_objects(manifest: ManifestSource) -> None:
    assert list(load_objects(manifest)) == [ONE, TWO]


def test_file_is_given_as_path_or_string(tmp_path: Path) -> None:
    path = tmp_path / "pods.yaml"
    path.write_text(TEXT)
    assert list(load_objects(path)) == list(load_objects(str(path))) == [ONE, TWO]


def test_missing_file_is_an_error_with_the_directory_that_was_searched() -> None:
    with pytest.raises(FileNotFoundError, match=f"no file pods.yaml in {Path.cwd()}"):
        list(load_objects("pods.yaml"))


def test_yaml_is_parsed_as_the_server_parses_it() -> None:
    [found] = load_objects("metadata:\n  creationTimestamp: 2026-01-01T00:00:00Z\n")
    assert found == {"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}}


def test_document_that_is_no_object_is_rejected() -> None:
    with pytest.raises(BadRequest, match="must be an object, not '- kind: Pod'"):
        list(load_objects("- kind: Pod\n"))
