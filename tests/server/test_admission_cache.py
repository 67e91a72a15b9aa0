"""The admission cache: a cached pod equals a pod that took the full path."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from phalanx.api.kinds import (
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    LIMIT_RANGE,
    NAMESPACE,
    POD,
    PRIORITY_CLASS,
    RESOURCE_CLAIM,
    RESOURCE_QUOTA,
)
from phalanx.api.wire import Object, Reply, Request, UserInfo
from phalanx.server.admission_cache import MAX_CACHED_OBJECTS
from phalanx.server.security.authorization import ADMIN
from tests.builders import in_virtual_time
from tests.server.api import Api, ApiResponse

PODS = POD.url_path("default")
CONTAINER: Object = {
    "name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}},
}  # fmt: skip
SPEC: Object = {"containers": [CONTAINER], "schedulingGroup": {"podGroupName": "g"}}
UNIQUE_METADATA = ("name", "uid", "creationTimestamp", "resourceVersion")


def body(name: str, spec: Object = SPEC, **meta: Any) -> bytes:
    return orjson.dumps({"metadata": {"name": name, "labels": {"a": "b"}, **meta}, "spec": spec})


async def post_pod(api: Api, name: str, spec: Object = SPEC, **meta: Any) -> ApiResponse:
    return await api.ask("POST", PODS, body(name, spec, **meta))


async def create_pod(api: Api, name: str, spec: Object = SPEC) -> Object:
    answer = await post_pod(api, name, spec)
    assert answer.code == 201, answer.body
    return answer.body


def cached_pods(api: Api) -> int:
    return len(api.server.context.admission_cache._admitted)


def common_part(pod: Object) -> Object:
    """A pod without the fields that differ for equal pods created at different times."""
    meta = {key: value for key, value in pod["metadata"].items() if key not in UNIQUE_METADATA}
    meta["managedFields"] = [{**entry, "time": ""} for entry in meta["managedFields"]]
    return {**pod, "metadata": meta}


@in_virtual_time
async def test_a_cached_pod_equals_a_pod_that_took_the_full_path() -> None:
    api, other = await Api.start(), await Api.start()
    first = await create_pod(api, "first")
    await asyncio.sleep(7)
    second, alone = await create_pod(api, "second"), await create_pod(other, "second")
    assert common_part(second) == common_part(alone) == common_part(first)
    assert second["metadata"]["name"] == "second"
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    assert second["metadata"]["creationTimestamp"] == "2027-01-15T08:00:07Z"
    assert second["metadata"]["managedFields"][0]["time"] == "2027-01-15T08:00:07Z"
    assert await api.get(POD, "second") == second
    assert cached_pods(api) == 1


@in_virtual_time
async def test_pods_of_different_groups_share_one_cache_entry() -> None:
    api, other = await Api.start(), await Api.start()
    specs = [{**SPEC, "schedulingGroup": {"podGroupName": f"g{n}"}} for n in range(3)]
    pods = [await create_pod(api, f"p{n}", spec) for n, spec in enumerate(specs)]
    assert [pod["spec"]["schedulingGroup"] for pod in pods] == [
        spec["schedulingGroup"] for spec in specs
    ]
    assert common_part(pods[2]) == common_part(await create_pod(other, "alone", specs[2]))
    assert cached_pods(api) == 1
    for group in ("", "Not.A.Name", "a" * 300):
        spec = {**SPEC, "schedulingGroup": {"podGroupName": group}}
        assert (await post_pod(api, "x", spec)).code == 422, group


def uses_volume(claim: str) -> Object:
    scratch: Object = {"name": "scratch", "emptyDir": {}}
    data: Object = {"name": "data", "persistentVolumeClaim": {"claimName": claim}}
    return {**SPEC, "volumes": [scratch, data]}


def uses_device(claim: str) -> Object:
    return {**SPEC, "resourceClaims": [{"name": "gpu", "resourceClaimName": claim}]}


@pytest.mark.parametrize("uses", [uses_volume, uses_device])
@in_virtual_time
async def test_pods_with_one_claim_each_share_one_cache_entry(
    uses: Callable[[str], Object],
) -> None:
    api, other = await Api.start(), await Api.start()
    first = await create_pod(api, "p0", uses("c0"))
    second, alone = (
        await create_pod(api, "p1", uses("c1")),
        await create_pod(other, "p1", uses("c1")),
    )
    assert common_part(second) == common_part(alone)
    assert common_part(first) == common_part(await create_pod(other, "p0", uses("c0")))
    assert cached_pods(api) == 1


@in_virtual_time
async def test_a_pod_with_claims_for_a_device_and_a_volume_is_not_cached() -> None:
    api = await Api.start()
    await create_pod(api, "p", {**uses_volume("c"), **uses_device("c")})
    assert cached_pods(api) == 0


@in_virtual_time
async def test_a_pod_group_name_in_an_annotation_is_not_replaced() -> None:
    api = await Api.start()
    for value in ("x", "y"):
        answer = await post_pod(api, f"p-{value}", annotations={"podGroupName": value})
        assert answer.body["metadata"]["annotations"] == {"podGroupName": value}
        plain = {"containers": [CONTAINER]}
        answer = await post_pod(api, f"q-{value}", plain, annotations={"podGroupName": value})
        assert answer.body["metadata"]["annotations"] == {"podGroupName": value}
    assert cached_pods(api) == 0


@in_virtual_time
async def test_taken_and_invalid_names_are_refused() -> None:
    api = await Api.start()
    await create_pod(api, "first")
    for name, code in (("first", 409), ("Second", 422), ("a.b", 201), ("a" * 254, 422)):
        assert (await post_pod(api, name)).code == code, name


@in_virtual_time
async def test_a_quota_counts_cached_pods() -> None:
    api = await Api.start()
    quota = {"metadata": {"name": "q", "namespace": "default"}, "spec": {"hard": {"pods": "2"}}}
    await api.create(RESOURCE_QUOTA, quota)
    codes = [(await post_pod(api, f"p{n}")).code for n in range(4)]
    assert codes == [201, 201, 403, 403]


@in_virtual_time
async def test_a_new_limit_range_applies_to_the_next_pod() -> None:
    api = await Api.start()
    await create_pod(api, "first")
    meta = {"name": "l", "namespace": "default"}
    limits = [{"type": "Container", "max": {"cpu": "1"}}]
    await api.create(LIMIT_RANGE, {"metadata": meta, "spec": {"limits": limits}})
    assert (await post_pod(api, "second")).code == 403


@in_virtual_time
async def test_a_new_default_priority_class_applies_to_the_next_pod() -> None:
    api = await Api.start()
    assert (await create_pod(api, "first"))["spec"]["priority"] == 0
    top = {"metadata": {"name": "top"}, "value": 9, "globalDefault": True}
    await api.create(PRIORITY_CLASS, top)
    assert (await create_pod(api, "second"))["spec"]["priority"] == 9


@in_virtual_time
async def test_a_terminating_namespace_refuses_cached_pods() -> None:
    api = await Api.start()
    await api.create(NAMESPACE, {"metadata": {"name": "going"}})
    path = POD.url_path("going")
    assert (await api.ask("POST", path, body("first"))).code == 201
    await api.delete(NAMESPACE, "going")
    assert (await api.ask("POST", path, body("second"))).code == 403


@in_virtual_time
async def test_every_request_with_an_unknown_field_gets_a_warning() -> None:
    api = await Api.start()
    for name in ("first", "second"):
        answer = await post_pod(api, name, {**SPEC, "odd": 1})
        assert [text for text in answer.header_values("warning") if "spec.odd" in text], name
    doubled = body("third").replace(b'"metadata":{', b'"metadata":{"name":"x",')
    assert (await api.ask("POST", PODS, doubled)).body["metadata"]["name"] == "third"
    assert cached_pods(api) == 0


@in_virtual_time
async def test_the_name_of_a_nested_object_is_not_taken_for_the_name_of_the_pod() -> None:
    api = await Api.start()
    for inner in ("x", "y"):
        inside = b'{"spec":{"v":{"metadata":{"name":"%b"}},"containers":[]},' % inner.encode()
        answer = await api.ask("POST", PODS, inside + b'"metadata":{"name":"p"}}')
        assert answer.code == 422, answer.body
    assert cached_pods(api) == 0


@in_virtual_time
async def test_each_field_manager_owns_the_fields_that_it_wrote() -> None:
    api = await Api.start()
    for agent in ("one", "two"):
        headers = {"user-agent": f"{agent}/1.0"}
        answer = await api.ask("POST", PODS, body(agent), headers=headers)
        assert answer.body["metadata"]["managedFields"][0]["manager"] == agent


@in_virtual_time
async def test_an_unauthorized_user_is_refused_although_the_pod_is_cached() -> None:
    api = await Api.start()
    await create_pod(api, "first")
    assert (await api.ask("POST", PODS, body("second"), user=UserInfo("joe"))).code == 403


@pytest.mark.parametrize(
    ("spec", "meta"),
    [
        ({**SPEC, "schedulingGates": [{"name": "g"}]}, {}),
        (SPEC, {"ownerReferences": [
            {"apiVersion": "v1", "kind": "Pod", "name": "o", "uid": "u"},
        ]}),
    ],
    ids=["a condition with a timestamp", "owners, which need permissions"],
)  # fmt: skip
@in_virtual_time
async def test_pods_whose_result_may_differ_are_not_cached(spec: Object, meta: Object) -> None:
    api = await Api.start()
    assert (await post_pod(api, "first", spec, **meta)).code == 201
    assert cached_pods(api) == 0


@in_virtual_time
async def test_only_the_latest_entries_are_kept() -> None:
    api = await Api.start()
    for number in range(MAX_CACHED_OBJECTS + 10):
        await create_pod(api, f"p{number}", {**SPEC, "hostname": f"h{number}"})
    assert cached_pods(api) == MAX_CACHED_OBJECTS


@in_virtual_time
async def test_a_dry_run_of_a_cached_pod_stores_nothing() -> None:
    api = await Api.start()
    await create_pod(api, "first")
    assert (await api.ask("POST", PODS, body("second"), query={"dryRun": "All"})).code == 201
    assert (await api.ask("GET", f"{PODS}/second")).code == 404


# ---- claims of one template ----------------------------------------------------------------------

CLAIMS = RESOURCE_CLAIM.url_path("default")
UID = "0a1b2c3d-0000-4000-8000-00000000000"


def claim_body(number: int, **owner: Any) -> bytes:
    reference = {"apiVersion": "v1", "kind": "Pod", "name": f"p{number}", "uid": f"{UID}{number}"}
    return orjson.dumps({
        "metadata": {
            "name": f"p{number}-gpu-x",
            "generateName": f"p{number}-gpu-",
            "annotations": {"resource.kubernetes.io/pod-claim-name": "gpu"},
            "ownerReferences": [{**reference, "controller": True, **owner}],
        },
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]}},
    })  # fmt: skip


@in_virtual_time
async def test_a_cached_claim_equals_a_claim_that_took_the_full_path() -> None:
    api, other = await Api.start(), await Api.start()
    await api.ask("POST", CLAIMS, claim_body(1))
    await asyncio.sleep(7)
    second = (await api.ask("POST", CLAIMS, claim_body(2))).body
    alone = (await other.ask("POST", CLAIMS, claim_body(2))).body
    assert common_part(second) == common_part(alone)
    assert second["metadata"]["name"] == "p2-gpu-x"
    assert second["metadata"]["creationTimestamp"] == "2027-01-15T08:00:07Z"
    assert f'k:{{"uid":"{UID}2"}}' in str(second["metadata"]["managedFields"])
    assert await api.get(RESOURCE_CLAIM, "p2-gpu-x") == second
    assert cached_pods(api) == 1


@in_virtual_time
async def test_claims_that_the_controller_does_not_create_are_not_cached() -> None:
    api = await Api.start()
    bodies = [
        claim_body(1, blockOwnerDeletion=True),
        claim_body(2, name="Not.A.Name"),
        claim_body(3).replace(b'"name":"p3-gpu-x"', b'"name":"p3_"'),
        claim_body(4).replace(b'"name":"r"', b'"name":"r","name":"r"'),
        claim_body(5)[:-1],
    ]
    codes = [(await api.ask("POST", CLAIMS, one)).code for one in bodies]
    assert codes == [201, 201, 422, 201, 400]
    assert cached_pods(api) == 0


@in_virtual_time
async def test_a_cached_claim_with_admin_access_follows_the_label_of_its_namespace() -> None:
    api = await Api.start()
    allowed = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
    await api.patch(NAMESPACE, "default", allowed)
    admin = (b'"deviceClassName":"gpu"', b'"deviceClassName":"gpu","adminAccess":true')
    assert (await api.ask("POST", CLAIMS, claim_body(1).replace(*admin))).code == 201
    assert cached_pods(api) == 1
    refused = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": None}}}
    await api.patch(NAMESPACE, "default", refused)
    assert (await api.ask("POST", CLAIMS, claim_body(2).replace(*admin))).code == 422


# ---- pods of controllers, with generated names ---------------------------------------------------


def job_pod(job: str, index: int, spec: Object = SPEC, **labels: str) -> Object:
    """A pod as the Job controller creates it for an Indexed Job of a JobSet."""
    identity = {
        "jobset.sigs.k8s.io/jobset-name": job,
        "jobset.sigs.k8s.io/job-index": "0",
        "batch.kubernetes.io/job-completion-index": str(index),
    }
    uid = f"uid-of-{job}"
    meta = {
        "generateName": f"{job}-{index}-",
        "labels": {**identity, "job-name": job, "controller-uid": uid, **labels},
        "annotations": identity,
        "finalizers": ["batch.kubernetes.io/job-tracking"],
        "ownerReferences": [
            {
                "apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": uid,
                "controller": True, "blockOwnerDeletion": True,
            }
        ],
    }  # fmt: skip
    names = {"hostname": f"{job}-{index}", "subdomain": job}
    group = {"schedulingGroup": {"podGroupName": f"{job}-group"}}
    return {"metadata": meta, "spec": {**spec, **names, **group}}


async def create_generated(api: Api, pod: Object, user: UserInfo = ADMIN) -> Object:
    answer = await api.ask("POST", PODS, pod, user=user)
    assert answer.code == 201, answer.body
    return answer.body


@in_virtual_time
async def test_pods_of_different_jobs_share_one_cache_entry() -> None:
    api = await Api.start()
    names = set()
    for job, index in (("a", 0), ("a", 1), ("train-r0-0", 12)):
        other = await Api.start()
        pod = await create_generated(api, job_pod(job, index))
        assert common_part(pod) == common_part(await create_generated(other, job_pod(job, index)))
        assert list(pod["metadata"])[:2] == ["name", "generateName"]
        assert pod["metadata"]["name"].startswith(f"{job}-{index}-")
        assert await api.get(POD, pod["metadata"]["name"]) == pod
        names.add(pod["metadata"]["name"])
    assert len(names) == 3
    assert cached_pods(api) == 1


@in_virtual_time
async def test_pods_that_are_created_at_the_same_time_have_their_own_values() -> None:
    api = await Api.start()
    await create_generated(api, job_pod("a", 0))
    wanted = [job_pod(job, index) for job in ("a", "b") for index in range(8)]
    pods = await asyncio.gather(*(create_generated(api, pod) for pod in wanted))
    for pod, given in zip(pods, wanted, strict=True):
        meta = pod["metadata"]
        assert await api.get(POD, meta["name"]) == pod
        assert meta["name"].startswith(given["metadata"]["generateName"])
        assert meta["ownerReferences"] == given["metadata"]["ownerReferences"]
        assert meta["labels"].items() >= given["metadata"]["labels"].items()
    assert len({pod["metadata"]["uid"] for pod in pods}) == len(pods)
    assert cached_pods(api) == 1


@in_virtual_time
async def test_pods_of_a_controller_in_the_process_of_the_server_are_cached() -> None:
    api = await Api.start()
    for index in range(3):
        reply = await api.server.handle(Request("POST", PODS, body=job_pod("j", index), user=ADMIN))
        assert isinstance(reply, Reply)
        assert reply.code == 201, reply.body
        other = await create_generated(await Api.start(), job_pod("j", index))
        assert common_part(orjson.loads(reply.body)) == common_part(other)
    assert cached_pods(api) == 1


@in_virtual_time
async def test_a_pod_with_a_name_and_a_prefix_keeps_its_name() -> None:
    api = await Api.start()
    pod = job_pod("j", 0)
    pod["metadata"]["name"] = "mine"
    assert (await create_generated(api, pod))["metadata"]["name"] == "mine"
    assert (await api.ask("POST", PODS, pod)).code == 409


@in_virtual_time
async def test_a_label_outside_the_identity_of_a_job_has_a_cache_entry_of_its_own() -> None:
    api = await Api.start()
    for tier in ("a", "b"):
        pod = await create_generated(api, job_pod("j", 0, tier=tier))
        assert pod["metadata"]["labels"]["tier"] == tier
    assert cached_pods(api) == 2


@in_virtual_time
async def test_invalid_values_of_a_generated_pod_are_refused_although_it_is_cached() -> None:
    api = await Api.start()
    await create_generated(api, job_pod("j", 0))
    for field, value in (
        ("hostname", "No_Name"),
        ("hostname", "a\nb"),
        ("subdomain", "a" * 64),
        ("hostname", 5),
    ):
        pod = job_pod("j", 1)
        pod["spec"][field] = value
        assert (await api.ask("POST", PODS, pod)).code in (400, 422), value
    pod = job_pod("j", 1)
    pod["metadata"]["labels"]["job-name"] = "not a label"
    assert (await api.ask("POST", PODS, pod)).code == 422
    pod = job_pod("j", 1)
    pod["metadata"]["ownerReferences"][0]["uid"] = ""
    assert (await api.ask("POST", PODS, pod)).code == 422


@in_virtual_time
async def test_a_doubled_field_of_a_generated_pod_has_a_warning_although_it_is_cached() -> None:
    api = await Api.start()
    await create_generated(api, job_pod("j", 0))
    text = orjson.dumps(job_pod("j", 1)).replace(
        b'"subdomain":"j"', b'"subdomain":"x","subdomain":"j"'
    )
    answer = await api.ask("POST", PODS, text)
    assert [one for one in answer.header_values("warning") if "subdomain" in one]


@in_virtual_time
async def test_labels_that_admission_reads_are_those_of_the_pod() -> None:
    api = await Api.start()
    constraint = {
        "maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"a": "b"}}, "matchLabelKeys": ["job-name"],
    }  # fmt: skip
    for job in ("j", "k"):
        spec = {**SPEC, "topologySpreadConstraints": [constraint]}
        pod = await create_generated(api, job_pod(job, 0, spec))
        selector = pod["spec"]["topologySpreadConstraints"][0]["labelSelector"]
        assert selector["matchExpressions"][0]["values"] == [job]
    assert cached_pods(api) == 0


@in_virtual_time
async def test_each_pod_needs_the_right_to_block_the_deletion_of_its_owner() -> None:
    api = await Api.start()
    rules = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]},
        {"apiGroups": ["batch"], "resources": ["jobs/finalizers"], "verbs": ["update"],
         "resourceNames": ["mine"]},
    ]  # fmt: skip
    await api.create(CLUSTER_ROLE, {"metadata": {"name": "r"}, "rules": rules})
    subjects = [{"kind": "User", "name": "joe", "apiGroup": "rbac.authorization.k8s.io"}]
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "r"}
    binding = {"metadata": {"name": "b"}, "subjects": subjects, "roleRef": ref}
    await api.create(CLUSTER_ROLE_BINDING, binding)
    joe = UserInfo("joe")
    await create_generated(api, job_pod("mine", 0), joe)
    await create_generated(api, job_pod("mine", 1), joe)
    refused = await api.ask("POST", PODS, job_pod("other", 0), user=joe)
    assert refused.code == 403
    assert "blockOwnerDeletion" in refused.body["message"]
    assert cached_pods(api) == 1
