#!/usr/bin/env python3
"""Workers that meet at a barrier and sum up numbers, like distributed training (an all-reduce).

Plain Python without libraries. Each worker is a pod. The environment sets the number of workers and
the rank of each; for pods of an Indexed Job the rank is their index. Rank 0 listens on loopback and
the other ranks connect to it. When all are connected, each sends its number and receives the sum.
"""

from __future__ import annotations

import os
import socket
import time

#: Seconds that a worker waits for the other workers.
TIMEOUT = 600.0


def run_leader(port: int, world: int, number: int) -> int:
    """As rank 0: wait for all other ranks, add up their numbers, send them the sum."""
    with socket.create_server(("127.0.0.1", port)) as server:
        server.settimeout(TIMEOUT)
        others = [server.accept()[0] for _ in range(world - 1)]
    total = number + sum(int(other.recv(64)) for other in others)
    for other in others:
        other.sendall(b"%d" % total)
        other.close()
    return total


def run_follower(port: int, number: int) -> int:
    """As another rank: connect to rank 0 when it listens, send the number, receive the sum."""
    deadline = time.monotonic() + TIMEOUT
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT) as leader:
                leader.sendall(b"%d" % number)
                return int(leader.recv(64))
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def main() -> None:
    """Run as the rank that the environment sets."""
    rank = int(os.environ.get("RANK") or os.environ["JOB_COMPLETION_INDEX"])
    world = int(os.environ["WORLD_SIZE"])
    port, number = int(os.environ["MASTER_PORT"]), (rank + 1) ** 2
    print(f"rank {rank} of {world} brings {number}", flush=True)
    total = run_leader(port, world, number) if rank == 0 else run_follower(port, number)
    print(f"rank {rank}: the sum is {total}", flush=True)


if __name__ == "__main__":
    main()
