"""Every component has its own identity and only the permissions that it uses."""

from __future__ import annotations

import asyncio

from phalanx import components as components
from phalanx.api.kinds import CRON_JOB, EVENT, JOB, NAMESPACE, NODE, POD
from phalanx.api.meta import Key
from phalanx.api.wire import Object, UserInfo
from phalanx.controllers.registry import CONTROLLERS as CONTROLLERS
from phalanx.server.security.bootstrap_policy import CLUSTER_BINDINGS, CONTROLLER_RULES
from phalanx.server.security.rbac import ALL, AuthorizationAttributes
from phalanx.server.security.users import authenticated_user, service_account_user
from tests.builders import gang, in_virtual_time, pod
from tests.controllers.cluster import Cluster, cluster, simulated_nodes
from tests.controllers.foreign_cluster import ScriptedTransport, foreign_cluster, running_scheduler
from tests.server.security.test_audit import MemoryAuditLog

TEMPLATE = {
    "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "i"}]},
    "metadata": {"annotations": {"phalanx.dev/run-seconds": "1"}},
}  # fmt: skip
WORK: Object = {"parallelism": 2, "completions": 2, "template": TEMPLATE}


def high() -> Object:
    return {
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"},
        "value": 7,
    }  # fmt: skip


async def run_busy_hour(c: Cluster) -> None:
    """Run a gang, a Job with a TTL, a CronJob, a deleted namespace, and a lost node."""
    await c.create(*gang("g", 2))
    client = c.client
    done = {**WORK, "ttlSecondsAfterFinished": 1}
    await client.create(JOB, {"metadata": {"name": "j", "namespace": "default"}, "spec": done})
    cron = {"schedule": "* * * * *", "jobTemplate": {"spec": WORK}}
    await client.create(CRON_JOB, {"metadata": {"name": "c", "namespace": "default"}, "spec": cron})
    await client.create(NAMESPACE, {"metadata": {"name": "goes"}})
    await c.create(pod("p", namespace="goes"))
    await client.delete(NAMESPACE, Key("", "goes"))
    await client.delete(NODE, Key("", "n1"))

    async def is_over() -> bool:
        return c.clock.now() > 1_800_000_180.0

    await c.until(is_over, seconds=200)


@in_virtual_time
async def test_no_component_is_denied_a_request_and_none_is_a_cluster_admin() -> None:
    async with cluster(nodes=simulated_nodes(3)) as c:
        c.plane.server.audit = audit_log = MemoryAuditLog(c.clock)
        await run_busy_hour(c)
    parts = [row for row in audit_log.rows if row["user"] != "user"]
    assert [row for row in parts if row["decision"] == "forbid"] == []
    assert not [row for row in parts if "system:masters" in row["groups"]]
    prefix = "system:serviceaccount:kube-system:"
    assert {row["user"].removeprefix(prefix) for row in parts} >= {
        "system:kube-scheduler", "system:phalanx:simulated-nodes", "system:node:n0",
        "system:node:n1", "system:node:n2", "job-controller",
        "cronjob-controller", "namespace-controller", "ttl-after-finished-controller",
        "service-account-controller", "generic-garbage-collector",
    }  # fmt: skip


@in_virtual_time
async def test_a_simulated_node_writes_only_its_own_pods_and_lease() -> None:
    async with cluster(nodes=simulated_nodes(3, cpu="1")) as c:
        c.plane.server.audit = audit_log = MemoryAuditLog(c.clock)
        await c.create(*gang("g", 3, cpu="1"))
        await c.until_placed("g-0", "g-1", "g-2")
        placed = await c.node_by_pod()
        await asyncio.sleep(30)
        for name in placed:
            await c.delete(POD, name)
        await asyncio.sleep(60)
        assert await c.node_by_pod() == {}
    nodes = [row for row in audit_log.rows if row["user"].startswith("system:node:")]
    touched = {(row["user"], row["name"]) for row in nodes if row["resource"] == "pods"}
    assert touched == {(f"system:node:{node}", name) for name, node in placed.items()}
    leases = {(row["user"], row["name"]) for row in nodes if row["resource"] == "leases"}
    assert leases <= {(f"system:node:{name}", name) for name in placed.values()}
    together = [row for row in audit_log.rows if row["user"] == "system:phalanx:simulated-nodes"]
    assert {row["resource"] for row in together} == {"leaserenewals"}


@in_virtual_time
async def test_the_registering_client_may_not_write_pods_or_other_leases() -> None:
    async with cluster(nodes=simulated_nodes(1)) as c:
        access = c.plane.server.access
        for name in ("system:phalanx:simulated-nodes", "system:phalanx:process-nodes"):
            renewals = [
                access.allows(
                    authenticated_user(name),
                    AuthorizationAttributes("create", "phalanx.dev", "leaserenewals", space),
                )
                for space in ("kube-node-lease", "kube-system", "default")
            ]
            assert renewals == [True, False, False]
            for ask in (
                AuthorizationAttributes("patch", "", "pods/status", "default"),
                AuthorizationAttributes("delete", "", "pods", "default"),
                AuthorizationAttributes("patch", "", "nodes/status"),
                AuthorizationAttributes("delete", "", "nodes"),
                AuthorizationAttributes(
                    "patch", "coordination.k8s.io", "leases", "kube-node-lease"
                ),
                AuthorizationAttributes("create", "", "pods/log", "default"),
                AuthorizationAttributes("get", "", "pods", "default"),
            ):
                assert not access.allows(authenticated_user(name), ask), ask


def accounts() -> list[UserInfo]:
    """The service accounts of the controllers."""
    names = [
        components._SERVICE_ACCOUNTS.get(row.name, f"{row.name}-controller")
        for row in CONTROLLERS
        if row.runs_on_phalanx
    ]
    return [service_account_user("kube-system", name) for name in names]


def test_every_controller_has_its_own_role_and_every_role_a_controller() -> None:
    assert {user.name.rpartition(":")[2] for user in accounts()} == set(CONTROLLER_RULES)
    assert {f"system:controller:{name}" for name in CONTROLLER_RULES} <= set(CLUSTER_BINDINGS)


#: The controllers that delete objects of any kind.
SWEEPERS = ("generic-garbage-collector", "namespace-controller")


def test_only_garbage_collection_controllers_may_access_all_kinds() -> None:
    wide = {
        name for name, rules in CONTROLLER_RULES.items() if any(ALL in r.resources for r in rules)
    }
    assert wide == {*SWEEPERS}


@in_virtual_time
async def test_no_component_has_permissions_that_it_does_not_need() -> None:
    async with cluster() as c:
        access = c.plane.server.access
        for user in accounts():
            if user.name.endswith(SWEEPERS):
                continue
            for ask in (
                AuthorizationAttributes("get", "", "secrets", "default"),
                AuthorizationAttributes("create", "", "nodes"),
                AuthorizationAttributes("bind", "rbac.authorization.k8s.io", "clusterroles"),
                AuthorizationAttributes("impersonate", "", "users"),
                AuthorizationAttributes("create", "", "pods/binding", "default"),
                AuthorizationAttributes("create", "phalanx.dev", "groupbindings", "default"),
            ):
                assert not access.allows(user, ask), (user.name, ask)


@in_virtual_time
async def test_a_bind_and_its_events_share_a_request_id() -> None:
    async with cluster(nodes=simulated_nodes(2)) as c:
        c.plane.server.audit = audit_log = MemoryAuditLog(c.clock)
        await c.create(*gang("g", 2))
        await c.until_placed("g-0", "g-1")
        events = (await c.client.list(EVENT)).items
    matching = [one for one in events if one["reason"] == "Scheduled"]
    request_ids = {one["metadata"]["annotations"]["phalanx.dev/request"] for one in matching}
    binds = {row["id"] for row in audit_log.rows if row.get("resource") == "groupbindings"}
    assert len(matching) == 2
    assert request_ids == binds


@in_virtual_time
async def test_an_eviction_and_its_events_share_a_request_id() -> None:
    async with cluster(nodes=simulated_nodes(1, cpu="2")) as c:
        await c.create(high(), *gang("low", 2, cpu="1"))
        await c.until_placed("low-0", "low-1")
        c.plane.server.audit = audit_log = MemoryAuditLog(c.clock)
        await c.create(pod("vip", cpu="2", spec={"priorityClassName": "high"}))
        await c.until_placed("vip")
        await asyncio.sleep(5)
        events = (await c.client.list(EVENT)).items
    matching = [one for one in events if one["reason"] == "Preempted"]
    request_ids = {one["metadata"]["annotations"]["phalanx.dev/request"] for one in matching}
    evictions = {row["id"] for row in audit_log.rows if row.get("resource") == "groupevictions"}
    assert len(matching) == 2
    assert request_ids == evictions


@in_virtual_time
async def test_on_a_foreign_server_binds_and_events_share_a_request_id() -> None:
    async with (
        foreign_cluster(1, cpu="2") as c,
        running_scheduler(c, transport := ScriptedTransport(c)),
    ):
        await c.create(high(), *gang("low", 2, cpu="1"))
        await c.until_placed("low-0", "low-1")
        await c.create(pod("vip", cpu="2", spec={"priorityClassName": "high"}))
        await c.until_placed("vip")
        await asyncio.sleep(5)
        events = (await c.client.list(EVENT)).items
    sent = {
        (one.path.rpartition("pods/")[2], one.headers.get("audit-id")) for one in transport.writes
    }
    for event in events:
        name, reason = event["involvedObject"]["name"], event["reason"]
        act = {"Scheduled": f"{name}/binding", "Preempted": name}.get(reason)
        if act is not None:
            assert (act, event["metadata"]["annotations"]["phalanx.dev/request"]) in sent
    assert {event["reason"] for event in events} >= {"Scheduled", "Preempted"}
