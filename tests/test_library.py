"""The library: questions about objects as kubectl prints them, without a server."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import phalanx
from phalanx import library
from phalanx.api.wire import Object
from phalanx.library import (
    Cluster,
    ForecastVerdict,
    Impossible,
    InvalidObject,
    NotAttempted,
    ObjectNotFound,
    Placed,
    Preempting,
    Ref,
    Waiting,
    explain,
)
from phalanx.testing import Served
from tests.builders import gang, node, pod, pod_group

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "library.md").read_text()
SAVED = json.loads((ROOT / "examples" / "cluster.json").read_text())
KUBECTL_KINDS = "nodes,pods,podgroups,namespaces,services,pdb,priorityclasses"
EARLY, LATE = "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def run_example(code: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(ROOT)
    printed, names = io.StringIO(), dict[str, Any]()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "example", "exec"), names)
    return printed.getvalue()


def stored(*objects: Object, created: str = EARLY) -> list[Object]:
    """Objects as a server returns them: with a uid and a creation time."""
    for one in objects:
        one["metadata"] |= {"uid": f"uid-{one['metadata']['name']}", "creationTimestamp": created}
    return list(objects)


def running(name: str, on: str, *, cpu: str = "1") -> list[Object]:
    """A gang of one that runs on a node."""
    group, member = gang(name, 1, cpu=cpu)
    member["spec"]["nodeName"], member["status"] = on, {"phase": "Running"}
    return stored(group, member)


# ---- documentation -------------------------------------------------------------------------------


def test_example_of_the_page_prints_what_the_page_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    (code,), (output,) = blocks(PAGE, "python"), blocks(PAGE, "text")
    assert len([line for line in code.splitlines() if line]) <= 12
    assert run_example(code, monkeypatch) == output


def test_example_of_the_readme_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = blocks((ROOT / "README.md").read_text(), "python")
    assert run_example(code, monkeypatch).splitlines()[-1] == "FITS"


@pytest.mark.parametrize("name", library.__all__)
def test_every_exported_name_is_documented(name: str) -> None:
    assert hasattr(library, name)
    assert re.search(rf"`[^`\n]*\b{name}\b", PAGE)


@pytest.mark.parametrize("name", [name for name in vars(Cluster) if not name.startswith("_")])
def test_every_method_is_documented(name: str) -> None:
    if callable(getattr(Cluster, name)):
        assert re.search(rf"`[^`\n]*\b{name}\(", PAGE)


def test_package_exports_the_library_without_importing_it() -> None:
    assert phalanx.Cluster is Cluster
    with pytest.raises(AttributeError):
        getattr(phalanx, "Clusters")  # noqa: B009
    code = "import sys, phalanx; sys.exit('phalanx.library' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---- objects in ----------------------------------------------------------------------------------


@pytest.mark.phalanx(nodes=2)
def test_output_of_the_real_kubectl_gives_the_answers_of_the_running_scheduler(
    phalanx: Served, tmp_path: Path
) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not on the PATH")
    phalanx.apply(*gang("fits", 2, cpu="1"), *gang("large", 3, cpu="100"))
    phalanx.wait_for("podgroup", "fits", "PodGroupInitiallyScheduled")
    large = phalanx.wait_for("podgroup", "large", has_scheduling_message)
    printed = subprocess.run(
        ["kubectl", "get", KUBECTL_KINDS, "-A", "-o", "json"],
        env={**os.environ, "KUBECONFIG": str(phalanx.kubeconfig), "HOME": str(tmp_path)},
        capture_output=True,
        check=True,
    ).stdout
    cluster = Cluster.from_objects(json.loads(printed))
    assert [(row.title, row.placed) for row in cluster.queue()] == [("fits", 2), ("large", 0)]
    decision = cluster.decide("podgroup/large")
    assert isinstance(decision, Waiting)
    assert explain(decision).message == has_scheduling_message(large)
    assert cluster.diagnose("podgroup/large").message in phalanx.why("podgroup/large")


def has_scheduling_message(group: Object) -> str:
    """The message of the scheduler about a group that it has not placed; "" before that."""
    conditions = group.get("status", {}).get("conditions", [])
    return next(
        (one["message"] for one in conditions if one["type"] == "PodGroupInitiallyScheduled"), ""
    )


def test_list_items_single_objects_and_nested_lists_are_equivalent() -> None:
    items = SAVED["items"]
    expected = Cluster.from_objects(SAVED)
    typed = {
        "apiVersion": "v1",
        "kind": "PodList",
        "items": [
            {key: value for key, value in one.items() if key not in ("kind", "apiVersion")}
            for one in items
            if one["kind"] == "Pod"
        ],
    }
    others = [one for one in items if one["kind"] != "Pod"]
    assert Cluster.from_objects(items) == expected
    assert Cluster.from_objects([typed, *others]).objects.pods == expected.objects.pods
    assert Cluster.from_objects(items[0]).objects.nodes == tuple(expected.objects.nodes)[:1]


def test_unknown_kinds_are_ignored() -> None:
    widget = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}}
    assert Cluster.from_objects([widget]) == Cluster.from_objects([])


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"metadata": {"name": "x"}}, "apiVersion and kind are missing"),
        ("kind: Pod", "expected decoded objects, not a text"),
        ({"apiVersion": "v1", "kind": "Pod", "metadata": None}, "metadata.name"),
        (
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"creationTimestamp": "noon"}},
            "invalid time 'noon'",
        ),
        (pod("x", spec={"priorityClassName": "high"}), "Pod default/x: .*PriorityClass 'high'"),
        (pod("x", spec={"containers": 3}), "Pod default/x: .*containers"),
        ({"apiVersion": "v1", "kind": "Pod", "metadata": {}}, "metadata.name"),
        (
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "x", "uid": 3}},
            "Node x: .*uid",
        ),
    ],
)
def test_invalid_objects_are_named(item: Any, message: str) -> None:
    with pytest.raises(InvalidObject, match=message):
        Cluster.from_objects([item])


def test_manifests_get_the_defaults_of_the_api_server() -> None:
    manifest = pod("x")
    manifest["metadata"].pop("namespace")
    manifest["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "2"}}
    cluster = Cluster.from_objects([node("n"), manifest], now=60.0)
    (found,) = cluster.objects.pods
    assert found.metadata.namespace == "default"
    assert found.metadata.creation_timestamp == "1970-01-01T00:01:00Z"
    assert found.spec.containers[0].resources.requests == {"cpu": "2"}


def test_manifests_get_the_priority_of_their_class() -> None:
    classes = [
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": value,
            "globalDefault": name == "usual",
            "preemptionPolicy": policy,
        }
        for name, value, policy in (
            ("usual", 5, "PreemptLowerPriority"),
            ("high", 100, "Never"),
        )
    ]
    pods = [pod("a"), pod("b", spec={"priorityClassName": "high"}), pod("c", spec={"priority": 7})]
    system = pod("d", spec={"priorityClassName": "system-node-critical"})
    cluster = Cluster.from_objects([*pods, system, *classes])
    found = [(one.spec.priority, one.spec.preemption_policy) for one in cluster.objects.pods]
    assert [value for value, _ in found] == [5, 100, 7, 2_000_001_000]
    assert found[1] == (100, "Never")


def test_old_versions_of_groups_are_converted() -> None:
    old = {**pod_group("g", 2), "apiVersion": "scheduling.k8s.io/v1alpha2"}
    (found,) = Cluster.from_objects([old]).objects.groups
    assert found.quorum == 2


def test_newest_creation_time_is_the_default_of_now() -> None:
    objects = [*stored(node("a"), created=EARLY), *stored(node("b"), created=LATE)]
    assert Cluster.from_objects(objects).now == 1_767_229_200.0
    assert Cluster.from_objects([]).now == 0.0


# ---- questions -----------------------------------------------------------------------------------


def test_decide_returns_what_the_next_cycle_decides() -> None:
    nodes = stored(node("a", cpu="4"), node("b", cpu="4"))
    cluster = Cluster.from_objects([*nodes, *stored(*gang("fits", 2, cpu="3"))])
    decision = cluster.decide("podgroup/fits")
    assert isinstance(decision, Placed)
    assert sorted(binding.node for binding in decision.bindings) == ["a", "b"]
    refused = Cluster.from_objects([*nodes, *stored(*gang("large", 3, cpu="3"))])
    decision = refused.decide("gang/large")
    assert isinstance(decision, Waiting)
    assert explain(decision).message.startswith("minCount (3) cannot be satisfied")


def test_decide_ignores_what_is_ahead_in_the_queue_but_forecast_does_not() -> None:
    cluster = Cluster.from_objects(
        [
            *stored(node("a", cpu="4")),
            *stored(*gang("first", 1, cpu="3"), created=EARLY),
            *stored(*gang("second", 1, cpu="3"), created=LATE),
        ]
    )
    assert isinstance(cluster.decide("podgroup/second"), Placed)
    first, second = cluster.forecast()
    assert (first.subject.name, first.verdict) == ("first", ForecastVerdict.FITS)
    assert (second.subject.name, second.verdict) == ("second", ForecastVerdict.WAITS)
    assert cluster.forecast("podgroup/second") == [second]


def test_important_pod_preempts_and_contradictory_group_is_impossible() -> None:
    occupied = [*stored(node("a", cpu="4")), *running("low", "a", cpu="3")]
    urgent = pod("urgent", cpu="3", spec={"priority": 10})
    decision = Cluster.from_objects([*occupied, urgent]).decide("pod/urgent")
    assert isinstance(decision, Preempting)
    assert [victim.pod.name for victim in decision.victims] == ["low-0"]
    group, member = gang("mixed", 1)
    member["spec"]["priority"] = 3
    assert isinstance(Cluster.from_objects([group, member]).decide("podgroup/mixed"), Impossible)


def test_what_no_cycle_is_run_for_is_not_attempted() -> None:
    group, *members = gang("g", 2)
    incomplete = Cluster.from_objects([group, members[0]]).decide("podgroup/g")
    assert isinstance(incomplete, NotAttempted)
    assert incomplete.state == "NotReady"
    placed = Cluster.from_objects([*stored(node("a")), *running("p", "a")]).decide("podgroup/p")
    assert isinstance(placed, NotAttempted)
    assert placed.state == "Placed"


def test_diagnosis_names_the_smallest_verified_changes() -> None:
    diagnosis = Cluster.from_objects(SAVED).diagnose("job/too-big")
    assert (diagnosis.state, diagnosis.bound, diagnosis.pending) == ("Unschedulable", 0, 3)
    assert [cure.text for cure in diagnosis.cures if cure.is_verified] == [
        "add 3 nodes like node-0 (cpu 8, memory 32Gi, nvidia.com/gpu 4)"
    ]


def test_owners_are_found_by_workload_and_by_owner_reference() -> None:
    cluster = Cluster.from_objects(SAVED)
    (group,) = cluster.find("job/too-big")
    assert group.kind == "PodGroup"
    assert cluster.find(Ref("Job", "default", "too-big")) == [group]
    assert cluster.find(group) == [group]
    without_workloads = [one for one in SAVED["items"] if one["kind"] not in ("Workload", "Job")]
    assert Cluster.from_objects(without_workloads).find("job/too-big") == [group]
    member = next(pod for pod in cluster.objects.pods if pod.group == group.key)
    assert cluster.find(f"pod/{member.metadata.name}") == [group]


@pytest.mark.parametrize(
    ("subject", "owner"),
    [
        ("deployment/web", ("ReplicaSet", "web-5d9c")),
        ("replicaset/web-5d9c", ("ReplicaSet", "web-5d9c")),
        ("sts/db", ("StatefulSet", "db")),
        ("ds/agent", ("DaemonSet", "agent")),
    ],
)
def test_pods_of_replicated_workloads_are_found_by_their_owner(
    subject: str, owner: tuple[str, str]
) -> None:
    pods = stored(pod("bound"), pod("waits"), pod("other"))
    for one in pods[:2]:
        kind, name = owner
        one["metadata"]["labels"] = {"pod-template-hash": "5d9c"}
        one["metadata"]["ownerReferences"] = [
            {"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": "u", "controller": True}
        ]
    pods[0]["spec"]["nodeName"] = "n"
    assert Cluster.from_objects(pods).find(subject) == [Ref("Pod", "default", "waits")]


@pytest.mark.parametrize(
    "subject", ["podgroup/none", "pod/none", "job/none", "workload/none", Ref("Node", "", "n")]
)
def test_missing_subjects_are_reported(subject: str | Ref) -> None:
    with pytest.raises(ObjectNotFound):
        Cluster.from_objects(SAVED).decide(subject)


def test_subjects_must_name_a_kind_and_one_group() -> None:
    with pytest.raises(ValueError, match="'train' is none of podgroup/NAME"):
        Cluster.from_objects(SAVED).decide("train")
    groups = [gang(name, 1)[0] for name in ("a", "b")]
    for group in groups:
        group["spec"]["workloadRef"] = {"workloadName": "w", "templateName": "t"}
    with pytest.raises(ValueError, match="workload/w has 2 groups"):
        Cluster.from_objects(groups).diagnose("workload/w")


def test_job_without_pods_has_no_answer_yet() -> None:
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "new", "uid": "u",
           "namespace": "default"}}  # fmt: skip
    cluster = Cluster.from_objects([job])
    assert cluster.find("job/new") == []
    with pytest.raises(ObjectNotFound, match="has no pods and no pod groups yet"):
        cluster.diagnose("job/new")


def test_scheduler_configuration_is_obeyed() -> None:
    configuration = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{"plugins": {"filter": {"disabled": [{"name": "NodeUnschedulable"}]}}}],
    }
    cordoned = node("a")
    cordoned["spec"] = {"unschedulable": True}
    objects = [cordoned, pod("p")]
    assert isinstance(Cluster.from_objects(objects).decide("pod/p"), Waiting)
    obeying = Cluster.from_objects(objects, configuration=configuration)
    assert isinstance(obeying.decide("pod/p"), Placed)
    with pytest.raises(InvalidObject, match="KubeSchedulerConfiguration"):
        Cluster.from_objects([], configuration={"kind": "Other"})


# ---- hypothetical changes ------------------------------------------------------------------------


def test_changes_return_another_cluster_and_can_be_chained() -> None:
    cluster = Cluster.from_objects([*stored(node("a", cpu="4")), *stored(*gang("g", 2, cpu="3"))])
    assert cluster.forecast("podgroup/g")[0].verdict is ForecastVerdict.NEVER
    for changed in (
        cluster.with_nodes(1),
        cluster.with_nodes(1, like="a"),
        cluster.with_nodes(1, allocatable={"cpu": "3", "memory": "8Gi", "pods": "10"}),
        cluster.with_min_count("g", 1),
        cluster.with_nodes(2).without_node("a"),
        cluster.with_objects([node("b", cpu="4")]),
    ):
        assert changed.forecast("podgroup/g")[0].verdict is ForecastVerdict.FITS
    assert len(list(cluster.objects.nodes)) == 1


def test_changes_of_missing_objects_are_reported() -> None:
    cluster = Cluster.from_objects([])
    with pytest.raises(ObjectNotFound, match="no node to copy"):
        cluster.with_nodes(1)
    with pytest.raises(ObjectNotFound, match="no node a to copy"):
        cluster.with_nodes(1, like="a")
    with pytest.raises(ObjectNotFound, match="no node a to drain"):
        cluster.without_node("a")
    with pytest.raises(ObjectNotFound, match="no gang default/g"):
        cluster.with_min_count("g", 1)


def test_added_object_replaces_the_one_of_the_same_name() -> None:
    cluster = Cluster.from_objects(stored(node("a", cpu="4"), node("b", cpu="4")))
    changed = cluster.with_objects([node("a", cpu="8")])
    assert {one.metadata.name: one.status.allocatable["cpu"] for one in changed.objects.nodes} == {
        "a": "8",
        "b": "4",
    }
