#!/usr/bin/env python3
"""Workers that meet at a barrier and add up a number, as distributed training does.

Plain Python, no library. Each worker is a pod and knows from its environment how many there are and
its rank, which for pods of an Indexed Job is their index. Rank 0 listens on loopback; the others
come to it. When all are there, each gives its number, and all get the sum: an all-reduce.
"""

from __future__ import annotations

import os
import socket
import time

#: Seconds that a worker waits for the others.
PATIENCE = 60.0


def listened(port: int, world: int, number: int) -> int:
    """Rank 0: wait until all are there, add up what they give, tell them."""
    with socket.create_server(("127.0.0.1", port)) as server:
        server.settimeout(PATIENCE)
        others = [server.accept()[0] for _ in range(world - 1)]
    total = number + sum(int(other.recv(64)) for other in others)
    for other in others:
        other.sendall(b"%d" % total)
        other.close()
    return total


def called(port: int, number: int) -> int:
    """Any other rank: come to rank 0 as soon as it is there, give a number, get the sum."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as leader:
                leader.sendall(b"%d" % number)
                return int(leader.recv(64))
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def main() -> None:
    """Meet the others."""
    rank = int(os.environ.get("RANK") or os.environ["JOB_COMPLETION_INDEX"])
    world = int(os.environ["WORLD_SIZE"])
    port, number = int(os.environ["MASTER_PORT"]), (rank + 1) ** 2
    print(f"rank {rank} of {world} brings {number}", flush=True)
    total = listened(port, world, number) if rank == 0 else called(port, number)
    print(f"rank {rank}: the sum is {total}", flush=True)


if __name__ == "__main__":
    main()
