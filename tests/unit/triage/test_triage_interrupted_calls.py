"""A look at a process does not end the system call in which it waits."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest
from triage_evidence import evidence, rank
from waiting import until

from harness.triage import judge
from harness.triage.collect import channels, stacks
from harness.triage.graph import build
from harness.triage.rules import Case, Ruling
from harness.triage.rules.ruling import Live, Native

# Each calls once, and prints what the call returned. Who reads what it writes, or sends the rest, is the test.
BLOCK = 1 << 20
CALLS = {
    "write": f"import os; print(os.write(1, bytes({BLOCK})), file=sys.stderr)",
    "writev": f"import os; print(os.writev(1, [bytes({BLOCK})]), file=sys.stderr)",
    "sendto": f"import os, socket; a, b = socket.socketpair()\n"
    "if not os.fork():\n a.close(); sys.stdin.read()\n"
    f" while b.recv({BLOCK}): pass\n os._exit(0)\n"
    f"b.close(); print(a.send(bytes({BLOCK})), file=sys.stderr)",
    "recv with MSG_WAITALL": "import socket; a, b = socket.socketpair(); b.send(b'x')\nimport threading\n"
    f"threading.Thread(target=lambda: (sys.stdin.read(), b.send(bytes({BLOCK})))).start()\n"
    f"print(len(a.recv({BLOCK}, socket.MSG_WAITALL)), file=sys.stderr)",
}


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
def test_a_look_at_a_process_does_not_end_its_call(call: str) -> None:
    job = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", f"import sys\n{CALLS[call]}"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        until(lambda: channels.cut_short(job.pid) == call)
        assert stacks.dump(job.pid).threads
        native = stacks.dump_native(job.pid, timeout_s=60.0)
        assert not native.threads and call in native.note
        _, returned = job.communicate()
    finally:
        job.kill()
        job.wait()
    assert int(returned) == BLOCK


def test_a_stop_ends_no_sleep_and_no_lock_early() -> None:
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", "input()"], stdin=subprocess.PIPE) as job:
        until(lambda: channels.reading(job.pid).link)
        assert channels.cut_short(job.pid) == ""


PLAIN, OTHER = "py-spy dump --pid 100   # where", "py-spy dump --pid 101   # where"
NATIVE = "py-spy dump --native --pid 100   # deep"


@pytest.mark.parametrize(
    ("writing", "advice"),
    [("", [PLAIN, OTHER, NATIVE]), ("pipe:[7]", ["py-spy dump --nonblocking --pid 100   # where", OTHER])],
)
def test_advice_about_a_process_that_writes_does_not_stop_it(
    writing: str, advice: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge.shutil, "which", lambda name: name)
    writer, other = rank(0, "main:10 put:44"), rank(1, "main:10 put:44")
    looks = tuple(dataclasses.replace(look, writing=writing) for look in writer.samples)
    taken = evidence(dataclasses.replace(writer, samples=looks), other)
    ruling = Ruling("INSUFFICIENT", "", next=(Live(PLAIN), Live(OTHER), Native(NATIVE)))
    assert judge._steps(Case(taken, None, build(taken, None)), ruling, "") == advice
