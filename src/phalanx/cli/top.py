"""`phalanx top`: nodes, domains and gangs, live on a terminal, as they are now elsewhere."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import click

from phalanx.cli.connection import ask, cluster_options
from phalanx.cli.live import Live
from phalanx.cli.overview import Overview, as_data, overview, page
from phalanx.cli.paper import JSON, TABLE, YAML, is_terminal, output_option, structured
from phalanx.cli.queue import as_data as gang_data
from phalanx.cli.subjects import seen
from phalanx.client.client import Client
from phalanx.clock import WallClock


@click.command()
@cluster_options
@click.option(
    "--interval",
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    type=click.FloatRange(min=0.1),
    help="How often to look again.",
)
@click.option("--once", is_flag=True, help="Show it once, on a terminal too.")
@output_option(TABLE, JSON, YAML)
def command(
    namespace: str, config: Path | None, context: str, interval: float, once: bool, output: str
) -> None:  # fmt: skip
    """Show how full nodes and domains are and how gangs get on; live on a terminal, ^C ends it.

    Room is counted by what pods ask for, not by what they use. With -n gangs of one namespace are
    shown, otherwise of all. Nothing is changed.

    \b
    Example:
      phalanx top
      phalanx top --once -n research
    """
    if is_terminal() and not once and output == TABLE:
        _live(namespace, config, context, interval)
        return

    async def question(client: Client, default: str) -> Overview:
        return overview(await seen(client))

    found = ask(config, context, question)
    if output == TABLE:
        for line in page(found, namespace):
            click.secho(line.text, fg=line.colour or None)
    else:
        click.echo(structured(_data(found, namespace), output))


def _live(namespace: str, config: Path | None, context: str, interval: float) -> None:
    """Look again and again, until somebody has seen enough."""
    live = Live(sys.stdout)

    async def question(client: Client, default: str) -> None:
        while True:
            live.draw(page(overview(await seen(client)), namespace))
            await asyncio.sleep(interval)

    try:
        ask(config, context, question)
    except KeyboardInterrupt:
        return


def _data(found: Overview, namespace: str) -> dict[str, Any]:
    now = WallClock().now()
    gangs = [one for one in found.gangs if not namespace or one.id.key.namespace == namespace]
    return {**as_data(found), "gangs": [gang_data(one, now) for one in gangs]}
