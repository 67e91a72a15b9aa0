"""Admission policies in CEL, validating and mutating, with their bindings and parameters.

    policy matches? ─▶ each binding that matches ─▶ each of its parameters ─▶ validations: denied,
                                                    │  warned or recorded in the audit log
                                                    └─▶ mutations: merged or patched into the object

Policies are compiled when they are stored. An expression runs under a cost limit, and other
requests run between two evaluations. Messages, reasons and codes are those of Kubernetes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from phalanx.api.cel.admission import (
    CompiledPolicy,
    Failed,
    PolicyEvaluation,
    compile_policy,
    evaluate_conditions,
)
from phalanx.api.conversion.hub import from_hub
from phalanx.api.errors import AdmissionDenied
from phalanx.api.field_management.merge_diff import find_merge_error, merge_configuration
from phalanx.api.kinds import Kind
from phalanx.api.normalization import Malformed
from phalanx.api.patch import PatchFailed, apply_patch
from phalanx.api.selectors import selector_requirements
from phalanx.api.wire import JSON_PATCH, Object
from phalanx.server.discovery import KindRegistry
from phalanx.server.dynamic_admission.attributes import AdmissionAttributes, Operation
from phalanx.server.dynamic_admission.matching import MatchResources
from phalanx.server.dynamic_admission.webhooks import condition_values
from phalanx.server.objects import decode_record, forbidden_error

_CODES = {"Forbidden": 403, "Unauthorized": 401, "RequestEntityTooLarge": 413, "Invalid": 422}
_MAX_MESSAGE_LENGTH = 5 * 1024
_FAILURE_ANNOTATION = "validation.policy.admission.k8s.io/validation_failure"


class BadConfiguration(Exception):
    """A policy or binding that cannot be used; its failure policy decides."""


@dataclass(frozen=True, slots=True, eq=False)
class PolicyBinding:
    """A binding of a policy."""

    name: str
    resources: MatchResources
    param_ref: Object | None
    actions: tuple[str, ...]

    @classmethod
    def parse(cls, obj: Object) -> PolicyBinding:
        """Return a stored binding."""
        spec = obj["spec"]
        return cls(
            obj["metadata"]["name"],
            MatchResources.parse(spec.get("matchResources") or {}),
            spec.get("paramRef"),
            tuple(spec.get("validationActions") or ()),
        )


@dataclass(frozen=True, slots=True, eq=False)
class AdmissionPolicy:
    """A policy with its bindings."""

    name: str
    resources: MatchResources
    param_kind: Object | None
    ignores_failures: bool
    is_reinvocable: bool
    compiled: CompiledPolicy
    bindings: tuple[PolicyBinding, ...]

    @classmethod
    def parse(cls, obj: Object, bindings: Sequence[PolicyBinding]) -> AdmissionPolicy:
        """Return a stored policy."""
        spec = obj["spec"]
        return cls(
            obj["metadata"]["name"],
            MatchResources.parse(spec.get("matchConstraints") or {}),
            spec.get("paramKind"),
            spec.get("failurePolicy") == "Ignore",
            spec.get("reinvocationPolicy") == "IfNeeded",
            compile_policy(spec),
            tuple(bindings),
        )

    def may_match(
        self, registry: KindRegistry, kind: Kind, *, subresource: str, operation: Operation
    ) -> bool:
        """Whether a request of this kind can match the policy."""
        found = self.resources.find_kind(
            registry, kind, subresource=subresource, operation=operation
        )
        return bool(self.bindings) and found is not None


@dataclass(frozen=True, slots=True)
class _Violation:
    message: str
    reason: str = ""


async def validate_policies(
    policies: Sequence[AdmissionPolicy], attributes: AdmissionAttributes
) -> None:
    """Refuse a request that a policy denies. Raises the error of the first violation."""
    first: AdmissionDenied | None = None
    for policy in policies:
        kind = policy.resources.match(attributes)
        if kind is None:
            continue
        with attributes.leave_level(kind):
            await attributes.prepare(kind)
        values: Object | None = None
        for binding in policy.bindings:
            if binding.resources.match(attributes) is None:
                continue
            values = values or _policy_values(attributes, kind)
            for violation in await _find_violations(policy, binding, attributes, values=values):
                denied = _act_on(violation, policy, binding, attributes=attributes)
                first = first or denied
    if first is not None:
        raise first


def _policy_values(attributes: AdmissionAttributes, kind: Kind) -> Object:
    """Return the variables of a policy's expressions, without `params` and `variables`."""
    values = condition_values(attributes, kind)
    return {**values, "namespaceObject": attributes.namespace_object()}


async def _find_violations(
    policy: AdmissionPolicy,
    binding: PolicyBinding,
    attributes: AdmissionAttributes,
    *,
    values: Mapping[str, Any],
) -> list[_Violation]:
    """Return the violations of a request for each parameter of a binding."""
    try:
        parameters = list(find_parameters(policy, binding, attributes))
    except BadConfiguration as error:
        reason = f"failed to configure binding: {error}"
        return [] if policy.ignores_failures else [_Violation(reason)]
    found: list[_Violation] = []
    for params in parameters:
        found += _evaluate(policy, attributes, {**values, "params": params})
        # Each may take its whole cost limit: other requests run in between.
        await asyncio.sleep(0)
    return found


def _evaluate(
    policy: AdmissionPolicy, attributes: AdmissionAttributes, values: Object
) -> Iterator[_Violation]:
    """Yield the violations for one parameter; collect audit annotations."""
    matches = evaluate_conditions(policy.compiled.conditions, values)
    if isinstance(matches, str):
        if not policy.ignores_failures:
            yield _Violation(matches)
        return
    if not matches:
        return
    evaluation = PolicyEvaluation(policy.compiled, values)
    for rule in policy.compiled.validations:
        outcome = evaluation.evaluate(rule.program)
        if isinstance(outcome, Failed):
            if not policy.ignores_failures:
                yield _Violation(f"expression '{rule.text}' resulted in error: {outcome.reason}")
        elif outcome is not True:
            message = evaluation.evaluate(rule.message) if rule.message else None
            text = message.strip() if isinstance(message, str) else ""
            if "\n" in text or len(text.encode()) > _MAX_MESSAGE_LENGTH:
                text = ""
            yield _Violation(text or rule.default_message, rule.reason)
    for annotation in policy.compiled.annotations:
        outcome = evaluation.evaluate(annotation.program)
        if isinstance(outcome, Failed):
            if not policy.ignores_failures:
                reason = f"expression '{annotation.text}' resulted in error: {outcome.reason}"
                yield _Violation(reason)
        elif isinstance(outcome, str) and outcome.strip():
            key = f"{policy.name}/{annotation.key}"
            attributes.request_info.audit_annotations[key] = outcome.strip()


def _act_on(
    violation: _Violation,
    policy: AdmissionPolicy,
    binding: PolicyBinding,
    *,
    attributes: AdmissionAttributes,
) -> AdmissionDenied | None:
    """Warn of a violation, record it, or return the error that denies the request."""
    request_info = attributes.request_info
    if "Warn" in binding.actions:
        request_info.warnings.append(
            f"Validation failed for ValidatingAdmissionPolicy '{policy.name}' with binding "
            f"'{binding.name}': {violation.message}"
        )
    if "Audit" in binding.actions:
        entry = {
            "message": violation.message,
            "policy": policy.name,
            "binding": binding.name,
            "validationActions": list(binding.actions),
        }
        recorded = orjson.loads(request_info.audit_annotations.get(_FAILURE_ANNOTATION, "[]"))
        text = orjson.dumps([*recorded, entry]).decode()
        request_info.audit_annotations[_FAILURE_ANNOTATION] = text
    if "Deny" not in binding.actions:
        return None
    return denied_error(
        attributes,
        f"ValidatingAdmissionPolicy '{policy.name}' with binding '{binding.name}' denied request: "
        f"{violation.message}",
        violation.reason or "Invalid",
    )


def denied_error(attributes: AdmissionAttributes, message: str, reason: str) -> AdmissionDenied:
    """Return the error of a request that a policy denies."""
    meta = (attributes.object or {}).get("metadata", {})
    name = attributes.name or meta.get("name") or meta.get("generateName") or "Unknown"
    status = forbidden_error(attributes.resource_kind, name, message).status()
    status["details"]["causes"] = [{"message": message}]
    code = _CODES.get(reason, 422)
    return AdmissionDenied(code, {**status, "reason": reason, "code": code})


# ---- mutations -----------------------------------------------------------------------------------


async def mutate_policies(
    policies: Sequence[AdmissionPolicy], attributes: AdmissionAttributes
) -> bool:
    """Let policies change the object; return whether one has. Raises the error of a failure."""
    before = orjson.dumps(attributes.object)
    for policy in policies:
        kind = policy.resources.match(attributes)
        if kind is None or attributes.object is None:
            continue
        for binding in policy.bindings:
            if binding.resources.match(attributes) is None:
                continue
            try:
                for params in list(find_parameters(policy, binding, attributes)):
                    with attributes.leave_level(kind):
                        await attributes.prepare(kind)
                    _apply_mutations(policy, attributes, kind, params=params)
                    with attributes.leave_level(kind):
                        await attributes.settle()
                    await asyncio.sleep(0)
            except BadConfiguration as error:
                if not policy.ignores_failures:
                    raise denied_error(
                        attributes,
                        f"MutatingAdmissionPolicy '{policy.name}' with binding '{binding.name}' "
                        f"denied request: {error}",
                        "Invalid",
                    ) from error
    return orjson.dumps(attributes.object) != before


def _apply_mutations(
    policy: AdmissionPolicy, attributes: AdmissionAttributes, kind: Kind, *, params: Object | None
) -> None:
    """Apply the mutations of a policy in order; each sees the result of those before it."""
    shown = attributes.review_kind(kind)
    values = {**_policy_values(attributes, kind), "params": params}
    matches = evaluate_conditions(policy.compiled.conditions, values)
    if isinstance(matches, str):
        raise BadConfiguration(matches)
    for mutation in policy.compiled.mutations if matches else ():
        values["object"] = attributes.form(shown, attributes.object)
        outcome = PolicyEvaluation(policy.compiled, values).evaluate(mutation.program)
        if isinstance(outcome, Failed):
            reason = f"expression '{mutation.text}' resulted in error: {outcome.reason}"
            raise BadConfiguration(reason)
        schema = attributes.context.registry.strategy(shown).schema
        try:
            # Durations, timestamps and the like have no JSON form.
            change = orjson.loads(orjson.dumps(outcome, option=orjson.OPT_PASSTHROUGH_DATACLASS))
            if mutation.is_patch:
                changed = apply_patch(JSON_PATCH, schema, values["object"], patch=change)
            elif fault := find_merge_error(schema, change):
                raise BadConfiguration(fault)
            else:
                changed = merge_configuration(schema, values["object"], change)
            attributes.accept_form(shown, changed)
        except (PatchFailed, Malformed, TypeError) as error:
            raise BadConfiguration(str(error)) from error


# ---- parameters ----------------------------------------------------------------------------------


def find_parameters(
    policy: AdmissionPolicy, binding: PolicyBinding, attributes: AdmissionAttributes
) -> Iterator[Object | None]:
    """Yield the parameters of a binding; None stands for no parameter.

    Raises BadConfiguration if they cannot be found and the binding denies that.
    """
    reference = binding.param_ref
    if policy.param_kind is None or reference is None:
        yield None
        return
    kind = _find_param_kind(attributes.context.registry, policy.param_kind)
    namespace = reference.get("namespace", "")
    if kind.namespaced:
        namespace = namespace or attributes.namespace
        if not namespace:
            raise BadConfiguration(
                "cannot use namespaced paramRef in policy binding that matches cluster-scoped "
                "resources"
            )
    elif namespace:
        detail = "paramRef.namespace must not be provided for a cluster-scoped `paramKind`"
        raise BadConfiguration(detail)
    store, found = attributes.context.store, False
    if name := reference.get("name"):
        record = store.get(kind.store_key(namespace, name))
        records = [record] if record else []
    else:
        records = list(store.range(kind.store_prefix(namespace)))
    needs = selector_requirements(reference.get("selector") or {})
    for one in records:
        obj = decode_record(one)
        labels = obj["metadata"].get("labels") or {}
        if all(need.matches(labels) for need in needs):
            found = True
            yield {"apiVersion": kind.api_version, "kind": kind.name, **from_hub(kind, obj)}
    if not found and reference.get("parameterNotFoundAction") == "Deny":
        detail = "no params found for policy binding with `Deny` parameterNotFoundAction"
        raise BadConfiguration(detail)


def _find_param_kind(registry: KindRegistry, param_kind: Object) -> Kind:
    for kind in registry.kinds:
        if (kind.api_version, kind.name) == (param_kind["apiVersion"], param_kind["kind"]):
            return kind
    shown = f"{param_kind['apiVersion']}, Kind={param_kind['kind']}"
    raise BadConfiguration(f"paramKind kind `{shown}` not found")
