from __future__ import annotations

import pytest

from phalanx.api.wire import Object
from tests.api.cause_summaries import CauseSummaries, prefix_summaries
from tests.api.validation.test_pod_spec import container, create_causes, spec


def test_a_mount_does_not_find_an_invalid_volume() -> None:
    mounted = container(volumeMounts=[{"name": "v", "mountPath": "/v"}])
    volumes: list[Object] = [{"name": "v", "secret": {}}]
    assert create_causes({**mounted, "volumes": volumes}) == [
        "volumes[0].secret.secretName: Required",
        "containers[0].volumeMounts[0].name: NotFound",
    ]


@pytest.mark.parametrize(
    ("fields", "causes"),
    [
        (
            {"restartPolicy": "Never", "restartPolicyRules": [{"action": "Restart"}]},
            ["restartPolicyRules[0].exitCodes: Required"],
        ),
        (
            {
                "restartPolicy": "Never",
                "restartPolicyRules": [{"action": "Restart", "exitCodes": {}}],
            },
            ["restartPolicyRules[0].exitCodes.operator: NotSupported"],
        ),
        (
            {"restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In"}}]},
            ["restartPolicy: Required"],
        ),
        ({"resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}]}, []),
        ({"resizePolicy": [{}]}, ["resizePolicy: Required"]),
        (
            {"resizePolicy": [{"resourceName": "gpu", "restartPolicy": "NotRequired"}] * 2},
            ["resizePolicy[1]: Duplicate", "resizePolicy: NotSupported"],
        ),
        (
            {"securityContext": {"seccompProfile": {"type": "x", "localhostProfile": "p"}}},
            [
                "securityContext.seccompProfile.type: NotSupported",
                "securityContext.seccompProfile.localhostProfile: Invalid",
            ],
        ),
    ],
)  # fmt: skip
def test_restarts_and_resizes_of_a_container_are_checked(
    fields: Object, causes: CauseSummaries
) -> None:
    assert create_causes(container(**fields)) == prefix_summaries("containers[0]", causes)


def test_a_pod_that_never_restarts_is_resized_without_a_restart() -> None:
    policy = [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]
    made = {**container(resizePolicy=policy), "restartPolicy": "Never"}
    assert create_causes(made) == ["containers[0].resizePolicy: Invalid"]


def test_a_pod_with_users_of_its_own_has_no_namespaces_of_the_host() -> None:
    assert create_causes(spec(hostUsers=False, hostPID=True, hostNetwork=True)) == [
        "hostNetwork: Forbidden",
        "HostPID: Forbidden",
    ]
