from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from phalanx.api.kinds import EVENT, GROUP_BINDING, NAMESPACE, NODE, POD, POD_GROUP
from phalanx.api.wire import Object
from tests.builders import in_virtual_time, node, pod, pod_group
from tests.server.api import Api, ApiResponse, revision

Spoil = Callable[[Api, Object], Awaitable[Object]]


async def start_cluster(api: Api, pods: int = 3, cpu: str = "1") -> list[Object]:
    """A server with two nodes of 4 CPU and unbound pods in the default namespace."""
    await api.create(NODE, node("n1", cpu="4"), node("n2", cpu="4"))
    return await api.create(POD, *(pod(f"p{n}", cpu=cpu) for n in range(pods)))


# ---- Binding: one pod ----------------------------------------------------------------------------


@in_virtual_time
async def test_a_bound_pod_has_its_node_and_the_condition_pod_scheduled() -> None:
    api = await Api.start()
    await api.create(POD, pod("a"))
    answer = await api.bind("a", "n1")
    assert (answer.code, answer.body["status"]) == (201, "Success")
    bound = await api.get(POD, "a")
    assert bound["spec"]["nodeName"] == "n1"
    (condition,) = bound["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("PodScheduled", "True")


@in_virtual_time
async def test_a_binding_adds_its_labels_and_annotations_to_the_pod() -> None:
    api = await Api.start()
    await api.create(POD, pod("a", meta={"labels": {"is": "old"}}))
    meta = {"labels": {"was": "bound"}, "annotations": {"by": "hand"}}
    path = "/api/v1/namespaces/default/pods/a/binding"
    await api.ask("POST", path, {"metadata": meta, "target": {"name": "n1"}})
    bound = (await api.get(POD, "a"))["metadata"]
    assert bound["labels"] == {"is": "old", "was": "bound"}
    assert bound["annotations"] == {"by": "hand"}


@in_virtual_time
async def test_a_pod_is_bound_only_once() -> None:
    api = await Api.start()
    await api.create(POD, pod("a"))
    assert [(await api.bind("a", name)).code for name in ("n1", "n1", "n2")] == [201, 409, 409]
    assert (await api.get(POD, "a"))["spec"]["nodeName"] == "n1"


@pytest.mark.parametrize("kind", ["annotations", "labels"])
@pytest.mark.parametrize("wrong", ["text", ["list"], {"number": 1}, {"inner": {}}])
@in_virtual_time
async def test_a_binding_of_a_wrong_shape_is_a_bad_request(kind: str, wrong: object) -> None:
    api = await Api.start()
    await api.create(POD, pod("a"))
    body = {"metadata": {kind: wrong}, "target": {"name": "n1"}}
    answer = await api.ask("POST", "/api/v1/namespaces/default/pods/a/binding", body)
    assert answer.code in (400, 422)
    assert "nodeName" not in (await api.get(POD, "a"))["spec"]


@in_virtual_time
async def test_a_dry_run_binds_no_pod() -> None:
    api = await Api.start()
    pods = await start_cluster(api)
    before = api.store.revision
    assert (await api.bind("p0", "n1", dryRun="All")).code == 201
    assert (await api.bind_group((pods[1], "n1"), dryRun="All")).code == 201
    assert api.store.revision == before


# ---- GroupBinding: all pods or none --------------------------------------------------------------


@in_virtual_time
async def test_a_group_is_bound_in_one_transaction() -> None:
    api = await Api.start()
    pods = await start_cluster(api)
    before = api.store.revision
    answer = await api.bind_group((pods[0], "n1"), (pods[1], "n2"), (pods[2], "n1"))
    assert answer.code == 201
    placed = [(await api.get(POD, name))["spec"]["nodeName"] for name in ("p0", "p1", "p2")]
    assert placed == ["n1", "n2", "n1"]
    written = [change.key for change in api.store.changes(before)]
    assert [key for key in written if "/pods/" in key] == [
        POD.store_key("default", name) for name in ("p0", "p1", "p2")
    ]


async def bind_with_group(api: Api, pods: list[Object], group: Object) -> ApiResponse:
    """Bind pods with a reference to their PodGroup."""
    meta = {"name": group["metadata"]["name"], "uid": group["metadata"]["uid"]}
    bindings = [
        {"name": one["metadata"]["name"], "uid": one["metadata"]["uid"], "node": "n1"}
        for one in pods
    ]
    body = {"bindings": bindings, "groups": [meta]}
    return await api.ask("POST", GROUP_BINDING.url_path("default"), body)


@in_virtual_time
async def test_pods_are_bound_if_their_group_has_the_given_uid() -> None:
    api = await Api.start()
    pods, (group,) = await start_cluster(api), await api.create(POD_GROUP, pod_group("g", 3))
    assert (await bind_with_group(api, pods, group)).code == 201


@pytest.mark.parametrize("again", [False, True], ids=["missing", "recreated"])
@in_virtual_time
async def test_no_pod_is_bound_if_its_group_is(again: bool) -> None:
    api = await Api.start()
    pods, (group,) = await start_cluster(api), await api.create(POD_GROUP, pod_group("g", 3))
    await api.delete(POD_GROUP, "g")
    await api.patch(POD_GROUP, "g", {"metadata": {"finalizers": None}})
    if again:
        await api.create(POD_GROUP, pod_group("g", 5))
    answer = await bind_with_group(api, pods, group)
    assert (answer.code, answer.cause_reasons) == (409, [("groups[0]", "GroupGone")])
    assert "nodeName" not in (await api.get(POD, "p0"))["spec"]


async def is_missing(api: Api, victim: Object) -> Object:
    await api.delete(POD, victim["metadata"]["name"])
    return victim


async def is_another(api: Api, victim: Object) -> Object:
    await is_missing(api, victim)
    await api.create(POD, pod(victim["metadata"]["name"], cpu="1"))
    return victim


async def has_no_uid(api: Api, victim: Object) -> Object:
    return {"metadata": {**victim["metadata"], "uid": ""}}


async def is_bound(api: Api, victim: Object) -> Object:
    await api.bind(victim["metadata"]["name"], "n2")
    return victim


async def is_being_deleted(api: Api, victim: Object) -> Object:
    name = victim["metadata"]["name"]
    await api.patch(POD, name, {"metadata": {"finalizers": ["example.com/stay"]}})
    await api.delete(POD, name)
    return victim


async def is_gated(api: Api, victim: Object) -> Object:
    await is_missing(api, victim)
    return (await api.create(POD, pod(victim["metadata"]["name"], gates=["wait"])))[0]


async def is_finished(api: Api, victim: Object) -> Object:
    name = victim["metadata"]["name"]
    answer = await api.patch(POD, name, {"status": {"phase": "Failed"}}, part="status")
    assert answer.code == 200
    return victim


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (is_missing, "PodGone"),
        (is_another, "PodGone"),
        (has_no_uid, "PodGone"),
        (is_bound, "PodChanged"),
        (is_being_deleted, "PodChanged"),
        (is_gated, "PodChanged"),
        (is_finished, "PodChanged"),
    ],
)
@in_virtual_time
async def test_a_group_with_one_pod_that_cannot_be_bound_is_refused(
    spoil: Spoil, reason: str
) -> None:
    api = await Api.start()
    pods = await start_cluster(api)
    victim = await spoil(api, pods[1])
    await assert_refused(api, [(pods[0], "n1"), (victim, "n1"), (pods[2], "n1")], 1, reason)


async def assert_refused(api: Api, wanted: list[tuple[Object, str]], at: int, reason: str) -> None:
    """The reply is a conflict that names the member, and nothing was written."""
    before = api.store.revision
    answer = await api.bind_group(*wanted)
    assert (answer.code, answer.body["reason"]) == (409, "Conflict")
    assert answer.cause_reasons == [(f"bindings[{at}]", reason)]
    assert answer.body["message"].startswith("no pod of the group was bound: ")
    assert api.store.revision == before


@in_virtual_time
async def test_a_group_binding_to_a_missing_node_is_refused() -> None:
    api = await Api.start()
    pods = await start_cluster(api)
    await assert_refused(api, [(pods[0], "n1"), (pods[1], "nowhere")], 1, "NodeGone")


@in_virtual_time
async def test_a_group_that_names_a_pod_twice_is_refused() -> None:
    api = await Api.start()
    pods = await start_cluster(api)
    wanted = [(pods[0], "n1"), (pods[1], "n1"), (pods[0], "n2")]
    await assert_refused(api, wanted, 2, "FieldValueDuplicate")


@in_virtual_time
async def test_a_group_that_exceeds_a_node_is_refused() -> None:
    api = await Api.start()
    pods = await start_cluster(api, pods=5)
    await assert_refused(api, [(one, "n1") for one in pods], 4, "NodeFull")
    assert (await api.bind_group(*((one, "n1") for one in pods[:4]))).code == 201


@in_virtual_time
async def test_resources_of_other_pods_are_not_free() -> None:
    api = await Api.start()
    pods = await start_cluster(api, cpu="2")
    await api.create(POD, pod("by-hand", on="n1", cpu="1"))
    await assert_refused(api, [(pods[0], "n1"), (pods[1], "n1")], 1, "NodeFull")
    assert (await api.bind_group((pods[0], "n1"), (pods[1], "n2"))).code == 201


@pytest.mark.parametrize("resource", ["pods", "memory", "example.com/gpu"])
@in_virtual_time
async def test_every_resource_counts(resource: str) -> None:
    api = await Api.start()
    await api.create(NODE, node("n1", capacity={resource: "1"}))
    asks = {} if resource == "pods" else {resource: "1"}
    pods = await api.create(POD, pod("a", asks=asks), pod("b", asks=asks))
    await assert_refused(api, [(pods[0], "n1"), (pods[1], "n1")], 1, "NodeFull")
    assert (await api.bind_group((pods[0], "n1"))).code == 201


@in_virtual_time
async def test_a_pod_that_is_being_resized_occupies_what_its_node_has_allocated() -> None:
    api = await Api.start()
    pods = await start_cluster(api)
    await api.create(POD, pod("big", on="n1", cpu="1"))
    container = (await api.get(POD, "big"))["spec"]["containers"][0]["name"]
    allocated = {"name": container, "allocatedResources": {"cpu": "4"}}
    resizing = {"status": {"containerStatuses": [allocated]}}
    assert (await api.patch(POD, "big", resizing, part="status")).code == 200
    await assert_refused(api, [(pods[0], "n1")], 0, "NodeFull")
    allocated["allocatedResources"] = {"cpu": "3"}
    assert (await api.patch(POD, "big", resizing, part="status")).code == 200
    assert (await api.bind_group((pods[0], "n1"))).code == 201


@in_virtual_time
async def test_a_node_that_shrank_below_its_allocation_takes_no_pod() -> None:
    api = await Api.start()
    pods = await start_cluster(api, cpu="2")
    assert (await api.bind_group((pods[0], "n1"), (pods[1], "n1"))).code == 201
    shrunk = {"status": {"allocatable": {"cpu": "3"}}}
    assert (await api.patch(NODE, "n1", shrunk, part="status")).code == 200
    await assert_refused(api, [(pods[2], "n1")], 0, "NodeFull")


@in_virtual_time
async def test_the_causes_of_a_refusal_are_listed_up_to_a_limit() -> None:
    api = await Api.start()
    pods = await start_cluster(api)
    strangers: list[tuple[Object, str]] = [
        ({"metadata": {"name": f"x{n}", "uid": "u"}}, "n1") for n in range(100)
    ]
    answer = await api.bind_group(*strangers, (pods[0], "n1"))
    assert answer.code == 409
    assert 2 <= len(answer.cause_reasons) <= 32


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"bindings": []},
        {"bindings": None},
        {"bindings": [{"name": "p0"}] * 20_001},
    ],
    ids=["nothing", "none", "null", "too many"],
)
@in_virtual_time
async def test_the_number_of_pods_of_a_group_binding_is_limited(body: Object) -> None:
    api = await Api.start()
    assert (await api.ask("POST", GROUP_BINDING.url_path("default"), body)).code == 422


@pytest.mark.parametrize("bindings", ["text", [1], [["p0"]], [{"name": 1}], {"name": "p0"}])
@in_virtual_time
async def test_a_group_binding_of_a_wrong_shape_is_a_bad_request(bindings: object) -> None:
    api = await Api.start()
    path = GROUP_BINDING.url_path("default")
    assert (await api.ask("POST", path, {"bindings": bindings})).code == 400


@pytest.mark.parametrize("name", ["p0", "x/p0", "../x/p0", ""])
@in_virtual_time
async def test_a_group_binding_binds_no_pod_of_another_namespace(name: str) -> None:
    api = await Api.start()
    await start_cluster(api)
    await api.create(NAMESPACE, {"metadata": {"name": "x"}})
    (other,) = await api.create(POD, pod("p9", namespace="x"))
    there = {"metadata": {**other["metadata"], "name": name}}
    await assert_refused(api, [(there, "n1")], 0, "PodGone")


@in_virtual_time
async def test_group_bindings_are_not_stored() -> None:
    api = await Api.start()
    path = GROUP_BINDING.url_path("default")
    codes = [(await api.ask(method, path)).code for method in ("GET", "PUT", "DELETE", "PATCH")]
    assert codes == [405] * 4


# ---- concurrent bindings -------------------------------------------------------------------------


@in_virtual_time
async def test_one_of_two_concurrent_groups_that_do_not_fit_together_is_bound() -> None:
    api = await Api.start(latency=lambda: 1.0)
    pods = await start_cluster(api, pods=6, cpu="2")
    places = ("n1", "n2", "n1")
    groups = [list(zip(pods[:3], places, strict=True)), list(zip(pods[3:], places, strict=True))]
    answers = await asyncio.gather(*(api.bind_group(*group) for group in groups))
    assert [answer.code for answer in answers] == [201, 409]
    bound = [(await api.get(POD, f"p{n}"))["spec"].get("nodeName") for n in range(6)]
    assert bound == ["n1", "n2", "n1", None, None, None]


@in_virtual_time
async def test_a_group_binding_and_a_binding_of_a_member_do_not_both_succeed() -> None:
    api = await Api.start(latency=lambda: 1.0)
    pods = await start_cluster(api)
    plain, group = await asyncio.gather(
        api.bind("p1", "n2"), api.bind_group(*((one, "n1") for one in pods))
    )
    assert (plain.code, group.code) == (201, 409)
    assert [(await api.get(POD, name))["spec"].get("nodeName") for name in ("p0", "p1")] == [
        None, "n2",
    ]  # fmt: skip


@in_virtual_time
async def test_heartbeats_do_not_conflict_with_group_bindings() -> None:
    api = await Api.start(latency=lambda: 1.0)
    pods = await start_cluster(api)
    beat = {"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "Beat"}]}}
    answers = await asyncio.gather(
        api.patch(NODE, "n1", beat, part="status"),
        api.bind_group(*((one, "n1") for one in pods)),
        api.patch(NODE, "n1", {"metadata": {"labels": {"a": "b"}}}),
    )
    assert [answer.code for answer in answers] == [200, 201, 200]


@in_virtual_time
async def test_an_interrupted_watch_sees_each_pod_of_a_group_once() -> None:
    api = await Api.start()
    pods = await start_cluster(api, pods=7)
    before = api.store.revision
    places = ["n1", "n2"] * 4
    assert (await api.bind_group(*zip(pods, places, strict=False))).code == 201
    whole = await api.watch(POD, since=before)
    assert [str(event) for event in whole] == [f"MODIFIED p{n}" for n in range(7)]
    for stop in range(before, api.store.revision + 1):
        seen = [event for event in whole if event.revision <= stop]
        rest = await api.watch(POD, since=stop)
        assert [*seen, *rest] == whole


@in_virtual_time
async def test_a_watch_receives_a_group_in_one_chunk() -> None:
    api = await Api.start()
    pods = await start_cluster(api, pods=8)
    watching = api.chunks(POD, since=api.store.revision)
    first = asyncio.ensure_future(anext(watching))
    await asyncio.sleep(0)
    await api.bind_group(*((one, "n1" if at < 4 else "n2") for at, one in enumerate(pods)))
    assert (await first).count(b"\n") == 8


@in_virtual_time
async def test_each_bound_pod_has_its_own_revision() -> None:
    api = await Api.start()
    pods = await start_cluster(api)
    await api.bind_group(*((one, "n1") for one in pods))
    bound = [revision(await api.get(POD, f"p{n}")) for n in range(3)]
    assert bound == list(range(bound[0], bound[0] + 3))


# ---- events and status ---------------------------------------------------------------------------


async def events(api: Api) -> list[Object]:
    answer = await api.ask("GET", EVENT.url_path("default"))
    return list(answer.body["items"])


@in_virtual_time
async def test_the_scheduled_events_are_committed_with_the_pods() -> None:
    api = await Api.start()
    pods = await start_cluster(api, pods=2)
    await api.bind_group((pods[0], "n1"), (pods[1], "n2"))
    messages = [(event["involvedObject"]["name"], event["message"]) for event in await events(api)]
    assert sorted(messages) == [
        ("p0", "Successfully assigned default/p0 to n1"),
        ("p1", "Successfully assigned default/p1 to n2"),
    ]
    (event, _) = await events(api)
    assert (event["reason"], event["type"], event["count"]) == ("Scheduled", "Normal", 1)
    assert event["source"] == {"component": "default-scheduler"}
    assert event["involvedObject"]["uid"] == pods[0]["metadata"]["uid"]
    assert event["involvedObject"]["resourceVersion"] == pods[0]["metadata"]["resourceVersion"]


@in_virtual_time
async def test_the_event_of_a_pod_with_the_longest_name_has_a_valid_name() -> None:
    api = await Api.start()
    await api.create(NODE, node("n1", cpu="4"))
    (made,) = await api.create(POD, pod(".".join(["a" * 60] * 4) + ".bc-d", cpu="1"))
    assert (await api.bind_group((made, "n1"))).code == 201
    (event,) = await events(api)
    name = event["metadata"]["name"]
    assert len(name) <= 253
    assert (await api.patch(EVENT, name, {"count": 2})).code == 200


@in_virtual_time
async def test_pods_of_a_terminating_namespace_are_bound_without_events() -> None:
    api = await Api.start()
    await api.create(NODE, node("n1", cpu="4"))
    await api.create(NAMESPACE, {"metadata": {"name": "x"}})
    (made,) = await api.create(POD, pod("a", namespace="x", cpu="1"))
    await api.delete(NAMESPACE, "x")
    row = {"name": "a", "uid": made["metadata"]["uid"], "node": "n1"}
    assert (await api.ask("POST", GROUP_BINDING.url_path("x"), {"bindings": [row]})).code == 201
    assert (await api.ask("GET", EVENT.url_path("x"))).body["items"] == []


async def bind_with_standing(
    api: Api, group: Object, pods: list[Object], standing: Object
) -> ApiResponse:
    """Bind pods of a group, with the resulting standing of the group."""
    meta = group["metadata"]
    rows = [
        {"name": one["metadata"]["name"], "uid": one["metadata"]["uid"], "node": "n1"}
        for one in pods
    ]
    terms = {"name": meta["name"], "uid": meta["uid"], "standing": standing}
    body = {"bindings": rows, "groups": [terms]}
    return await api.ask("POST", GROUP_BINDING.url_path("default"), body)


PLACED = {"generation": 7, "neededPods": 2, "pendingPods": 1, "scheduledPods": 2}


@in_virtual_time
async def test_a_group_binding_sets_the_status_of_its_group() -> None:
    api = await Api.start()
    pods, (group,) = await start_cluster(api), await api.create(POD_GROUP, pod_group("g", 2))
    assert (await bind_with_standing(api, group, pods[:2], PLACED)).code == 201
    status = (await api.get(POD_GROUP, "g"))["status"]
    assert (status["scheduledPods"], status["pendingPods"]) == (2, 1)
    conditions = [(one["type"], one["status"], one["reason"]) for one in status["conditions"]]
    assert conditions == [
        ("PodGroupInitiallyScheduled", "True", "Scheduled"),
        ("PodGroupScheduled", "True", "MinCountSatisfied"),
    ]
    assert {one["observedGeneration"] for one in status["conditions"]} == {7}
    assert status["conditions"][1]["message"] == (
        "All required pods (2/2) have been assigned to nodes"
    )


@in_virtual_time
async def test_a_true_condition_of_a_group_is_not_changed() -> None:
    api = await Api.start()
    pods, (group,) = await start_cluster(api), await api.create(POD_GROUP, pod_group("g", 2))
    then = "2020-01-01T00:00:00Z"
    said = [
        {"type": kind, "status": status, "reason": "R", "message": "m", "lastTransitionTime": then}
        for kind, status in (("PodGroupScheduled", "False"), ("Degraded", "False"))
    ]
    await api.patch(POD_GROUP, "g", {"status": {"conditions": said}}, part="status")
    await bind_with_standing(api, group, pods[:2], PLACED)
    first = (await api.get(POD_GROUP, "g"))["status"]
    assert [(one["type"], one["status"]) for one in first["conditions"]] == [
        ("PodGroupScheduled", "True"),
        ("Degraded", "False"),
        ("PodGroupInitiallyScheduled", "True"),
    ]
    await bind_with_standing(api, group, pods[2:], {**PLACED, "scheduledPods": 3, "pendingPods": 0})
    second = (await api.get(POD_GROUP, "g"))["status"]
    assert second["conditions"] == first["conditions"]
    assert (second["scheduledPods"], "pendingPods" in second) == (3, False)


@in_virtual_time
async def test_an_invalid_standing_is_refused_and_no_pod_is_bound() -> None:
    api = await Api.start()
    pods, (group,) = await start_cluster(api), await api.create(POD_GROUP, pod_group("g", 2))
    answer = await bind_with_standing(api, group, pods[:2], {"neededPods": 2, "scheduledPods": -1})
    assert (answer.code, answer.cause_reasons) == (
        409,
        [("groups[0].standing", "FieldValueInvalid")],
    )
    assert "nodeName" not in (await api.get(POD, "p0"))["spec"]
