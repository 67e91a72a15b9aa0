"""Rules of the volumes of a pod and of their mounts."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.kinds import POD
from phalanx.api.wire import Object
from tests.api.cause_summaries import CauseSummaries, prefix_summaries
from tests.api.stored_objects import creation_causes


def create_causes(container: Object, **fields: Any) -> CauseSummaries:
    """The causes below `spec` of a new pod with one container."""
    containers = [{"name": "main", "image": "app:1", **container}]
    return [
        one.removeprefix("spec.")
        for one in creation_causes(POD, {"spec": {"containers": containers, **fields}})
    ]


@pytest.mark.parametrize(
    ("volume", "causes"),
    [
        ({"secret": {"secretName": "s"}, "emptyDir": {}}, ["secret: Forbidden"]),
        (
            {"image": {}, "nfs": {"server": "s", "path": "p"}},
            ["nfs.path: Invalid", "image: Forbidden"],
        ),
    ],
)
def test_the_first_source_is_checked_and_others_forbidden(
    volume: Object, causes: CauseSummaries
) -> None:
    found = create_causes({}, volumes=[{"name": "v", **volume}])
    assert found == prefix_summaries("volumes[0]", causes)


def named_file(path: str) -> Object:
    return {"items": [{"key": "k", "path": path}]}


@pytest.mark.parametrize(
    ("sources", "causes"),
    [
        ([{"secret": named_file("a")}, {"configMap": named_file("b")}], []),
        ([{"secret": named_file("a")}, {"configMap": named_file("a")}], ["projected: Invalid"]),
        ([{"secret": named_file("..a")}], ["projected.sources[0].secret.items[0].path: Invalid"]),
        ([{"serviceAccountToken": {"path": "/t"}}], ["projected.path: Invalid"]),
        ([{"serviceAccountToken": {"path": "..t"}}], ["projected.path: Invalid"]),
        ([{"serviceAccountToken": {"path": "t"}}, {"secret": named_file("t")}], []),
    ],
)
def test_projected_files_have_paths_of_their_own(
    sources: list[Object], causes: CauseSummaries
) -> None:
    volume = {"name": "v", "projected": {"sources": sources}}
    for source in sources:
        for kind in ("secret", "configMap"):
            source.get(kind, {}).setdefault("name", "x")
    found = create_causes({}, volumes=[volume], serviceAccountName="default")
    assert found == prefix_summaries("volumes[0]", causes)


def test_the_token_of_a_service_account_needs_one() -> None:
    sources = [{"serviceAccountToken": {"path": "t"}}]
    assert create_causes({}, volumes=[{"name": "v", "projected": {"sources": sources}}]) == [
        "volumes[0].projected.sources[0].serviceAccountToken: Forbidden"
    ]


VOLUMES = [{"name": "v", "emptyDir": {}}, {"name": "w", "emptyDir": {}}]
READ_ONLY = {"name": "v", "mountPath": "/v", "recursiveReadOnly": "Enabled"}


@pytest.mark.parametrize(
    ("fields", "causes"),
    [
        ({"volumeMounts": [{**READ_ONLY, "readOnly": True}]}, []),
        ({"volumeMounts": [READ_ONLY]}, ["volumeMounts.recursiveReadOnly: Forbidden"]),
        (
            {"volumeMounts": [{**READ_ONLY, "recursiveReadOnly": "IfPossible"}]},
            ["volumeMounts.recursiveReadOnly: Forbidden"],
        ),
        (
            {
                "volumeMounts": [
                    {**READ_ONLY, "readOnly": True, "mountPropagation": "HostToContainer"}
                ]
            },
            ["volumeMounts.recursiveReadOnly: Forbidden"],
        ),
        (
            {
                "volumeMounts": [
                    {"name": "v", "mountPath": "/v", "mountPropagation": "Bidirectional"}
                ]
            },
            ["volumeMounts.mountPropagation: Forbidden"],
        ),
        (
            {
                "volumeMounts": [
                    {"name": "v", "mountPath": "/v", "mountPropagation": "Bidirectional"}
                ],
                "securityContext": {"privileged": True},
            },
            [],
        ),
        ({"ports": [{"hostPort": 80}]}, ["ports[0].containerPort: Required"]),
    ],
)
def test_mounts_agree_with_their_container(fields: Object, causes: CauseSummaries) -> None:
    assert create_causes(fields, volumes=VOLUMES) == prefix_summaries("containers[0]", causes)


def test_a_port_of_the_host_network_without_a_number_is_refused() -> None:
    assert create_causes({"ports": [{"hostPort": 80}]}, hostNetwork=True) == [
        "containers[0].ports[0].containerPort: Required",
        "containers[0].ports[0].hostPort: Invalid",
    ]


def test_a_volume_is_mounted_or_a_device() -> None:
    container = {
        "volumeMounts": [{"name": "v", "mountPath": "/v"}],
        "volumeDevices": [{"name": "v", "devicePath": "/d"}, {"name": "w", "devicePath": "/v"}],
    }
    found = create_causes(container, volumes=VOLUMES)
    assert [one for one in found if "evices[" not in one] == [
        "containers[0].volumeMounts[0].name: Invalid",
        "containers[0].volumeMounts[0].mountPath: Invalid",
    ]
    assert "containers[0].volumeDevices[0].name: Invalid" in found
    assert "containers[0].volumeDevices[1].devicePath: Invalid" in found
