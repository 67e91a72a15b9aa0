"""The real kubectl against the real server."""

from __future__ import annotations

import subprocess
import threading

import pytest
import yaml

from phalanx.api.wire import Object
from tests.builders import gang, pod, pod_group
from tests.cli.commands import COMMAND_TIMEOUT, WAIT_LIMIT, Kubectl, rows


def here(kubectl: Kubectl, objects: list[Object]) -> list[Object]:
    """The same objects in the namespace of the test."""
    for obj in objects:
        obj["metadata"]["namespace"] = kubectl.namespace
    return objects


def placed(kubectl: Kubectl, name: str, pods: int) -> None:
    """Create a gang and wait until it runs."""
    kubectl.apply(*here(kubectl, gang(name, pods)))
    names = [f"pod/{name}-{n}" for n in range(pods)]
    kubectl("wait", "--for=jsonpath={.status.phase}=Running", WAIT_LIMIT, *names)


def test_get_shows_tables_and_objects(kubectl: Kubectl) -> None:
    placed(kubectl, "a", 2)
    table = kubectl("get", "pods")
    assert table.splitlines()[0].split() == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert [row[:3] for row in rows(table)] == [
        ["a-0", "1/1", "Running"],
        ["a-1", "1/1", "Running"],
    ]
    wide = kubectl("get", "pods", "-o", "wide")
    assert {row[6] for row in rows(wide)} <= {"node-0", "node-1"}
    assert kubectl("get", "pods,podgroups", "-o", "name").splitlines() == [
        "pod/a-0", "pod/a-1", "podgroup.scheduling.k8s.io/a",
    ]  # fmt: skip
    assert rows(kubectl("get", "podgroup"))[0][:4] == ["a", "Gang", "<none>", "Scheduled"]
    found = yaml.safe_load(kubectl("get", "pods", "-o", "yaml"))
    assert [item["kind"] for item in found["items"]] == ["Pod", "Pod"]
    assert {row[1] for row in rows(kubectl("get", "nodes", "-o", "wide"))} == {"Ready"}


def test_get_selects_and_sorts(kubectl: Kubectl) -> None:
    pods = here(kubectl, [pod("a", meta={"labels": {"color": "red"}}), pod("b")])
    kubectl.apply(*pods)
    assert kubectl("get", "pods", "-l", "color=red", "-o", "name") == "pod/a\n"
    assert kubectl("get", "pods", "-l", "!color", "-o", "name") == "pod/b\n"
    assert kubectl("get", "pods", "--field-selector", "metadata.name=b", "-o", "name") == "pod/b\n"
    assert "color=red" in kubectl("get", "pods", "--show-labels")
    assert kubectl("get", "pods", "--chunk-size=1", "-o", "name").splitlines() == ["pod/a", "pod/b"]


def test_watch_shows_changes(kubectl: Kubectl) -> None:
    process = subprocess.Popen(
        kubectl.command(["get", "pods", "-w"]), stdout=subprocess.PIPE, text=True, env=kubectl.env
    )
    timer = threading.Timer(COMMAND_TIMEOUT, process.kill)
    timer.start()
    try:
        kubectl.apply(*here(kubectl, [pod("a")]))
        assert process.stdout is not None
        seen = []
        for line in process.stdout:
            seen.append(line.split()[:3])
            if line.split()[2] == "Running":
                break
    finally:
        timer.cancel()
        process.kill()
        process.communicate()
    assert seen[0] == ["NAME", "READY", "STATUS"]
    assert seen[-1] == ["a", "1/1", "Running"]


def test_describe_shows_conditions_and_events(kubectl: Kubectl) -> None:
    kubectl.apply(*here(kubectl, gang("big", 3, cpu="7")))
    group = "podgroup.scheduling.k8s.io/big"
    kubectl("wait", "--for=condition=PodGroupInitiallyScheduled=false", WAIT_LIMIT, group)
    why = "minCount (3) cannot be satisfied"
    story = kubectl("describe", "podgroup", "big")
    assert why in story
    assert "FailedScheduling" in story
    assert "Pending" in kubectl("describe", "pod", "big-0")
    node = kubectl("describe", "node", "node-0")
    assert "example.com/gpu" in node
    assert "Ready" in node


def test_apply_twice_changes_nothing_and_a_change_is_applied(kubectl: Kubectl) -> None:
    objects = here(kubectl, [pod_group("g", 2), pod("a", meta={"labels": {"v": "1"}})])
    assert [line.split()[-1] for line in kubectl.apply(*objects).splitlines()] == ["created"] * 2
    assert [line.split()[-1] for line in kubectl.apply(*objects).splitlines()] == ["unchanged"] * 2
    objects[1]["metadata"]["labels"] = {"v": "2", "more": "x"}
    assert [line.split()[-1] for line in kubectl.apply(*objects).splitlines()] == [
        "unchanged", "configured",
    ]  # fmt: skip
    objects[1]["metadata"]["labels"] = {"v": "3"}
    kubectl.apply(*objects)
    assert kubectl.get("pod/a")["metadata"]["labels"] == {"v": "3"}


def test_a_dry_run_changes_nothing(kubectl: Kubectl) -> None:
    objects = here(kubectl, [pod("a")])
    assert "created (server dry run)" in kubectl.apply(*objects, dry_run="server")
    assert kubectl("get", "pods", "-o", "name") == ""


def test_label_annotate_and_patch(kubectl: Kubectl) -> None:
    kubectl.apply(*here(kubectl, [pod("a")]))
    kubectl("label", "pod/a", "color=red")
    kubectl("annotate", "pod/a", "note=hello")
    kubectl("patch", "pod/a", "-p", '{"metadata":{"labels":{"size":"big"}}}')
    kubectl("label", "pod/a", "color-")
    meta = kubectl.get("pod/a")["metadata"]
    assert (meta["labels"], meta["annotations"]["note"]) == ({"size": "big"}, "hello")


def test_delete_waits_until_the_object_is_gone(kubectl: Kubectl) -> None:
    placed(kubectl, "a", 2)
    assert kubectl("delete", "pod", "a-0", "a-1").count("deleted") == 2
    assert kubectl("get", "pods", "-o", "name") == ""
    assert "deleted" in kubectl("delete", "podgroup", "a")
    assert "NotFound" in kubectl.run("get", "podgroup", "a").stderr


def test_namespace_is_deleted_with_its_objects(kubectl: Kubectl) -> None:
    space = f"{kubectl.namespace}-more"
    kubectl("create", "namespace", space)
    inside = Kubectl(kubectl.kubeconfig, space, kubectl.home)
    placed(inside, "a", 2)
    kubectl("delete", "namespace", space, WAIT_LIMIT)
    assert "NotFound" in kubectl.run("get", "namespace", space).stderr


def test_kinds_have_short_names(kubectl: Kubectl) -> None:
    found = rows(kubectl("api-resources"))
    assert ["pods", "po", "v1", "true", "Pod"] in found
    assert ["pods", "metrics.k8s.io/v1beta1", "true", "PodMetrics"] in found
    assert "podgroups" in {row[0] for row in found}
    assert kubectl("version").count("Server Version: v1.37") == 1


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "kind: Pod\napiVersion: v1\nmetadata: {name: a}\nspec: {containers: []}",
            "Required value",
        ),
        ("kind: Pod\napiVersion: v1\nmetadata: {name: a}\nspec: {colour: red}", "unknown field"),
        ("kind: Dragon\napiVersion: v1\nmetadata: {name: a}", "no matches for kind"),
    ],
    ids=["breaks a rule", "has an unknown field", "is of no kind"],
)
def test_invalid_object_is_rejected_with_a_reason(
    kubectl: Kubectl, text: str, complaint: str
) -> None:
    done = kubectl.run("create", "-f", "-", text=text)
    assert done.returncode == 1
    assert complaint in done.stderr


def test_top_shows_what_pods_and_nodes_use(kubectl: Kubectl) -> None:
    placed(kubectl, "a", 2)
    kubectl.apply(*here(kubectl, [pod("b", cpu="1", memory="64Mi")]))
    kubectl("wait", "--for=jsonpath={.status.phase}=Running", WAIT_LIMIT, "pod/b")
    assert ["b", "1000m", "64Mi"] in rows(kubectl("top", "pods"))
    assert rows(kubectl("top", "pod", "b", "--containers")) == [["b", "main", "1000m", "64Mi"]]
    nodes = rows(kubectl("top", "nodes"))
    assert [row[0] for row in nodes] == ["node-0", "node-1"]
    assert all(row[2].endswith("%") and row[4].endswith("%") for row in nodes)


def test_a_cordoned_node_takes_no_more_pods(kubectl: Kubectl) -> None:
    kubectl("cordon", "node-1")
    try:
        assert "Ready,SchedulingDisabled" in kubectl("get", "node", "node-1")
        placed(kubectl, "a", 3)
        assert {row[6] for row in rows(kubectl("get", "pods", "-o", "wide"))} == {"node-0"}
    finally:
        kubectl("uncordon", "node-1")
