"""Ranks and engines that poll, servers that answer in pieces, and a child that is joined too early.

No process may be named where it is unknown which one makes what is polled for. `file`: rank 0 polls for a file, which
comes after three thresholds. `buffer`: it asks a collector for its size, which grows slowly. `died`: the same, but
the collector's thread died; it ends between two looks. `pieces`: a rank reads an answer that takes three thresholds,
one piece per third of a threshold. `job`: the file comes from a shell beside the job, after three thresholds.
`reported`: rank 0 looks at a list that a slow thread fills; another thread, which only reports, died. The two hangs:
`thread`, where the thread that fills the list died, and `join`, where rank 0 joins its child before it reads what the
child has put into a queue.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import subprocess
import tempfile
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import torch.distributed as dist
import toy

AT, SHARES = 4, 3  # the step in which something happens; how many thresholds it takes
BATCH = 6  # items


def wait_for_score(path: Path) -> None:
    while not path.exists():
        time.sleep(0.5)


class Prefetcher:
    """Fills a list in a thread. `dies`: that thread fails before it has filled anything; else one that reports does."""

    def __init__(self, seconds: float, *, dies: bool) -> None:
        self.batches: list[int] = []
        self.seconds, self.dies = seconds, dies
        threading.Thread(target=self.fill, name="prefetch", daemon=True).start()
        threading.Thread(target=self.report, name="report", daemon=True).start()

    def fill(self) -> None:
        for number in range(BATCH):
            time.sleep(self.seconds / BATCH)
            if self.dies:
                raise RuntimeError("no prompt groups")
            self.batches.append(number)

    def report(self) -> None:
        if not self.dies:
            raise ConnectionError("no server of metrics")

    def all(self) -> None:
        while len(self.batches) < BATCH:
            time.sleep(0.5)


ITEMS: list[int] = []


class Handler(BaseHTTPRequestHandler):
    """Answers with the number of items, or in pieces."""

    stall_s = 5.0

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        if self.path == "/size":
            self.wfile.write(str(len(ITEMS)).encode())
            return
        for _ in range(3 * SHARES):
            time.sleep(self.stall_s / 3)
            self.wfile.write(b"piece")
            self.wfile.flush()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def collect(phase: str, stall_s: float) -> None:
    for item in range(BATCH):
        time.sleep(SHARES * stall_s / BATCH)
        if phase == "died" and item == 1:
            raise RuntimeError("no prompt groups")
        ITEMS.append(item)


def serve(phase: str, stall_s: float, port: object) -> None:
    Handler.stall_s = stall_s
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    port.send(server.server_address[1])  # type: ignore[attr-defined]
    if phase in ("buffer", "died"):
        threading.Thread(target=collect, args=(phase, stall_s)).start()
    server.serve_forever()


def answer(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=600) as response:
        return bytes(response.read())


def sample(address: str) -> None:
    while int(answer(f"{address}/size")) < BATCH:
        time.sleep(0.5)


def judge(queue: multiprocessing.Queue[bytes]) -> None:
    queue.put(bytes(1 << 20))


def rewards() -> bytes:
    context = multiprocessing.get_context("fork")
    queue: multiprocessing.Queue[bytes] = context.Queue()
    process = context.Process(target=judge, args=(queue,))
    process.start()
    process.join()
    return queue.get()


def something(phase: str, stall_s: float) -> None:
    """Do what one rank does while the others wait for it."""
    if phase == "file":
        path = Path(tempfile.mkdtemp()) / "score"
        threading.Timer(SHARES * stall_s, path.touch).start()
        wait_for_score(path)
    elif phase == "job":
        score = f"/tmp/score-{os.environ['MASTER_PORT']}"
        subprocess.Popen(["sh", "-c", f"sleep {SHARES * stall_s}; touch {score}"], start_new_session=True)
        wait_for_score(Path(score))
        os.unlink(score)
    elif phase in ("thread", "reported"):
        Prefetcher(SHARES * stall_s, dies=phase == "thread").all()
    elif phase == "join":
        rewards()
    else:
        ours, theirs = multiprocessing.Pipe()
        server = multiprocessing.get_context("spawn").Process(target=serve, args=(phase, stall_s, theirs), daemon=True)
        server.start()
        address = f"http://127.0.0.1:{ours.recv()}"
        if phase == "pieces":
            answer(f"{address}/pieces")
        else:
            sample(address)
        server.terminate()


def main() -> None:
    arguments = argparse.ArgumentParser()
    phases = ["file", "buffer", "died", "pieces", "job", "reported", "thread", "join"]
    arguments.add_argument("--phase", choices=phases, required=True)
    arguments.add_argument("--rank", type=int, default=0)
    arguments.add_argument("--stall", type=float, default=5.0)
    options = arguments.parse_args()
    toy.setup()
    if options.phase == "died":
        signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
        signal.alarm(round(3 * SHARES * options.stall))
    module = toy.model()
    for step in range(8):
        if step == AT and options.rank == toy.RANK:
            something(options.phase, options.stall)
        toy.train_step(module, toy.batch(step))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
