"""Whether stacks can be read here: the kernel's rules, and what py-spy can really do to a child of ours."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from typing import Any

from harness.doctor.gather.files import integer, status


@dataclass(frozen=True)
class Tracing:
    """Whether one process may read the stack of another. `attempt`: what py-spy could do to a child of ours."""

    uid: int = 0
    ptrace: bool = True  # CAP_SYS_PTRACE is effective
    scope: int | None = None  # kernel.yama.ptrace_scope; None if the kernel has no Yama
    seccomp: int = 0  # 0 none, 2 a filter, as containers have
    attempt: str = "allowed"  # allowed, only nonblocking, denied, absent, failed
    detail: str = ""


_CAP_SYS_PTRACE = 1 << 19  # bit 19, linux/capability.h
_CHILD = "import sys; print(flush=True); sys.stdin.read()"
_PATIENCE_S = 15.0  # chosen: py-spy takes a second or two for an idle interpreter


def tracing() -> dict[str, Any]:
    """Return the fields of `Tracing`. Starts a Python for py-spy to look at and ends it again: 0.1 to 1 s."""
    process_status = status(os.getpid())
    attempt, detail = _attempt()
    return {
        "uid": os.geteuid(), "ptrace": bool(int(process_status.get("CapEff", "0"), 16) & _CAP_SYS_PTRACE),
        "scope": integer("/proc/sys/kernel/yama/ptrace_scope"), "seccomp": int(process_status.get("Seccomp", "0")),
        "attempt": attempt, "detail": detail,
    }  # fmt: skip


def _dump(program: str, pid: int, flags: list[str]) -> tuple[bool, str]:
    """Return whether py-spy read the stack of a process, and its last words where it did not."""
    try:
        done = subprocess.run(
            [program, "dump", *flags, "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE_S,
        )
    except subprocess.TimeoutExpired:
        return False, f"silent for {_PATIENCE_S:.0f} s"
    return done.returncode == 0, (done.stderr.strip().splitlines() or ["no message"])[-1][:200]


def _attempt() -> tuple[str, str]:
    beside = os.path.join(sysconfig.get_path("scripts"), "py-spy")
    program = beside if os.access(beside, os.X_OK) else shutil.which("py-spy")
    if not program:
        return "absent", ""
    child = subprocess.Popen([sys.executable, "-I", "-S", "-c", _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        if child.stdout:
            child.stdout.readline()  # from here on the interpreter has a stack
        # Stopping the process comes first: a stack that is read without a stop may be torn. Where only that works,
        # `message` keeps why.
        message = ""
        for mode, flags in (("allowed", []), ("only nonblocking", ["--nonblocking"])):
            is_dumped, error = _dump(program, child.pid, flags)
            if is_dumped:
                return mode, message
            message = error
        denied = any(word in message.lower() for word in ("permission", "not permitted", "eperm"))
        return ("denied" if denied else "failed"), message
    finally:
        child.kill()
        child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe:
                pipe.close()
