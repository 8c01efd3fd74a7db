"""A tool outside the job that answers each request after a pause: `tool_service.py PAUSE HANDLE [--shared]`.

HANDLE: of a listening socket. `--shared`: one request at a time over all clients. It does not import torch, which
takes longer on a busy host than the controls' threshold, so its timing is right from the first request on.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import socket


async def answer(pause: float, turn: asyncio.Lock, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve one client: its requests are answered one after the other, each after a pause."""
    while await reader.readline():
        async with turn:
            await asyncio.sleep(pause)
        writer.write(b"0.5\n")
        await writer.drain()
    writer.close()


async def serve(pause: float, shared: bool, listener: socket.socket) -> None:
    turn, clients = asyncio.Lock(), 0

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal clients
        clients += 1
        with contextlib.suppress(ConnectionError):
            await answer(pause, turn if shared else asyncio.Lock(), reader, writer)
        clients -= 1

    await asyncio.start_server(meet, sock=listener)
    served = 0.0
    while served < 20 or clients:  # until the job that uses it has ended
        await asyncio.sleep(1)
        served += 1


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("pause", type=float)
    arguments.add_argument("handle", type=int)
    arguments.add_argument("--shared", action="store_true")
    options = arguments.parse_args()
    asyncio.run(serve(options.pause, options.shared, socket.socket(fileno=options.handle)))


if __name__ == "__main__":
    main()
