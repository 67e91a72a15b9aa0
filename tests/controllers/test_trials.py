"""Every controller in trouble: killed, blind, misled, and always with the same end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from phalanx.api.kinds import (
    CONFIG_MAP,
    CRON_JOB,
    JOB,
    NAMESPACE,
    POD,
    POD_DISRUPTION_BUDGET,
    POD_GROUP,
    RESOURCE_CLAIM,
    SERVICE_ACCOUNT,
    WORKLOAD,
    Kind,
)
from phalanx.api.meta import Key
from phalanx.api.wire import Object
from phalanx.chance import Chance
from phalanx.client.client import Client
from phalanx.clock import Clock
from phalanx.controllers.cronjobs import CronJobs
from phalanx.controllers.disruption import Disruption
from phalanx.controllers.garbage import Garbage
from phalanx.controllers.loop import Informers
from phalanx.controllers.namespaces import Namespaces
from phalanx.controllers.podgroups import Protection
from phalanx.controllers.replicagroups import ReplicaGroups
from phalanx.controllers.resourceclaims import ResourceClaims
from phalanx.controllers.serviceaccounts import ServiceAccounts
from phalanx.controllers.ttl import TimeToLive
from tests.builders import gang, pod
from tests.controllers.jobs.work import collectors, job, subject, workload
from tests.controllers.trials import End, Scenario, Trouble, crashes, gaps, judge, play
from tests.controllers.trialstage import Part, Run, Stage, kubelets


def part(make: Callable[[Client, Informers, Clock], Any]) -> Part:
    """A controller as a part of a control plane."""

    def started(client: Client, informers: Informers, clock: Clock, chance: Chance) -> list[Run]:
        return [make(client, informers, clock).run]

    return started


def config(name: str, *owners: Object, space: str = "default") -> Object:
    meta = {"name": name, "namespace": space, "ownerReferences": list(owners)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta}


async def owner(stage: Stage, name: str, **more: bool) -> Object:
    found = await stage.client.get(CONFIG_MAP, Key("default", name))
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": name}
    return {**reference, "uid": found["metadata"]["uid"], **more}


async def protects_a_group(stage: Stage) -> None:
    await stage.create(*gang("train", 2))
    await stage.rest()
    await stage.delete(POD_GROUP, "train")
    await stage.rest()
    await stage.finish("Succeeded")
    await stage.rest()
    await stage.create(*gang("next", 1))
    await stage.rest()
    await stage.delete(POD_GROUP, "next")


async def makes_replica_groups(stage: Stage) -> None:
    reference = {"name": "w", "podGroup": "workers-0"}
    await stage.create(pod("a", spec={"workloadRef": {**reference, "podGroupReplicaKey": "0"}}))
    await stage.rest()
    await stage.create(workload("w", 1))
    await stage.rest()
    for key in ("0", "1"):
        made = {**reference, "podGroupReplicaKey": key}
        await stage.create(pod(f"b-{key}", spec={"workloadRef": made}))
    await stage.rest()
    await stage.delete(POD_GROUP, "w-workers-0-1")


async def collects(stage: Stage) -> None:
    await stage.create(*(config(name) for name in ("root", "kept", "last", "free")))
    root, kept = await owner(stage, "root"), await owner(stage, "kept")
    last = await owner(stage, "last", blockOwnerDeletion=True)
    await stage.create(
        config("child", root), config("both", root, kept), config("slow", last),
        config("orphan", await owner(stage, "free")),
    )  # fmt: skip
    await stage.create(config("grandchild", await owner(stage, "child")))
    await stage.rest()
    await stage.delete(CONFIG_MAP, "root", "Background")
    await stage.delete(CONFIG_MAP, "last", "Foreground")
    await stage.delete(CONFIG_MAP, "free", "Orphan")


async def empties_a_namespace(stage: Stage) -> None:
    await stage.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
    await stage.create(config("a", space="team"), pod("p", namespace="team"))
    held = config("b", space="team")
    held["metadata"]["finalizers"] = ["example.com/hold"]
    await stage.create(held)
    await stage.rest()
    await stage.client.delete(NAMESPACE, Key("", "team"))
    await stage.wait(20)
    change = {"metadata": {"finalizers": None}}
    await stage.client.patch(CONFIG_MAP, Key("team", "b"), change)


async def counts_for_a_budget(stage: Stage) -> None:
    labels = {"labels": {"app": "x"}}
    budget = {"selector": {"matchLabels": {"app": "x"}}, "minAvailable": 1}
    await stage.create({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"name": "b", "namespace": "default"}, "spec": budget,
    })  # fmt: skip
    await stage.create(*(pod(f"p{n}", meta=labels) for n in range(3)))
    await stage.rest()
    await stage.delete(POD, "p0")
    await stage.rest()
    await stage.patch(POD_DISRUPTION_BUDGET, "b", {"spec": {"minAvailable": 2}})


async def starts_by_the_clock(stage: Stage) -> None:
    template = {"spec": job()["spec"]}
    spec = {"schedule": "* * * * *", "jobTemplate": template, "successfulJobsHistoryLimit": 1}
    await stage.create({
        "apiVersion": "batch/v1", "kind": "CronJob",
        "metadata": {"name": "tick", "namespace": "default"}, "spec": spec,
    })  # fmt: skip
    for _ in range(3):
        await stage.wait(50)
        await stage.finish("Succeeded")
        await stage.wait(10)
    await stage.patch(CRON_JOB, "tick", {"spec": {"suspend": True}})


async def clears_away_in_time(stage: Stage) -> None:
    await stage.create(job(ttlSecondsAfterFinished=30), job("kept"))
    await stage.rest()
    await stage.finish("Succeeded")
    await stage.rest()


async def gives_accounts(stage: Stage) -> None:
    await stage.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
    await stage.rest()
    await stage.client.delete(SERVICE_ACCOUNT, Key("team", "default"))


async def makes_claims(stage: Stage) -> None:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu"}}
    await stage.create({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": {"name": "gpus", "namespace": "default"},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    })  # fmt: skip
    claims = [{"name": "gpu", "resourceClaimTemplateName": "gpus"}]
    await stage.create(*(pod(f"p{n}", spec={"resourceClaims": claims}) for n in range(2)))
    await stage.rest()
    await stage.finish("Succeeded")


class Case(NamedTuple):
    """A controller, and a scenario that it is put through."""

    subject: Part
    scenario: Scenario


def case(subject: Part, act: Any, kinds: tuple[Kind, ...], *cast: Part) -> Case:
    return Case(subject, Scenario(act.__name__, act, kinds, cast))


CASES = [
    case(part(lambda c, i, t: Protection(c, i)), protects_a_group, (POD_GROUP, POD), kubelets),
    case(
        part(lambda c, i, t: ReplicaGroups(c, i)), makes_replica_groups,
        (POD_GROUP, POD, WORKLOAD), kubelets, collectors,
    ),
    case(part(lambda c, i, t: Garbage(c, i)), collects, (CONFIG_MAP,)),
    case(
        part(lambda c, i, t: Namespaces(c, i)), empties_a_namespace,
        (NAMESPACE, CONFIG_MAP, POD), kubelets,
    ),
    case(
        part(lambda c, i, t: Disruption(c, i, t)), counts_for_a_budget,
        (POD_DISRUPTION_BUDGET, POD), kubelets,
    ),
    case(
        part(lambda c, i, t: CronJobs(c, i, t)), starts_by_the_clock, (CRON_JOB, JOB), kubelets,
        subject(), collectors,
    ),
    case(
        part(lambda c, i, t: TimeToLive(c, i, t)), clears_away_in_time, (JOB, POD, WORKLOAD),
        kubelets, subject(), collectors,
    ),
    case(part(lambda c, i, t: ServiceAccounts(c, i)), gives_accounts, (SERVICE_ACCOUNT, NAMESPACE)),
    case(part(lambda c, i, t: ResourceClaims(c, i)), makes_claims, (RESOURCE_CLAIM, POD), kubelets),
]  # fmt: skip
EACH = pytest.mark.parametrize("one", CASES, ids=lambda one: one.scenario.name)


def calmly(one: Case) -> End:
    """The end where nothing goes wrong; there must be one."""
    calm = play(one.scenario, one.subject)
    assert calm.tally.writes > 0
    assert (calm.wrongs, calm.unrest) == ([], [])
    return calm


@EACH
def test_whatever_write_it_is_killed_after_the_end_is_the_same(one: Case) -> None:
    calm = calmly(one)
    assert judge(one.scenario, one.subject, crashes(calm, most=15), calm) == []


@EACH
def test_whoever_takes_over_may_at_first_see_the_past(one: Case) -> None:
    calm = calmly(one)
    for past in (1, 4, 12):
        assert judge(one.scenario, one.subject, crashes(calm, past=past, most=4), calm) == []


@EACH
def test_what_was_never_seen_does_not_matter(one: Case) -> None:
    calm = calmly(one)
    assert judge(one.scenario, one.subject, gaps(calm, most=12), calm) == []


@EACH
def test_events_may_come_twice_and_out_of_order(one: Case) -> None:
    assert judge(one.scenario, one.subject, [Trouble(babbles=True)], calmly(one)) == []
