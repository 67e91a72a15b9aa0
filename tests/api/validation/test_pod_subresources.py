from __future__ import annotations

import pytest

from phalanx.api.kinds import POD
from phalanx.api.validation.registry import validate
from phalanx.api.wire import Object

DEFAULTS: Object = {"terminationMessagePolicy": "File", "imagePullPolicy": "IfNotPresent"}
META: Object = {"name": "a", "namespace": "default", "uid": "u", "resourceVersion": "1"}


def pod(*ephemeral: Object, **resources: Object) -> Object:
    main = {"name": "main", "image": "x:1", "resources": resources}
    spec: Object = {"containers": [main]}
    if ephemeral:
        spec["ephemeralContainers"] = [{**DEFAULTS, **one} for one in ephemeral]
    return {"metadata": dict(META), "spec": spec, "status": {}}


def update_causes(new: Object, old: Object, part: str) -> list[tuple[str, str]]:
    return [(cause.field, cause.reason) for cause in validate(POD, new, old, subresource=part)]


def test_a_resize_within_the_class_is_fine() -> None:
    old, new = pod(requests={"cpu": "1"}), pod(requests={"cpu": "2"})
    assert update_causes(new, old, "resize") == []


def test_a_resize_may_not_change_the_class() -> None:
    assert update_causes(pod(requests={"cpu": "1"}), pod(), "resize") == [
        ("spec", "FieldValueInvalid")
    ]


def test_a_resize_must_be_sound() -> None:
    old = pod(requests={"cpu": "1"}, limits={"cpu": "2"})
    new = pod(requests={"cpu": "3"}, limits={"cpu": "2"})
    assert update_causes(new, old, "resize") == [
        ("spec.containers[0].resources.requests", "FieldValueInvalid")
    ]


def test_ephemeral_container_may_be_added() -> None:
    new = pod({"name": "look", "image": "x:1", "targetContainerName": "main"})
    assert update_causes(new, pod(), "ephemeralcontainers") == []


@pytest.mark.parametrize(
    ("container", "field", "reason"),
    [
        ({"name": "main", "image": "x"}, "name", "FieldValueDuplicate"),
        ({"image": "x"}, "name", "FieldValueRequired"),
        ({"name": "A", "image": "x"}, "name", "FieldValueInvalid"),
        ({"name": "b"}, "image", "FieldValueRequired"),
        ({"name": "b", "image": "x", "ports": [{"containerPort": 80, "protocol": "TCP"}]}, "ports",
         "FieldValueForbidden"),
        ({"name": "b", "image": "x", "restartPolicy": "Always"}, "restartPolicy",
         "FieldValueForbidden"),
        ({"name": "b", "image": "x", "imagePullPolicy": "Odd"}, "imagePullPolicy",
         "FieldValueNotSupported"),
        ({"name": "b", "image": "x", "env": [{"value": "v"}]}, "env[0].name",
         "FieldValueRequired"),
        ({"name": "b", "image": "x", "targetContainerName": "c"}, "targetContainerName",
         "FieldValueNotFound"),
    ],
)  # fmt: skip
def test_what_joins_must_be_sound(container: Object, field: str, reason: str) -> None:
    found = update_causes(pod(container), pod(), "ephemeralcontainers")
    assert found == [(f"spec.ephemeralContainers[0].{field}", reason)]


def test_an_existing_ephemeral_container_is_neither_removed_nor_changed() -> None:
    look, other = {"name": "look", "image": "x:1"}, {"name": "other", "image": "x:1"}
    old, cause = pod(look), ("spec.ephemeralContainers", "FieldValueForbidden")
    assert update_causes(pod(look, other), old, "ephemeralcontainers") == []
    assert update_causes(pod(other), old, "ephemeralcontainers") == [cause]
    changed = {**look, "image": "x:2"}
    assert update_causes(pod(changed), old, "ephemeralcontainers") == [cause]


def test_a_resize_keeps_every_request_and_limit() -> None:
    old = pod(requests={"cpu": "1"}, limits={"cpu": "2"})
    assert update_causes(pod(requests={"cpu": "1"}), old, "resize") == [
        ("spec.containers[0].resources.limits", "FieldValueForbidden")
    ]
