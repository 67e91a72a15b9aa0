"""Rules of a pod's spec, be it that of a Pod or of a template."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from phalanx.api.causes import Causes, duplicate, forbidden, invalid, required, under
from phalanx.api.checks import (
    Check,
    between,
    each,
    every,
    given,
    needed,
    one_of,
    present,
    struct,
    text,
    there,
    union,
    unique_field,
)
from phalanx.api.containerrules import (
    CONTAINER,
    INIT_CONTAINER,
    READINESS_GATES,
    RESTART_POLICIES,
    USER_ID,
    check_seccomp,
    host_network_causes,
    host_port_causes,
)
from phalanx.api.errors import Cause
from phalanx.api.fields import dns_label_faults, dns_subdomain_faults, ip_faults
from phalanx.api.metarules import check_labels
from phalanx.api.placementrules import (
    AFFINITY,
    SCHEDULING_GROUP,
    SPREAD_CONSTRAINTS,
    TOLERATIONS,
    check_gates,
)
from phalanx.api.resourcerules import check_resources, claim_causes
from phalanx.api.volumerules import VOLUMES, mount_causes
from phalanx.api.wire import Object

_LABEL = text(dns_label_faults)
_SUBDOMAIN = text(dns_subdomain_faults)
_MAX_SECONDS = 2**31 - 1
_MAX_NAMESERVERS, _MAX_SEARCHES = 3, 32
_DNS_POLICIES = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
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
            if name and name in seen:
                found.append(duplicate(f"{field}[{at}].name", name))
            seen.add(name)
    return found


def _ports(new: Any, old: Any) -> Causes:
    found: list[Cause] = []
    for field, containers in _groups_of(new):
        found += host_port_causes(field, containers)
        if new.get("hostNetwork"):
            found += host_network_causes(field, containers)
    return found


def _mounts(new: Any, old: Any) -> Causes:
    volumes = [volume.get("name", "") for volume in new.get("volumes", ())]
    return [
        cause
        for field, containers in _groups_of(new)
        for cause in mount_causes(field, containers, volumes)
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


_DNS_CONFIG = struct(
    (
        "nameservers",
        given(every(_no_more_than(_MAX_NAMESERVERS, "nameservers"), each(text(ip_faults)))),
    ),
    ("searches", given(_no_more_than(_MAX_SEARCHES, "search paths"))),
    ("options", given(each(struct(("name", there))))),
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


def _gated_pods_have_no_node(new: Any, old: Any) -> Causes:
    if not (new.get("nodeName") and new.get("schedulingGates")):
        return ()
    return [forbidden("nodeName", "cannot be set until all schedulingGates have been cleared")]


_SECURITY = struct(
    ("runAsUser", given(USER_ID)),
    ("runAsGroup", given(USER_ID)),
    ("fsGroup", given(USER_ID)),
    ("supplementalGroups", given(each(USER_ID))),
    ("fsGroupChangePolicy", given(one_of("Always", "OnRootMismatch"))),
    ("supplementalGroupsPolicy", given(one_of("Merge", "Strict"))),
    ("seccompProfile", present(check_seccomp)),
)
_HOST_ALIAS = struct(
    ("ip", needed(text(ip_faults))),
    ("hostnames", given(each(_SUBDOMAIN))),
)
_CLAIM = every(
    struct(("name", needed(_LABEL))),
    union("resourceClaimName", "resourceClaimTemplateName"),
    struct(
        ("resourceClaimName", present(_SUBDOMAIN)),
        ("resourceClaimTemplateName", present(_SUBDOMAIN)),
    ),
)

POD_SPEC: Check = every(
    struct(
        ("volumes", given(VOLUMES)),
        ("containers", needed(each(CONTAINER))),
        ("initContainers", given(each(INIT_CONTAINER))),
        ("resourceClaims", given(every(each(_CLAIM), unique_field("name")))),
        ("restartPolicy", needed(one_of(*RESTART_POLICIES))),
        ("dnsPolicy", needed(one_of(*_DNS_POLICIES))),
        ("dnsConfig", present(_DNS_CONFIG)),
        ("nodeSelector", check_labels),
        ("securityContext", given(_SECURITY)),
        ("affinity", present(AFFINITY)),
        ("readinessGates", given(READINESS_GATES)),
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
        ("preemptionPolicy", given(one_of("Never", "PreemptLowerPriority"))),
        ("overhead", lambda new, old: check_resources({"requests": new or {}}, old)),
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
    _gated_pods_have_no_node,
)
