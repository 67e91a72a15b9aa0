"""Objects of every cluster and garbage collection, with kubectl and a `phalanx up`."""

from __future__ import annotations

import time

import pytest

from phalanx.api.wire import Object
from phalanx.client import kubeconfig
from tests.api.custom_resource_definitions import custom_resource_definition, served_version
from tests.cli.commands import COMMAND_TIMEOUT, Kubectl

FREE_FORM: Object = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def wait_for_names(kubectl: Kubectl, *names: str) -> None:
    """Wait until the namespace has exactly these ConfigMaps and the root certificate."""
    wanted = sorted(f"configmap/{name}" for name in (*names, "kube-root-ca.crt"))
    end = time.monotonic() + COMMAND_TIMEOUT
    while (found := kubectl("get", "configmaps", "-o", "name").split()) != wanted:
        assert time.monotonic() < end, found


def test_every_namespace_has_the_certificate_authority_of_the_server(kubectl: Kubectl) -> None:
    wait_for_names(kubectl)
    found = kubectl.get("configmap/kube-root-ca.crt")
    assert found["data"] == {"ca.crt": kubeconfig.load([kubectl.kubeconfig]).ca}
    kubectl("delete", "configmap", "kube-root-ca.crt")
    wait_for_names(kubectl)


def test_service_kubernetes_leads_to_the_server(kubectl: Kubectl) -> None:
    default = Kubectl(kubectl.kubeconfig, "default", kubectl.home)
    service, found = default.get("service/kubernetes"), default.get("endpointslice/kubernetes")
    (endpoint,), (port,) = found["endpoints"], found["ports"]
    url = f"https://{endpoint['addresses'][0]}:{port['port']}"
    assert url == kubeconfig.load([kubectl.kubeconfig]).server
    assert service["spec"]["ports"][0]["targetPort"] == port["port"]


@pytest.mark.mostly_slow(quick_every=4)
@pytest.mark.parametrize("cascade", ["background", "foreground", "orphan", "definition"])
def test_children_of_a_custom_resource_follow_its_deletion(kubectl: Kubectl, cascade: str) -> None:
    kind = f"Farm{cascade}"
    plural = f"{kind.lower()}s.example.com"
    definition = custom_resource_definition(served_version(schema=FREE_FORM), kind=kind)
    kubectl.apply(definition)
    kubectl("wait", "--for=condition=Established", f"crd/{plural}")
    owner: Object = {"apiVersion": "example.com/v1", "kind": kind, "metadata": {"name": "acre"}}
    kubectl.apply(owner)
    uid = kubectl.get(f"{plural}/acre")["metadata"]["uid"]
    reference = {**owner, "name": "acre", "uid": uid, "blockOwnerDeletion": True}
    del reference["metadata"]
    meta = {"name": "child", "ownerReferences": [reference]}
    kubectl.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta})
    wait_for_names(kubectl, "child")
    if cascade == "definition":
        kubectl("delete", "crd", plural)
        wait_for_names(kubectl)
        return
    kubectl("delete", plural, "acre", f"--cascade={cascade}")
    wait_for_names(kubectl, *(["child"] if cascade == "orphan" else []))
    assert kubectl("get", plural, "-o", "name") == ""
    if cascade == "orphan":
        assert "ownerReferences" not in kubectl.get("configmap/child")["metadata"]
    kubectl("delete", "crd", plural)
