"""Healthy: rank 1 asks a model judge over HTTP, which computes 11 s for each of four answers; ranks 0 and 2 wait in an
all-gather."""
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
import http.client


def judge(port):
    from http.server import BaseHTTPRequestHandler, HTTPServer

    import numpy

    note("judge")

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args):
            pass

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            end, state = time.time() + 11, numpy.random.rand(200, 200)
            while time.time() < end:
                state = numpy.tanh(state @ state.T / 200)
            self.send_response(200)
            self.send_header("Content-Length", "3")
            self.end_headers()
            self.wfile.write(b"0.7")

    HTTPServer(("127.0.0.1", port), Handler).serve_forever()


def train(rank, port):
    import torch
    import torch.distributed as dist

    note(f"rank{rank}")
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=30))
    score = 0.0
    for answer in range(4 if rank == 1 else 0):
        client = http.client.HTTPConnection("127.0.0.1", port)
        client.request("POST", "/judge", body=f"answer {answer}")
        score += float(client.getresponse().read())
        say("rank 1: judged", answer)
    gathered = [torch.empty(1) for _ in range(3)]
    dist.all_gather(gathered, torch.tensor([score]))
    say("rank", rank, "done")
    dist.destroy_process_group()


if __name__ == "__main__":
    part = os.environ.get("PART")
    if part is None:
        port, master = free_port(), free_port()
        server = start(PART="judge", PORT=port)
        time.sleep(1.5)
        ps = [start(PART="train", PORT=port, RANK=r, WORLD_SIZE=3, MASTER_PORT=master) for r in range(3)]
        [p.wait() for p in ps]
        server.terminate()
        server.wait()
    elif part == "judge":
        judge(int(os.environ["PORT"]))
    else:
        train(int(os.environ["RANK"]), int(os.environ["PORT"]))
