"""Texts in which nothing is known: how they end is told, and what to collect."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import BadInput
from harness.triage import pasted
from harness.triage.evidence import LogEnd
from harness.triage.pasted import naming
from harness.triage.pasted.last_lines import MAX_ENDS, MAX_TAIL, MAX_TEXT
from harness.triage.pasted.progress_bars import MAX_PHASES
from harness.triage.run import triage

START = """\
INFO 07-12 13:11:37 [__init__.py:244] Automatically detected platform cuda.
(VllmWorker rank={0} pid=228) INFO 07-12 13:12:16 [pynccl.py:70] Found the library
(VllmWorker rank={1} pid=227) INFO 07-12 13:12:16 [pynccl.py:70] Found the library
(VllmWorker rank={0} pid=228) INFO 07-12 13:12:17 [pynccl.py:70] the engine is using nccl
(VllmWorker rank={1} pid=227) INFO 07-12 13:12:18 [pynccl.py:70] the engine is using nccl
"""


def ends(folder: Path, text: str) -> tuple[LogEnd, ...]:
    (folder / "start.log").write_text(text)
    evidence = pasted.evidence([str(folder / "start.log")])
    assert evidence is not None
    return evidence.log_ends


def test_a_start_that_stops_says_what_each_process_said_last(tmp_path: Path) -> None:
    [end] = ends(tmp_path, START.format(1, 0))
    assert (end.who, end.processes, end.line, end.lines) == ("ranks 0-1", 2, 5, 5)
    assert end.text == "the engine is using nccl" and end.at == (7, 12, 13 * 3600 + 12 * 60 + 18)
    verdict = triage([str(tmp_path / "start.log")])
    assert verdict.triage is not None and (verdict.verdict, verdict.exit_code) == ("INSUFFICIENT", 3)
    assert "ranks 0-1 ended with: the engine is using nccl" in verdict.reason and not verdict.triage.culprits
    assert verdict.triage.next[0].startswith("py-spy dump --pid PID") and len(verdict.reason.split()) <= 20


def test_ranks_that_ended_with_another_line_come_first(tmp_path: Path) -> None:
    steps = [f"{rank:2d}: RANK {rank}: running step {step}/10" for step in (1, 2) for rank in range(12)]
    behind, others = ends(tmp_path, "\n".join(step for step in steps if step not in (" 4: RANK 4: running step 2/10",)))
    assert (behind.who, behind.text) == ("rank 4", "RANK 4: running step 1/10")
    assert (others.who, others.processes) == ("ranks 0-3, 5-11", 11)
    assert others.text == "RANK 11: running step 2/10"


def test_a_long_line_is_cut_at_a_word(tmp_path: Path) -> None:
    words = ["[Rank 3] waits", *(f"for{number}" for number in range(100))]
    [end] = ends(tmp_path, " ".join(words))
    kept, _, last = end.text.rpartition(" ")
    assert last == "…" and kept == " ".join(words[: kept.count(" for") + 1]) and len(kept) <= MAX_TEXT
    (tmp_path / "error.log").write_text(" ".join(["[rank3]: torch.OutOfMemoryError: CUDA out of memory.", *words]))
    evidence = pasted.evidence([str(tmp_path / "error.log")])
    assert evidence is not None
    [error] = evidence.errors
    assert error.text.endswith(" …") and error.text.split()[-2] in words


@pytest.mark.parametrize("line", ["   0: rust_begin_unwind", "  10: core::panicking::panic_fmt", "   3: std::rt"])
def test_the_backtrace_of_rust_is_of_no_rank(line: str) -> None:
    assert naming.split(line) == (naming.NOBODY, line)


def test_schedulers_are_told_by_their_prefix_and_slurm_is_no_rank(tmp_path: Path) -> None:
    lines = (
        "[2026-02-07 02:59:26 TP8] Load begin.",
        "[2026-02-07 02:59:26 TP9] Load begin.",
        " 0: slurmstepd: error: x",
    )
    [end] = ends(tmp_path, "\n".join(lines))
    assert (end.who, end.text) == ("TP8, TP9", "Load begin.")


def test_colours_whose_escape_was_lost_hide_nobody(tmp_path: Path) -> None:
    [end] = ends(tmp_path, "[36m(Trainer pid=7, ip=10.0.0.2)[0m epoch 1\nx[3] = 1\n")
    assert (end.who, end.text) == ("Trainer (pid 7)", "epoch 1")


def test_a_text_without_writers_has_one_end(tmp_path: Path) -> None:
    [end] = ends(tmp_path, "loading\nloading token=hunter2secretvalue\n\n\n")
    assert (end.who, end.line, end.lines) == ("", 2, 2) and "hunter2" not in end.text


@pytest.mark.parametrize("text", ["", "\n\n  \n"])
def test_a_folder_without_any_text_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "empty.log").write_text(text)
    (tmp_path / "core").write_bytes(b"\x7fELF\0\0\0")
    with pytest.raises(BadInput, match="holds neither evidence"):
        triage([str(tmp_path)])


@pytest.mark.slow
def test_the_ends_of_a_hostile_text_are_bounded(tmp_path: Path) -> None:
    lines = "".join(f"[rank{rank}]: says {rank * 7}\n" for rank in range(3_000))
    assert len(ends(tmp_path, "x" * 3 * MAX_TAIL + "\n" + lines)) == MAX_ENDS
    [end] = ends(tmp_path, "x" * 3 * MAX_TAIL)
    assert (end.line, end.lines) == (1, 1)


def test_an_echo_says_how_the_other_processes_ended(tmp_path: Path) -> None:
    limit = "slurmstepd: error: *** STEP 8.13 ON n1 CANCELLED AT 2026-05-02T03:58:46 DUE TO TIME LIMIT ***"
    (tmp_path / "slurm.out").write_text("\n".join(("0: step 1", "1: step 1", "2: step 0", limit)))
    verdict = triage([str(tmp_path / "slurm.out")])
    assert any("rank 2 ended with line 3 of 4: step 0" in line for line in verdict.evidence)
    assert "no first failure in the log" in verdict.reason


BARS = """\
(Worker pid=5) INFO 11-27 02:03:09 Starting to load
Loading shards:   0% Completed | 0/30 [00:00<?, ?it/s]\rLoading shards:  57% Completed | 17/30 [06:34<10:01, 46.30s/it]
Loading shards: 100% Completed | 30/30 [12:22<00:00, 24.75s/it]
Epoch 1:  25%|██▌       | 1.20G/4.98G [1:00:12<3:00:40, 97.5MB/s]
 40%|████      | 2/5 [00:03<00:04,  1.5s/it]
a list [1, 2] of 3/4 took 00:10<00:20, and 50% is no bar
"""


def test_progress_bars_say_how_long_each_phase_took(tmp_path: Path) -> None:
    (tmp_path / "start.log").write_text(BARS)
    evidence = pasted.evidence([str(tmp_path / "start.log")])
    assert evidence is not None
    assert [(phase.name, phase.finished, phase.took_s, phase.line) for phase in evidence.log_phases] == [
        ("Epoch 1", False, 3612, 4),
        ("Loading shards", True, 742, 3),
        ("", False, 3, 5),
    ]
    verdict = triage([str(tmp_path / "start.log")])
    assert any(line.startswith("its longest phase: Epoch 1 has taken 1:00:12") for line in verdict.evidence)


@pytest.mark.slow
def test_the_bars_of_a_hostile_text_are_bounded(tmp_path: Path) -> None:
    text = "".join(f"bar {number}: 10%| {number}/9 [00:01<00:09, 1.0s/it]\n" for number in range(3_000))
    (tmp_path / "start.log").write_text("1% 1/1 [00:00<00:00, " * 20_000 + text + "%" * 100_000 + "[00:01<00:09, \n")
    evidence = pasted.evidence([str(tmp_path / "start.log")])
    assert evidence is not None and len(evidence.log_phases) <= MAX_PHASES
