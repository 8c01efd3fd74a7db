"""Rank 2 was started with the port of the job before, where a forgotten store still listens: it waits there for two peers
that never come, and ranks 0 and 1 wait at the new port for rank 2."""
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


def forgotten(port_file):
    """The store of the job before, in a session of its own. Ends by itself after three minutes."""
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.environ["OLD"] = port_file
    os.execv(sys.executable, [sys.executable, os.path.abspath(__file__)])


def old_store(port_file):
    note("outside")
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, 3, True, wait_for_workers=False)
    with open(port_file + ".tmp", "w") as file:
        file.write(str(store.port))
    os.rename(port_file + ".tmp", port_file)
    time.sleep(180)


def train(rank):
    import torch
    import torch.distributed as dist

    note(f"rank{rank}")
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=30))
    for step in range(1000):
        dist.all_reduce(torch.ones(4))
        say("rank", rank, "step", step)
        time.sleep(0.3)


if __name__ == "__main__":
    if "OLD" in os.environ:
        old_store(os.environ["OLD"])
    elif "RANK" in os.environ:
        train(int(os.environ["RANK"]))
    else:
        import tempfile

        port_file = os.path.join(tempfile.mkdtemp(), "port")
        forgotten(port_file)
        while not os.path.exists(port_file):
            time.sleep(0.05)
        old, new = int(open(port_file).read()), free_port()
        ps = [start(RANK=r, LOCAL_RANK=r, WORLD_SIZE=3, MASTER_PORT=old if r == 2 else new) for r in range(3)]
        [p.wait() for p in ps]
