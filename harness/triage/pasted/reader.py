"""Reads pasted files one after another, and sorts what is in them: stacks, counters, failures, errors and dumps."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from harness import exit_cleanup
from harness.triage.archive import bare
from harness.triage.directory import begins_dump
from harness.triage.evidence import UNREAD, LogEnd, LogError, LogPhase, RecorderFinding
from harness.triage.pasted import (
    errors,
    fr_trace,
    interrupts,
    kernel_stacks,
    last_lines,
    naming,
    own_answer,
    prefixes,
    progress_bars,
    ras,
    ray,
    ray_summary,
    torchrun,
    watchdog,
)
from harness.triage.pasted.dumps import Dump, Parser, of_json
from harness.triage.pasted.incidents import is_earlier
from harness.triage.pasted.naming import NOBODY, Name
from harness.triage.pasted.nccl_ranks import NcclRanks
from harness.triage.pasted.text import HEAD, Pasted, content, decoded
from probes.files import write_whole

MAX_WRITERS = 20_000  # of one file
MAX_NAMED = 8  # lines of a file that a note names
MAX_ENDS = 1_000  # last lines of all files
MAX_BYTES = 256 << 20  # of all files together
_SIGNS = (
    "Thread ",
    "thread ",
    "TID ",
    "#0 ",
    '"frames"',
    torchrun.SIGN,
    *watchdog.WORDS,
    *errors.WORDS,
)  # each text that is read has one of these
INTERRUPTED = "the stacks are those of the KeyboardInterrupt that ended each rank, as by Ctrl-C: one look"
_LIST = re.compile(r"\s*\[\s*[\[{\]]")
_FILE = re.compile(r"==> (.{1,500}) <==")  # what `tail` and `head` print before each of several files


@dataclass(frozen=True)
class Look:
    """One dump, who wrote it, and the file that it is in."""

    dump: Dump
    writer: Name
    file: str


@dataclass
class Reader:
    """Takes files in order.

    looks: the stacks. log: counters of recorders. failures: torchrun's tables. errors: lines that end a process.
    recorded: flight recorder dumps, name -> path. answers: of NCCL RAS, by file. lists: of Ray's command line.
    interrupted: where ranks stood at Ctrl-C.
    ends: the last lines of texts without stacks. phases: their progress bars. own_answers: of the harness, title and
    reason by file. in_kernel: pid -> kernel function in which it sleeps. hosts: rank -> hosts that prefixes of its
    lines name. nccl_ranks: of the processes in NCCL's communicators. notes: what was not read.
    """

    looks: list[Look] = field(default_factory=list)
    log: watchdog.Watchdog = field(default_factory=watchdog.Watchdog)
    failures: torchrun.Failures = field(default_factory=torchrun.Failures)
    errors: errors.Errors = field(default_factory=errors.Errors)
    interrupted: interrupts.Interrupts = field(default_factory=interrupts.Interrupts)
    recorded: dict[str, str] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)
    lists: ray.Lists = field(default_factory=ray.Lists)
    nccl_ranks: NcclRanks = field(default_factory=NcclRanks)
    own_answers: dict[str, tuple[str, str]] = field(default_factory=dict)
    findings: list[RecorderFinding] = field(default_factory=list)
    ends: list[LogEnd] = field(default_factory=list)
    phases: list[LogPhase] = field(default_factory=list)
    in_kernel: dict[int, str] = field(default_factory=dict)
    hosts: dict[int, set[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    _size: int = 0

    @property
    def has_read(self) -> bool:
        """Whether any text was recognised."""
        return any(self._counts())

    def take(self, name: str, file: Path | None) -> bool:
        """Read a file, or the standard input. False: there is too much text, and nothing more is read."""
        if self._size > MAX_BYTES:
            note = f"only the first {MAX_BYTES >> 20} MiB of text are read: {name} and what follows it is not"
            self.notes.append(note)
            return False
        pasted = _read(file)
        if isinstance(pasted, Path):
            self.recorded[name] = os.path.realpath(pasted)
            return True
        self._size += len(pasted.text)
        before = self._counts()
        self._sort(name, pasted)
        self.answers |= {name: answer} if (answer := ras.answer(pasted.text)) else {}
        self.lists.feed(pasted.text)
        self._take_findings(list(fr_trace.findings(name, pasted.text)))
        self.in_kernel |= kernel_stacks.waits_of(pasted.text)
        if pasted.note:
            self.notes.append(f"{name}: {pasted.note}")
        if self._counts()[0] == before[0] and len(self.ends) < MAX_ENDS:
            self.ends += last_lines.ends_of(name, pasted)
            self.phases += progress_bars.phases_of(name, pasted)
        made_communicators = self.nccl_ranks.feed(pasted.text)
        if self._counts() == before and not made_communicators and not pasted.note.startswith(UNREAD):
            self.notes.append(f"{name}: nothing was recognised in it")
            own = own_answer.of_text(pasted.text) or (own_answer.of_json(pasted.text) if file is None else None)
            if own:  # a file of JSON is recognised by its reader
                self.own_answers[name] = own
        return True

    def _take_findings(self, findings: Sequence[RecorderFinding]) -> None:
        """Take what an analysis of recorders found. The error with which it ends itself is none of the job's."""
        self.findings += findings
        self.notes += [
            f"{finding.file}: tables of fr_trace, from which nothing is read: give the dumps that they were made from"
            for finding in findings
            if finding.kind == "table"
        ]
        failed_at = {(finding.file, finding.line) for finding in findings if finding.kind == "no dump"}
        if failed_at:
            self.errors.entries = [error for error in self.errors.entries if (error.file, error.line) not in failed_at]

    def keep_last_incident(self) -> list[LogError]:
        """Leave out what the logs have of earlier incidents than the last one, where times tell them apart. Returns
        the errors that are left out."""
        self.log.keep_last_incident()
        if not self.log.earlier_ends:
            return []
        end_s, last_lines = self.log.earlier_ends[-1], self.log.earlier_lines
        earlier = [error for error in self.errors.entries if is_earlier(error, end_s, last_lines)]
        self.errors.entries = [error for error in self.errors.entries if not is_earlier(error, end_s, last_lines)]
        self.log.unranked = [error for error in self.log.unranked if not is_earlier(error, end_s, last_lines)]
        self.failures.rows = [
            row
            for row in self.failures.rows
            if not any(is_earlier(error, end_s, last_lines) for error in torchrun.errors([row]))
        ]
        return earlier

    def take_interrupted(self) -> None:
        """Take where ranks stood at Ctrl-C for stacks, if nothing better is known of any rank."""
        dumps = self.interrupted.dumps
        if not dumps or self.looks or self.failures.rows or self.log.entries:
            return
        self.looks = [Look(dump, writer, file) for (file, writer), dump in dumps.items()]
        self.notes.append(INTERRUPTED)

    def _counts(self) -> tuple[int, ...]:
        logged = self.log.entries + len(self.log.unranked), len(self.failures.rows), len(self.errors.entries)
        looks = len(self.looks), len(self.interrupted.dumps)
        return *looks, *logged, len(self.answers), self.lists.texts, len(self.in_kernel), len(self.findings)

    def _sort(self, file: str, pasted: Pasted) -> None:
        if not any(map(pasted.text.__contains__, _SIGNS)):
            return  # at once: a folder may hold gigabytes of other text
        if _LIST.match(pasted.text):
            self.looks += _looks_of_json(file, pasted.text)
            return
        parsers: dict[tuple[str, Name], Parser] = {}
        place, part = file, NOBODY
        # A reader whose words are nowhere in the text has nothing to take: stacks are most of what is pasted.
        has_errors, has_counters, has_table = (
            any(map(pasted.text.__contains__, words)) for words in (errors.WORDS, watchdog.WORDS, (torchrun.ENDING,))
        )
        if has_errors:
            self.errors.begin(file, pasted.text)
            self.interrupted.begin(file, pasted.text)
        if has_counters:
            self.log.begin(file)
        ended = torchrun.ended_attempts(pasted.text, pasted.lines())
        begin = ended[-1] if ended else 0
        prefix = prefixes.of_text(file, pasted.text)
        split = prefix.split
        # Then an indented line can only be a frame of the open thread.
        stacks_alone = not (has_errors or has_counters or has_table or prefix.forms)
        self.notes += _attempts_note(file, ended)
        parser: Parser | None = None
        last_place: str | None = None
        last_writer = NOBODY
        for number, line in islice(enumerate(pasted.lines(), 1), begin, None):
            if stacks_alone and parser is not None and line[:4] == "    ":
                parser.feed(line)
                continue
            if line[:1] == "=":
                if header := _FILE.fullmatch(line):
                    place, part, parser, last_place = header[1], NOBODY, None, None
                    continue
                if section := naming.section(line):
                    part, parser, last_place = section, None, None
                    continue
            writer, rest = split(line)
            writer = part if writer is NOBODY else writer
            if writer.host and writer.rank is not None:
                self.hosts.setdefault(writer.rank, set()).add(writer.host)
            if has_counters:
                self.log.feed(number, writer, rest)
            if has_table:
                self.failures.feed(file, number, rest)
            if has_errors:
                self.errors.feed(number, writer, rest, line)
                self.interrupted.feed(writer, rest)
            if writer is not last_writer or place is not last_place:  # a writer mostly writes several lines
                last_place, last_writer = place, writer
                parser = parsers.get((place, writer))
                if parser is None and len(parsers) < MAX_WRITERS:
                    parser = parsers[place, writer] = Parser()
            if parser is not None:
                parser.feed(rest)
        self._close(parsers)

    def _close(self, parsers: Mapping[tuple[str, Name], Parser]) -> None:
        """Take what the parsers of one text hold at its end, each of one place and writer."""
        self.log.close()
        self.failures.close()
        for (place, writer), parser in parsers.items():
            parser.close()
            self.looks += [Look(dump, writer, place) for dump in parser.dumps if dump.stacked]


def _attempts_note(file: str, ended: Sequence[int]) -> list[str]:
    """Say which attempts of torchrun are not judged. `ended`: the lines at which they ended."""
    if not ended:
        return []
    lines = f"line{'s' if len(ended) > 1 else ''} {', '.join(map(str, ended[-MAX_NAMED:]))}"
    return [
        f"{file}: {len(ended) + 1} attempts of torchrun; those before the last failed at {lines}: only the last one is "
        f"judged, from line {ended[-1] + 1} on"
    ]


def _looks_of_json(file: str, text: str) -> list[Look]:
    try:
        return [Look(dump, NOBODY, file) for dump in of_json(text) if dump.stacked]
    except (ValueError, RecursionError):
        return []


def _read(file: Path | None) -> Pasted | Path:
    """The text of a file, or of the standard input; of a flight recorder dump a file that holds it unpacked."""
    try:
        if file is None:
            return decoded(*content(sys.stdin.buffer))
        with open(file, "rb") as stream:
            if _begins_dump(file, stream.peek(HEAD)):
                return file
            data, note = content(stream)
    except OSError as error:
        return Pasted("", f"{UNREAD}: {error.strerror or error}")
    if _begins_dump(bare(file), data) and not note:  # it was packed
        dump = exit_cleanup.temporary_folder("harness-dump-") / bare(file).name
        write_whole(dump, data)
        return dump
    return decoded(data, note)


def _begins_dump(file: Path, head: bytes) -> bool:
    return begins_dump(file, head) and not (ras.is_json(head) or ray_summary.is_json(head))
