"""K3: tensor-parallel workers of an engine whose scheduler decides by each rank's own clock.

Every worker gets the same requests at the same time and must run the same batches. One clock is ahead. `timeout`:
that rank drops a request that its peers run. `batch`: it closes a batch before its peers do, so it enters the forward
pass alone.
"""

from __future__ import annotations

import argparse
import time
from collections import deque

import torch
import torch.distributed as dist
import toy

WAITING_LIMIT_S = 30.0
HOLD_S = 60.0  # a batch that is not full waits this long for more requests


class Scheduler:
    def __init__(self, skew: float) -> None:
        self.skew = skew
        self.waiting: deque[tuple[int, float]] = deque()
        self.weights = torch.ones(16, 16, device=toy.DEVICE)
        self.served = self.given_up = 0

    def clock(self) -> float:
        return time.monotonic() + self.skew

    def receive(self, arrivals: deque[tuple[int, float]], began: float) -> None:
        """Take the requests that have arrived; every worker sees the same ones."""
        while arrivals and time.monotonic() - began >= arrivals[0][1]:
            number, _ = arrivals.popleft()
            self.waiting.append((number, time.monotonic()))

    def drop_expired(self) -> None:
        while self.waiting and self.clock() - self.waiting[0][1] > WAITING_LIMIT_S:
            self.waiting.popleft()
            self.given_up += 1

    def next_batch(self) -> list[int]:
        """Return a full batch, or a smaller one once the oldest request has waited long enough."""
        if len(self.waiting) >= 2 or (self.waiting and self.clock() - self.waiting[0][1] > HOLD_S):
            return [self.waiting.popleft()[0] for _ in range(min(2, len(self.waiting)))]
        return []

    def forward(self, numbers: list[int]) -> None:
        hidden = torch.ones(len(numbers), 16, device=toy.DEVICE) @ self.weights
        dist.all_reduce(hidden)
        self.served += len(numbers)

    def event_loop(self, arrivals: deque[tuple[int, float]], requests: int, give_up: bool) -> None:
        began = time.monotonic()
        while self.served < requests:
            self.receive(arrivals, began)
            if give_up:
                self.drop_expired()
            numbers = self.next_batch()
            if numbers:
                self.forward(numbers)
            else:
                time.sleep(0.001)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--phase", choices=["timeout", "batch"], default="timeout")
    arguments.add_argument("--rank", type=int, default=1)
    options = arguments.parse_args()
    toy.setup()
    scheduler = Scheduler(0.0)
    # Four requests at once. After a moment two more (`timeout`), or a single one that has to wait (`batch`).
    warm = deque((number, 0.0) for number in range(4))
    scheduler.event_loop(warm, 4, give_up=False)
    dist.barrier()
    if options.rank == toy.RANK:
        scheduler.skew = 100.0
    late = deque([(4, 0.5), (5, 0.5)] if options.phase == "timeout" else [(4, 0.5)])
    scheduler.event_loop(late, 6 if options.phase == "timeout" else 5, give_up=options.phase == "timeout")


if __name__ == "__main__":
    main()
