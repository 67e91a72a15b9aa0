"""Scheduler and controllers as processes beside a foreign server, in each form of its groups.

With $COMPAT_DEFINITIONS, a directory, the definitions of scheduler-plugins and Volcano are those of
these projects instead of the fields that we read: `scheduler-plugins/*podgroups.yaml` and
`volcano/*podgroups.yaml`.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from phalanx.api.custom_resources.workload_definitions import workload_definitions
from phalanx.api.kinds import POD_GROUP, Kind
from phalanx.api.wire import Object
from phalanx.api.workload_sources import (
    COSCHEDULING_POD_GROUP,
    CUSTOM_POD_GROUP,
    POD_GROUP_LABEL,
    POLICY_ANNOTATION,
    TOPOLOGY_KEY_ANNOTATION,
    VOLCANO_POD_GROUP,
)
from tests.cli.commands import (
    COMMAND_TIMEOUT,
    WAIT_LIMIT,
    Kubectl,
    first_line,
    start_component,
    start_up,
)
from tests.controllers.custom_groups import COSCHEDULING_DEFINITION, VOLCANO_DEFINITION

NO_WORKLOAD_APIS = "GenericWorkload=false,GroupBinding=false"
ZONE = "topology.kubernetes.io/zone"


@dataclass(frozen=True, slots=True)
class Form:
    """A form of a foreign server: its gates and definitions, and how gangs are written there."""

    kind: Kind
    gates: str
    definitions: tuple[Object, ...] = ()
    compat: str = ""
    #: How a pod names its group: a change of its manifest.
    link: Callable[[Object, str], None] = lambda pod, group: None
    has_topology: bool = True


def link_by_field(pod: Object, group: str) -> None:
    pod["spec"]["schedulingGroup"] = {"podGroupName": group}


def link_by_label(label: str) -> Callable[[Object, str], None]:
    return lambda pod, group: pod["metadata"].update(labels={label: group})


def link_by_annotation(pod: Object, group: str) -> None:
    pod["metadata"]["annotations"] = {"scheduling.k8s.io/group-name": group}


def compat_definition(project: str, own: Object) -> Object:
    """The definition of another project's PodGroup: its own one if there is a directory of them."""
    folder = os.environ.get("COMPAT_DEFINITIONS")
    files = sorted(Path(folder, project).glob("*podgroups.yaml")) if folder else []
    found = yaml.safe_load(files[0].read_text()) if files else None
    return found if isinstance(found, dict) else own


FORMS = {
    "workload APIs": Form(POD_GROUP, "GroupBinding=false", link=link_by_field),
    "custom resources": Form(
        CUSTOM_POD_GROUP,
        NO_WORKLOAD_APIS,
        tuple(workload_definitions()),
        link=link_by_label(POD_GROUP_LABEL),
    ),
    "scheduler-plugins": Form(
        COSCHEDULING_POD_GROUP,
        NO_WORKLOAD_APIS,
        (compat_definition("scheduler-plugins", COSCHEDULING_DEFINITION),),
        compat="scheduler-plugins",
        link=link_by_label("scheduling.x-k8s.io/pod-group"),
        has_topology=False,
    ),
    "volcano": Form(
        VOLCANO_POD_GROUP,
        NO_WORKLOAD_APIS,
        (compat_definition("volcano", VOLCANO_DEFINITION),),
        compat="volcano",
        link=link_by_annotation,
        has_topology=False,
    ),
}


def gang(
    form: Form, name: str, count: int, cpu: str, *, zone: bool = False, high: bool = False
) -> list[Object]:
    """A gang as it is written on such a server."""
    spec: Object = {"minMember": count}
    if not form.compat:
        spec = {"schedulingPolicy": {"gang": {"minCount": count}}}
        if zone:
            spec["schedulingConstraints"] = {"topology": [{"key": ZONE}]}
        if high and form.kind is POD_GROUP:
            spec["priorityClassName"] = "high"
    made: list[Object] = [
        {
            "apiVersion": form.kind.api_version,
            "kind": "PodGroup",
            "metadata": {"name": name},
            "spec": spec,
        }
    ]
    for number in range(count):
        container = {
            "name": "main",
            "image": "registry.example/main:1",
            "resources": {"requests": {"cpu": cpu}},
        }
        pod: Object = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"{name}-{number}"},
            "spec": {
                "schedulerName": "phalanx-scheduler",
                "terminationGracePeriodSeconds": 0,
                "containers": [container],
                **({"priorityClassName": "high"} if high else {}),
            },
        }
        form.link(pod, name)
        made.append(pod)
    return made


def gang_job(form: Form, name: str, count: int, cpu: str, *, zone: bool = False) -> list[Object]:
    """A Job of our controller whose pods are a gang, with its group where another project has it.

    Its pods end after a second.
    """
    group, pod, *_ = gang(form, name, count, cpu, zone=zone)
    meta: Object = {"annotations": {"phalanx.dev/run-seconds": "1"}}
    job: Object = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "managedBy": "phalanx.dev/job-controller",
            "parallelism": count,
            "completions": count,
            "completionMode": "Indexed",
            "template": {"metadata": meta, "spec": {**pod["spec"], "restartPolicy": "Never"}},
        },
    }
    if form.compat:
        meta["annotations"] |= pod["metadata"].get("annotations", {})
        meta["labels"] = pod["metadata"].get("labels", {})
        return [group, job]
    job["spec"]["template"]["spec"].pop("schedulingGroup", None)
    if form.kind is POD_GROUP:
        scheduling: Object = {"schedulingPolicy": {"gang": {}}}
        if zone:
            scheduling["schedulingConstraints"] = {"topology": [{"key": ZONE}]}
        job["spec"]["scheduling"] = scheduling
    else:
        given = {POLICY_ANNOTATION: "gang"} | ({TOPOLOGY_KEY_ANNOTATION: ZONE} if zone else {})
        job["metadata"]["annotations"] = given
    return [job]


@pytest.fixture(params=FORMS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Form, Kubectl]]:
    """A foreign server with four nodes of 4 CPU in two zones, our scheduler and controllers."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not on the PATH")
    form, config = FORMS[request.param], tmp_path / "kubeconfig"
    with ExitStack() as stack:
        up = stack.enter_context(
            start_up(
                "--data", ":memory:", "--without", "scheduler,controllers", "--nodes", "4",
                "--shape", "cpu=4", "--topology", "zone=2", "--feature-gates", form.gates,
                "--kubeconfig", str(config),
            )
        )  # fmt: skip
        assert first_line(up).startswith("ready")
        kubectl = Kubectl(config, "default", tmp_path)
        if form.definitions:
            kubectl.apply(*form.definitions)
        kubectl.apply(
            {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": "high"},
                "value": 1000,
            }
        )
        compat = ("--compat", form.compat) if form.compat else ()
        for name, options in (("scheduler", compat), ("controllers", ())):
            process = stack.enter_context(start_component(name, config, *options))
            assert first_line(process).startswith("ready")
        yield form, kubectl


def nodes_of(kubectl: Kubectl, prefix: str) -> list[str]:
    found = kubectl.get("pods")["items"]
    return sorted(
        one["spec"].get("nodeName", "")
        for one in found
        if one["metadata"]["name"].startswith(prefix)
    )


@pytest.mark.slow
@pytest.mark.timeout(4 * COMMAND_TIMEOUT)
def test_gangs_fit_wait_share_a_zone_and_preempt(server: tuple[Form, Kubectl]) -> None:
    form, kubectl = server
    kubectl.apply(*gang(form, "fits", 2, "3", zone=True))
    kubectl("wait", "--for=condition=Ready", "pod/fits-0", "pod/fits-1", WAIT_LIMIT)
    if form.has_topology:
        zones = {
            kubectl.get(f"node/{name}")["metadata"]["labels"][ZONE]
            for name in nodes_of(kubectl, "fits-")
        }
        assert len(zones) == 1
    kubectl.apply(*gang(form, "waits", 3, "3"))
    reason = "--for=jsonpath={.status.conditions[?(@.type=='PodScheduled')].status}=False"
    kubectl("wait", reason, "pod/waits-0", WAIT_LIMIT)
    assert nodes_of(kubectl, "waits-") == ["", "", ""]
    kubectl.apply(*gang(form, "first", 4, "3", high=True))
    members = [f"pod/first-{number}" for number in range(4)]
    kubectl("wait", "--for=condition=Ready", *members, WAIT_LIMIT)
    assert nodes_of(kubectl, "fits-") == []
    assert nodes_of(kubectl, "waits-") == ["", "", ""]


@pytest.mark.slow
@pytest.mark.timeout(4 * COMMAND_TIMEOUT)
def test_gang_jobs_wait_for_room_and_complete(server: tuple[Form, Kubectl]) -> None:
    form, kubectl = server
    blocker = gang(form, "blocker", 1, "3")
    kubectl.apply(*blocker)
    kubectl("wait", "--for=condition=Ready", "pod/blocker-0", WAIT_LIMIT)
    kubectl.apply(*gang_job(form, "all", 4, "3"))
    kubectl("wait", "--for=jsonpath={.status.active}=4", "job/all", WAIT_LIMIT)
    # The blocker leaves room for three of four.
    reason = "--for=jsonpath={.status.conditions[?(@.type=='PodScheduled')].status}=False"
    kubectl("wait", reason, "pod", "-l", "batch.kubernetes.io/job-name=all", WAIT_LIMIT)
    assert nodes_of(kubectl, "all-") == [""] * 4
    kubectl("delete", "pod", "blocker-0")
    kubectl("wait", "--for=condition=Complete", "job/all", WAIT_LIMIT)
    assert len(set(nodes_of(kubectl, "all-"))) == 4
    kubectl.apply(*gang_job(form, "zone", 2, "3", zone=True))
    kubectl("wait", "--for=condition=Complete", "job/zone", WAIT_LIMIT)
    if form.has_topology:
        zones = Counter(
            kubectl.get(f"node/{name}")["metadata"]["labels"][ZONE]
            for name in nodes_of(kubectl, "zone-")
        )
        assert list(zones.values()) == [2]
