"""Whatever a client sends, the reply is valid: never a 5xx, and a refusal is a Status."""

from __future__ import annotations

import copy
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.api.core import NODE_TYPE_ANNOTATION, PROCESS_NODE_TYPE
from phalanx.api.kinds import (
    COMPOSITE_POD_GROUP,
    CONFIG_MAP,
    EVENT,
    GROUP_BINDING,
    GROUP_EVICTION,
    KINDS,
    LEADER_WORKER_SET,
    LEASE,
    LEASE_RENEWAL,
    NAMESPACE,
    NODE,
    POD,
    POD_GROUP,
    POD_METRICS,
    PRIORITY_CLASS,
    SELF_SUBJECT_ACCESS_REVIEW,
    SELF_SUBJECT_RULES_REVIEW,
    SERVICE_ACCOUNT,
    SUBJECT_ACCESS_REVIEW,
    TOKEN_REVIEW,
    WORKLOAD,
    Kind,
)
from phalanx.api.wire import Object
from tests.builders import gang, in_virtual_time, node, pod, share_of_examples
from tests.server.api import Api, ApiResponse
from tests.server.test_negotiation import EXAMPLES, TABLE

#: Texts with a special meaning in some format.
WORDS = (
    "", "a", "A", "default", "main", "..", "/", "%2F", "a/b", "\u0000", "é", "\U0001f600", "null",
    "0", "-1", "1", "1e9", "1e-99", "9" * 40, "1Ei", "-5Gi", "0.5m", "NaN", "2026-01-01T00:00:00Z",
    "0001-01-01T00:00:00Z", "2026-13-01T00:00:00Z", "Always", "Never", "Running", "Succeeded",
    "delete", "replace", "x" * 300, "example.com/a", "kubernetes.io/", "True", "Exists",
)  # fmt: skip
KEYS = (
    "metadata", "spec", "status", "name", "namespace", "labels", "annotations", "finalizers", "uid",
    "resourceVersion", "containers", "initContainers", "resources", "requests", "limits", "cpu",
    "conditions", "phase", "type", "$patch", "$retainKeys", "$setElementOrder/containers",
    "$deleteFromPrimitiveList/finalizers", "nodeName", "schedulingGroup", "unknown", "",
)  # fmt: skip

scalars = (
    st.none()
    | st.booleans()
    | st.sampled_from((0, 1, -1, 2**31, 2**53, 2**63 - 1, -(2**63), 10**18))
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(WORDS)
    | st.text(max_size=5)
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
#: Where (by a number), what is done there, and with what.
mutations = st.lists(
    st.tuples(
        st.integers(0, 10_000),
        st.sampled_from(("replace", "remove", "add", "wrap", "double")),
        st.sampled_from(KEYS),
        values,
    ),
    min_size=1,
    max_size=4,
)

#: A pod that names as much as it can.
FULL_POD = pod(
    "a", "g", cpu="1", memory="1Gi",
    meta={
        "labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": ["example.com/stay"],
        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "o", "uid": "u"}],
    },
    spec={
        "initContainers": [{"name": "first", "image": "i", "restartPolicy": "Always"}],
        "nodeSelector": {"zone": "a"}, "tolerations": [{"key": "k", "operator": "Exists"}],
        "volumes": [{"name": "v", "emptyDir": {}}], "nodeName": "n1", "hostNetwork": True,
        "overhead": {"cpu": "100m"}, "terminationGracePeriodSeconds": 5,
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule"},
        ],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "z", "operator": "Exists"}]}],
        }}},
    },
)  # fmt: skip
TEMPLATES: tuple[tuple[Kind, Object], ...] = (
    (POD, FULL_POD),
    (POD, pod("a")),
    (POD_GROUP, gang("g", 2)[0]),
    (NODE, node("n2", labels={"zone": "a"})),
    (EVENT, EXAMPLES[EVENT]),
    (LEASE, EXAMPLES[LEASE]),
    (CONFIG_MAP, EXAMPLES[CONFIG_MAP]),
    (PRIORITY_CLASS, EXAMPLES[PRIORITY_CLASS]),
    (COMPOSITE_POD_GROUP, EXAMPLES[COMPOSITE_POD_GROUP]),
    (WORKLOAD, EXAMPLES[WORKLOAD]),
)
#: A minimal object of every stored kind.
BARE: tuple[tuple[Kind, Object], ...] = tuple(
    (kind, {"metadata": {"name": "a", "labels": {"a": "b"}}, "spec": {"template": {}}, "data": {}})
    for kind in KINDS
    if "list" in kind.verbs and "create" in kind.verbs
)


def value_positions(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key or index) in a value."""
    found: list[tuple[Any, Any]] = []
    keys = list(value) if isinstance(value, dict) else range(len(value))
    for key in keys:
        found.append((value, key))
        if isinstance(value[key], (dict, list)):
            found += value_positions(value[key])
    return found


def mutate(template: Object, changes: list[tuple[int, str, str, Any]]) -> Object:
    """A copy with some broken values."""
    obj = copy.deepcopy(template)
    for where, what, key, value in changes:
        if not (found := value_positions(obj)):
            break
        holder, at = found[where % len(found)]
        match what:
            case "replace":
                holder[at] = value
            case "remove":
                del holder[at]
            case "wrap":
                holder[at] = [holder[at]]
            case "double" if isinstance(holder, list):
                holder.append(copy.deepcopy(holder[at]))
            case _ if isinstance(holder[at], dict):
                holder[at][key] = value
            case _:
                holder[at] = value
    return obj


def assert_valid_reply(answer: ApiResponse) -> None:
    assert answer.code < 500, answer.body
    if answer.code >= 400:
        assert (answer.body["kind"], answer.body["code"]) == ("Status", answer.code)


async def start_server() -> Api:
    api = await Api.start()
    await api.create(NODE, node("n1"))
    await api.create(POD, pod("there", cpu="1", meta={"finalizers": ["example.com/stay"]}))
    return api


async def read_all(api: Api, kind: Kind) -> None:
    """Read everything of a kind in every representation."""
    for accept in ("application/json", TABLE, "application/yaml"):
        answer = await api.ask("GET", kind.url_path(), headers={"accept": accept})
        assert answer.code == 200
    assert all(event.type != "ERROR" for event in await api.watch(kind, accept=TABLE))


@share_of_examples(2.5)
@given(st.sampled_from(TEMPLATES) | st.sampled_from(BARE), mutations)
@in_virtual_time
async def test_no_new_object_breaks_the_server(
    template: tuple[Kind, Object], changes: list[tuple[int, str, str, Any]]
) -> None:
    kind, obj = template
    api = await start_server()
    path = kind.url_path("default" if kind.namespaced else "")
    answer = await api.ask("POST", path, mutate(obj, changes))
    assert_valid_reply(answer)
    if answer.code == 201:
        await read_all(api, kind)
        again = await api.ask("PUT", f"{path}/{answer.body['metadata']['name']}", answer.body)
        assert (again.code, again.body) == (200, answer.body)
        assert_valid_reply(await api.ask("DELETE", f"{path}/{answer.body['metadata']['name']}"))


#: Valid patches, to be broken.
PATCHES: tuple[tuple[str, Any], ...] = (
    ("merge", {"metadata": {"labels": {"a": "b"}, "finalizers": []}, "spec": {"x": 1}}),
    ("strategic", {
        "metadata": {"finalizers": ["example.com/more"], "labels": {"a": None}},
        "spec": {
            "containers": [{"name": "main", "image": "i"}], "tolerations": [{"key": "k"}],
            "$setElementOrder/containers": [{"name": "main"}], "$retainKeys": ["containers"],
        },
        "status": {"conditions": [{"type": "Ready", "status": "True"}], "phase": "Running"},
    }),
    ("strategic", {
        "spec": {"containers": [{"name": "main", "$patch": "delete"}, {"$patch": "replace"}]},
        "metadata": {"$deleteFromPrimitiveList/finalizers": ["example.com/stay"]},
    }),
    ("json", [
        {"op": "add", "path": "/metadata/labels", "value": {"a": "b"}},
        {"op": "replace", "path": "/spec/containers/0/image", "value": "i"},
        {"op": "copy", "from": "/metadata/labels", "path": "/metadata/annotations"},
        {"op": "move", "from": "/metadata/annotations/a", "path": "/metadata/labels/c"},
        {"op": "test", "path": "/metadata/name", "value": "there"},
        {"op": "remove", "path": "/metadata/finalizers/0"},
    ]),
)  # fmt: skip


@share_of_examples(2.5)
@given(st.sampled_from(PATCHES), st.sampled_from(("", "status")), mutations | st.just([]))
@in_virtual_time
async def test_no_patch_breaks_the_server(
    template: tuple[str, Any], part: str, changes: list[tuple[int, str, str, Any]]
) -> None:
    content, change = template
    api = await start_server()
    answer = await api.patch(POD, "there", mutate(change, changes), content, part=part)
    assert_valid_reply(answer)
    await read_all(api, POD)


#: Actions and their paths; a name in capitals stands for the uid of that object.
THERE, RUNS = POD.url_path("default", "there"), POD.url_path("default", "runs")
MEANT = {b"THERE": (POD, "there"), b"RUNS": (POD, "runs"), b"GANG": (POD_GROUP, "g")}
ACCESS = {"resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "default"}}
ACTS: tuple[tuple[str, str, Object], ...] = (
    ("POST", GROUP_BINDING.url_path("default"), {
        "bindings": [{"name": "there", "uid": "THERE", "node": "n1"}],
        "groups": [{"name": "g", "uid": "GANG", "standing": {}}],
    }),
    ("POST", GROUP_EVICTION.url_path("default"), {
        "reason": "Why", "message": "m", "pods": [{"name": "there", "uid": "THERE"}],
        "groups": [{"kind": "PodGroup", "name": "g", "uid": "GANG"}],
    }),
    ("POST", LEASE_RENEWAL.url_path("default"), {
        "renewTime": "2027-01-15T08:00:00.000000Z",
        "leases": [{"name": "l", "holderIdentity": "me"}],
    }),
    ("POST", f"{THERE}/binding", {
        "metadata": {"name": "there", "uid": "THERE", "labels": {"a": "b"}, "annotations": {}},
        "target": {"kind": "Node", "name": "n1"},
    }),
    ("POST", f"{THERE}/eviction", {
        "metadata": {"name": "there"},
        "deleteOptions": {"gracePeriodSeconds": 5, "preconditions": {"uid": "THERE"}},
    }),
    ("POST", f"{RUNS}/log", {"uid": "RUNS", "container": "main", "restart": 0, "text": "hello"}),
    ("PUT", f"{THERE}/resize", pod("there", cpu="2")),
    ("PUT", f"{THERE}/ephemeralcontainers", pod("there", spec={
        "ephemeralContainers": [{"name": "debug", "image": "i", "targetContainerName": "main"}],
    })),
    ("PUT", f"{NAMESPACE.url_path('', 'default')}/finalize", {
        "metadata": {"name": "default"}, "spec": {"finalizers": ["kubernetes"]},
    }),
    ("PUT", f"{LEADER_WORKER_SET.url_path('default', 'l')}/scale", {
        "metadata": {"name": "l", "namespace": "default"}, "spec": {"replicas": 3},
    }),
    ("POST", f"{SERVICE_ACCOUNT.url_path('default', 'robot')}/token", {
        "spec": {"audiences": ["a"], "expirationSeconds": 600, "boundObjectRef": {
            "kind": "Pod", "apiVersion": "v1", "name": "runs", "uid": "RUNS"}},
    }),
    ("POST", TOKEN_REVIEW.url_path(), {"spec": {"token": "x", "audiences": ["a"]}}),
    ("POST", SUBJECT_ACCESS_REVIEW.url_path(), {
        "spec": {"user": "ann", "groups": ["g"], "uid": "u", "extra": {"k": ["v"]}, **ACCESS},
    }),
    ("POST", SELF_SUBJECT_ACCESS_REVIEW.url_path(), {"spec": ACCESS}),
    ("POST", SELF_SUBJECT_RULES_REVIEW.url_path(), {"spec": {"namespace": "default"}}),
    ("POST", POD_METRICS.url_path("default"), {
        "metadata": {"name": "runs", "uid": "RUNS"}, "window": "15s",
        "containers": [{"name": "main", "usage": {"cpu": "1", "memory": "1Mi"}}],
    }),
    *((("DELETE", path, {
        "kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 5, "dryRun": [],
        "preconditions": {"uid": "THERE"}, "propagationPolicy": "Background",
    })) for path in (THERE, POD.url_path("default"))),
)  # fmt: skip


async def start_busy_server() -> Api:
    """A server with objects to act on."""
    api = await start_server()
    await api.create(LEASE, EXAMPLES[LEASE])
    await api.create(POD_GROUP, gang("g", 2)[0])
    machine = node("n2")
    machine["metadata"]["annotations"] = {NODE_TYPE_ANNOTATION: PROCESS_NODE_TYPE}
    await api.create(NODE, machine)
    await api.create(POD, pod("runs", on="n2", spec={"serviceAccountName": "robot"}))
    await api.create(SERVICE_ACCOUNT, {"metadata": {"name": "robot", "namespace": "default"}})
    template = {"spec": {"containers": [{"name": "m", "image": "i"}]}}
    await api.create(LEADER_WORKER_SET, {
        "metadata": {"name": "l", "namespace": "default"},
        "spec": {"replicas": 1, "leaderWorkerTemplate": {"size": 2, "workerTemplate": template}},
    })  # fmt: skip
    return api


async def do(api: Api, method: str, path: str, body: Object) -> ApiResponse:
    """Perform an action with the actual uids."""
    text = orjson.dumps(body)
    for word, (kind, name) in MEANT.items():
        text = text.replace(word, (await api.get(kind, name))["metadata"]["uid"].encode())
    return await api.ask(method, path, text)


@pytest.mark.slow
@share_of_examples(2.5)
@given(st.sampled_from(ACTS), mutations | st.just([]))
@in_virtual_time
async def test_no_action_breaks_the_server(
    act: tuple[str, str, Object], changes: list[tuple[int, str, str, Any]]
) -> None:
    method, path, body = act
    api = await start_busy_server()
    assert_valid_reply(await do(api, method, path, mutate(body, changes)))
    await read_all(api, POD)


OPTIONS = (
    "labelSelector", "fieldSelector", "resourceVersion", "resourceVersionMatch", "continue",
    "limit", "timeoutSeconds", "dryRun", "fieldValidation", "gracePeriodSeconds",
    "propagationPolicy", "sendInitialEvents", "includeObject", "fieldManager", "force", "pretty",
)  # fmt: skip
questions = st.dictionaries(
    st.sampled_from(OPTIONS),
    st.sampled_from((*WORDS, "a=b", "a in (b,c)", "!a", "a notin ()", "a>5", "metadata.name=there",
                     "All", "Strict", "Exact", "NotOlderThan", "Object", "true"))
    | st.text(max_size=8),
    max_size=4,
)  # fmt: skip


@share_of_examples(2.5)
@given(
    st.sampled_from(("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "DANCE")),
    st.sampled_from(("", "/there", "/there/status", "/there/binding", "/there/dance", "/%00")),
    questions,
)
@in_virtual_time
async def test_no_read_breaks_the_server(method: str, rest: str, query: dict[str, str]) -> None:
    api = await start_server()
    headers = {"content-type": "application/merge-patch+json"} if method == "PATCH" else {}
    path = POD.url_path("default") + rest
    answer = await api.ask(method, path, pod("there"), query=query, headers=headers)
    # 504 is the answer to a revision of the future.
    assert answer.code < 500 or answer.code == 504, answer.body


@share_of_examples(3)
@given(st.binary(max_size=60), st.sampled_from(("application/json", "application/yaml")))
@in_virtual_time
async def test_no_bytes_break_the_server(body: bytes, content: str) -> None:
    api = Api()
    answer = await api.ask(
        "POST", CONFIG_MAP.url_path("default"), body, headers={"content-type": content}
    )
    assert_valid_reply(answer)


@share_of_examples(2)
@given(st.text(alphabet="/%.?#: apisv12podsnamec\x00é", max_size=30), st.booleans())
@in_virtual_time
async def test_no_path_breaks_the_server(rest: str, is_known: bool) -> None:
    api = Api()
    answer = await api.ask("GET", f"/api/v1/{rest}" if is_known else f"/{rest}")
    assert answer.code < 500


ACCEPTED = (
    "application/json", "application/yaml", "*/*", "as=Table", "v=v1", "g=meta.k8s.io", "q=0.5",
    ";", ",", "=", "\x00", "as=",
)  # fmt: skip


@given(st.lists(st.sampled_from(ACCEPTED)))
@in_virtual_time
async def test_no_accept_header_breaks_the_server(parts: list[str]) -> None:
    api = Api()
    answer = await api.ask("GET", POD.url_path(), headers={"accept": "".join(parts)})
    assert answer.code in (200, 406)


@in_virtual_time
async def test_the_unbroken_actions_are_accepted() -> None:
    for method, path, template in ACTS:
        answer = await do(await start_busy_server(), method, path, template)
        assert answer.code in (200, 201, 409), (path, answer.body)


def test_the_templates_are_valid_for_their_kinds() -> None:
    for _, template in TEMPLATES:
        assert orjson.loads(orjson.dumps(template)) == template


@in_virtual_time
async def test_the_unbroken_templates_are_accepted() -> None:
    for kind, template in TEMPLATES:
        api = await start_server()
        path = kind.url_path("default" if kind.namespaced else "")
        answer = await api.ask("POST", path, template)
        assert answer.code == 201, answer.body
