"""A node's credential reaches its own Node, Lease and pods, and no others."""

from __future__ import annotations

from phalanx.api.kinds import CONFIG_MAP, LEASE, NODE, POD, SECRET
from phalanx.api.wire import UserInfo
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


@in_virtual_time
async def test_node_may_not_set_restricted_labels_or_change_taints() -> None:
    api = await start_with_two_nodes()
    for change in (
        {"metadata": {"labels": {"node-restriction.kubernetes.io/x": "y"}}},
        {"metadata": {"labels": {"sub.node-restriction.kubernetes.io/x": "y"}}},
        {"spec": {"taints": None}},
    ):
        assert await response_codes(api, N1, ("PATCH", NODE.url_path("", "n1")), body=change) == [
            403
        ]


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
    # 400 means authorized: n1 is not a process node.
    assert await response_codes(api, N1, *logs, body=text) == [400, 403, 403]


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
