"""JobSets and LeaderWorkerSets: built-in kinds that need no CustomResourceDefinition."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import orjson
import pytest

from phalanx.api.feature_gates import GENERIC_WORKLOAD, resolve_gates
from phalanx.api.kinds import JOB_SET, LEADER_WORKER_SET, RESOURCE_QUOTA, Kind
from phalanx.api.wire import APPLY_PATCH, JSON, Object
from phalanx.clock import LoopClock
from phalanx.randomness import SeededRandom
from phalanx.server.app import Server
from phalanx.server.serialization import PROTOBUF
from tests.builders import in_virtual_time
from tests.server.api import EPOCH, Api, ApiResponse

TABLE = f"{JSON};as=Table;v=v1;g=meta.k8s.io"
PODS: Object = {"spec": {"containers": [{"name": "main", "image": "app:1"}]}}
UNATTENDED = "are stored and served, but no controller acts on them yet"


def job_set(name: str = "a", workers: Object | None = None, **spec: Any) -> Object:
    """A JobSet of workers."""
    made_of = {"parallelism": 4, "completions": 4, "template": PODS, **(workers or {})}
    jobs = [{"name": "workers", "template": {"spec": made_of}}]
    meta = {"name": name, "namespace": "default"}
    return copy.deepcopy({"metadata": meta, "spec": {"replicatedJobs": jobs, **spec}})


def groups(name: str = "a", size: int = 2, **spec: Any) -> Object:
    """A LeaderWorkerSet."""
    meta = {"name": name, "namespace": "default"}
    template = {"size": size, "workerTemplate": PODS}
    return copy.deepcopy({"metadata": meta, "spec": {"leaderWorkerTemplate": template, **spec}})


EXAMPLES = [(JOB_SET, job_set()), (LEADER_WORKER_SET, groups())]
each = pytest.mark.parametrize(("kind", "obj"), EXAMPLES, ids=lambda one: getattr(one, "name", ""))


async def post(api: Api, kind: Kind, obj: Object, **query: object) -> ApiResponse:
    return await api.ask("POST", kind.url_path("default"), obj, query=query)


# ---- generic behaviour ---------------------------------------------------------------------------


@each
@in_virtual_time
async def test_creating_one_warns_if_no_controller_acts_on_it(kind: Kind, obj: Object) -> None:
    api = await Api.start()
    made = await post(api, kind, obj)
    warnings = [f'299 - "{kind.resource} {UNATTENDED}"'] if kind.has_no_controller else []
    assert (made.code, made.header_values("warning")) == (201, warnings)
    again = await api.patch(kind, "a", {"metadata": {"labels": {"a": "b"}}})
    assert (again.code, again.header_values("warning")) == (200, [])


@each
@in_virtual_time
async def test_the_generation_changes_with_the_spec_and_not_with_the_status(
    kind: Kind, obj: Object
) -> None:
    api = await Api.start()
    (made,) = await api.create(kind, obj)
    assert (made["metadata"]["generation"], "status" in made) == (1, False)
    change = {"spec": {"suspend": True}} if kind is JOB_SET else {"spec": {"replicas": 3}}
    changed = await api.patch(kind, "a", {**change, "status": {"replicas": 7, "restarts": 7}})
    assert (changed.body["metadata"]["generation"], "status" in changed.body) == (2, False)
    status = {"restarts": 1} if kind is JOB_SET else {"replicas": 1}
    answer = await api.patch(kind, "a", {"status": status, "spec": None}, part="status")
    assert answer.body["status"] == status
    assert answer.body["spec"] == changed.body["spec"]
    assert answer.body["metadata"]["generation"] == 2


@each
@in_virtual_time
async def test_an_update_needs_a_resource_version(kind: Kind, obj: Object) -> None:
    api = await Api.start()
    (made,) = await api.create(kind, obj)
    blind = copy.deepcopy(made)
    del blind["metadata"]["resourceVersion"]
    answer = await api.ask("PUT", kind.url_path("default", "a"), blind)
    assert (answer.code, answer.cause_reasons) == (
        422, [("metadata.resourceVersion", "FieldValueInvalid")],
    )  # fmt: skip
    assert (await api.ask("PUT", kind.url_path("default", "a"), made)).code == 200


@each
@in_virtual_time
async def test_neither_is_accepted_as_protobuf(kind: Kind, obj: Object) -> None:
    api = await Api.start()
    headers = {"content-type": PROTOBUF}
    answer = await api.ask("POST", kind.url_path("default"), b"k8s\0", headers=headers)
    assert (answer.code, answer.body["reason"]) == (415, "UnsupportedMediaType")


@each
@in_virtual_time
async def test_a_quota_counts_them(kind: Kind, obj: Object) -> None:
    api = await Api.start()
    hard = {f"count/{kind.resource}": "1"}
    quota = {"metadata": {"name": "q", "namespace": "default"}, "spec": {"hard": hard}}
    await api.create(RESOURCE_QUOTA, quota)
    await api.create(kind, obj)
    another = {**obj, "metadata": {**obj["metadata"], "name": "b"}}
    assert (await post(api, kind, another)).code == 403
    await api.delete(kind, "a")
    assert (await post(api, kind, another)).code == 201


@in_virtual_time
async def test_discovery_lists_them_with_their_subresources() -> None:
    api = await Api.start()

    async def parts(kind: Kind) -> list[tuple[str, str, list[str]]]:
        answer = await api.ask("GET", f"/apis/{kind.api_version}")
        listed = answer.body["resources"]
        return [(one["name"], one["kind"], one.get("shortNames", [])) for one in listed]

    assert await parts(JOB_SET) == [("jobsets", "JobSet", []), ("jobsets/status", "JobSet", [])]
    assert await parts(LEADER_WORKER_SET) == [
        ("leaderworkersets", "LeaderWorkerSet", ["lws"]),
        ("leaderworkersets/status", "LeaderWorkerSet", []),
        ("leaderworkersets/scale", "Scale", []),
    ]
    schemas = (await api.ask("GET", f"/openapi/v3/apis/{JOB_SET.api_version}")).body["components"]
    assert "io.x-k8s.jobset.v1alpha2.JobSet" in schemas["schemas"]


@in_virtual_time
async def test_a_table_shows_their_progress() -> None:
    api = await Api.start()
    await api.create(JOB_SET, job_set(suspend=False), job_set("b"))
    await api.create(LEADER_WORKER_SET, groups(replicas=3))
    done = {"type": "Completed", "status": "True", "reason": "AllJobsCompleted", "message": "",
            "lastTransitionTime": "2027-01-15T08:00:00Z"}  # fmt: skip
    status = {"terminalState": "Completed", "restarts": 0, "conditions": [done]}
    await api.patch(JOB_SET, "a", {"status": status}, part="status")
    counts = {"status": {"readyReplicas": 1, "updatedReplicas": 2}}
    await api.patch(LEADER_WORKER_SET, "a", counts, part="status")

    async def shown(kind: Kind) -> tuple[list[str], list[list[Any]]]:
        table = (await api.ask("GET", kind.url_path("default"), headers={"accept": TABLE})).body
        columns = [column["name"] for column in table["columnDefinitions"]]
        return columns, [row["cells"][:-1] for row in table["rows"]]

    assert await shown(JOB_SET) == (
        ["Name", "TerminalState", "Restarts", "Completed", "Suspended", "Age"],
        [["a", "Completed", "0", "True", "false"], ["b", None, None, None, None]],
    )
    assert await shown(LEADER_WORKER_SET) == (
        ["Name", "Ready", "Desired", "Up-to-date", "Age"],
        [["a", 1, 3, 2]],
    )


# ---- scale ---------------------------------------------------------------------------------------

SCALE = LEADER_WORKER_SET.url_path("default", "a", "scale")


@in_virtual_time
async def test_groups_have_a_scale_subresource() -> None:
    api = await Api.start()
    await api.create(LEADER_WORKER_SET, groups(replicas=3))
    status = {"replicas": 2, "hpaPodSelector": "role=leader"}
    await api.patch(LEADER_WORKER_SET, "a", {"status": status}, part="status")
    scale = (await api.ask("GET", SCALE)).body
    assert (scale["kind"], scale["spec"]) == ("Scale", {"replicas": 3})
    assert scale["status"] == {"replicas": 2, "selector": "role=leader"}
    scale["spec"]["replicas"] = 5
    assert (await api.ask("PUT", SCALE, scale)).body["spec"] == {"replicas": 5}
    patched = await api.patch(LEADER_WORKER_SET, "a", {"spec": {"replicas": 4}}, part="scale")
    assert patched.body["spec"] == {"replicas": 4}
    obj = await api.get(LEADER_WORKER_SET, "a")
    assert (obj["spec"]["replicas"], obj["metadata"]["generation"]) == (4, 3)


@pytest.mark.parametrize("replicas", [-1, 2_000_000])
@in_virtual_time
async def test_an_invalid_scale_is_refused(replicas: int) -> None:
    api = await Api.start()
    await api.create(LEADER_WORKER_SET, groups())
    change = {"spec": {"replicas": replicas}}
    answer = await api.patch(LEADER_WORKER_SET, "a", change, part="scale")
    assert (answer.code, answer.cause_reasons) == (422, [("spec.replicas", "FieldValueInvalid")])


@in_virtual_time
async def test_a_job_set_has_no_scale() -> None:
    api = await Api.start()
    await api.create(JOB_SET, job_set())
    assert (await api.ask("GET", JOB_SET.url_path("default", "a", "scale"))).code == 404


# ---- scheduling ----------------------------------------------------------------------------------

RACK: Object = {"topology": [{"level": "example.com/rack"}]}
STORED_RACK: Object = {"topology": [{"key": "example.com/rack"}]}


@in_virtual_time
async def test_aliases_are_stored_under_the_canonical_names() -> None:
    api = await Api.start()
    root: Object = {"policy": {"basic": {}}}
    nested = {"scheduling": {"constraints": RACK}}
    by_name = [{"targetReplicatedJob": "workers", "policy": {"gang": {}},
                "disruption": {"all": {}}}]  # fmt: skip
    a, b = await api.create(
        JOB_SET,
        job_set("a", nested, scheduling={**root, "constraints": RACK}),
        job_set("b", scheduling={**root, "replicatedJobPolicies": by_name}),
    )
    said: Object = {"schedulingPolicy": {"basic": {}}}
    assert a["spec"]["scheduling"] == {**said, "schedulingConstraints": STORED_RACK}
    inner = a["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert inner["scheduling"] == {"schedulingConstraints": STORED_RACK}
    assert b["spec"]["scheduling"] == {
        **said,
        "replicatedJobPolicies": [{
            "targetReplicatedJob": "workers", "schedulingPolicy": {"gang": {}},
            "disruptionMode": {"all": {}},
        }],
    }  # fmt: skip


@in_virtual_time
async def test_contradictory_policies_are_refused_with_any_alias() -> None:
    api = await Api.start()
    nested = {"scheduling": {"policy": {"gang": {"minCount": 2}}}}
    field = "spec.replicatedJobs[0].template.spec.scheduling"
    for size, code in ((2, 201), (3, 422)):
        policy = {"schedulingPolicy": {"gang": {"minCount": size}}}
        by_name = [{"targetReplicatedJob": "workers", **policy}]
        obj = job_set(f"a{size}", nested, scheduling={"replicatedJobPolicies": by_name})
        answer = await post(api, JOB_SET, obj)
        assert answer.code == code
    assert answer.cause_reasons == [(field, "FieldValueInvalid")]


@in_virtual_time
async def test_groups_drop_their_gang_policy_with_any_alias() -> None:
    api = await Api.start()
    (made,) = await api.create(LEADER_WORKER_SET, groups(scheduling={"policy": {"basic": {}}}))
    assert made["spec"]["scheduling"] == {"schedulingPolicy": {"basic": {}}}
    both: Object = {"policy": {"basic": {}}, "schedulingPolicy": {"basic": {}}}
    assert (await post(api, LEADER_WORKER_SET, groups("b", scheduling=both))).code == 422


@in_virtual_time
async def test_an_applied_alias_owns_the_stored_field() -> None:
    api = await Api.start()
    config = {
        "apiVersion": LEADER_WORKER_SET.api_version, "kind": LEADER_WORKER_SET.name,
        **groups(scheduling={"policy": {"gang": {}}, "constraints": RACK}),
    }  # fmt: skip
    path, headers = LEADER_WORKER_SET.url_path("default", "a"), {"content-type": APPLY_PATCH}
    for code in (201, 200):
        query = {"fieldManager": "me"}
        answer = await api.ask("PATCH", path, config, headers=headers, query=query)
        assert answer.code == code, answer.body
    fields = orjson.dumps(answer.body["metadata"]["managedFields"][0]["fieldsV1"])
    assert b'"f:schedulingPolicy"' in fields
    assert b'"f:policy"' not in fields


@in_virtual_time
async def test_a_disabled_field_is_not_stored() -> None:
    api = await Api.start()
    clock = LoopClock(asyncio.get_running_loop(), EPOCH)
    api.server = Server(
        api.store, clock, SeededRandom(2), gates=resolve_gates({GENERIC_WORKLOAD: False})
    )
    (jobs,) = await api.create(JOB_SET, job_set(scheduling={"schedulingPolicy": {"gang": {}}}))
    (sets,) = await api.create(LEADER_WORKER_SET, groups(scheduling={}))
    assert "scheduling" not in jobs["spec"]
    assert "scheduling" not in sets["spec"]
