"""A driver and two engines in separate processes, which exchange requests and answers over sockets or pipes.

`lost`: the second engine forgets a request and waits for the next ones, while its driver waits for the answer.
`buffered`: its answer stays in its output buffer. Both end after three thresholds, between two looks. Controls: in
`rests` both engines wait for orders while the driver does something else for three thresholds. In `thread` the second
engine answers from a thread, which takes as long.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import torch

ROUNDS, REQUESTS = 12, 4
AT = 6  # the round in which something happens


def compute(request: int) -> int:
    return int((torch.eye(64) * request).sum())


def serve(requests: Connection, phase: str, seconds: float) -> None:
    request_count = 0

    def answer_late(request: int) -> None:
        time.sleep(seconds)
        requests.send(compute(request))

    while True:
        request = requests.recv()
        request_count += 1
        if request < 0:
            return
        here = request_count == AT * REQUESTS
        if here and phase == "lost":
            continue
        if here and phase == "thread":
            threading.Thread(target=answer_late, args=(request,)).start()
        else:
            requests.send(compute(request))


def serve_lines(phase: str) -> None:
    with open(1, "w") as answers:  # buffered even where PYTHONUNBUFFERED unbuffers standard output
        for request_count, line in enumerate(sys.stdin, 1):
            print(compute(int(line)), file=answers, flush=phase != "buffered" or request_count < AT)


def start(role: str, phase: str, stall: float) -> Connection:
    ours, theirs = Pipe()
    words = ["--role", role, "--end", str(theirs.fileno()), "--phase", phase, "--stall", str(stall)]
    subprocess.Popen([sys.executable, __file__, *words], pass_fds=[theirs.fileno()])
    theirs.close()
    return ours


def drive(phase: str, stall: float) -> None:
    engines = [start(role, "rests" if role == "first" else phase, stall) for role in ("first", "second")]
    for turn in range(ROUNDS):
        for engine in engines:
            for request in range(REQUESTS):
                engine.send(request)
        for engine in engines:
            for _ in range(REQUESTS):
                engine.recv()
        if phase == "rests" and turn == AT:
            time.sleep(3 * stall)
    for engine in engines:
        engine.send(-1)


def drive_lines(phase: str) -> None:
    command = [sys.executable, __file__, "--role", "second", "--phase", phase]
    engine = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
    assert engine.stdin is not None and engine.stdout is not None
    for request in range(ROUNDS):
        engine.stdin.write(f"{request}\n")
        engine.stdout.readline()


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--role", choices=["driver", "first", "second"], default="driver")
    arguments.add_argument("--phase", choices=["lost", "buffered", "rests", "thread"], required=True)
    arguments.add_argument("--end", type=int, default=-1)
    arguments.add_argument("--stall", type=float, default=5.0)
    options = arguments.parse_args()
    if options.role == "driver" and options.phase in ("lost", "buffered"):
        signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
        signal.alarm(round(3 * options.stall))
    if options.role == "driver":
        drive_lines(options.phase) if options.phase == "buffered" else drive(options.phase, options.stall)
    elif options.end < 0:
        serve_lines(options.phase)
    else:
        serve(Connection(options.end), options.phase, 3 * options.stall)


if __name__ == "__main__":
    main()
