"""Rules of a pod's spec, be it that of a Pod or of a template."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from phalanx.api.causes import Causes, duplicate, forbidden, invalid, required, under
from phalanx.api.errors import Cause
from phalanx.api.fields import dns_label_faults, dns_subdomain_faults, ip_faults
from phalanx.api.rules.checks import (
    Check,
    again,
    between,
    each,
    every,
    given,
    needed,
    once,
    one_of,
    present,
    struct,
    text,
    unique_field,
)
from phalanx.api.rules.container import (
    APP_ARMOR,
    CONTAINER,
    RESTART_POLICIES,
    SECCOMP,
    USER_ID,
    check_init_container,
    host_network_causes,
    host_port_causes,
)
from phalanx.api.rules.meta import LABEL_KEY, check_labels
from phalanx.api.rules.placement import (
    AFFINITY,
    SCHEDULING_GROUP,
    SPREAD_CONSTRAINTS,
    TOLERATIONS,
    check_gates,
)
from phalanx.api.rules.resource import check_resources, claim_causes
from phalanx.api.rules.volume import VOLUMES, mount_causes
from phalanx.api.wire import Object

_LABEL = text(dns_label_faults)
_SUBDOMAIN = text(dns_subdomain_faults)
_MAX_SECONDS = 2**31 - 1
_MAX_NAMESERVERS, _MAX_SEARCHES = 3, 32
_DNS_POLICIES = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
_CLAIM_SOURCES = ("resourceClaimName", "resourceClaimTemplateName")
_MAX_SYSCTL = 253
_SYSCTL = r"([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
#: Where containers stand.
CONTAINERS = ("containers", "initContainers")


def _groups_of(spec: Object) -> Iterator[tuple[str, list[Object]]]:
    for field in CONTAINERS:
        yield field, spec.get(field, [])


def _container_names(new: Any, old: Any) -> Causes:
    """No two containers of one name, of whatever sort."""
    seen: set[str] = set()
    found: list[Cause] = []
    for field, containers in _groups_of(new):
        for at, container in enumerate(containers):
            name = container.get("name", "")
            if name in seen:
                found.append(duplicate(f"{field}[{at}].name", name))
            seen.add(name)
    return found


def _ports(new: Any, old: Any) -> Causes:
    """Containers share the node's ports; init containers use them one after the other."""
    containers = new.get("containers", ())
    found = host_port_causes(containers)
    if new.get("hostNetwork"):
        found += host_network_causes(containers)
    alone = [
        cause
        for at, container in enumerate(new.get("initContainers", ()))
        for cause in under(f"initContainers[{at}]", _own_ports(container))
    ]
    return [*under("containers", found), *alone]


def _own_ports(container: Object) -> list[Cause]:
    causes = host_port_causes([container])
    return [Cause(c.field.removeprefix("[0]."), c.reason, c.message) for c in causes]


def _mounts(new: Any, old: Any) -> Causes:
    volumes = {volume.get("name", "") for volume in new.get("volumes", ())}
    return [
        cause
        for field, containers in _groups_of(new)
        for cause in under(field, mount_causes(containers, volumes))
    ]


def _claims(new: Any, old: Any) -> Causes:
    """Containers may use the claims that the pod has."""
    known = [claim.get("name", "") for claim in new.get("resourceClaims", ())]
    found: list[Cause] = []
    for field, containers in _groups_of(new):
        for at, container in enumerate(containers):
            claims = container.get("resources", {}).get("claims", [])
            place = f"{field}[{at}].resources.claims"
            found += under(place, claim_causes(claims, known))
    return found


def _dns(new: Any, old: Any) -> Causes:
    config = new.get("dnsConfig")
    if new.get("dnsPolicy") != "None":
        return ()
    if config is None:
        detail = "must provide `dnsConfig` when `dnsPolicy` is None"
        return [required("dnsConfig", detail)]
    if not config.get("nameservers"):
        detail = "must provide at least one DNS nameserver when `dnsPolicy` is None"
        return [required("dnsConfig.nameservers", detail)]
    return ()


def _no_more_than(limit: int, noun: str) -> Check:
    def check(new: Any, old: Any) -> Causes:
        if len(new) <= limit:
            return ()
        return [invalid("", new, f"must not have more than {limit} {noun}")]

    return check


def _option(new: Any, old: Any) -> Causes:
    return () if new.get("name") else [required("", "must not be empty")]


_DNS_CONFIG = struct(
    (
        "nameservers",
        given(every(_no_more_than(_MAX_NAMESERVERS, "nameservers"), each(text(ip_faults)))),
    ),
    ("searches", given(_no_more_than(_MAX_SEARCHES, "search paths"))),
    ("options", given(each(_option))),
)


def _one_namespace(new: Any, old: Any) -> Causes:
    if not (new.get("hostPID") and new.get("shareProcessNamespace")):
        return ()
    detail = "ShareProcessNamespace and HostPID cannot both be enabled"
    return [invalid("securityContext.shareProcessNamespace", True, detail)]


def _group_or_responders(new: Any, old: Any) -> Causes:
    if new.get("schedulingGroup") is None or not new.get("evictionResponders"):
        return ()
    return [forbidden("schedulingGroup", "may not be set when evictionResponders is set")]


def _sleeps(new: Any, old: Any) -> Causes:
    """No hook may sleep longer than the pod has to stop."""
    grace = new.get("terminationGracePeriodSeconds", 0)
    detail = f"must be non-negative and less than terminationGracePeriodSeconds ({grace})"
    return [
        invalid(f"{field}[{at}].lifecycle.{hook}.sleep", seconds, detail)
        for field, containers in _groups_of(new)
        for at, container in enumerate(containers)
        for hook, seconds in _naps(container)
        if not 0 <= seconds <= grace
    ]


def _naps(container: Object) -> Iterator[tuple[str, int]]:
    for hook, handler in container.get("lifecycle", {}).items():
        if isinstance(handler, dict) and "sleep" in handler:
            yield hook, handler["sleep"].get("seconds", 0)


def _claim_source(new: Any, old: Any) -> Causes:
    named = [name for name in _CLAIM_SOURCES if name in new]
    if len(named) == 1:
        return ()
    if named:
        detail = (
            "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
        )
    else:
        detail = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
    return [invalid("", new, detail)]


def _sysctls(new: Any, old: Any) -> Causes:
    """Names of kernel parameters, each once."""
    detail = f"must have at most {_MAX_SYSCTL} characters and match regex ^{_SYSCTL}$"
    names = [sysctl.get("name", "") for sysctl in new]
    found: list[Cause] = []
    for at, name in enumerate(names):
        if not name:
            found.append(required(f"[{at}].name"))
        elif len(name) > _MAX_SYSCTL or not re.fullmatch(_SYSCTL, name):
            found.append(invalid(f"[{at}].name", name, detail))
    twice = [duplicate(f"[{at}].name", names[at]) for at in again(names) if names[at]]
    return [*found, *twice]


_SECURITY = struct(
    ("runAsUser", given(USER_ID)),
    ("runAsGroup", given(USER_ID)),
    ("fsGroup", given(USER_ID)),
    ("supplementalGroups", given(each(USER_ID))),
    ("fsGroupChangePolicy", given(one_of("Always", "OnRootMismatch"))),
    ("supplementalGroupsPolicy", given(one_of("Merge", "Strict"))),
    ("seLinuxChangePolicy", given(one_of("MountOption", "Recursive"))),
    ("sysctls", given(_sysctls)),
    ("seccompProfile", present(SECCOMP)),
    ("appArmorProfile", present(APP_ARMOR)),
)
_HOST_ALIAS = struct(
    ("ip", text(ip_faults)),
    ("hostnames", given(each(_SUBDOMAIN))),
)
_CLAIM = every(
    struct(("name", needed(_LABEL))),
    _claim_source,
    struct(*((name, present(_SUBDOMAIN)) for name in _CLAIM_SOURCES)),
)

POD_SPEC: Check = every(
    struct(
        ("volumes", given(VOLUMES)),
        ("containers", needed(once(each(CONTAINER)))),
        ("initContainers", given(each(check_init_container))),
        ("resourceClaims", given(every(each(_CLAIM), unique_field("name")))),
        ("restartPolicy", needed(one_of(*RESTART_POLICIES))),
        ("dnsPolicy", needed(one_of(*_DNS_POLICIES))),
        ("dnsConfig", present(_DNS_CONFIG)),
        ("nodeSelector", check_labels),
        ("securityContext", given(_SECURITY)),
        ("affinity", present(AFFINITY)),
        ("readinessGates", given(each(struct(("conditionType", LABEL_KEY))))),
        ("schedulingGates", given(check_gates)),
        ("topologySpreadConstraints", given(SPREAD_CONSTRAINTS)),
        ("serviceAccountName", given(_SUBDOMAIN)),
        ("nodeName", given(_SUBDOMAIN)),
        ("activeDeadlineSeconds", given(between(1, _MAX_SECONDS))),
        ("hostname", given(_LABEL)),
        ("subdomain", given(_LABEL)),
        ("tolerations", given(TOLERATIONS)),
        ("hostAliases", given(each(_HOST_ALIAS))),
        ("priorityClassName", given(_SUBDOMAIN)),
        ("runtimeClassName", given(_SUBDOMAIN)),
        ("preemptionPolicy", given(one_of("PreemptLowerPriority", "Never"))),
        ("overhead", lambda new, old: check_resources({"limits": new or {}}, old)),
        ("os", given(struct(("name", needed(one_of("linux", "windows")))))),
        ("resources", given(check_resources)),
        ("schedulingGroup", present(SCHEDULING_GROUP)),
    ),
    _container_names,
    _ports,
    _mounts,
    _claims,
    _dns,
    _one_namespace,
    _group_or_responders,
    _sleeps,
)
