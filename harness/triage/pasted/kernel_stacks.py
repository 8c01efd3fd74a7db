"""Reads `cat /proc/PID/stack` and `/proc/PID/wchan` as they are pasted: in which function of the kernel a process
sleeps. It is one look, and names a process only where a line above the stack does."""

from __future__ import annotations

import re

from harness.triage import wchan

SIGN = "[<"
MAX_PROCESSES = 1_000  # of one paste; a job has some hundreds on a host
_FILE = re.compile(r"/proc/(\d{1,10})(?:/task/\d{1,10})?/stack\b")
_FRAME = re.compile(r"\[<[0-9a-fx]{1,18}>\] (?P<function>[\w.]{1,100})\+0x[0-9a-f]{1,8}/0x[0-9a-f]{1,8}")
# Frames above the one that says what is waited for.
_GENERIC = re.compile(
    r"_*schedule(?:_\w{1,40})?|__?switch_to\w{0,20}|bit_wait(?:_io)?|out_of_line_wait\w{0,20}|__wait_on\w{0,20}"
)


def waits_of(text: str) -> dict[int, str]:
    """pid -> the kernel function in which it sleeps: the first one of which it is known for what it waits, else the
    first one that is not of the scheduler."""
    if SIGN not in text or "/stack" not in text:
        return {}
    functions: dict[int, list[str]] = {}
    pid = 0
    for line in text.splitlines():
        if file := _FILE.search(line):
            pid = int(file[1])
        elif pid and (frame := _FRAME.search(line)) and (pid in functions or len(functions) < MAX_PROCESSES):
            functions.setdefault(pid, []).append(frame["function"])
    return {pid: _told(names) for pid, names in functions.items()}


def _told(functions: list[str]) -> str:
    plain = [function for function in functions if not _GENERIC.fullmatch(function)]
    return next((function for function in plain if wchan.words(function)), (plain or functions)[0])
