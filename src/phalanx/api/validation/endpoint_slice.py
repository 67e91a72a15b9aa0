"""Validation of EndpointSlices: addresses of the declared type, ports with unique names, hints."""

from __future__ import annotations

import ipaddress
from typing import Any

from phalanx.api.errors import Cause, Causes, duplicate, invalid, required, too_many
from phalanx.api.formats import (
    validate_dns_label,
    validate_dns_subdomain,
    validate_ip,
    validate_label_key,
    validate_label_value,
    validate_non_special_ip,
)
from phalanx.api.validation.checks import (
    CREATED,
    Check,
    all_of,
    each,
    find_duplicate_items,
    if_present,
    immutable,
    in_range,
    mandatory,
    max_items,
    one_of,
    optional,
    string_format,
    struct,
    unique_field,
)

ADDRESS_TYPES = ("FQDN", "IPv4", "IPv6")
_MAX_ENDPOINTS, _MAX_ADDRESSES, _MAX_PORTS, _MAX_HINTS = 1000, 100, 20_000, 8


def _address_faults(kind: str, address: str) -> list[str]:
    """Return what is wrong with an address of a slice of some address type."""
    if kind == "FQDN":
        name = address.removesuffix(".")
        faults = validate_dns_subdomain(name)
        if not faults and "." not in name:
            return ["should be a domain with at least two segments separated by dots"]
        return faults
    if kind not in ADDRESS_TYPES:
        return []
    if malformed := validate_ip(address):
        return [f"must be a valid {kind} address", *malformed]
    ip = ipaddress.ip_address(address)
    faults = [] if f"IPv{ip.version}" == kind else [f"must be a valid {kind} address"]
    return [*faults, *validate_non_special_ip(address)]


def _check_addresses(new: Any, old: Any) -> Causes:
    """Check the addresses of every endpoint by the address type of the slice.

    Unchanged endpoints are not checked: the server's own slice may have a loopback address.
    """
    if old is not CREATED and new.get("endpoints") == old.get("endpoints"):
        return ()
    found: list[Cause] = []
    for at, endpoint in enumerate((new.get("endpoints") or ())[:_MAX_ENDPOINTS]):
        path, addresses = f"endpoints[{at}].addresses", endpoint.get("addresses") or []
        if not addresses:
            found.append(required(path, "must contain at least 1 address"))
        elif len(addresses) > _MAX_ADDRESSES:
            found.append(too_many(path, len(addresses), _MAX_ADDRESSES))
        for index, address in enumerate(addresses):
            faults = _address_faults(new.get("addressType", ""), address)
            found += [invalid(f"{path}[{index}]", address, fault) for fault in faults]
    return found


def _hints(check_name: Check) -> Check:
    named = struct(("name", check_name))
    return optional(max_items(_MAX_HINTS, all_of(each(named), unique_field("name"))))


_ENDPOINT = struct(
    ("nodeName", if_present(string_format(validate_dns_subdomain))),
    ("hostname", if_present(string_format(validate_dns_label))),
    (
        "hints",
        if_present(
            struct(
                ("forZones", _hints(string_format(validate_label_value))),
                ("forNodes", _hints(string_format(validate_dns_subdomain))),
            )
        ),
    ),
)
_PORT = struct(
    ("name", optional(string_format(validate_dns_label))),
    ("protocol", mandatory(one_of("SCTP", "TCP", "UDP"))),
    ("port", if_present(in_range(1, 65535))),
    ("appProtocol", if_present(string_format(validate_label_key))),
)


def _check_unique_names(new: Any, old: Any) -> Causes:
    """Require unique port names; at most one port has none."""
    return [
        duplicate(f"[{at}].name", new[at].get("name", ""))
        for at in find_duplicate_items(new, "name")
    ]


#: The check of EndpointSlices.
check_endpoint_slice: Check = all_of(
    struct(
        ("addressType", immutable(mandatory(one_of(*ADDRESS_TYPES)))),
        ("endpoints", optional(max_items(_MAX_ENDPOINTS, each(_ENDPOINT)))),
        ("ports", optional(max_items(_MAX_PORTS, all_of(each(_PORT), _check_unique_names)))),
    ),
    _check_addresses,
)
