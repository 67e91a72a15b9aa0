"""A node's credential reaches its own Node, Lease and pods, and no others."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest

from phalanx.api.kinds import (
    CONFIG_MAP,
    LEASE,
    NODE,
    POD,
    RESOURCE_CLAIM,
    SECRET,
    SERVICE_ACCOUNT,
)
from phalanx.api.wire import Object, Request, StreamReply, UserInfo
from phalanx.server.security.users import authenticated_user, node_user
from tests.builders import in_virtual_time, pod
from tests.builders import node as machine
from tests.server.api import Api

N1 = node_user("n1")
STATUS = {"status": {"phase": "Running"}}
MERGE = {"content-type": "application/merge-patch+json"}


async def start_with_two_nodes() -> Api:
    """Start a server with a pod on each of two nodes; n1's uses a ConfigMap and two Secrets."""
    api = await Api.start()
    await api.create(NODE, machine("n1"), machine("n2"))
    spec = {
        "volumes": [
            {"name": "c", "configMap": {"name": "used"}},
            {"name": "s", "projected": {"sources": [{"secret": {"name": "shown"}}]}},
        ],
        "imagePullSecrets": [{"name": "used"}],
    }
    await api.create(POD, pod("mine", on="n1", spec=spec), pod("other", on="n2"), pod("free"))
    for kind in (CONFIG_MAP, SECRET):
        for name in ("used", "shown", "unused"):
            await api.create(kind, {"metadata": {"name": name, "namespace": "default"}})
    return api


async def response_codes(
    api: Api, user: UserInfo, *requests: tuple[str, str], body: object = b""
) -> list[int]:
    headers = {"PATCH": MERGE}
    return [
        (await api.ask(method, path, body, user=user, headers=headers.get(method))).code
        for method, path in requests
    ]


@in_virtual_time
async def test_node_writes_only_its_own_object() -> None:
    api = await start_with_two_nodes()
    change = {"metadata": {"labels": {"a": "b"}}}
    paths = [
        ("PATCH", NODE.url_path("", name, part)) for name in ("n1", "n2") for part in ("", "status")
    ]
    assert await response_codes(api, N1, *paths, body=change) == [200, 200, 403, 403]
    assert await response_codes(api, N1, ("DELETE", NODE.url_path("", "n1"))) == [403]
    assert await response_codes(api, N1, ("POST", NODE.url_path()), body=machine("n3")) == [403]
    assert await response_codes(
        api, node_user("n3"), ("POST", NODE.url_path()), body=machine("n3")
    ) == [201]


OWNER = {"apiVersion": "v1", "kind": "Namespace", "name": "gone", "uid": "1"}


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"labels": {"node-restriction.kubernetes.io/x": "y"}}},
        {"metadata": {"labels": {"sub.node-restriction.kubernetes.io/x": "y"}}},
        {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}},
        {"metadata": {"labels": {"scheduler.k8s.io/x": "y"}}},
        {"metadata": {"ownerReferences": [OWNER]}},
        {"spec": {"taints": None}},
    ],
    ids=str,
)
@in_virtual_time
async def test_node_may_not_change_reserved_labels_owners_or_taints(change: Object) -> None:
    api = await start_with_two_nodes()
    path = NODE.url_path("", "n1")
    assert await response_codes(api, N1, ("PATCH", path), body=change) == [403]
    shown = (await api.ask("GET", path)).body
    assert "ownerReferences" not in shown["metadata"]
    assert shown["spec"]["taints"]


@pytest.mark.parametrize(
    "label",
    ["team", "example.com/x", "kubernetes.io/hostname", "node.kubernetes.io/x",
     "x.kubelet.kubernetes.io/x", "topology.kubernetes.io/zone"],
)  # fmt: skip
@in_virtual_time
async def test_node_may_change_labels_that_describe_it(label: str) -> None:
    api = await start_with_two_nodes()
    change = {"metadata": {"labels": {label: "y"}}}
    path = NODE.url_path("", "n1")
    assert await response_codes(api, N1, ("PATCH", path), body=change) == [200]


@in_virtual_time
async def test_node_cannot_drop_its_taints_by_deletion_and_registration() -> None:
    api = await start_with_two_nodes()
    taints = [{"key": "dedicated", "value": "team", "effect": "NoSchedule"}]
    await api.ask("PATCH", NODE.url_path("", "n1"), {"spec": {"taints": taints}}, headers=MERGE)
    for method, path in (("DELETE", NODE.url_path("", "n1")), ("DELETE", NODE.url_path())):
        assert await response_codes(api, N1, (method, path)) == [403]
    assert await response_codes(api, N1, ("POST", NODE.url_path()), body=machine("n1")) == [409]
    replaced = {**machine("n1"), "spec": {}}
    assert await response_codes(api, N1, ("PUT", NODE.url_path("", "n1")), body=replaced) == [403]
    assert (await api.ask("GET", NODE.url_path("", "n1"))).body["spec"]["taints"] == taints
    # An owner would let the garbage collector delete a node that has just registered.
    owned = machine("n3")
    owned["metadata"]["ownerReferences"] = [OWNER]
    n3 = node_user("n3")
    assert await response_codes(api, n3, ("POST", NODE.url_path()), body=owned) == [403]
    assert await response_codes(api, n3, ("PUT", NODE.url_path("", "n3")), body=owned) == [404]
    assert await response_codes(api, n3, ("POST", NODE.url_path()), body=machine("n3")) == [201]


@in_virtual_time
async def test_node_reads_only_itself_and_its_pods() -> None:
    api = await start_with_two_nodes()
    assert await response_codes(
        api, N1,
        *(("GET", NODE.url_path("", name)) for name in ("n1", "n2")),
        *(("GET", POD.url_path("default", name)) for name in ("mine", "other", "free", "none")),
    ) == [200, 403, 200, 403, 403, 403]  # fmt: skip
    for path, field, codes_of in (
        (POD.url_path(), "spec.nodeName=", {"n1": 200, "n2": 403, "": 403, "n1,x": 403}),
        (NODE.url_path(), "metadata.name=", {"n1": 200, "n2": 403}),
        (POD.url_path(), "spec.nodeName!=", {"n1": 403}),
    ):
        for value, code in codes_of.items():
            query = {"fieldSelector": f"{field}{value}"}
            assert (await api.ask("GET", path, user=N1, query=query)).code == code, query
    assert await response_codes(api, N1, ("GET", POD.url_path()), ("GET", NODE.url_path())) == [
        403,
        403,
    ]


@in_virtual_time
async def test_node_lists_a_secret_or_config_map_of_its_pods_by_name_only() -> None:
    api = await start_with_two_nodes()
    for kind in (CONFIG_MAP, SECRET):
        for path, selector, code in (
            (kind.url_path("default"), "metadata.name=used", 200),
            (kind.url_path("default"), "metadata.name=unused", 403),
            (kind.url_path("default"), "metadata.name!=used", 403),
            (kind.url_path("default"), "metadata.name=", 403),
            (kind.url_path("default"), "", 403),
            (kind.url_path("kube-system"), "metadata.name=used", 403),
            (kind.url_path(), "metadata.name=used", 403),
        ):
            reply = await api.ask("GET", path, user=N1, query={"fieldSelector": selector})
            assert reply.code == code, (path, selector)
            if code == 200:
                assert [one["metadata"]["name"] for one in reply.body["items"]] == ["used"]
        query = {"fieldSelector": "metadata.name=used"}
        reply = await api.ask("DELETE", kind.url_path("default"), user=N1, query=query)
        assert reply.code == 403


@pytest.mark.parametrize(
    ("path", "selector"),
    [
        ("/api/v1/watch/namespaces/default/pods/other", "spec.nodeName=n1"),
        ("/api/v1/watch/nodes/n2", "metadata.name=n1"),
    ],
)
@in_virtual_time
async def test_node_cannot_watch_a_name_instead_of_its_selector(path: str, selector: str) -> None:
    api = await start_with_two_nodes()
    reply = await api.ask("GET", path, user=N1, query={"fieldSelector": selector})
    assert (reply.code, reply.body["message"]) == (
        400,
        "both a name and a field selector provided; please provide one or the other",
    )
    assert (await api.ask("GET", path, user=N1)).code == 403


@in_virtual_time
async def test_watch_of_a_name_keeps_the_other_terms_of_its_selector() -> None:
    api = await start_with_two_nodes()
    for name, types in {"mine": [b"ADDED"], "other": []}.items():
        selector = f"metadata.name={name},spec.nodeName=n1"
        query = urlencode({"fieldSelector": selector, "timeoutSeconds": 1})
        path = f"/api/v1/watch/namespaces/default/pods/{name}"
        reply = await api.server.handle(Request("GET", path, query, user=N1))
        assert isinstance(reply, StreamReply)
        assert [chunk[9:14] async for chunk in reply.chunks] == types


@in_virtual_time
async def test_node_cannot_change_the_labels_and_owners_of_its_pods() -> None:
    api = await start_with_two_nodes()
    path = POD.url_path("default", "mine", "status")
    labels = {"metadata": {"labels": {"app": "database"}}, **STATUS}
    reply = await api.ask("PATCH", path, labels, user=N1, headers=MERGE)
    assert (reply.code, reply.body["message"]) == (
        403,
        'pods "mine" is forbidden: node "n1" cannot update labels through pod status',
    )
    owners = {"metadata": {"ownerReferences": [OWNER]}, **STATUS}
    assert (await api.ask("PATCH", path, owners, user=N1, headers=MERGE)).code == 200
    shown = await api.get(POD, "mine")
    assert shown["status"]["phase"] == "Running"
    assert "labels" not in shown["metadata"]
    assert "ownerReferences" not in shown["metadata"]


@in_virtual_time
async def test_node_writes_the_status_of_its_own_pods_and_deletes_them() -> None:
    api = await start_with_two_nodes()
    parts = [
        ("PATCH", POD.url_path("default", name, "status")) for name in ("mine", "other", "free")
    ]
    assert await response_codes(api, N1, *parts, body=STATUS) == [200, 403, 403]
    pods = [("PATCH", POD.url_path("default", name)) for name in ("mine", "other")]
    assert await response_codes(api, N1, *pods, body={"metadata": {"labels": {"a": "b"}}}) == [
        403,
        403,
    ]
    assert await response_codes(
        api, N1, ("POST", POD.url_path("default")), body=pod("new", on="n1")
    ) == [403]
    bind = {"target": {"kind": "Node", "name": "n1"}}
    assert await response_codes(
        api, N1, ("POST", POD.url_path("default", "free", "binding")), body=bind
    ) == [403]
    deletions = [("DELETE", POD.url_path("default", name)) for name in ("mine", "other", "free")]
    assert await response_codes(api, N1, *deletions) == [200, 403, 403]


@in_virtual_time
async def test_node_writes_the_logs_of_its_own_pods_only() -> None:
    api = await start_with_two_nodes()
    text = {"container": "main", "text": "hello"}
    logs = [("POST", POD.url_path("default", name, "log")) for name in ("mine", "other", "free")]
    # 405 means authorized: n1 is not a process node.
    assert await response_codes(api, N1, *logs, body=text) == [405, 403, 403]


@in_virtual_time
async def test_pod_that_mentions_a_node_in_its_metadata_is_not_its_own() -> None:
    api = await start_with_two_nodes()
    mentions = {"labels": {"nodeName": "n1"}, "annotations": {"spec": '{"nodeName":"n1"}'}}
    await api.create(POD, pod("sly", meta=mentions), pod("slyer", on="n2", meta=mentions))
    requests = [("PATCH", POD.url_path("default", name, "status")) for name in ("sly", "slyer")]
    assert await response_codes(api, N1, *requests, body=STATUS) == [403, 403]


@in_virtual_time
async def test_node_reads_the_config_maps_and_secrets_of_its_pods() -> None:
    api = await start_with_two_nodes()
    found = {
        (kind.name, name): (await response_codes(api, N1, ("GET", kind.url_path("default", name))))[
            0
        ]
        for kind in (CONFIG_MAP, SECRET)
        for name in ("used", "shown", "unused")
    }
    allowed = {place for place, code in found.items() if code == 200}
    assert allowed == {("ConfigMap", "used"), ("Secret", "used"), ("Secret", "shown")}
    assert await response_codes(api, N1, ("GET", SECRET.url_path("default"))) == [403]


@in_virtual_time
async def test_node_reads_the_resource_claims_of_its_pods() -> None:
    api = await start_with_two_nodes()
    entries = [
        {"name": "a", "resourceClaimName": "named"},
        {"name": "b", "resourceClaimTemplateName": "t"},
    ]
    await api.create(POD, pod("claims", on="n1", spec={"resourceClaims": entries}))
    mapping = {"containerName": "main", "resourceName": "a.b/c", "requestName": "r"}
    extended = {"resourceClaimName": "extended", "requestMappings": [mapping]}
    statuses = [{"name": "b", "resourceClaimName": "created"}]
    status = {"resourceClaimStatuses": statuses, "extendedResourceClaimStatus": extended}
    path = POD.url_path("default", "claims", "status")
    assert (await api.ask("PATCH", path, {"status": status}, headers=MERGE)).code == 200
    requests = [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]
    names = ("named", "created", "extended", "of-others")
    for name in names:
        meta = {"name": name, "namespace": "default"}
        claim = {"metadata": meta, "spec": {"devices": {"requests": requests}}}
        await api.create(RESOURCE_CLAIM, claim)
    paths = [("GET", RESOURCE_CLAIM.url_path("default", name)) for name in names]
    assert await response_codes(api, N1, *paths) == [200, 200, 200, 403]
    assert await response_codes(api, node_user("n2"), *paths) == [403] * 4


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (
            {"resourceClaimStatuses": [{"name": "c", "resourceClaimName": "of-others"}]},
            "resource claim statuses",
        ),
        (
            {
                "extendedResourceClaimStatus": {
                    "resourceClaimName": "of-others",
                    "requestMappings": [
                        {"containerName": "main", "resourceName": "a.b/c", "requestName": "r"}
                    ],
                }
            },
            "extended resource claim status",
        ),
    ],
)
@in_virtual_time
async def test_node_cannot_choose_the_resource_claims_of_its_pods(
    status: Object, message: str
) -> None:
    api = await start_with_two_nodes()
    claims = [{"name": "c", "resourceClaimTemplateName": "t"}]
    await api.create(POD, pod("claims", on="n1", spec={"resourceClaims": claims}))
    path = POD.url_path("default", "claims", "status")
    reply = await api.ask("PATCH", path, {"status": status}, user=N1, headers=MERGE)
    assert (reply.code, reply.body["message"]) == (
        403,
        f'pods "claims" is forbidden: node "n1" cannot update {message}',
    )
    assert (await api.ask("PATCH", path, {"status": status}, headers=MERGE)).code == 200
    assert (await api.ask("PATCH", path, STATUS, user=N1, headers=MERGE)).code == 200


@in_virtual_time
async def test_node_requests_tokens_bound_to_its_own_pods_only() -> None:
    api = await start_with_two_nodes()
    await api.create(SERVICE_ACCOUNT, {"metadata": {"name": "default", "namespace": "default"}})
    path = SERVICE_ACCOUNT.url_path("default", "default", "token")
    uids = {name: (await api.get(POD, name))["metadata"]["uid"] for name in ("mine", "other")}
    reference = {"apiVersion": "v1", "kind": "Pod", "name": "mine", "uid": uids["mine"]}
    unbound = "node requested token not bound to a pod"
    mismatch = (
        "the UID in the bound object reference (1) does not match the UID in record. "
        "The object might have been deleted and then recreated"
    )
    for bound_object, reason in (
        (None, unbound),
        ({"apiVersion": "v1", "kind": "Secret", "name": "used"}, unbound),
        ({**reference, "apiVersion": "v2"}, unbound),
        ({**reference, "name": ""}, unbound),
        ({**reference, "uid": ""}, "node requested token with a pod binding without a uid"),
        ({**reference, "uid": "1"}, mismatch),
        (
            {**reference, "name": "other", "uid": uids["other"]},
            "node requested token bound to a pod scheduled on a different node",
        ),
    ):
        reply = await api.ask("POST", path, {"spec": {"boundObjectRef": bound_object}}, user=N1)
        message = f'serviceaccounts "default" is forbidden: {reason}'
        assert (reply.code, reply.body["message"]) == (403, message), bound_object
    missing = {"spec": {"boundObjectRef": {**reference, "name": "missing"}}}
    assert (await api.ask("POST", path, missing, user=N1)).code == 404
    body = {"spec": {"boundObjectRef": reference}}
    assert (await api.ask("POST", path, body, user=N1)).code == 201


@in_virtual_time
async def test_node_writes_only_its_own_lease() -> None:
    api = await start_with_two_nodes()
    namespace = "kube-node-lease"
    for name, code in (("n1", 201), ("n2", 403)):
        lease = {"metadata": {"name": name}, "spec": {}}
        assert await response_codes(api, N1, ("POST", LEASE.url_path(namespace)), body=lease) == [
            code
        ]
        assert await response_codes(api, N1, ("GET", LEASE.url_path(namespace, name))) == [
            200 if code == 201 else 403
        ]
    lease = {"metadata": {"name": "n1"}, "spec": {}}
    assert await response_codes(api, N1, ("POST", LEASE.url_path("default")), body=lease) == [403]
    renewal = {"renewTime": "2027-01-15T08:00:00.000000Z", "leases": [{"name": "n1"}]}
    path = f"/apis/phalanx.dev/v1alpha1/namespaces/{namespace}/leaserenewals"
    assert await response_codes(api, N1, ("POST", path), body=renewal) == [403]


@in_virtual_time
async def test_node_needs_both_the_user_name_and_the_group() -> None:
    api = await start_with_two_nodes()
    without_group = authenticated_user("system:node:n1")
    assert await response_codes(api, without_group, ("GET", NODE.url_path("", "n1"))) == [403]
    without_name = UserInfo("n1", ("system:nodes", "system:authenticated"))
    assert await response_codes(api, without_name, ("GET", NODE.url_path("", "n1"))) == [403]
