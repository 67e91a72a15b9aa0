"""Widgets, a custom kind, and a server that serves it."""

from __future__ import annotations

from typing import Any

from phalanx.api.kinds import CUSTOM_RESOURCE_DEFINITION, Kind
from phalanx.api.wire import Object
from tests.api.custom_resource_definitions import custom_resource_definition
from tests.server.api import Api, ApiResponse

KIND = Kind("example.com", "v1", "Widget", "widgets", "", singular="widget")
KIND_V2 = Kind("example.com", "v2", "Widget", "widgets", "", singular="widget")
WIDGETS = KIND.url_path("default")


NUMBER: Object = {"type": "integer"}


def widget(name: str = "w", size: Any = 3, **more: Any) -> Object:
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"size": size}, **more}


async def api_with_widgets(*versions: Object, **facts: Any) -> Api:
    """A server with a definition of widgets."""
    api = await Api.start()
    await define(api, *versions, **facts)
    return api


async def define(api: Api, *versions: Object, **facts: Any) -> Object:
    (made,) = await api.create(
        CUSTOM_RESOURCE_DEFINITION, custom_resource_definition(*versions, **facts)
    )
    return made


async def crd(api: Api, name: str = "widgets.example.com") -> Object:
    return await api.get(CUSTOM_RESOURCE_DEFINITION, name)


async def post(api: Api, obj: Object, **query: object) -> ApiResponse:
    return await api.ask("POST", WIDGETS, obj, query=query)


async def delete_definition(api: Api, name: str = "widgets.example.com") -> ApiResponse:
    return await api.ask("DELETE", CUSTOM_RESOURCE_DEFINITION.url_path("", name))


def codes(*answers: ApiResponse) -> list[int]:
    return [answer.code for answer in answers]
