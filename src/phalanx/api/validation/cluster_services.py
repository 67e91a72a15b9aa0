"""Validation of autoscalers, certificates, flow control, runtime classes and API services."""

from __future__ import annotations

import binascii
from typing import Any

from phalanx.api.errors import Cause, Causes, forbidden, invalid, prefix_causes, required
from phalanx.api.formats import (
    validate_dns_label,
    validate_dns_subdomain,
    validate_path_segment,
)
from phalanx.api.validation.checks import (
    CREATED,
    IMMUTABLE,
    Check,
    all_of,
    each,
    if_present,
    immutable,
    in_range,
    mandatory,
    maximum,
    minimum,
    non_empty,
    one_of,
    optional,
    string_format,
    struct,
)
from phalanx.api.validation.metadata import check_conditions

# ---------------------------------------------------------------------------------- autoscalers

_REFERENCE = struct(
    ("kind", mandatory(string_format(validate_path_segment))),
    ("name", mandatory(string_format(validate_path_segment))),
)
#: The source of a metric, by its type.
METRIC_SOURCES = {
    "ContainerResource": "containerResource",
    "External": "external",
    "Object": "object",
    "Pods": "pods",
    "Resource": "resource",
}
_TARGET_VALUES = {
    "Utilization": "averageUtilization",
    "Value": "value",
    "AverageValue": "averageValue",
}


def _check_target(new: Any, old: Any) -> Causes:
    target = new or {}
    kind = target.get("type", "")
    if not kind:
        return [required("type", "must specify a metric target type")]
    if kind not in _TARGET_VALUES:
        detail = "must be either Utilization, Value, or AverageValue"
        return [invalid("type", kind, detail)]
    value = target.get(_TARGET_VALUES[kind])
    if kind == "Utilization" and value is not None and value < 1:
        return [invalid("averageUtilization", value, "must be greater than 0")]
    if value is None:
        return [required(_TARGET_VALUES[kind], f"must specify a value for the type {kind}")]
    return ()


def _check_metric(new: Any, old: Any) -> Causes:
    kind = new.get("type", "")
    if not kind:
        return [required("type", "must specify a metric source type")]
    if kind not in METRIC_SOURCES:
        return prefix_causes("type", one_of(*METRIC_SOURCES)(kind, old))
    own = METRIC_SOURCES[kind]
    present = [field for field in METRIC_SOURCES.values() if new.get(field) is not None]
    if own not in present:
        return [required(own, "must populate information for the given metric source")]
    if len(present) > 1:
        other = next(field for field in present if field != own)
        return [forbidden(other, "must populate the given metric source only")]
    source = new[own]
    found = [*prefix_causes(f"{own}.target", _check_target(source.get("target"), old))]
    if kind in ("Resource", "ContainerResource"):
        found += [required(f"{own}.name")] if not source.get("name") else []
    elif not (source.get("metric") or {}).get("name"):
        found.append(required(f"{own}.metric.name"))
    if kind == "ContainerResource" and not source.get("container"):
        found.append(required(f"{own}.container"))
    return found


_SCALING_POLICY = struct(
    ("type", mandatory(one_of("Percent", "Pods"))),
    ("value", all_of(mandatory(minimum(1)))),
    ("periodSeconds", mandatory(in_range(1, 1800))),
)


def _check_scaling_rules(new: Any, old: Any) -> Causes:
    found = [
        *_SCALING_RULES(new, CREATED),
    ]
    if not new.get("policies"):
        found.append(required("policies", "must specify at least one Policy"))
    return found


_SCALING_RULES = struct(
    ("stabilizationWindowSeconds", optional(all_of(minimum(0), maximum(3600)))),
    ("selectPolicy", optional(one_of("Disabled", "Max", "Min"))),
    ("policies", optional(each(_SCALING_POLICY))),
)


def _check_replica_bounds(new: Any, old: Any) -> Causes:
    spec = new or {}
    low, high = spec.get("minReplicas"), spec.get("maxReplicas", 0)
    found: list[Cause] = []
    if low is not None and low < 1:
        found.append(invalid("minReplicas", low, "must be greater than or equal to 1"))
    if high < 1:
        found.append(invalid("maxReplicas", high, "must be greater than 0"))
    if low is not None and high < low:
        detail = "must be greater than or equal to `minReplicas`"
        found.append(invalid("maxReplicas", high, detail))
    return found


check_autoscaler: Check = struct(
    (
        "spec",
        all_of(
            _check_replica_bounds,
            struct(
                ("scaleTargetRef", _REFERENCE),
                ("metrics", optional(each(_check_metric))),
                (
                    "behavior",
                    if_present(
                        struct(
                            ("scaleUp", if_present(_check_scaling_rules)),
                            ("scaleDown", if_present(_check_scaling_rules)),
                        )
                    ),
                ),
            ),
        ),
    )
)
_AUTOSCALER_COUNTS = ("currentReplicas", "desiredReplicas")
check_autoscaler_status: Check = struct(
    ("status", struct(*((field, optional(minimum(0))) for field in _AUTOSCALER_COUNTS)))
)

# --------------------------------------------------------------------------------- certificates

USAGES = (
    "any", "cert sign", "client auth", "code signing", "content commitment", "crl sign",
    "data encipherment", "decipher only", "digital signature", "email protection", "encipher only",
    "ipsec end system", "ipsec tunnel", "ipsec user", "key agreement", "key encipherment",
    "microsoft sgc", "netscape sgc", "ocsp signing", "s/mime", "server auth", "signing",
    "timestamping",
)  # fmt: skip
_PEM_BEGIN = b"-----BEGIN CERTIFICATE REQUEST-----"


def check_signer_name(new: Any, old: Any) -> Causes:
    """Require a domain and a path: `example.com/my-signer`."""
    if not new:
        return [required("")]
    domain, _, path = new.partition("/")
    if not path or "." not in domain or validate_dns_subdomain(domain):
        detail = "must be a fully qualified domain and path of the form 'example.com/signer-name'"
        return [invalid("", new, detail)]
    return ()


def _check_request(new: Any, old: Any) -> Causes:
    if not new:
        return [required("")]
    try:
        text = binascii.a2b_base64(new)
    except binascii.Error:
        text = b""
    if _PEM_BEGIN not in text:
        return [invalid("", new, "PEM block type must be CERTIFICATE REQUEST")]
    return ()


def _check_spec_unchanged(new: Any, old: Any) -> Causes:
    if old is CREATED or new == old:
        return ()
    return [invalid("", new, IMMUTABLE)]


check_signing_request: Check = struct(
    (
        "spec",
        all_of(
            struct(
                ("request", _check_request),
                ("signerName", check_signer_name),
                ("usages", mandatory(each(one_of(*USAGES)))),
                ("expirationSeconds", optional(minimum(600))),
            ),
            _check_spec_unchanged,
        ),
    )
)
_DECISIONS = ("Approved", "Denied")


def _check_decisions(new: Any, old: Any) -> Causes:
    found: list[Cause] = []
    kinds = [one.get("type", "") for one in new or ()]
    for at, one in enumerate(new or ()):
        if not one.get("type"):
            found.append(required(f"[{at}].type"))
        if one.get("type") in (*_DECISIONS, "Failed") and one.get("status") != "True":
            found.append(invalid(f"[{at}].status", one.get("status"), "must be True"))
    if all(decision in kinds for decision in _DECISIONS):
        found.append(invalid("", new, "Approved and Denied conditions are mutually exclusive"))
    before = () if old is CREATED else old or ()
    found += [
        forbidden(
            "", f"updates may not remove a condition of type {one['type']!r}".replace("'", '"')
        )
        for one in before
        if one.get("type") in (*_DECISIONS, "Failed") and one["type"] not in kinds
    ]
    return found


check_signing_request_status: Check = struct(("status", struct(("conditions", _check_decisions))))


def _check_trust_bundle_name(new: Any, old: Any) -> Causes:
    signer = (new.get("spec") or {}).get("signerName", "")
    name = new["metadata"].get("name", "")
    if signer:
        start = signer.replace("/", ":") + ":"
        if not name.startswith(start):
            detail = f"ClusterTrustBundle for signerName {signer} must be named with prefix {start}"
            return [invalid("metadata.name", name, detail)]
    elif ":" in name:
        detail = 'ClusterTrustBundle without signer name must not have ":" in its name'
        return [invalid("metadata.name", name, detail)]
    return ()


def _check_trust_bundle(new: Any, old: Any) -> Causes:
    if not new:
        return [invalid("", new or "", "at least one trust anchor must be provided")]
    if "-----BEGIN CERTIFICATE-----" not in new:
        return [invalid("", "<value omitted>", "entry 0 has bad block type")]
    return ()


check_cluster_trust_bundle: Check = all_of(
    _check_trust_bundle_name,
    struct(
        (
            "spec",
            struct(
                ("signerName", immutable(optional(check_signer_name))),
                ("trustBundle", _check_trust_bundle),
            ),
        )
    ),
)
check_pod_certificate_request: Check = struct(
    (
        "spec",
        all_of(
            struct(
                ("signerName", check_signer_name),
                ("podName", non_empty),
                ("podUID", non_empty),
                ("serviceAccountName", non_empty),
                ("serviceAccountUID", non_empty),
                ("nodeName", non_empty),
                ("nodeUID", non_empty),
                ("maxExpirationSeconds", optional(minimum(3600))),
            ),
            _check_spec_unchanged,
        ),
    )
)

# --------------------------------------------------------------------------------- flow control


def _check_rule_subject(new: Any, old: Any) -> Causes:
    kinds = {"User": "user", "Group": "group", "ServiceAccount": "serviceAccount"}
    kind = new.get("kind", "")
    if kind not in kinds:
        return prefix_causes("kind", one_of("Group", "ServiceAccount", "User")(kind, old))
    own = kinds[kind]
    found = [
        forbidden(other, f"{other} is forbidden when subject kind is not its own")
        for other in kinds.values()
        if other != own and new.get(other) is not None
    ]
    if new.get(own) is None:
        return [*found, required(own, f"{own} is required when subject kind is '{kind}'")]
    return [*found, *([] if new[own].get("name") else [required(f"{own}.name")])]


_POLICY_RULE = struct(
    ("subjects", mandatory(each(_check_rule_subject))),
    (
        "resourceRules",
        optional(
            each(
                struct(
                    ("verbs", non_empty),
                    ("apiGroups", non_empty),
                    ("resources", non_empty),
                )
            )
        ),
    ),
    (
        "nonResourceRules",
        optional(each(struct(("verbs", non_empty), ("nonResourceURLs", non_empty)))),
    ),
)


def _check_rule(new: Any, old: Any) -> Causes:
    found = [*_POLICY_RULE(new, CREATED)]
    if not new.get("resourceRules") and not new.get("nonResourceRules"):
        detail = "at least one of resourceRules and nonResourceRules has to be non-empty"
        found.append(required("", detail))
    return found


check_flow_schema: Check = struct(
    (
        "spec",
        struct(
            ("matchingPrecedence", optional(in_range(1, 10_000))),
            (
                "priorityLevelConfiguration",
                mandatory(struct(("name", mandatory(string_format(validate_dns_subdomain))))),
            ),
            (
                "distinguisherMethod",
                if_present(struct(("type", mandatory(one_of("ByNamespace", "ByUser"))))),
            ),
            ("rules", optional(each(_check_rule))),
        ),
    )
)


def _check_limited(new: Any, old: Any) -> Causes:
    response = new.get("limitResponse") or {}
    found = [
        *prefix_causes(
            "nominalConcurrencyShares",
            optional(minimum(0))(new.get("nominalConcurrencyShares"), old),
        ),
        *prefix_causes(
            "lendablePercent", optional(in_range(0, 100))(new.get("lendablePercent"), old)
        ),
    ]
    kind, queuing = response.get("type", ""), response.get("queuing")
    if kind == "Reject" and queuing is not None:
        detail = "must be nil if limited.limitResponse.type is not Limited"
        return [*found, forbidden("limitResponse.queuing", detail)]
    if kind == "Queue" and queuing is None:
        detail = "must not be empty if limited.limitResponse.type is Limited"
        return [*found, required("limitResponse.queuing", detail)]
    if kind not in ("Queue", "Reject"):
        return [*found, *prefix_causes("limitResponse.type", one_of("Queue", "Reject")(kind, old))]
    return [*found, *prefix_causes("limitResponse.queuing", _check_queuing(queuing or {}))]


def _check_queuing(queuing: Any) -> Causes:
    if not queuing:
        return ()
    queues, hand = queuing.get("queues", 0), queuing.get("handSize", 0)
    found: list[Cause] = []
    if queuing.get("queueLengthLimit", 0) <= 0:
        found.append(
            invalid("queueLengthLimit", queuing.get("queueLengthLimit"), "must be positive")
        )
    if queues <= 0:
        found.append(invalid("queues", queues, "must be positive"))
    if hand <= 0:
        found.append(invalid("handSize", hand, "must be positive"))
    if hand > queues:
        found.append(invalid("handSize", hand, f"should not be greater than queues ({queues})"))
    return found


def _check_priority_level(new: Any, old: Any) -> Causes:
    new = new or {}
    kind = new.get("type", "")
    if kind not in ("Exempt", "Limited"):
        return prefix_causes("type", one_of("Exempt", "Limited")(kind, old))
    if kind == "Exempt":
        detail = "must be nil if the type is not Limited"
        return [forbidden("limited", detail)] if new.get("limited") is not None else ()
    if new.get("exempt") is not None:
        return [forbidden("exempt", "must be nil if the type is Limited")]
    if new.get("limited") is None:
        return [required("limited", "must not be empty when type is Limited")]
    return prefix_causes("limited", _check_limited(new["limited"], old))


check_priority_level: Check = struct(("spec", _check_priority_level))

# --------------------------------------------------------------------------------------- others

check_runtime_class: Check = struct(
    ("handler", immutable(mandatory(string_format(validate_dns_label))))
)


def check_api_service(new: Any, old: Any) -> Causes:
    """Check an APIService: its name is `version.group`, and a remote server must be verified."""
    name, spec = new["metadata"].get("name", ""), new.get("spec") or {}
    wanted = f"{spec.get('version', '')}.{spec.get('group', '')}"
    found: list[Cause] = []
    if old is CREATED and name != wanted:
        found.append(
            invalid("metadata.name", name, f'must be `spec.version+"."+spec.group`: "{wanted}"')
        )
    if not spec.get("version"):
        found.append(required("spec.version"))
    for field, high in (("groupPriorityMinimum", 20_000), ("versionPriority", 1000)):
        value = spec.get(field, 0)
        if not 0 < value <= high:
            found.append(invalid(f"spec.{field}", value, f"must be positive and not above {high}"))
    service = spec.get("service")
    if service is None:
        if spec.get("caBundle"):
            detail = "local APIServices may not have a caBundle"
            found.append(invalid("spec.caBundle", "", detail))
        return found
    found += [required(f"spec.service.{f}") for f in ("namespace", "name") if not service.get(f)]
    if spec.get("insecureSkipTLSVerify") and spec.get("caBundle"):
        detail = "may not be true if caBundle is present"
        found.append(invalid("spec.insecureSkipTLSVerify", True, detail))
    return found


check_storage_version_migration: Check = struct(
    ("spec", immutable(struct(("resource", struct(("resource", non_empty))))))
)
check_storage_version_migration_status: Check = struct(
    ("status", if_present(struct(("conditions", check_conditions))))
)
check_lease_candidate: Check = struct(
    (
        "spec",
        struct(
            ("leaseName", mandatory(string_format(validate_dns_subdomain))),
            ("binaryVersion", non_empty),
            ("strategy", mandatory(lambda new, old: ())),
        ),
    )
)
