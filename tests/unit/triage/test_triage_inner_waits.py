"""Waits below the program: a lock of the interpreter, or the threads of a native library's pool."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from triage_evidence import HOST, evidence

from harness.triage import inner_waits, run
from harness.triage.evidence import Frame, Process, Sample, Thread
from harness.triage.judge import triage
from reports.model import Verdict

LIBC, PYTHON = "/usr/lib/x86_64-linux-gnu/libc.so.6", "/usr/lib/libpython3.11.so.1.0"
TORCH = "/venv/lib/python3.11/site-packages/torch/lib"
IMPORTLIB = "<frozen importlib._bootstrap>"
WAITS_FOR_IMPORT = (Frame("_ModuleLock.acquire", IMPORTLIB, 120), Frame("_lock_unlock_module", IMPORTLIB, 224))
IMPORTS = (Frame("_load_unlocked", IMPORTLIB, 690), Frame("_find_and_load", IMPORTLIB, 1176))
PROGRAM = """
def load():
    import slow.module
def load_package():
    import slow
def load_other():
    import other
def load_names():
    from slow import module
"""


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ([Frame("0x7f51", f"{TORCH}/libgomp.so.1", 0), Frame("at::ones", f"{TORCH}/libtorch_cpu.so", 0)], "libgomp"),
        ([Frame("syscall", LIBC, 0), Frame("0x7f5", f"{TORCH}/libgomp-a34b3233.so.1.0.0", 0)], "libgomp"),
        ([Frame("__kmp_suspend_64", "/opt/lib/libiomp5.so", 0)], "OpenMP"),
        ([Frame("__kmp_join_barrier", "libomp.so.5", 0)], "OpenMP"),
        ([Frame("futex_wait", LIBC, 0), Frame("0x1", "/opt/lib/libmkl_intel_thread.so.2", 0)], "MKL"),
        ([Frame("exec_blas_async_wait", "/v/numpy.libs/libscipy_openblas64_-6bb31eeb.so", 0)], "OpenBLAS"),
        ([Frame("0x7", LIBC, 0), Frame("take_gil", PYTHON, 0), Frame("PyEval_RestoreThread", PYTHON, 0)], "GIL"),
        ([*WAITS_FOR_IMPORT, Frame("load", "/job/a.py", 3)], "import"),
        ([Frame("PyThread_acquire_lock_timed", PYTHON, 0), *WAITS_FOR_IMPORT], "import"),
        # it computes in a parallel region
        ([Frame("at::exp", f"{TORCH}/libtorch_cpu.so", 0), Frame("0x7f51", f"{TORCH}/libgomp.so.1", 0)], ""),
        ([Frame("dgemm_kernel", "/v/numpy.libs/libscipy_openblas64_-6bb31eeb.so", 0)], ""),
        ([Frame("acquire", "/usr/lib/python3.11/threading.py", 9)], ""),
        ([Frame("acquire", "/job/importlib._bootstrap.py", 9)], ""),
        ([Frame("run", "/job/libgomp_wrapper.py", 9)], ""),
        ([*IMPORTS, Frame("load", "/job/a.py", 3)], ""),  # it imports
        ([], ""),
    ],
)
def test_the_innermost_frame_says_what_is_waited_for(frames: list[Frame], words: str) -> None:
    wait = inner_waits.awaited(frames)
    assert wait is None if not words else wait is not None and words in wait.words


@pytest.mark.parametrize(
    ("wants", "imports", "is_keeper"),
    [
        ("load", "load", True),
        ("load", "load_package", True),  # the package that it is in
        ("load_package", "load", False),
        ("load", "load_other", False),
        ("load_names", "load", True),
    ],
)
def test_who_keeps_the_lock_of_an_import(tmp_path: Path, wants: str, imports: str, is_keeper: bool) -> None:
    file = tmp_path / "job.py"
    file.write_text(PROGRAM)
    lines = {name: 1 + PROGRAM.splitlines().index(f"def {name}():") + 1 for name in (wants, imports)}
    keeper = Thread("loader", 9, (*IMPORTS, Frame(imports, str(file), lines[imports])))
    waits = Thread("other", 8, (*WAITS_FOR_IMPORT, Frame(imports, str(file), lines[imports])))
    waiting = Frame(wants, str(file), lines[wants])
    assert inner_waits.importers([keeper, waits], waiting) == ([keeper] if is_keeper else [])


def process(pid: int, frames: tuple[Frame, ...], *threads: Thread, **fields: object) -> Process:
    main = Thread("MainThread", pid, frames, main=True, wchan="futex_do_wait")
    alone = {"locked_alone": fields.pop("locked_alone", False), "main_switches": 7, "wchan": "futex_do_wait"}
    if "wchan" in fields:
        alone["wchan"] = fields.pop("wchan")
    looks = tuple(Sample(at_s, "S", threads=(main, *threads), **alone) for at_s in (0.0, 1.5))  # type: ignore[arg-type]
    return Process(HOST, pid, samples=looks, **fields)  # type: ignore[arg-type]


def judged(*processes: Process) -> Verdict:
    return triage(evidence(*processes, source="live", stall_s=0.0))


@pytest.mark.parametrize(("library", "is_pool"), [("libgomp.so.1", True), ("libtorch_cpu.so", False)])
def test_a_forked_process_that_asks_a_pool_lacks_its_threads(library: str, is_pool: bool) -> None:
    """The control: the same wait in another library may be for a lock that was taken twice."""
    work = Frame("compute", "/job/train.py", 4)
    parent = process(70, (Frame("main", "/job/train.py", 11),), wchan="do_wait")
    child = process(200, (work,), ppid=70, forked=True, locked_alone=True)
    native = Thread("MainThread", 200, (Frame("0x7f51", f"{TORCH}/{library}", 0), work), native=True)
    verdict = judged(parent, dataclasses.replace(child, native=(native,)))
    assert verdict.triage is not None and (verdict.verdict, verdict.triage.hang) == ("HUNG", "K4")
    assert [culprit.pid for culprit in verdict.triage.culprits] == [200]
    assert ("pool" in verdict.reason) is is_pool and ("libgomp" in verdict.triage.culprits[0].why) is is_pool
    assert ("of the pool" in verdict.triage.next[0]) is is_pool


@pytest.mark.parametrize("is_importing", [True, False])
def test_the_lock_of_an_import_that_a_thread_of_the_parent_kept(tmp_path: Path, is_importing: bool) -> None:
    file = tmp_path / "job.py"
    file.write_text(PROGRAM)
    line = Frame("load", str(file), 3)
    inside = (Frame("<module>", "/job/slow/module.py", 2), *(IMPORTS if is_importing else ()), line)
    parent = process(70, (Frame("main", "/job/train.py", 11),), Thread("loader", 71, inside), wchan="do_wait")
    child = process(200, (*WAITS_FOR_IMPORT, line), ppid=70, forked=True, locked_alone=True)
    verdict = judged(parent, child)
    assert verdict.triage is not None and [culprit.pid for culprit in verdict.triage.culprits] == [200]
    assert ("copied by fork" in verdict.reason) is is_importing
    assert "the lock of an import" in verdict.triage.culprits[0].why


def test_a_thread_that_does_not_end_its_import_is_told(tmp_path: Path) -> None:
    file = tmp_path / "job.py"
    file.write_text(PROGRAM)
    line = Frame("load", str(file), 3)
    loader = Thread("loader", 71, (Frame("<module>", "/job/slow/module.py", 2), *IMPORTS, line), wchan="nanosleep")
    verdict = judged(process(70, (*WAITS_FOR_IMPORT, line), loader))
    told = " ".join((verdict.reason, *verdict.evidence))
    assert verdict.verdict == "INSUFFICIENT" and "the lock of an import" in told and "thread loader" in told


NATIVE = """Process 812: python /job/train.py
Python v3.11.7

Thread 812 (idle): "MainThread"
    futex_wait (libc.so.6)
    0x7f51ac81e073 ({library})
    at::native::ones (torch/lib/libtorch_cpu.so)
    compute (train.py:4)
    <module> (train.py:9)
"""


@pytest.mark.parametrize(("library", "is_pool"), [("torch/lib/libgomp.so.1", True), ("torch/lib/libc10.so", False)])
def test_a_pasted_native_stack_says_it_in_words(tmp_path: Path, library: str, is_pool: bool) -> None:
    (tmp_path / "rank_0.txt").write_text(NATIVE.format(library=library))
    verdict = run.triage([str(tmp_path / "rank_0.txt")])
    assert verdict.verdict == "INSUFFICIENT"
    assert any("OpenMP pool" in line for line in verdict.evidence) is is_pool
