"""What kubectl operates: deployments, Services, autoscalers, certificates and usage."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from phalanx.api.wire import Object
from tests.cli.commands import WAIT_LIMIT, Kubectl, rows
from tests.conformance.manifests import IMAGE


def test_a_deployment_is_rolled_out_scaled_exposed_and_autoscaled(kubectl: Kubectl) -> None:
    kubectl("create", "deployment", "web", f"--image={IMAGE}", "--replicas=2")
    kubectl("rollout", "status", "deployment/web", WAIT_LIMIT)
    kubectl("set", "image", "deployment/web", f"*={IMAGE}-2")
    kubectl("rollout", "status", "deployment/web", WAIT_LIMIT)
    assert "\n2 " in kubectl("rollout", "history", "deployment/web")
    kubectl("rollout", "undo", "deployment/web")
    kubectl("scale", "deployment/web", "--replicas=5")
    kubectl("expose", "deployment/web", "--port=80", "--type=NodePort")
    spec = kubectl.get("service/web")["spec"]
    assert spec["clusterIP"].startswith("10.")
    assert 30000 <= spec["ports"][0]["nodePort"] <= 32767
    wait = WAIT_LIMIT
    kubectl("wait", "deployment/web", "--for=jsonpath={.status.readyReplicas}=5", wait)
    kubectl("wait", "endpoints/web", "--for=jsonpath={.subsets[0].addresses[4].ip}", wait)
    kubectl("autoscale", "deployment/web", "--min=1", "--max=3", "--cpu-percent=80")
    kubectl("wait", "hpa/web", "--for=condition=AbleToScale", wait)
    kubectl("wait", "deployment/web", "--for=jsonpath={.spec.replicas}=3", wait)


def test_an_approved_certificate_authenticates_its_user(kubectl: Kubectl, tmp_path: Path) -> None:
    name, key = f"ann-{kubectl.namespace}", ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ann")])
    signed = x509.CertificateSigningRequestBuilder().subject_name(subject)
    request = signed.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    spec: Object = {
        "request": base64.b64encode(request).decode(),
        "signerName": "kubernetes.io/kube-apiserver-client",
        "usages": ["client auth"],
    }
    meta: Object = {"name": name}
    kind = {"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest"}
    kubectl.apply({**kind, "metadata": meta, "spec": spec})
    assert rows(kubectl("get", "csr", name))[0][-1] == "Pending"
    kubectl("certificate", "approve", name)
    assert rows(kubectl("get", "csr", name))[0][-1] == "Approved,Issued"
    config = yaml.safe_load(kubectl.kubeconfig.read_text())
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    config["users"][0]["user"] = {
        "client-certificate-data": kubectl.get(f"csr/{name}")["status"]["certificate"],
        "client-key-data": base64.b64encode(pem).decode(),
    }
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(config))
    ann = replace(kubectl, kubeconfig=file)
    assert (
        yaml.safe_load(ann("auth", "whoami", "-o", "yaml"))["status"]["userInfo"]["username"]
        == "ann"
    )
    kubectl("delete", "csr", name)


def test_a_denied_request_gets_no_certificate(kubectl: Kubectl) -> None:
    name = f"denied-{kubectl.namespace}"
    text = base64.b64encode(b"-----BEGIN CERTIFICATE REQUEST-----").decode()
    signer = "kubernetes.io/kube-apiserver-client"
    spec: Object = {"request": text, "signerName": signer, "usages": ["client auth"]}
    kind = {"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest"}
    kubectl.apply({**kind, "metadata": {"name": name}, "spec": spec})
    kubectl("certificate", "deny", name)
    assert rows(kubectl("get", "csr", name))[0][-1] == "Denied"
    kubectl("delete", "csr", name)


def test_usage_of_nodes_is_shown(kubectl: Kubectl) -> None:
    assert len(rows(kubectl("top", "nodes"))) == 3
