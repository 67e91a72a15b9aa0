"""Widgets, a kind that users define, and a server that has it."""

from __future__ import annotations

from typing import Any

from phalanx.api.kinds import CUSTOM_RESOURCE_DEFINITION, Kind
from phalanx.api.wire import Object
from tests.api.definitions import definition
from tests.server.api import Answer, Api

KIND = Kind("example.com", "v1", "Widget", "widgets", "", singular="widget")
NEWER = Kind("example.com", "v2", "Widget", "widgets", "", singular="widget")
WIDGETS = KIND.path("default")


NUMBER: Object = {"type": "integer"}


def widget(name: str = "w", size: Any = 3, **more: Any) -> Object:
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"size": size}, **more}


async def started(*versions: Object, **facts: Any) -> Api:
    """A server that has a definition of widgets."""
    api = await Api.started()
    await define(api, *versions, **facts)
    return api


async def define(api: Api, *versions: Object, **facts: Any) -> Object:
    (made,) = await api.create(CUSTOM_RESOURCE_DEFINITION, definition(*versions, **facts))
    return made


async def crd(api: Api, name: str = "widgets.example.com") -> Object:
    return await api.get(CUSTOM_RESOURCE_DEFINITION, name)


async def post(api: Api, obj: Object, **query: object) -> Answer:
    return await api.ask("POST", WIDGETS, obj, query=query)


async def drop(api: Api, name: str = "widgets.example.com") -> Answer:
    return await api.ask("DELETE", CUSTOM_RESOURCE_DEFINITION.path("", name))


def codes(*answers: Answer) -> list[int]:
    return [answer.code for answer in answers]
