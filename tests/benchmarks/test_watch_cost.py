"""What being watched costs: a beat, and the start of an interpreter. Asserted are ratios within one run."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from probes import collectives
from probes.heartbeat import Heartbeat
from probes.install import live, start

pytestmark = pytest.mark.benchmark
ROOT = Path(__file__).parents[2]
BEATS, STARTS = 500, 21
BAR = 0.01  # of a second, which is the period: the bar of DESIGN for all probes of a step


def deep(depth: int, heart: Heartbeat) -> list[float]:
    """Processor time in µs of beats of a main thread so deep in calls.

    The beats are made in a thread of their own, as in a job: in the main thread each one would keep its own frame in a
    cycle, and the time would be that of the garbage. Wall time would count the neighbours'.
    """
    if depth:
        return deep(depth - 1, heart)
    with ThreadPoolExecutor(1) as beating:
        return beating.submit(beats, heart).result()


def beats(heart: Heartbeat) -> list[float]:
    spent = []
    for _ in range(BEATS):
        began = time.thread_time_ns()
        heart.beat()
        spent.append((time.thread_time_ns() - began) / 1000)
    return spent


def test_cost_of_a_beat(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a group that counts, a recorder with an open span, and a stack of sixty frames more than pytest's."""
    recorder = start(tmp_path, role="actor")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    dist.all_reduce(torch.ones(1))
    try:
        assert collectives.sequences() == {"0": 1}
        heart = Heartbeat(tmp_path, recorders=live)
        with recorder.span("rollout", step=3):
            spent = deep(60, heart)
    finally:
        dist.destroy_process_group()
        recorder.close()
    quantiles = statistics.quantiles(spent, n=100)
    with capsys.disabled():
        print(f"\na beat in µs: best {min(spent):.0f}, median {quantiles[49]:.0f}, 99 % {quantiles[98]:.0f}; share of "
              f"a second {quantiles[49] / 1e6:.4%}; counted {heart.self_ns / heart.count / 1000:.0f}")  # fmt: skip
    assert quantiles[49] <= BAR * heart.period_s * 1e6
    assert 0.3 * sum(spent) <= heart.self_ns / 1000 <= 1.1 * sum(spent)


def test_cost_of_a_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A Python that imports nothing, with and without the site on its path, interleaved."""
    bare = {key: value for key, value in os.environ.items() if not key.startswith(("RLHF_HARNESS", "PYTHONPATH"))}
    watched = {**bare, "PYTHONPATH": str(ROOT / "probes" / "site"), "RLHF_HARNESS_WATCH": str(tmp_path)}
    spent: dict[str, list[float]] = {"off": [], "on": []}
    for _ in range(STARTS):
        for name, environment in (("off", bare), ("on", watched)):
            began = time.perf_counter()
            subprocess.run([sys.executable, "-c", "pass"], env=environment, check=True)
            spent[name].append(1000 * (time.perf_counter() - began))
    best = {name: min(rounds) for name, rounds in spent.items()}
    with capsys.disabled():
        figures = (f"{name} {best[name]:.2f} ({statistics.median(rounds):.2f})" for name, rounds in spent.items())
        print(f"\nstart of an interpreter in ms, best (median) of {STARTS}: {', '.join(figures)}")
    assert best["on"] <= 1.25 * best["off"] + 1
