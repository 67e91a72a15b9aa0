"""Formats that a schema may ask of a text: one test per name. One that has no row asks nothing.

Used by the checks of custom resources (`custom/checks.py`).
"""

from __future__ import annotations

import binascii
import ipaddress
import re
from collections.abc import Callable, Mapping
from datetime import date, datetime

from phalanx.api.fields import dns_label_faults, dns_subdomain_faults
from phalanx.api.quantity import canonical

Test = Callable[[str], bool]

_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,12})?([Zz]|[+-]\d\d:?\d\d)")
_UNITS = (
    "ns|us|µs|μs|ms|s|m|h|d|w|nanoseconds?|micros?|millis?|seconds?|minutes?|hours?|days?|weeks?"
)


def _like(syntax: str) -> Test:
    match = re.compile(syntax).fullmatch
    return lambda text: match(text) is not None


def _read_by(read: Callable[[str], object]) -> Test:
    """Whether a text can be read at all."""

    def test(text: str) -> bool:
        try:
            read(text)
        except ValueError:
            return False
        return True

    return test


def _moment(text: str) -> datetime:
    if not _MOMENT.fullmatch(text):
        raise ValueError(text)
    whole = re.sub(r"(\.\d{6})\d+", r"\1", text.upper().replace(" ", "T"))
    return datetime.fromisoformat(whole)


def _bytes(text: str) -> bytes:
    return binascii.a2b_base64(text.translate({10: None, 13: None}), strict_mode=True)


def _is_hostname(text: str) -> bool:
    labels = text.removesuffix(".").split(".")
    fits = _like(r"[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?")
    return len(text) <= 253 and all(fits(label) for label in labels)


def _uuid(version: str, variant: str = "[0-9a-fA-F]") -> Test:
    hexa = "[0-9a-fA-F]"
    return _like(
        f"{hexa}{{8}}-?{hexa}{{4}}-?{version}{hexa}{{3}}-?{variant}{hexa}{{3}}-?{hexa}{{12}}"
    )


#: By name without dashes, as `date-time` and `datetime` are one.
FORMATS: Mapping[str, Test] = {
    "bsonobjectid": _like("[0-9a-fA-F]{24}"),
    "byte": _read_by(_bytes),
    "cidr": lambda text: "/" in text and _read_by(lambda t: ipaddress.ip_network(t, False))(text),
    "date": _read_by(date.fromisoformat),
    "datetime": _read_by(_moment),
    "duration": _like(rf"[+-]?(\d{{1,18}}(\.\d{{1,18}})? ?({_UNITS}) ?){{1,32}}|0"),
    "email": _like(r"[^@\s]{1,254}@[^@\s]{1,254}"),
    "hexcolor": _like("#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})"),
    "hostname": _is_hostname,
    "ipv4": _read_by(ipaddress.IPv4Address),
    "ipv6": _read_by(ipaddress.IPv6Address),
    "k8slongname": lambda text: not dns_subdomain_faults(text),
    "k8sshortname": lambda text: not dns_label_faults(text),
    "mac": _like("([0-9a-fA-F]{2}[:-]){5}[0-9a-fA-F]{2}"),
    "quantity": _read_by(canonical),
    "ssn": _like(r"\d{3}[- ]?\d{2}[- ]?\d{4}"),
    "uri": _like(r"(/|[A-Za-z][-A-Za-z0-9+.]*:)\S*"),
    "uuid": _uuid("[0-9a-fA-F]"),
    "uuid3": _uuid("3"),
    "uuid4": _uuid("4", "[89abAB]"),
    "uuid5": _uuid("5", "[89abAB]"),
}
