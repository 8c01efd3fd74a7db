"""K6: single-threaded servers that wait for each other's answers over HTTP.

`pair`: the trainer asks the engine for a rollout; the engine asks the trainer's server for a reward, and the only
thread of that server is the one that waits. `ring`: the reward is a separate server, which asks the trainer for the
version. `plain`: as `pair`, between processes that never import torch, so that no probe runs in them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer


def ask(port: int, path: str) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as answer:
        return answer.read()


def serve(downstream: int, announce: bool = True) -> HTTPServer:
    """Return a server whose only thread asks `downstream` before it answers."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"0.5"
            if self.path == "/rollout":
                body = ask(downstream, "/reward")
            elif self.path == "/reward" and downstream:
                body = ask(downstream, "/version")
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    if announce:
        print(server.server_port, flush=True)
    return server


def start(role: str, downstream: int, phase: str) -> tuple[subprocess.Popen[str], int]:
    command = [sys.executable, __file__, "--role", role, "--downstream", str(downstream), "--phase", phase]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def train(engine: int) -> None:
    print("reward", ask(engine, "/rollout"), flush=True)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--role", choices=["trainer", "engine", "reward"], default="trainer")
    arguments.add_argument("--downstream", type=int, default=0)
    arguments.add_argument("--phase", choices=["pair", "ring", "plain"], default="pair")
    options = arguments.parse_args()
    if options.phase != "plain" and options.role != "reward":
        import torch.distributed  # noqa: F401  as trainers and engines do; a reward server need not
    if options.role != "trainer":
        serve(options.downstream).serve_forever()
    trainer_server = serve(0, announce=False)  # it answers only while no step is running
    reward = (
        start("reward", trainer_server.server_port, options.phase)[1]
        if options.phase == "ring"
        else trainer_server.server_port
    )
    _, engine = start("engine", reward, options.phase)
    train(engine)


if __name__ == "__main__":
    main()
