"""LeaderWorkerSets on a control plane in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

from phalanx.api.kinds import LEADER_WORKER_SET, POD, Kind
from phalanx.api.leader_worker_sets import GROUP_INDEX_LABEL, WORKER_INDEX_LABEL
from phalanx.api.meta import Key
from phalanx.api.wire import STRATEGIC_PATCH, Object
from tests.controllers.cluster import Cluster


def template(image: str = "v1", cpu: str = "1", **spec: Any) -> Object:
    container = {"name": "main", "image": image, "resources": {"requests": {"cpu": cpu}}}
    return {"spec": {"containers": [container], **spec}}


def leader_worker_set(
    replicas: int = 2, size: int = 2, *, name: str = "llm", image: str = "v1", **fields: Any
) -> Object:
    """Return a LeaderWorkerSet; fields of its group and its spec may be given together."""
    group_fields = ("leaderTemplate", "restartPolicy", "subGroupPolicy", "volumeClaimTemplates",
                    "persistentVolumeClaimRetentionPolicy")  # fmt: skip
    rolling = {key: fields.pop(key) for key in ("partition", "maxUnavailable", "maxSurge")
               if key in fields}  # fmt: skip
    group = {key: fields.pop(key) for key in group_fields if key in fields}
    meta = fields.pop("metadata", {})
    worker = fields.pop("workerTemplate", None) or template(image, fields.pop("cpu", "1"))
    spec = {"replicas": replicas, "leaderWorkerTemplate": {
        "size": size, "workerTemplate": worker, **group}, **fields}  # fmt: skip
    if rolling:
        configuration = {"partition": 0, "maxUnavailable": 1, "maxSurge": 0, **rolling}
        spec["rolloutStrategy"] = {
            "type": "RollingUpdate", "rollingUpdateConfiguration": configuration,
        }  # fmt: skip
    return {
        "apiVersion": LEADER_WORKER_SET.api_version, "kind": LEADER_WORKER_SET.name,
        "metadata": {"name": name, "namespace": "default", **meta}, "spec": spec,
    }  # fmt: skip


class LwsUser:
    """What a user of LeaderWorkerSets does and sees."""

    def __init__(self, cluster: Cluster, name: str = "llm") -> None:
        self.cluster, self.client, self.key = cluster, cluster.client, Key("default", name)

    async def get(self) -> Object:
        return await self.client.get(LEADER_WORKER_SET, self.key)

    async def status(self) -> Object:
        status: Object = (await self.get()).get("status", {})
        return status

    async def true_conditions(self) -> list[str]:
        conditions = (await self.status()).get("conditions", [])
        return [one["type"] for one in conditions if one["status"] == "True"]

    async def patch(self, **spec: Any) -> None:
        await self.client.patch(LEADER_WORKER_SET, self.key, {"spec": spec})

    async def set_image(self, image: str, cpu: str = "1") -> None:
        await self.patch(leaderWorkerTemplate={"workerTemplate": template(image, cpu)})

    async def objects(self, kind: Kind) -> dict[str, Object]:
        found = (await self.client.list(kind)).items
        return {one["metadata"]["name"]: one for one in found}

    async def pods(self) -> dict[str, Object]:
        return await self.objects(POD)

    async def images(self) -> dict[str, str]:
        pods = await self.pods()
        return {name: one["spec"]["containers"][0]["image"] for name, one in pods.items()}

    async def groups_by_pod(self) -> dict[str, str]:
        pods = await self.pods()
        return {
            name: one["spec"].get("schedulingGroup", {}).get("podGroupName", "")
            for name, one in pods.items()
        }

    async def until_available(self, seconds: float = 120.0) -> float:
        async def is_available() -> bool:
            status, meta = await self.status(), (await self.get())["metadata"]
            is_current = status.get("observedGeneration") == meta["generation"]
            return is_current and await self.true_conditions() == ["Available"]

        return await self.cluster.until(is_available, seconds)

    async def uids(self) -> dict[str, str]:
        return {name: one["metadata"]["uid"] for name, one in (await self.pods()).items()}

    async def restart_container(self, pod: str) -> None:
        """Report a restarted container, as a kubelet would."""
        key = Key("default", pod)
        statuses = (await self.client.get(POD, key))["status"]["containerStatuses"]
        changed = [{**one, "restartCount": 1} for one in statuses]
        await self.client.patch(
            POD, key, {"status": {"containerStatuses": changed}},
            subresource="status", content=STRATEGIC_PATCH,
        )  # fmt: skip

    async def half_groups(self, size: int) -> list[str]:
        """Groups whose leader has a node, but not all of its workers."""
        members: dict[str, list[Object]] = {}
        for pod in (await self.pods()).values():
            members.setdefault(pod["metadata"]["labels"][GROUP_INDEX_LABEL], []).append(pod)
        found = []
        for index, pods in members.items():
            live = [
                one for one in pods
                if one["spec"].get("nodeName") and "deletionTimestamp" not in one["metadata"]
            ]  # fmt: skip
            has_leader = any(one["metadata"]["labels"][WORKER_INDEX_LABEL] == "0" for one in live)
            if has_leader and len(live) != size:
                found.append(f"group {index}: {sorted(one['metadata']['name'] for one in live)}")
        return found

    async def settle(self, seconds: float = 30.0) -> None:
        await asyncio.sleep(seconds)
