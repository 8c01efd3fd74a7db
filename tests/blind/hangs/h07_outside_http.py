"""Rank 1 reads its shard from a feature store that is no part of the job (a daemon of its own session) and that takes the
connection and never answers. The others wait in an all-reduce."""
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


def daemon(port_file):
    """The outside service: answers twelve requests, then none. Ends by itself after three minutes."""
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    import signal

    signal.alarm(180)
    note("outside")
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(50)
        with open(port_file + ".tmp", "w") as file:
            file.write(str(listening.getsockname()[1]))
        os.rename(port_file + ".tmp", port_file)
        kept = []
        for count in range(10**6):
            one, _ = listening.accept()
            kept.append(one)
            if count < 12:
                one.recv(4096)
                one.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nrows")
                one.close()
    os._exit(0)


def train(rank, world):
    import torch
    import torch.distributed as dist

    note(f"rank{rank}")
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=30))
    port = int(os.environ["STORE_PORT"])
    for step in range(1000):
        if rank == 1:
            client = http.client.HTTPConnection("127.0.0.1", port)
            client.request("GET", f"/features/shard-1/{step}")
            client.getresponse().read()
        time.sleep(0.25)
        dist.all_reduce(torch.ones(100))
        say("rank", rank, "step", step)


if __name__ == "__main__":
    if "RANK" in os.environ:
        train(int(os.environ["RANK"]), 3)
    else:
        import tempfile

        port_file = os.path.join(tempfile.mkdtemp(), "port")
        daemon(port_file)
        while not os.path.exists(port_file):
            time.sleep(0.05)
        os.environ["STORE_PORT"] = open(port_file).read()
        launch(3)
