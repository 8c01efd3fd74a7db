"""The keeper: a process on a node of a Ray cluster that runs one cell, and ends it as soon as no worker waits for it.

The cell runs as it would on this machine, and all processes that it started end with it. Ray ends a worker and the
worker's children with SIGKILL, where a task is cancelled, the driver died or the node is short of memory. So the
keeper is not a child of the worker; a pipe between them tells the keeper when the worker is gone.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from harness.nightly import cells
from harness.nightly.matrix import Cell, Pair
from harness.nightly.observation import Observation, failed
from probes.signal_codes import exit_code_of

LOOK_S = 0.5  # a choice: Ray interrupts a worker only between two Python instructions


def keep(cell: Cell, place: Path, pair: Pair | None, command: Sequence[str], folder: str) -> Observation:
    """Run `cells.attempt` in a keeper whose working directory is `folder`. This function runs in a worker of Ray."""
    keeper = subprocess.Popen(
        [sys.executable, "-m", "harness.nightly.keeper"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder,
        env=_environment(cell), start_new_session=True,
    )  # fmt: skip
    assert keeper.stdin is not None and keeper.stdout is not None
    try:
        pickle.dump((cell, place, pair, command), keeper.stdin)
        keeper.stdin.flush()
        while not select.select([keeper.stdout], [], [], LOOK_S)[0]:
            pass
        answer = keeper.stdout.read()
    finally:
        keeper.stdin.close()  # if this worker was interrupted, the keeper ends the cell
        keeper.stdout.read()  # waits until the keeper has ended
        keeper.wait()
    if not answer:
        return failed("the process that kept it on its node was killed", recording=str(place))
    observation: Observation = pickle.loads(answer)
    return observation


def _environment(cell: Cell) -> dict[str, str]:
    """Return the node's environment without the variables that Ray sets for its worker.

    The variables for devices stay, because Ray assigned them to this cell. A cell without GPUs sees none.
    """
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environ.pop("OMP_NUM_THREADS", None)  # Ray sets it to the CPUs of the task
    if not cell.what.needs.gpus:
        environ["CUDA_VISIBLE_DEVICES"] = ""
    return environ


def main() -> None:
    """Run the keeper. It reads a cell from standard input and writes its observation to standard output.

    The worker keeps standard input open as long as it waits for the result.
    """
    if os.fork():
        os._exit(0)  # the keeper is now not a child of the worker
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(exit_code_of(number)))
    cell, place, pair, command = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_the_worker, daemon=True).start()
    observation = cells.attempt(cell, place, pair, command)
    pickle.dump(observation, sys.stdout.buffer)


def _end_with_the_worker() -> None:
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
