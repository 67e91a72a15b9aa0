"""The status controller of ValidatingAdmissionPolicies: type checks of their expressions.

For each new generation of a policy it compiles the expressions against the schemas of the kinds
that the policy matches, and writes warnings and `observedGeneration` to the status. Policies work
without it. The controller is disabled on a foreign API server, which has its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.api.errors import NotFound
from phalanx.api.kinds import (
    CUSTOM_RESOURCE_DEFINITION,
    VALIDATING_ADMISSION_POLICY,
    Kind,
)
from phalanx.api.meta import Key
from phalanx.api.other_kinds import ValidatingAdmissionPolicy
from phalanx.api.wire import Object
from phalanx.client.client import Client
from phalanx.controllers.reconcile_loop import Informers, new_work_queue, run_workers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from phalanx.api.cel.type_checking import CheckedKind


class PolicyStatusController:
    """Writes the status of policies until cancelled; never changes anything else.

    `kinds` are the built-in kinds that the server serves; the schemas of others are read from their
    definitions when a policy needs them.
    """

    def __init__(self, client: Client, informers: Informers, kinds: Sequence[Kind]) -> None:
        informer = informers.of(ValidatingAdmissionPolicy)
        self._synced, self._policies = informer.synced, informer.cache
        self._client = client
        self._kinds = {(kind.group, kind.version, kind.plural): kind for kind in kinds}
        self._queue = new_work_queue(client, "validatingadmissionpolicy-status")
        self._policies.subscribe(self._on_change)

    async def run(self) -> None:
        """Check policies until cancelled."""
        await self._synced.wait()
        await run_workers(self._queue, self._handle)

    async def _handle(self, key: Key) -> None:
        policy = self._policies.get(key)
        if policy is None or policy.metadata.generation <= policy.status.observed_generation:
            return
        warnings = await self._check(policy.spec)
        status: Object = {
            "observedGeneration": policy.metadata.generation,
            "typeChecking": {"expressionWarnings": warnings or None},
        }
        change = {"metadata": {"uid": policy.metadata.uid}, "status": status}
        await self._client.patch(VALIDATING_ADMISSION_POLICY, key, change, subresource="status")

    async def _check(self, spec: Object) -> list[Object]:
        # Imported here: most clusters have no policies, and the checker needs memory.
        from phalanx.api.cel.type_checking import (
            MAX_CHECKED_KINDS,
            check_types,
            matched_resources,
        )

        kinds: dict[str, CheckedKind] = {}
        for resource in matched_resources(spec):
            if (found := await self._find_kind(*resource)) is not None:
                kinds[found.name] = found
            if len(kinds) == MAX_CHECKED_KINDS:
                break
        params = await self._find_param_kind(spec.get("paramKind") or {})
        ordered = sorted(kinds.values(), key=lambda kind: kind.name)
        return check_types(spec, ordered, params.object_type if params else None)

    async def _find_param_kind(self, param_kind: Object) -> CheckedKind | None:
        group, _, version = param_kind.get("apiVersion", "").rpartition("/")
        name = param_kind.get("kind", "")
        for kind in self._kinds.values():
            if (kind.group, kind.version, kind.name) == (group, version, name):
                return await self._find_kind(group, version, kind.plural)
        if not group:
            return None
        for definition in (await self._client.list(CUSTOM_RESOURCE_DEFINITION)).items:
            spec = definition["spec"]
            if (spec["group"], spec["names"]["kind"]) == (group, name):
                return await self._find_kind(group, version, spec["names"]["plural"])
        return None

    async def _find_kind(self, group: str, version: str, plural: str) -> CheckedKind | None:
        """Return a kind with the type of its objects; None if its schema is not known."""
        from phalanx.api.cel.schema_types import schema_type
        from phalanx.api.cel.type_checking import CheckedKind, definition_type

        api_version = f"{group}/{version}" if group else f"/{version}"
        if kind := self._kinds.get((group, version, plural)):
            return CheckedKind(f"{api_version}, Kind={kind.name}", definition_type(kind.schema))
        try:
            definition = await self._client.get(
                CUSTOM_RESOURCE_DEFINITION, Key("", f"{plural}.{group}")
            )
        except NotFound:
            return None
        spec = definition["spec"]
        for one in spec["versions"]:
            schema = (one.get("schema") or {}).get("openAPIV3Schema")
            if one["name"] == version and schema:
                found = schema_type(schema, root=True)
                name = f"{api_version}, Kind={spec['names']['kind']}"
                return CheckedKind(name, found) if found else None
        return None

    def _on_change(
        self, old: ValidatingAdmissionPolicy | None, new: ValidatingAdmissionPolicy | None
    ) -> None:
        if new is not None:
            self._queue.add(new.metadata.key)
