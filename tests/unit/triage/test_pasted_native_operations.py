"""Stacks of C alone: ranks in one operation stand at one place, in whichever of its phases they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.triage.run import triage

WAIT = "std::chrono::duration<long, std::ratio<1l, 1000l> >"
LIBRARY = "/lib/python3.11/site-packages/torch/lib/libtorch_cpu.so"
GLOO = "gloo::transport::tcp::UnboundBuffer::{}(int*, " + WAIT + ")"
RING = "gloo::(anonymous namespace)::ring(gloo::detail::AllreduceOptionsImpl const&)"
ALLREDUCE = (
    "gloo::(anonymous namespace)::allreduce(gloo::detail::AllreduceOptionsImpl const&)",
    "c10d::AsyncAllreduceWork::allreduce(std::vector<at::Tensor>&)",
)
BARRIER = "gloo::barrier(gloo::BarrierOptions&)", "c10d::(anonymous namespace)::AsyncBarrierWork::run()"
LOOP = "c10d::ProcessGroupGloo::AsyncWork::execute(int)", "c10d::ProcessGroupGloo::runLoop(int)"
PHASES = GLOO.format("waitSend"), GLOO.format("waitRecv")


def thread(number: int, pid: int, *functions: str, name: str = "python") -> str:
    head = f'Thread {number} (Thread 0x7f33cc9126c0 (LWP {pid}) "{name}"):\n'
    return head + "".join(
        f"#{at}  0x00007f33ecaa3f7b in {function} () from {LIBRARY}\n" for at, function in enumerate(functions)
    )


def gdb(pid: int, *functions: str) -> str:
    """A process whose side thread runs an operation, for which its main thread waits."""
    side = thread(2, pid + 100, *functions, *LOOP, name="pt_gloo_runloop")
    return f"{side}\n{thread(1, pid, f'c10d::Work::wait({WAIT})', 'Py_BytesMain')}"


@pytest.mark.parametrize("side", [True, False], ids=["thread-of-the-group", "main-thread"])
def test_a_rank_in_another_operation_stands_elsewhere_not_one_in_another_phase(tmp_path: Path, side: bool) -> None:
    stacks = (PHASES[1], RING, *ALLREDUCE), (PHASES[1], *BARRIER), (PHASES[0], RING, *ALLREDUCE)
    for pid, functions in zip((2101, 2102, 2103), stacks, strict=True):
        (tmp_path / f"{pid}.txt").write_text(gdb(pid, *functions) if side else thread(1, pid, *functions))
    verdict = triage([str(tmp_path)])
    assert verdict.triage is not None and verdict.verdict == "INSUFFICIENT"
    elsewhere = [line for line in verdict.evidence if "elsewhere" in line]
    assert len(elsewhere) == 1 and "2102" in elsewhere[0]
    assert verdict.triage.place == "libtorch_cpu.so gloo::barrier"
