"""kubectl drives workloads: create, scale, roll out, go back, autoscale, expose, drain."""

from __future__ import annotations

import pytest

from tests.cli.commands import Kubectl

pytestmark = pytest.mark.slow


def test_a_deployment_is_created_scaled_and_rolled_out(kubectl: Kubectl) -> None:
    kubectl("create", "deployment", "web", "--image=registry.example/web:v1", "--replicas=2")
    kubectl("rollout", "status", "deployment/web", "--timeout=60s")
    kubectl("scale", "deployment/web", "--replicas=3")
    kubectl("rollout", "status", "deployment/web", "--timeout=60s")
    kubectl("set", "image", "deployment/web", "web=registry.example/web:v2")
    kubectl("rollout", "status", "deployment/web", "--timeout=60s")
    assert "2" in kubectl("rollout", "history", "deployment/web")
    kubectl("rollout", "pause", "deployment/web")
    kubectl("rollout", "resume", "deployment/web")
    kubectl("rollout", "undo", "deployment/web")
    kubectl("rollout", "status", "deployment/web", "--timeout=60s")
    found = kubectl.get("deployment/web")
    assert found["spec"]["template"]["spec"]["containers"][0]["image"].endswith(":v1")
    assert found["status"]["availableReplicas"] == 3
    kubectl("rollout", "restart", "deployment/web")
    kubectl("rollout", "status", "deployment/web", "--timeout=60s")


def test_a_deployment_is_exposed_and_autoscaled(kubectl: Kubectl) -> None:
    kubectl("create", "deployment", "web", "--image=registry.example/web:v1", "--port=8080")
    kubectl("expose", "deployment", "web", "--port=80", "--target-port=8080")
    kubectl("autoscale", "deployment", "web", "--min=1", "--max=4", "--cpu-percent=70")
    kubectl("rollout", "status", "deployment/web", "--timeout=60s")
    assert kubectl.get("service/web")["spec"]["selector"] == {"app": "web"}
    assert kubectl.get("hpa/web")["spec"]["maxReplicas"] == 4
    kubectl("wait", "--for=jsonpath={.subsets[0].ports[0].port}=8080", "endpoints/web")
    assert "web" in kubectl("get", "all")


def test_a_node_is_cordoned_and_drained(kubectl: Kubectl) -> None:
    kubectl("create", "deployment", "web", "--image=registry.example/web:v1", "--replicas=2")
    kubectl("rollout", "status", "deployment/web", "--timeout=60s")
    node = kubectl.get("pods")["items"][0]["spec"]["nodeName"]
    kubectl("cordon", node)
    kubectl("drain", node, "--pod-selector=app=web", "--timeout=60s")
    kubectl("rollout", "status", "deployment/web", "--timeout=60s")
    pods = kubectl.get("pods")["items"]
    kubectl("uncordon", node)
    assert all(pod["spec"]["nodeName"] != node for pod in pods)
