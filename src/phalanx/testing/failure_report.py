"""What a test prints about its cluster when a wait has timed out: why, pods and events."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import click

from phalanx.api.errors import ApiError
from phalanx.api.kinds import EVENT, POD, Kind
from phalanx.api.wire import Object
from phalanx.cli.why import explain_pending
from phalanx.client.client import Client

#: How many objects of a kind a report shows.
MAX_SHOWN = 10


async def describe_surroundings(
    client: Client, kind: Kind, objects: Sequence[Object], *, namespace: str
) -> str:
    """Say what `phalanx why` says of the first object, and list pods and the last events.

    If there is no object, list the others of its kind: its name or namespace may be misspelt.
    """
    lines: list[str] = []
    if objects:
        lines += await _explain(client, kind, objects[0])
    elif others := (await client.list(kind)).items:
        named = [{"kind": kind.name, **other} for other in others[:MAX_SHOWN]]
        lines += [f"other {kind.plural} ({len(others)}):", describe_objects(named)]
    pods = [] if kind is POD else (await client.list(POD, namespace=namespace)).items
    if pods:
        named = [{"kind": POD.name, **pod} for pod in pods[:MAX_SHOWN]]
        lines += [f"pods ({len(pods)}):", describe_objects(named)]
    events = (await client.list(EVENT, namespace=namespace)).items
    if events:
        last = sorted(events, key=_event_time)[-MAX_SHOWN:]
        lines += [f"last events (of {len(events)}):", *map(_describe_event, last)]
    return "\n".join(lines)


async def _explain(client: Client, kind: Kind, obj: Object) -> list[str]:
    """Return the answer of `phalanx why`, if it knows the kind and the object is pending."""
    meta = obj["metadata"]
    with suppress(ApiError, click.ClickException):
        answer = await explain_pending(
            client, f"{kind.singular}/{meta['name']}", meta.get("namespace", "")
        )
        lines = [f"  {line}" for line in answer.splitlines()]
        return [f"phalanx why {kind.singular}/{meta['name']}:", *lines]
    return []


def _event_time(event: Object) -> str:
    meta = event["metadata"]
    return str(event.get("lastTimestamp") or event.get("eventTime") or meta["creationTimestamp"])


def _describe_event(event: Object) -> str:
    regarding = event.get("involvedObject") or {}
    count = event.get("count") or 1
    times = f" (x{count})" if count > 1 else ""
    subject = f"{regarding.get('kind')}/{regarding.get('name')}"
    return f"  {event.get('type')} {event.get('reason')} {subject}{times}: {event.get('message')}"


def describe_objects(objects: Sequence[Object]) -> str:
    """Describe objects by phase and conditions, one line each."""
    lines = [f"  {_object_name(obj)}: {_describe_status(obj)}" for obj in objects]
    return "\n".join(lines) or "  there is none"


def _object_name(obj: Object) -> str:
    meta = obj["metadata"]
    return f"{obj.get('kind', '')} {meta.get('namespace', '')}/{meta['name']}".replace(" /", " ")


def _describe_status(obj: Object) -> str:
    status = object_status(obj)
    parts = [f"phase {status['phase']}"] if status.get("phase") else []
    for condition in status_conditions(status):
        reasons = [str(condition[name]) for name in ("reason", "message") if condition.get(name)]
        text = f"{condition.get('type')}={condition.get('status')}"
        parts.append(f"{text} ({': '.join(reasons)})" if reasons else text)
    return "; ".join(parts) or f"status {status}"


def object_status(obj: Object) -> Object:
    """Return the status of an object; {} if there is none or it is no object."""
    status = obj.get("status")
    return status if isinstance(status, dict) else {}


def status_conditions(status: Object) -> list[Object]:
    """Return the conditions of a status that are objects."""
    listed = status.get("conditions") or ()
    return [condition for condition in listed if isinstance(condition, dict)]
