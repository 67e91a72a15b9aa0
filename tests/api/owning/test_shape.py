"""How the values of a definition fall into fields."""

from __future__ import annotations

from phalanx.api.owning.shape import Items, Map, Struct, blank, shape
from phalanx.api.schema import schema


def test_each_kind_of_value_has_its_shape() -> None:
    spec = shape(schema("core.v1.PodSpec"))
    assert isinstance(spec.inner("containers"), Items)
    assert isinstance(spec.inner("securityContext"), Struct)
    assert isinstance(spec.inner("overhead"), Map)


def test_scalars_atomics_and_what_is_not_known_have_none() -> None:
    spec = shape(schema("core.v1.PodSpec"))
    for name in ("hostname", "nodeSelector", "tolerations", "priority", "nonsense"):
        assert spec.inner(name) is None
    references = shape(schema("meta.v1.ObjectMeta")).inner("ownerReferences")
    assert isinstance(references, Items)
    assert references.item is None


def test_items_are_known_by_their_sorted_keys_and_defaults() -> None:
    ports = shape(schema("core.v1.Container")).inner("ports")
    assert isinstance(ports, Items)
    assert ports.element({"containerPort": 80}) == 'k:{"containerPort":80,"protocol":"TCP"}'
    assert ports.element({"protocol": "UDP"}) == 'k:{"containerPort":0,"protocol":"UDP"}'
    secrets = shape(schema("core.v1.ServiceAccount")).inner("secrets")
    assert isinstance(secrets, Items)
    assert secrets.element({}) == "k:{}"


def test_items_of_sets_are_known_by_themselves() -> None:
    finalizers = shape(schema("meta.v1.ObjectMeta")).inner("finalizers")
    assert isinstance(finalizers, Items)
    assert finalizers.element('a"b') == 'v:"a\\"b"'
    assert finalizers.grouped(["x", "y", "x"]) == {'v:"x"': ["x", "x"], 'v:"y"': ["y"]}


def test_a_blank_object_has_what_is_always_written() -> None:
    assert blank("core.v1.ConfigMap") == {"metadata": {}}
    assert blank("core.v1.Pod") == {"metadata": {}, "spec": {"containers": None}, "status": {}}
    assert blank("batch.v1.Job")["spec"] == {
        "template": {"metadata": {}, "spec": {"containers": None}}
    }
    assert blank("core.v1.Node")["status"]["daemonEndpoints"] == {"kubeletEndpoint": {"Port": 0}}
    assert blank("scheduling.v1beta1.PodGroup")["spec"] == {"schedulingPolicy": {}}
