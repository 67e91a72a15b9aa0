"""Rules of Services: ports, addresses, and which settings go with which type."""

from __future__ import annotations

from typing import Any

from phalanx.api.causes import Causes, duplicate, forbidden, invalid, required
from phalanx.api.errors import Cause
from phalanx.api.fields import (
    dns_label_faults,
    dns_subdomain_faults,
    ip_faults,
    label_key_faults,
    port_name_faults,
)
from phalanx.api.rules.checks import (
    CREATED,
    Check,
    again,
    between,
    each,
    every,
    given,
    needed,
    one_of,
    present,
    repeated,
    struct,
    text,
)
from phalanx.api.rules.meta import check_labels
from phalanx.api.wire import Object

HEADLESS = "None"
EXTERNAL = ("NodePort", "LoadBalancer")
TYPES = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
_MAX_AFFINITY = 86_400
_PORT_NUMBER = between(1, 65535)
_TRAFFIC = one_of("Cluster", "Local")


def _target(new: Any, old: Any) -> Causes:
    if isinstance(new, str):
        return [invalid("", new, fault) for fault in port_name_faults(new)]
    return _PORT_NUMBER(new, old)


_PORT = struct(
    ("name", given(text(dns_label_faults))),
    ("port", lambda new, old: _PORT_NUMBER(new or 0, old)),
    ("protocol", needed(one_of("SCTP", "TCP", "UDP"))),
    ("targetPort", given(_target)),
    ("nodePort", given(between(0, 65535))),
    ("appProtocol", given(text(label_key_faults))),
)


def _ports_apart(new: Any, old: Any) -> Causes:
    """Several ports are told apart by name, and by number and protocol."""
    found: list[Cause] = []
    if len(new) > 1:
        unnamed = (at for at, port in enumerate(new) if not port.get("name"))
        found += [required(f"[{at}].name") for at in unnamed]
    names = [port.get("name") or at for at, port in enumerate(new)]
    found += [duplicate(f"[{at}].name", names[at]) for at in again(names)]
    return [*found, *(duplicate(f"[{at}]", new[at]) for at in repeated(new, "port", "protocol"))]


def _has_ports(new: Any, old: Any) -> Causes:
    is_bare = new.get("type") == "ExternalName" or new.get("clusterIP") == HEADLESS
    return () if is_bare or new.get("ports") else [required("ports")]


def _no_node_ports(new: Any, old: Any) -> Causes:
    if new.get("type") != "ClusterIP":
        return ()
    detail = "may not be used when `type` is 'ClusterIP'"
    ports = enumerate(new.get("ports", ()))
    return [forbidden(f"ports[{at}].nodePort", detail) for at, port in ports if "nodePort" in port]


# ------------------------------------------------------------------------------------ addresses


def _addresses(new: Any, old: Any) -> Causes:
    """An address of the cluster, none at all, or a name somewhere else."""
    kind, addresses = new.get("type"), new.get("clusterIPs") or _listed(new.get("clusterIP"))
    if kind == "ExternalName":
        found = _outside(new.get("externalName", ""))
        detail = "may not be set when `type` is 'ExternalName'"
        return [*found, forbidden("clusterIPs", detail)] if addresses else found
    if HEADLESS in addresses:
        detail = f"may not be set to 'None' for {kind} services"
        return [invalid("clusterIPs[0]", HEADLESS, detail)] if kind in EXTERNAL else ()
    return [
        invalid(f"clusterIPs[{at}]", address, fault)
        for at, address in enumerate(addresses)
        for fault in ip_faults(address)
    ]


def _listed(address: str | None) -> list[str]:
    return [address] if address else []


def _outside(name: str) -> list[Cause]:
    if not name:
        return [required("externalName")]
    faults = dns_subdomain_faults(name.removesuffix("."))
    return [invalid("externalName", name, fault) for fault in faults]


def _address_stays(new: Any, old: Any) -> Causes:
    """An address is kept as long as the Service has any."""
    if old is CREATED or "ExternalName" in (new.get("type"), (old or {}).get("type")):
        return ()
    before = (old or {}).get("clusterIP")
    if not before or new.get("clusterIP") == before:
        return ()
    return [invalid("clusterIPs[0]", new.get("clusterIP"), "may not change once set")]


# ------------------------------------------------------------------------------------- sessions


def _sessions(new: Any, old: Any) -> Causes:
    config: Object | None = new.get("sessionAffinityConfig")
    if new.get("sessionAffinity") == "None":
        detail = "must not be set when session affinity is None"
        return [forbidden("sessionAffinityConfig", detail)] if config else ()
    if new.get("sessionAffinity") != "ClientIP":
        return ()
    place = "sessionAffinityConfig.clientIP.timeoutSeconds"
    seconds = ((config or {}).get("clientIP") or {}).get("timeoutSeconds")
    if seconds is None:
        return [required(place)]
    if 0 < seconds <= _MAX_AFFINITY:
        return ()
    detail = f"must be greater than 0 and less than {_MAX_AFFINITY}"
    return [invalid(place, seconds, detail)]


def _traffic(new: Any, old: Any) -> Causes:
    """Traffic from outside is a matter of those that have any."""
    if new.get("type") in EXTERNAL or new.get("externalIPs"):
        return ()
    if not new.get("externalTrafficPolicy"):
        return ()
    detail = "may only be set for externally-accessible services"
    return [invalid("externalTrafficPolicy", new["externalTrafficPolicy"], detail)]


_SPEC = every(
    _has_ports,
    struct(
        ("ports", given(every(each(_PORT), _ports_apart))),
        ("selector", check_labels),
        ("sessionAffinity", needed(one_of("ClientIP", "None"))),
        ("externalIPs", given(each(text(ip_faults)))),
        ("type", needed(one_of(*TYPES))),
        ("externalTrafficPolicy", given(_TRAFFIC)),
        ("internalTrafficPolicy", given(_TRAFFIC)),
        ("ipFamilies", given(each(one_of("IPv4", "IPv6")))),
        (
            "ipFamilyPolicy",
            given(one_of("PreferDualStack", "RequireDualStack", "SingleStack")),
        ),
    ),
    _no_node_ports,
    _addresses,
    _sessions,
    _traffic,
    _address_stays,
)

SERVICE: Check = struct(("spec", present(_SPEC)))
