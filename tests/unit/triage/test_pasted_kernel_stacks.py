"""`cat /proc/PID/stack`, pasted: one look at what a process waits for in the kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.triage.run import triage
from reports.model import Verdict

NFS = """\
$ cat /proc/4321/stack
[<0>] __schedule+0x1/0x2
[<0>] nfs_wait_bit_killable+0x1e/0x90 [nfs]
[<0>] do_syscall_64+0x5b/0x80
"""


def judged(folder: Path, text: str) -> Verdict:
    (folder / "paste.txt").write_text(text)
    return triage([str(folder / "paste.txt")])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (NFS, "process 4321 was in nfs_wait_bit_killable of the kernel: it waits for an NFS server"),
        (NFS.replace("nfs_wait_bit_killable", "folio_wait_bit"), "for a disk"),
        (NFS.replace("nfs_wait_bit_killable", "uvm_ioctl"), "process 4321 was in uvm_ioctl of the kernel"),
        ("==> /proc/4321/stack <==\n" + NFS.partition("\n")[2], "for an NFS server"),
        (NFS.replace("/proc/4321/stack", "/proc/4321/task/4322/stack"), "process 4321"),
    ],
)
def test_a_stack_of_the_kernel_says_what_was_waited_for_and_proves_nothing(
    tmp_path: Path, text: str, words: str
) -> None:
    verdict = judged(tmp_path, text)
    assert verdict.triage is not None
    assert (verdict.verdict, verdict.triage.culprits) == ("INSUFFICIENT", []) and words in verdict.reason


def test_a_trace_of_the_kernel_without_a_process_names_none(tmp_path: Path) -> None:
    assert "process" not in judged(tmp_path, NFS.partition("\n")[2]).reason.split(";")[0]


def test_beside_a_python_stack_of_the_process_it_is_no_second_process(tmp_path: Path) -> None:
    stack = 'Process 4321: python train.py\nThread 4321 (idle): "MainThread"\n    write (train.py:9)\n'
    verdict = judged(tmp_path, f"{stack}\n{NFS}")
    assert verdict.triage is not None
    assert len(verdict.triage.nodes) == 1 and "train.py:9" in verdict.reason
