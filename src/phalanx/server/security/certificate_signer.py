"""Signing of CertificateSigningRequests, and who may approve and sign them.

The server has the key of the certificate authority, so it signs itself: the write that approves a
request for a signer of Kubernetes also stores the certificate. A request that breaks the rules of
its signer gets the condition `Failed`. Requests for other signers wait for their own controllers.

    signer (kubernetes.io/…)         subject                        usages beside the common ones
    kube-apiserver-client            any, but not system:masters    client auth
    kube-apiserver-client-kubelet    CN system:node:…, O nodes      client auth
    kubelet-serving                  CN system:node:…, O nodes      server auth; DNS names or IPs
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.x509.oid import NameOID

from phalanx.api.wire import Object
from phalanx.server.objects import forbidden_error
from phalanx.server.security.keyring import subject_alternatives
from phalanx.server.security.rbac import AuthorizationAttributes
from phalanx.server.security.users import MASTERS

if TYPE_CHECKING:
    from phalanx.server.admission import AdmissionRequest

_PREFIX = "kubernetes.io/"
_API_CLIENT = f"{_PREFIX}kube-apiserver-client"
_NODE_PREFIX, _NODE_GROUP = "system:node:", "system:nodes"
_COMMON_USAGES = {"digital signature", "key encipherment"}
_GROUP = "certificates.k8s.io"


class RequestRefused(Exception):
    """A request that its signer does not sign, with the reason."""


@dataclass(frozen=True, slots=True)
class SignerRules:
    """What a signer of Kubernetes requires of a request."""

    usage: str
    is_for_nodes: bool = False
    needs_names: bool = False


SIGNERS = {
    _API_CLIENT: SignerRules("client auth"),
    f"{_PREFIX}kube-apiserver-client-kubelet": SignerRules("client auth", is_for_nodes=True),
    f"{_PREFIX}kubelet-serving": SignerRules("server auth", is_for_nodes=True, needs_names=True),
}


# ---- steps of admission --------------------------------------------------------------------------


def set_requester(request: AdmissionRequest) -> None:
    """Record the user that asks for a certificate; clients cannot choose it."""
    user, spec = request.request_info.request.user, request.object.setdefault("spec", {})
    for field in ("username", "uid", "groups", "extra"):
        spec.pop(field, None)
    extra: dict[str, list[str]] = {}
    for key, value in user.extra:
        extra.setdefault(key, []).append(value)
    spec |= {"username": user.name, "groups": list(user.groups)}
    spec |= ({"uid": user.uid} if user.uid else {}) | ({"extra": extra} if extra else {})


def check_subject_groups(request: AdmissionRequest) -> None:
    """Refuse a request by which a client would become an administrator."""
    spec = request.object.get("spec") or {}
    if spec.get("signerName") != _API_CLIENT:
        return
    try:
        groups = _subject_values(_parse_request(spec), NameOID.ORGANIZATION_NAME)
    except RequestRefused:
        return  # Validation reports what is no request.
    if MASTERS in groups:
        _forbid(request, f"use of {_API_CLIENT} signer with {MASTERS} group is not allowed")


def check_permission(request: AdmissionRequest) -> None:
    """Refuse a decision or a certificate of a user that has no permission for the signer.

    A permission is for one signer or for all of a domain: `example.com/*`.
    """
    old = request.old or {}
    verb = {"approval": "approve", "status": "sign"}.get(request.request_info.subresource, "")
    if not verb or (verb == "sign" and _certificate(request.object) == _certificate(old)):
        return
    user, signer = request.request_info.request.user, old["spec"].get("signerName", "")
    for name in (signer, f"{signer.partition('/')[0]}/*"):
        attributes = AuthorizationAttributes(verb, _GROUP, "signers", name=name)
        if request.context.access.allows(user, attributes):
            return
    _forbid(request, f'user not permitted to {verb} requests with signerName "{signer}"')


def sign_approved_request(request: AdmissionRequest) -> None:
    """Add the certificate, or the condition `Failed`, to a request that is approved now."""
    context, csr = request.context, request.object
    authority = context.certificate_authority
    if request.request_info.subresource != "approval" or authority is None:
        return
    spec, status = csr["spec"], csr.setdefault("status", {})
    conditions: list[Object] = status.get("conditions") or []
    types = {condition.get("type") for condition in conditions}
    rules = SIGNERS.get(spec.get("signerName", ""))
    if rules is None or "Approved" not in types or "Failed" in types or _certificate(csr):
        return
    try:
        parsed = _parse_request(spec)
        _check_request(parsed, spec, rules)
        pem = authority.sign_request(
            parsed, spec["usages"], context.clock.now(), seconds=spec.get("expirationSeconds")
        )
    except RequestRefused as error:
        now = context.now_timestamp()
        failed = {
            "type": "Failed",
            "status": "True",
            "reason": "SignerValidationFailure",
            "message": str(error),
            "lastUpdateTime": now,
            "lastTransitionTime": now,
        }
        status["conditions"] = [*conditions, failed]
        return
    status["certificate"] = base64.b64encode(pem).decode()


def _certificate(csr: Object) -> str:
    return (csr.get("status") or {}).get("certificate") or ""


def _forbid(request: AdmissionRequest, why: str) -> NoReturn:
    name = request.object["metadata"].get("name", "")
    raise forbidden_error(request.request_info.kind, name, why)


# ---- rules of the signers ------------------------------------------------------------------------


def _parse_request(spec: Object) -> x509.CertificateSigningRequest:
    try:
        pem = binascii.a2b_base64(spec.get("request", ""))
        request = x509.load_pem_x509_csr(pem)
        is_valid = request.is_signature_valid
    except (ValueError, InvalidSignature, UnsupportedAlgorithm) as error:
        raise RequestRefused(f"spec.request is no certificate request: {error}") from None
    if not is_valid:
        raise RequestRefused("spec.request is not signed by its own key")
    return request


def _check_request(
    request: x509.CertificateSigningRequest, spec: Object, rules: SignerRules
) -> None:
    usages = set(spec.get("usages") or ())
    if rules.usage not in usages or usages - _COMMON_USAGES - {rules.usage}:
        allowed = ", ".join(sorted({*_COMMON_USAGES, rules.usage}))
        raise RequestRefused(f'usages must include "{rules.usage}" and no others than: {allowed}')
    if not rules.is_for_nodes:
        return
    names = _subject_values(request, NameOID.COMMON_NAME)
    if _subject_values(request, NameOID.ORGANIZATION_NAME) != [_NODE_GROUP]:
        raise RequestRefused(f"subject organization is not {_NODE_GROUP}")
    if len(names) != 1 or not names[0].startswith(_NODE_PREFIX):
        raise RequestRefused(f"subject common name does not begin with {_NODE_PREFIX}")
    if "digital signature" not in usages:
        raise RequestRefused('usages must include "digital signature"')
    alternatives = subject_alternatives(request)
    hosts = [one for one in alternatives if isinstance(one, x509.DNSName | x509.IPAddress)]
    if rules.needs_names and not hosts:
        raise RequestRefused("DNS or IP subjectAltName is required")
    if len(alternatives) > (len(hosts) if rules.needs_names else 0):
        raise RequestRefused("subjectAltNames are not allowed, except DNS names and IPs of servers")


def _subject_values(
    request: x509.CertificateSigningRequest, oid: x509.ObjectIdentifier
) -> list[str]:
    return [str(attribute.value) for attribute in request.subject.get_attributes_for_oid(oid)]
