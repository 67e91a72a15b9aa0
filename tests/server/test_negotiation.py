from __future__ import annotations

import pytest
import yaml

from phalanx.api.kinds import (
    COMPOSITE_POD_GROUP,
    CONFIG_MAP,
    EVENT,
    JOB_SET,
    KINDS,
    LEASE,
    NAMESPACE,
    NODE,
    POD,
    POD_GROUP,
    PRIORITY_CLASS,
    WORKLOAD,
    Kind,
)
from phalanx.api.wire import JSON, Object, Reply, Request
from phalanx.server.serialization import PROTOBUF, encode_if_accepted
from tests.builders import in_virtual_time, node, pod, pod_group
from tests.server.api import Api, ApiResponse

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
METADATA = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
METADATA_LIST = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
#: What kubectl sends.
KUBECTL = f"{TABLE},application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"

EXAMPLES: dict[Kind, Object] = {
    CONFIG_MAP: {"metadata": {"name": "c", "namespace": "default"}, "data": {"a": "b"}},
    EVENT: {
        "metadata": {"name": "e", "namespace": "default"}, "reason": "Why", "message": "Because",
        "involvedObject": {"kind": "Pod", "name": "a", "namespace": "default"},
    },
    LEASE: {"metadata": {"name": "l", "namespace": "default"}, "spec": {"holderIdentity": "me"}},
    NAMESPACE: {"metadata": {"name": "s"}},
    NODE: node("n1"),
    POD: pod("a"),
    POD_GROUP: pod_group("g", 2),
    PRIORITY_CLASS: {"metadata": {"name": "high"}, "value": 10},
    COMPOSITE_POD_GROUP: {
        "metadata": {"name": "c", "namespace": "default"},
        "spec": {
            "schedulingPolicy": {"gang": {"minGroupCount": 2}},
            "workloadRef": {"workloadName": "w", "templateName": "t"},
        },
    },
    WORKLOAD: {
        "metadata": {"name": "w", "namespace": "default"},
        "spec": {"compositePodGroupTemplates": [{
            "name": "t", "schedulingPolicy": {"gang": {"minGroupCount": 1}},
            "podGroupTemplates": [{
                "name": "p", "schedulingPolicy": {"gang": {"minCount": 3}},
                "schedulingConstraints": {"topology": [{"key": "zone"}]},
                "resourceClaims": [{"name": "c", "resourceClaimName": "x"}],
            }],
        }]},
    },
}  # fmt: skip


async def get(api: Api, path: str, accept: str, **query: str) -> ApiResponse:
    return await api.ask("GET", path, headers={"accept": accept}, query=query)


def rows(answer: ApiResponse) -> list[list[object]]:
    return [row["cells"] for row in answer.body["rows"]]


LISTED = [kind for kind in KINDS if "list" in kind.verbs]


@pytest.mark.parametrize("kind", LISTED, ids=lambda kind: kind.resource)
@in_virtual_time
async def test_every_kind_has_columns(kind: Kind) -> None:
    api = await Api.start()
    table = await get(api, kind.url_path(), KUBECTL)
    assert table.body["kind"] == "Table"
    assert "Name" in [column["name"] for column in table.body["columnDefinitions"]]


@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.name)
@in_virtual_time
async def test_every_kind_is_served_as_a_table_and_as_metadata_only(kind: Kind) -> None:
    api = await Api.start()
    (made,) = await api.create(kind, EXAMPLES[kind])
    name, namespace = made["metadata"]["name"], made["metadata"].get("namespace", "")
    for path in (kind.url_path(namespace, name), kind.url_path(namespace)):
        table = await get(api, path, KUBECTL)
        assert (table.body["kind"], table.body["apiVersion"]) == ("Table", "meta.k8s.io/v1")
        columns = table.body["columnDefinitions"]
        assert all(len(row) == len(columns) for row in rows(table))
        shown = [row["object"] for row in table.body["rows"]]
        assert made["metadata"] in [one["metadata"] for one in shown]
    alone = await get(api, kind.url_path(namespace, name), METADATA)
    assert alone.body["kind"] == "PartialObjectMetadata"
    assert set(alone.body) == {"kind", "apiVersion", "metadata"}
    listed = await get(api, kind.url_path(namespace), METADATA_LIST)
    assert alone.body in listed.body["items"]


@in_virtual_time
async def test_a_table_includes_the_requested_part_of_each_object() -> None:
    api = await Api.start()
    await api.create(POD, pod("a"))

    async def shown(include: str) -> object:
        query = {"includeObject": include} if include else {}
        answer = await get(api, POD.url_path("default"), TABLE, **query)
        return answer.body["rows"][0].get("object", {}).get("kind")

    assert [await shown(include) for include in ("", "Metadata", "Object", "None")] == [
        "PartialObjectMetadata", "PartialObjectMetadata", "Pod", None,
    ]  # fmt: skip
    assert (await get(api, POD.url_path("default"), TABLE, includeObject="All")).code == 400


@in_virtual_time
async def test_a_table_is_paged_like_the_list() -> None:
    api = await Api.start()
    await api.create(POD, pod("a"), pod("b"))
    first = await get(api, POD.url_path("default"), TABLE, limit="1")
    assert [row[0] for row in rows(first)] == ["a"]
    more = {"continue": first.body["metadata"]["continue"]}
    second = await get(api, POD.url_path("default"), TABLE, limit="1", **more)
    assert [row[0] for row in rows(second)] == ["b"]


@in_virtual_time
async def test_yaml_is_served_on_request() -> None:
    api = await Api.start()
    await api.create(POD, pod("a"))
    for path in (POD.url_path("default", "a"), POD.url_path("default")):
        plain, text = await get(api, path, JSON), await get(api, path, "application/yaml")
        assert text.kind == "application/yaml"
        assert yaml.safe_load(text.text) == plain.body


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("", "PodList"),
        ("*/*", "PodList"),
        ("application/json;q=0.5, application/yaml;q=0.1", "PodList"),
        ("application/json;as=Table;v=v9;g=meta.k8s.io,application/json", "PodList"),
        (f"text/html, {TABLE}", "Table"),
        (KUBECTL, "Table"),
    ],
)
@in_virtual_time
async def test_the_first_supported_media_type_is_used(accept: str, kind: str) -> None:
    api = await Api.start()
    assert (await get(api, POD.url_path("default"), accept)).body["kind"] == kind


@pytest.mark.parametrize(
    "accept",
    [
        "application/*", "text/html", "image/*",
        "application/json;as=Table;v=v9;g=meta.k8s.io", "application/json;as=Dragon;v=v1",
        ";;;", "=",
    ],
)  # fmt: skip
@in_virtual_time
async def test_an_unsupported_media_type_is_not_acceptable(accept: str) -> None:
    api = await Api.start()
    path = POD.url_path("default")
    body = pod("a")
    for method in ("GET", "POST"):
        answer = await api.ask(method, path, body, headers={"accept": accept})
        assert (answer.code, answer.body["code"]) == (406, 406)
    assert (await api.list_default(POD))["items"] == []


@pytest.mark.parametrize("code", [200, 404])
def test_only_errors_of_a_kind_without_message_are_parsed_for_protobuf(code: int) -> None:
    """A list may have hundreds of MiB: the event loop would stand still while it is parsed."""
    request = Request("GET", JOB_SET.url_path("default"), "", {"accept": f"{PROTOBUF},{JSON}"})
    reply = Reply(code, b'{"apiVersion": "v1", "kind": "Status"}')
    encoded = encode_if_accepted(request, JOB_SET, reply)
    assert (encoded is reply) == (code == 200)
