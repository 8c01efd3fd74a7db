"""Finds why a process died in its own output, where the exception that reports it only says "see above".

An engine runs in processes of its own, below the actor that drives it. Their standard output and standard error are
the actor's, and Ray keeps those in files: worker-<id>-<pid>.out and .err in the logs of the session.
"""

from __future__ import annotations

import os
import re
import signal
import stat
from collections.abc import Iterable
from pathlib import Path

from probes import redaction
from probes.signal_codes import signal_of
from scenarios.engines import validation_errors

TAIL = 1 << 20  # bytes of each file that are read; an engine logs a few hundred lines at its start
LONGEST = 300  # characters of one sentence
# A prefix that an engine or Ray writes before each line: "(EngineCore pid=12) ERROR 11-23 01:02:03 [core.py:1100] ".
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_PREFIX = re.compile(r"^(?:\([^()]{1,60}\) ?)*(?:(?:ERROR|CRITICAL) [\d:. -]{5,30} )?(?:\[[^\]]{1,80}\] ?)*")
_RAISED = re.compile(
    r"^(?:[A-Za-z_][\w.]*\.)?(?:[A-Z]\w*(?:Error|Refused|NotImplemented|Interrupt)|(?:[A-Z]\w*)?Exception)\b(?::.*)?$"
)
# An exception by any name, where it ends a traceback.
_NAMED = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?::\s.*)?$")
_TRACEBACK = "Traceback (most recent call last)"
_FATAL = re.compile(
    r"^(?:Fatal Python error: .*|terminate called .*|.*\bSegmentation fault\b.*|.*: symbol lookup error.*"
    r"|.*: Error while finding module specification for .*|.*: command not found)$"
)
# Exceptions that only refer to another one: vLLM (v1/engine/utils, v1/engine/exceptions,
# v1/executor/multiproc_executor), SGLang (entrypoints/engine), torchrun (elastic/multiprocessing/errors).
_POINTER = re.compile(
    r"root cause above|stack trace (?:above|\(above\)|for root cause)|(?<!\w)initialization failed|scheduler is dead"
    r"|scheduler died during initialization|EngineDeadError|ChildFailedError|See stack trace|Executor failed\.",
    re.IGNORECASE,
)
# How an engine's parent reports a child's exit code: vLLM ("Failed core proc(s): {'EngineCore_0': -9}"), SGLang.
_CODE = re.compile(r"(?:\b[Ee]xit ?code:? |Failed core proc\(s\): \{[^}]{1,80}: )-(\d{1,2})\b")
_FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
# Progress of a job: a step, or a bar of tqdm. Others may do one more after a process of them has failed.
_PROGRESS = re.compile(
    r"\b(?:step|epoch|iter|iteration|batch|it)s?\b[ :=#\[]{0,3}(\d{1,9})|(\d{1,3})%\|", re.IGNORECASE
)
STEPS = 3  # different steps after an error that show that it was outlived
LAST_LINES = 3  # a choice: enough for an assertion and its place
COLLECTED = "its log does not say why, and its parent collected its exit code before it could be read"
# _SPEAKER: which process wrote a line of a shared file. _RECORD: a line of a logger. _ENDING: what a process prints
# as it ends.
_SPEAKER = re.compile(r"\bpid=\d+|\b(?:TP|DP|PP)\d+\b")
_RECORD = re.compile(r"\b(?:INFO|DEBUG)\b|\b\d\d:\d\d:\d\d\b")
_ENDING = re.compile(
    r"traceback|during handling|direct cause|sigquit|sigterm|sigint|shut|exit|terminat|died|dead|fail|kill|leak|abort"
    r"|resource_tracker|destroy_process_group|core dumped|^Process |^(?:Current )?[Tt]hread 0x|^Extension modules",
    re.IGNORECASE,
)


def own_output() -> list[Path]:
    """Return the files to which this process's standard output and error go; none for a terminal."""
    files = []
    for number in (1, 2):
        try:
            if stat.S_ISREG(os.fstat(number).st_mode):
                files.append(Path(os.readlink(f"/proc/self/fd/{number}")))
        except OSError:  # closed, or no /proc
            continue
    return list(dict.fromkeys(files))


def sizes(files: Iterable[Path]) -> dict[Path, int]:
    """Return the bytes in each file now: where the output of what starts next begins."""
    return {file: file.stat().st_size for file in files if file.exists()}


def is_pointer(reason: str) -> bool:
    """Whether an exception's text only refers to another one in a log."""
    return _POINTER.search(reason) is not None


def explain(reason: str, begun: dict[Path, int], ended: int | None = None) -> str:
    """Return `reason`, the engine's own text, with the root cause from its files added.

    The root cause replaces a reason that is empty or only a pointer. A validation error says everything by itself.
    """
    if validation := validation_errors.shortened(reason):
        return validation
    cause = root_cause(begun, ended)
    if is_pointer(reason):
        return cause or f"its log does not say why ({', '.join(map(str, begun)) or 'standard error'})"
    if not cause or cause in reason:
        return reason
    return f"{reason}. Its own last words: {cause}" if reason else cause


def root_cause(begun: dict[Path, int], ended: int | None = None, late: dict[Path, int] | None = None) -> str:
    """Return why a process ended, in one sentence, from its files after these offsets; "" where they do not tell.

    `ended`: its exit code, negative for a signal (as in subprocess), 128 + n for one that a shell passes on, None where
    unknown. A negative code that its parent wrote into the log takes precedence. `late`: the byte at which the part of
    each file begins that came shortly before the end, where that is known.

    The cause is the last exception that is not a pointer to another one: chained and forwarded exceptions are printed
    after their cause. One that the job outlived by several steps is no cause. If the process did not exit by itself, an
    exception is the cause only if it was printed at the end, and nothing that the process logged afterwards shows that
    it continued. Otherwise the result is the signal with the last lines of the log; for a process that failed without
    an exception in its log, those lines alone.
    """
    logs = {file: _lines(file, begin) for file, begin in begun.items()}
    # How it ended: a shell passes on a signal as 128 + its number.
    code = _reported_code(logs.values())
    if code is None:
        code = ended
    if code is not None and signal_of(code) in _FROM_OUTSIDE:
        code = -signal_of(code)
    by_itself = code is not None and -code not in _FROM_OUTSIDE
    # What it said last: an exception that ended it, or one that it outlived.
    outlived = ""
    for file, log in reversed(logs.items()):  # standard error before standard output
        at = _last_error(log)
        if at is None:
            continue
        behind = log[at + 1 :]
        is_early = late is not None and file in late and log[at] not in _lines(file, late[file])
        goes_on = is_early or any(_goes_on(line, log[at], killed=code is not None) for line in behind)
        if not _advances(behind) and (by_itself or not goes_on):
            return _raised(log, at)
        outlived = f"; an earlier error in its log, which it outlived: {_raised(log, at)}"
        logs[file] = behind
        break
    if code is None or code == 0:
        return ""
    ending = _killed(-code, logs.values()) if code < 0 else _last_lines(logs.values())
    return ending + outlived


def _reported_code(logs: Iterable[list[str]]) -> int | None:
    """The exit code of a child in the words of its parent; None where no log has one."""
    for log in logs:
        for line in reversed(log):
            if match := _CODE.search(line):
                return -int(match[1])
    return None


def _last_error(log: list[str]) -> int | None:
    """The place of the last line that is an exception; None without one."""
    places = reversed(range(len(log)))
    return next((at for at in places if is_error(log[at]) or _ends_traceback(log, at)), None)


def _lines(file: Path, begin: int) -> list[str]:
    """The lines of a file without secrets, which go before the lines are parted: one may be on another line than its
    name."""
    return [line.rstrip() for line in redaction.text(_COLOUR.sub("", _read(file, begin)), 0).splitlines()]


def is_error(line: str) -> bool:
    """Whether a line names the error that ended a process, and does not only refer to one."""
    message = _PREFIX.sub("", line.strip())
    return bool(_RAISED.match(message) or _FATAL.match(message)) and not is_pointer(message)


def _ends_traceback(log: list[str], at: int) -> bool:
    """Whether a line is the exception below the frames of a traceback, which may have any name."""
    message = _PREFIX.sub("", log[at])
    if not _NAMED.match(message) or is_pointer(message):
        return False
    above = (_PREFIX.sub("", line) for line in reversed(log[:at]))
    head = next((line for line in above if line and not line[0].isspace()), "")
    return _TRACEBACK in head and bool(_PREFIX.sub("", log[at - 1])[:1].isspace())


def _goes_on(line: str, cause: str, *, killed: bool) -> bool:
    """Whether a line after an exception shows that its process continued.

    `killed`: the process is known not to have ended by itself. Otherwise a plain line may belong to the exception's
    message, and only records of a logger count.
    """
    message = _PREFIX.sub("", line)
    if not message.strip() or message[0].isspace() or _SPEAKER.findall(line[:80]) != _SPEAKER.findall(cause[:80]):
        return False
    if _RAISED.match(message) or _FATAL.match(message) or _ENDING.search(line) or "ERROR" in line[:80]:
        return False
    return killed or bool(_RECORD.search(line[:80]))


def _advances(lines: Iterable[str]) -> bool:
    """Whether lines after an exception tell of several steps of the job."""
    return len({step for line in lines for step in steps_in(line)}) >= STEPS


def steps_in(line: str) -> set[str]:
    """The numbers of the steps, or the percentages, that a line tells as the progress of a job."""
    return {match[1] or match[2] for match in _PROGRESS.finditer(line)}


def _last_lines(logs: Iterable[list[str]]) -> str:
    """Return the end of a log that holds no exception of its own, without exceptions that refer to another one."""
    lines = [line for log in logs for line in log if re.search(r"\w", line) and not is_pointer(line)]
    last = " | ".join(_sentence(line) for line in lines[-LAST_LINES:])
    return f"no exception at the end of its log, which ends: {last}" if last else ""


def _killed(number: int, logs: Iterable[list[str]]) -> str:
    also = ", which the kernel's OOM killer also sends" if number == signal.SIGKILL else ""
    lines = [line for log in logs for line in log if line.strip()]
    last = " | ".join(map(_sentence, lines[-LAST_LINES:]))
    ending = f"; last lines of the log: {last}" if lines else ""
    return f"killed by signal {number}{also}{ending}"


def _raised(log: list[str], at: int) -> str:
    """Return the exception of a line, in one sentence; that of a validation error is in the lines after it."""
    kind, _, message = _sentence(log[at]).partition(": ")
    validation = validation_errors.shortened("\n".join([message, *(_PREFIX.sub("", line) for line in log[at + 1 :])]))
    return f"{kind.rpartition('.')[2]}: {validation}"[:LONGEST] if validation else _sentence(log[at])


def _sentence(line: str) -> str:
    return _PREFIX.sub("", line.strip())[:LONGEST]


def _read(file: Path, begin: int) -> str:
    try:
        with file.open("rb") as source:
            source.seek(max(begin, file.stat().st_size - TAIL))
            return source.read(TAIL).decode("utf-8", "replace")
    except OSError:
        return ""
