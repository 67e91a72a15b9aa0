"""Pods get their service account and its token on a server with this option."""

from __future__ import annotations

import asyncio
from typing import Any

from phalanx.api.kinds import NAMESPACE, POD, SERVICE_ACCOUNT
from phalanx.api.wire import Object
from phalanx.clock import LoopClock
from phalanx.randomness import SeededRandom
from phalanx.server.app import Server
from tests.builders import in_virtual_time, pod
from tests.server.api import EPOCH, Api

PATH = "/var/run/secrets/kubernetes.io/serviceaccount"


async def start_api(*, admit_service_accounts: bool) -> Api:
    api = Api()
    clock = LoopClock(asyncio.get_running_loop(), EPOCH)
    api.server = Server(
        api.store, clock, SeededRandom(1), admit_service_accounts=admit_service_accounts
    )
    await api.server.start()
    return api


async def api_with_account(**account: Any) -> Api:
    api = await start_api(admit_service_accounts=True)
    meta = {"name": "default", "namespace": "default"}
    await api.create(SERVICE_ACCOUNT, {"metadata": meta, **account})
    return api


async def created(api: Api, **spec: Any) -> Object:
    made: Object = (await api.create(POD, pod("p", spec=spec)))[0]["spec"]
    return made


def token_mounts(spec: Object) -> list[str]:
    return [
        mount["name"]
        for container in spec["containers"]
        for mount in container.get("volumeMounts", ())
        if mount["mountPath"] == PATH
    ]


@in_virtual_time
async def test_a_pod_gets_the_token_of_the_default_account() -> None:
    api = await api_with_account(imagePullSecrets=[{"name": "pull"}])
    spec = await created(api)
    assert (spec["serviceAccountName"], spec["serviceAccount"]) == ("default", "default")
    assert spec["imagePullSecrets"] == [{"name": "pull"}]
    (volume,) = spec["volumes"]
    assert token_mounts(spec) == [volume["name"]]
    assert volume["name"].startswith("kube-api-access-")
    assert [next(iter(source)) for source in volume["projected"]["sources"]] == [
        "serviceAccountToken", "configMap", "downwardAPI",
    ]  # fmt: skip


@in_virtual_time
async def test_pod_and_account_may_decline_the_token() -> None:
    api = await api_with_account(automountServiceAccountToken=False)
    assert "volumes" not in await created(api)
    assert (await api.delete(POD, "p")).code == 200
    assert token_mounts(await created(api, automountServiceAccountToken=True))
    other = await api_with_account()
    assert "volumes" not in await created(other, automountServiceAccountToken=False)


@in_virtual_time
async def test_a_mount_of_the_pod_itself_stays() -> None:
    api = await api_with_account()
    mount = {"name": "own", "mountPath": PATH}
    container = {"name": "c", "image": "i", "volumeMounts": [mount]}
    volumes = [{"name": "own", "emptyDir": {}}]
    spec = await created(api, containers=[container], volumes=volumes)
    assert token_mounts(spec) == ["own"]
    assert [volume["name"] for volume in spec["volumes"]] == ["own"]


@in_virtual_time
async def test_a_pod_that_has_the_volume_already_gets_no_second_one() -> None:
    api = await api_with_account()
    first = await created(api)
    assert (await api.delete(POD, "p")).code == 200
    containers = [{"name": "c", "image": "i"}]
    again = await created(api, volumes=first["volumes"], containers=containers)
    assert again["volumes"] == first["volumes"]
    assert token_mounts(again) == token_mounts(first)


@in_virtual_time
async def test_a_missing_account_refuses_the_pod() -> None:
    api = await api_with_account()
    wanted = pod("p", spec={"serviceAccountName": "none"})
    answer = await api.ask("POST", POD.url_path("default"), wanted)
    assert answer.code == 403
    assert 'serviceaccount "none" not found' in answer.body["message"]


@in_virtual_time
async def test_mirror_pods_have_no_account() -> None:
    api = await start_api(admit_service_accounts=True)
    mirror = pod("p", meta={"annotations": {"kubernetes.io/config.mirror": "x"}})
    assert (await api.ask("POST", POD.url_path("default"), mirror)).code == 201


@in_virtual_time
async def test_mirror_pods_may_not_name_an_account_or_a_token() -> None:
    api = await start_api(admit_service_accounts=True)
    meta = {"annotations": {"kubernetes.io/config.mirror": "x"}}
    projected = {"sources": [{"serviceAccountToken": {"path": "token"}}]}
    refused: dict[str, Object] = {
        "a mirror pod may not reference service accounts": {"serviceAccountName": "robot"},
        "a mirror pod may not use ServiceAccountToken volume projections": {
            "volumes": [{"name": "v", "projected": projected}]
        },
    }
    for message, spec in refused.items():
        answer = await api.ask("POST", POD.url_path("default"), pod("p", meta=meta, spec=spec))
        assert (answer.code, answer.body["message"]) == (403, f'pods "p" is forbidden: {message}')


@in_virtual_time
async def test_pods_of_an_account_share_the_name_of_the_volume() -> None:
    api = await api_with_account()
    await api.create(SERVICE_ACCOUNT, {"metadata": {"name": "robot", "namespace": "default"}})
    names = []
    for name, account in (("a", "default"), ("b", "default"), ("c", "robot")):
        obj = pod(name, spec={"serviceAccountName": account})
        names.append((await api.create(POD, obj))[0]["spec"]["volumes"][0]["name"])
    assert names[0] == names[1] != names[2]


@in_virtual_time
async def test_a_pod_waits_for_the_default_account_of_a_new_namespace() -> None:
    api = await start_api(admit_service_accounts=True)
    await api.create(NAMESPACE, {"metadata": {"name": "new"}})
    asked = asyncio.create_task(api.ask("POST", POD.url_path("new"), pod("p", namespace="new")))
    await asyncio.sleep(0.5)
    assert not asked.done()
    await api.create(SERVICE_ACCOUNT, {"metadata": {"name": "default", "namespace": "new"}})
    assert (await asked).code == 201


@in_virtual_time
async def test_a_pod_waits_for_no_other_account_and_for_no_missing_namespace() -> None:
    api = await start_api(admit_service_accounts=True)
    began = asyncio.get_running_loop().time()
    named = pod("p", spec={"serviceAccountName": "robot"})
    assert (await api.ask("POST", POD.url_path("default"), named)).code == 403
    assert (await api.ask("POST", POD.url_path("no"), pod("p", namespace="no"))).code == 404
    assert asyncio.get_running_loop().time() == began
    assert (await api.ask("POST", POD.url_path("default"), pod("p"))).code == 403
    assert 1 <= asyncio.get_running_loop().time() - began <= 2


@in_virtual_time
async def test_pods_are_unchanged_without_the_option() -> None:
    api = await Api.start()
    assert "serviceAccountName" not in await created(api)
