"""Rules of pods by their operating system, and of what they share with the host."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.kinds import POD
from phalanx.api.wire import Object
from tests.api.cause_summaries import CauseSummaries, prefix_summaries
from tests.api.stored_objects import creation_causes

MAIN: Object = {"name": "main", "image": "app:1"}
WINDOWS: Object = {"os": {"name": "windows"}}


def in_container(**context: Any) -> Object:
    return {"containers": [{**MAIN, "securityContext": context}]}


def windows_options(**options: Any) -> Object:
    return {"securityContext": {"windowsOptions": options}}


def sysctls(*names: str, **fields: Any) -> Object:
    listed = [{"name": name, "value": "1"} for name in names]
    return {"securityContext": {"sysctls": listed}, **fields}


def spec_causes(fields: Object) -> CauseSummaries:
    return creation_causes(POD, {"spec": {"containers": [dict(MAIN)], **fields}})


@pytest.mark.parametrize(
    ("fields", "causes"),
    [
        ({"os": {"name": "linux"}}, []),
        ({"os": {}}, ["os.name: Required"]),
        ({"os": {"name": "plan9"}}, ["os: NotSupported"]),
        (
            {"os": {"name": "linux"}, **windows_options(runAsUserName="me")},
            ["securityContext.windowsOptions: Forbidden"],
        ),
        (
            {"os": {"name": "linux"}, **in_container(windowsOptions={})},
            ["containers[0].securityContext.windowsOptions: Forbidden"],
        ),
        ({**WINDOWS, **windows_options(runAsUserName="me")}, []),
        ({**WINDOWS, "hostPID": True, "hostIPC": False}, ["hostPID: Forbidden"]),
        ({**WINDOWS, "hostUsers": True}, ["hostUsers: Forbidden"]),
        ({**WINDOWS, "shareProcessNamespace": False}, ["shareProcessNamespace: Forbidden"]),
        (
            {**WINDOWS, "securityContext": {"fsGroup": 0, "runAsUser": 1}},
            ["securityContext.fsGroup: Forbidden", "securityContext.runAsUser: Forbidden"],
        ),
        (
            {**WINDOWS, **in_container(privileged=False)},
            ["containers[0].securityContext.privileged: Forbidden"],
        ),
    ],
)
def test_a_pod_has_no_fields_of_another_operating_system(
    fields: Object, causes: CauseSummaries
) -> None:
    assert spec_causes(fields) == prefix_summaries("spec", causes)


@pytest.mark.parametrize(
    ("options", "causes"),
    [
        ({"gmsaCredentialSpecName": "a.b", "gmsaCredentialSpec": "{}"}, []),
        ({"gmsaCredentialSpecName": ""}, ["gmsaCredentialSpecName: Invalid"]),
        ({"gmsaCredentialSpec": ""}, ["gmsaCredentialSpec: Invalid"]),
        ({"gmsaCredentialSpec": "a" * 65_537}, ["gmsaCredentialSpec: Invalid"]),
        ({"runAsUserName": r"DOMAIN\a user"}, []),
        ({"runAsUserName": r"long-domain.example.com\user"}, []),
        ({"runAsUserName": ""}, ["runAsUserName: Invalid"]),
        ({"runAsUserName": "a\tb"}, ["runAsUserName: Invalid"]),
        ({"runAsUserName": r"a\b\c"}, ["runAsUserName: Invalid"]),
        ({"runAsUserName": r".domain\user"}, ["runAsUserName: Invalid"]),
        ({"runAsUserName": rf"{'a' * 256}\user"}, ["runAsUserName: Invalid"] * 2),
        ({"runAsUserName": "domain\\"}, ["runAsUserName: Invalid"]),
        ({"runAsUserName": "a" * 105}, ["runAsUserName: Invalid"]),
        ({"runAsUserName": ". ."}, ["runAsUserName: Invalid"]),
        ({"runAsUserName": "a@b"}, ["runAsUserName: Invalid"]),
    ],
)
def test_options_of_windows_are_validated(options: Object, causes: CauseSummaries) -> None:
    place = "spec.securityContext.windowsOptions"
    assert spec_causes(windows_options(**options)) == prefix_summaries(place, causes)
    place = "spec.containers[0].securityContext.windowsOptions"
    assert spec_causes(in_container(windowsOptions=options)) == prefix_summaries(place, causes)


HOST_PROCESS = {"windowsOptions": {"hostProcess": True}}
ON_HOST = {**MAIN, "name": "host", "securityContext": HOST_PROCESS}


@pytest.mark.parametrize(
    ("fields", "causes"),
    [
        ({"securityContext": HOST_PROCESS, "hostNetwork": True}, []),
        ({"securityContext": HOST_PROCESS}, ["spec.hostNetwork: Invalid"]),
        ({"containers": [ON_HOST], "hostNetwork": True}, []),
        ({"containers": [MAIN, ON_HOST], "hostNetwork": True}, ["spec: Invalid"]),
        (
            {
                "containers": [ON_HOST],
                "securityContext": {"windowsOptions": {"hostProcess": False}},
                "hostNetwork": True,
            },
            ["spec.containers[0].securityContext.windowsOptions.hostProcess: Invalid"],
        ),
    ],
)
def test_all_containers_are_processes_of_the_host_or_none(
    fields: Object, causes: CauseSummaries
) -> None:
    assert spec_causes(fields) == causes


@pytest.mark.parametrize(
    ("fields", "causes"),
    [
        (sysctls("net.ipv4.ip_forward", hostIPC=True), []),
        (
            sysctls("net.ipv4.ip_forward", "kernel.shm_rmid_forced", hostNetwork=True),
            ["securityContext.sysctls[0].name: Invalid"],
        ),
        (
            sysctls("net/ipv4/ip_forward", hostNetwork=True),
            ["securityContext.sysctls[0].name: Invalid"],
        ),
        (
            sysctls("kernel.sem", "kernel.sem_next_id", "fs.mqueue.msg_max", hostIPC=True),
            [f"securityContext.sysctls[{at}].name: Invalid" for at in (0, 2)],
        ),
        (sysctls("a.b", "a.b"), ["securityContext.sysctls[1].name: Duplicate"]),
        (sysctls("A B", "A B"), [f"securityContext.sysctls[{at}].name: Invalid" for at in (0, 1)]),
        (in_container(procMount="Default"), []),
        (
            in_container(procMount="Unmasked"),
            ["containers[0].securityContext.procMount: Invalid"],
        ),
        ({**in_container(procMount="Unmasked"), "hostUsers": False}, []),
    ],
)
def test_a_pod_changes_nothing_of_the_host(fields: Object, causes: CauseSummaries) -> None:
    assert spec_causes(fields) == prefix_summaries("spec", causes)


@pytest.mark.parametrize(
    ("profile", "causes"),
    [
        ("app", []),
        ("", ["Required"]),
        (" app", ["Invalid"]),
        ("a" * 4096, ["TooLong"]),
    ],
)
def test_the_name_of_an_apparmor_profile_is_validated(profile: str, causes: list[str]) -> None:
    context = {"appArmorProfile": {"type": "Localhost", "localhostProfile": profile}}
    place = "spec.securityContext.appArmorProfile.localhostProfile"
    assert spec_causes({"securityContext": context}) == [f"{place}: {one}" for one in causes]


@pytest.mark.parametrize(
    ("of_pod", "limits", "causes"),
    [
        ({"limits": {"cpu": "2"}}, {"cpu": "2"}, []),
        (
            {"requests": {"cpu": "4"}, "limits": {"cpu": "4"}},
            {"cpu": "5"},
            ["requests[cpu]: Invalid", "containers[0][cpu].limits: Invalid"],
        ),
        ({"limits": {"cpu": "2"}, "claims": [{"name": "a"}]}, {}, ["claims: Forbidden"]),
        (
            {"limits": {"cpu": "2", "hugepages-2Mi": "3Mi"}},
            {},
            ["limits[hugepages-2Mi]: Invalid", "requests[hugepages-2Mi]: Invalid"],
        ),
    ],
)
def test_resources_of_a_pod_cover_those_of_its_containers(
    of_pod: Object, limits: Object, causes: CauseSummaries
) -> None:
    containers = [{**MAIN, "resources": {"limits": limits}}]
    found = spec_causes({"containers": containers, "resources": of_pod})
    assert found == prefix_summaries("spec.resources", causes)


def test_a_pod_without_nameservers_has_no_other_cause_in_its_dns_configuration() -> None:
    fields = {"dnsPolicy": "None", "dnsConfig": {"options": [{}]}}
    assert spec_causes(fields) == ["spec.dnsConfig.nameservers: Required"]
