"""The environment of TPU workers: host names of their group or subgroup, and their number."""

from __future__ import annotations

import pytest

from phalanx.api.wire import Object
from phalanx.server.leader_worker_set_pods import GroupPlace, add_tpu_variables

LEADER_HAS_TPUS = {"leaderworkerset.sigs.k8s.io/leader-requests-tpus": "true"}
TPUS = {"limits": {"google.com/tpu": "4"}}


def tpu_pod(
    name: str, annotations: Object | None = None, env: list[Object] | None = None
) -> Object:
    containers: list[Object] = [{"name": "proxy"}, {"name": "model", "resources": TPUS}]
    if env:
        containers[1]["env"] = env
    return {
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": {"containers": containers},
    }


def variables(pod: Object) -> dict[str, str]:
    return {one["name"]: one["value"] for one in pod["spec"]["containers"][1].get("env", ())}


@pytest.mark.parametrize(
    ("worker", "subgroup", "subgroup_size", "size", "has_leader", "hosts", "number"),
    [
        (2, 0, 0, 3, True, "l.d,l-1.d,l-2.d", "2"),
        (2, 0, 0, 3, False, "l-1.d,l-2.d", "1"),
        (0, 0, 0, 3, False, "l.d,l-1.d,l-2.d", "0"),
        (1, 0, 2, 4, True, "l.d,l-1.d", "1"),
        (3, 1, 2, 4, True, "l-2.d,l-3.d", "1"),
        (1, 0, 2, 5, False, "l-1.d,l-2.d", "0"),
        (4, 1, 2, 5, False, "l-3.d,l-4.d", "1"),
        (2, 0, 2, 5, True, "l.d,l-1.d,l-2.d", "2"),
        (3, 1, 2, 5, True, "l-3.d,l-4.d", "0"),
        (0, 0, 2, 4, False, "l.d,l-1.d", "0"),
    ],
)
def test_a_worker_knows_the_hosts_of_its_group_or_subgroup(
    *,
    worker: int,
    subgroup: int,
    subgroup_size: int,
    size: int,
    has_leader: bool,
    hosts: str,
    number: str,
) -> None:
    pod = tpu_pod("p", LEADER_HAS_TPUS if has_leader else None)
    place = GroupPlace(
        "l", "d", worker=worker, size=size, subgroup=subgroup, subgroup_size=subgroup_size
    )
    add_tpu_variables(pod, place)
    expected = {"TPU_WORKER_HOSTNAMES": hosts, "TPU_WORKER_ID": number, "TPU_NAME": "p"}
    assert variables(pod) == expected
    assert "env" not in pod["spec"]["containers"][0]


def test_variables_of_the_user_are_kept() -> None:
    pod = tpu_pod("p", env=[{"name": "TPU_WORKER_ID", "value": "7"}])
    add_tpu_variables(pod, GroupPlace("l", "d", worker=1, size=2))
    assert variables(pod) == {"TPU_WORKER_ID": "7"}


def test_a_pod_without_tpus_gets_no_variables() -> None:
    pod = tpu_pod("p")
    pod["spec"]["containers"][1]["resources"] = {"limits": {"google.com/tpu": "0"}}
    add_tpu_variables(pod, GroupPlace("l", "d", worker=1, size=2))
    assert variables(pod) == {}
