"""Reads where ranks stood when Ctrl-C ended them: the traceback of each KeyboardInterrupt is the stack of its main
thread.

Whoever stops a job that hangs gets them all at one moment. A traceback of which no prefix and no file names the process
is left out: lines of several processes may mix in it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from harness.triage.collect.stacks import MAX_FRAMES
from harness.triage.evidence import Frame, Thread
from harness.triage.pasted.dumps import MAIN_THREAD, Dump
from harness.triage.pasted.errors import LOGGED, TRACEBACK
from harness.triage.pasted.formats import FAULTHANDLER
from harness.triage.pasted.naming import NOBODY, Name, of_path

SIGN = "KeyboardInterrupt"
_ENDS = re.compile(rf"{SIGN}(?::.*)?")
# What Python writes between tracebacks of one end: no line of work.
_BETWEEN = re.compile(
    r"During handling of the above exception|The above exception was the direct cause|Exception ignored "
    r"|Error in atexit|\^C"
)


@dataclass
class Interrupts:
    """Takes the lines of files, in order. `dumps`: of each writer where it stood when it was interrupted.

    Of several interrupts of one end the first counts, since the others meet the clean-up; of several runs the last.
    """

    dumps: dict[tuple[str, Name], Dump] = field(default_factory=dict)
    _file: str = ""
    _is_there: bool = False  # whether the file has an interrupt
    _names: bool = False  # whether the file names a rank
    _frames: dict[Name, list[Frame]] = field(default_factory=dict)  # writer -> of its open traceback, innermost last
    _ended: set[Name] = field(default_factory=set)  # writers that did no work since they were interrupted

    def begin(self, file: str, text: str) -> None:
        """Begin a file."""
        self._is_there = SIGN in text
        self._file, self._names = file, of_path(file).rank is not None
        self._frames.clear()
        self._ended.clear()

    def feed(self, writer: Name, line: str) -> None:
        """Take a line. `writer`: whom its prefix names."""
        if not self._is_there:
            return
        if writer.rank is None and not writer.pid and not (self._names and writer is NOBODY):
            return
        words = LOGGED.sub("", line, count=1)
        if TRACEBACK in words:
            self._frames[writer] = []
        elif not words.strip() or words[0].isspace():
            self._take_frame(writer, words.strip())
        elif _ENDS.fullmatch(words.strip()):
            self._take_end(writer)
        else:
            self._frames.pop(writer, None)
            if not _BETWEEN.match(words):
                self._ended.discard(writer)

    def _take_frame(self, writer: Name, words: str) -> None:
        frames = self._frames.get(writer)
        if frames is not None and (frame := FAULTHANDLER.frame(words)) is not None:
            frames.append(frame)
            del frames[:-MAX_FRAMES]

    def _take_end(self, writer: Name) -> None:
        frames = self._frames.pop(writer, [])
        if frames and writer not in self._ended:
            thread = Thread(MAIN_THREAD, 0, frames=tuple(reversed(frames)), main=True)
            self.dumps[self._file, writer] = Dump(writer.pid, "", (thread,))
        self._ended.add(writer)
