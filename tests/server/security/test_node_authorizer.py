"""A node is itself, its lease and its pods, and nobody else."""

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


async def two_nodes() -> Api:
    """Two nodes and a pod on each; the first one's uses a map and two secrets."""
    api = await Api.start()
    await api.create(NODE, machine("n1"), machine("n2"))
    uses = {
        "volumes": [
            {"name": "c", "configMap": {"name": "used"}},
            {"name": "s", "projected": {"sources": [{"secret": {"name": "shown"}}]}},
        ],
        "imagePullSecrets": [{"name": "used"}],
    }
    await api.create(POD, pod("mine", on="n1", spec=uses), pod("other", on="n2"), pod("free"))
    for kind in (CONFIG_MAP, SECRET):
        for name in ("used", "shown", "unused"):
            await api.create(kind, {"metadata": {"name": name, "namespace": "default"}})
    return api


async def codes(api: Api, who: UserInfo, *asked: tuple[str, str], body: object = b"") -> list[int]:
    headers = {"PATCH": MERGE}
    return [
        (await api.ask(method, path, body, user=who, headers=headers.get(method))).code
        for method, path in asked
    ]


@in_virtual_time
async def test_a_node_writes_of_itself_alone() -> None:
    api = await two_nodes()
    change = {"metadata": {"labels": {"a": "b"}}}
    paths = [
        ("PATCH", NODE.url_path("", name, part)) for name in ("n1", "n2") for part in ("", "status")
    ]
    assert await codes(api, N1, *paths, body=change) == [200, 200, 403, 403]
    assert await codes(api, N1, ("DELETE", NODE.url_path("", "n1"))) == [403]
    assert await codes(api, N1, ("POST", NODE.url_path()), body=machine("n3")) == [403]
    assert await codes(api, node_user("n3"), ("POST", NODE.url_path()), body=machine("n3")) == [201]


@in_virtual_time
async def test_a_node_gives_itself_no_label_by_which_others_choose_and_lifts_no_taint() -> None:
    api = await two_nodes()
    for change in (
        {"metadata": {"labels": {"node-restriction.kubernetes.io/x": "y"}}},
        {"metadata": {"labels": {"sub.node-restriction.kubernetes.io/x": "y"}}},
        {"spec": {"taints": None}},
    ):
        assert await codes(api, N1, ("PATCH", NODE.url_path("", "n1")), body=change) == [403]


@in_virtual_time
async def test_a_node_reads_itself_and_its_pods() -> None:
    api = await two_nodes()
    assert await codes(
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
    assert await codes(api, N1, ("GET", POD.url_path()), ("GET", NODE.url_path())) == [403, 403]


@in_virtual_time
async def test_a_node_says_how_its_own_pods_do_and_ends_them() -> None:
    api = await two_nodes()
    parts = [
        ("PATCH", POD.url_path("default", name, "status")) for name in ("mine", "other", "free")
    ]
    assert await codes(api, N1, *parts, body=STATUS) == [200, 403, 403]
    pods = [("PATCH", POD.url_path("default", name)) for name in ("mine", "other")]
    assert await codes(api, N1, *pods, body={"metadata": {"labels": {"a": "b"}}}) == [403, 403]
    assert await codes(api, N1, ("POST", POD.url_path("default")), body=pod("new", on="n1")) == [
        403
    ]
    bind = {"target": {"kind": "Node", "name": "n1"}}
    assert await codes(
        api, N1, ("POST", POD.url_path("default", "free", "binding")), body=bind
    ) == [403]
    gone = [("DELETE", POD.url_path("default", name)) for name in ("mine", "other", "free")]
    assert await codes(api, N1, *gone) == [200, 403, 403]


@in_virtual_time
async def test_a_node_writes_the_logs_of_its_own_pods_alone() -> None:
    api = await two_nodes()
    text = {"container": "main", "text": "hello"}
    logs = [("POST", POD.url_path("default", name, "log")) for name in ("mine", "other", "free")]
    # It is heard, and told that it is no process node.
    assert await codes(api, N1, *logs, body=text) == [400, 403, 403]


@in_virtual_time
async def test_a_pod_that_merely_mentions_a_node_is_not_its_own() -> None:
    api = await two_nodes()
    mentions = {"labels": {"nodeName": "n1"}, "annotations": {"spec": '{"nodeName":"n1"}'}}
    await api.create(POD, pod("sly", meta=mentions), pod("slyer", on="n2", meta=mentions))
    asked = [("PATCH", POD.url_path("default", name, "status")) for name in ("sly", "slyer")]
    assert await codes(api, N1, *asked, body=STATUS) == [403, 403]


@in_virtual_time
async def test_a_node_reads_what_its_pods_use() -> None:
    api = await two_nodes()
    found = {
        (kind.name, name): (await codes(api, N1, ("GET", kind.url_path("default", name))))[0]
        for kind in (CONFIG_MAP, SECRET)
        for name in ("used", "shown", "unused")
    }
    allowed = {place for place, code in found.items() if code == 200}
    assert allowed == {("ConfigMap", "used"), ("Secret", "used"), ("Secret", "shown")}
    assert await codes(api, N1, ("GET", SECRET.url_path("default"))) == [403]


@in_virtual_time
async def test_a_node_has_one_lease() -> None:
    api = await two_nodes()
    space = "kube-node-lease"
    for name, code in (("n1", 201), ("n2", 403)):
        lease = {"metadata": {"name": name}, "spec": {}}
        assert await codes(api, N1, ("POST", LEASE.url_path(space)), body=lease) == [code]
        assert await codes(api, N1, ("GET", LEASE.url_path(space, name))) == [
            200 if code == 201 else 403
        ]
    lease = {"metadata": {"name": "n1"}, "spec": {}}
    assert await codes(api, N1, ("POST", LEASE.url_path("default")), body=lease) == [403]
    renewal = {"renewTime": "2027-01-15T08:00:00.000000Z", "leases": [{"name": "n1"}]}
    path = f"/apis/phalanx.dev/v1alpha1/namespaces/{space}/leaserenewals"
    assert await codes(api, N1, ("POST", path), body=renewal) == [403]


@in_virtual_time
async def test_a_name_alone_makes_no_node() -> None:
    api = await two_nodes()
    stranger = authenticated_user("system:node:n1")
    assert await codes(api, stranger, ("GET", NODE.url_path("", "n1"))) == [403]
    other = UserInfo("n1", ("system:nodes", "system:authenticated"))
    assert await codes(api, other, ("GET", NODE.url_path("", "n1"))) == [403]
