"""The parts of the official Python client that have no types, with types."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from kubernetes import client, config, dynamic, watch
from kubernetes import informer as kubernetes_informer

_config: Any = config
_dynamic: Any = dynamic
_watch: Any = watch
_informer: Any = kubernetes_informer


def connected(kubeconfig: Path) -> client.ApiClient:
    """A client of the cluster that a kubeconfig names."""
    found: client.ApiClient = _config.new_client_from_config(str(kubeconfig))
    return found


def watched(
    function: Callable[..., Any], *args: Any, seconds: int = 1, **options: Any
) -> Iterator[tuple[str, Any]]:
    """The types and objects of a watch, until its time is over or nobody asks for more."""
    events = _watch.Watch().stream(function, *args, timeout_seconds=seconds, **options)
    return ((event["type"], event["object"]) for event in events)


def discovered(api: client.ApiClient, cache: Path) -> Any:
    """The client that learns from discovery what there is."""
    return _dynamic.DynamicClient(api, cache_file=str(cache))


@contextmanager
def informer(
    function: Callable[..., Any], namespace: str
) -> Iterator[tuple[Any, SimpleQueue[tuple[str, Any]]]]:
    """The cache of an informer that runs while the context lasts, and the changes that it saw."""
    found, changes = _informer.SharedInformer(function, namespace), SimpleQueue[tuple[str, Any]]()
    for kind in ("ADDED", "MODIFIED", "DELETED"):
        found.add_event_handler(kind, lambda obj, kind=kind: changes.put((kind, obj)))
    found.start()
    try:
        yield found.cache, changes
    finally:
        found.stop()
