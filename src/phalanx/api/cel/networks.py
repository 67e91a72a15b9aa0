"""Addresses: of the network, and of what is on it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import SplitResult, parse_qsl, quote, urlsplit

from phalanx.api.cel.functions import Function, called, heavy, method
from phalanx.api.cel.types import BOOL, NUMBER, STRING, Kind, list_of, map_of
from phalanx.api.cel.values import Fault

IP, CIDR, URL = Kind("net.IP"), Kind("net.CIDR"), Kind("kubernetes.URL")
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Ip:
    """An address."""

    type_name: ClassVar[str] = IP.name
    address: _Address


@dataclass(frozen=True, slots=True)
class Cidr:
    """An address with the length of its network's prefix."""

    type_name: ClassVar[str] = CIDR.name
    address: _Address
    length: int

    @property
    def network(self) -> _Network:
        """The network that the address is in."""
        return ipaddress.ip_network(f"{self.address}/{self.length}", strict=False)


@dataclass(frozen=True, slots=True)
class Url:
    """The address of a resource, in parts."""

    type_name: ClassVar[str] = URL.name
    parts: SplitResult


# ---------------------------------------------------------------------------------------- addresses


def _address(text: str) -> _Address | None:
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    is_mapped = isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None
    return None if "%" in text or is_mapped else found


def _ip(text: str) -> Ip:
    found = _address(text)
    if found is None:
        raise Fault(f'IP Address "{text}" parse error during conversion from string')
    return Ip(found)


def _is_canonical(text: str) -> bool:
    return str(_ip(text).address) == text


def _read_cidr(text: str) -> Cidr | None:
    before, slash, length = text.partition("/")
    address = _address(before)
    if address is None or not slash or not (length.isdecimal() and length.isascii()):
        return None
    has_room = len(length) < 4 and int(length) <= address.max_prefixlen
    return Cidr(address, int(length)) if has_room and str(int(length)) == length else None


def _cidr(text: str) -> Cidr:
    found = _read_cidr(text)
    if found is None:
        raise Fault(f'CIDR "{text}" parse error during conversion from string')
    return found


def _contains(a: Cidr, b: Ip | str) -> bool:
    address = b.address if isinstance(b, Ip) else _ip(b).address
    return address.version == a.network.version and address in a.network


def _contains_all(a: Cidr, b: Cidr | str) -> bool:
    other = b if isinstance(b, Cidr) else _cidr(b)
    inside = _contains(a, Ip(other.network.network_address))
    return inside and other.length >= a.length


def _masked(a: Cidr) -> Cidr:
    return Cidr(a.network.network_address, a.length)


def _is_global(a: Ip) -> bool:
    address = a.address
    is_broadcast = str(address) == "255.255.255.255"
    return not (
        address.is_unspecified or address.is_loopback or address.is_multicast
        or address.is_link_local or is_broadcast
    )  # fmt: skip


_IPS = [
    called("isIP", (STRING,), BOOL, lambda text: _address(text) is not None, heavy),
    called("ip", (STRING,), IP, _ip, heavy),
    called("ip.isCanonical", (STRING,), BOOL, _is_canonical, heavy),
    called("string", (IP,), STRING, lambda a: str(a.address)),
    method("family", (IP,), NUMBER, lambda a: a.address.version),
    method("isUnspecified", (IP,), BOOL, lambda a: a.address.is_unspecified),
    method("isLoopback", (IP,), BOOL, lambda a: a.address.is_loopback),
    method("isLinkLocalMulticast", (IP,), BOOL,
           lambda a: a.address in ipaddress.ip_network("224.0.0.0/24")
           or a.address in ipaddress.ip_network("ff02::/16")),
    method("isLinkLocalUnicast", (IP,), BOOL, lambda a: a.address.is_link_local),
    method("isGlobalUnicast", (IP,), BOOL, _is_global),
    called("isCIDR", (STRING,), BOOL, lambda text: _read_cidr(text) is not None, heavy),
    called("cidr", (STRING,), CIDR, _cidr, heavy),
    called("string", (CIDR,), STRING, lambda a: f"{a.address}/{a.length}"),
    *(method("containsIP", (CIDR, kind), BOOL, _contains) for kind in (IP, STRING)),
    *(method("containsCIDR", (CIDR, kind), BOOL, _contains_all) for kind in (CIDR, STRING)),
    method("ip", (CIDR,), IP, lambda a: Ip(a.address)),
    method("masked", (CIDR,), CIDR, _masked),
    method("prefixLength", (CIDR,), NUMBER, lambda a: a.length),
]  # fmt: skip

# ---------------------------------------------------------------------------------------- resources


def _read_url(text: str) -> Url | None:
    """An absolute address, or an absolute path."""
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        return None
    is_absolute = bool(parts.scheme) or text.startswith("/")
    is_clean = text.isprintable() and " " not in parts.netloc
    return Url(parts) if is_absolute and is_clean else None


def _url(text: str) -> Url:
    found = _read_url(text)
    if found is None:
        raise Fault(f'URL parse error during conversion from string: parse "{text}": invalid URI'
                    " for request")  # fmt: skip
    return found


#: What needs no escape in a path.
_PATH = "/%:@!$&'()*+,;=~"


def _hostname(a: Url) -> str:
    """The host as it was written, without brackets and port."""
    host = a.parts.netloc.rpartition("@")[2]
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _query(a: Url) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for key, one in parse_qsl(a.parts.query, keep_blank_values=True):
        found.setdefault(key, []).append(one)
    return found


_URLS = [
    called("isURL", (STRING,), BOOL, lambda text: _read_url(text) is not None, heavy),
    called("url", (STRING,), URL, _url, heavy),
    method("getScheme", (URL,), STRING, lambda a: a.parts.scheme),
    method("getHost", (URL,), STRING, lambda a: a.parts.netloc.rpartition("@")[2]),
    method("getHostname", (URL,), STRING, _hostname),
    method("getPort", (URL,), STRING, lambda a: "" if a.parts.port is None else str(a.parts.port)),
    method("getEscapedPath", (URL,), STRING, lambda a: quote(a.parts.path, safe=_PATH)),
    method("getQuery", (URL,), map_of(STRING, list_of(STRING)), _query),
]  # fmt: skip

NETWORKS: list[Function] = [*_IPS, *_URLS]
