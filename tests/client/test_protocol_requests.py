from __future__ import annotations

import orjson
import pytest

from phalanx.api.errors import BadRequest
from phalanx.api.kinds import NODE, POD, POD_GROUP
from phalanx.api.meta import Key
from phalanx.api.wire import JSON, MERGE_PATCH, Object
from phalanx.client.protocol import (
    build_request,
    collection_request,
    delete_options,
    encode_patch,
    is_watch,
)

A = Key("default", "a")


@pytest.mark.parametrize(
    ("verb", "method"),
    [("get", "GET"), ("update", "PUT"), ("patch", "PATCH"), ("delete", "DELETE")],
)
def test_verb_on_an_object_is_a_method_on_its_path(verb: str, method: str) -> None:
    request = build_request(verb, POD, A)
    assert (request.method, request.path) == (method, "/api/v1/namespaces/default/pods/a")


def test_create_posts_the_unchanged_body_to_the_collection() -> None:
    body = {"metadata": {"name": "a"}}
    request = build_request("create", POD_GROUP, Key("default", ""), body=body)
    assert request.path == "/apis/scheduling.k8s.io/v1beta1/namespaces/default/podgroups"
    assert request.body is body
    assert request.headers == {"accept": JSON, "content-type": JSON}


def test_subresource_is_in_the_path_and_content_type_in_the_headers() -> None:
    request = build_request(
        "patch", NODE, Key("", "n"), subresource="status", body=b"{}", content=MERGE_PATCH
    )
    assert request.path == "/api/v1/nodes/n/status"
    assert request.headers["content-type"] == MERGE_PATCH


def test_request_without_a_body_has_no_content_type() -> None:
    assert build_request("get", POD, A).headers == {"accept": JSON}


def test_options_are_encoded_and_empty_options_omitted() -> None:
    request = collection_request(
        "list",
        POD,
        {"label_selector": "a=b,c", "field_selector": ""},
        query={"limit": 5, "continue": ""},
    )
    assert request.path == "/api/v1/pods"
    assert request.query == "labelSelector=a%3Db%2Cc&limit=5"


def test_watch_request_allows_bookmarks_and_is_recognised_as_a_watch() -> None:
    request = collection_request(
        "watch", POD, {"namespace": "default"}, query={"resourceVersion": 7}
    )
    assert request.path == "/api/v1/namespaces/default/pods"
    assert request.query == "watch=true&allowWatchBookmarks=true&resourceVersion=7"
    assert is_watch(request)
    assert not is_watch(collection_request("list", POD, {}, query={}))


@pytest.mark.parametrize("verb", ["get", "update", "patch", "delete"])
def test_request_for_an_object_needs_a_name(verb: str) -> None:
    with pytest.raises(BadRequest, match="is empty"):
        build_request(verb, POD, Key("default", ""))


@pytest.mark.parametrize("name", ["..", ".", "a/b", "../../secrets/x", "a%2fb"])
def test_name_is_escaped_in_the_path(name: str) -> None:
    with pytest.raises(BadRequest, match="is not a valid name"):
        build_request("get", POD, Key("default", name))
    with pytest.raises(BadRequest, match="is not a valid name"):
        build_request("get", POD, Key(name, "a"))


def test_merge_patch_stays_an_object_and_json_patch_becomes_bytes() -> None:
    merge: Object = {"spec": {}}
    operations = [{"op": "remove", "path": "/spec"}]
    assert encode_patch(merge) is merge
    assert encode_patch(operations) == orjson.dumps(operations)


def test_delete_options_contain_only_the_given_fields() -> None:
    bare = {"kind": "DeleteOptions", "apiVersion": "v1"}
    absent = delete_options(
        uid="", resource_version="", grace_period_seconds=None, propagation_policy=""
    )
    assert absent == bare
    assert delete_options(
        uid="u", resource_version="7", grace_period_seconds=0, propagation_policy="Foreground"
    ) == {
        **bare,
        "gracePeriodSeconds": 0,
        "preconditions": {"uid": "u", "resourceVersion": "7"},
        "propagationPolicy": "Foreground",
    }
