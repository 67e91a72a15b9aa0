"""Objects of each kind with every field set, from the encoding tests of Kubernetes.

The values are arbitrary, so few of the objects are valid; but every field must be decoded.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import yaml

from phalanx.api.conversion.hub import from_hub, to_hub
from phalanx.api.kinds import EVICTION, KINDS, LEASE, POD, Kind
from phalanx.api.schema import schema
from phalanx.api.wire import Object
from tests.builders import in_virtual_time, pod
from tests.server.api import Api

FOLDER = Path(__file__).parent.parent / "recorded" / "testdata"
PATHS = sorted(FOLDER.glob("*.json"))
SERVED = {(kind.api_version, kind.name): kind for kind in (*KINDS, EVICTION)}

each_testdata_file = pytest.mark.parametrize("path", PATHS, ids=[path.stem for path in PATHS])


def load_object(path: Path) -> tuple[Kind, Object]:
    """Return the kind of an object, and its other fields."""
    obj: Object = json.loads(path.read_text())
    return SERVED[obj.pop("apiVersion"), obj.pop("kind")], obj


@each_testdata_file
def test_json_and_yaml_are_equal(path: Path) -> None:
    assert yaml.safe_load(path.with_suffix(".yaml").read_text()) == json.loads(path.read_text())


@each_testdata_file
def test_no_field_is_unknown_lost_or_changed(path: Path) -> None:
    kind, obj = load_object(path)
    normalized = copy.deepcopy(obj)
    assert schema(kind.schema).normalize(normalized).unknown_fields == ()
    assert normalized == obj


@each_testdata_file
def test_no_field_is_lost_by_converting_to_the_stored_version_and_back(path: Path) -> None:
    kind, obj = load_object(path)
    assert from_hub(kind, to_hub(kind, copy.deepcopy(obj))) == obj


@each_testdata_file
@in_virtual_time
async def test_server_decodes_it_strictly_and_refuses_only_its_values(path: Path) -> None:
    kind, obj = load_object(path)
    api = await Api.start()
    await api.create(POD, pod("x"))
    obj["metadata"] = {"name": "x"}
    if kind is LEASE:
        # Dropped, as by a Kubernetes without coordinated leader election.
        del obj["spec"]["strategy"], obj["spec"]["preferredHolder"]
    where = kind.url_path("default" if kind.namespaced else "")
    if kind is EVICTION:
        where = POD.url_path("default", "x", "eviction")
    answer = await api.ask("POST", where, obj, query={"fieldValidation": "Strict"})
    assert answer.code in (201, 403, 422), answer.body
    if answer.code == 201:
        stated = obj.keys() - {"metadata"}
        assert {key: answer.body[key] for key in stated} == {key: obj[key] for key in stated}
