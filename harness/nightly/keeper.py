"""The process on a node of a Ray cluster that keeps one cell: it runs the cell as this machine would, and ends it with
all that it started as soon as nobody waits for it.

Ray ends a worker, and the worker's children, with SIGKILL: where a task is cancelled, where the driver died, where the
node is short of memory. So the keeper is no child of the worker. A pipe between them tells it that the worker is gone.
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

LOOK_S = 0.5  # chosen: Ray interrupts a worker between two instructions of Python


def keep(cell: Cell, place: Path, pair: Pair | None, command: Sequence[str], folder: str) -> Observation:
    """In a worker of Ray: `cells.attempt` by a keeper in the working directory `folder`."""
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
        keeper.stdin.close()  # where we were interrupted: the keeper ends the cell
        keeper.stdout.read()  # its end
        keeper.wait()
    if not answer:
        return failed("the process that kept it on its node was killed", recording=str(place))
    observation: Observation = pickle.loads(answer)
    return observation


def _environment(cell: Cell) -> dict[str, str]:
    """That of the node, without what Ray sets for its worker. Devices stay: Ray gave them to this cell, or none."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environ.pop("OMP_NUM_THREADS", None)  # set by Ray to the CPUs of the task
    if not cell.what.needs.gpus:
        environ["CUDA_VISIBLE_DEVICES"] = ""
    return environ


def main() -> None:
    """The keeper: a cell on the standard input, which stays open as long as somebody waits; its observation on the
    standard output."""
    if os.fork():
        os._exit(0)  # no child of the worker any more
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    cell, place, pair, command = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_the_worker, daemon=True).start()
    observation = cells.attempt(cell, place, pair, command)
    pickle.dump(observation, sys.stdout.buffer)


def _end_with_the_worker() -> None:
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
