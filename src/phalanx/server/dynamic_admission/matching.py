"""Which requests a webhook or policy is about: rules, selectors and match conditions.

Rules are compared once per kind, subresource and operation (`find_review_kind`), selectors and
conditions for every request. With `matchPolicy: Equivalent` a rule also matches another version
of the resource, and the object is converted to that version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from phalanx.api.cel.admission import MatchCondition, evaluate_conditions
from phalanx.api.kinds import NAMESPACE, Kind
from phalanx.api.selectors import LabelRequirement, selector_requirements
from phalanx.api.wire import Object
from phalanx.server.discovery import KindRegistry
from phalanx.server.dynamic_admission.attributes import AdmissionAttributes, Operation
from phalanx.server.objects import forbidden_error, not_found_error

#: The group of webhook configurations and policies: no hook reviews them, so that a broken one can
#: always be repaired.
EXEMPT_GROUP = "admissionregistration.k8s.io"


@dataclass(frozen=True, slots=True)
class RequestSelector:
    """The selectors of a webhook or policy."""

    objects: tuple[LabelRequirement, ...]
    namespaces: tuple[LabelRequirement, ...]

    @classmethod
    def parse(cls, spec: Object) -> RequestSelector:
        """Return the selectors of a webhook, or of match resources of a policy."""
        return cls(
            selector_requirements(spec.get("objectSelector") or {}),
            selector_requirements(spec.get("namespaceSelector") or {}),
        )

    def matches(self, attributes: AdmissionAttributes) -> bool:
        """Whether the namespace is selected, and the object in its old or new state."""
        if self.namespaces and not self._matches_namespace(attributes):
            return False
        if not self.objects:
            return True
        states = (one for one in (attributes.object, attributes.old) if one is not None)
        return any(_match_labels(self.objects, one) for one in states)

    def _matches_namespace(self, attributes: AdmissionAttributes) -> bool:
        if not attributes.namespace and attributes.resource_kind is not NAMESPACE:
            return True  # Objects without a namespace are always selected.
        namespace = attributes.namespace_object()
        if namespace is None:
            raise not_found_error(NAMESPACE, attributes.namespace)
        return _match_labels(self.namespaces, namespace)


def _match_labels(requirements: Iterable[LabelRequirement], obj: Object) -> bool:
    labels: Mapping[str, str] = obj.get("metadata", {}).get("labels") or {}
    return all(one.matches(labels) for one in requirements)


def find_review_kind(
    registry: KindRegistry,
    rules: Sequence[Object],
    kind: Kind,
    *,
    subresource: str,
    operation: Operation,
    is_equivalent: bool,
) -> Kind | None:
    """Return the kind in whose version rules ask for a request; None if no rule matches it."""
    if kind.group == EXEMPT_GROUP:
        return None
    if any(
        _rule_matches(rule, kind, subresource=subresource, operation=operation) for rule in rules
    ):
        return kind
    if is_equivalent:
        prefix = kind.store_prefix()
        others = [one for one in registry.kinds if one.store_prefix() == prefix]
        for rule in rules:
            for other in others:
                if _rule_matches(rule, other, subresource=subresource, operation=operation):
                    return other
    return None


def _rule_matches(rule: Object, kind: Kind, *, subresource: str, operation: Operation) -> bool:
    return (
        _contains(rule.get("operations"), operation)
        and _contains(rule.get("apiGroups"), kind.group)
        and _contains(rule.get("apiVersions"), kind.version)
        and rule.get("scope", "*") in ("*", "Namespaced" if kind.namespaced else "Cluster")
        and any(
            _resource_matches(resource, kind.plural, subresource)
            for resource in rule.get("resources") or ()
        )
    )


def _contains(values: Iterable[str] | None, value: str) -> bool:
    return any(one in ("*", value) for one in values or ())


def _resource_matches(text: str, plural: str, subresource: str) -> bool:
    resource, _, part = text.partition("/")
    return resource in ("*", plural) and part in ("*", subresource)


def conditions_match(
    conditions: Sequence[MatchCondition],
    attributes: AdmissionAttributes,
    values: Mapping[str, object],
    *,
    ignores_errors: bool,
) -> bool:
    """Whether all match conditions hold. Errors in them follow the failure policy."""
    outcome = evaluate_conditions(conditions, values)
    if isinstance(outcome, bool):
        return outcome
    if ignores_errors:
        return False
    raise forbidden_error(attributes.resource_kind, attributes.name, outcome)


@dataclass(frozen=True, slots=True, eq=False)
class MatchResources:
    """The requests that a policy or a binding is about; without rules, all resources."""

    rules: tuple[Object, ...]
    excluded: tuple[Object, ...]
    selector: RequestSelector
    is_equivalent: bool

    @classmethod
    def parse(cls, spec: Object) -> MatchResources:
        """Return the match constraints of a policy, or the match resources of a binding."""
        return cls(
            tuple(spec.get("resourceRules") or ()),
            tuple(spec.get("excludeResourceRules") or ()),
            RequestSelector.parse(spec),
            spec.get("matchPolicy") != "Exact",
        )

    def find_kind(
        self, registry: KindRegistry, kind: Kind, *, subresource: str, operation: Operation
    ) -> Kind | None:
        """Return the kind in whose version the rules ask for a request of any name."""
        if not self.rules:
            return kind
        return find_review_kind(
            registry,
            self.rules,
            kind,
            subresource=subresource,
            operation=operation,
            is_equivalent=self.is_equivalent,
        )

    def match(self, attributes: AdmissionAttributes) -> Kind | None:
        """Return the kind in whose version a request is asked for; None if it does not match."""
        if not self.selector.matches(attributes):
            return None
        find = partial(
            find_review_kind,
            attributes.context.registry,
            kind=attributes.resource_kind,
            subresource=attributes.subresource,
            operation=attributes.operation,
            is_equivalent=self.is_equivalent,
        )
        if find(_rules_for_name(self.excluded, attributes.name)):
            return None
        if not self.rules:
            return attributes.resource_kind
        return find(_rules_for_name(self.rules, attributes.name))


def _rules_for_name(rules: Iterable[Object], name: str) -> list[Object]:
    """The rules that do not name other objects than this one."""
    return [rule for rule in rules if name in (rule.get("resourceNames") or (name,))]
