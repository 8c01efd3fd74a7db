"""Healthy: a Ray driver waits for an asynchronous rollout actor with 60 concurrent episodes, each of tool calls of 2 to 4 s
(about 43 s in all), while two learner actors wait for orders."""
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
import asyncio

import ray


@ray.remote(num_cpus=0.1, max_concurrency=100)
class Agents:
    def __init__(self):
        note("agents")

    async def episode(self, number):
        for turn in range(14):
            await asyncio.sleep(2 + (number * 7 + turn * 3) % 20 / 10)
        return number


@ray.remote(num_cpus=0.1)
class Learner:
    def __init__(self, rank, port):
        import torch.distributed as dist

        note(f"learner{rank}")
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2,
                                timeout=datetime.timedelta(minutes=30))

    def step(self, samples):
        import torch
        import torch.distributed as dist

        dist.all_reduce(torch.tensor([float(samples)]))
        return samples


if __name__ == "__main__":
    note("driver")
    for attempt in range(3):
        try:
            ray.init(address="local", num_cpus=4, include_dashboard=False, logging_level="ERROR")
            break
        except Exception as error:  # a busy machine: the node's agents have 15 s
            say("ray.init:", str(error)[:60])
            ray.shutdown()
    port = free_port()
    learners = [Learner.remote(rank, port) for rank in (0, 1)]
    ray.get([one.step.remote(1) for one in learners])
    say("learners are ready")
    agents = Agents.remote()
    done = ray.get([agents.episode.remote(i) for i in range(60)])
    say(len(done), "episodes")
    ray.get([one.step.remote(len(done)) for one in learners])
    say("done")
