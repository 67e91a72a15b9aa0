"""`phalanx why KIND/NAME`: why it is pending, and the smallest changes that would let it run."""

from __future__ import annotations

from pathlib import Path

import click

from phalanx.api.meta import Key
from phalanx.cli.answers import Answer, as_json, as_text
from phalanx.cli.configuration import load_configuration
from phalanx.cli.connection import ask, cluster_options
from phalanx.cli.paper import JSON, TEXT, YAML, output_option, structured
from phalanx.cli.subjects import Asked, parsed, seen, subjects
from phalanx.client.client import Client
from phalanx.clock import WallClock
from phalanx.controllers.shell.exact import Solver
from phalanx.scheduler.asking.diagnosis import diagnose
from phalanx.scheduler.settings.profiles import DEFAULT_PROFILES, Profiles


@click.command()
@click.argument("what", metavar="KIND/NAME")
@cluster_options
@output_option(TEXT, JSON, YAML)
@click.option(
    "--config",
    "policy",
    type=click.Path(path_type=Path),
    default=None,
    metavar="FILE",
    help="The KubeSchedulerConfiguration that the scheduler runs with, if it has one.",
)
def command(
    what: str, namespace: str, config: Path | None, context: str, output: str, policy: Path | None
) -> None:
    """Say why something is pending, and the smallest changes that would let it run.

    KIND is podgroup, compositepodgroup, pod, job, workload, jobset or leaderworkerset. Every
    change under "It would help to" was tried out on a copy of the cluster; nothing is changed.

    \b
    Example:
      phalanx why podgroup/train
      phalanx why job/train -n research -o json
    """
    kind, name = parsed(what)
    profiles = load_configuration(policy).profiles if policy else DEFAULT_PROFILES

    async def question(client: Client, default: str) -> tuple[Asked, list[Answer]]:
        asked = Asked(kind, Key(namespace or default, name))
        return asked, await _answers(client, asked, profiles, WallClock().now())

    asked, found = ask(config, context, question)
    if output == TEXT:
        click.echo(_text(asked, found))
    else:
        items = [as_json(answer) for answer in found]
        click.echo(structured({"items": items} if asked.is_many else items[0], output))


async def told(client: Client, what: str, namespace: str) -> str:
    """The answer as text, for those who hold a client already."""
    kind, name = parsed(what)
    asked = Asked(kind, Key(namespace, name))
    return _text(asked, await _answers(client, asked, DEFAULT_PROFILES, 0.0))


async def _answers(client: Client, asked: Asked, profiles: Profiles, now: float) -> list[Answer]:
    """Look at the cluster as it is."""
    cluster = await seen(client)
    found = await subjects(client, asked, cluster)
    solver = Solver()
    return [Answer(one, diagnose(one, cluster, profiles, solver, now)) for one in found]


def _text(asked: Asked, found: list[Answer]) -> str:
    if not found:
        return f"{asked.kind.name} {asked.key} has no pods and no pod groups yet"
    return "\n\n".join(map(as_text, found))
