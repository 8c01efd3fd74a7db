"""Reads the tables that torchrun prints when ranks failed: `ChildFailedError.format_msg` of torch 2.13.

torchrun stops the other ranks when one has failed, so a table has the first failure and its echoes.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

from harness.triage.collect import redact
from harness.triage.echoes import OUT_OF_MEMORY, is_echo
from harness.triage.evidence import LogError, Process
from harness.triage.graph.subjects import exit_text
from harness.triage.pasted import naming
from harness.triage.pasted.errors import READ_ON, stamp_of
from probes.limits import RANKS

SIGN = "Root Cause (first observed failure)"
ENDING = "exitcode"  # a field without which no failure is read
MAX_FAILURES = 20_000  # of all tables
NOWHERE = "/"  # no file
MAX_MESSAGE = 2_000  # characters of the last line of a traceback
_BEGIN = re.compile(r"\[\d{1,7}\]:")
_FIELD = re.compile(r"(time|host|rank|exitcode|error_file|traceback) *: (.*)")
_BORDER = re.compile(r"[=-]{20,}")
_RANK = re.compile(r"(\d{1,7}) \(local_rank: \d+\)")
_EXIT = re.compile(r"(-?\d{1,5}) *\(pid: (\d{1,10})\)")
_OTHERS = "Failures:"  # heads those that came after the first
_SENDS = re.compile(r"Sending process (\d{1,10}) closing signal")  # to those that still live after the first failure
# What stands in place of an error that was not recorded.
_NOTHING = ("<N/A>", "To enable traceback see", "Signal ")


# The agent of a node writes it once for each attempt. The number before the file is its process or thread.
ATTEMPT_FAILED = "failed (exitcode: "
_ATTEMPT_FAILED = re.compile(r"failed \(exitcode: -?\d{1,5}\) local_rank: \d{1,7} \(pid: \d{1,10}\) of binary")
# Each agent writes it at the end of each attempt but the last, where its level of logging is INFO.
RESTARTS = "will restart worker group"
_RESTARTS = re.compile(rf"(\d{{1,7}}/\d{{1,7}}) attempts left; {RESTARTS}")
_OVER = SIGN, "ChildFailedError", "/torch/distributed/launcher/api.py"
_AGENT = re.compile(r"[IWE]\d{4} [\d:.]{8,20} (\d{1,20}) \S{0,300}torch/distributed/elastic/")


def ended_attempts(text: str, lines: Iterable[str]) -> list[int]:
    """The numbers of the lines at which attempts ended after which torchrun started its workers again.

    Each node has an agent, and all may write to one log. After the last attempt no worker writes any more, and torchrun
    ends with an error of its own.
    """
    if ATTEMPT_FAILED not in text:
        return _restarts(lines) if RESTARTS in text else []
    by_agent: dict[tuple[naming.Name, str], list[int]] = {}
    last, over = 0, 0
    for number, line in enumerate(lines, 1):
        if ATTEMPT_FAILED in line and _ATTEMPT_FAILED.search(line):
            writer, words = naming.split(line)
            if agent := _AGENT.match(words):
                by_agent.setdefault((writer, agent[1]), []).append(number)
        last = number if line.strip() else last
        over = number if not over and any(sign in line for sign in _OVER) else over
    most = max(map(len, by_agent.values()), default=0)
    ended = [max(its[at] for its in by_agent.values() if len(its) > at) for at in range(most)]
    is_over = bool(ended) and (last == ended[-1] or over > ended[-1])
    return ended[:-1] if is_over else ended


def _restarts(lines: Iterable[str]) -> list[int]:
    """The numbers of the lines after which agents that log no exit codes started their workers again."""
    by_attempt: dict[str, int] = {}
    last = 0
    for number, line in enumerate(lines, 1):
        last = number if line.strip() else last
        if RESTARTS in line and (restart := _RESTARTS.search(line)):
            by_attempt[restart[1]] = number
    return [number for number in by_attempt.values() if number != last]


@dataclass
class Failures:
    """Takes the lines of one writer, in order. `rows`: the fields of each failed rank; `close` completes the last.

    A row has `first` if torchrun names it as the first failure, and `unsent` if torchrun, which logs whom it ends, sent
    it no signal.
    """

    rows: list[dict[str, str]] = field(default_factory=list)
    _row: dict[str, str] | None = None
    _root_in: str = NOWHERE  # the file in whose table the row of the first failure follows
    _has_agent: bool = False  # whether the log has what torchrun's agent says of an attempt
    _sent: set[str] = field(default_factory=set)  # pids to which torchrun sent a signal

    def feed(self, file: str, number: int, line: str) -> None:
        """Take the next line. `number`: from 1 in its file."""
        words = line.strip()
        if _BEGIN.fullmatch(words):
            self.close()
            self._row = {"file": file, "line": str(number)} | ({"first": SIGN} if self._root_in == file else {})
        elif self._row is None or not words or words.startswith(SIGN):
            self._take_heading(file, words)
        elif _BORDER.fullmatch(words):
            self.close()
        elif (pair := _FIELD.match(words)) and "traceback" not in self._row:
            self._row[pair[1]] = pair[2]
        elif "traceback" in self._row:
            self._row["traceback"] = words[:MAX_MESSAGE]  # its last line is the error

    def close(self) -> None:
        """End one failure."""
        if self._row and "rank" in self._row and len(self.rows) < MAX_FAILURES:
            ending = _EXIT.match(self._row.get(ENDING, ""))
            if self._has_agent and ending and ending[2] not in self._sent:
                self._row["unsent"] = ATTEMPT_FAILED
            self.rows.append(self._row)
        self._row = None

    def _take_heading(self, file: str, words: str) -> None:
        """Take a line beside the rows: whose rows follow, and whom torchrun ended."""
        if words.startswith((SIGN, _OTHERS)):
            self.close()
            self._root_in = file if words.startswith(SIGN) else NOWHERE
        elif sends := _SENDS.search(words):
            self._sent.add(sends[1])
        elif ATTEMPT_FAILED in words:
            self._has_agent = True


def processes(rows: list[dict[str, str]]) -> Iterator[Process]:
    """A process that has ended for each failed rank; its last failure where it failed several times."""
    failures = {(row.get("host", ""), row["rank"]): row for row in rows}
    times = [at for row in failures.values() if (at := _time(row)) is not None]
    for (host, _), row in failures.items():
        rank, ending = _RANK.match(row["rank"]), _EXIT.match(row.get("exitcode", ""))
        if rank is None or ending is None or int(rank[1]) > RANKS:
            continue
        at = _time(row)
        yield Process(
            host=host,
            pid=int(ending[2]),
            ppid=-1,  # not known
            rank=int(rank[1]),
            exit_code=int(ending[1]),
            error=_error(row),
            error_age_s=(max(times) - at).total_seconds() if at is not None else None,
            first_by_launcher=_comes_first(row),
            ended_at=stamp_of(row.get("time", "")),
        )


def errors(rows: list[dict[str, str]]) -> Iterator[LogError]:
    """The end of each rank that failed, as an error of the log."""
    for row in rows:
        rank, ending = _RANK.match(row["rank"]), _EXIT.match(row.get("exitcode", ""))
        if rank is None or ending is None or int(rank[1]) > RANKS:
            continue
        code, words = int(ending[1]), _error(row)
        killed = code == -signal.SIGKILL
        yield LogError(
            file=row["file"],
            line=int(row["line"]),
            what=f"ended with {exit_text(code)}" + (f": {words}" if words else ""),
            text=words or f"exitcode  : {row['exitcode']}",
            rank=int(rank[1]),
            host=row.get("host", ""),
            pid=int(ending[2]),
            fix=OUT_OF_MEMORY if killed else READ_ON,
            echo=(code == -signal.SIGTERM and not _comes_first(row)) or is_echo(words),
            at=stamp_of(row.get("time", "")),
        )


def _comes_first(row: dict[str, str]) -> bool:
    """Whether a rank had failed before torchrun ended the others."""
    return bool(row.get("first") or row.get("unsent"))


def _error(row: dict[str, str]) -> str:
    words = row.get("traceback", "").strip()
    return "" if words.startswith(_NOTHING) else redact.text(words)


def _time(row: dict[str, str]) -> datetime | None:
    try:
        return datetime.fromisoformat(row.get("time", "").replace("_", "T")).replace(tzinfo=None)
    except ValueError:
        return None
