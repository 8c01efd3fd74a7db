"""Healthy: two engine processes wait for requests in their queues, an HTTP server for a first request; the trainer's two
ranks train with an all-reduce every second, for 43 s."""
import datetime
import os
import socket
import subprocess
import sys
import time

T0 = time.time()


def note(label):
    """Only for the tabulator: which process plays which part. Nothing of the program depends on it."""
    folder = os.environ.get("BLIND_RUN")
    if folder:
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, label + ".pid"), "w") as file:
            file.write(str(os.getpid()))


def say(*words):
    print(f"[{time.time() - T0:6.1f}s]", *words, flush=True)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(**variables):
    env = dict(os.environ, OMP_NUM_THREADS="1", MASTER_ADDR="127.0.0.1", **{k: str(v) for k, v in variables.items()})
    return subprocess.Popen([sys.executable, os.path.abspath(__file__)], env=env)


def launch(world):
    """One process a rank, as torchrun sets them up; returns when all are done."""
    port = free_port()
    ranks = [start(RANK=r, LOCAL_RANK=r, WORLD_SIZE=world, MASTER_PORT=port) for r in range(world)]
    codes = [p.wait() for p in ranks]
    sys.exit(max(abs(c) for c in codes))
import queue


def engine(number):
    note(f"engine{number}")
    requests = queue.Queue()
    while True:
        requests.get()


def server(port):
    from http.server import BaseHTTPRequestHandler, HTTPServer

    note("server")
    HTTPServer(("127.0.0.1", port), BaseHTTPRequestHandler).serve_forever()


def train(rank):
    import torch
    import torch.distributed as dist

    note(f"rank{rank}")
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=30))
    begin, step, go = time.time(), 0, torch.ones(1)
    while go.item():
        time.sleep(1)
        dist.all_reduce(torch.ones(100))
        go = torch.tensor([float(time.time() - begin < 43)])
        dist.broadcast(go, 0)
        step += 1
    say("rank", rank, "steps", step)
    dist.destroy_process_group()


if __name__ == "__main__":
    part = os.environ.get("PART")
    if part is None:
        master = free_port()
        idle = [start(PART="engine", NUMBER=n) for n in (0, 1)] + [start(PART="server", PORT=free_port())]
        ps = [start(PART="train", RANK=r, WORLD_SIZE=2, MASTER_PORT=master) for r in range(2)]
        [p.wait() for p in ps]
        for p in idle:
            p.terminate()
            p.wait()
    elif part == "engine":
        engine(int(os.environ["NUMBER"]))
    elif part == "server":
        server(int(os.environ["PORT"]))
    else:
        train(int(os.environ["RANK"]))
