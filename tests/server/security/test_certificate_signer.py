"""CertificateSigningRequests: who may approve them, what is signed, and what is refused."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from phalanx.api.kinds import (
    CERTIFICATE_SIGNING_REQUEST,
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    CONFIG_MAP,
)
from phalanx.api.wire import Object, UserInfo
from phalanx.clock import LoopClock
from phalanx.randomness import SeededRandom
from phalanx.server.app import Server
from phalanx.server.security.authorization import ADMIN
from phalanx.server.security.keyring import CertificateAuthority, server_tls_context
from tests.builders import in_virtual_time
from tests.server.api import EPOCH, Api, ApiResponse

CLIENT = "kubernetes.io/kube-apiserver-client"
NODE_CLIENT = "kubernetes.io/kube-apiserver-client-kubelet"
SERVING = "kubernetes.io/kubelet-serving"
NODE_SUBJECT = ("system:node:n1", "system:nodes")
DNS, MAIL = x509.DNSName("n1"), x509.RFC822Name("a@example.com")
ADDRESS = x509.IPAddress(ipaddress.ip_address("10.0.0.1"))
CLIENT_USAGES = ("digital signature", "client auth")
SERVER_USAGES = ("digital signature", "key encipherment", "server auth")
APPROVED = {"type": "Approved", "status": "True", "reason": "Test"}


async def start_api(folder: Path) -> Api:
    server_tls_context(folder, [], EPOCH)
    api = Api()
    clock = LoopClock(asyncio.get_running_loop(), EPOCH)
    authority = CertificateAuthority(folder)
    api.server = Server(api.store, clock, SeededRandom(1), certificate_authority=authority)
    await api.server.start()
    return api


def request(
    signer: str = CLIENT,
    subject: Sequence[str] = ("ann", "team"),
    usages: Sequence[str] = CLIENT_USAGES,
    names: Sequence[x509.GeneralName] = (),
    **spec: Any,
) -> Object:
    key, (name, *groups) = ec.generate_private_key(ec.SECP256R1()), subject
    rows = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    whole = x509.Name([*rows, x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = x509.CertificateSigningRequestBuilder().subject_name(whole)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    pem = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    encoded = base64.b64encode(pem).decode()
    wanted = {"request": encoded, "signerName": signer, "usages": list(usages), **spec}
    return {"metadata": {"name": "csr"}, "spec": wanted}


async def approve(api: Api, user: UserInfo = ADMIN) -> ApiResponse:
    path = CERTIFICATE_SIGNING_REQUEST.url_path("", "csr")
    found = (await api.ask("GET", path)).body
    found["status"] = {"conditions": [APPROVED]}
    return await api.ask("PUT", f"{path}/approval", found, user=user)


async def approved(api: Api, wanted: Object) -> Object:
    await api.create(CERTIFICATE_SIGNING_REQUEST, wanted)
    answer = await approve(api)
    assert answer.code == 200, answer.body
    status: Object = answer.body["status"]
    return status


def certificate(status: Object) -> x509.Certificate:
    return x509.load_pem_x509_certificate(base64.b64decode(status["certificate"]))


@in_virtual_time
async def test_an_approved_client_request_gets_a_certificate_of_our_authority(
    tmp_path: Path,
) -> None:
    api = await start_api(tmp_path)
    signed = certificate(await approved(api, request(expirationSeconds=3600)))
    signed.verify_directly_issued_by(
        x509.load_pem_x509_certificate((tmp_path / "ca.crt").read_bytes())
    )
    assert signed.subject.rfc4514_string() == "CN=ann,O=team"
    purposes = signed.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(purposes) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert signed.not_valid_after_utc == datetime.fromtimestamp(EPOCH, UTC) + timedelta(hours=1)
    assert not signed.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


@in_virtual_time
async def test_a_certificate_without_usages_of_the_key_does_not_restrict_it(
    tmp_path: Path,
) -> None:
    api = await start_api(tmp_path)
    signed = certificate(await approved(api, request(usages=["client auth"])))
    with pytest.raises(x509.ExtensionNotFound):
        signed.extensions.get_extension_for_class(x509.KeyUsage)


@in_virtual_time
async def test_a_serving_certificate_of_a_node_has_its_names(tmp_path: Path) -> None:
    api = await start_api(tmp_path)
    wanted = request(SERVING, NODE_SUBJECT, SERVER_USAGES, [DNS, ADDRESS])
    names = certificate(await approved(api, wanted)).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    assert list(names.value) == [DNS, ADDRESS]


@pytest.mark.parametrize(
    "wanted",
    [
        request(usages=["digital signature"]),
        request(usages=["client auth", "server auth"]),
        request(NODE_CLIENT, ("ann", "system:nodes")),
        request(NODE_CLIENT, ("system:node:n1", "team")),
        request(NODE_CLIENT, NODE_SUBJECT, ["client auth"]),
        request(NODE_CLIENT, NODE_SUBJECT, CLIENT_USAGES, [DNS]),
        request(SERVING, NODE_SUBJECT, SERVER_USAGES),
        request(SERVING, NODE_SUBJECT, SERVER_USAGES, [DNS, MAIL]),
        {
            "metadata": {"name": "csr"},
            "spec": {
                **request()["spec"],
                "request": base64.b64encode(b"-----BEGIN CERTIFICATE REQUEST-----").decode(),
            },
        },
    ],
)
@in_virtual_time
async def test_a_request_that_breaks_the_rules_of_its_signer_fails(
    tmp_path: Path, wanted: Object
) -> None:
    api = await start_api(tmp_path)
    status = await approved(api, wanted)
    assert [one["type"] for one in status["conditions"]] == ["Approved", "Failed"]
    assert status["conditions"][1]["reason"] == "SignerValidationFailure"
    assert "certificate" not in status


@in_virtual_time
async def test_requests_of_other_signers_wait_for_them(tmp_path: Path) -> None:
    api = await start_api(tmp_path)
    assert "certificate" not in await approved(api, request("example.com/signer"))
    path = CERTIFICATE_SIGNING_REQUEST.url_path("", "csr", "status")
    headers = {"content-type": "application/merge-patch+json"}
    pem = base64.b64encode(b"-----BEGIN CERTIFICATE-----").decode()
    change = {"status": {"certificate": pem}}
    answer = await api.ask("PATCH", path, change, headers=headers)
    assert answer.body["status"]["certificate"] == pem


@in_virtual_time
async def test_no_request_makes_an_administrator(tmp_path: Path) -> None:
    api = await start_api(tmp_path)
    path = CERTIFICATE_SIGNING_REQUEST.url_path()
    answer = await api.ask("POST", path, request(subject=("ann", "system:masters")))
    assert answer.code == 403
    assert "system:masters" in answer.body["message"]


@in_virtual_time
async def test_approval_needs_a_permission_for_the_signer(tmp_path: Path) -> None:
    api = await start_api(tmp_path)
    await api.create(CERTIFICATE_SIGNING_REQUEST, request())
    group = ["certificates.k8s.io"]
    rules = [
        {
            "apiGroups": group,
            "resources": ["certificatesigningrequests/approval"],
            "verbs": ["update"],
        }
    ]
    await api.create(CLUSTER_ROLE, {"metadata": {"name": "approver"}, "rules": rules})
    reference = {
        "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "approver",
    }  # fmt: skip
    subjects = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "bob"}]
    binding = {"metadata": {"name": "b"}, "roleRef": reference, "subjects": subjects}
    await api.create(CLUSTER_ROLE_BINDING, binding)
    bob = UserInfo("bob", ("system:authenticated",))
    refused = await approve(api, bob)
    assert refused.code == 403
    assert "not permitted to approve" in refused.body["message"]
    rules.append(
        {
            "apiGroups": group, "resources": ["signers"], "verbs": ["approve"],
            "resourceNames": ["kubernetes.io/*"],
        }
    )  # fmt: skip
    path = CLUSTER_ROLE.url_path("", "approver")
    role = (await api.ask("GET", path)).body
    assert (await api.ask("PUT", path, {**role, "rules": rules})).code == 200
    assert (await approve(api, bob)).code == 200


@in_virtual_time
async def test_servers_of_extensions_find_the_authority(tmp_path: Path) -> None:
    api = await start_api(tmp_path)
    found = await api.get(CONFIG_MAP, "extension-apiserver-authentication", "kube-system")
    assert found["data"] == {"client-ca-file": (tmp_path / "ca.crt").read_text()}
