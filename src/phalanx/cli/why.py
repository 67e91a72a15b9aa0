"""`phalanx why KIND/NAME`: why it is pending, and the smallest changes that would let it run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import msgspec

from phalanx.api.core import Node, Pod, Service
from phalanx.api.errors import NotFound
from phalanx.api.kinds import NAMESPACE, NODE, POD, POD_GROUP, SERVICE, Kind
from phalanx.api.meta import Key
from phalanx.api.scheduling import PodGroup
from phalanx.cli.connection import ask, cluster_options
from phalanx.client.client import Client
from phalanx.controllers.exact import Solver
from phalanx.controllers.loop import Thing
from phalanx.scheduler.diagnosis import EMPTY, FITS, NOT_READY, PLACED, Cluster, Diagnosis, diagnose

#: Names that a kind goes by on the command line.
_KINDS = {
    "podgroup": POD_GROUP, "podgroups": POD_GROUP, "pg": POD_GROUP, "gang": POD_GROUP,
    "pod": POD, "pods": POD, "po": POD,
}  # fmt: skip
_HEADLINES = {
    PLACED: "is placed",
    FITS: "fits and is about to be placed",
    NOT_READY: "is not ready to be scheduled",
    EMPTY: "has nothing to place",
}
#: Pods with the same sentence are told of together, by so many names.
_NAMES = 3


@dataclass(frozen=True, slots=True)
class Subject:
    """What is asked about."""

    kind: Kind
    key: Key


@click.command()
@click.argument("what", metavar="KIND/NAME")
@cluster_options
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text")
def command(what: str, namespace: str, config: Path | None, context: str, output: str) -> None:
    """Say why a pod group or pod is pending, and what would let it run.

    \b
    Example:
      phalanx why podgroup/train
      phalanx why pod/train-0 -n research -o json
    """
    kind, name = _subject(what)

    async def question(client: Client, default: str) -> tuple[Subject, Diagnosis]:
        key = Key(namespace or default, name)
        return await _diagnosed(client, kind, key)

    subject, diagnosis = ask(config, context, question)
    click.echo(_json(subject, diagnosis) if output == "json" else _text(subject, diagnosis))


async def told(client: Client, what: str, namespace: str) -> str:
    """The answer as text, for those who hold a client already."""
    kind, name = _subject(what)
    return _text(*await _diagnosed(client, kind, Key(namespace, name)))


def _subject(what: str) -> tuple[Kind, str]:
    word, slash, name = what.partition("/")
    kind = _KINDS.get(word.lower())
    if not slash or not name or kind is None:
        raise click.UsageError(f"{what!r} is not of the form podgroup/NAME or pod/NAME")
    return kind, name


async def _diagnosed(client: Client, kind: Kind, key: Key) -> tuple[Subject, Diagnosis]:
    """Look at the cluster as it is. A pod of a group is asked about as its group."""
    pods, groups = (await client.list(POD, Pod)).items, await _groups(client)
    if groups is None:
        pods, groups = [pod.alone for pod in pods], []
    nodes = (await client.list(NODE, Node)).items
    services = (await client.list(SERVICE, Service)).items
    spaces = (await client.list(NAMESPACE, Thing)).items
    known = {group.metadata.key for group in groups}
    scheduler = "default-scheduler"
    if kind is POD:
        pod = next((pod for pod in pods if pod.metadata.key == key), None)
        if pod is None:
            raise NotFound(f'there is no pod "{key.name}" in namespace "{key.namespace}"')
        scheduler = pod.spec.scheduler_name
        kind, key = (POD_GROUP, pod.group) if pod.group else (kind, key)
    elif key not in known:
        raise NotFound(f'there is no pod group "{key.name}" in namespace "{key.namespace}"')
    labels = {space.metadata.name: space.metadata.labels for space in spaces}
    cluster = Cluster(nodes, groups, pods, services, labels)
    found = diagnose(
        key, is_group=kind is POD_GROUP, cluster=cluster, scheduler=scheduler, solver=Solver()
    )
    return Subject(kind, key), found


async def _groups(client: Client) -> Sequence[PodGroup] | None:
    """All pod groups; None where they are switched off, and pods are scheduled one by one."""
    try:
        return (await client.list(POD_GROUP, PodGroup)).items
    except NotFound:
        return None


def _text(subject: Subject, found: Diagnosis) -> str:
    headline = _HEADLINES.get(found.state, "is waiting")
    lines = [f"{subject.kind.name} {subject.key} {headline}: {found.message}"]
    if subject.kind is POD_GROUP:
        lines.append(f"  members: {found.bound} placed, {found.pending} pending")
    lines += [f"  {_some(names)}: {message}" for message, names in _by_message(found).items()]
    if found.cures:
        lines += ["It would help to:", *(f"  - {cure}" for cure in found.cures)]
    return "\n".join(lines)


def _by_message(found: Diagnosis) -> dict[str, list[str]]:
    """Pods by what they are told, unless that is the headline already."""
    told: dict[str, list[str]] = {}
    for pod in found.pods:
        if pod.message != found.message:
            told.setdefault(pod.message, []).append(pod.pod.name)
    return told


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return ", ".join(names[:_NAMES]) + more


def _json(subject: Subject, found: Diagnosis) -> str:
    answer = {"kind": subject.kind.name, "namespace": subject.key.namespace,
              "name": subject.key.name, **asdict(found)}  # fmt: skip
    answer["pods"] = [
        {"name": pod.pod.name, "uid": pod.uid, "reason": pod.reason, "message": pod.message}
        for pod in found.pods
    ]
    return msgspec.json.format(msgspec.json.encode(answer), indent=2).decode()
