"""Two data-parallel ranks; rank 1's kernel never ends: its cudaStreamSynchronize burns a core for ever."""
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
volatile int flag = 0;
int cudaStreamSynchronize(void *stream) { while (!flag) { __asm__ volatile("pause"); } return 0; }
"""
CUDA = '''
def synchronize(device=None):
    """Wait for all kernels in all streams on a CUDA device to complete."""
    return _runtime.cudaStreamSynchronize(None)
'''


def runtime():
    import ctypes
    import tempfile

    folder = tempfile.mkdtemp()
    source, library = os.path.join(folder, "rt.c"), os.path.join(folder, "libcudart.so.12")
    with open(source, "w") as file:
        file.write(C)
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", library, source], check=True)
    names = {"_runtime": ctypes.CDLL(library)}
    import torch

    where = os.path.join(os.path.dirname(torch.__file__), "cuda", "__init__.py")
    exec(compile("\n" * 1100 + CUDA, where, "exec"), names)
    return names["synchronize"]


def train(rank):
    import torch
    import torch.distributed as dist

    note(f"rank{rank}")
    synchronize = runtime() if rank == 1 else lambda: None
    dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=30))
    grad = torch.ones(1000)
    for step in range(1000):
        time.sleep(0.3)
        if step == 6:
            synchronize()
        dist.all_reduce(grad)
        say("rank", rank, "step", step)


if __name__ == "__main__":
    train(int(os.environ["RANK"])) if "RANK" in os.environ else launch(2)
