"""A control: the trainer waits for a long rollout, and the engine works on it all the time.

`http`: the engine is a server. `ray`: it is an actor. Ends by itself after twice the stall threshold.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import torch
import torch.distributed


def decode(seconds: float) -> int:
    """Decode token by token, each with a forward pass."""
    tokens, hidden, until = 0, torch.ones(64, 64), time.monotonic() + seconds
    while time.monotonic() < until:
        for _ in range(100):
            hidden = torch.tanh(hidden @ hidden.T / 64)
        tokens += 1
    return tokens


def serve(seconds: float) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = str(decode(seconds)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.handle_request()


class Engine:
    def rollout(self, seconds: float) -> int:
        return decode(seconds)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--role", choices=["trainer", "engine"], default="trainer")
    arguments.add_argument("--phase", choices=["http", "ray"], default="http")
    arguments.add_argument("--stall", type=float, default=5.0)
    options = arguments.parse_args()
    torch.set_num_threads(1)
    long = 2.0 * options.stall + 2.0
    if options.role == "engine":
        serve(long)
    elif options.phase == "http":
        command = [sys.executable, __file__, "--role", "engine", "--stall", str(options.stall)]
        engine = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert engine.stdout is not None
        with urllib.request.urlopen(f"http://127.0.0.1:{int(engine.stdout.readline())}/rollout") as answer:
            print(answer.read().decode(), "tokens")
        engine.wait()
    else:
        import local_ray
        import ray

        local_ray.start()
        actor: Any = ray.remote(num_cpus=0)(Engine).remote()
        print(ray.get(actor.rollout.remote(long)), "tokens")


if __name__ == "__main__":
    main()
