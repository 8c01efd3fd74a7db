"""Asynchronous rollouts: every rank runs an event loop and awaits a service outside the job.

All are controls and end by themselves. `rated`: a rate-limited tool answers one request every quarter of the
threshold. `crowd`: the same with hundreds of pending tasks. `poll`: each task uses long polling, and an answer takes
most of the threshold. `judge`: rank 0 awaits one slow judge for four thresholds, while rank 1 waits for rank 0 in a
collective. `lost`: rank 0 awaits an event that is never set, and gives up after four thresholds. `ticks`: one request
of rank 0 is lost for seven thresholds, while a task of the same loop writes a metric twice per second. `socket`: rank
0 asks the judge without an event loop, in a blocking call. `pool`: the same in the threads of a pool. That judge
belongs to another user, on the same host.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import torch.distributed as dist
import toy

SERVICE = Path(__file__).with_name("tool_service.py")


def service(pause: float, shared: bool, *, ours: bool = True) -> int:
    """Start the service as a daemon that outlives its parent, and return its port. `ours`: it gets this rank's
    environment.

    The port accepts connections at once: a rank that waited for the service to start would stay away from the
    collective.
    """
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        handle = listener.fileno()
        command = [sys.executable, str(SERVICE), str(pause), str(handle)]
        if (child := os.fork()) == 0:
            os.setsid()
            command += ["--shared"] if shared else []
            subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[handle],
                env=None if ours else {},
            )  # fmt: skip
            os._exit(0)
        os.waitpid(child, 0)
        return int(listener.getsockname()[1])


async def ask(port: int, times: int) -> float:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    score = 0.0
    for _ in range(times):
        writer.write(b"score\n")
        score += float(await reader.readline())
    writer.close()
    return score


async def rollout(port: int, tasks: int, times: int) -> float:
    return sum(await asyncio.gather(*(ask(port, times) for _ in range(tasks))))


async def collect(port: int, tasks: int, times: int, pending: int) -> float:
    """Run episodes, beside trajectories that wait for a turn which does not come in this step."""
    turn = asyncio.Event()
    pending_turns = [asyncio.create_task(turn.wait()) for _ in range(pending)]
    total = await rollout(port, tasks, times)
    for turn_task in pending_turns:
        turn_task.cancel()
    return total


async def metrics() -> None:
    while True:
        await asyncio.sleep(0.5)


async def monitored(port: int) -> float:
    monitor = asyncio.create_task(metrics())
    score = await ask(port, 1)
    monitor.cancel()
    return score


def ask_blocking(port: int) -> float:
    with socket.create_connection(("127.0.0.1", port)) as judge:
        judge.sendall(b"score\n")
        return float(judge.recv(64))


async def forgotten(seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), seconds)


def main() -> None:
    arguments = argparse.ArgumentParser()
    phases = ["rated", "crowd", "poll", "judge", "lost", "ticks", "socket", "pool"]
    arguments.add_argument("--phase", choices=phases, default="rated")
    arguments.add_argument("--stall", type=float, default=5.0)
    options = arguments.parse_args()
    toy.setup()
    dist.all_reduce(torch.ones(1))
    if options.phase == "lost" and toy.RANK == 0:
        asyncio.run(forgotten(4 * options.stall))
    elif options.phase == "ticks" and toy.RANK == 0:
        asyncio.run(monitored(service(7 * options.stall, False)))
    elif options.phase == "judge" and toy.RANK == 0:
        asyncio.run(rollout(service(4 * options.stall, False), 1, 1))
    elif options.phase == "socket" and toy.RANK == 0:
        ask_blocking(service(4 * options.stall, False, ours=False))
    elif options.phase == "pool" and toy.RANK == 0:
        port = service(4 * options.stall, False, ours=False)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(ask_blocking, [port] * 4))
    elif options.phase == "poll":
        asyncio.run(rollout(service(0.8 * options.stall, False), 4, 3))
    elif options.phase in ("rated", "crowd"):
        pending = 300 if options.phase == "crowd" else 0
        asyncio.run(collect(service(options.stall / 4, True), 10, 1, pending))
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
