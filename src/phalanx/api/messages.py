"""The facts of every protobuf message, as package data: its fields by their numbers.

A message is known by the short name of its definition, `core.v1.Pod`. The file `messages.json` is
written by `tools/compact_protobuf.py`. A field is [its name in JSON, node], and nodes are written
as in `definitions.py`, but of other scalars:

    string bool int32 int64        what their name says
    bytes json octets              bytes that JSON shows as base64, as what they say, not at all

A field without a name is a message whose fields JSON shows as those of its holder.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Final

import orjson

Node = str | dict[str, str]
#: The name and node of each field, by its number in decimal.
Fields = Mapping[str, tuple[str, Node]]

#: The API versions that have messages, and what their short names begin with.
MODULES: Final = {
    "v1": "core.v1",
    "apps/v1": "apps.v1",
    "authentication.k8s.io/v1": "authentication.v1",
    "authorization.k8s.io/v1": "authorization.v1",
    "batch/v1": "batch.v1",
    "coordination.k8s.io/v1": "coordination.v1",
    "events.k8s.io/v1": "events.v1",
    "meta.k8s.io/v1": "meta.v1",
    "policy/v1": "policy.v1",
    "rbac.authorization.k8s.io/v1": "rbac.v1",
    "resource.k8s.io/v1": "resource.v1",
    "scheduling.k8s.io/v1": "scheduling.v1",
    "scheduling.k8s.io/v1alpha3": "scheduling.v1alpha3",
    "scheduling.k8s.io/v1beta1": "scheduling.v1beta1",
}
#: Every API version has the kinds of this one too: DeleteOptions and the like.
SHARED: Final = "meta.v1"


@cache
def message_name(api_version: str, kind: str) -> str | None:
    """The short name of the message that holds objects of a kind, if there is one."""
    modules = (MODULES.get(api_version, SHARED), SHARED)
    return next((name for m in modules if (name := f"{m}.{kind}") in _messages()), None)


def fields(name: str) -> Fields:
    """The fields of a message, by its short name."""
    return _messages()[name]


@cache
def _messages() -> dict[str, Fields]:
    file = resources.files("phalanx.api") / "messages.json"
    content: dict[str, Fields] = orjson.loads(file.read_bytes())
    return content
