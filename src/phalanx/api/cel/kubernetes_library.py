"""Kubernetes' extension libraries: IP addresses, CIDRs, URLs, quantities, versions, formats.

isIP('10.0.0.1')   cidr('10.0.0.0/8').containsIP(ip)   url('https://a/b').getHost()
quantity('4Gi').isGreaterThan(quantity('1G'))   semver('1.2.3')   format.dns1123Label()
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar
from urllib.parse import SplitResult, parse_qsl, quote, urlsplit

from phalanx.api.cel.declarations import (
    BOOL,
    DOUBLE,
    INTEGER,
    STRING,
    CelType,
    FunctionOverload,
    function,
    list_of,
    map_of,
    method,
    optional_of,
    size_cost,
)
from phalanx.api.cel.values import EMPTY_OPTIONAL, INT_LIMIT, EvaluationError, OptionalValue
from phalanx.api.formats import FORMATS, validate_dns_label, validate_dns_subdomain
from phalanx.api.resources import BadQuantity, exact_value

IP, CIDR, URL = CelType("net.IP"), CelType("net.CIDR"), CelType("kubernetes.URL")
_IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
_IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Ip:
    """An IP address."""

    type_name: ClassVar[str] = IP.name
    address: _IpAddress


@dataclass(frozen=True, slots=True)
class Cidr:
    """An IP address with the prefix length of its network."""

    type_name: ClassVar[str] = CIDR.name
    address: _IpAddress
    length: int

    @property
    def network(self) -> _IpNetwork:
        """The network that contains the address."""
        return ipaddress.ip_network(f"{self.address}/{self.length}", strict=False)


@dataclass(frozen=True, slots=True)
class Url:
    """A URL in its parts."""

    type_name: ClassVar[str] = URL.name
    parts: SplitResult


# ------------------------------------------------------------------------------------- IP addresses


def _parse_address(text: str) -> _IpAddress | None:
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    is_mapped = isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None
    return None if "%" in text or is_mapped else found


def _to_ip(text: str) -> Ip:
    found = _parse_address(text)
    if found is None:
        raise EvaluationError(f'IP Address "{text}" parse error during conversion from string')
    return Ip(found)


def _is_canonical(text: str) -> bool:
    return str(_to_ip(text).address) == text


def _parse_cidr(text: str) -> Cidr | None:
    before, slash, length = text.partition("/")
    address = _parse_address(before)
    if address is None or not slash or not (length.isdecimal() and length.isascii()):
        return None
    fits = len(length) < 4 and int(length) <= address.max_prefixlen
    return Cidr(address, int(length)) if fits and str(int(length)) == length else None


def _to_cidr(text: str) -> Cidr:
    found = _parse_cidr(text)
    if found is None:
        raise EvaluationError(f'CIDR "{text}" parse error during conversion from string')
    return found


def _contains_ip(a: Cidr, b: Ip | str) -> bool:
    address = b.address if isinstance(b, Ip) else _to_ip(b).address
    return address.version == a.network.version and address in a.network


def _contains_cidr(a: Cidr, b: Cidr | str) -> bool:
    other = b if isinstance(b, Cidr) else _to_cidr(b)
    inside = _contains_ip(a, Ip(other.network.network_address))
    return inside and other.length >= a.length


def _mask(a: Cidr) -> Cidr:
    return Cidr(a.network.network_address, a.length)


def _is_global_unicast(a: Ip) -> bool:
    address = a.address
    is_broadcast = str(address) == "255.255.255.255"
    return not (
        address.is_unspecified or address.is_loopback or address.is_multicast
        or address.is_link_local or is_broadcast
    )  # fmt: skip


_IP_FUNCTIONS = [
    function("isIP", (STRING,), BOOL, lambda x: _parse_address(x) is not None, cost=size_cost),
    function("ip", (STRING,), IP, _to_ip, cost=size_cost),
    function("ip.isCanonical", (STRING,), BOOL, _is_canonical, cost=size_cost),
    function("string", (IP,), STRING, lambda a: str(a.address)),
    method("family", (IP,), INTEGER, lambda a: a.address.version),
    method("isUnspecified", (IP,), BOOL, lambda a: a.address.is_unspecified),
    method("isLoopback", (IP,), BOOL, lambda a: a.address.is_loopback),
    method("isLinkLocalMulticast", (IP,), BOOL,
           lambda a: a.address in ipaddress.ip_network("224.0.0.0/24")
           or a.address in ipaddress.ip_network("ff02::/16")),
    method("isLinkLocalUnicast", (IP,), BOOL, lambda a: a.address.is_link_local),
    method("isGlobalUnicast", (IP,), BOOL, _is_global_unicast),
    function("isCIDR", (STRING,), BOOL, lambda text: _parse_cidr(text) is not None, cost=size_cost),
    function("cidr", (STRING,), CIDR, _to_cidr, cost=size_cost),
    function("string", (CIDR,), STRING, lambda a: f"{a.address}/{a.length}"),
    *(method("containsIP", (CIDR, kind), BOOL, _contains_ip) for kind in (IP, STRING)),
    *(method("containsCIDR", (CIDR, kind), BOOL, _contains_cidr) for kind in (CIDR, STRING)),
    method("ip", (CIDR,), IP, lambda a: Ip(a.address)),
    method("masked", (CIDR,), CIDR, _mask),
    method("prefixLength", (CIDR,), INTEGER, lambda a: a.length),
]  # fmt: skip

# --------------------------------------------------------------------------------------------- URLs


def _parse_url(text: str) -> Url | None:
    """Parse an absolute URL or an absolute path."""
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        return None
    is_absolute = bool(parts.scheme) or text.startswith("/")
    is_clean = text.isprintable() and " " not in parts.netloc
    return Url(parts) if is_absolute and is_clean else None


def _to_url(text: str) -> Url:
    found = _parse_url(text)
    if found is None:
        raise EvaluationError(
            f'URL parse error during conversion from string: parse "{text}": invalid URI'
            " for request"
        )
    return found


#: Characters of a path that are not escaped.
_PATH_SAFE_CHARACTERS = "/%:@!$&'()*+,;=~"


def _hostname(a: Url) -> str:
    """Return the host as written, without brackets and port."""
    host = a.parts.netloc.rpartition("@")[2]
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _query(a: Url) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for key, one in parse_qsl(a.parts.query, keep_blank_values=True):
        found.setdefault(key, []).append(one)
    return found


_URL_FUNCTIONS = [
    function("isURL", (STRING,), BOOL, lambda text: _parse_url(text) is not None, cost=size_cost),
    function("url", (STRING,), URL, _to_url, cost=size_cost),
    method("getScheme", (URL,), STRING, lambda a: a.parts.scheme),
    method("getHost", (URL,), STRING, lambda a: a.parts.netloc.rpartition("@")[2]),
    method("getHostname", (URL,), STRING, _hostname),
    method("getPort", (URL,), STRING, lambda a: "" if a.parts.port is None else str(a.parts.port)),
    method(
        "getEscapedPath", (URL,), STRING, lambda a: quote(a.parts.path, safe=_PATH_SAFE_CHARACTERS)
    ),
    method("getQuery", (URL,), map_of(STRING, list_of(STRING)), _query),
]

PATCH_FUNCTIONS: list[FunctionOverload] = [
    function(
        "jsonpatch.escapeKey",
        (STRING,),
        STRING,
        lambda key: key.replace("~", "~0").replace("/", "~1"),
    ),
]

NETWORK_FUNCTIONS: list[FunctionOverload] = [*_IP_FUNCTIONS, *_URL_FUNCTIONS]


QUANTITY = CelType("kubernetes.Quantity")


@dataclass(frozen=True, slots=True)
class QuantityValue:
    """An exact quantity."""

    type_name: ClassVar[str] = QUANTITY.name
    number: Fraction


def _is_quantity(text: str) -> bool:
    try:
        exact_value(text)
    except BadQuantity:
        return False
    return True


def parse_quantity(text: str) -> QuantityValue:
    """Parse a quantity. Raises EvaluationError."""
    try:
        return QuantityValue(exact_value(text))
    except BadQuantity as error:
        raise EvaluationError(str(error)) from None


def _is_integer(a: QuantityValue) -> bool:
    return a.number.denominator == 1 and -INT_LIMIT <= a.number < INT_LIMIT


def _to_integer(a: QuantityValue) -> int:
    if not _is_integer(a):
        raise EvaluationError("cannot convert value to integer")
    return int(a.number)


def _to_fraction(a: QuantityValue | int) -> Fraction:
    return a.number if isinstance(a, QuantityValue) else Fraction(a)


def _sign(number: Fraction) -> int:
    return (number > 0) - (number < 0)


_QUANTITY_OR_INTEGER = (QUANTITY, INTEGER)

QUANTITY_FUNCTIONS: list[FunctionOverload] = [
    function("isQuantity", (STRING,), BOOL, _is_quantity, cost=size_cost),
    function("quantity", (STRING,), QUANTITY, parse_quantity, cost=size_cost),
    method("isInteger", (QUANTITY,), BOOL, _is_integer),
    method("asInteger", (QUANTITY,), INTEGER, _to_integer),
    method("asApproximateFloat", (QUANTITY,), DOUBLE, lambda a: float(a.number)),
    method("sign", (QUANTITY,), INTEGER, lambda a: _sign(a.number)),
    *(
        method(
            "add", (QUANTITY, k), QUANTITY, lambda a, b: QuantityValue(a.number + _to_fraction(b))
        )
        for k in _QUANTITY_OR_INTEGER
    ),
    *(
        method(
            "sub", (QUANTITY, k), QUANTITY, lambda a, b: QuantityValue(a.number - _to_fraction(b))
        )
        for k in _QUANTITY_OR_INTEGER
    ),
    method("isLessThan", (QUANTITY, QUANTITY), BOOL, lambda a, b: a.number < b.number),
    method("isGreaterThan", (QUANTITY, QUANTITY), BOOL, lambda a, b: a.number > b.number),
    method("compareTo", (QUANTITY, QUANTITY), INTEGER, lambda a, b: _sign(a.number - b.number)),
]


SEMVER, FORMAT = CelType("kubernetes.Semver"), CelType("kubernetes.NamedFormat")
_NUMBER = r"0|[1-9]\d*"
_SEMVER = re.compile(
    rf"({_NUMBER})\.({_NUMBER})\.({_NUMBER})(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?"
    r"(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?"
)


@dataclass(frozen=True, slots=True)
class Semver:
    """A semantic version: its numbers and its pre-release identifiers."""

    type_name: ClassVar[str] = SEMVER.name
    numbers: tuple[int, int, int]
    prerelease: tuple[tuple[bool, int, str], ...]

    @property
    def rank(self) -> tuple[Any, ...]:
        """The sort key: a pre-release sorts before its release."""
        return (self.numbers, not self.prerelease, self.prerelease)


@dataclass(frozen=True, slots=True)
class NamedFormat:
    """A named format for strings."""

    type_name: ClassVar[str] = FORMAT.name
    name: str


def _parse_version(text: str, normalize: bool = False) -> Semver | None:
    complete = text
    if normalize:
        # A loosely written version is completed: `v1.2` becomes `1.2.0`.
        numbers, sign, rest = re.sub(r"^v", "", text).partition("-")
        found = [part.lstrip("0") or "0" for part in numbers.split(".")]
        complete = ".".join([*found, *["0"] * (3 - len(found))]) + sign + rest
    match = _SEMVER.fullmatch(complete)
    if match is None or len(text) > 256:
        return None
    major, minor, patch, before = match.groups()
    parts = (before or "").split(".") if before else []
    ranks = tuple((not p.isdigit(), int(p) if p.isdigit() else 0, p) for p in parts)
    return Semver((int(major), int(minor), int(patch)), ranks)


def parse_semver(text: str, normalize: bool = False) -> Semver:
    """Parse a semantic version. Raises EvaluationError."""
    found = _parse_version(text, normalize)
    if found is None:
        raise EvaluationError(f"invalid semantic version {text!r}")
    return found


def _is_semver(text: str, normalize: bool = False) -> bool:
    return _parse_version(text, normalize) is not None


def _compare_versions(a: Semver, b: Semver) -> int:
    return (a.rank > b.rank) - (a.rank < b.rank)


def _format_faults(name: str) -> Callable[[str], Sequence[str]]:
    """Return a validator for a format whose test only says whether a string is valid."""
    test = FORMATS[name]
    return lambda text: () if test(text) else (f"invalid {name}",)


#: Validators by the name of the format.
_NAMED_FORMATS: dict[str, Callable[[str], Sequence[str]]] = {
    "dns1123Label": validate_dns_label,
    "dns1123Subdomain": validate_dns_subdomain,
    "uri": _format_faults("uri"),
    "uuid": _format_faults("uuid"),
    "byte": _format_faults("byte"),
    "date": _format_faults("date"),
    "datetime": _format_faults("datetime"),
}


def _find_named_format(name: str) -> OptionalValue:
    return OptionalValue(True, NamedFormat(name)) if name in _NAMED_FORMATS else EMPTY_OPTIONAL


def _validate_format(a: NamedFormat, text: str) -> OptionalValue:
    faults = list(_NAMED_FORMATS[a.name](text))
    return OptionalValue(True, faults) if faults else EMPTY_OPTIONAL


VERSION_FUNCTIONS: list[FunctionOverload] = [
    function("isSemver", (STRING,), BOOL, _is_semver, cost=size_cost),
    function("isSemver", (STRING, BOOL), BOOL, _is_semver, cost=size_cost),
    function("semver", (STRING,), SEMVER, parse_semver, cost=size_cost),
    function("semver", (STRING, BOOL), SEMVER, parse_semver, cost=size_cost),
    method("major", (SEMVER,), INTEGER, lambda a: a.numbers[0]),
    method("minor", (SEMVER,), INTEGER, lambda a: a.numbers[1]),
    method("patch", (SEMVER,), INTEGER, lambda a: a.numbers[2]),
    method("isLessThan", (SEMVER, SEMVER), BOOL, lambda a, b: a.rank < b.rank),
    method("isGreaterThan", (SEMVER, SEMVER), BOOL, lambda a, b: a.rank > b.rank),
    method("compareTo", (SEMVER, SEMVER), INTEGER, _compare_versions),
    function("format.named", (STRING,), optional_of(FORMAT), _find_named_format),
    *(
        function(f"format.{name}", (), FORMAT, lambda name=name: NamedFormat(name))
        for name in _NAMED_FORMATS
    ),
    method("validate", (FORMAT, STRING), optional_of(list_of(STRING)), _validate_format),
]
