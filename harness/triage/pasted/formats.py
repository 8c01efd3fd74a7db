"""How each tool prints threads and frames: py-spy, faulthandler, pystack, gdb with or without Python frames, and
eu-stack.

`ray stack` prints what py-spy does. gdb was run here with CPython 3.11's `py-bt` and plain `bt`, pystack with 1.7.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from harness.triage.collect.stacks import MAX_NAME
from harness.triage.evidence import Frame

MAX_FILE = 1_000  # characters of a file's name in a frame
_TID = (1 << 62) - 1  # largest id of a thread that evidence holds; faulthandler prints 64 bits of an address


@dataclass(frozen=True)
class ThreadHeader:
    """The line that begins a thread.

    format: the tool's.
    number: what identifies the thread within one dump, as printed.
    tid: the id of the thread; 0 where the tool prints none.
    first: whether the tool says that it is the main thread.
    """

    format: Format
    number: str
    tid: int
    name: str = ""
    active: bool = False
    gil: bool = False
    first: bool = False


@dataclass(frozen=True)
class Format:
    """The lines of one tool.

    thread: matches the first line of a thread.
    header: the thread that such a line begins.
    frames: patterns with the groups `function`, `file`, `line` and, of compiled code, `library`.
    between: lines between frames that say nothing.
    innermost_last: whether the outermost frame is printed first.
    system_ids: whether `tid` is the system's id of a thread.
    """

    thread: re.Pattern[str]
    header: Callable[[re.Match[str]], ThreadHeader]
    frames: Sequence[re.Pattern[str]]
    between: re.Pattern[str]
    innermost_last: bool = False
    system_ids: bool = True

    def frame(self, words: str) -> Frame | None:
        """The frame that a line without its indentation shows; None if it shows none."""
        return frame_of(self.frames, words)


@lru_cache(maxsize=4_096)  # ranks of one program stand at the same lines
def frame_of(patterns: Sequence[re.Pattern[str]], words: str) -> Frame | None:
    """The frame that one of these patterns finds in a line without its indentation; None without one."""
    for pattern in patterns:
        if match := pattern.fullmatch(words):
            groups = match.groupdict()
            library = groups.get("library") or ""
            file = library or groups.get("file") or "native"
            number = "" if library else groups.get("line") or ""  # a line of source, not of the library
            line = int(number) if number.isdigit() else 0
            return Frame(groups["function"][:MAX_NAME], file[:MAX_FILE], line)
    return None


def begun(words: str) -> ThreadHeader | None:
    """The thread that a line without its indentation begins; None if it begins none."""
    if not words.startswith(BEGINNINGS):
        return None
    for each in FORMATS:
        if match := each.thread.fullmatch(words):
            return each.header(match)
    return None


def begun_without_header(words: str) -> ThreadHeader | None:
    """The thread whose frame 0 a line shows, as `bt` of gdb prints it without a header; None for any other line."""
    if not words.startswith("#0 ") or not _FIRST_FRAME.match(words):
        return None
    return ThreadHeader(GDB if GDB.frame(words) else EU_STACK, number="", tid=0)


def _of_py_spy(match: re.Match[str]) -> ThreadHeader:
    number, state, more, name = match.groups()
    tid = 0 if number.startswith("0x") else int(number)
    return ThreadHeader(PY_SPY, number, tid, name or "", active=state == "active", gil="gil" in more)


def _of_faulthandler(match: re.Match[str]) -> ThreadHeader:
    return ThreadHeader(FAULTHANDLER, match[1], int(match[1], 16) & _TID, match[2] or "")


def _of_pystack(match: re.Match[str]) -> ThreadHeader:
    return ThreadHeader(PYSTACK, match[1], int(match[1]), gil="Has the GIL" in match[2])


def _of_gdb(match: re.Match[str]) -> ThreadHeader:
    return ThreadHeader(GDB, match[1], int(match[2]), first=match[1] == "1")


def _of_eu_stack(match: re.Match[str]) -> ThreadHeader:
    return ThreadHeader(EU_STACK, match[1], int(match[1]))


_NUMBER = r"\d{1,9}"
_PYTHON_FRAME = re.compile(rf'File "(?P<file>[^"]*)", line (?P<line>{_NUMBER}|\?\?\?),? in (?P<function>.+)')
PY_SPY = Format(
    thread=re.compile(r'Thread (0x[0-9A-Fa-f]{1,16}|\d{1,10}) \((active|idle)([+\w]*)\)(?:: "(.*)")?'),
    header=_of_py_spy,
    frames=(re.compile(rf"(?P<function>.+) \((?P<file>[^()]*?)(?::(?P<line>{_NUMBER}))?\)"),),
    between=re.compile(r"(Arguments|Locals):$|[A-Za-z_.]\w*: "),
)
FAULTHANDLER = Format(
    thread=re.compile(r"(?:Current thread|Thread) 0x([0-9A-Fa-f]{1,16})(?: \[(.*)\])? \(most recent call first\):"),
    header=_of_faulthandler,
    frames=(_PYTHON_FRAME,),
    between=re.compile(r"\.\.\.$|<no Python frame>$"),
    system_ids=False,
)
PYSTACK = Format(
    thread=re.compile(r"Traceback for thread (\d{1,10}) \(.*?\) \[(.*?)\] \(most recent call last\):"),
    header=_of_pystack,
    frames=(
        re.compile(rf"\(Python\) {_PYTHON_FRAME.pattern}"),
        re.compile(
            rf'\((?:C|C\+\+|Cython)\) File "(?P<file>[^"]*)", line (?P<line>{_NUMBER}), in (?P<function>.+?)'
            r"(?: \(inlined\))?(?: \((?P<library>[^()]+)\))?"
        ),
    ),
    between=re.compile(r"(?!)"),
    innermost_last=True,
)
GDB = Format(
    thread=re.compile(rf'Thread ({_NUMBER}) \(Thread 0x[0-9a-f]+ \(LWP (\d{{1,10}})\)(?: ".*")?(?: \(.*\))?\):'),
    header=_of_gdb,
    frames=(
        _PYTHON_FRAME,
        # What python-gdb shows in the arguments of the interpreter's own frame, up to Python 3.10.
        re.compile(
            rf"#{_NUMBER} .*Frame 0x[0-9a-f]+, for file (?P<file>.+?), line (?P<line>{_NUMBER}), "
            r"in (?P<function>\S+) .*"
        ),
        re.compile(
            rf"#{_NUMBER} +(?:0x[0-9a-f]+ in )?(?P<function>.+?) \(.*\)"
            rf"(?: at (?P<file>\S+?):(?P<line>{_NUMBER})| from (?P<library>\S+))?"
        ),
    ),
    # What python-gdb says where there is no frame of Python (its `print_summary` and `is_other_python_frame`).
    between=re.compile(r"Traceback \(most recent call first\):$|[(<]|Waiting for the GIL$|Garbage-collecting$"),
)
# elfutils 0.192, src/stack.c: no arguments, the library behind a dash with -m, lines of source below with -s.
EU_STACK = Format(
    thread=re.compile(r"TID (\d{1,10}):"),
    header=_of_eu_stack,
    frames=(
        re.compile(
            # The look-ahead keeps a name whole, so that no text is tried at more than one place.
            rf"#{_NUMBER} +(?:0x[0-9a-f]{{1,16}} +)?(?:- 1 +)?"
            r"(?P<function>[A-Za-z_~][\w:~@.$]{0,300}(?![\w:~@.$])(?:[(<][^\[]{0,300}?)?|<\w{1,40}>)"
            r"(?: - (?P<library>/[^ ]{1,500}|[^ /]{1,200}\.so[.\d]{0,20}))?(?: \[[0-9a-f]{1,64}\]\S{0,40})?"
        ),
    ),
    between=re.compile(r"/\S{1,500}:\d{1,9}(?::\d{1,9})?$"),
)
FORMATS = (PY_SPY, FAULTHANDLER, PYSTACK, GDB, EU_STACK)
EU_PROCESS = re.compile(r"PID (\d{1,10}) - (?:process|core)")  # eu-stack, above the threads of a process
BEGINNINGS = ("Thread ", "Current thread ", "Traceback for thread ", "TID ")
_FIRST_FRAME = re.compile(r"#0 {1,4}\S")
