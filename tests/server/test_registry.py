from __future__ import annotations

import pytest

from phalanx.api.kinds import CONFIG_MAP, POD, Kind
from phalanx.api.strategy import BuiltinStrategy
from phalanx.server.discovery import KindRegistry

WIDGET = Kind("example.com", "v1", "Widget", "widgets", "core.v1.ConfigMap")
WIDGET_BETA = Kind("example.com", "v1beta1", "Widget", "widgets", "core.v1.ConfigMap")
GADGET = Kind("example.com", "v1", "Gadget", "gadgets", "core.v1.ConfigMap")


@pytest.fixture
def registry() -> KindRegistry:
    return KindRegistry((CONFIG_MAP, POD))


def define(registry: KindRegistry, name: str, *kinds: Kind) -> None:
    registry.define(name, [(kind, BuiltinStrategy(kind)) for kind in kinds])


def test_custom_kinds_come_after_built_in_kinds(registry: KindRegistry) -> None:
    define(registry, "widgets.example.com", WIDGET)
    define(registry, "gadgets.example.com", GADGET)
    assert registry.kinds == (CONFIG_MAP, POD, GADGET, WIDGET)
    assert registry.built_in == (CONFIG_MAP, POD)
    assert registry.find("example.com", "v1", "widgets") is WIDGET
    assert registry.kinds_in("example.com", "v1") == [GADGET, WIDGET]
    assert registry.serves("example.com", "v1")


def test_a_changed_definition_replaces_its_kinds(registry: KindRegistry) -> None:
    define(registry, "widgets.example.com", WIDGET, WIDGET_BETA)
    define(registry, "widgets.example.com", WIDGET_BETA)
    assert registry.find("example.com", "v1", "widgets") is None
    assert registry.find("example.com", "v1beta1", "widgets") is WIDGET_BETA
    define(registry, "widgets.example.com")
    assert registry.kinds == (CONFIG_MAP, POD)
    assert not registry.serves("example.com", "v1beta1")


def test_versions_come_in_the_order_in_which_clients_should_prefer_them(
    registry: KindRegistry,
) -> None:
    define(registry, "widgets.example.com", WIDGET_BETA, WIDGET)
    assert registry.versions_by_group() == {"": ["v1"], "example.com": ["v1", "v1beta1"]}


def test_a_built_in_kind_cannot_be_redefined(registry: KindRegistry) -> None:
    other = Kind("", "v1", "Pod", "pods", "core.v1.ConfigMap")
    newer = Kind("", "v2", "Pod", "pods", "core.v1.ConfigMap")
    define(registry, "pods.", other, newer)
    assert registry.find("", "v1", "pods") is POD
    assert registry.kinds == (CONFIG_MAP, POD)
    assert registry.is_built_in("", "pods")
    assert not registry.is_built_in("example.com", "pods")


def test_the_strategy_of_a_kind_can_be_replaced(registry: KindRegistry) -> None:
    model = BuiltinStrategy(POD)
    registry.set_strategy(CONFIG_MAP, model)
    assert registry.strategy(CONFIG_MAP) is model
    assert registry.kinds == (CONFIG_MAP, POD)
