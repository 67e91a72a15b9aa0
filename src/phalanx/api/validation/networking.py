"""Validation of Ingresses, NetworkPolicies, IPAddresses, ServiceCIDRs and Endpoints."""

from __future__ import annotations

import ipaddress
from typing import Any

from phalanx.api.errors import Cause, Causes, forbidden, invalid, prefix_causes, required, too_long
from phalanx.api.formats import (
    validate_dns_label,
    validate_dns_subdomain,
    validate_ip,
    validate_label_key,
    validate_path_segment,
    validate_port_name,
    validate_service_name,
)
from phalanx.api.validation.checks import (
    CREATED,
    IMMUTABLE,
    Check,
    all_of,
    each,
    if_present,
    in_range,
    mandatory,
    max_items,
    one_of,
    optional,
    string_format,
    struct,
)
from phalanx.api.validation.metadata import check_conditions, check_selector

_PORT = in_range(1, 65535)
_PROTOCOL = one_of("SCTP", "TCP", "UDP")
_BAD_PATH_PARTS = ("//", "/./", "/../", "%2f", "%2F")
_BAD_PATH_ENDS = ("/..", "/.")
INGRESS_CLASS_ANNOTATION = "kubernetes.io/ingress.class"
_MAX_CONTROLLER_LENGTH = 250


def _is_address(text: str) -> bool:
    return not validate_ip(text)


# ------------------------------------------------------------------------------------ Ingresses


def _check_host(new: Any, old: Any) -> Causes:
    if _is_address(new):
        return [invalid("", new, "must be a DNS name, not an IP address")]
    if "*" in new:
        rest = new.removeprefix("*.")
        fault = (
            "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS "
            "subdomain, which must consist of lower case alphanumeric characters, '-' or '.' and "
            "end with an alphanumeric character"
        )
        is_valid = new.startswith("*.") and not validate_dns_subdomain(rest)
        return () if is_valid else [invalid("", new, fault)]
    return string_format(validate_dns_subdomain)(new, old)


def _check_service_port(new: Any, old: Any) -> Causes:
    port = new or {}
    name, number = port.get("name", ""), port.get("number", 0)
    if name and number:
        return [invalid("", "", "cannot set both port name & port number")]
    if name:
        return prefix_causes("name", string_format(validate_port_name)(name, old))
    if number:
        return prefix_causes("number", _PORT(number, old))
    return [required("", "port name or number is required")]


_BACKEND_SERVICE = struct(
    ("name", mandatory(string_format(validate_service_name))), ("port", _check_service_port)
)
_BACKEND_RESOURCE = struct(
    ("apiGroup", optional(string_format(validate_dns_subdomain))),
    ("kind", mandatory(string_format(validate_path_segment))),
    ("name", mandatory(string_format(validate_path_segment))),
)


def _check_backend(new: Any, old: Any) -> Causes:
    backend = new or {}
    service, resource = backend.get("service"), backend.get("resource")
    if service is not None and resource is not None:
        return [invalid("", "", "cannot set both resource and service backends")]
    if resource is not None:
        return prefix_causes("resource", _BACKEND_RESOURCE(resource, CREATED))
    if service is not None:
        return prefix_causes("service", _BACKEND_SERVICE(service, CREATED))
    return [required("", "either a service or a resource backend is required")]


def _check_path(new: Any, old: Any) -> Causes:
    kind, path = new.get("pathType"), new.get("path", "")
    found: list[Cause] = []
    if not kind:
        found.append(required("pathType", "pathType must be specified"))
    elif kind in ("Exact", "Prefix"):
        if not path.startswith("/"):
            found.append(invalid("path", path, "must be an absolute path"))
        found += [
            invalid("path", path, f"must not contain '{part}'")
            for part in _BAD_PATH_PARTS
            if part in path
        ]
        found += [
            invalid("path", path, f"cannot end with '{end}'")
            for end in _BAD_PATH_ENDS
            if path.endswith(end)
        ]
    elif kind == "ImplementationSpecific":
        if path and not path.startswith("/"):
            found.append(invalid("path", path, "must be an absolute path"))
    else:
        found += prefix_causes(
            "pathType", one_of("Exact", "ImplementationSpecific", "Prefix")(kind, old)
        )
    return [*found, *prefix_causes("backend", _check_backend(new.get("backend"), CREATED))]


_RULE = struct(
    ("host", optional(_check_host)),
    ("http", if_present(struct(("paths", mandatory(each(_check_path)))))),
)
_INGRESS_SPEC = struct(
    ("rules", optional(each(_RULE))),
    ("tls", optional(each(struct(("hosts", optional(each(_check_host))))))),
    ("defaultBackend", if_present(_check_backend)),
    ("ingressClassName", if_present(string_format(validate_dns_subdomain))),
)


def _check_has_backend(new: Any, old: Any) -> Causes:
    spec = new or {}
    if spec.get("rules") or spec.get("defaultBackend") is not None:
        return ()
    return [invalid("", [], "either `defaultBackend` or `rules` must be specified")]


def _check_one_class(new: Any, old: Any) -> Causes:
    named = (new.get("spec") or {}).get("ingressClassName")
    annotations = new["metadata"].get("annotations") or {}
    old_class = annotations.get(INGRESS_CLASS_ANNOTATION)
    if old is not CREATED or named is None or old_class is None or named == old_class:
        return ()
    detail = "must match `ingressClassName` when both are specified"
    return [invalid(f"annotations[{INGRESS_CLASS_ANNOTATION}]", old_class, detail)]


check_ingress: Check = all_of(
    struct(("spec", all_of(_check_has_backend, _INGRESS_SPEC))), _check_one_class
)


def _check_controller(new: Any, old: Any) -> Causes:
    if old is not CREATED and new != old:
        return [invalid("", new, IMMUTABLE)]
    if len(new) > _MAX_CONTROLLER_LENGTH:
        return [too_long("", _MAX_CONTROLLER_LENGTH)]
    domain, _, path = new.partition("/")
    if not path or validate_dns_subdomain(domain):
        return [invalid("", new, 'must be a domain-prefixed path (such as "acme.io/foo")')]
    return ()


def _check_parameters(new: Any, old: Any) -> Causes:
    scope, namespace = new.get("scope"), new.get("namespace")
    found = [*_BACKEND_RESOURCE(new, CREATED)]
    if scope is None:
        return [*found, required("scope")]
    found += prefix_causes("scope", one_of("Cluster", "Namespace")(scope, old))
    if scope == "Namespace" and not namespace:
        found.append(required("namespace", "`parameters.scope` is set to 'Namespace'"))
    if scope == "Cluster" and namespace is not None:
        found.append(forbidden("namespace", "`parameters.scope` is set to 'Cluster'"))
    return found


check_ingress_class: Check = struct(
    (
        "spec",
        struct(
            ("controller", mandatory(_check_controller)),
            ("parameters", if_present(_check_parameters)),
        ),
    )
)

# ------------------------------------------------------------------------------ NetworkPolicies


def _check_policy_port(new: Any, old: Any) -> Causes:
    port, end = new.get("port"), new.get("endPort")
    found = [*prefix_causes("protocol", optional(_PROTOCOL)(new.get("protocol"), old))]
    if isinstance(port, int):
        found += prefix_causes("port", _PORT(port, old))
        if end is not None and end < port:
            found.append(invalid("endPort", end, "must be greater than or equal to `port`"))
        if end is not None and not 1 <= end <= 65535:
            found += prefix_causes("endPort", _PORT(end, old))
        return found
    if isinstance(port, str):
        if end is not None:
            found.append(invalid("endPort", end, "may not be specified when `port` is non-numeric"))
        return [*found, *prefix_causes("port", string_format(validate_port_name)(port, old))]
    if end is not None:
        found.append(invalid("endPort", end, "must be specified when `port` is specified"))
    return found


def _check_block(new: Any, old: Any) -> Causes:
    text = new.get("cidr", "")
    if not text:
        return [required("cidr")]
    network = _parse_network(text)
    if network is None:
        return [invalid("cidr", text, "must be a valid CIDR value, (e.g. 10.9.8.0/24)")]
    found = []
    for at, part in enumerate(new.get("except", ())):
        inner = _parse_network(part)
        if inner is None:
            detail = "must be a valid CIDR value, (e.g. 10.9.8.0/24)"
            found.append(invalid(f"except[{at}]", part, detail))
        elif inner.version != network.version or not (
            inner.network_address in network and inner.prefixlen > network.prefixlen
        ):
            detail = f'must be a strict subset of `cidr` ("{text}")'
            found.append(invalid(f"except[{at}]", part, detail))
    return found


def _parse_network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(text, strict=False) if "/" in text else None
    except ValueError:
        return None


def _check_peer(new: Any, old: Any) -> Causes:
    selectors = [name for name in ("podSelector", "namespaceSelector") if new.get(name) is not None]
    if new.get("ipBlock") is not None:
        if selectors:
            detail = "may not be specified when both ipBlock is specified"
            return [forbidden(selectors[0], detail)]
        return prefix_causes("ipBlock", _check_block(new["ipBlock"], old))
    if not selectors:
        return [required("", "must specify a peer")]
    return [
        cause
        for name in selectors
        for cause in prefix_causes(name, check_selector(new[name], CREATED))
    ]


def _policy_rule(peers: str) -> Check:
    return struct(
        ("ports", optional(each(_check_policy_port))), (peers, optional(each(_check_peer)))
    )


check_network_policy: Check = struct(
    (
        "spec",
        struct(
            ("podSelector", if_present(check_selector)),
            ("ingress", optional(each(_policy_rule("from")))),
            ("egress", optional(each(_policy_rule("to")))),
            ("policyTypes", optional(max_items(2, each(one_of("Egress", "Ingress"))))),
        ),
    )
)

# ------------------------------------------------------------------------ addresses and ranges


def check_ip_address(new: Any, old: Any) -> Causes:
    """Check an IPAddress: its name is the address, its parent cannot be changed."""
    name, spec = new["metadata"].get("name", ""), new.get("spec") or {}
    found: list[Cause] = []
    if old is CREATED and not _is_canonical(name):
        found.append(invalid("metadata.name", name, "must be a valid IP address in canonical form"))
    parent = spec.get("parentRef")
    if parent is None:
        return [*found, required("spec.parentRef")]
    if old is not CREATED and parent != (old.get("spec") or {}).get("parentRef"):
        return [*found, invalid("spec.parentRef", parent, IMMUTABLE)]
    found += [
        required(f"spec.parentRef.{field}")
        for field in ("resource", "name")
        if not parent.get(field)
    ]
    return found


def _is_canonical(text: str) -> bool:
    return _is_address(text) and str(ipaddress.ip_address(text)) == text


def _check_ranges(new: Any, old: Any) -> Causes:
    if old is not CREATED and new != old:
        return [invalid("", new, IMMUTABLE)]
    if not new:
        return [required("", "at least one CIDR required")]
    if len(new) > 2:
        detail = "may only hold up to 2 values"
        return [invalid("", new, detail)]
    parsed = [_parse_network(text) for text in new]
    found = [
        invalid(f"[{at}]", new[at], "must be a valid CIDR value, (e.g. 10.9.8.0/24)")
        for at, one in enumerate(parsed)
        if one is None
    ]
    versions = [one.version for one in parsed if one is not None]
    if len(versions) == 2 and versions[0] == versions[1]:
        found.append(invalid("", new, "may specify no more than one IP for each IP family"))
    return found


check_service_cidr: Check = struct(("spec", struct(("cidrs", _check_ranges))))
check_service_cidr_status: Check = struct(
    ("status", if_present(struct(("conditions", check_conditions))))
)

# ------------------------------------------------------------------------------------ Endpoints

_ENDPOINT_ADDRESS = struct(
    ("ip", mandatory(string_format(validate_ip))),
    ("hostname", optional(string_format(validate_dns_label))),
    ("nodeName", if_present(string_format(validate_dns_subdomain))),
)


def _check_subset(new: Any, old: Any) -> Causes:
    found: list[Cause] = []
    if not new.get("addresses") and not new.get("notReadyAddresses"):
        found.append(required("", "must specify `addresses` or `notReadyAddresses`"))
    found += _SUBSET(new, CREATED)
    ports = new.get("ports", ())
    if len(ports) > 1:
        unnamed = (at for at, port in enumerate(ports) if not port.get("name"))
        found += [required(f"ports[{at}].name") for at in unnamed]
    return found


_ENDPOINT_PORT = struct(
    ("name", optional(string_format(validate_dns_label))),
    ("port", mandatory(_PORT)),
    ("protocol", mandatory(_PROTOCOL)),
    ("appProtocol", optional(string_format(validate_label_key))),
)
_SUBSET = struct(
    ("addresses", optional(each(_ENDPOINT_ADDRESS))),
    ("notReadyAddresses", optional(each(_ENDPOINT_ADDRESS))),
    ("ports", optional(each(_ENDPOINT_PORT))),
)
check_endpoints: Check = struct(("subsets", optional(each(_check_subset))))
