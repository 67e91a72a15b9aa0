"""The child process that makes the queue for the page (`queue_reporter.py`).

It lists what `phalanx queue --all-namespaces --ended` lists, with the functions of that command, so
that page and command agree: one JSON report on stdout for every line on stdin.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path
from time import process_time
from typing import Any

import orjson
import uvloop

from phalanx.api.errors import ApiError
from phalanx.api.meta import timestamp
from phalanx.api.wire import Object
from phalanx.cli.queue import QueueFilter, list_queue, queue_entry_data
from phalanx.cli.workload_states import ListedWorkload
from phalanx.client import kubeconfig
from phalanx.client.client import Client
from phalanx.client.transports import ReadOnlyTransport, Unreachable
from phalanx.clock import WallClock

_NICENESS = 5
_EVERYTHING = QueueFilter("", "", ())


async def build_report(client: Client) -> Object:
    """Read the cluster and list its queue as data."""
    begin = process_time()
    listing = await list_queue(client, _EVERYTHING, "", now=WallClock().now(), with_ended=True)
    return {
        "at": timestamp(listing.now),
        "seconds": round(process_time() - begin, 3),
        "items": [_entry_data(entry, listing.now) for entry in listing.entries],
    }


def _entry_data(entry: ListedWorkload, now: float) -> dict[str, Any]:
    """An entry as `phalanx queue -o json` prints it, with what the page also shows."""
    row, expected = entry.row, entry.expected
    return {
        **queue_entry_data(*entry, now=now),
        "argument": row.display_name,
        "members": row.members,
        "started": row.started,
        "failed": row.failed,
        "waitsFor": list(expected.waits_for) if expected else [],
    }


async def _answer(config: kubeconfig.ClientConfig) -> None:
    """Write a report for each line of the standard input, until it is closed."""
    client = Client(ReadOnlyTransport(kubeconfig.create_transport(config)))
    loop, output = asyncio.get_running_loop(), sys.stdout.buffer
    try:
        while await loop.run_in_executor(None, sys.stdin.readline):
            try:
                report = await build_report(client)
            except (ApiError, Unreachable) as error:
                report = {"error": str(error), "items": []}
            output.write(orjson.dumps(report) + b"\n")
            output.flush()
    finally:
        await client.close()


def main() -> None:
    """Run the child process; the argument is the kubeconfig of the server."""
    os.nice(_NICENESS)
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(_answer(kubeconfig.load([Path(sys.argv[1])])))


if __name__ == "__main__":
    main()
