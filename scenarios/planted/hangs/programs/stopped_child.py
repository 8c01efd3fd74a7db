"""K9: a stopped process that is in no process group: the tokenizer of a rank, which is the rank's child.

`asked`: the rank reads its answer from a pipe. `shell`: the same, with a shell between the two. Where nothing waits
for the stopped process, it is not the culprit: in `aside` another rank has failed and stays alive; in `elsewhere` its
own rank opens a named pipe, which a shell beside the job opens after three thresholds; in `slow` its rank is slow in
every step. Both runs end.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch.distributed as dist
import toy

STRIKES = 4


class Tokenizer:
    """A process that answers each line with a line."""

    def __init__(self, *, shell: bool) -> None:
        command = [sys.executable, __file__, "--phase", "tokenizer"]
        if shell:
            command = ["sh", "-c", f"{' '.join(command)}; exit $?"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = int(self.ask("pid"))

    def ask(self, line: str) -> str:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()


def serve() -> None:
    for line in sys.stdin:
        print(os.getpid() if line == "pid\n" else len(line), flush=True)


def keep_alive() -> None:
    while True:
        time.sleep(1)


def wait_for_model(path: Path, seconds: float) -> None:
    """Wait for a writer, which is no process of this job."""
    os.mkfifo(path)
    subprocess.run(["setsid", "--fork", "sh", "-c", f"sleep {seconds}; echo 1 > {path}"], check=True)
    path.read_bytes()


def main() -> None:
    arguments = argparse.ArgumentParser()
    phases = ["asked", "shell", "aside", "elsewhere", "slow", "tokenizer"]
    arguments.add_argument("--phase", choices=phases, default="asked")
    arguments.add_argument("--rank", type=int, default=1)
    arguments.add_argument("--stall", type=float, default=5.0)
    options = arguments.parse_args()
    if options.phase == "tokenizer":
        serve()
        return
    toy.setup()
    mine = options.rank == toy.RANK
    tokenizer = Tokenizer(shell=options.phase == "shell") if mine else None
    module = toy.model()
    for step in range(8):
        if tokenizer is not None and (step < STRIKES or options.phase in ("asked", "shell")):
            tokenizer.ask(f"prompt {step}")
        if step == STRIKES and options.phase == "elsewhere" and mine:
            wait_for_model(Path(tempfile.mkdtemp()) / "model", 3 * options.stall)
        if step == STRIKES and options.phase == "aside" and not mine:
            keep_alive()
        toy.train_step(module, toy.batch(step))
        if step == STRIKES - 1 and tokenizer is not None:
            os.kill(tokenizer.pid, signal.SIGSTOP)
        if options.phase == "slow":
            time.sleep(0.6 * options.stall if mine else 0)
    if tokenizer is not None:
        os.kill(tokenizer.pid, signal.SIGKILL)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
