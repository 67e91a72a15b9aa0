"""The horizontal pod autoscaler: bounds are kept, and the conditions say what is unknown."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from phalanx.api.kinds import DEPLOYMENT, HORIZONTAL_POD_AUTOSCALER
from phalanx.api.meta import Condition, Key, ObjectMeta
from phalanx.api.other_kinds import HorizontalPodAutoscaler, HorizontalPodAutoscalerSpec
from phalanx.api.wire import Object
from phalanx.controllers.autoscaling import SYNC_INTERVAL, decide, merge_conditions
from tests.builders import in_virtual_time
from tests.controllers.cluster import Cluster, cluster

WEB = Key("default", "web")


def deployment(replicas: int) -> Object:
    labels = {"app": "web"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    meta = {"name": "web", "namespace": "default"}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec}


def autoscaler(**spec: Any) -> Object:
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    return {
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"scaleTargetRef": target, "minReplicas": 2, "maxReplicas": 3, **spec},
    }  # fmt: skip


async def status(c: Cluster) -> Object:
    found: Object = (await c.client.get(HORIZONTAL_POD_AUTOSCALER, WEB))["status"]
    return found


def summaries(found: Object) -> list[tuple[str, str, str]]:
    return [(one["type"], one["status"], one["reason"]) for one in found["conditions"]]


@pytest.mark.parametrize(("replicas", "size"), [(1, 2), (7, 3)])
@in_virtual_time
async def test_replicas_out_of_bounds_are_set_to_the_nearest_bound(
    replicas: int, size: int
) -> None:
    async with cluster() as c:
        await c.create(deployment(replicas), autoscaler())
        await asyncio.sleep(1)
        assert (await c.client.get(DEPLOYMENT, WEB))["spec"]["replicas"] == size
        found = await status(c)
        assert (found["currentReplicas"], found["desiredReplicas"]) == (replicas, size)
        assert summaries(found) == [("AbleToScale", "True", "SucceededRescale")]
        assert [name for name, _ in await c.events("SuccessfulRescale")] == ["web"]
        await asyncio.sleep(SYNC_INTERVAL)
        assert summaries(await status(c)) == [
            ("AbleToScale", "True", "SucceededGetScale"),
            ("ScalingActive", "False", "FailedGetResourceMetric"),
        ]
        await asyncio.sleep(3)
        for reason in ("FailedGetResourceMetric", "FailedComputeMetricsReplicas"):
            assert [name for name, _ in await c.events(reason)] == ["web"]


@in_virtual_time
async def test_a_disabled_target_is_no_failure() -> None:
    async with cluster() as c:
        await c.create(deployment(0), autoscaler())
        await asyncio.sleep(4)
        assert summaries(await status(c))[1] == ("ScalingActive", "False", "ScalingDisabled")
        assert await c.events("ScalingDisabled") == []


@in_virtual_time
async def test_a_missing_target_is_reported_and_found_later() -> None:
    async with cluster() as c:
        await c.create(autoscaler())
        await asyncio.sleep(1)
        found = await status(c)
        assert summaries(found) == [("AbleToScale", "False", "FailedGetScale")]
        assert 'deployments.apps "web" not found' in found["conditions"][0]["message"]
        await c.create(deployment(2))
        await asyncio.sleep(SYNC_INTERVAL)
        assert (await status(c))["currentReplicas"] == 2


@in_virtual_time
async def test_an_unknown_kind_of_target_is_reported() -> None:
    async with cluster() as c:
        target = {"apiVersion": "example.com/v1", "kind": "Thing", "name": "web"}
        await c.create(autoscaler(scaleTargetRef=target))
        await asyncio.sleep(1)
        message = (await status(c))["conditions"][0]["message"]
        assert 'no matches for kind "Thing" in version "example.com/v1"' in message


@in_virtual_time
async def test_a_status_that_is_up_to_date_is_not_written_again() -> None:
    async with cluster() as c:
        await c.create(deployment(2), autoscaler())
        await asyncio.sleep(1)
        before = await c.client.get(HORIZONTAL_POD_AUTOSCALER, WEB)
        await asyncio.sleep(4 * SYNC_INTERVAL)
        assert await c.client.get(HORIZONTAL_POD_AUTOSCALER, WEB) == before


def test_a_target_without_replicas_is_left_alone() -> None:
    spec = HorizontalPodAutoscalerSpec(min_replicas=1, max_replicas=3)
    found = decide(HorizontalPodAutoscaler(ObjectMeta(name="web"), spec), {"spec": {"replicas": 0}})
    assert found.desired is None
    assert found.conditions["ScalingActive"][:2] == ("False", "ScalingDisabled")


def test_a_condition_keeps_its_time_while_its_status_stays() -> None:
    known = (Condition("A", "True", "x", "", "then"), Condition("B", "True", "x", "", "then"))
    merged = merge_conditions(known, {"A": ("True", "y", ""), "C": ("False", "z", "")}, "now")
    assert [(one["type"], one["lastTransitionTime"]) for one in merged] == [
        ("A", "then"), ("B", "then"), ("C", "now"),
    ]  # fmt: skip
