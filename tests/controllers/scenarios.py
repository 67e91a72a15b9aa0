"""Fault trial scenarios of controllers, three for each; see `fault_trials.py`."""

from __future__ import annotations

from phalanx.api.kinds import (
    CLUSTER_ROLE,
    COMPOSITE_POD_GROUP,
    CONFIG_MAP,
    CRON_JOB,
    JOB,
    NAMESPACE,
    POD,
    POD_DISRUPTION_BUDGET,
    POD_GROUP,
    SERVICE_ACCOUNT,
    WORKLOAD,
    Kind,
)
from phalanx.api.meta import Key
from phalanx.api.scheduling import (
    COMPOSITE_INITIALLY_SCHEDULED,
    POD_GROUP_INITIALLY_SCHEDULED,
    POD_GROUP_PROTECTION_FINALIZER,
)
from phalanx.api.wire import STRATEGIC_PATCH, Object
from tests.builders import gang, pod, pod_group
from tests.controllers.jobs.job_controller_harness import job, workload
from tests.controllers.pod_groups.test_composite_groups import composite, leaf
from tests.controllers.trial_cluster import TrialCluster


def config_map(name: str, *owners: Object, space: str = "default") -> Object:
    meta = {"name": name, "namespace": space, "ownerReferences": list(owners)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta}


def namespace(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


async def owner_reference(stage: TrialCluster, name: str, **more: bool) -> Object:
    found = await stage.client.get(CONFIG_MAP, Key("default", name))
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": name}
    return {**reference, "uid": found["metadata"]["uid"], **more}


async def patch_status(stage: TrialCluster, kind: Kind, name: str, status: Object) -> None:
    """Write the status of an object as another component."""
    key = Key("default" if kind.namespaced else "", name)
    await stage.client.patch(
        kind, key, {"status": status}, subresource="status", content=STRATEGIC_PATCH
    )


# ---- PodGroup protection -------------------------------------------------------------------------


async def protects_a_group(stage: TrialCluster) -> None:
    await stage.create(*gang("train", 2))
    await stage.wait_until_idle()
    await stage.delete(POD_GROUP, "train")
    await stage.wait_until_idle()
    await stage.finish("Succeeded")
    await stage.wait_until_idle()
    await stage.create(*gang("next", 1))
    await stage.wait_until_idle()
    await stage.delete(POD_GROUP, "next")


async def protects_a_group_that_gains_a_member(stage: TrialCluster) -> None:
    await stage.create(*gang("train", 1))
    await stage.wait_until_idle()
    await stage.delete(POD_GROUP, "train")
    await stage.create(pod("late", "train"))
    await stage.wait_until_idle()
    await stage.delete(POD, "train-0")
    await stage.wait_until_idle()
    await stage.finish("Failed")


async def releases_groups_without_members(stage: TrialCluster) -> None:
    held = pod_group("held", 1)
    held["metadata"]["finalizers"] = ["example.com/hold"]
    await stage.create(pod_group("empty", 2), held, *gang("other", 1))
    await stage.wait_until_idle()
    for name in ("empty", "held"):
        await stage.delete(POD_GROUP, name)
    await stage.wait_until_idle()
    await stage.create(*gang("empty", 1))


# ---- composite groups ----------------------------------------------------------------------------


def _true_conditions(*more: str) -> list[Object]:
    return [
        {
            "type": one, "status": "True", "reason": "Test", "message": "",
            "lastTransitionTime": "2027-01-15T08:00:00Z",
        }
        for one in more
    ]  # fmt: skip


async def _create_tree(stage: TrialCluster) -> None:
    await stage.create(composite("root", 2), composite("branch", 1, parent="root"))
    await stage.create(leaf("alone", "root"), leaf("left", "branch"), leaf("right", "branch"))
    await stage.wait_until_idle()


async def counts_children_of_composites(stage: TrialCluster) -> None:
    await _create_tree(stage)
    for name in ("left", "alone"):
        status = {"conditions": _true_conditions(POD_GROUP_INITIALLY_SCHEDULED), "scheduledPods": 2}
        await patch_status(stage, POD_GROUP, name, status)
        await stage.wait_until_idle()
    await patch_status(stage, POD_GROUP, "right", {"pendingPods": 3, "failedPods": 1})


async def marks_degraded_composites(stage: TrialCluster) -> None:
    await _create_tree(stage)
    for name in ("left", "alone"):
        await patch_status(
            stage, POD_GROUP, name, {"conditions": _true_conditions(POD_GROUP_INITIALLY_SCHEDULED)}
        )
    placed = {"conditions": _true_conditions(COMPOSITE_INITIALLY_SCHEDULED)}
    await patch_status(stage, COMPOSITE_POD_GROUP, "root", placed)
    await stage.wait_until_idle()
    await patch_status(stage, POD_GROUP, "alone", {"conditions": _true_conditions("Degraded")})


async def removes_composites_from_the_leaves(stage: TrialCluster) -> None:
    held = {"finalizers": [POD_GROUP_PROTECTION_FINALIZER]}
    await stage.create(composite("root", 1, meta=held))
    await stage.create(composite("branch", 1, parent="root", meta=held), leaf("left", "branch"))
    for name in ("root", "branch"):
        await stage.delete(COMPOSITE_POD_GROUP, name)
    await stage.wait_until_idle()
    await stage.patch(POD_GROUP, "left", {"metadata": {"finalizers": None}})
    await stage.delete(POD_GROUP, "left")


# ---- groups of replicas --------------------------------------------------------------------------


def _replica(name: str, key: str) -> Object:
    reference = {"name": "w", "podGroup": "workers-0", "podGroupReplicaKey": key}
    return pod(name, spec={"workloadRef": reference})


async def creates_replica_groups(stage: TrialCluster) -> None:
    await stage.create(_replica("a", "0"))
    await stage.wait_until_idle()
    await stage.create(workload("w", 1))
    await stage.wait_until_idle()
    await stage.create(_replica("b-0", "0"), _replica("b-1", "1"))
    await stage.wait_until_idle()
    await stage.delete(POD_GROUP, "w-workers-0-1")


async def recreates_replica_groups(stage: TrialCluster) -> None:
    await stage.create(workload("w", 1), _replica("a", "0"), _replica("b", "1"))
    await stage.wait_until_idle()
    await stage.delete(WORKLOAD, "w")
    await stage.finish("Succeeded")
    await stage.wait_until_idle()
    await stage.create(workload("w", 2), _replica("c", "0"))


async def creates_no_replica_groups_for_finished_pods(stage: TrialCluster) -> None:
    await stage.create(_replica("a", "0"))
    await stage.wait_until_idle()
    await stage.finish("Succeeded")
    await stage.create(workload("w", 1))
    await stage.wait_until_idle()
    await stage.create(_replica("b", "1"))


# ---- garbage -------------------------------------------------------------------------------------


async def collects_dependents(stage: TrialCluster) -> None:
    await stage.create(*(config_map(name) for name in ("root", "kept", "last", "free")))
    root, kept = await owner_reference(stage, "root"), await owner_reference(stage, "kept")
    last = await owner_reference(stage, "last", blockOwnerDeletion=True)
    await stage.create(
        config_map("child", root), config_map("both", root, kept), config_map("slow", last),
        config_map("orphan", await owner_reference(stage, "free")),
    )  # fmt: skip
    await stage.create(config_map("grandchild", await owner_reference(stage, "child")))
    await stage.wait_until_idle()
    await stage.delete(CONFIG_MAP, "root", "Background")
    await stage.delete(CONFIG_MAP, "last", "Foreground")
    await stage.delete(CONFIG_MAP, "free", "Orphan")


async def collects_foreground_deletions(stage: TrialCluster) -> None:
    await stage.create(config_map("root"))
    await stage.create(
        config_map("child", await owner_reference(stage, "root", blockOwnerDeletion=True))
    )
    held = config_map("grandchild", await owner_reference(stage, "child", blockOwnerDeletion=True))
    held["metadata"]["finalizers"] = ["example.com/hold"]
    await stage.create(held)
    await stage.wait_until_idle()
    await stage.delete(CONFIG_MAP, "root", "Foreground")
    await stage.wait_until_idle()
    await stage.patch(CONFIG_MAP, "grandchild", {"metadata": {"finalizers": None}})


async def distinguishes_recreated_owners(stage: TrialCluster) -> None:
    await stage.create(config_map("root"))
    first = await owner_reference(stage, "root")
    await stage.create(config_map("child", first))
    await stage.wait_until_idle()
    await stage.delete(CONFIG_MAP, "root", "Background")
    await stage.create(config_map("root"))
    await stage.create(
        config_map("heir", await owner_reference(stage, "root")), config_map("late", first)
    )


# ---- namespaces ----------------------------------------------------------------------------------


async def empties_a_namespace(stage: TrialCluster) -> None:
    await stage.create(namespace("team"))
    await stage.create(config_map("a", space="team"), pod("p", namespace="team"))
    held = config_map("b", space="team")
    held["metadata"]["finalizers"] = ["example.com/hold"]
    await stage.create(held)
    await stage.wait_until_idle()
    await stage.delete(NAMESPACE, "team")
    await stage.wait(20)
    change = {"metadata": {"finalizers": None}}
    await stage.client.patch(CONFIG_MAP, Key("team", "b"), change)


async def empties_two_namespaces(stage: TrialCluster) -> None:
    for space in ("one", "two"):
        await stage.create(namespace(space), config_map("a", space=space))
        await stage.create(*gang("train", 2, namespace=space))
    await stage.wait_until_idle()
    for space in ("one", "two"):
        await stage.delete(NAMESPACE, space)


async def empties_a_namespace_that_is_recreated(stage: TrialCluster) -> None:
    await stage.create(namespace("team"))
    await stage.create(config_map("a", space="team"))
    await stage.wait_until_idle()
    await stage.delete(NAMESPACE, "team")
    await stage.wait_until_idle()
    await stage.create(namespace("team"))
    await stage.create(config_map("b", space="team"))


# ---- disruption budgets --------------------------------------------------------------------------


def _budget(**spec: object) -> Object:
    return {
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"name": "b", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "x"}}, **spec},
    }  # fmt: skip


_LABELLED: Object = {"labels": {"app": "x"}}


async def counts_for_a_budget(stage: TrialCluster) -> None:
    await stage.create(_budget(minAvailable=1))
    await stage.create(*(pod(f"p{n}", meta=_LABELLED) for n in range(3)))
    await stage.wait_until_idle()
    await stage.delete(POD, "p0")
    await stage.wait_until_idle()
    await stage.patch(POD_DISRUPTION_BUDGET, "b", {"spec": {"minAvailable": 2}})


async def counts_for_a_late_budget(stage: TrialCluster) -> None:
    await stage.create(*(pod(f"p{n}", meta=_LABELLED) for n in range(3)))
    await stage.wait_until_idle()
    await stage.create(_budget(minAvailable="50%"))
    await stage.wait_until_idle()
    await stage.finish("Succeeded")
    await stage.create(pod("p9", meta=_LABELLED))


async def counts_for_a_recreated_budget(stage: TrialCluster) -> None:
    await stage.create(_budget(minAvailable=0), pod("p", meta=_LABELLED))
    await stage.wait_until_idle()
    await stage.delete(POD_DISRUPTION_BUDGET, "b")
    await stage.create(_budget(minAvailable=1))
    await stage.wait_until_idle()
    await stage.patch(POD, "p", {"metadata": {"labels": {"app": "y"}}})


# ---- CronJobs ------------------------------------------------------------------------------------


async def _create_cron_job(stage: TrialCluster, **spec: object) -> None:
    template = {"spec": job()["spec"]}
    await stage.create({
        "apiVersion": "batch/v1", "kind": "CronJob",
        "metadata": {"name": "tick", "namespace": "default"},
        "spec": {"schedule": "* * * * *", "jobTemplate": template, **spec},
    })  # fmt: skip


async def starts_jobs_on_schedule(stage: TrialCluster) -> None:
    await _create_cron_job(stage, successfulJobsHistoryLimit=1)
    for _ in range(3):
        await stage.wait(50)
        await stage.finish("Succeeded")
        await stage.wait(10)
    await stage.patch(CRON_JOB, "tick", {"spec": {"suspend": True}})


async def forbids_concurrent_jobs(stage: TrialCluster) -> None:
    await _create_cron_job(stage, concurrencyPolicy="Forbid")
    await stage.wait(200)
    await stage.finish("Succeeded")
    await stage.wait(10)
    await stage.patch(CRON_JOB, "tick", {"spec": {"suspend": True}})


async def replaces_running_jobs(stage: TrialCluster) -> None:
    await _create_cron_job(stage, concurrencyPolicy="Replace")
    await stage.wait(200)
    await stage.patch(CRON_JOB, "tick", {"spec": {"suspend": True}})


# ---- time to live --------------------------------------------------------------------------------


async def deletes_jobs_after_their_ttl(stage: TrialCluster) -> None:
    await stage.create(job(ttlSecondsAfterFinished=30), job("kept"))
    await stage.wait_until_idle()
    await stage.finish("Succeeded")
    await stage.wait_until_idle()


async def deletes_jobs_with_zero_ttl(stage: TrialCluster) -> None:
    await stage.create(job(ttlSecondsAfterFinished=0, backoffLimit=0))
    await stage.wait_until_idle()
    await stage.finish("Failed")
    await stage.wait_until_idle()
    await stage.create(job())


async def deletes_jobs_whose_ttl_is_set_later(stage: TrialCluster) -> None:
    await stage.create(job(), job("long", ttlSecondsAfterFinished=100_000))
    await stage.wait_until_idle()
    await stage.finish("Succeeded")
    await stage.wait_until_idle()
    await stage.patch(JOB, "train", {"spec": {"ttlSecondsAfterFinished": 10}})
    await stage.wait_until_idle()
    await stage.patch(JOB, "long", {"spec": {"ttlSecondsAfterFinished": None}})


# ---- service accounts ----------------------------------------------------------------------------


async def creates_service_accounts(stage: TrialCluster) -> None:
    await stage.create(namespace("team"))
    await stage.wait_until_idle()
    await stage.client.delete(SERVICE_ACCOUNT, Key("team", "default"))


async def creates_service_accounts_in_many_namespaces(stage: TrialCluster) -> None:
    await stage.create(*(namespace(f"team-{n}") for n in range(4)))
    await stage.wait_until_idle()
    for number in (1, 3):
        await stage.client.delete(SERVICE_ACCOUNT, Key(f"team-{number}", "default"))


async def creates_no_service_account_in_a_deleted_namespace(stage: TrialCluster) -> None:
    await stage.create(namespace("team"), config_map("a", space="default"))
    await stage.wait_until_idle()
    await stage.delete(NAMESPACE, "team")
    await stage.wait_until_idle()
    await stage.create(namespace("team"))


# ---- aggregated roles ----------------------------------------------------------------------------


def _role(name: str, *, gathers: str = "", gathered: str = "", verb: str = "get") -> Object:
    """A ClusterRole that aggregates others by label, or is one of these."""
    meta: Object = {"name": name, "labels": {"part-of": gathered} if gathered else {}}
    role: Object = {
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": meta,
    }  # fmt: skip
    if gathers:
        selector = {"matchLabels": {"part-of": gathers}}
        return {**role, "aggregationRule": {"clusterRoleSelectors": [selector]}}
    return {**role, "rules": [{"apiGroups": [""], "resources": [name], "verbs": [verb]}]}


async def aggregates_rules(stage: TrialCluster) -> None:
    await stage.create(_role("whole", gathers="w"), _role("one", gathered="w"))
    await stage.wait_until_idle()
    await stage.create(_role("two", gathered="w"), _role("other", gathered="x"))


async def removes_aggregated_rules(stage: TrialCluster) -> None:
    await stage.create(_role("one", gathered="w"), _role("two", gathered="w"))
    await stage.create(_role("whole", gathers="w"))
    await stage.wait_until_idle()
    await stage.delete(CLUSTER_ROLE, "one")
    await stage.wait_until_idle()
    await stage.patch(CLUSTER_ROLE, "two", {"metadata": {"labels": {"part-of": None}}})


async def aggregates_aggregated_rules(stage: TrialCluster) -> None:
    await stage.create(_role("top", gathers="t"), _role("one", gathered="w"))
    middle = _role("middle", gathers="w")
    middle["metadata"]["labels"] = {"part-of": "t"}
    await stage.create(middle)
    await stage.wait_until_idle()
    await stage.patch(CLUSTER_ROLE, "top", {"rules": []})
