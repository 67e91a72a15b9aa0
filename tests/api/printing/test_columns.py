from __future__ import annotations

from typing import Any

import pytest

from phalanx.api.kinds import KINDS
from phalanx.api.printing.cells import format_duration
from phalanx.api.printing.columns import DEFAULT_COLUMNS, PRINTER_COLUMNS
from phalanx.api.wire import Object

NOW = 1_800_000_000.0
MADE = "2027-01-15T07:59:30Z"


def cells(kind: str, obj: Object) -> dict[str, Any]:
    meta = {"name": "a", "creationTimestamp": MADE, **obj.get("metadata", {})}
    columns = PRINTER_COLUMNS.get(kind, DEFAULT_COLUMNS)
    return {one.name: one.cell({**obj, "metadata": meta}, NOW) for one in columns}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "<invalid>"),
        (-1, "0s"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (150, "2m30s"),
        (599, "9m59s"),
        (600, "10m"),
        (3 * 3600 - 1, "179m"),
        (3 * 3600, "3h"),
        (3 * 3600 + 61, "3h1m"),
        (8 * 3600, "8h"),
        (48 * 3600 - 1, "47h"),
        (48 * 3600, "2d"),
        (50 * 3600, "2d2h"),
        (8 * 86400, "8d"),
        (700 * 86400, "700d"),
        (731 * 86400, "2y1d"),
        (3000 * 86400, "8y"),
    ],
)
def test_duration_is_formatted_as_kubectl_does(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_columns_belong_to_existing_kinds() -> None:
    assert set(PRINTER_COLUMNS) <= {kind.name for kind in KINDS}


@pytest.mark.parametrize("kind", [*PRINTER_COLUMNS, "Unknown"])
def test_minimal_object_has_all_cells(kind: str) -> None:
    shown = cells(kind, {})
    assert shown.get("Name", "a") == "a"
    assert shown.get("Age", "30s") == "30s"


@pytest.mark.parametrize(
    ("pod", "status"),
    [
        ({"status": {"phase": "Pending"}}, "Pending"),
        ({"status": {"phase": "Failed", "reason": "Evicted"}}, "Evicted"),
        ({"status": {"phase": "Running"}, "metadata": {"deletionTimestamp": MADE}}, "Terminating"),
        (
            {"status": {"phase": "Pending", "conditions": [
                {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]}},
            "SchedulingGated",
        ),
        (
            {"status": {"phase": "Succeeded", "containerStatuses": [
                {"state": {"terminated": {"reason": "Completed"}}}]}},
            "Completed",
        ),
        (
            {"status": {"phase": "Pending", "containerStatuses": [
                {"state": {"waiting": {"reason": "ImagePullBackOff"}}}]}},
            "ImagePullBackOff",
        ),
        (
            {"metadata": {"deletionTimestamp": MADE}, "status": {"phase": "Failed"}},
            "Failed",
        ),
        (
            {"metadata": {"deletionTimestamp": MADE},
             "status": {"phase": "Running", "reason": "NodeLost"}},
            "Unknown",
        ),
        (
            {"status": {"phase": "Failed", "containerStatuses": [
                {"state": {"terminated": {"exitCode": 3}}}]}},
            "ExitCode:3",
        ),
        (
            {"status": {"phase": "Failed", "containerStatuses": [
                {"state": {"terminated": {"exitCode": 137, "signal": 9}}}]}},
            "Signal:9",
        ),
        (
            {"status": {"phase": "Running", "containerStatuses": [
                {"state": {"terminated": {"reason": "Completed"}}},
                {"ready": True, "state": {"running": {}}}]}},
            "NotReady",
        ),
        (
            {"spec": {"initContainers": [{"name": "a"}, {"name": "b"}]},
             "status": {"phase": "Pending", "initContainerStatuses": [
                {"name": "a", "state": {"terminated": {"exitCode": 0}}},
                {"name": "b", "state": {"running": {}}}]}},
            "Init:1/2",
        ),
        (
            {"spec": {"initContainers": [{"name": "a"}]},
             "status": {"phase": "Pending", "initContainerStatuses": [
                {"name": "a", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}},
            "Init:CrashLoopBackOff",
        ),
        ({}, ""),
    ],
)  # fmt: skip
def test_pod_shows_its_status(pod: Object, status: str) -> None:
    assert cells("Pod", pod)["Status"] == status


def test_pod_shows_its_node_and_ready_containers() -> None:
    running: Object = {"running": {}}
    ready = [
        {"ready": True, "restartCount": 2, "state": running},
        {"ready": False, "restartCount": 1, "state": running},
    ]
    shown = cells("Pod", {
        "spec": {"nodeName": "n1", "containers": [{}, {}],
                 "readinessGates": [{"conditionType": "x"}, {"conditionType": "y"}]},
        "status": {"containerStatuses": ready, "podIP": "10.0.0.1",
                   "conditions": [{"type": "x", "status": "True"}]},
    })  # fmt: skip
    assert (shown["Ready"], shown["Restarts"], shown["Node"]) == ("1/2", "3", "n1")
    assert (shown["IP"], shown["Readiness Gates"]) == ("10.0.0.1", "1/2")
    assert shown["Nominated Node"] == "<none>"


def test_sidecars_of_a_pod_count_as_containers() -> None:
    lasting = {"name": "proxy", "restartPolicy": "Always"}
    spec = {"initContainers": [{"name": "setup"}, lasting], "containers": [{"name": "main"}]}
    assert cells("Pod", {"spec": spec})["Ready"] == "0/2"
    statuses = [
        {"name": "setup", "restartCount": 4, "state": {"terminated": {"exitCode": 0}}},
        {"name": "proxy", "restartCount": 1, "started": True, "ready": True,
         "state": {"running": {}},
         "lastState": {"terminated": {"exitCode": 1, "finishedAt": MADE}}},
    ]  # fmt: skip
    main = {"name": "main", "ready": True, "state": {"running": {}}}
    status = {
        "phase": "Running",
        "initContainerStatuses": statuses,
        "containerStatuses": [main],
    }
    shown = cells("Pod", {"spec": spec, "status": status})
    # The restarts of containers that have finished their work are not counted.
    assert (shown["Ready"], shown["Status"]) == ("2/2", "Running")
    assert shown["Restarts"] == "1 (30s ago)"


@pytest.mark.parametrize(
    ("group", "status"),
    [
        ([], "Pending"),
        ([("PodGroupInitiallyScheduled", "True", "Scheduled")], "Scheduled"),
        ([("PodGroupInitiallyScheduled", "False", "Unschedulable")], "Unschedulable"),
        ([("PodGroupInitiallyScheduled", "True", "Scheduled"),
          ("DisruptionTarget", "True", "PreemptionByScheduler")], "PreemptionByScheduler"),
    ],
)  # fmt: skip
def test_pod_group_shows_its_scheduling_status(group: list[tuple[str, ...]], status: str) -> None:
    conditions = [dict(zip(("type", "status", "reason"), row, strict=True)) for row in group]
    gang = {"spec": {"schedulingPolicy": {"gang": {"minCount": 2}}}}
    shown = cells("PodGroup", {**gang, "status": {"conditions": conditions}})
    assert (shown["Policy"], shown["Status"], shown["Workload"]) == ("Gang", status, "<none>")
    assert cells("PodGroup", {})["Policy"] == "Basic"


def test_a_composite_pod_group_shows_its_policy_and_its_workload() -> None:
    reference = {"workloadName": "train", "templateName": "root"}
    policy = {"gang": {"minGroupCount": 2}}
    spec = {"schedulingPolicy": policy, "workloadRef": reference}
    shown = cells("CompositePodGroup", {"spec": spec})
    assert shown == {"Name": "a", "Policy": "Gang", "Workload": "train", "Age": "30s"}


@pytest.mark.parametrize(
    ("node", "status"),
    [
        ({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, "Ready"),
        ({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}, "NotReady"),
        ({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}, "NotReady"),
        ({"spec": {"unschedulable": True}}, "Unknown,SchedulingDisabled"),
    ],
)
def test_a_node_shows_whether_it_is_ready(node: Object, status: str) -> None:
    assert cells("Node", node)["Status"] == status


def test_a_node_shows_its_roles_and_addresses() -> None:
    role = "node-role.kubernetes.io/"
    shown = cells("Node", {
        "metadata": {"labels": {f"{role}worker": "", f"{role}control-plane": "", "other": "x"}},
        "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
                   "nodeInfo": {"kubeletVersion": "v1"}},
    })  # fmt: skip
    assert (shown["Roles"], shown["Version"]) == ("control-plane,worker", "v1")
    assert (shown["Internal-IP"], shown["External-IP"]) == ("10.0.0.1", "<none>")


def test_event_shows_object_message_and_age() -> None:
    shown = cells("Event", {
        "type": "Warning", "reason": "FailedScheduling", "message": "no room", "count": 3,
        "involvedObject": {"kind": "Pod", "name": "p"}, "source": {"component": "s", "host": "h"},
        "firstTimestamp": "2027-01-15T07:00:00Z", "lastTimestamp": "2027-01-15T07:59:00Z",
    })  # fmt: skip
    assert (shown["Object"], shown["Source"], shown["Count"]) == ("pod/p", "s, h", 3)
    assert (shown["Last Seen"], shown["First Seen"]) == ("60s", "60m")


def test_event_age_falls_back_to_the_event_time() -> None:
    assert cells("Event", {"eventTime": "2027-01-15T07:59:50.000000Z"})["Last Seen"] == "10s"
    assert cells("Event", {})["First Seen"] == "<unknown>"


def test_config_map_shows_its_number_of_keys() -> None:
    shown = cells("ConfigMap", {"data": {"a": "b", "c": "d"}, "binaryData": {"e": "Zg=="}})
    assert shown["Data"] == 3


@pytest.mark.parametrize(
    ("conditions", "deleting", "status"),
    [
        ([], False, "Running"),
        (["Suspended"], False, "Suspended"),
        (["FailureTarget"], False, "FailureTarget"),
        (["SuccessCriteriaMet", "Complete"], False, "Complete"),
        (["FailureTarget", "Failed"], True, "Failed"),
        (["Suspended"], True, "Terminating"),
    ],
)
def test_job_shows_its_status(conditions: list[str], deleting: bool, status: str) -> None:
    meta = {"deletionTimestamp": MADE} if deleting else {}
    true = [{"type": kind, "status": "True"} for kind in conditions]
    assert cells("Job", {"metadata": meta, "status": {"conditions": true}})["Status"] == status


@pytest.mark.parametrize(
    ("job", "completions", "took"),
    [
        ({"spec": {"completions": 4}, "status": {"succeeded": 1}}, "1/4", ""),
        ({"spec": {"parallelism": 3}, "status": {"startTime": MADE}}, "0/1 of 3", "30s"),
        ({"spec": {"parallelism": 1},
          "status": {"startTime": "2027-01-15T07:00:00Z", "completionTime": MADE}}, "0/1", "59m"),
    ],
)  # fmt: skip
def test_job_shows_completions_and_duration(job: Object, completions: str, took: str) -> None:
    shown = cells("Job", job)
    assert (shown["Completions"], shown["Duration"]) == (completions, took)


def test_pod_template_shows_its_containers() -> None:
    pods = {"containers": [{"name": "a", "image": "x:1"}, {"name": "b", "image": "y:2"}]}
    labels = {"metadata": {"labels": {"app": "z"}}}
    shown = cells("PodTemplate", {"template": {**labels, "spec": pods}})
    assert (shown["Containers"], shown["Images"], shown["Pod Labels"]) == (
        "a,b",
        "x:1,y:2",
        "app=z",
    )
    selector = {"selector": {"matchLabels": {"a": "b"}}}
    shown = cells("Job", {"spec": {"template": {"spec": pods}, **selector}})
    assert (shown["Containers"], shown["Images"], shown["Selector"]) == ("a,b", "x:1,y:2", "a=b")


def test_a_cron_job_shows_when_it_last_ran() -> None:
    spec = {"schedule": "@daily", "suspend": False}
    shown = cells("CronJob", {"spec": spec, "status": {"active": [{}], "lastScheduleTime": MADE}})
    assert (shown["Schedule"], shown["Timezone"], shown["Suspend"]) == ("@daily", "<none>", "False")
    assert (shown["Active"], shown["Last Schedule"]) == (1, "30s")
    assert cells("CronJob", {})["Last Schedule"] == "<none>"


@pytest.mark.parametrize(
    ("service", "outside", "ports"),
    [
        ({"spec": {"ports": [{"port": 80, "protocol": "TCP"}]}}, "<none>", "80/TCP"),
        ({"spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": 30000}, {"port": 1}]}},
         "<none>", "80:30000/TCP,1/TCP"),
        ({"spec": {"type": "LoadBalancer"}}, "<pending>", "<none>"),
        ({"spec": {"type": "LoadBalancer", "externalIPs": ["10.0.0.9"]},
          "status": {"loadBalancer": {"ingress": [{"ip": "10.0.0.1"}, {"hostname": "lb"}]}}},
         "10.0.0.1,lb,10.0.0.9", "<none>"),
        ({"spec": {"type": "ExternalName", "externalName": "db"}}, "db", "<none>"),
    ],
)  # fmt: skip
def test_service_shows_addresses_and_ports(service: Object, outside: str, ports: str) -> None:
    shown = cells("Service", service)
    assert (shown["External-IP"], shown["Port(s)"]) == (outside, ports)


def test_persistent_volume_shows_its_claim() -> None:
    modes = ["ReadWriteMany", "ReadWriteOnce", "ReadWriteOnce"]
    spec = {"accessModes": modes, "claimRef": {"namespace": "n", "name": "c"}}
    shown = cells("PersistentVolume", {"spec": spec, "status": {"phase": "Bound"}})
    assert (shown["Access Modes"], shown["Claim"], shown["Status"]) == ("RWO,RWX", "n/c", "Bound")
    gone = cells("PersistentVolumeClaim", {"metadata": {"deletionTimestamp": MADE}})
    assert (gone["Status"], gone["VolumeMode"]) == ("Terminating", "<unset>")


def test_a_claim_shows_its_capacity_once_it_names_a_volume() -> None:
    status = {"phase": "Pending", "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]}
    unbound = cells("PersistentVolumeClaim", {"status": status})
    assert (unbound["Capacity"], unbound["Access Modes"]) == ("", "")
    bound = cells("PersistentVolumeClaim", {"spec": {"volumeName": "v"}, "status": status})
    assert (bound["Capacity"], bound["Access Modes"]) == ("1Gi", "RWO")
    old = {"annotations": {"volume.beta.kubernetes.io/storage-class": "fast"}}
    assert cells("PersistentVolumeClaim", {"metadata": old})["StorageClass"] == "fast"


def test_an_event_shows_its_object_source_and_count() -> None:
    event: Object = {
        "involvedObject": {"kind": "Pod"}, "source": {"component": "kubelet"},
        "reportingInstance": "n1", "message": " started\n", "series": {"count": 4}, "count": 9,
    }  # fmt: skip
    shown = cells("Event", event)
    assert (shown["Object"], shown["Source"]) == ("pod", "kubelet, n1")
    assert (shown["Message"], shown["Count"]) == ("started", 4)


def test_an_ingress_and_a_certificate_request_show_their_state() -> None:
    rules = [{"host": name} for name in "abcd"]
    assert cells("Ingress", {"spec": {"rules": rules}})["Hosts"] == "a,b,c + 1 more..."
    failed = {"status": {"conditions": [{"type": "Failed"}]}}
    assert cells("CertificateSigningRequest", failed)["Condition"] == "Pending,Failed"


def test_resource_quota_shows_usage() -> None:
    status = {"hard": {"pods": "9", "cpu": "4", "limits.cpu": "8"}, "used": {"cpu": "1"}}
    shown = cells("ResourceQuota", {"status": status})
    assert (shown["Request"], shown["Limit"]) == ("cpu: 1/4, pods: 0/9", "limits.cpu: 0/8")


def test_role_binding_shows_its_subjects() -> None:
    subjects = [
        {"kind": "User", "name": "me"},
        {"kind": "ServiceAccount", "name": "a", "namespace": "n"},
    ]
    shown = cells("RoleBinding", {"roleRef": {"kind": "Role", "name": "r"}, "subjects": subjects})
    assert (shown["Role"], shown["Users"], shown["ServiceAccounts"]) == ("Role/r", "me", "n/a")


@pytest.mark.parametrize(
    ("claim", "state"),
    [
        ({}, "pending"),
        ({"status": {"allocation": {}}}, "allocated"),
        ({"status": {"allocation": {}, "reservedFor": [{}]}}, "allocated,reserved"),
        ({"metadata": {"deletionTimestamp": MADE}}, "deleted"),
    ],
)
def test_resource_claim_shows_its_state(claim: Object, state: str) -> None:
    assert cells("ResourceClaim", claim)["State"] == state


def test_storage_class_shows_whether_it_is_the_default() -> None:
    annotations = {"storageclass.kubernetes.io/is-default-class": "true"}
    assert (
        cells("StorageClass", {"metadata": {"annotations": annotations}})["Name"] == "a (default)"
    )
    assert cells("StorageClass", {"provisioner": "p"})["Name"] == "a"


def test_drivers_and_attachments_show_their_specs() -> None:
    spec = {"tokenRequests": [{"audience": "x"}, {"audience": "y"}], "volumeLifecycleModes": ["P"]}
    shown = cells("CSIDriver", {"spec": spec})
    assert (shown["TokenRequests"], shown["Modes"]) == ("x,y", "P")
    attached = {"spec": {"source": {"persistentVolumeName": "v"}}, "status": {"attached": True}}
    shown = cells("VolumeAttachment", attached)
    assert (shown["PV"], shown["Attached"]) == ("v", True)


def test_stateful_set_shows_ready_pods_and_revision_its_controller() -> None:
    shown = cells("StatefulSet", {"spec": {"replicas": 3}, "status": {"readyReplicas": 2}})
    assert shown["Ready"] == "2/3"
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "controller": True}
    meta = {"ownerReferences": [{"kind": "X", "name": "x"}, owner]}
    assert cells("ControllerRevision", {"metadata": meta})["Controller"] == "statefulset.apps/web"
    core = {"ownerReferences": [{**owner, "apiVersion": "v1", "kind": "Pod", "name": "p"}]}
    assert cells("ControllerRevision", {"metadata": core})["Controller"] == "pod/p"
