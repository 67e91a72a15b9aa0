"""Forty bad inputs, numbered as in our list of them, and the reply to each.

Number 40, groups that a scheduler cannot place, is in `test_group_edge_cases`.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import orjson
import pytest

from phalanx.api.errors import Unauthorized
from phalanx.api.kinds import (
    CONFIG_MAP,
    JOB,
    LEASE,
    NAMESPACE,
    NODE,
    POD,
    POD_GROUP,
    WORKLOAD,
    Kind,
)
from phalanx.api.wire import ANONYMOUS, Object, Reply, Request
from phalanx.randomness import SeededRandom
from phalanx.server.security.authorization import ADMIN
from phalanx.server.security.request_guard import PriorityLevels
from phalanx.server.serialization import MAX_BODY_BYTES
from tests.builders import gang, in_virtual_time, node, pod, pod_group
from tests.server.api import Api, ApiResponse
from tests.server.security.rbac_fixtures import ANN, grant

PODS, MAPS, GROUPS = (
    POD.url_path("default"),
    CONFIG_MAP.url_path("default"),
    POD_GROUP.url_path("default"),
)
MIN_COUNT = "spec.schedulingPolicy.gang.minCount"
YAML = {"content-type": "application/yaml"}
BOMB = b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (99 + n, 99 + n, b",".join([b"*%c" % (98 + n if n else 97)] * 9))
    for n in range(9)
)


def group(minimum: object = 2) -> Object:
    made = gang("g", 2)[0]
    made["spec"]["schedulingPolicy"] = {"gang": {"minCount": minimum}}
    return made


def job(**spec: object) -> Object:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "m", "image": "i"}]}}
    return {"metadata": {"name": "j"}, "spec": {"template": template, **spec}}


class Case(NamedTuple):
    """A request and the code and reason of its reply; `cause` is the field that it names."""

    row: int
    method: str
    path: str
    body: object = b""
    code: int = 400
    reason: str = "BadRequest"
    cause: str = ""
    headers: Mapping[str, str] = {}
    query: Mapping[str, object] = {}
    text: str = ""


def new(row: int, body: object, *answer: object, kind: Kind = POD, **more: object) -> Case:
    return Case(row, "POST", kind.url_path("default"), body, *answer, **more)  # type: ignore[arg-type]


INVALID, TOO_LARGE = (422, "Invalid"), (413, "RequestEntityTooLarge")
FORBIDDEN, UNKNOWN_MEDIA = (403, "Forbidden"), (415, "UnsupportedMediaType")
STRICT = {"fieldValidation": "Strict"}
MERGE = {"content-type": "application/merge-patch+json"}
JSON_PATCH = {"content-type": "application/json-patch+json"}
APPLY = {"content-type": "application/apply-patch+yaml"}

CASES = (
    new(1, b" " * (MAX_BODY_BYTES + 1), *TOO_LARGE, text="limit is 3145728"),
    new(3, b"[" * 10_001, kind=CONFIG_MAP),
    new(3, b'{"data":' * 100_000, kind=CONFIG_MAP),
    new(4, BOMB, kind=CONFIG_MAP, headers=YAML, text="excessive aliasing"),
    new(5, b""), new(5, b"[]"), new(5, b'"x"'), new(5, b"1"),
    new(5, {"kind": "Dragon", "apiVersion": "v1"}),
    new(6, {**pod("a"), "apiVersion": "v2"}),
    new(7, group("4"), kind=POD_GROUP), new(7, group(4.5), kind=POD_GROUP),
    new(7, group(2**31), kind=POD_GROUP),
    new(8, group(0), *INVALID, MIN_COUNT, kind=POD_GROUP),
    new(8, group(-1), *INVALID, MIN_COUNT, kind=POD_GROUP),
    new(8, group(None), *INVALID, MIN_COUNT, kind=POD_GROUP),
    new(8, {"metadata": {"name": "a"}, "spec": {"schedulingPolicy": {"gang": {}}}}, *INVALID,
        MIN_COUNT, kind=POD_GROUP),
    new(12, {**pod("a"), "dragon": 1}, query=STRICT),
    new(12, pod("a"), *INVALID, query={"fieldValidation": "Maybe"}),
    new(13, b'{"metadata":{"name":"a","name":"b"}}', kind=CONFIG_MAP, query=STRICT),
    new(14, {"metadata": {"name": "a", "resourceVersion": "5"}}, kind=CONFIG_MAP),
    Case(16, "PUT", f"{GROUPS}/g", group(), *INVALID),
    Case(16, "PUT", LEASE.url_path("default", "there"), {"metadata": {"name": "there"}}, *INVALID),
    Case(17, "PUT", f"{PODS}/none", pod("none"), 404, "NotFound"),
    Case(17, "PUT", JOB.url_path("default", "j"), job(), 404, "NotFound"),
    Case(17, "PUT", f"{GROUPS}/none", pod_group("none", 2), 404, "NotFound"),
    Case(18, "PUT", f"{MAPS}/there", {"metadata": {"name": "other"}}),
    Case(18, "POST", MAPS, {"metadata": {"name": "a", "namespace": "other"}}),
    *(new(21, {"metadata": {"name": name}}, *INVALID, "metadata.name", kind=CONFIG_MAP)
      for name in ("..", "a/b", "a%2fb", "x" * 254, "Upper", "\u202e", "a\x00b", "é")),
    Case(21, "GET", f"{MAPS}/a%252fb"), Case(21, "GET", f"{MAPS}/a%2fb"),
    Case(22, "POST", CONFIG_MAP.url_path("none"), {"metadata": {"name": "a"}}, 404, "NotFound"),
    *(Case(23, "GET", MAPS, query={"resourceVersion": "abc", **more})
      for more in ({}, {"watch": "1"})),
    Case(23, "GET", f"{MAPS}/there", query={"resourceVersion": "abc"}),
    Case(26, "GET", MAPS, query={"continue": "garbage", "limit": 1}),
    Case(26, "GET", MAPS, query={"continue": "eyJydiI6MX0", "limit": 1}),
    Case(26, "GET", MAPS, query={"continue": "x", "resourceVersion": "1"}),
    Case(27, "GET", MAPS, b"", *INVALID, query={"resourceVersionMatch": "Exact"}),
    Case(27, "GET", MAPS, b"", *INVALID, query={"sendInitialEvents": "true"}),
    *(Case(28, "GET", PODS, query=query)
      for query in ({"labelSelector": "a in"}, {"labelSelector": "!!"}, {"limit": "abc"},
                    {"fieldSelector": "spec.dragon=1"}, {"fieldSelector": "nothing"},
                    {"timeout": "soon"}, {"timeout": "5"}, {"timeout": "1" * 5000})),
    Case(29, "GET", MAPS, b"", 406, "NotAcceptable", headers={"accept": "application/xml"}),
    *(new(29, pod("a"), *UNKNOWN_MEDIA, headers={"content-type": content})
      for content in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data",
                      "application/xml", "dragon")),
    Case(29, "PATCH", f"{MAPS}/there", {}, *UNKNOWN_MEDIA,
         headers={"content-type": "application/json"}),
    Case(30, "PATCH", f"{MAPS}/there", [{"op": "test", "path": "/x", "value": 1}] * 10_001,
         *TOO_LARGE, headers=JSON_PATCH),
    Case(30, "PATCH", f"{MAPS}/there", [{"op": "test", "path": "/metadata/name", "value": "x"}],
         *INVALID, headers=JSON_PATCH),
    Case(30, "PATCH", f"{MAPS}/there", b"[{", headers=JSON_PATCH),
    Case(30, "PATCH", f"{MAPS}/there", {"apiVersion": "v1", "kind": "ConfigMap"}, *INVALID,
         headers=APPLY),
    Case(30, "PATCH", f"{MAPS}/there", {"apiVersion": "v1", "kind": "ConfigMap", "metadata": None},
         headers=APPLY, query={"fieldManager": "m"}, text="name must be provided"),
    Case(31, "POST", f"{PODS}/none/binding", {"target": {"name": "n"}}, 404, "NotFound"),
    Case(31, "POST", f"{PODS}/there/binding",
         {"metadata": {"name": "other"}, "target": {"name": "n"}}),
    Case(31, "POST", f"{PODS}/there/binding",
         {"metadata": {"name": "there", "uid": "x"}, "target": {"name": "n"}}, 409, "Conflict"),
    Case(31, "POST", f"{PODS}/gated/binding", {"target": {"name": "n"}}, 409, "Conflict"),
    Case(31, "POST", f"{PODS}/bound/binding", {"target": {"name": "n"}}, 409, "Conflict"),
    Case(32, "POST", f"{PODS}/there/binding", {"target": {"name": ""}}, *INVALID, "target.name"),
    Case(32, "POST", f"{PODS}/there/binding", {"target": {"kind": "Foo", "name": "n"}}, *INVALID),
    Case(34, "PATCH", f"{PODS}/there", {"spec": {"schedulingGroup": {"podGroupName": "x"}}},
         *INVALID, headers=MERGE),
    Case(35, "DELETE", f"{MAPS}/there", {"preconditions": {"uid": "x"}}, 409, "Conflict"),
    Case(35, "DELETE", f"{MAPS}/there",
         {"orphanDependents": True, "propagationPolicy": "Orphan"}, *INVALID),
    Case(35, "DELETE", f"{MAPS}/there", {"propagationPolicy": "Cascade"}, *INVALID),
    new(36, {"metadata": {"name": "a", "ownerReferences": [
        {"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "u", "controller": True},
        {"apiVersion": "v1", "kind": "Pod", "name": "y", "uid": "v", "controller": True},
    ]}}, *INVALID, kind=CONFIG_MAP),
    new(36, {"metadata": {"name": "a", "ownerReferences": [
        {"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": ""}]}}, *INVALID, kind=CONFIG_MAP),
    new(37, job(parallelism=-1), *INVALID, "spec.parallelism", kind=JOB),
    new(37, job(completionMode="Indexed", parallelism=2), *INVALID, "spec.completions", kind=JOB),
    new(37, job(selector={"matchLabels": {"a": "b"}}), *INVALID, "spec.selector", kind=JOB),
    new(37, job(completionMode="Indexed", completions=100_001, parallelism=100_001), *INVALID,
        "spec.parallelism", kind=JOB),
    new(37, job(parallelism=2, scheduling={"schedulingPolicy": {"gang": {"minCount": 3}}}),
        *INVALID, "spec.scheduling.schedulingPolicy.gang.minCount", kind=JOB),
    new(38, pod("a", cpu="1e")), new(38, pod("a", cpu="abc")),
    new(38, pod("a", cpu="-1"), *INVALID),
    new(38, pod("a", asks={"nvidia.com/gpu": "500m"}), *INVALID),
    new(38, pod("a", spec={"priorityClassName": "none"}), *FORBIDDEN),
    new(38, pod("a", spec={"priority": 7}), *FORBIDDEN),
    Case(39, "POST", f"{MAPS}/there", {}, 405, "MethodNotAllowed"),
)  # fmt: skip


async def start_server() -> Api:
    api = await Api.start()
    await api.create(CONFIG_MAP, {"metadata": {"name": "there", "namespace": "default"}})
    await api.create(POD, pod("there"), pod("gated", gates=["x"]), pod("bound", on="n1"))
    await api.create(POD_GROUP, gang("g", 2)[0])
    await api.create(LEASE, {"metadata": {"name": "there", "namespace": "default"}})
    return api


def _number(case: Case) -> str:
    return f"row {case.row}, {case.method}"


@pytest.mark.parametrize("case", CASES, ids=_number)
@in_virtual_time
async def test_a_bad_request_is_refused_and_writes_nothing(case: Case) -> None:
    api = await start_server()
    before = api.store.revision
    answer = await api.ask(
        case.method, case.path, case.body, headers=case.headers, query=case.query
    )
    assert (answer.code, answer.body["reason"]) == (case.code, case.reason), answer.body
    assert (answer.body["kind"], answer.body["code"]) == ("Status", case.code)
    assert case.text in answer.body["message"]
    if case.cause:
        assert case.cause in [field for field, _ in answer.cause_reasons]
    assert api.store.revision == before


# ---- rows with more than one request -------------------------------------------------------------

Scenario = Callable[[Api], Awaitable[None]]


async def row_2_a_large_object_is_stored_or_refused(api: Api) -> None:
    made = {"metadata": {"name": "a"}, "data": {"k": "x" * (2 * 1024 * 1024)}}
    assert (await api.ask("POST", MAPS, made)).code in (201, 413, 422)


async def row_9_a_group_has_one_policy(api: Api) -> None:
    for policy in ({}, {"basic": {}, "gang": {"minCount": 2}}):
        made = group()
        made["metadata"]["name"] = "other"
        made["spec"]["schedulingPolicy"] = policy
        assert (await api.ask("POST", GROUPS, made)).code == 422


async def row_10_a_gang_stays_a_gang_but_its_minimum_may_change(api: Api) -> None:
    path = f"{GROUPS}/g"
    change: Object = {"spec": {"schedulingPolicy": {"gang": None, "basic": {}}}}
    assert (await api.ask("PATCH", path, change, headers=MERGE)).code == 422
    change = {"spec": {"schedulingPolicy": {"gang": {"minCount": 1}}}}
    assert (await api.ask("PATCH", path, change, headers=MERGE)).code == 200


async def row_11_a_workload_has_few_templates_of_different_names(api: Api) -> None:
    template = {"schedulingPolicy": {"gang": {"minCount": 2}}}
    for names, code in ((["t"], 201), ([f"t{n}" for n in range(9)], 422), (["t", "t"], 422)):
        templates = [{**template, "name": name} for name in names]
        made = {"metadata": {"name": "w"}, "spec": {"podGroupTemplates": templates}}
        assert (await api.ask("POST", WORKLOAD.url_path("default"), made)).code == code, names


async def row_12_an_unknown_field_gets_a_warning(api: Api) -> None:
    answer = await api.ask("POST", MAPS, {"metadata": {"name": "a"}, "dragon": 1})
    assert answer.code == 201
    assert answer.header_values("warning") == ['299 - "unknown field \\"dragon\\""']


async def row_13_the_last_value_of_a_duplicate_field_counts(api: Api) -> None:
    answer = await api.ask("POST", MAPS, b'{"metadata":{"name":"a","name":"b"}}')
    assert (answer.code, answer.body["metadata"]["name"]) == (201, "b")
    assert answer.header_values("warning") == ['299 - "duplicate field \\"name\\""']


async def row_15_a_stale_version_is_a_conflict(api: Api) -> None:
    found = await api.get(CONFIG_MAP, "there")
    await api.patch(CONFIG_MAP, "there", {"data": {"a": "b"}})
    answer = await api.ask("PUT", f"{MAPS}/there", found)
    assert (answer.code, answer.body["reason"]) == (409, "Conflict")
    assert "object has been modified" in answer.body["message"]


async def row_16_the_last_update_without_a_version_wins(api: Api) -> None:
    await api.create(JOB, {**job(), "metadata": {"name": "j", "namespace": "default"}})
    for kind, name in ((POD, "there"), (JOB, "j")):
        found = await api.get(kind, name)
        await api.patch(kind, name, {"metadata": {"labels": {"a": "b"}}})
        del found["metadata"]["resourceVersion"]
        assert (await api.ask("PUT", kind.url_path("default", name), found)).code == 200


async def row_17_a_put_of_a_missing_lease_creates_it(api: Api) -> None:
    path = LEASE.url_path("default", "l")
    assert (await api.ask("PUT", path, {"metadata": {"name": "l"}, "spec": {}})).code == 201


async def row_19_the_server_sets_the_metadata_that_it_manages(api: Api) -> None:
    meta = {"name": "a", "uid": "mine", "creationTimestamp": "1999-01-01T00:00:00Z"}
    answer = await api.ask("POST", PODS, {**pod("a"), "metadata": meta, "status": {"phase": "x"}})
    assert answer.code == 201
    assert answer.body["metadata"]["uid"] != "mine"
    assert not answer.body["metadata"]["creationTimestamp"].startswith("1999")
    assert answer.body["status"]["phase"] == "Pending"


class ConstantRandom(SeededRandom):
    """Always returns the same suffix."""

    def suffix(self, length: int = 5) -> str:
        return "x" * length


async def row_20_a_generated_name_that_is_taken_can_be_retried(api: Api) -> None:
    api.server.context = replace(api.server.context, random=ConstantRandom(1))
    for code in (201, 409):
        answer = await api.ask("POST", MAPS, {"metadata": {"generateName": "a-"}})
        assert answer.code == code
    assert answer.body["reason"] == "AlreadyExists"
    assert answer.body["details"]["retryAfterSeconds"] == 1
    assert answer.header_values("retry-after") == ["1"]


async def row_22_a_terminating_namespace_refuses_new_objects(api: Api) -> None:
    await api.create(NAMESPACE, {"metadata": {"name": "goes"}})
    await api.ask("DELETE", NAMESPACE.url_path("", "goes"))
    answer = await api.ask("POST", CONFIG_MAP.url_path("goes"), {"metadata": {"name": "a"}})
    assert (answer.code, answer.cause_reasons) == (
        403, [("metadata.namespace", "NamespaceTerminating")],
    )  # fmt: skip


async def row_24_a_watch_from_before_the_history_expires(api: Api) -> None:
    api.store.compact(api.store.revision)
    (event,) = await api.watch(CONFIG_MAP, since=1)
    assert (event.type, event.object["code"], event.object["reason"]) == ("ERROR", 410, "Expired")


async def row_25_a_future_revision_is_awaited_shortly(api: Api) -> None:
    begin = asyncio.get_running_loop().time()
    answer = await api.ask("GET", MAPS, query={"resourceVersion": "99999999"})
    assert (answer.code, answer.body["reason"]) == (504, "Timeout")
    assert answer.body["details"]["retryAfterSeconds"] == 1
    assert asyncio.get_running_loop().time() - begin < 4


async def row_26_a_token_of_another_list_is_refused(api: Api) -> None:
    for after in ("../../secrets/x", "/core/secrets/", "\x00", "\uffff"):
        raw = orjson.dumps([api.store.revision, after])
        token = base64.urlsafe_b64encode(raw).decode().rstrip("=")
        answer = await api.ask("GET", MAPS, query={"continue": token, "limit": 5})
        assert (answer.code, answer.body["reason"]) == (400, "BadRequest")


async def row_26_an_expired_token_is_replaced_by_another(api: Api) -> None:
    first = await api.list_default(POD, {"limit": 1})
    await api.create(POD, pod("z"))
    api.store.compact(api.store.revision)
    query = {"continue": first["metadata"]["continue"]}
    answer = await api.ask("GET", PODS, query=query)
    assert (answer.code, answer.body["reason"]) == (410, "Expired")
    rest = await api.list_default(POD, {"continue": answer.body["metadata"]["continue"]})
    assert [item["metadata"]["name"] for item in rest["items"]] == ["gated", "there", "z"]


async def row_31_a_pod_that_is_being_deleted_is_not_bound(api: Api) -> None:
    await api.patch(POD, "there", {"metadata": {"finalizers": ["example.com/a"]}})
    await api.delete(POD, "there")
    answer = await api.bind("there", "n")
    assert (answer.code, answer.body["reason"]) == (409, "Conflict")


async def row_33_a_pod_may_be_bound_to_a_missing_node(api: Api) -> None:
    assert (await api.bind("there", "ghost")).code == 201


async def row_33_a_binding_to_a_full_node_is_accepted_but_not_a_group_binding(api: Api) -> None:
    await api.create(NODE, node("small", cpu="1"))
    one, two = await api.create(POD, pod("one", cpu="1"), pod("two", cpu="1"))
    assert (await api.bind_group((one, "small"))).code == 201
    assert (await api.bind_group((two, "small"))).code == 409
    assert (await api.bind("two", "small")).code == 201


async def row_34_an_object_that_is_being_deleted_gets_no_finalizer(api: Api) -> None:
    await api.patch(CONFIG_MAP, "there", {"metadata": {"finalizers": ["example.com/a"]}})
    await api.delete(CONFIG_MAP, "there")
    change = {"metadata": {"finalizers": ["example.com/a", "example.com/b"]}}
    assert (await api.patch(CONFIG_MAP, "there", change)).code == 422


async def row_34_a_finished_pod_does_not_run_again(api: Api) -> None:
    await api.create(POD, pod("once", on="n1", spec={"restartPolicy": "Never"}))
    status = {"name": "main", "image": "i", "imageID": "", "ready": False, "restartCount": 0}
    for state, code in (({"terminated": {"exitCode": 0}}, 200), ({"running": {}}, 422)):
        news = {"status": {"containerStatuses": [{**status, "state": state}]}}
        assert (await api.patch(POD, "once", news, part="status")).code == code


async def row_35_a_negative_grace_period_is_one_second(api: Api) -> None:
    answer = await api.delete(POD, "bound", {"gracePeriodSeconds": -5})
    assert (answer.code, answer.body["metadata"]["deletionGracePeriodSeconds"]) == (200, 1)


async def row_36_an_owner_may_be_missing(api: Api) -> None:
    """The garbage collector, which has its own tests, deletes such an object."""
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "missing", "uid": "u"}
    made = {"metadata": {"name": "a", "ownerReferences": [owner]}}
    assert (await api.ask("POST", MAPS, made)).code == 201


async def row_37_a_pod_template_is_immutable(api: Api) -> None:
    await api.create(JOB, {**job(), "metadata": {"name": "j", "namespace": "default"}})
    change = {"spec": {"template": {"spec": {"restartPolicy": "OnFailure"}}}}
    assert (await api.patch(JOB, "j", change)).code == 422


async def row_39_an_unauthorized_user_gets_403(api: Api) -> None:
    answer = await api.ask("GET", MAPS, user=ANONYMOUS)
    assert (answer.code, answer.body["reason"]) == (403, "Forbidden")
    nowhere = await api.server.handle(Request("GET", "/apis/dragons.example/v1/x", user=ADMIN))
    assert (nowhere.code, nowhere.content_type.partition(";")[0]) == (404, "text/plain")
    assert isinstance(nowhere, Reply)


async def row_39_an_invalid_token_gets_401(api: Api) -> None:
    with pytest.raises(Unauthorized) as refused:
        api.server.access.authenticator.authenticate("Bearer wrong")
    assert (refused.value.code, refused.value.reason) == (401, "Unauthorized")


async def row_39_too_many_requests_get_429(api: Api) -> None:
    api.server.priority_levels = PriorityLevels(reads=0)
    await grant(api, ANN, "view", "default")
    answer = await api.ask("GET", MAPS, user=ANN)
    assert (answer.code, answer.body["reason"]) == (429, "TooManyRequests")
    assert answer.header_values("retry-after") == ["1"]


ROWS = {name: row for name, row in sorted(globals().items()) if name.startswith("row_")}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
@in_virtual_time
async def test_bad_inputs_of_several_steps(row: Scenario) -> None:
    await row(await start_server())


# ---- more bad inputs -----------------------------------------------------------------------------

MORE: dict[str, tuple[str, str, object, Mapping[str, str], Mapping[str, object]]] = {
    "a byte order mark": ("POST", MAPS, b"\xef\xbb\xbf{}", {}, {}),
    "overlong UTF-8": ("POST", MAPS, b'{"metadata":{"name":"\xc0\xaf"}}', {}, {}),
    "half a surrogate": ("POST", MAPS, b'{"metadata":{"name":"\\ud800"}}', {}, {}),
    "NaN": ("POST", MAPS, b'{"data":NaN}', {}, {}),
    "a huge number": ("POST", PODS, b'{"spec":{"priority":1e999}}', {}, {}),
    "fifty digits": ("POST", PODS, b'{"spec":{"priority":%s}}' % (b"9" * 50), {}, {}),
    "five thousand digits": ("POST", PODS, b'{"spec":{"priority":%s}}' % (b"9" * 5000), {}, {}),
    "no metadata": ("POST", MAPS, {"metadata": None}, {}, {}),
    "items": ("POST", MAPS, {"items": []}, {}, {}),
    "a NUL in a label": (
        "POST", MAPS, {"metadata": {"name": "a", "labels": {"a": "\x00"}}}, {}, {},
    ),
    "a long label": ("POST", MAPS, {"metadata": {"name": "a", "labels": {"a": "x" * 64}}}, {}, {}),
    "long annotations": ("POST", MAPS, {"metadata": {
        "name": "a", "annotations": {"a": "x" * (256 * 1024)}}}, {}, {}),
    "a date of the year 0": ("POST", LEASE.url_path("default"), {
        "metadata": {"name": "a"}, "spec": {"renewTime": "0000-01-01T00:00:00.000000Z"}}, {}, {}),
    "a date of the year 10000": ("POST", LEASE.url_path("default"), {
        "metadata": {"name": "a"}, "spec": {"renewTime": "10000-01-01T00:00:00.000000Z"}}, {}, {}),
    "a generation beyond 64 bits": (
        "POST", MAPS, b'{"metadata":{"name":"a","generation":9223372036854775808}}', {}, {},
    ),
    "CONNECT": ("CONNECT", "/api", b"", {}, {}),
    "HEAD": ("HEAD", MAPS, b"", {}, {}),
    "OPTIONS": ("OPTIONS", MAPS, b"", {}, {}),
    "another method in a header": ("GET", f"{MAPS}/x", b"", {"x-http-method-override": "PUT"}, {}),
    "slashes": ("GET", "//api///v1//dragons", b"", {}, {}),
    "encoded twice": ("GET", f"{MAPS}/%252e%252e%252f", b"", {}, {}),
    "many options": ("GET", MAPS, b"", {}, {f"o{n}": n for n in range(200)}),
    "no time at all": ("GET", MAPS, b"", {}, {"timeoutSeconds": "x", "watch": "1"}),
    "YAML of dates and sixties": ("POST", MAPS, b"data: {a: 2001-01-01, b: 1:30, c: no}", YAML, {}),
    "several documents": ("POST", MAPS, b"{}\n---\n{}", YAML, {}),
    "a tag of Python": ("POST", MAPS, b"!!python/object/apply:os.system [id]", YAML, {}),
}  # fmt: skip


@pytest.mark.parametrize("case", MORE.values(), ids=MORE)
@in_virtual_time
async def test_more_bad_inputs_are_refused_with_a_message(
    case: tuple[str, str, object, Mapping[str, str], Mapping[str, object]],
) -> None:
    method, path, body, headers, query = case
    api = await start_server()
    answer: ApiResponse = await api.ask(method, path, body, headers=headers, query=query)
    assert 400 <= answer.code < 500, answer.body
    assert b"Traceback" not in answer.text
