"""Two ranks, and tasks of event loops that wait for each other.

Hangs of rank 0: `locks`, two tasks take two locks in opposite orders; `result`, a task keeps a lock and awaits a task
that wants it; `died`, the task that fills a queue has died, and its error is read by nobody. Of an engine's server:
`writer`, an update waits until no request reads, and a request waits for the resumption that comes after the update;
`asked`, two requests, which two tasks of rank 0 await, take two locks in opposite orders.

Controls, which end by themselves: `idle`, a server idles while the ranks rest for two thresholds; `sleeper`, a task
sleeps again and again; `empty`, a consumer waits for a producer that sleeps for four thresholds; `outside`, a request
waits for an event that a process beside the job asks for after three thresholds.
"""

from __future__ import annotations

import argparse
import asyncio
import atexit
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable


async def use(first: asyncio.Lock, second: asyncio.Lock) -> None:
    async with first:
        await asyncio.sleep(0.1)
        async with second:
            pass


async def locks() -> None:
    weights, cache = asyncio.Lock(), asyncio.Lock()
    await asyncio.gather(use(weights, cache), use(cache, weights))


async def result() -> None:
    weights = asyncio.Lock()
    async with weights:
        await asyncio.create_task(use(weights, asyncio.Lock()))


async def died() -> None:
    samples: asyncio.Queue[int] = asyncio.Queue()

    async def produce() -> None:
        for sample in range(10):
            await samples.put(sample)
        raise RuntimeError("no prompts are left")

    producer = asyncio.create_task(produce(), name="producer")
    for _ in range(16):
        await samples.get()
    await producer


async def sleeper(seconds: float) -> None:
    async def report() -> None:
        while True:
            await asyncio.sleep(0.2)

    reports = asyncio.create_task(report())
    await asyncio.sleep(seconds)
    reports.cancel()


async def empty(seconds: float) -> None:
    samples: asyncio.Queue[int] = asyncio.Queue()

    async def produce() -> None:
        await asyncio.sleep(seconds)
        await samples.put(1)

    producer = asyncio.create_task(produce())
    await samples.get()
    await producer


class Engine:
    """A server whose weight update waits until no request reads the weights. A pause holds the requests."""

    def __init__(self) -> None:
        self.changed, self.resumed, self.readers = asyncio.Condition(), asyncio.Event(), 0
        self.resumed.set()
        self.weights, self.cache = asyncio.Lock(), asyncio.Lock()

    async def generate(self) -> None:
        async with self.changed:
            self.readers += 1
        await self.resumed.wait()
        async with self.changed:
            self.readers -= 1
            self.changed.notify_all()

    async def update(self) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: self.readers == 0)

    async def pause(self) -> None:
        self.resumed.clear()

    async def resume(self) -> None:
        self.resumed.set()

    async def load(self) -> None:
        await use(self.weights, self.cache)

    async def evict(self) -> None:
        await use(self.cache, self.weights)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
        handlers: dict[str, Callable[[], Awaitable[None]]] = {
            "/generate": self.generate, "/update": self.update, "/pause": self.pause, "/resume": self.resume,
            "/load": self.load, "/evict": self.evict,
        }  # fmt: skip
        await handlers[request]()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()


async def serve(port: int) -> None:
    server = await asyncio.start_server(Engine().answer, "127.0.0.1", port)
    await server.serve_forever()


def ask(port: int, page: str) -> None:
    for _ in range(100):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}", timeout=600).read()
            return
        except urllib.error.URLError:  # it is not up yet
            time.sleep(0.1)


async def ask_for(port: int, page: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /{page} HTTP/1.1\r\n\r\n".encode())
    return await reader.readline()


async def ask_for_both(port: int) -> None:
    await asyncio.gather(ask_for(port, "load"), ask_for(port, "evict"))


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def start_engine(*, client: bool) -> int:
    """Start the server, and a client of it that generates all the time. Return its port."""
    port = free_port()
    alone = {name: text for name, text in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")}
    for role in ("engine", "client") if client else ("engine",):
        child = subprocess.Popen([sys.executable, __file__, "--role", role, "--port", str(port)], env=alone)
        atexit.register(child.terminate)
    return port


def resume_from_outside(port: int, seconds: float) -> None:
    """Let a process that is no part of this job resume the engine later."""
    code = (
        f"import time, urllib.request as u; time.sleep({seconds}); u.urlopen('http://127.0.0.1:{port}/resume').read()"
    )
    subprocess.Popen(["setsid", "--fork", sys.executable, "-c", code], env={"PATH": os.environ["PATH"]},
                     stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).wait()  # fmt: skip


def work(phase: str, stall: float) -> None:
    """What rank 0 does while rank 1 waits for it."""
    if phase in ("locks", "result", "died"):
        asyncio.run({"locks": locks, "result": result, "died": died}[phase]())
    elif phase in ("sleeper", "empty"):
        asyncio.run(sleeper(2 * stall) if phase == "sleeper" else empty(4 * stall))
    elif phase in ("idle", "asked"):
        ask(port := start_engine(client=False), "generate")
        if phase == "asked":
            asyncio.run(ask_for_both(port))
        time.sleep(2 * stall)
    else:
        port = start_engine(client=phase == "writer")
        ask(port, "pause")
        if phase == "outside":
            resume_from_outside(port, 3 * stall)
            ask(port, "generate")
        else:
            time.sleep(1)  # the client's request has come
            ask(port, "update")
            ask(port, "resume")


def rank(phase: str, stall: float) -> None:
    import torch
    import torch.distributed as dist
    import toy

    toy.setup()
    dist.all_reduce(torch.ones(1))
    if toy.RANK == 0:
        work(phase, stall)
    elif phase == "idle":
        time.sleep(2 * stall)
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()


def main() -> None:
    arguments = argparse.ArgumentParser()
    phases = ["locks", "result", "died", "writer", "asked", "idle", "sleeper", "empty", "outside"]
    arguments.add_argument("--phase", choices=phases, default="locks")
    arguments.add_argument("--stall", type=float, default=5.0)
    arguments.add_argument("--role", choices=["rank", "engine", "client"], default="rank")
    arguments.add_argument("--port", type=int, default=0)
    options = arguments.parse_args()
    if options.role == "engine":
        asyncio.run(serve(options.port))
    elif options.role == "client":
        while True:
            ask(options.port, "generate")
            time.sleep(0.05)
    else:
        rank(options.phase, options.stall)


if __name__ == "__main__":
    main()
