"""The official Python client: its models, verbs, watches and discovery against the real server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client
from kubernetes.client import ApiException
from kubernetes.dynamic.resource import Resource

from tests.conformance.compacting_server import CompactingServer
from tests.conformance.official_client import (
    NOT_ROOT_CA,
    ROOT_CA,
    config_map,
    connected,
    discovered,
    version,
    watched,
)

MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"


def template(**spec: Any) -> client.V1PodTemplateSpec:
    container = client.V1Container(
        name="main", image="registry.example/main:1", command=["run"],
        env=[client.V1EnvVar(name="A", value="b")],
        resources=client.V1ResourceRequirements(requests={"cpu": "500m"}, limits={"cpu": "1"}),
    )  # fmt: skip
    return client.V1PodTemplateSpec(
        metadata=client.V1ObjectMeta(labels={"app": "x"}),
        spec=client.V1PodSpec(containers=[container], **spec),
    )


def meta(model: Any) -> Any:
    """The metadata of an object or a list; the server always sends it."""
    return model.metadata


def names(listed: Any) -> list[str]:
    return [item.metadata.name for item in listed.items]


def is_deleted_soon(function: Callable[..., Any], namespace: str, since: str) -> bool:
    """Whether an object that existed at a version is deleted soon."""
    while True:
        [(kind, found)] = watched(function, namespace, first=1, resource_version=since)
        if kind == "DELETED":
            return True
        since = version(found)


def refusal(error: ApiException) -> tuple[int | None, str]:
    """The code and the reason of the Status of a refusal."""
    status = json.loads(str(error.body))
    assert (status["kind"], status["code"]) == ("Status", error.status)
    return error.status, str(status["reason"])


@pytest.fixture
def core(api: client.ApiClient) -> client.CoreV1Api:
    return client.CoreV1Api(api)


# ---- models --------------------------------------------------------------------------------------


def test_the_version_is_served(api: client.ApiClient) -> None:
    found = client.VersionApi(api).get_code()
    assert (found.major, found.minor) == ("1", "37")
    assert found.git_version.startswith("v1.37.0")


def test_a_pod_goes_through_its_model_unchanged(core: client.CoreV1Api, namespace: str) -> None:
    gates = [client.V1PodSchedulingGate(name="example.com/held")]
    made = template(scheduling_gates=gates, node_selector={"a": "b"})
    body = client.V1Pod(metadata=client.V1ObjectMeta(name="a"), spec=made.spec)
    created = core.create_namespaced_pod(namespace, body)
    assert created.spec is not None
    assert made.spec is not None
    assert created.spec.containers[0].resources == made.spec.containers[0].resources
    assert (created.spec.node_selector, created.spec.scheduling_gates) == ({"a": "b"}, gates)
    assert created.status is not None
    assert created.status.phase == "Pending"
    found = core.read_namespaced_pod("a", namespace)
    assert found == created
    assert core.replace_namespaced_pod("a", namespace, found) == created


def test_a_job_goes_through_its_model_unchanged(api: client.ApiClient, namespace: str) -> None:
    batch = client.BatchV1Api(api)
    spec = client.V1JobSpec(
        parallelism=2, completions=2, completion_mode="Indexed", suspend=True,
        managed_by="example.com/other", template=template(restart_policy="Never"),
    )  # fmt: skip
    body = client.V1Job(metadata=client.V1ObjectMeta(name="a"), spec=spec)
    created = batch.create_namespaced_job(namespace, body)
    assert created.spec is not None
    assert (created.spec.backoff_limit, created.spec.completion_mode) == (6, "Indexed")
    assert batch.replace_namespaced_job("a", namespace, created) == created
    assert names(batch.list_namespaced_job(namespace)) == ["a"]


# ---- verbs ---------------------------------------------------------------------------------------


def test_a_list_is_read_whole_or_in_pages_of_one_revision(
    core: client.CoreV1Api, namespace: str
) -> None:
    for name in "abcde":
        core.create_namespaced_config_map(namespace, config_map(name))
    lists = core.list_namespaced_config_map
    first = lists(namespace, limit=2)
    core.delete_namespaced_config_map("e", namespace)
    second = lists(namespace, limit=2, _continue=meta(first)._continue)
    third = lists(namespace, limit=2, _continue=meta(second)._continue)
    pages = (first, second, third)
    assert [names(page) for page in pages] == [["a", "b"], ["c", "d"], ["e", ROOT_CA]]
    assert len({version(page) for page in pages}) == 1
    assert meta(first).remaining_item_count == 4
    assert names(lists(namespace)) == ["a", "b", "c", "d", ROOT_CA]


def test_the_second_of_two_writers_of_one_version_gets_a_conflict(
    core: client.CoreV1Api, namespace: str
) -> None:
    mine = core.create_namespaced_config_map(namespace, config_map("a", x="1"))
    theirs = core.read_namespaced_config_map("a", namespace)
    mine.data = {"x": "2"}
    theirs.data = {"x": "3"}
    core.replace_namespaced_config_map("a", namespace, mine)
    with pytest.raises(ApiException) as refused:
        core.replace_namespaced_config_map("a", namespace, theirs)
    assert refusal(refused.value) == (409, "Conflict")
    assert core.read_namespaced_config_map("a", namespace).data == {"x": "2"}


def test_a_patch_is_applied_by_its_content_type(core: client.CoreV1Api, namespace: str) -> None:
    core.create_namespaced_config_map(namespace, config_map("a", x="1", y="1"))
    merged = core.patch_namespaced_config_map(
        "a", namespace, {"data": {"x": None}}, _content_type=MERGE
    )
    assert merged.data == {"y": "1"}
    operations = [{"op": "add", "path": "/data/z", "value": "1"}]
    assert core.patch_namespaced_config_map("a", namespace, operations).data == {"y": "1", "z": "1"}
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "a"},
        "data": {"y": "2"},
    }
    apply: dict[str, Any] = {"field_manager": "me", "_content_type": APPLY}
    with pytest.raises(ApiException) as refused:
        core.patch_namespaced_config_map("a", namespace, config, **apply)
    assert refusal(refused.value) == (409, "Conflict")
    applied = core.patch_namespaced_config_map("a", namespace, config, force=True, **apply)
    assert applied.data == {"y": "2", "z": "1"}


def test_a_delete_with_a_uid_spares_a_recreated_object(
    core: client.CoreV1Api, namespace: str
) -> None:
    first = core.create_namespaced_config_map(namespace, config_map("a"))
    core.delete_namespaced_config_map("a", namespace)
    core.create_namespaced_config_map(namespace, config_map("a"))
    options = client.V1DeleteOptions(preconditions=client.V1Preconditions(uid=meta(first).uid))
    with pytest.raises(ApiException) as refused:
        core.delete_namespaced_config_map("a", namespace, body=options)
    assert refusal(refused.value) == (409, "Conflict")
    core.create_namespaced_config_map(namespace, config_map("b"))
    core.delete_collection_namespaced_config_map(namespace)
    # The controller of the root certificate creates its ConfigMap again.
    assert core.list_namespaced_config_map(namespace, field_selector=NOT_ROOT_CA).items == []
    with pytest.raises(ApiException) as gone:
        core.read_namespaced_config_map("a", namespace)
    assert refusal(gone.value) == (404, "NotFound")


def test_a_refusal_names_the_invalid_fields(core: client.CoreV1Api, namespace: str) -> None:
    spec = client.V1PodSpec(containers=[client.V1Container(name="A")], restart_policy="Sometimes")
    with pytest.raises(ApiException) as refused:
        core.create_namespaced_pod(
            namespace, client.V1Pod(metadata=client.V1ObjectMeta(name="a"), spec=spec)
        )
    assert refusal(refused.value) == (422, "Invalid")
    causes = json.loads(str(refused.value.body))["details"]["causes"]
    assert {"spec.containers[0].name", "spec.restartPolicy"} <= {cause["field"] for cause in causes}


def test_a_pod_is_evicted(core: client.CoreV1Api, namespace: str) -> None:
    pod = client.V1Pod(metadata=client.V1ObjectMeta(name="a"), spec=template().spec)
    made = core.create_namespaced_pod(namespace, pod)
    eviction = client.V1Eviction(metadata=client.V1ObjectMeta(name="a"))
    core.create_namespaced_pod_eviction("a", namespace, eviction)
    assert is_deleted_soon(core.list_namespaced_pod, namespace, version(made))


def test_a_pod_mounts_the_token_of_its_service_account(
    core: client.CoreV1Api, namespace: str
) -> None:
    account = client.V1ServiceAccount(
        metadata=client.V1ObjectMeta(name="robot"),
        image_pull_secrets=[client.V1LocalObjectReference(name="registry")],
    )
    core.create_namespaced_service_account(namespace, account)
    spec: Any = template().spec
    spec.service_account_name = "robot"
    pod = client.V1Pod(metadata=client.V1ObjectMeta(name="a"), spec=spec)
    made: Any = core.create_namespaced_pod(namespace, pod).spec
    (mount,) = made.containers[0].volume_mounts
    assert mount.mount_path == "/var/run/secrets/kubernetes.io/serviceaccount"
    (volume,) = made.volumes
    assert volume.name == mount.name
    assert volume.name.startswith("kube-api-access-")
    assert volume.projected.sources[0].service_account_token.path == "token"
    assert [secret.name for secret in made.image_pull_secrets] == ["registry"]
    spec.service_account_name = "absent"
    with pytest.raises(client.ApiException) as refused:
        core.create_namespaced_pod(
            namespace, client.V1Pod(metadata=client.V1ObjectMeta(name="b"), spec=spec)
        )
    assert refused.value.status == 403


# ---- watches -------------------------------------------------------------------------------------


def summary(event: tuple[str, Any]) -> tuple[str, str, dict[str, str] | None]:
    return event[0], event[1].metadata.name, event[1].data


def test_a_watch_resumes_at_its_revision(core: client.CoreV1Api, namespace: str) -> None:
    since = version(core.list_namespaced_config_map(namespace))
    core.create_namespaced_config_map(namespace, config_map("a", x="1"))
    core.patch_namespaced_config_map("a", namespace, {"data": {"x": "2"}})
    core.create_namespaced_config_map(namespace, config_map("b"))
    core.delete_namespaced_config_map("a", namespace)
    seen = []
    for _ in range(4):
        [event] = watched(
            core.list_namespaced_config_map, namespace, first=1, resource_version=since
        )
        seen.append(summary(event))
        since = version(event[1])
    assert seen == [
        ("ADDED", "a", {"x": "1"}), ("MODIFIED", "a", {"x": "2"}), ("ADDED", "b", None),
        ("DELETED", "a", {"x": "2"}),
    ]  # fmt: skip


def test_a_watch_without_a_revision_begins_with_the_current_objects(
    core: client.CoreV1Api, namespace: str
) -> None:
    for name in "ab":
        core.create_namespaced_config_map(namespace, config_map(name))
    events = watched(core.list_namespaced_config_map, namespace, first=2)
    assert [summary(event)[:2] for event in events] == [("ADDED", "a"), ("ADDED", "b")]


def test_a_watch_ends_when_its_time_is_over(core: client.CoreV1Api, namespace: str) -> None:
    lists, others = core.list_namespaced_config_map, NOT_ROOT_CA
    assert watched(lists, namespace, seconds=1, field_selector=others) == []


@pytest.fixture
def compacting_server(tmp_path: Path) -> Iterator[CompactingServer]:
    """A server whose history the test compacts."""
    found = CompactingServer(tmp_path)
    with found.running():
        yield found


def test_a_client_that_returns_too_late_lists_again(compacting_server: CompactingServer) -> None:
    with connected(compacting_server.kubeconfig) as api:
        core = client.CoreV1Api(api)
        lists = core.list_namespaced_config_map
        old = version(core.create_namespaced_config_map("default", config_map("a")))
        core.create_namespaced_config_map("default", config_map("b"))
        compacting_server.compact()
        with pytest.raises(ApiException) as refused:
            watched(lists, "default", resource_version=old)
        assert refused.value.status == 410
        listed = lists("default")
        assert names(listed) == ["a", "b"]
        core.delete_namespaced_config_map("a", "default")
        events = watched(lists, "default", first=1, resource_version=version(listed))
        assert [summary(event)[:2] for event in events] == [("DELETED", "a")]


def test_an_old_page_cannot_be_continued(compacting_server: CompactingServer) -> None:
    with connected(compacting_server.kubeconfig) as api:
        core = client.CoreV1Api(api)
        for name in "ab":
            core.create_namespaced_config_map("default", config_map(name))
        more = meta(core.list_namespaced_config_map("default", limit=1))._continue
        core.create_namespaced_config_map("default", config_map("c"))
        compacting_server.compact()
        with pytest.raises(ApiException) as refused:
            core.list_namespaced_config_map("default", limit=1, _continue=more)
        assert refusal(refused.value) == (410, "Expired")


# ---- discovery -----------------------------------------------------------------------------------


def test_kinds_that_the_client_has_no_model_for_are_discovered(
    api: client.ApiClient, namespace: str, tmp_path: Path
) -> None:
    found = discovered(api, tmp_path / "discovery.json")
    groups = found.resources.get(api_version="scheduling.k8s.io/v1beta1", kind="PodGroup")
    assert (groups.name, groups.namespaced) == ("podgroups", True)
    body = {
        "apiVersion": groups.group_version, "kind": groups.kind, "metadata": {"name": "a"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}},
    }  # fmt: skip
    made = groups.create(namespace=namespace, body=body)
    assert made.spec.schedulingPolicy.gang.minCount == 2
    change = {"spec": {"schedulingPolicy": {"gang": {"minCount": 3}}}}
    groups.patch(namespace=namespace, name="a", body=change, content_type=MERGE)
    assert groups.get(namespace=namespace, name="a").spec.schedulingPolicy.gang.minCount == 3
    labelled = {**body, "metadata": {"name": "a", "labels": {"x": "1"}}}
    del labelled["spec"]
    groups.server_side_apply(namespace=namespace, name="a", body=labelled, field_manager="me")
    assert [
        item.metadata.name for item in groups.get(namespace=namespace, label_selector="x").items
    ]
    groups.status.patch(
        namespace=namespace, name="a", content_type=MERGE,
        body={"status": {"conditions": [{
            "type": "Example", "status": "True", "reason": "Test", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]}},
    )  # fmt: skip
    assert groups.get(namespace=namespace, name="a").status.conditions[0].type == "Example"
    groups.delete(namespace=namespace, name="a")
    since = made.metadata.resourceVersion
    events = groups.watch(namespace=namespace, resource_version=since, timeout=10)
    assert "DELETED" in (event["type"] for event in events)


def test_every_kind_that_discovery_lists_can_be_listed(
    api: client.ApiClient, namespace: str, tmp_path: Path
) -> None:
    found = discovered(api, tmp_path / "discovery.json")
    every = [kind for rows in found.resources for kind in rows if type(kind) is Resource]
    kinds = [kind for kind in every if "list" in kind.verbs]
    assert {"Pod", "Job", "PodGroup", "Lease", "Node"} <= {kind.kind for kind in kinds}
    assert [kind.kind for kind in kinds if found.get(kind).kind != f"{kind.kind}List"] == []
