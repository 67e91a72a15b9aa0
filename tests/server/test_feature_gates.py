"""Feature gates that are disabled and enabled again: what is served, kept and dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from phalanx.api.feature_gates import DEFAULT_GATES, FeatureGates, resolve_gates
from phalanx.api.kinds import CRON_JOB, JOB, POD, POD_GROUP, WORKLOAD, Kind
from phalanx.api.wire import Object, Reply, Request
from phalanx.randomness import SeededRandom
from phalanx.server.app import Server
from phalanx.server.security.authorization import ADMIN
from phalanx.store.kv import Store
from phalanx.store.memory import MemoryStore
from phalanx.store.sqlite import SqliteStore
from tests.builders import pod, pod_group
from tests.server.api import Api, ApiResponse, names, read
from tests.server.conftest import StoppedClock

TEMPLATE: Object = {
    "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "app:1"}]}
}
NO_GROUPS = resolve_gates({"GenericWorkload": False})


class GatedApi(Api):
    """Starts servers with feature gates over one store."""

    def __init__(self, store: Store, gates: FeatureGates) -> None:
        self.server = Server(store, StoppedClock(), SeededRandom(len(gates.enabled)), gates=gates)


def served(
    gates: FeatureGates,
    work: Callable[[Api], Awaitable[None]],
    store: Callable[[], Store] = MemoryStore,
) -> None:
    """Work with a server that is started for it and stopped afterwards."""

    async def once() -> None:
        kept = store()
        api = GatedApi(kept, gates)
        await api.server.start()
        await work(api)
        await kept.close()

    asyncio.run(once())


def job(name: str, **said: object) -> Object:
    return {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": "default"},
        "spec": {"template": TEMPLATE, "parallelism": 2, **said},
    }  # fmt: skip


def workload(name: str) -> Object:
    template = {"name": "t", "schedulingPolicy": {"gang": {"minCount": 2}}}
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"podGroupTemplates": [template]},
    }


async def get(api: Api, path: str) -> ApiResponse:
    reply = await api.server.handle(Request("GET", path, user=ADMIN))
    assert isinstance(reply, Reply)
    return read(reply)


# ---- served kinds --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [POD_GROUP, WORKLOAD])
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_a_kind_of_a_disabled_feature_is_not_found(kind: Kind, method: str) -> None:
    async def work(api: Api) -> None:
        answer = await api.ask(method, kind.url_path("default"), {"metadata": {"name": "x"}})
        assert answer.code == 404

    served(NO_GROUPS, work)


def test_discovery_does_not_list_disabled_features() -> None:
    async def work(api: Api) -> None:
        assert (await get(api, "/apis/scheduling.k8s.io/v1beta1")).code == 404
        group = (await get(api, "/apis/scheduling.k8s.io")).body
        assert [version["version"] for version in group["versions"]] == ["v1"]
        assert "apis/scheduling.k8s.io/v1beta1" not in (await get(api, "/openapi/v3")).body["paths"]

    served(NO_GROUPS, work)


def test_only_the_disabled_kind_of_a_version_disappears() -> None:
    async def work(api: Api) -> None:
        found = (await get(api, "/apis/scheduling.k8s.io/v1alpha3")).body["resources"]
        kinds = {resource["kind"] for resource in found}
        assert "PodGroup" in kinds
        assert "CompositePodGroup" not in kinds

    served(resolve_gates({"CompositePodGroup": False}), work)


def test_metrics_show_which_gates_are_enabled() -> None:
    async def work(api: Api) -> None:
        text = (await get(api, "/metrics")).text.decode()
        assert 'kubernetes_feature_enabled{name="GenericWorkload",stage="BETA"} 0' in text
        assert "phalanx_stage_seconds" in text

    served(NO_GROUPS, work)


# ---- dropped fields ------------------------------------------------------------------------------


def test_disabled_fields_are_dropped_even_if_they_are_invalid() -> None:
    async def work(api: Api) -> None:
        wanted = job("x", gangPolicy={"policy": "Whatever"}, scheduling={"schedulingPolicy": {}})
        (made,) = await api.create(JOB, wanted)
        assert not {"gangPolicy", "scheduling"} & set(made["spec"])
        owned = str(made["metadata"]["managedFields"])
        assert "f:scheduling'" not in owned
        assert "f:gangPolicy" not in owned

    served(resolve_gates({"WorkloadWithJob": False, "JobGangPolicy": False}), work)


def test_a_gang_of_a_disabled_feature_gets_a_warning() -> None:
    wanted = job(
        "x", gangPolicy={"policy": "JobAsGang"}, scheduling={"schedulingPolicy": {"gang": {}}}
    )
    texts = [
        '299 - "spec.scheduling is dropped: without the feature gate WorkloadWithJob '
        'pods are scheduled one by one"',
        '299 - "spec.gangPolicy is dropped: without the feature gate JobGangPolicy '
        'no gang is formed"',
    ]

    async def work(api: Api) -> None:
        made = await api.ask("POST", JOB.url_path("default"), wanted)
        assert (made.code, made.header_values("warning")) == (201, texts)
        change = {"spec": {name: wanted["spec"][name] for name in ("gangPolicy", "scheduling")}}
        changed = await api.patch(JOB, "x", change)
        assert (changed.code, changed.header_values("warning")) == (200, texts)
        other = await api.patch(JOB, "x", {"spec": {"parallelism": 1}})
        assert (other.code, other.header_values("warning")) == (200, [])

    served(resolve_gates({"WorkloadWithJob": False, "JobGangPolicy": False}), work)


def test_a_pod_is_created_without_its_disabled_group() -> None:
    async def work(api: Api) -> None:
        (made,) = await api.create(POD, pod("p", "g"))
        assert "schedulingGroup" not in made["spec"]

    served(NO_GROUPS, work)


def test_defaults_and_admission_set_no_disabled_fields() -> None:
    async def work(api: Api) -> None:
        (made,) = await api.create(POD_GROUP, pod_group("g", 2))
        assert "preemptionPolicy" not in made["spec"]
        assert made["spec"]["priority"] == 0
        change = {"spec": {"preemptionPolicy": "Never"}}
        changed = await api.patch(POD_GROUP, "g", change)
        assert changed.code == 200, changed.body
        assert "preemptionPolicy" not in changed.body["spec"]
        (pod_made,) = await api.create(POD, pod("p"))
        assert pod_made["spec"]["preemptionPolicy"] == "PreemptLowerPriority"

    served(resolve_gates({"PodGroupPreemptionPolicy": False}), work)


# ---- disabling and enabling again ----------------------------------------------------------------


def test_disabling_and_enabling_features_loses_nothing(tmp_path: Path) -> None:
    gang = {"schedulingPolicy": {"gang": {"minCount": 2}}}
    kept: dict[str, Object] = {}

    async def make(api: Api) -> None:
        await api.create(POD_GROUP, pod_group("g", 2))
        await api.create(WORKLOAD, workload("w"))
        await api.create(POD, pod("member", "g"))
        await api.create(
            JOB, job("gang", scheduling=gang), job("word", gangPolicy={"policy": "JobAsGang"})
        )
        kept["group"] = await api.get(POD_GROUP, "g")
        kept["workload"] = await api.get(WORKLOAD, "w")

    async def live_without(api: Api) -> None:
        assert (await api.ask("GET", POD_GROUP.url_path("default", "g"))).code == 404
        assert (await api.get(POD, "member"))["spec"]["schedulingGroup"] == {"podGroupName": "g"}
        # What is there stays through changes of everything else; what is new does not come.
        for name, change in (("gang", {"suspend": True}), ("word", {"parallelism": 1})):
            answer = await api.patch(JOB, name, {"spec": change})
            assert answer.code == 200, answer.body
        labelled = await api.patch(POD, "member", {"metadata": {"labels": {"a": "b"}}})
        assert labelled.body["spec"]["schedulingGroup"] == {"podGroupName": "g"}
        (new,) = await api.create(JOB, job("new", scheduling=gang))
        assert "scheduling" not in new["spec"]

    async def read_back(api: Api) -> None:
        assert await api.get(POD_GROUP, "g") == kept["group"]
        assert await api.get(WORKLOAD, "w") == kept["workload"]
        jobs = {
            item["metadata"]["name"]: item["spec"]
            for item in (await api.list_default(JOB))["items"]
        }
        assert jobs["gang"]["scheduling"] == gang
        assert jobs["gang"]["suspend"] is True
        assert jobs["word"]["gangPolicy"] == {"policy": "JobAsGang"}
        assert "scheduling" not in jobs["new"]
        assert names(await api.list_default(POD_GROUP)) == ["g"]

    on_disk = partial(SqliteStore, tmp_path)
    served(DEFAULT_GATES, make, on_disk)
    served(NO_GROUPS, live_without, on_disk)
    served(DEFAULT_GATES, read_back, on_disk)


def test_a_template_keeps_its_disabled_fields_but_gets_no_new_ones(tmp_path: Path) -> None:
    scheduling: Object = {"schedulingPolicy": {"gang": {}}}

    def cron_job(name: str, spec: Object) -> Object:
        template = {"spec": {"template": TEMPLATE, **spec}}
        return {
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"schedule": "@daily", "jobTemplate": template},
        }

    async def make(api: Api) -> None:
        await api.create(CRON_JOB, cron_job("old", {"scheduling": scheduling}))

    async def live_without(api: Api) -> None:
        changed = await api.patch(CRON_JOB, "old", {"spec": {"schedule": "@hourly"}})
        assert changed.body["spec"]["jobTemplate"]["spec"]["scheduling"] == scheduling
        (new,) = await api.create(CRON_JOB, cron_job("new", {"scheduling": scheduling}))
        assert "scheduling" not in new["spec"]["jobTemplate"]["spec"]

    on_disk = partial(SqliteStore, tmp_path)
    served(DEFAULT_GATES, make, on_disk)
    served(resolve_gates({"WorkloadWithJob": False}), live_without, on_disk)
