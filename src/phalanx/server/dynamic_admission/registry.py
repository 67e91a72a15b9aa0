"""DynamicAdmission: the webhooks and policies in the store, and those that concern a request.

The handlers ask `find_hooks` before a write. Rules are compared once per kind, subresource and
operation; a change of a webhook configuration or policy forgets the results.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain

from phalanx.api.kinds import (
    MUTATING_ADMISSION_POLICY,
    MUTATING_ADMISSION_POLICY_BINDING,
    MUTATING_WEBHOOK_CONFIGURATION,
    VALIDATING_ADMISSION_POLICY,
    VALIDATING_ADMISSION_POLICY_BINDING,
    VALIDATING_WEBHOOK_CONFIGURATION,
    Kind,
)
from phalanx.api.wire import Object
from phalanx.server.conversion_webhooks import VersionConverter
from phalanx.server.discovery import KindRegistry
from phalanx.server.dynamic_admission.attributes import AdmissionAttributes, Operation
from phalanx.server.dynamic_admission.matching import find_review_kind
from phalanx.server.dynamic_admission.policies import (
    AdmissionPolicy,
    PolicyBinding,
    mutate_policies,
    validate_policies,
)
from phalanx.server.dynamic_admission.webhook_client import WebhookClient
from phalanx.server.dynamic_admission.webhooks import Invocation, Webhook, WebhookDispatcher
from phalanx.server.objects import decode_record
from phalanx.server.request_info import RequestInfo
from phalanx.server.security.request_guard import PriorityLevels
from phalanx.store.kv import StoreReader

_WEBHOOK_KINDS = (MUTATING_WEBHOOK_CONFIGURATION, VALIDATING_WEBHOOK_CONFIGURATION)
#: Policies and their bindings.
_POLICY_KINDS = (
    (MUTATING_ADMISSION_POLICY, MUTATING_ADMISSION_POLICY_BINDING),
    (VALIDATING_ADMISSION_POLICY, VALIDATING_ADMISSION_POLICY_BINDING),
)
#: The store prefixes of the objects that configure hooks.
HOOK_PREFIXES = tuple(
    kind.store_prefix() for kind in (*_WEBHOOK_KINDS, *chain.from_iterable(_POLICY_KINDS))
)
#: Results of comparing rules; each version of a CustomResourceDefinition is another kind.
_MAX_CACHED_PLANS = 10_000

_HookKey = tuple[Kind, str, Operation]


@contextmanager
def leave_level(levels: PriorityLevels, verb: str, request_info: RequestInfo) -> Iterator[None]:
    """Free the place of a request in its priority level while it waits for a webhook.

    Otherwise requests that wait for a webhook that hangs would keep out all others.
    """
    level = levels.level_for(verb, request_info)
    level.busy -= 1
    try:
        yield
    finally:
        level.busy += 1


@dataclass(frozen=True, slots=True)
class AdmissionHooks:
    """The hooks whose rules match a kind, subresource and operation."""

    levels: PriorityLevels
    dispatcher: WebhookDispatcher
    mutating_webhooks: tuple[Invocation, ...]
    validating_webhooks: tuple[Invocation, ...]
    mutating_policies: tuple[AdmissionPolicy, ...]
    validating_policies: tuple[AdmissionPolicy, ...]

    async def mutate(self, attributes: AdmissionAttributes) -> None:
        """Let hooks change the object: policies, then webhooks. Raises the error of a refusal.

        Policies that ask for it run again if a webhook changes the object.
        """
        await mutate_policies(self.mutating_policies, attributes)
        if self.mutating_webhooks:
            with leave_level(self.levels, "update", attributes.request_info):
                has_changed = await self.dispatcher.mutate(self.mutating_webhooks, attributes)
            if has_changed:
                again = [policy for policy in self.mutating_policies if policy.is_reinvocable]
                await mutate_policies(again, attributes)

    async def validate(self, attributes: AdmissionAttributes) -> None:
        """Let hooks refuse the object. Raises the error of a refusal."""
        await validate_policies(self.validating_policies, attributes)
        if self.validating_webhooks:
            with leave_level(self.levels, "update", attributes.request_info):
                await self.dispatcher.validate(self.validating_webhooks, attributes)


class DynamicAdmission:
    """Finds the hooks of a request; `converter` calls the conversion webhooks of definitions."""

    def __init__(
        self,
        store: StoreReader,
        registry: KindRegistry,
        levels: PriorityLevels,
        *,
        urls: Mapping[str, str],
    ) -> None:
        self._store, self._registry, self._levels = store, registry, levels
        self._client = WebhookClient(store, urls)
        self._dispatcher = WebhookDispatcher(self._client)
        self.converter = VersionConverter(self._client, registry)
        self._webhooks: dict[Kind, list[Webhook]] = {}
        self._policies: dict[Kind, list[AdmissionPolicy]] = {}
        self._plans: dict[_HookKey, AdmissionHooks | None] = {}
        #: Whether there are any hooks: the only thing that a write without hooks looks at.
        self.is_configured = False
        self.reload()

    def find_hooks(
        self, kind: Kind, subresource: str, operation: Operation
    ) -> AdmissionHooks | None:
        """Return the hooks of a request; None if no rule matches it."""
        if not self.is_configured:
            return None
        key = (kind, subresource, operation)
        if key not in self._plans:
            if len(self._plans) >= _MAX_CACHED_PLANS:
                self._plans.clear()
            self._plans[key] = self._plan(*key)
        return self._plans[key]

    def leave_level(self, verb: str, request_info: RequestInfo) -> AbstractContextManager[None]:
        """Free the place of a request in its priority level; a watch has none."""
        return nullcontext() if verb == "watch" else leave_level(self._levels, verb, request_info)

    async def close(self) -> None:
        """Close the connections to webhooks."""
        await self._client.close()

    def reload(self) -> None:
        """Read the configurations again, after one of them has changed."""
        for kind in _WEBHOOK_KINDS:
            self._webhooks[kind] = [
                Webhook.parse(spec)
                for configuration in self._read(kind)
                for spec in configuration.get("webhooks") or ()
            ]
        for kind, binding_kind in _POLICY_KINDS:
            bindings: dict[str, list[PolicyBinding]] = {}
            for binding in self._read(binding_kind):
                bindings.setdefault(binding["spec"]["policyName"], []).append(
                    PolicyBinding.parse(binding)
                )
            self._policies[kind] = [
                AdmissionPolicy.parse(policy, bindings.get(policy["metadata"]["name"], ()))
                for policy in self._read(kind)
            ]
        self._plans.clear()
        self.is_configured = any(chain(self._webhooks.values(), self._policies.values()))

    def _read(self, kind: Kind) -> Iterator[Object]:
        """The stored objects of a kind by name, which is the order of hooks."""
        return map(decode_record, self._store.range(kind.store_prefix()))

    def _plan(self, kind: Kind, subresource: str, operation: Operation) -> AdmissionHooks | None:
        mutating, validating = (
            tuple(
                Invocation(webhook, found)
                for webhook in self._webhooks[configuration]
                if (
                    found := find_review_kind(
                        self._registry,
                        webhook.rules,
                        kind,
                        subresource=subresource,
                        operation=operation,
                        is_equivalent=webhook.is_equivalent,
                    )
                )
            )
            for configuration in _WEBHOOK_KINDS
        )
        policies = [
            tuple(
                policy
                for policy in self._policies[policy_kind]
                if policy.may_match(
                    self._registry, kind, subresource=subresource, operation=operation
                )
            )
            for policy_kind, _ in _POLICY_KINDS
        ]
        if not any((mutating, validating, *policies)):
            return None
        return AdmissionHooks(self._levels, self._dispatcher, mutating, validating, *policies)
