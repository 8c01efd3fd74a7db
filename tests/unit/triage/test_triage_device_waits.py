"""Waits that spin, busy threads, chatty loggers: no progress of a process that hangs; long kernels and pools are."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from triage_evidence import HOST, compared, evidence, group, late, process, rank

from harness.triage import source
from harness.triage.evidence import Frame, Gpu, Process, Thread
from harness.triage.judge import triage
from reports.model import Verdict

SPIN = Frame("cudaStreamSynchronize", "/usr/local/cuda/lib64/libcudart.so.12", 0)
SYNCHRONIZE = Frame("synchronize", "/venv/lib/python3.11/site-packages/torch/cuda/__init__.py", 985)


def spinning(one: Process, *, native: bool = True, **more: Any) -> Process:
    """Its main thread waits for a device: a whole core; by a frame of CUDA's, or by torch's own."""
    looks, deep = [], ()
    for number, look in enumerate(one.samples):
        main = dataclasses.replace(look.threads[0], tid=one.pid, active=True, cpu_s=1.5 * number, io_bytes=0)
        if not native:
            main = dataclasses.replace(main, frames=(SYNCHRONIZE, *main.frames))
        spent = {"cpu_s": 1.5 * number, "main_cpu_s": 1.5 * number, "main_io_bytes": 0, "state": "R"}
        looks.append(dataclasses.replace(look, threads=(main,), **spent))
        deep = (dataclasses.replace(main, frames=(SPIN, *main.frames), native=True),) if native else ()
    return dataclasses.replace(one, samples=tuple(looks), native=deep, **more)


def beside(one: Process, helper: Thread, *, cpu_s: float = 0.0, io_bytes: int = 0) -> Process:
    """A thread beside its main one spends so much between the looks; the main thread nothing."""
    looks = []
    for number, look in enumerate(one.samples):
        main = dataclasses.replace(look.threads[0], tid=one.pid, cpu_s=0.0, io_bytes=0)
        its = dataclasses.replace(helper, tid=7, cpu_s=cpu_s * number, io_bytes=io_bytes * number)
        whole = {"cpu_s": cpu_s * number, "io_bytes": io_bytes * number, "main_cpu_s": 0.0, "main_io_bytes": 0}
        looks.append(dataclasses.replace(look, threads=(main, its), **whole))
    return dataclasses.replace(one, samples=tuple(looks))


def named(verdict: Verdict) -> set[int | None]:
    return {one.rank for one in verdict.triage.culprits}  # type: ignore[union-attr]


@pytest.mark.parametrize("native", [True, False])
def test_an_order_inversion_that_spins_is_hung(native: bool) -> None:
    ranks = [spinning(rank(n, "main:10 step:42", world=2), native=native) for n in range(2)]
    crossed = compared(group("A", {0: (5, "all_reduce"), 1: 4}), group("B", {1: (3, "all_reduce"), 0: 2}))
    found = triage(evidence(*ranks), crossed)
    assert (found.verdict, found.triage.hang, named(found)) == ("HUNG", "K2", set())


@pytest.mark.parametrize("native", [True, False])
def test_victims_that_spin_do_not_make_it_slow(native: bool) -> None:
    ranks = [spinning(rank(n, "main:10 step:42"), native=native) for n in range(1, 4)]
    at = compared(group("0", {0: 16, **dict.fromkeys((1, 2, 3), (17, "all_reduce"))}))
    found = triage(evidence(rank(0, "main:10 step:44 keep_alive"), *ranks), at)
    assert (found.verdict, found.triage.hang, named(found)) == ("HUNG", "K4", {0})


def test_without_any_frame_of_the_device_a_pending_operation_outweighs_the_processor() -> None:
    """No native stack was allowed: the recorder says that the operation has been pending for a minute."""
    ranks = [dataclasses.replace(spinning(rank(n, "main:10 step:42", world=3)), native=()) for n in range(3)]
    wedge = compared(group("0", dict.fromkeys(range(3), (17, "all_reduce"))))
    assert triage(evidence(*ranks), wedge).triage.hang == "K12"


@pytest.mark.parametrize(("age_s", "verdict"), [(5.0, "SLOW"), (40.0, "HUNG")])
def test_a_young_operation_that_runs_beside_the_main_thread_is_no_ring(age_s: float, verdict: str) -> None:
    """Rank 0 launched #5 of A and computes; rank 1 waits for it in B, and comes to A after that."""
    ring = [group("A", {0: (5, "all_gather"), 1: 4}), group("B", {1: (3, "all_reduce"), 0: 2})]
    state = ring[0].ranks[0]
    assert state.pending is not None
    ring[0].ranks[0] = dataclasses.replace(state, pending=dataclasses.replace(state.pending, age_s=age_s))
    busy = dataclasses.replace(spinning(rank(0, "main:10 forward", world=2)), native=())
    waits = rank(1, "main:10 step:42 all_reduce", world=2)
    assert triage(evidence(busy, waits, stall_s=60.0), compared(*ring)).verdict == verdict


def long_kernel(stall_s: float, recorded: bool = True) -> Verdict:
    busy = spinning(rank(0, "main:10 generate"))
    ranks = [rank(n, "main:10 step:42 all_reduce") for n in range(1, 4)]
    at = {0: 16, **dict.fromkeys((1, 2, 3), (17, "all_reduce"))}
    if not recorded:
        return triage(evidence(busy, stall_s=stall_s), None)
    return triage(evidence(busy, *ranks, stall_s=stall_s), compared(group("0", at)))


def test_a_kernel_that_runs_long_is_slow_and_one_that_runs_for_ever_hangs() -> None:
    assert long_kernel(30.0).verdict == "SLOW"
    stuck = long_kernel(301.0)
    assert (stuck.verdict, stuck.triage.hang, named(stuck)) == ("HUNG", "K9", {0})


def test_a_device_wait_without_a_recorder_blames_nobody() -> None:
    assert long_kernel(301.0, recorded=False).verdict == "INSUFFICIENT"


@pytest.mark.parametrize("look", [{"cpu_s": 1.4}, {"io_bytes": 60_000}])
@pytest.mark.parametrize("stack", ["main:10 step:44 keep_alive", "main batch queue.get lock.wait", "main lock.wait"])
def test_a_busy_thread_of_a_library_beside_it_excuses_nobody(stack: str, look: dict[str, Any]) -> None:
    thread = Thread("metrics", 7, (Frame("run", "/venv/lib/python3.11/site-packages/wandb/sdk/io.py", 3),), active=True)
    found = late(beside(rank(0, stack, wchan="hrtimer_nanosleep" if "keep" in stack else ""), thread, **look))
    assert (found.verdict, named(found)) == ("HUNG", {0})


@pytest.mark.parametrize("look", [{"cpu_s": 1.4}, {"io_bytes": 60_000}])
def test_a_thread_that_feeds_the_main_one_is_progress(look: dict[str, Any]) -> None:
    pool = Thread("pool_0", 7, (Frame("run", "/usr/lib/python3.11/concurrent/futures/thread.py", 58),), active=True)
    assert late(beside(rank(0, "main gather lock.wait"), pool, **look)).verdict == "SLOW"


def test_a_busy_helper_holds_nobody_in_uninterruptible_sleep_back_from_being_named() -> None:
    thread = Thread("helper", 7, (Frame("run", "/venv/lib/python3.11/site-packages/x/y.py", 3),), active=True)
    one = rank(0, "main read", state="D", wchan="nfs_wait_on_request")
    found = late(beside(one, thread, cpu_s=1.4))
    assert (found.triage.hang, named(found)) == ("K9", {0})


def test_a_pool_of_native_threads_works_for_a_main_thread_in_compiled_code() -> None:
    """A tokenizer's: Python knows none of them."""
    one = rank(0, "main:10 tokenize", wchan="futex_wait_queue")
    looks = [dataclasses.replace(look, cpu_s=1.4 * at, main_cpu_s=0.0) for at, look in enumerate(one.samples)]
    assert late(dataclasses.replace(one, samples=tuple(looks))).verdict == "SLOW"


def test_a_lock_that_is_kept_asleep_is_held_whatever_a_thread_in_compiled_code_does() -> None:
    one = rank(0, "main tokenize", gil=True, stale_s=20.0)
    thread = Thread("helper", 7, (Frame("run", "/venv/lib/python3.11/site-packages/x/y.py", 3),), active=True)
    found = late(beside(one, thread, cpu_s=1.4))
    assert (found.triage.hang, named(found)) == ("K9", {0})


def test_a_holder_of_the_lock_that_waits_for_a_processor_is_not_named() -> None:
    """On a host that is too busy: it is runnable, and gets little time."""
    one = rank(0, "main:3 imports", gil=True, stale_s=6.0, cpu_s=0.1)
    starved = tuple(dataclasses.replace(look, state="R") for look in one.samples)
    assert late(dataclasses.replace(one, samples=starved)).verdict == "SLOW"
    assert late(one).triage.hang == "K9"  # type: ignore[union-attr]


TEXT = """
def produce(batches):
    while True:
        batches.put(tokenize())

def monitor(gpu):
    while True:
        gpu.sample()

def step(loss):
    total = loss.item()
    return total + 1
"""


def test_what_a_thread_does_by_its_text(tmp_path: Path) -> None:
    file = tmp_path / "threads.py"
    file.write_text(TEXT)
    assert source.hands_on(Frame("produce", str(file), 4))
    assert not source.hands_on(Frame("monitor", str(file), 8))
    assert source.hands_on(Frame("gone", "/nowhere.py", 8))
    assert source.waits_for_device(Frame("step", str(file), 11))
    assert not source.waits_for_device(Frame("step", str(file), 12))


def test_item_is_a_device_wait_by_its_text_only_where_there_are_devices(tmp_path: Path) -> None:
    """Without native stacks; on a CPU the same line computes."""
    file = tmp_path / "threads.py"
    file.write_text(TEXT)
    one = dataclasses.replace(spinning(rank(0, "main:10")), native=())
    looks = []
    for look in one.samples:
        at = dataclasses.replace(look.threads[0], frames=(Frame("step", str(file), 11),))
        looks.append(dataclasses.replace(look, threads=(at,)))
    one = dataclasses.replace(one, samples=tuple(looks))
    ranks = [rank(n, "main:10 step:42 all_reduce") for n in range(1, 4)]
    at = compared(group("0", {0: 16, **dict.fromkeys((1, 2, 3), (17, "all_reduce"))}))
    card = Gpu(HOST, 0, "H100", 1, 2, 1.0)
    found = triage(evidence(one, *ranks, stall_s=301.0, gpus=(card,)), at)
    assert (found.verdict, found.triage.hang, named(found)) == ("HUNG", "K9", {0})
    assert triage(evidence(one, *ranks, stall_s=301.0), at).verdict == "SLOW"


def test_a_thread_that_pins_memory_is_no_progress() -> None:
    pin = "/venv/lib/python3.11/site-packages/torch/utils/data/_utils/pin_memory.py"
    thread = Thread("pin", 7, (Frame("_pin_memory_loop", pin, 30),), active=True)
    found = late(beside(rank(0, "main next_batch queue.get lock.wait"), thread, cpu_s=1.4))
    assert (found.verdict, named(found)) == ("HUNG", {0})


def test_a_process_of_another_kind_counts_as_a_whole() -> None:
    """A compiler has no Python thread, and its main thread waits for its others."""
    compiler = process(900, "process", "", cpu_s=1.5, ppid=100, command="/usr/bin/ninja -v")
    looks = [dataclasses.replace(look, main_cpu_s=0.0, main_io_bytes=0) for look in compiler.samples]
    ranks = [rank(n, "main:10 step:42 all_reduce") for n in range(1, 4)]
    at = compared(group("0", {0: 16, **dict.fromkeys((1, 2, 3), (17, "all_reduce"))}))
    parent = rank(0, "main build lock.wait")
    child = dataclasses.replace(compiler, samples=tuple(looks))
    assert triage(evidence(parent, child, *ranks), at).verdict == "SLOW"
