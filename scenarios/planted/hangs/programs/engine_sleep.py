"""K8: a rollout engine that never finishes falling asleep or waking up, while the trainer waits for it.

The engine is a separate process with an HTTP front and one scheduler loop, like the servers of vLLM and SGLang. It
records its transitions as spans, as our engine session records its calls. `wake`: a failed snapshot took the
allocator's lock and did not release it. `sleep`: the engine waits for running requests to end, and an aborted one is
still counted. `scheduler`: its wake-up asks a scheduler process, which records nothing and is stopped. `tp`: an
engine of two ranks; one is stuck in its wake-up, the other in the barrier after it.
"""

from __future__ import annotations

import argparse
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch.distributed as dist

from probes import install


class Engine:
    def __init__(self, recorder: install.Recorder, drain_leak: bool = False, stops: bool = False) -> None:
        self.recorder, self.drain_leak, self.stops = recorder, drain_leak, stops
        self.scheduler: subprocess.Popen[str] | None = None
        self.commands: queue.Queue[tuple[str, Future[str]]] = queue.Queue()
        self.allocator = threading.Lock()
        self.idle = threading.Condition()
        self.running = 0

    def generate(self) -> str:
        with self.recorder.span("rollout"):
            self.running += 1
            time.sleep(0.05)
            if not self.drain_leak:
                self.running -= 1
        return "tokens"

    def snapshot_memory(self) -> None:
        self.allocator.acquire()
        raise MemoryError("no space left for the snapshot")

    def sleep(self) -> str:
        with self.recorder.span("sleep"), self.idle:
            self.idle.wait_for(lambda: self.running == 0)
        return "asleep"

    def wake_up(self) -> str:
        with self.recorder.span("wake_up"), self.allocator:
            if self.stops:
                self.ask_scheduler()
            time.sleep(0.05)
        return "awake"

    def ask_scheduler(self) -> None:
        if self.scheduler is None:
            command = [sys.executable, __file__, "--role", "scheduler"]
            self.scheduler = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        else:
            self.scheduler.send_signal(signal.SIGSTOP)
        assert self.scheduler.stdin is not None and self.scheduler.stdout is not None
        self.scheduler.stdin.write("resume\n")
        self.scheduler.stdin.flush()
        self.scheduler.stdout.readline()

    def event_loop(self) -> None:
        while True:
            name, answer = self.commands.get()
            try:
                answer.set_result(str(getattr(self, name)()))
            except MemoryError as error:  # the engine stays up, as servers do
                answer.set_result(f"failed: {error}")


def serve(engine: Engine) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            answer: Future[str] = Future()
            engine.commands.put((self.path.strip("/"), answer))
            body = answer.result().encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    threading.Thread(target=server.serve_forever, daemon=True, name="http").start()


def call(port: int, name: str) -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/{name}", method="POST")
    with urllib.request.urlopen(request) as answer:
        return answer.read().decode()


def train(port: int, phase: str) -> None:
    """Train in colocated mode: the engine sleeps while the trainer has the device."""
    for step in range(3):
        call(port, "generate")
        if phase == "wake" and step == 1:
            call(port, "snapshot_memory")
        call(port, "sleep")
        time.sleep(0.05)
        call(port, "wake_up")


def wake_together(engine: Engine) -> None:
    engine.wake_up()
    dist.barrier()


def recording(role: str, rank: int = 0, world: int = 1) -> install.Recorder:
    folder = os.environ.get("RLHF_HARNESS_WATCH") or tempfile.mkdtemp(prefix="engine-")
    return install.start(folder, role=role, rank=rank, world_size=world)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--role", choices=["trainer", "engine", "scheduler"], default="trainer")
    arguments.add_argument("--phase", choices=["wake", "sleep", "scheduler", "tp"], default="wake")
    options = arguments.parse_args()
    if options.phase == "tp":
        import toy

        toy.setup()
        engine = Engine(recording("rollout", toy.RANK, toy.WORLD))
        for step in range(3):
            if step == 2 and toy.RANK == 1:
                try:
                    engine.snapshot_memory()
                except MemoryError as error:
                    print(f"rank {toy.RANK}: {error}", file=sys.stderr, flush=True)
            wake_together(engine)
    elif options.role == "engine":
        engine = Engine(recording("rollout"), options.phase == "sleep", options.phase == "scheduler")
        serve(engine)
        engine.event_loop()
    elif options.role == "scheduler":
        for line in sys.stdin:
            print(line, end="", flush=True)
    else:
        recorder = recording("trainer")
        command = [sys.executable, __file__, "--role", "engine", "--phase", options.phase]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        train(int(process.stdout.readline()), options.phase)
        recorder.close()


if __name__ == "__main__":
    main()
