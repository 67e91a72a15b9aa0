"""Admission webhooks: an AdmissionReview is sent to each, and its answer is followed.

Mutating webhooks are called one after the other, in the order of their configurations' names; each
sees what the previous ones have changed. If an object changes after a webhook with
`reinvocationPolicy: IfNeeded`, that webhook is called once more. Validating webhooks are called at
the same time, after all changes. Messages and codes are those of Kubernetes.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from phalanx import logs
from phalanx.api.cel.admission import MatchCondition, parse_conditions
from phalanx.api.cel.authorizer import AuthorizationQuery, authorizer_value
from phalanx.api.errors import AdmissionDenied, ApiError, WebhookError
from phalanx.api.kinds import Kind
from phalanx.api.normalization import Malformed
from phalanx.api.patch import PatchFailed, apply_patch
from phalanx.api.wire import JSON_PATCH, Object, UserInfo
from phalanx.server.dynamic_admission.attributes import AdmissionAttributes
from phalanx.server.dynamic_admission.matching import RequestSelector, conditions_match
from phalanx.server.dynamic_admission.webhook_client import WebhookCallFailed, WebhookClient
from phalanx.server.security.rbac import AuthorizationAttributes
from phalanx.server.security.users import service_account_user

LOG = logs.component("server")
_GROUP = "admission.k8s.io"
_VERSIONS = ("v1", "v1beta1")
_MAX_CODE = 599
_MAX_ANNOTATION_LENGTH = 10_240


@dataclass(frozen=True, slots=True, eq=False)
class Webhook:
    """One webhook of a configuration."""

    name: str
    config: Object
    rules: tuple[Object, ...]
    selector: RequestSelector
    conditions: tuple[MatchCondition, ...]
    timeout: float
    review_version: str
    is_equivalent: bool
    ignores_failures: bool
    is_reinvocable: bool

    @classmethod
    def parse(cls, spec: Object) -> Webhook:
        """Return a webhook of a stored configuration, which has its defaults."""
        versions = spec.get("admissionReviewVersions") or ()
        return cls(
            name=spec["name"],
            config=spec["clientConfig"],
            rules=tuple(spec.get("rules") or ()),
            selector=RequestSelector.parse(spec),
            conditions=parse_conditions(spec.get("matchConditions")),
            timeout=float(spec.get("timeoutSeconds", 10)),
            review_version=next((one for one in versions if one in _VERSIONS), _VERSIONS[0]),
            is_equivalent=spec.get("matchPolicy") != "Exact",
            ignores_failures=spec.get("failurePolicy") == "Ignore",
            is_reinvocable=spec.get("reinvocationPolicy") == "IfNeeded",
        )


@dataclass(frozen=True, slots=True)
class Invocation:
    """A webhook whose rules match a request, and the kind in whose version it reads the object."""

    webhook: Webhook
    kind: Kind


class WebhookDispatcher:
    """Calls webhooks and applies their answers."""

    def __init__(self, client: WebhookClient) -> None:
        self._client = client

    async def mutate(
        self, invocations: Sequence[Invocation], attributes: AdmissionAttributes
    ) -> bool:
        """Let mutating webhooks change the object; return whether one has.

        Raises the error of a refusal.
        """
        earlier: list[Invocation] = []
        again: list[Invocation] = []
        has_changed = False
        for one in invocations:
            if await self._mutate_once(one, attributes):
                has_changed = True
                again += [other for other in earlier if other not in again]
            if one.webhook.is_reinvocable:
                earlier.append(one)
        for one in again:
            await self._mutate_once(one, attributes)
        return has_changed

    async def validate(
        self, invocations: Sequence[Invocation], attributes: AdmissionAttributes
    ) -> None:
        """Let validating webhooks refuse the object. Raises the error of the first refusal."""
        for one in invocations:
            await attributes.prepare(one.kind)
        matching = [one for one in invocations if _matches(one, attributes)]
        if len(matching) == 1:
            await self._review(matching[0], attributes, mutating=False)
            return
        calls = (self._review(one, attributes, mutating=False) for one in matching)
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _mutate_once(self, one: Invocation, attributes: AdmissionAttributes) -> bool:
        """Call a mutating webhook; return whether it has changed the object."""
        await attributes.prepare(one.kind)
        if not _matches(one, attributes):
            return False
        response = await self._review(one, attributes, mutating=True)
        patch = _read_patch(response) if response else []
        if not patch:
            return False
        name, kind = one.webhook.name, attributes.review_kind(one.kind)
        shown = attributes.form(kind, attributes.object)
        if shown is None:
            raise WebhookError(
                f'admission webhook "{name}" attempted to modify the object, which is not '
                "supported for this operation"
            )
        schema, before = attributes.context.registry.strategy(kind).schema, orjson.dumps(shown)
        try:
            changed = apply_patch(JSON_PATCH, schema, orjson.loads(before), patch=patch)
            _check_form(kind, changed)
            attributes.accept_form(kind, changed)
        except (PatchFailed, Malformed) as error:
            raise WebhookError(str(error)) from error
        await attributes.settle()
        await attributes.prepare(kind)
        return orjson.dumps(attributes.form(kind, attributes.object)) != before

    async def _review(
        self, one: Invocation, attributes: AdmissionAttributes, *, mutating: bool
    ) -> Object | None:
        """Return the response of a webhook that allows the request; None if its failure is ignored.

        Raises the error of a refusal, or of a failure that counts as one.
        """
        webhook, uid = one.webhook, attributes.context.random.uid()
        review = {
            "kind": "AdmissionReview",
            "apiVersion": f"{_GROUP}/{webhook.review_version}",
            "request": {"uid": uid, **describe_request(attributes, one.kind)},
        }
        try:
            answer = await self._client.call(webhook.config, review, webhook.timeout)
            response = _check_response(answer, webhook.review_version, uid, mutating=mutating)
        except WebhookCallFailed as error:
            if webhook.ignores_failures:
                LOG.warning("webhook failed, failing open", webhook=webhook.name, reason=error)
                return None
            raise WebhookError(f'failed calling webhook "{webhook.name}": {error}') from error
        _take_remarks(webhook, response, attributes)
        if not response.get("allowed"):
            raise _denied(webhook.name, response.get("status"))
        return response


def _matches(one: Invocation, attributes: AdmissionAttributes) -> bool:
    if not one.webhook.selector.matches(attributes):
        return False
    if not one.webhook.conditions:
        return True
    return conditions_match(
        one.webhook.conditions,
        attributes,
        condition_values(attributes, one.kind),
        ignores_errors=one.webhook.ignores_failures,
    )


def condition_values(attributes: AdmissionAttributes, kind: Kind) -> Object:
    """Return the variables of expressions about a request."""
    request = describe_request(attributes, kind)
    return {
        "object": request.pop("object"),
        "oldObject": request.pop("oldObject"),
        "request": request,
        "authorizer": _authorizer(attributes),
    }


def _authorizer(attributes: AdmissionAttributes) -> Object:
    """Return the authorizer of the user who makes a request."""
    kind = attributes.resource_kind
    requested = AuthorizationQuery(
        "",
        kind.group,
        kind.plural,
        attributes.subresource,
        attributes.namespace,
        attributes.name,
    )

    def is_allowed(asked: AuthorizationQuery) -> bool:
        namespace, _, account = asked.service_account.partition("/")
        resource = f"{asked.resource}/{asked.subresource}" if asked.subresource else asked.resource
        return attributes.context.access.allows(
            service_account_user(namespace, account) if account else attributes.user,
            AuthorizationAttributes(
                asked.verb, asked.group, resource, asked.namespace, asked.name, asked.path
            ),
        )

    return authorizer_value(is_allowed, requested)


def describe_request(attributes: AdmissionAttributes, kind: Kind) -> Object:
    """Return the AdmissionRequest of a review, without its uid; the object is of a kind."""
    served, resource = attributes.kind, attributes.resource_kind
    shown_kind = attributes.review_kind(kind)
    part = attributes.subresource
    request: Object = {
        "kind": _group_version_kind(shown_kind),
        "resource": _group_version_resource(kind),
        "requestKind": _group_version_kind(served),
        "requestResource": _group_version_resource(resource),
        "operation": attributes.operation,
        "userInfo": _user_info(attributes.user),
        "object": attributes.form(shown_kind, attributes.object),
        "oldObject": attributes.form(shown_kind, attributes.old),
        "dryRun": attributes.dry_run,
        "options": attributes.options or None,
    }
    if part:
        request |= {"subResource": part, "requestSubResource": part}
    request |= {"name": attributes.name} if attributes.name else {}
    return request | ({"namespace": attributes.namespace} if attributes.namespace else {})


def _group_version_kind(kind: Kind) -> Object:
    return {"group": kind.group, "version": kind.version, "kind": kind.name}


def _group_version_resource(kind: Kind) -> Object:
    return {"group": kind.group, "version": kind.version, "resource": kind.plural}


def _user_info(user: UserInfo) -> Object:
    extra: dict[str, list[str]] = {}
    for key, value in user.extra:
        extra.setdefault(key, []).append(value)
    info: Object = {"username": user.name, "groups": list(user.groups)}
    return info | ({"uid": user.uid} if user.uid else {}) | ({"extra": extra} if extra else {})


def _check_response(answer: Object, version: str, uid: str, *, mutating: bool) -> Object:
    """Return the response of an answer. Raises WebhookCallFailed if it is not one."""
    response = answer.get("response")
    if not isinstance(response, dict):
        raise WebhookCallFailed("webhook response was absent")
    if version == "v1" and response.get("uid") != uid:
        found = orjson.dumps(response.get("uid", "")).decode()
        raise WebhookCallFailed(f'expected response.uid "{uid}", got {found}')
    found_version, found_kind = answer.get("apiVersion", ""), answer.get("kind", "")
    if (found_version, found_kind) != (f"{_GROUP}/{version}", "AdmissionReview"):
        raise WebhookCallFailed(
            f"expected webhook response of {_GROUP}/{version}, Kind=AdmissionReview, "
            f"got {found_version}, Kind={found_kind}"
        )
    for fault in _find_response_faults(response, version, mutating=mutating):
        raise WebhookCallFailed(fault)
    return response


def _find_response_faults(response: Object, version: str, *, mutating: bool) -> Iterator[str]:
    patch, patch_type = response.get("patch"), response.get("patchType")
    if not isinstance(response.get("allowed", False), bool):
        yield "webhook returned response.allowed that is not a bool"
    if not isinstance(response.get("status") or {}, dict):
        yield "webhook returned response.status that is not an object"
    if version != "v1":
        return
    if not mutating:
        if patch:
            yield "validating webhook may not return response.patch"
        if patch_type is not None:
            yield "validating webhook may not return response.patchType"
    elif patch and patch_type is None:
        yield "webhook returned response.patch but not response.patchType"
    elif not patch and patch_type is not None:
        yield "webhook returned response.patchType but not response.patch"
    elif patch and patch_type != "JSONPatch":
        yield f'unsupported patch type "{patch_type}"'


def _read_patch(response: Object) -> list[Any]:
    """Return the operations of the JSON patch of a response."""
    try:
        patch = orjson.loads(base64.b64decode(response.get("patch") or "", validate=True) or b"[]")
    except (binascii.Error, TypeError, ValueError) as error:
        raise WebhookError(f"the patch of the webhook cannot be decoded: {error}") from error
    if not isinstance(patch, list):
        raise WebhookError("the patch of the webhook is not a list of operations")
    return patch


def _check_form(kind: Kind, changed: Object) -> None:
    """Refuse a patch that makes another kind, or no object, of an object."""
    found = (changed.get("apiVersion"), changed.get("kind"))
    if found != (kind.api_version, kind.name):
        raise PatchFailed(f"the patch changes the object to {found[0]}, Kind={found[1]}")
    if not isinstance(changed.get("metadata"), dict):
        raise PatchFailed("the patch removes the metadata of the object")


def _take_remarks(webhook: Webhook, response: Object, attributes: AdmissionAttributes) -> None:
    """Hand warnings to the client, and annotations to the audit log."""
    warnings, annotations = response.get("warnings"), response.get("auditAnnotations")
    if isinstance(warnings, list):
        attributes.request_info.warnings.extend(str(one) for one in warnings)
    if isinstance(annotations, dict):
        attributes.request_info.audit_annotations.update(
            {
                f"{webhook.name}/{key}": str(text)[:_MAX_ANNOTATION_LENGTH]
                for key, text in annotations.items()
            }
        )


def _denied(name: str, status: Object | None) -> ApiError:
    """Return the error of a refusal: the Status of the webhook with a message that names it."""
    given = status or {}
    code = given.get("code")
    code = min(code, _MAX_CODE) if isinstance(code, int) and code >= 400 else 400
    denied = f'admission webhook "{name}" denied the request'
    reason = given.get("message") or given.get("reason")
    shown = {key: given[key] for key in ("reason", "details") if given.get(key)}
    message = f"{denied}: {reason}" if reason else f"{denied} without explanation"
    return AdmissionDenied(code, {"status": "Failure", "message": message, **shown, "code": code})
