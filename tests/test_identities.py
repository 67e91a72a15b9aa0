"""Each part of a control plane is somebody, and may no more than it does."""

from __future__ import annotations

from phalanx import control_plane
from phalanx.api.kinds import CRON_JOB, EVENT, JOB, NAMESPACE, NODE
from phalanx.api.meta import Key
from phalanx.api.wire import Object, User
from phalanx.controllers.roster import CONTROLLERS as ROSTER
from phalanx.server.security.roles import CLUSTER_BINDINGS, CONTROLLERS
from phalanx.server.security.rules import ALL, Ask
from phalanx.server.security.users import service_account
from tests.builders import gang, in_virtual_time, pod
from tests.controllers.cluster import Cluster, cluster, machines
from tests.server.security.test_audit import Pad

TEMPLATE = {
    "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "i"}]},
    "metadata": {"annotations": {"phalanx.dev/run-seconds": "1"}},
}  # fmt: skip
WORK: Object = {"parallelism": 2, "completions": 2, "template": TEMPLATE}


async def a_busy_hour(c: Cluster) -> None:
    """A gang, a Job that cleans up after itself, a CronJob, a namespace that goes, a dead node."""
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
async def test_no_part_asks_for_what_it_may_not_and_none_is_a_master() -> None:
    async with cluster(nodes=machines(3)) as c:
        c.plane.server.audit = pad = Pad(c.clock)
        await a_busy_hour(c)
    parts = [row for row in pad.rows if row["user"] != "user"]
    assert [row for row in parts if row["decision"] == "forbid"] == []
    assert not [row for row in parts if "system:masters" in row["groups"]]
    prefix = "system:serviceaccount:kube-system:"
    assert {row["user"].removeprefix(prefix) for row in parts} >= {
        "system:kube-scheduler", "system:phalanx:simulated-nodes", "job-controller",
        "cronjob-controller", "namespace-controller", "ttl-after-finished-controller",
        "service-account-controller", "generic-garbage-collector",
    }  # fmt: skip


def accounts() -> list[User]:
    """Whom the controllers ask as."""
    names = [control_plane._ACCOUNTS.get(row.name, f"{row.name}-controller") for row in ROSTER]
    return [service_account("kube-system", name) for name in names]


def test_every_controller_has_a_role_of_its_own_and_every_role_a_controller() -> None:
    assert {user.name.rpartition(":")[2] for user in accounts()} == set(CONTROLLERS)
    assert {f"system:controller:{name}" for name in CONTROLLERS} <= set(CLUSTER_BINDINGS)


#: Who cleans up after everybody must be able to touch everything.
SWEEPERS = ("generic-garbage-collector", "namespace-controller")


def test_only_those_who_clean_up_may_touch_everything() -> None:
    wide = {name for name, rules in CONTROLLERS.items() if any(ALL in r.resources for r in rules)}
    assert wide == {*SWEEPERS}


@in_virtual_time
async def test_no_part_may_read_or_write_what_is_none_of_its_business() -> None:
    async with cluster() as c:
        access = c.plane.server.access
        for user in accounts():
            if user.name.endswith(SWEEPERS):
                continue
            for ask in (
                Ask("get", "", "secrets", "default"), Ask("create", "", "nodes"),
                Ask("bind", "rbac.authorization.k8s.io", "clusterroles"),
                Ask("impersonate", "", "users"), Ask("create", "", "pods/binding", "default"),
                Ask("create", "phalanx.dev", "groupbindings", "default"),
            ):  # fmt: skip
                assert not access.allows(user, ask), (user.name, ask)


@in_virtual_time
async def test_one_number_leads_from_a_bind_to_its_events() -> None:
    async with cluster(nodes=machines(2)) as c:
        c.plane.server.audit = pad = Pad(c.clock)
        await c.create(*gang("g", 2))
        await c.until_placed("g-0", "g-1")
        events = (await c.client.list(EVENT)).items
    told = [one for one in events if one["reason"] == "Scheduled"]
    numbers = {one["metadata"]["annotations"]["phalanx.dev/request"] for one in told}
    binds = {row["id"] for row in pad.rows if row.get("resource") == "groupbindings"}
    assert len(told) == 2
    assert numbers == binds
