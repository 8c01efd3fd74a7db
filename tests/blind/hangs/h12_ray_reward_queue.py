"""Ray: two learners in an all-reduce group and a rollout actor whose reward process was killed (as by the OOM killer); the
actor waits for ever at the multiprocessing queue of the dead process. Learner 1 waits for its rollouts, learner 0 in the
all-reduce, the driver in ray.get."""
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
import multiprocessing
import signal

import ray


def rewarding(questions, answers):
    note("reward-process")
    while True:
        item = questions.get()
        if item == 10:
            os.kill(os.getpid(), signal.SIGKILL)
        answers.put(len(str(item)))


@ray.remote(num_cpus=0.1)
class Rollout:
    def __init__(self):
        note("rollout")
        context = multiprocessing.get_context("fork")
        self.questions, self.answers = context.Queue(), context.Queue()
        self.process = context.Process(target=rewarding, args=(self.questions, self.answers), daemon=True)
        self.process.start()

    def rollouts(self, step):
        got = []
        for i in range(4):
            self.questions.put(step * 4 + i)
            got.append(self.answers.get())
        return got


@ray.remote(num_cpus=0.1)
class Learner:
    def __init__(self, rank, port, rollout):
        import torch.distributed as dist

        note(f"learner{rank}")
        self.rank, self.rollout = rank, rollout
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2,
                                timeout=datetime.timedelta(minutes=30))

    def step(self, step):
        import torch
        import torch.distributed as dist

        if self.rank == 1:
            ray.get(self.rollout.rollouts.remote(step))
        dist.all_reduce(torch.ones(10))
        return step


if __name__ == "__main__":
    note("driver")
    for attempt in range(3):
        try:
            ray.init(address="local", num_cpus=4, include_dashboard=False, logging_level="ERROR")
            break
        except Exception as error:  # a busy machine: the node's agents have 15 s
            say("ray.init:", str(error)[:60])
            ray.shutdown()
    rollout = Rollout.remote()
    port = free_port()
    learners = [Learner.remote(rank, port, rollout) for rank in (0, 1)]
    for step in range(1000):
        ray.get([one.step.remote(step) for one in learners])
        say("step", step)
        time.sleep(0.2)
