"""CEL expressions over devices."""

from __future__ import annotations

import msgspec
import pytest

from phalanx.api.dynamic_resources import Device
from phalanx.scheduler.devices.selectors import DeviceKind, SelectorError, device_kind
from tests.scheduler.device_builders import DRIVER, device


def kind(**fields: object) -> DeviceKind:
    found = device_kind(DRIVER, msgspec.convert(device("gpu-0", **fields), Device))
    assert found is not None
    return found


LARGE = kind(
    attributes={"model": "h100", "numa": 1, "shared": True, "other.example/tier": "gold"},
    capacity={"memory": "80Gi"},
)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ('device.driver == "gpu.example"', True),
        ('device.driver == "other.example"', False),
        ('device.attributes["gpu.example"].model == "h100"', True),
        ('device.attributes["gpu.example"].numa > 1', False),
        ('device.attributes["gpu.example"].shared', True),
        ('device.attributes["other.example"].tier == "gold"', True),
        ('device.capacity["gpu.example"].memory.compareTo(quantity("40Gi")) >= 0', True),
        ('device.capacity["gpu.example"].memory.isLessThan(quantity("40Gi"))', False),
        ("device.allowMultipleAllocations", False),
        # A domain that the device lacks reads as empty, and is not there.
        ('has(device.attributes["missing.example"].model)', False),
        ('"missing.example" in device.attributes', False),
        ('"gpu.example" in device.attributes', True),
        ('device.attributes["missing.example"].?model.orValue("none") == "none"', True),
    ],
)
def test_expression_selects_devices(expression: str, expected: bool) -> None:
    assert LARGE.matches(expression) is expected


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ('device.attributes["gpu.example"].missing == "x"', "no such key: missing"),
        ("device.driver ==", "invalid expression"),
        ("device.driver", "must be a bool"),
        ("device.unknown", "undefined field"),
        ('device.attributes["gpu.example"].model', "not a bool"),
    ],
)
def test_expression_without_a_result_is_an_error(expression: str, message: str) -> None:
    with pytest.raises(SelectorError, match=message):
        LARGE.matches(expression)
    with pytest.raises(SelectorError, match=message):
        LARGE.matches(expression)


def test_versions_are_compared_as_versions() -> None:
    found = device_kind(
        DRIVER,
        msgspec.convert(
            {"name": "a", "attributes": {"driverVersion": {"version": "1.10.0"}}}, Device
        ),
    )
    assert found is not None
    version = 'device.attributes["gpu.example"].driverVersion'
    assert found.matches(f'{version}.isGreaterThan(semver("1.9.0"))')


def test_malformed_device_has_no_kind() -> None:
    broken = {"name": "a", "attributes": {"v": {"version": "one"}}}
    assert device_kind(DRIVER, msgspec.convert(broken, Device)) is None


def test_devices_with_equal_attributes_share_one_kind() -> None:
    first, second = kind(attributes={"a": 1}), kind(attributes={"a": 1})
    assert first is second
    assert first is not kind(attributes={"a": 2})


def test_attribute_of_a_list_has_all_of_its_values() -> None:
    listed = {"name": "a", "attributes": {"numa": {"ints": [0, 1]}}}
    found = device_kind(DRIVER, msgspec.convert(listed, Device))
    assert found is not None
    assert found.attribute("gpu.example/numa") == frozenset({("int", 0), ("int", 1)})
    assert found.attribute("gpu.example/other") is None
