"""Admission webhooks that fail, and how they are found."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

import orjson
import pytest
from aiohttp import web

from phalanx.api.kinds import (
    CLUSTER_ROLE_BINDING,
    CONFIG_MAP,
    ENDPOINT_SLICE,
    POD,
    RBAC_GROUP,
    SECRET,
    SERVICE,
    VALIDATING_WEBHOOK_CONFIGURATION,
)
from phalanx.api.wire import Object, UserInfo
from phalanx.server.objects import encoder
from phalanx.store.kv import StoreWrite
from tests.builders import pod
from tests.loop_stalls import measure_stall
from tests.server.api import Api
from tests.server.webhook_server import (
    WebhookServer,
    add,
    allow,
    config_map,
    configure,
    deny,
    patch,
    post,
    rule,
    webhook,
    webhook_server,
    with_hooks,
)

# ---- webhooks that fail --------------------------------------------------------------------------


async def _server_error(request: web.Request) -> web.StreamResponse:
    return web.Response(status=500, text="broken")


async def _garbage(request: web.Request) -> web.StreamResponse:
    return web.Response(text="<html>")


async def _list(request: web.Request) -> web.StreamResponse:
    return web.json_response([])


async def _too_large(request: web.Request) -> web.StreamResponse:
    return web.Response(body=b" " * (10 << 20))


async def _redirect(request: web.Request) -> web.StreamResponse:
    return web.Response(status=307, headers={"location": "https://127.0.0.1/elsewhere"})


async def _disconnect(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def _empty_review(request: web.Request) -> web.StreamResponse:
    return web.json_response({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"})


FAILURES = {
    "hangs": (None, "context deadline exceeded"),
    "answers 500": (_server_error, 'the webhook answered 500 ("broken")'),
    "answers garbage": (_garbage, "the answer is not JSON"),
    "answers a list": (_list, "the answer is not an object"),
    "answers 10 MB": (_too_large, "the answer has more than 8388608 bytes"),
    "redirects": (_redirect, "the webhook answered 307"),
    "disconnects": (_disconnect, "Server disconnected"),
    "answers without response": (_empty_review, "webhook response was absent"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_failure_follows_the_failure_policy(name: str, tmp_path: Path) -> None:
    handler, message = FAILURES[name]

    async def trial(api: Api, hooks: WebhookServer) -> None:
        hooks.handlers["/bad"] = handler or hooks.hang
        config = hooks.client_config("/bad")
        fails = webhook(config, rule("configmaps"), timeoutSeconds=1)
        await configure(api, fails)
        answer = await post(api, config_map())
        assert (answer.code, answer.body["reason"]) == (500, "InternalError")
        start = 'Internal error occurred: failed calling webhook "check.example.com": '
        assert answer.body["message"].startswith(start)
        assert message in answer.body["message"]
        await api.ask("DELETE", VALIDATING_WEBHOOK_CONFIGURATION.url_path("", "hooks"))
        await configure(api, {**fails, "failurePolicy": "Ignore"})
        assert (await post(api, config_map())).code == 201

    with_hooks(trial)(tmp_path)


@pytest.mark.parametrize(
    ("response", "message"),
    [
        ({"uid": "other"}, "expected response.uid"),
        ({"patch": "W10="}, "validating webhook may not return response.patch"),
        ({"patchType": "JSONPatch"}, "validating webhook may not return response.patchType"),
        ({"allowed": "yes"}, "response.allowed that is not a bool"),
        ({"allowed": False, "status": "no"}, "response.status that is not an object"),
    ],
)
def test_malformed_response_is_a_failure(response: Object, message: str, tmp_path: Path) -> None:
    async def trial(api: Api, hooks: WebhookServer) -> None:
        await configure(api, webhook(hooks.on("/bad", allow(**response)), rule("configmaps")))
        answer = await post(api, config_map())
        assert answer.code == 500
        assert message in answer.body["message"]

    with_hooks(trial)(tmp_path)


@pytest.mark.parametrize(
    ("response", "message"),
    [
        ({"patch": "W10="}, "response.patch but not response.patchType"),
        ({"patchType": "JSONPatch"}, "response.patchType but not response.patch"),
        ({"patch": "W10=", "patchType": "Merge"}, 'unsupported patch type "Merge"'),
        ({"patch": "!", "patchType": "JSONPatch"}, "cannot be decoded"),
        ({"patch": "e30=", "patchType": "JSONPatch"}, "is not a list of operations"),
        (patch({"op": "remove", "path": "/zzz"})({}), "zzz"),
        (patch(add("/kind", "Pod"))({}), "the patch changes the object to v1, Kind=Pod"),
        (patch({"op": "remove", "path": "/metadata"})({}), "removes the metadata"),
        (patch(add("/data", 7))({}), "data"),
    ],
)
def test_patch_that_breaks_the_object_is_an_error(
    response: Object, message: str, tmp_path: Path
) -> None:
    async def trial(api: Api, hooks: WebhookServer) -> None:
        config = hooks.on("/bad", allow(**response))
        await configure(api, webhook(config, rule("configmaps")), mutating=True)
        answer = await post(api, config_map())
        assert answer.code == 500, answer.body
        assert message in answer.body["message"]

    with_hooks(trial)(tmp_path)


@with_hooks
async def test_untrusted_certificates_and_closed_ports_are_failures(
    api: Api, hooks: WebhookServer
) -> None:
    config = hooks.on("/ok", allow())
    untrusted = {"url": config["url"]}
    broken = {**config, "caBundle": "bm90IGEgY2VydGlmaWNhdGU="}
    closed = {**config, "url": "https://127.0.0.1:1/ok"}
    messages = []
    for one in (untrusted, broken, closed):
        await configure(api, webhook(one, rule("configmaps")))
        answer = await post(api, config_map())
        assert answer.code == 500
        messages.append(answer.body["message"])
        await api.ask("DELETE", VALIDATING_WEBHOOK_CONFIGURATION.url_path("", "hooks"))
    assert "tls: failed to verify certificate" in messages[0]
    assert "unable to load root certificates" in messages[1]
    assert "refused" in messages[2]


@with_hooks
async def test_large_and_broken_answers_do_not_stall_the_event_loop(
    api: Api, hooks: WebhookServer
) -> None:
    large = base64.b64encode(orjson.dumps([add("/data/x", "y" * 3_000_000)])).decode()
    config = hooks.on("/large", allow(patchType="JSONPatch", patch=large))
    await configure(api, webhook(config, rule("configmaps")), mutating=True)
    hooks.handlers["/huge"] = _too_large
    await configure(api, webhook(hooks.client_config("/huge"), rule("secrets")))

    async def prepare() -> None:
        """Nothing to prepare: both requests are refused."""

    for kind in (CONFIG_MAP, SECRET):
        answer, stall = await measure_stall(lambda _: post(api, config_map(), kind), prepare)  # noqa: B023
        assert answer.code >= 400
        assert stall.is_accepted, stall


@with_hooks
async def test_other_requests_go_on_while_a_webhook_hangs(api: Api, hooks: WebhookServer) -> None:
    hooks.handlers["/hang"] = hooks.hang
    await configure(api, webhook(hooks.client_config("/hang"), rule("configmaps")))
    user = UserInfo("jane", ("system:authenticated",))
    role = {"kind": "ClusterRole", "name": "cluster-admin", "apiGroup": RBAC_GROUP}
    subject = {"kind": "User", "name": "jane", "apiGroup": RBAC_GROUP}
    grant = {"metadata": {"name": "jane"}, "roleRef": role, "subjects": [subject]}
    await api.create(CLUSTER_ROLE_BINDING, grant)
    path = CONFIG_MAP.url_path("default")
    waiting = [
        asyncio.create_task(api.ask("POST", path, config_map(f"c-{number}"), user=user))
        for number in range(150)
    ]
    await asyncio.sleep(0)
    # More requests wait than the priority level of the user has places.
    path = POD.url_path("default")
    answers = [await api.ask("POST", path, pod(f"p-{n}"), user=user) for n in range(3)]
    assert [answer.code for answer in answers] == [201, 201, 201]
    assert not any(task.done() for task in waiting)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


# ---- where a webhook is --------------------------------------------------------------------------


@with_hooks
async def test_service_is_looked_up_by_its_endpoints(api: Api, hooks: WebhookServer) -> None:
    hooks.on("/deny", deny())
    service = {"namespace": "default", "name": "hooks", "path": "/deny", "port": 443}
    config = {"service": service, "caBundle": hooks.ca_bundle}
    await configure(api, webhook(config, rule("configmaps")))
    messages = [(await post(api, config_map())).body["message"]]
    spec = {"ports": [{"name": "https", "port": 443, "targetPort": 9443}]}
    meta = {"name": "hooks", "namespace": "default"}
    await api.create(SERVICE, {"metadata": meta, "spec": spec})
    messages.append((await post(api, config_map())).body["message"])
    labels = {"kubernetes.io/service-name": "hooks"}
    endpoints = [
        {"addresses": ["10.0.0.1"], "conditions": {"ready": False}},
        {"addresses": ["127.0.0.1"], "conditions": {"ready": True}},
    ]
    slices = {
        "metadata": {**meta, "labels": labels}, "addressType": "IPv4", "endpoints": endpoints,
        "ports": [{"name": "https", "port": hooks.port}],
    }  # fmt: skip
    # Written to the store: a client may not create an endpoint of the local host.
    key = ENDPOINT_SLICE.store_key("default", "hooks")
    await api.store.commit([StoreWrite(key, encoder(slices), 0)])
    messages.append((await post(api, config_map())).body["message"])
    url = 'Post "https://hooks.default.svc:443/deny?timeout=10s"'
    assert messages[0].endswith(f'{url}: service "hooks" not found')
    assert messages[1].endswith(f'{url}: no endpoints available for service "hooks"')
    assert messages[2].endswith("denied the request: no")


@pytest.mark.parametrize("name", ["hooks", "another"])
def test_local_url_stands_for_a_service(name: str, tmp_path: Path) -> None:
    """The certificate is valid for the name of the Service, or for the host of the URL."""

    async def trial() -> None:
        async with webhook_server(tmp_path) as hooks:
            urls = {f"default/{name}": f"https://127.0.0.1:{hooks.port}"}
            api = Api(webhook_urls=urls)
            await api.server.start()
            service = {"namespace": "default", "name": name, "path": "/deny"}
            config = {"service": service, "caBundle": hooks.ca_bundle}
            hooks.on("/deny", deny())
            await configure(api, webhook(config, rule("configmaps")))
            answer = await post(api, config_map())
            assert answer.body["message"].endswith("denied the request: no")
            await api.server.context.dynamic_admission.close()

    asyncio.run(trial())
