"""Admission of claims and volumes: default classes, protection finalizers, larger requests."""

from __future__ import annotations

import pytest

from phalanx.api.kinds import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, STORAGE_CLASS
from phalanx.api.storage import DEFAULT_CLASS_ANNOTATIONS
from phalanx.api.wire import Object
from tests.builders import in_virtual_time
from tests.server.api import Api

CLAIMS = PERSISTENT_VOLUME_CLAIM.url_path("default")


def storage_class(name: str, *, default: bool = False, **fields: object) -> Object:
    annotations = {DEFAULT_CLASS_ANNOTATIONS[0]: "true"} if default else {}
    return {
        "metadata": {"name": name, "annotations": annotations},
        "provisioner": "disk.example",
        **fields,
    }


def claim(name: str, **spec: object) -> Object:
    size = {"requests": {"storage": "1Gi"}}
    return {
        "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": size, **spec},
    }


async def create_claim(api: Api, new: Object) -> Object:
    answer = await api.ask("POST", CLAIMS, new)
    assert answer.code == 201, answer.body
    return answer.body


@pytest.mark.parametrize(
    ("spec", "annotations", "wanted"),
    [
        ({}, {}, "b"),
        ({"storageClassName": ""}, {}, ""),
        ({"storageClassName": "other"}, {}, "other"),
        ({}, {"volume.beta.kubernetes.io/storage-class": "old"}, None),
    ],
)
@in_virtual_time
async def test_claim_without_class_gets_the_first_of_equally_new_default_classes(
    spec: Object, annotations: Object, wanted: str | None
) -> None:
    api = await Api.start()
    for new in (storage_class("c", default=True), storage_class("b", default=True)):
        await api.create(STORAGE_CLASS, new)
    await api.create(STORAGE_CLASS, storage_class("a"))
    new = claim("x", **spec)
    new["metadata"]["annotations"] = annotations
    assert (await create_claim(api, new))["spec"].get("storageClassName") == wanted


@in_virtual_time
async def test_new_claims_and_volumes_are_protected() -> None:
    api = await Api.start()
    stored = await create_claim(api, claim("x"))
    assert stored["metadata"]["finalizers"] == ["kubernetes.io/pvc-protection"]
    assert "storageClassName" not in stored["spec"]
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": "/"},
    }
    new = {"metadata": {"name": "v", "finalizers": ["kubernetes.io/pv-protection"]}, "spec": spec}
    answer = await api.ask("POST", PERSISTENT_VOLUME.url_path(), new)
    assert answer.body["metadata"]["finalizers"] == ["kubernetes.io/pv-protection"]


@pytest.mark.parametrize(("allowed", "code"), [(True, 200), (False, 403)])
@in_virtual_time
async def test_bound_claim_grows_only_if_its_class_allows_it(allowed: bool, code: int) -> None:
    api = await Api.start()
    await api.create(STORAGE_CLASS, storage_class("disk", allowVolumeExpansion=allowed))
    await create_claim(api, claim("x", storageClassName="disk"))
    bound = {"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}}
    await api.patch(PERSISTENT_VOLUME_CLAIM, "x", bound, part="status")
    more = {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}
    assert (await api.patch(PERSISTENT_VOLUME_CLAIM, "x", more)).code == code


@in_virtual_time
async def test_status_of_a_volume_records_when_its_phase_changed() -> None:
    api = await Api.start()
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": "/"},
    }
    await api.create(PERSISTENT_VOLUME, {"metadata": {"name": "v"}, "spec": spec})
    path = PERSISTENT_VOLUME.url_path(name="v", subresource="status")
    headers = {"content-type": "application/json-patch+json"}
    change = [{"op": "replace", "path": "/status", "value": {"phase": "Available"}}]
    changed = (await api.ask("PATCH", path, change, headers=headers)).body
    assert changed["status"]["phase"] == "Available"
    assert changed["status"]["lastPhaseTransitionTime"]
    headers = {"content-type": "application/merge-patch+json"}
    again = {"status": {"phase": "Bound", "lastPhaseTransitionTime": "2020-01-01T00:00:00Z"}}
    changed = (await api.ask("PATCH", path, again, headers=headers)).body
    assert changed["status"]["lastPhaseTransitionTime"] == "2020-01-01T00:00:00Z"
    labels = {"metadata": {"labels": {"a": "b"}, "name": "v"}, "status": {"phase": None}}
    changed = (await api.ask("PATCH", path, labels, headers=headers)).body
    assert changed["metadata"]["labels"] == {"a": "b"}
    assert changed["status"]["phase"] == "Pending"
