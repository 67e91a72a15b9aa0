"""Validation of webhook configurations, admission policies and their bindings.

Expressions are compiled: one that cannot run is refused.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from phalanx.api.cel.admission import compile_condition, find_expression_faults
from phalanx.api.errors import Cause, Causes, duplicate, forbidden, invalid, prefix_causes, required
from phalanx.api.formats import validate_dns_subdomain
from phalanx.api.validation.checks import (
    CREATED,
    Check,
    all_of,
    each,
    find_duplicate_items,
    if_present,
    in_range,
    mandatory,
    max_items,
    non_empty,
    one_of,
    optional,
    string_format,
    struct,
)
from phalanx.api.validation.metadata import check_selector

_OPERATIONS = ("*", "CONNECT", "CREATE", "DELETE", "UPDATE")
_REVIEW_VERSIONS = ("v1", "v1beta1")
_MAX_MATCH_CONDITIONS = 64
_FAILURE_POLICY = one_of("Fail", "Ignore")
_MATCH_POLICY = one_of("Equivalent", "Exact")


def _star_alone(field: str) -> Check:
    def check(new: Any, old: Any) -> Causes:
        if not new:
            return [required("")]
        if "*" in new and len(new) > 1:
            detail = f"if '*' is present, must not specify other {field}"
            return [invalid("", new, detail)]
        return [
            required(f"[{at}]") for at, one in enumerate(new) if not one and field != "API groups"
        ]

    return check


def _check_resources(new: Any, old: Any) -> Causes:
    if not new:
        return [required("")]
    if "*/*" in new and len(new) > 1:
        return [invalid("", new, "if '*/*' is present, must not specify other resources")]
    return [required(f"[{at}]") for at, one in enumerate(new) if not one]


_RULE_FIELDS = (
    ("operations", all_of(_star_alone("operations"), optional(each(one_of(*_OPERATIONS))))),
    ("apiGroups", _star_alone("API groups")),
    ("apiVersions", _star_alone("API versions")),
    ("resources", _check_resources),
    ("scope", optional(one_of("*", "Cluster", "Namespaced"))),
)
_RULE = struct(*_RULE_FIELDS)


def _check_url(new: Any, old: Any) -> Causes:
    parts = urlsplit(new)
    form = "; desired format: https://host[/path]"
    found: list[Cause] = []
    if parts.scheme != "https":
        found.append(invalid("", new, f"'https' is the only allowed URL scheme{form}"))
    if not parts.hostname:
        found.append(invalid("", "", f"host must be specified{form}"))
    if parts.username is not None:
        found.append(invalid("", new, "user information is not permitted in the URL"))
    if parts.fragment:
        found.append(invalid("", parts.fragment, "fragments are not permitted in the URL"))
    if parts.query:
        found.append(invalid("", parts.query, "query parameters not permitted in the URL"))
    return found


def _check_service_path(new: Any, old: Any) -> Causes:
    if not new:
        return ()
    if not new.startswith("/"):
        return [invalid("", new, "must start with a '/'")]
    if new == "/":
        return ()
    steps = new[1:].removesuffix("/").split("/")
    return [
        invalid("", new, f"segment[{at}] may not be empty")
        if not step
        else invalid("", new, f"segment[{at}]: {fault}")
        for at, step in enumerate(steps)
        for fault in ([""] if not step else validate_dns_subdomain(step))
    ]


_SERVICE = struct(
    ("namespace", non_empty),
    ("name", non_empty),
    ("path", if_present(_check_service_path)),
    ("port", optional(in_range(1, 65535))),
)


def check_client_config(new: Any, old: Any) -> Causes:
    """Check how a webhook is reached: exactly one of a URL and a Service."""
    config = new or {}
    if (config.get("url") is None) == (config.get("service") is None):
        return [required("", "exactly one of url or service is required")]
    if config.get("url") is not None:
        return prefix_causes("url", _check_url(config["url"], old))
    return prefix_causes("service", _SERVICE(config["service"], CREATED))


def _check_match_conditions(new: Any, old: Any) -> Causes:
    found = [
        cause
        for at, one in enumerate(new)
        for cause in prefix_causes(f"[{at}]", _MATCH_CONDITION(one, CREATED))
    ]
    places = find_duplicate_items(new, "name")
    return [*found, *(duplicate(f"[{at}].name", new[at].get("name", "")) for at in places)]


def _check_condition(new: Any, old: Any) -> Causes:
    if not new:
        return [required("")]
    program = compile_condition(new)
    return [invalid("", new, program)] if isinstance(program, str) else ()


_MATCH_CONDITION = struct(("name", non_empty), ("expression", non_empty))
_CONDITIONS_OF_WEBHOOK = struct(("expression", optional(_check_condition)))
_MATCH_CONDITIONS = optional(max_items(_MAX_MATCH_CONDITIONS, _check_match_conditions))


def _check_webhook_name(new: Any, old: Any) -> Causes:
    if not new:
        return [required("")]
    if found := string_format(validate_dns_subdomain)(new, old):
        return found
    if len(new.split(".")) < 3:
        detail = "should be a domain with at least three segments separated by dots"
        return [invalid("", new, detail)]
    return ()


def _check_side_effects(new: Any, old: Any) -> Causes:
    if not new:
        return [required("", "must specify one of None, NoneOnDryRun")]
    return one_of("None", "NoneOnDryRun")(new, old)


def _check_review_versions(new: Any, old: Any) -> Causes:
    known = ", ".join(_REVIEW_VERSIONS)
    if not new:
        return [required("", f"must specify one of {known}")]
    if not any(one in _REVIEW_VERSIONS for one in new):
        detail = f"must include at least one of {known}"
        return [invalid("", new, detail)]
    return ()


_WEBHOOK = struct(
    ("name", _check_webhook_name),
    ("clientConfig", check_client_config),
    ("rules", optional(each(_RULE))),
    ("failurePolicy", optional(_FAILURE_POLICY)),
    ("matchPolicy", optional(_MATCH_POLICY)),
    ("namespaceSelector", optional(check_selector)),
    ("objectSelector", optional(check_selector)),
    ("sideEffects", _check_side_effects),
    ("timeoutSeconds", optional(in_range(1, 30))),
    ("admissionReviewVersions", _check_review_versions),
    ("reinvocationPolicy", optional(one_of("IfNeeded", "Never"))),
    ("matchConditions", all_of(_MATCH_CONDITIONS, optional(each(_CONDITIONS_OF_WEBHOOK)))),
)


def _check_webhooks(new: Any, old: Any) -> Causes:
    places = find_duplicate_items(new, "name")
    found = [duplicate(f"[{at}].name", new[at].get("name", "")) for at in places]
    return [*each(_WEBHOOK)(new, old), *found]


check_webhook_configuration: Check = struct(("webhooks", optional(_check_webhooks)))

# ------------------------------------------------------------------------------------- policies

_NAMED_RULE = struct(*_RULE_FIELDS, ("resourceNames", optional(each(non_empty))))
_MATCH_RESOURCES_FIELDS = (
    ("namespaceSelector", optional(check_selector)),
    ("objectSelector", optional(check_selector)),
    ("excludeResourceRules", optional(each(_NAMED_RULE))),
    ("matchPolicy", optional(_MATCH_POLICY)),
)
_MATCH_RESOURCES = struct(("resourceRules", optional(each(_NAMED_RULE))), *_MATCH_RESOURCES_FIELDS)
_MATCH_CONSTRAINTS = mandatory(
    struct(("resourceRules", mandatory(each(_NAMED_RULE))), *_MATCH_RESOURCES_FIELDS)
)
_PARAM_KIND = struct(("apiVersion", non_empty), ("kind", non_empty))
_VARIABLES = optional(each(struct(("name", non_empty), ("expression", non_empty))))
_COMMON_POLICY_FIELDS = (
    ("failurePolicy", optional(_FAILURE_POLICY)),
    ("paramKind", if_present(_PARAM_KIND)),
    ("matchConstraints", _MATCH_CONSTRAINTS),
    ("matchConditions", _MATCH_CONDITIONS),
    ("variables", _VARIABLES),
)
_VALIDATION_REASONS = ("Unauthorized", "Forbidden", "Invalid", "RequestEntityTooLarge")


def _check_has_rules(new: Any, old: Any) -> Causes:
    spec = new or {}
    if spec.get("validations") or spec.get("auditAnnotations"):
        return ()
    detail = "validations or auditAnnotations must contain at least one item"
    return [required("validations", detail), required("auditAnnotations", detail)]


def _check_expressions(new: Any, old: Any) -> Causes:
    spec = new or {}
    parts = ("matchConditions", "variables", "validations", "auditAnnotations")
    rows = [one for part in parts for one in spec.get(part) or ()]
    if not all(one.get("expression") or one.get("valueExpression") for one in rows):
        return ()  # Reported as required.
    if any(_check_mutation(one, CREATED) for one in spec.get("mutations") or ()):
        return ()
    return [invalid(*fault) for fault in find_expression_faults(spec)]


check_validating_policy: Check = struct(
    (
        "spec",
        all_of(
            struct(
                *_COMMON_POLICY_FIELDS,
                (
                    "validations",
                    optional(
                        each(
                            struct(
                                ("expression", non_empty),
                                ("reason", optional(one_of(*_VALIDATION_REASONS))),
                            )
                        )
                    ),
                ),
                (
                    "auditAnnotations",
                    optional(each(struct(("key", non_empty), ("valueExpression", non_empty)))),
                ),
            ),
            _check_has_rules,
            _check_expressions,
        ),
    )
)


def _check_mutation(new: Any, old: Any) -> Causes:
    kind = new.get("patchType")
    if not kind:
        return [required("patchType")]
    parts = {"ApplyConfiguration": "applyConfiguration", "JSONPatch": "jsonPatch"}
    if kind not in parts:
        return prefix_causes("patchType", one_of(*parts)(kind, old))
    own = parts[kind]
    found: list[Cause] = []
    if not (new.get(own) or {}).get("expression"):
        found.append(required(f"{own}.expression" if own in new else own))
    return [
        *found,
        *(
            invalid(other, new[other], f"must not be specified when patchType is {kind}")
            for other in parts.values()
            if other != own and new.get(other) is not None
        ),
    ]


check_mutating_policy: Check = struct(
    (
        "spec",
        all_of(
            struct(
                *_COMMON_POLICY_FIELDS,
                ("mutations", mandatory(each(_check_mutation))),
                ("reinvocationPolicy", mandatory(one_of("IfNeeded", "Never"))),
            ),
            _check_expressions,
        ),
    )
)


def _check_param_ref(new: Any, old: Any) -> Causes:
    found: list[Cause] = []
    if new.get("name") and new.get("selector") is not None:
        detail = "name and selector are mutually exclusive"
        found += [forbidden("name", detail), forbidden("selector", detail)]
    elif not new.get("name") and new.get("selector") is None:
        found.append(required("", "one of name or selector must be specified"))
    action = new.get("parameterNotFoundAction")
    if not action:
        return [*found, required("parameterNotFoundAction")]
    return [*found, *prefix_causes("parameterNotFoundAction", one_of("Allow", "Deny")(action, old))]


def _check_actions(new: Any, old: Any) -> Causes:
    if not new:
        return [required("", "at least one validation action is required")]
    found = [*each(one_of("Audit", "Deny", "Warn"))(new, old)]
    if "Deny" in new and "Warn" in new:
        detail = "must not contain both Deny and Warn (repeating the same validation failure "
        detail += "information in the API response and headers serves no purpose)"
        found.append(invalid("", new, detail))
    return found


_BINDING_FIELDS = (
    ("policyName", mandatory(string_format(validate_dns_subdomain))),
    ("paramRef", if_present(_check_param_ref)),
    ("matchResources", if_present(_MATCH_RESOURCES)),
)
check_mutating_policy_binding: Check = struct(("spec", struct(*_BINDING_FIELDS)))
check_validating_policy_binding: Check = struct(
    ("spec", struct(*_BINDING_FIELDS, ("validationActions", _check_actions)))
)
