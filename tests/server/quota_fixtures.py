"""Quotas, objects that they count, and requests, in one line each."""

from __future__ import annotations

from collections.abc import Iterable

from phalanx.api.kinds import RESOURCE_QUOTA, Kind
from phalanx.api.wire import Object
from tests.server.api import Api, ApiResponse

FINISHED_STATUS = {"status": {"phase": "Succeeded"}}


def quota(name: str = "q", /, scopes: Iterable[str] = (), **hard: str) -> Object:
    """A quota; `requests_cpu` is `requests.cpu`, `count_jobs.batch` is written out in a dict."""
    return quota_of(name, {key.replace("_", "."): text for key, text in hard.items()}, scopes)


def quota_of(name: str, hard: Object, scopes: Iterable[str] = ()) -> Object:
    spec: Object = {"hard": hard}
    if chosen := list(scopes):
        spec["scopes"] = chosen
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}


def config_map(name: str) -> Object:
    return {"metadata": {"name": name, "namespace": "default"}, "data": {"a": "b"}}


def service(name: str, service_type: str = "ClusterIP") -> Object:
    spec = {"type": service_type, "ports": [{"port": 80}]}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}


def claim(name: str, storage: str) -> Object:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": storage}}}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}


async def api_with_quota(*quotas: Object) -> Api:
    api = await Api.start()
    await api.create(RESOURCE_QUOTA, *quotas)
    return api


async def post(api: Api, kind: Kind, obj: Object, **query: object) -> ApiResponse:
    return await api.ask("POST", kind.url_path("default"), obj, query=query)


async def quota_usage(api: Api, name: str = "q") -> Object:
    found: Object = (await api.get(RESOURCE_QUOTA, name))["status"]["used"]
    return found
