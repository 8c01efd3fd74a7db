"""Stacks as people paste them: folded, without the lines above them, and of eu-stack."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.triage import pasted
from harness.triage.evidence import Process
from harness.triage.run import triage

MAIN = 'Thread {0} (active): "MainThread"\n'
WAITS = (
    "    broadcast (torch/distributed/distributed_c10d.py:1191)\n    step (train.py:{0})\n    <module> (train.py:60)\n"
)
LOADS = (
    "    wait (threading.py:306)\n    get (queue.py:179)\n    _try_get_data (torch/utils/data/dataloader.py:1011)\n"
    "    __next__ (torch/utils/data/dataloader.py:530)\n    step (train.py:20)\n"
)
# eu-stack 0.188, run here: plain, with -m, with -s and with -v -i
EU_STACKS = {
    "plain": "#0  0x00007f456bced545 clock_nanosleep@GLIBC_2.2.5\n#1  0x00007f456c115ada wait_for_slot\n",
    "module": "#0  0x00007f456bced545 clock_nanosleep@GLIBC_2.2.5 - /usr/lib/x86_64-linux-gnu/libc.so.6\n"
              "#1  0x00007f456c115ada wait_for_slot - /opt/lib/libpool.so.2\n",
    "source": "#0  0x00007f456bced545 clock_nanosleep@GLIBC_2.2.5\n    ../sysdeps/unix/clock_nanosleep.c:48:7\n"
              "#1  0x00007f456c115ada wait_for_slot\n    ./pool.c:2159:15\n",
    "inlined": "#0  0x00007f456bced545     __GI___clock_nanosleep - /usr/lib/x86_64-linux-gnu/libc.so.6\n"
               "    ../sysdeps/unix/clock_nanosleep.c:48:7\n"
               "#1  0x00007f456c115ada - 1 wait_for_slot - /opt/lib/libpool.so.2\n",
}  # fmt: skip


def processes(folder: Path, **texts: str) -> tuple[Process, ...]:
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text)
    evidence = pasted.evidence([str(folder)])
    assert evidence is not None
    return evidence.processes


def test_main_threads_above_one_stack_are_processes_of_their_own(tmp_path: Path) -> None:
    folded = "".join(map(MAIN.format, (11, 12, 13))) + WAITS.format(7)
    its = processes(tmp_path, node=f"3 in:\n{folded}\n1 in:\n{MAIN.format(14)}{LOADS}")
    assert [process.pid for process in its] == [11, 12, 13, 14]
    assert [process.samples[0].threads[0].frames[0].function for process in its] == ["broadcast"] * 3 + ["wait"]
    verdict = triage([str(tmp_path)])
    assert verdict.verdict == "INSUFFICIENT" and "pid 14" in verdict.reason and "pid 14" in " ".join(verdict.evidence)


def test_who_alone_waits_in_no_communication_is_where_to_look(tmp_path: Path) -> None:
    stacks = [MAIN.format(11) + WAITS.format(7), MAIN.format(12) + WAITS.format(8), MAIN.format(13) + LOADS]
    processes(tmp_path, node="".join(stacks))
    verdict = triage([str(tmp_path)])
    assert verdict.triage is not None and verdict.triage.place.startswith("train.py:20")
    assert any("pid 13 alone waits in no communication" in line for line in verdict.evidence)
    assert not verdict.triage.culprits


def test_threads_of_one_process_stay_together(tmp_path: Path) -> None:
    side = 'Thread 12 (idle): "Saver"\n    save (train.py:9)\n'
    empty = MAIN.format(21) + 'Thread 22 (idle): "Saver"\n    save (train.py:9)\n'
    text = f"Process 1: python t.py\n{MAIN.format(11)}{WAITS.format(7)}{side}\nProcess 2: python t.py\n{empty}"
    its = processes(tmp_path, node=text)
    assert [(process.pid, len(process.samples[0].threads)) for process in its] == [(1, 2), (2, 2)]


def test_a_server_that_waits_for_its_processes_stands_nowhere_else(tmp_path: Path) -> None:
    starter = "Process 5: python3 -m serve\n" + MAIN.format(5) + (
        "    _recv (multiprocessing/connection.py:395)\n    recv (multiprocessing/connection.py:250)\n"
        "    _wait_for_scheduler_ready (engine.py:894)\n")  # fmt: skip
    processes(tmp_path, all=starter + "".join(MAIN.format(pid) + WAITS.format(7) for pid in (11, 12)))
    verdict = triage([str(tmp_path)])
    assert "pid 5" not in verdict.reason and not any("elsewhere: engine" in line for line in verdict.evidence)


@pytest.mark.parametrize("kind", EU_STACKS)
def test_eu_stack(tmp_path: Path, kind: str) -> None:
    stack = EU_STACKS[kind]
    text = f"PID 31 - process\nTID 31:\n{stack}TID 32:\n{stack}PID 41 - process\nTID 41:\n{stack}"
    its = processes(tmp_path, all=text)
    assert [(process.pid, len(process.samples[0].threads)) for process in its] == [(31, 2), (41, 1)]
    assert [frame.function for frame in its[1].samples[0].threads[0].frames][1] == "wait_for_slot"
    assert "wait_for_slot" in triage([str(tmp_path)]).reason


def test_a_stack_without_a_line_above_it_is_of_its_file(tmp_path: Path) -> None:
    main = "#0  __sched_yield\n#1  pool_append(pool*, op*)\n#2  pncclAllGather\n"
    side = "#0  <futex>\n#1  pthread_cond_wait\n#2  pool_progress(void*)\n"
    its = processes(tmp_path, rank1_main=main, rank1_side=side, rank0=main)
    assert sorted((process.rank, len(process.samples[0].threads)) for process in its) == [(0, 1), (1, 2)]


def test_bt_of_gdb_without_its_header(tmp_path: Path) -> None:
    [process] = processes(
        tmp_path,
        bt="(gdb) bt\n#0  0x00007f in poll (fds=0x1) at poll.c:29\n#1  0x00007f in pool_wait (p=1) at pool.c:9\n",
    )
    assert process.samples[0].threads[0].frames[1].function == "pool_wait"


@pytest.mark.parametrize(
    "text", ["#0 building with default\n#1 [internal] load\n", "#0 alone\n", "frame #0: c10::Error\n"]
)
def test_a_build_log_and_a_lone_frame_are_no_stack(tmp_path: Path, text: str) -> None:
    assert processes(tmp_path, log=text) == ()
