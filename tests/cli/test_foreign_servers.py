"""Scheduler and controllers as processes beside a foreign server, in each form of its groups."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from phalanx.api.custom_resources.workload_definitions import workload_definitions
from phalanx.api.kinds import POD_GROUP, Kind
from phalanx.api.wire import Object
from phalanx.api.workload_sources import (
    COSCHEDULING_POD_GROUP,
    CUSTOM_POD_GROUP,
    POD_GROUP_LABEL,
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
        (COSCHEDULING_DEFINITION,),
        compat="scheduler-plugins",
        link=link_by_label("scheduling.x-k8s.io/pod-group"),
        has_topology=False,
    ),
    "volcano": Form(
        VOLCANO_POD_GROUP,
        NO_WORKLOAD_APIS,
        (VOLCANO_DEFINITION,),
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
