"""What a process said before it died, from its own output."""

import subprocess
import sys
from pathlib import Path

import pytest

from scenarios.rollout import last_words

SGLANG = """\
[2026-11-23 02:00:00] Scheduler hit an exception: Traceback (most recent call last):
  File "scheduler.py", line 4310, in run_scheduler_process
    scheduler = Scheduler(
AttributeError: 'Gemma2Config' object has no attribute 'hidden_act'

[2026-11-23 02:00:01] Received sigquit from a child process. It usually means the child failed.
"""
VLLM = """\
\x1b[0;36m(EngineCore pid=31)\x1b[0;0m ERROR 11-23 02:00:00 [core.py:1100] Traceback (most recent call last):
(Worker_TP1 pid=33) ERROR 11-23 02:00:00 [executor.py:800]   File "cpu_worker.py", line 92
(Worker_TP1 pid=33) ERROR 11-23 02:00:00 [multiproc_executor.py:800] AssertionError: not enough cores for 2 ranks
(EngineCore pid=31) ERROR 11-23 02:00:01 [core.py:9] Exception: WorkerProc initialization failed. See stack trace.
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (SGLANG, "AttributeError: 'Gemma2Config' object has no attribute 'hidden_act'"),
        (VLLM, "AssertionError: not enough cores for 2 ranks"),
        ("Fatal Python error: Segmentation fault\n\nThread 0x01:\n", "Fatal Python error: Segmentation fault"),
        ("torch.OutOfMemoryError: CUDA out of memory.\n", "torch.OutOfMemoryError: CUDA out of memory."),
        ("loading weights\nready\n", ""),
        ("The error: of its ways\nNo Exception here\n", ""),
    ],
)  # fmt: skip
def test_the_cause_is_the_exception_that_others_point_at(text: str, cause: str, tmp_path: Path) -> None:
    (tmp_path / "worker.err").write_text(text)
    assert last_words.root_cause({tmp_path / "worker.err": 0}) == cause


def test_what_was_said_before_the_start_is_not_its_cause(tmp_path: Path) -> None:
    log = tmp_path / "worker.err"
    log.write_text("ValueError: of the engine before\n")
    begun = last_words.sizes([log, tmp_path / "absent"])
    assert last_words.root_cause(begun) == ""
    with log.open("a") as more:
        more.write("ValueError: of this one\n")
    assert last_words.root_cause(begun) == "ValueError: of this one"


def test_a_process_finds_the_files_of_its_own_output(tmp_path: Path) -> None:
    program = (
        "import subprocess, sys; from scenarios.rollout import last_words;"
        "begun = last_words.sizes(last_words.own_output());"
        "subprocess.run([sys.executable, '-c', 'raise LookupError(1)']);"
        "print(sorted(file.name for file in begun), last_words.root_cause(begun))"
    )
    with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as err:
        subprocess.run([sys.executable, "-c", program], stdout=out, stderr=err, check=True)
    assert (tmp_path / "out").read_text() == "['err', 'out'] LookupError: 1\n"
