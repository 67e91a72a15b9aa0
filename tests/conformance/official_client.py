"""The untyped parts of the official Python client, with types."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

from kubernetes import client, config, dynamic, watch

_config: Any = config
_dynamic: Any = dynamic
_watch: Any = watch


def connected(kubeconfig: Path) -> client.ApiClient:
    """A client of the cluster that a kubeconfig names."""
    found: client.ApiClient = _config.new_client_from_config(str(kubeconfig))
    return found


def config_map(name: str, **data: str) -> client.V1ConfigMap:
    """A config map with these data, to be created."""
    return client.V1ConfigMap(metadata=client.V1ObjectMeta(name=name), data=data)


#: The ConfigMap that a controller creates in every namespace, and the selector of all others.
ROOT_CA = "kube-root-ca.crt"
NOT_ROOT_CA = f"metadata.name!={ROOT_CA}"


def version(model: Any) -> str:
    """The resourceVersion of an object or a list."""
    return str(model.metadata.resource_version)


def watched(
    function: Callable[..., Any], *args: Any, first: int | None = None, seconds: int = 10,
    **options: Any,
) -> list[tuple[str, Any]]:  # fmt: skip
    """The types and objects of the first events of a watch, or of all that come in time."""
    stream = _watch.Watch().stream(function, *args, timeout_seconds=seconds, **options)
    with closing(stream):
        return [(event["type"], event["object"]) for event in islice(stream, first)]


def discovered(api: client.ApiClient, cache: Path) -> Any:
    """The dynamic client, which uses discovery."""
    return _dynamic.DynamicClient(api, cache_file=str(cache))
