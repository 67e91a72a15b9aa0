from __future__ import annotations

import pytest

from phalanx.api.kinds import CONFIG_MAP, POD, Kind
from phalanx.api.model import KnownModel
from phalanx.server.registry import Registry

WIDGET = Kind("example.com", "v1", "Widget", "widgets", "core.v1.ConfigMap")
WIDGET_BETA = Kind("example.com", "v1beta1", "Widget", "widgets", "core.v1.ConfigMap")
GADGET = Kind("example.com", "v1", "Gadget", "gadgets", "core.v1.ConfigMap")


@pytest.fixture
def registry() -> Registry:
    return Registry((CONFIG_MAP, POD))


def define(registry: Registry, name: str, *kinds: Kind) -> None:
    registry.define(name, [(kind, KnownModel(kind)) for kind in kinds])


def test_what_is_defined_is_served_behind_what_is_always_there(registry: Registry) -> None:
    define(registry, "widgets.example.com", WIDGET)
    define(registry, "gadgets.example.com", GADGET)
    assert registry.kinds == (CONFIG_MAP, POD, GADGET, WIDGET)
    assert registry.known == (CONFIG_MAP, POD)
    assert registry.find("example.com", "v1", "widgets") is WIDGET
    assert registry.of("example.com", "v1") == [GADGET, WIDGET]
    assert registry.serves("example.com", "v1")


def test_a_definition_takes_the_place_of_what_it_defined_before(registry: Registry) -> None:
    define(registry, "widgets.example.com", WIDGET, WIDGET_BETA)
    define(registry, "widgets.example.com", WIDGET_BETA)
    assert registry.find("example.com", "v1", "widgets") is None
    assert registry.find("example.com", "v1beta1", "widgets") is WIDGET_BETA
    define(registry, "widgets.example.com")
    assert registry.kinds == (CONFIG_MAP, POD)
    assert not registry.serves("example.com", "v1beta1")


def test_versions_come_in_the_order_in_which_clients_should_prefer_them(registry: Registry) -> None:
    define(registry, "widgets.example.com", WIDGET_BETA, WIDGET)
    assert registry.groups() == {"": ["v1"], "example.com": ["v1", "v1beta1"]}


def test_what_is_always_there_cannot_be_defined_anew(registry: Registry) -> None:
    other = Kind("", "v1", "Pod", "pods", "core.v1.ConfigMap")
    newer = Kind("", "v2", "Pod", "pods", "core.v1.ConfigMap")
    define(registry, "pods.", other, newer)
    assert registry.find("", "v1", "pods") is POD
    assert registry.kinds == (CONFIG_MAP, POD)
    assert registry.is_known("", "pods")
    assert not registry.is_known("example.com", "pods")


def test_a_kind_can_be_judged_by_another_model(registry: Registry) -> None:
    model = KnownModel(POD)
    registry.judge(CONFIG_MAP, model)
    assert registry.model(CONFIG_MAP) is model
    assert registry.kinds == (CONFIG_MAP, POD)
