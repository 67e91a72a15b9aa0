"""`phalanx install`: its manifests, and a gang on a server without the workload APIs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from phalanx.api.wire import Object
from tests.cli.commands import (
    COMMAND_TIMEOUT,
    ROOT,
    WAIT_LIMIT,
    Kubectl,
    first_line,
    phalanx,
    rows,
    start_component,
    start_up,
)
from tools.control_plane import ControlPlane

NAMESPACE = "phalanx-system"
#: A server that has neither the workload APIs nor GroupBindings.
FOREIGN = (
    "--without", "scheduler,controllers", "--nodes", "3", "--shape", "cpu=4", "--data", ":memory:",
)  # fmt: skip
#: Its gates, and those of a server that got the workload APIs by an upgrade.
GATES = {"old": "GenericWorkload=false,GroupBinding=false", "upgraded": "GroupBinding=false"}


def install(*args: str) -> list[Object]:
    done = phalanx("install", *args)
    assert done.returncode == 0, done.stderr
    assert "&id" not in done.stdout
    return list(yaml.safe_load_all(done.stdout))


def find(manifests: list[Object], kind: str, name: str) -> Any:
    (found,) = [one for one in manifests if one["kind"] == kind and one["metadata"]["name"] == name]
    return found


def test_manifests_contain_all_parts_in_an_order_that_can_be_applied() -> None:
    manifests = install("--image", "registry.example/phalanx:1", "--scheduler-name", "a")
    kinds = [one["kind"] for one in manifests]
    assert kinds[0] == "Namespace"
    assert kinds[1:4] == ["CustomResourceDefinition"] * 3
    counts = Counter(kinds)
    for kind in ("ServiceAccount", "ClusterRole", "Deployment", "PodDisruptionBudget"):
        assert counts[kind] == 2
    pods = find(manifests, "Deployment", "phalanx-scheduler")["spec"]["template"]["spec"]
    (container,) = pods["containers"]
    assert container["image"] == "registry.example/phalanx:1"
    assert pods["securityContext"]["runAsNonRoot"]
    assert {"livenessProbe", "readinessProbe", "resources"} <= set(container)
    text = find(manifests, "ConfigMap", "phalanx-scheduler")["data"]["scheduler.yaml"]
    assert yaml.safe_load(text)["profiles"] == [{"schedulerName": "a"}]
    role = find(manifests, "Role", "phalanx-scheduler")
    assert [rule.get("resourceNames") for rule in role["rules"]] == [None, ["a"]]


def test_rights_for_kinds_of_other_projects_are_granted_only_if_they_are_read() -> None:
    def groups(*args: str) -> set[str]:
        role = find(install(*args), "ClusterRole", "phalanx-scheduler")
        return {rule["apiGroups"][0] for rule in role["rules"]}

    volcano = "scheduling.volcano.sh"
    assert volcano not in groups()
    assert groups("--compat", "volcano") - groups() == {volcano}
    # The status of its PodGroups is a subresource in some versions of the definition only.
    rules = find(install("--compat", "volcano"), "ClusterRole", "phalanx-scheduler")["rules"]
    granted = {
        (resource, verb)
        for rule in rules
        if rule["apiGroups"] == [volcano]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert {("podgroups", "patch"), ("podgroups/status", "patch")} <= granted


def test_uninstall_keeps_the_definitions_unless_they_are_asked_for() -> None:
    kinds = [one["kind"] for one in install("--uninstall")]
    assert "CustomResourceDefinition" not in kinds
    assert kinds[-1] == "Namespace"
    assert "CustomResourceDefinition" in [one["kind"] for one in install("--uninstall", "--crds")]


def test_definitions_are_left_out_where_the_server_has_the_workload_apis(
    plane: ControlPlane,
) -> None:
    config = ("--kubeconfig", str(plane.kubeconfig))
    assert "CustomResourceDefinition" not in [one["kind"] for one in install(*config)]
    kinds = [one["kind"] for one in install(*config, "--crds")]
    assert "CustomResourceDefinition" in kinds


def test_uninstall_deletes_no_namespace_that_may_have_other_content() -> None:
    assert "Namespace" not in [one["kind"] for one in install("--uninstall", "-n", "kube-system")]


def test_new_configuration_restarts_the_scheduler_and_nothing_else() -> None:
    def templates(*args: str) -> list[Object]:
        names = ("phalanx-scheduler", "phalanx-controllers")
        found = install(*args)
        return [find(found, "Deployment", name)["spec"]["template"] for name in names]

    before, after = templates(), templates("--scheduler-name", "a", "--scheduler-name", "a")
    assert before[0] != after[0]
    assert before[1] == after[1]
    assert templates("--scheduler-name", "a") == after


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--namespace", "Not_One"], '"Not_One" is not a namespace'),
        (["--uninstall", "--diff"], "--uninstall and --diff exclude each other"),
        (["--compat", "kueue"], "'kueue' is not one of"),
        (["--scheduler-name", "Not_One"], '"Not_One" is not a scheduler name'),
        (["--scheduler-name", ""], '"" is not a scheduler name'),
        (["--image", ""], '"" is not an image'),
    ],
)
def test_invalid_options_are_usage_errors(args: list[str], message: str) -> None:
    done = phalanx("install", *args)
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(4 * COMMAND_TIMEOUT)
def test_documented_commands_remove_everything_though_groups_are_in_use(tmp_path: Path) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not on the PATH")
    text = (ROOT / "docs" / "running-on-a-cluster.md").read_text()
    commands = text.partition("### Removing it\n\n```\n")[2].partition("```")[0]
    config = tmp_path / "kubeconfig"
    with start_up(
        "--without", "scheduler", "--nodes", "3", "--shape", "cpu=4", "--data", ":memory:",
        "--feature-gates", GATES["old"], "--kubeconfig", str(config),
    ) as server:  # fmt: skip
        assert first_line(server).startswith("ready")
        kubectl = Kubectl(config, "default", tmp_path)
        printed = phalanx("install").stdout
        Kubectl(config, "", tmp_path)("apply", "--server-side", "-f", "-", text=printed)
        kubectl.apply(*gang("used", 3, "3"))
        with start_component("controllers", config) as controllers:
            assert first_line(controllers).startswith("ready")
            group = "podgroups.scheduling.phalanx.dev/used"
            kubectl("wait", "--for=jsonpath={.metadata.finalizers}", group, WAIT_LIMIT)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", commands],
            env={
                **kubectl.env,
                "KUBECONFIG": str(config),
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            },
            capture_output=True, text=True, timeout=COMMAND_TIMEOUT,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        ours = ("-o", "name", "-l", "app.kubernetes.io/part-of=phalanx")
        assert kubectl("get", "clusterroles,clusterrolebindings,namespaces", *ours) == ""
        assert "scheduling.phalanx.dev" not in kubectl("get", "crd")
        assert len(kubectl.get("pods")["items"]) == 3


def gang(name: str, count: int, cpu: str) -> list[Object]:
    labels = {"scheduling.phalanx.dev/pod-group": name}
    container = {
        "name": "main", "image": "registry.example/main:1", "resources": {"requests": {"cpu": cpu}},
    }  # fmt: skip
    group = {
        "apiVersion": "scheduling.phalanx.dev/v1",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"schedulingPolicy": {"gang": {"minCount": count}}},
    }
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"{name}-{number}", "labels": labels},
            "spec": {"schedulerName": "phalanx-scheduler", "containers": [container]},
        }
        for number in range(count)
    ]
    return [group, *pods]


@pytest.mark.slow
@pytest.mark.parametrize("version", GATES)
def test_installed_rights_and_configuration_place_gangs(version: str, tmp_path: Path) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not on the PATH")
    config = tmp_path / "kubeconfig"
    gates = ("--feature-gates", GATES[version])
    with start_up(*FOREIGN, *gates, "--kubeconfig", str(config)) as server:
        assert first_line(server).startswith("ready")
        kubectl = Kubectl(config, "default", tmp_path)
        printed = phalanx("install").stdout
        # Without -n: the manifests name several namespaces.
        anywhere = Kubectl(config, "", tmp_path)
        anywhere("apply", "--server-side", "--validate=strict", "-f", "-", text=printed)
        assert phalanx("install", "--diff", "--kubeconfig", str(config)).stdout == ""
        changed = phalanx("install", "--diff", "--replicas", "3", "--kubeconfig", str(config))
        assert changed.returncode == 1
        assert "+  replicas: 3\n" in changed.stdout
        (policy := tmp_path / "scheduler.yaml").write_text(
            find(list(yaml.safe_load_all(printed)), "ConfigMap", "phalanx-scheduler")["data"][
                "scheduler.yaml"
            ]
        )
        accounts = {}
        for name in ("phalanx-scheduler", "phalanx-controllers"):
            token = kubectl("create", "token", name, "-n", NAMESPACE).strip()
            content = yaml.safe_load(config.read_text())
            content["users"][0]["user"] = {"token": token}
            accounts[name] = tmp_path / name
            accounts[name].touch(mode=0o600)
            accounts[name].write_text(yaml.safe_dump(content))
        with (
            start_component(
                "scheduler", accounts["phalanx-scheduler"], "--config", str(policy)
            ) as scheduler,
            start_component("controllers", accounts["phalanx-controllers"]) as controllers,
        ):
            assert first_line(scheduler).endswith("schedulerName phalanx-scheduler\n")
            names = "podgroup-protection,composite-groups,job,job-groups"
            assert first_line(controllers).endswith(f" {names}\n")
            kubectl.apply(*gang("fits", 3, "3"))
            kubectl("wait", "--for=condition=Ready", "pod", "--all", WAIT_LIMIT)
            kubectl.apply(*gang("waits", 2, "3"))
            condition = "--for=condition=PodGroupScheduled=false"
            kubectl("wait", condition, "podgroups.scheduling.phalanx.dev/waits", WAIT_LIMIT)
            table = rows(kubectl("get", "podgroups.scheduling.phalanx.dev"))
            assert [line[:3] for line in table] == [
                ["fits", "3", "3"],
                ["waits", "2", "Unschedulable"],
            ]
            for process in (scheduler, controllers):
                process.terminate()
                _, errors = process.communicate(timeout=COMMAND_TIMEOUT)
                assert process.returncode == 0
                assert "forbidden" not in errors
