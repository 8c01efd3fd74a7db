"""K13: a weight sync that the receiver refused at once, while the trainer ignores the answer and broadcasts.

Rank 0 trains; the other ranks are workers of an engine that receives weights. Each worker takes requests over HTTP,
answers with its own status, like SGLang, and records it, like our engine session. `begin`: the update came without
`begin_weight_update`. `tensor`: the engine has no tensor of that name, so its call raised. `closed`: the engine
refuses because requests are still running.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import tempfile
import threading
import time
import urllib.request
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch
import torch.distributed as dist
import toy

from probes import install

NAME = "model.layers.0.mlp.down_proj.weight"


class Worker:
    def __init__(self, recorder: install.Recorder) -> None:
        self.recorder = recorder
        self.requests: queue.Queue[tuple[dict[str, Any], Future[dict[str, Any]]]] = queue.Queue()
        self.weights = {NAME: torch.zeros(64, device=toy.DEVICE)}
        self.open = False
        self.running = 0

    def generate(self, **fields: Any) -> str:
        self.running += 1
        return "accepted"

    def begin_weight_update(self, **fields: Any) -> str:
        self.open = True
        return "begun"

    def end_weight_update(self, **fields: Any) -> str:
        self.open = False
        return "ended"

    def update_weights(self, name: str, **fields: Any) -> str:
        if self.running:
            raise RuntimeError(f"{self.running} requests are running: flush the cache first")
        if not self.open:
            raise RuntimeError("update_weights_from_distributed without begin_weight_update")
        dist.broadcast(self.weights[name], src=0)
        return "updated"

    def event_loop(self) -> None:
        while True:
            try:
                request, answer = self.requests.get(timeout=0.01)
            except queue.Empty:
                continue
            started = time.perf_counter()
            call = request.pop("call")
            try:
                ok, message = True, str(getattr(self, call)(**request))
            except Exception as error:  # the error is the answer: the engine stays up, as servers do
                ok, message = False, f"{type(error).__name__}: {error}"
            self.recorder.event(
                "call", name=call, step=request.get("step", -1), ok=ok, message=message,
                seconds=time.perf_counter() - started,
            )  # fmt: skip
            answer.set_result({"success": ok, "message": message})


def serve(worker: Worker) -> int:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            answer: Future[dict[str, Any]] = Future()
            worker.requests.put((json.loads(self.rfile.read(int(self.headers["Content-Length"]))), answer))
            body = json.dumps(answer.result()).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True, name="http").start()
    return server.server_port


def tell(ports: list[int], call: str, **fields: Any) -> None:
    """Send a call to every worker at once, and ignore the answers."""

    def post(port: int) -> None:
        body = json.dumps({"call": call, **fields}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{port}/", data=body)
        with urllib.request.urlopen(request) as answer:
            answer.read()

    threads = [threading.Thread(target=post, args=(port,)) for port in ports]
    for thread in threads:
        thread.start()
    if call != "update_weights":  # which answers only after the broadcast
        for thread in threads:
            thread.join()


def sync_weights(ports: list[int], step: int, phase: str) -> None:
    last = step == 2
    if not (last and phase == "begin"):
        tell(ports, "begin_weight_update", step=step)
    tell(ports, "update_weights", step=step, name="lm_head.weight" if last and phase == "tensor" else NAME)
    dist.broadcast(torch.ones(64, device=toy.DEVICE), src=0)
    tell(ports, "end_weight_update", step=step)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--phase", choices=["begin", "tensor", "closed"], default="begin")
    options = arguments.parse_args()
    toy.setup()
    store = dist.distributed_c10d._get_default_store()
    if toy.RANK:
        folder = os.environ.get("RLHF_HARNESS_WATCH") or tempfile.mkdtemp(prefix="engine-")
        worker = Worker(install.start(folder, role="rollout", rank=toy.RANK, world_size=toy.WORLD))
        store.set(f"port/{toy.RANK}", str(serve(worker)))
        worker.event_loop()
    ports = [int(store.get(f"port/{rank}")) for rank in range(1, toy.WORLD)]
    for step in range(3):
        if step == 2 and options.phase == "closed":
            tell(ports, "generate")  # without waiting for its tokens
        sync_weights(ports, step, options.phase)


if __name__ == "__main__":
    main()
