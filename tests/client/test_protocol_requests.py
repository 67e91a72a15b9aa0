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
def test_a_verb_on_an_object_is_a_method_on_its_path(verb: str, method: str) -> None:
    request = build_request(verb, POD, A)
    assert (request.method, request.path) == (method, "/api/v1/namespaces/default/pods/a")


def test_create_goes_to_the_collection_with_its_body_untouched() -> None:
    body = {"metadata": {"name": "a"}}
    request = build_request("create", POD_GROUP, Key("default", ""), body=body)
    assert request.path == "/apis/scheduling.k8s.io/v1beta1/namespaces/default/podgroups"
    assert request.body is body
    assert request.headers == {"accept": JSON, "content-type": JSON}


def test_a_subresource_and_a_content_type_have_their_places() -> None:
    request = build_request(
        "patch", NODE, Key("", "n"), subresource="status", body=b"{}", content=MERGE_PATCH
    )
    assert request.path == "/api/v1/nodes/n/status"
    assert request.headers["content-type"] == MERGE_PATCH


def test_a_request_without_a_body_says_nothing_about_one() -> None:
    assert build_request("get", POD, A).headers == {"accept": JSON}


def test_options_are_encoded_and_empty_ones_left_out() -> None:
    request = collection_request(
        "list", POD, {"label_selector": "a=b,c", "field_selector": ""}, {"limit": 5, "continue": ""}
    )
    assert request.path == "/api/v1/pods"
    assert request.query == "labelSelector=a%3Db%2Cc&limit=5"


def test_a_watch_asks_for_bookmarks_and_is_known_as_a_watch() -> None:
    request = collection_request("watch", POD, {"namespace": "default"}, {"resourceVersion": 7})
    assert request.path == "/api/v1/namespaces/default/pods"
    assert request.query == "watch=true&allowWatchBookmarks=true&resourceVersion=7"
    assert is_watch(request)
    assert not is_watch(collection_request("list", POD, {}, {}))


@pytest.mark.parametrize("verb", ["get", "update", "patch", "delete"])
def test_no_object_is_reached_without_its_name(verb: str) -> None:
    with pytest.raises(BadRequest, match="is empty"):
        build_request(verb, POD, Key("default", ""))


@pytest.mark.parametrize("name", ["..", ".", "a/b", "../../secrets/x", "a%2fb"])
def test_a_name_cannot_lead_to_another_path(name: str) -> None:
    with pytest.raises(BadRequest, match="is no name"):
        build_request("get", POD, Key("default", name))
    with pytest.raises(BadRequest, match="is no name"):
        build_request("get", POD, Key(name, "a"))


def test_a_merge_patch_stays_an_object_and_a_json_patch_becomes_bytes() -> None:
    merge: Object = {"spec": {}}
    operations = [{"op": "remove", "path": "/spec"}]
    assert encode_patch(merge) is merge
    assert encode_patch(operations) == orjson.dumps(operations)


def test_delete_options_say_only_what_was_given() -> None:
    bare = {"kind": "DeleteOptions", "apiVersion": "v1"}
    assert delete_options("", "", None, "") == bare
    assert delete_options("u", "7", 0, "Foreground") == {
        **bare,
        "gracePeriodSeconds": 0,
        "preconditions": {"uid": "u", "resourceVersion": "7"},
        "propagationPolicy": "Foreground",
    }
