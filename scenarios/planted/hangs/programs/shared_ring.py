"""An engine core and two workers that exchange orders and answers in shared memory, which they poll.

`lost`: the second worker's answer is overwritten, and the core polls for it forever. No culprit can be proven, and
the first worker is innocent. `idle`, a control: the core has no request for three thresholds. Both end by themselves
after four.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from multiprocessing import get_context
from multiprocessing.shared_memory import SharedMemory

ORDERS, AT = 12, 6


def flags(slot: SharedMemory) -> memoryview[int]:
    assert slot.buf is not None
    return slot.buf


def put(slot: SharedMemory, value: int) -> None:
    flags(slot)[1], flags(slot)[0] = value, 1


def take(slot: SharedMemory) -> int:
    while not flags(slot)[0]:
        time.sleep(0.005)
    flags(slot)[0] = 0
    return flags(slot)[1]


def worker_busy_loop(name: str, answers: str, loses: bool) -> None:
    orders, results = SharedMemory(name), SharedMemory(answers)
    while (order := take(orders)) < ORDERS:
        put(results, order)
        if loses and order == AT:
            flags(results)[0] = 0


def get_response(slots: list[SharedMemory]) -> list[int]:
    return [take(slot) for slot in slots]


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--phase", choices=["lost", "idle"], required=True)
    arguments.add_argument("--stall", type=float, default=5.0)
    options = arguments.parse_args()
    signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
    signal.alarm(round(4 * options.stall))
    slots = [SharedMemory(create=True, size=2) for _ in range(4)]
    orders, answers = slots[:2], slots[2:]
    context = get_context("spawn")
    for number in range(2):
        loses = options.phase == "lost" and number == 1
        names = orders[number].name, answers[number].name
        context.Process(target=worker_busy_loop, args=(*names, loses), daemon=True).start()
    for order in range(ORDERS + 1):
        for slot in orders:
            put(slot, order)
        if order == ORDERS:
            break
        get_response(answers)
        if order == AT and options.phase == "idle":
            time.sleep(3 * options.stall)
    for slot in slots:
        slot.unlink()


if __name__ == "__main__":
    main()
