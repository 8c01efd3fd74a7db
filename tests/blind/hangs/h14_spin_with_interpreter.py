"""Three ranks; rank 2 is inside an extension that waits for a device flag with the interpreter lock held: nothing of its
Python runs any more, and it burns a core."""
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
C = """
volatile int done = 0;
static void wait_for_flag(void) { while (!done) { __asm__ volatile("pause"); } }
int fused_moe_forward(int experts) { if (experts > 0) wait_for_flag(); return 0; }
"""


def extension():
    import ctypes
    import tempfile

    folder = tempfile.mkdtemp()
    source, library = os.path.join(folder, "ops.c"), os.path.join(folder, "_moe_C.abi3.so")
    with open(source, "w") as file:
        file.write(C)
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", library, source], check=True)
    return ctypes.PyDLL(library)


def train(rank):
    import torch
    import torch.distributed as dist

    note(f"rank{rank}")
    ops = extension()
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=30))
    for step in range(1000):
        time.sleep(0.2)
        ops.fused_moe_forward(8 if rank == 2 and step == 10 else 0)
        dist.all_reduce(torch.ones(64))
        say("rank", rank, "step", step)


if __name__ == "__main__":
    train(int(os.environ["RANK"])) if "RANK" in os.environ else launch(3)
