"""Errors in a log that end a process, in the words of whoever writes them, and those that only echo another's end.

The words are those of torch 2.13, vLLM 0.32, SGLang 0.5.23 and Ray 2.60 as installed; of the kernel, Slurm and CUDA as
their documentation prints them; of NCCL as in its source and in reports.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from harness.triage.collect import redact
from harness.triage.echoes import OUT_OF_MEMORY, is_echo
from harness.triage.evidence import LogError
from harness.triage.pasted.naming import NOBODY, Name, of_path
from probes.limits import RANKS

MAX_ERRORS = 1_000  # of all files
MAX_TEXT = 300  # characters of a line that are kept
# Lines of a process after its error from which on it went on. What Python, torch and wandb print at an end is shorter.
WENT_ON = 20
READ_ON = "read the log from that line on"


@dataclass(frozen=True)
class Sign:
    """A line that says that a process failed.

    words: what the line contains.
    pattern: what it matches; its groups `pid` and `rank` name the process that failed.
    what: what happened, as the verb of a sentence.
    fix: what to do first.
    echo: whether it tells of another process's end.
    """

    words: str
    what: str
    fix: str = READ_ON
    pattern: re.Pattern[str] = re.compile("")
    echo: bool = False


# A line of NCCL_DEBUG=WARN: host:pid:thread [device] file:line NCCL WARN ...
_NCCL = re.compile(r"(?::(?P<pid>\d{1,10}):\d{1,10} \[\d{1,5}\] .{0,300})?NCCL WARN ")
SIGNS = (
    Sign(
        "CUDA out of memory", "ran out of GPU memory",
        "nvidia-smi --query-compute-apps=pid,used_memory --format=csv   # who holds it: an engine that did not sleep?",
    ),
    Sign(
        "ut of memory: Killed process", "was killed by the kernel for memory", OUT_OF_MEMORY,
        re.compile(r"Killed process (?P<pid>\d{1,10})"),
    ),
    Sign("oom_kill event", "was killed for memory by its cgroup's limit", "ask for more memory, or hold less"),
    Sign("oom-kill event", "was killed for memory by its cgroup's limit", "ask for more memory, or hold less"),
    Sign("killed due to the node running low on memory", "was killed by Ray because its node ran low on memory",
         "ray memory   # what holds it; RAY_memory_usage_threshold moves Ray's limit"),
    Sign("NVRM: Xid", "has a GPU that failed (Xid)", "dmesg | grep -i xid   # NVIDIA's list says what the number means",
         re.compile(r"NVRM: Xid \([^)]*\): \d+(?:, pid=(?P<pid>\d{1,10}))?")),
    Sign("No space left on device", "found a full disk or /dev/shm", "df -h /dev/shm /tmp ."),
    Sign("DUE TO TIME LIMIT", "was ended at the time limit of its job",
         "harness render slurm --time 12:00:00 -- COMMAND   # takes evidence before the limit"),
    Sign("NCCL WARN Cuda failure", "met a CUDA error in NCCL",
         "CUDA_LAUNCH_BLOCKING=1 COMMAND   # the line that it names is exact then", _NCCL),
    Sign("Duplicate GPU detected", "shares its GPU with another rank of the communicator",
         "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))   # before init_process_group", _NCCL),
    Sign("Bootstrap : no socket interface found", "has no network interface that NCCL_SOCKET_IFNAME allows",
         "ip -br addr   # then NCCL_SOCKET_IFNAME=NAME, the same network on every node", _NCCL),
    Sign("Got completion from peer", "lost an RDMA connection to a peer", echo=True, pattern=_NCCL),
    Sign("Got completion with error", "lost an RDMA connection to a peer", echo=True, pattern=_NCCL),
    Sign("onnection closed by remote peer", "lost a connection to a peer", echo=True, pattern=_NCCL),
    Sign("CUDA error: ", "met a CUDA error", "CUDA_LAUNCH_BLOCKING=1 COMMAND   # the line that it names is exact then"),
    Sign("Segmentation fault", "ended with a segmentation fault", "python -X faulthandler ...   # prints where"),
    Sign("Worker proc ", "lost a worker of vLLM", "read the worker's own lines above it",
         re.compile(r"Worker proc \S+ died unexpectedly")),
    Sign(" watchdog timeout (", "made no progress within SGLang's watchdog time",
         "harness triage PID   # of the scheduler, while it stands"),
    Sign("No available shared memory broadcast block found", "waits for a worker of vLLM that does not read its orders",
         "harness triage PID   # of the engine core, while it stands", echo=True),
    Sign("RPC call to ", "had no answer from a worker of vLLM", echo=True,
         pattern=re.compile(r"RPC call to \w+ timed out")),
    Sign("EngineDeadError", "found its engine dead", echo=True),
    Sign("ChildFailedError", "found a rank dead", echo=True),
    Sign("ActorDiedError", "found an actor dead", echo=True),
    Sign("ActorUnavailableError", "could not reach an actor", echo=True),
    Sign("WorkerCrashedError", "found a worker of Ray dead", echo=True),
    Sign("worker died or was killed while executing a task", "found a worker of Ray dead", echo=True),
)  # fmt: skip
# What precedes the traceback of an engine's process: where the error was raised.
PLACES = {
    "WorkerProc hit an exception": "in a worker of vLLM",
    "EngineCore encountered a fatal error": "in vLLM's engine core",
    "DataParallelController hit an exception": "in SGLang's controller",
    "DetokenizerManager hit an exception": "in SGLang's detokenizer",
    "TokenizerManager hit an exception": "in SGLang's tokenizer",
    "Scheduler hit an exception": "in SGLang's scheduler",
}
WATCHDOG = "Watchdog caught collective operation timeout"
TRACEBACK = "Traceback (most recent call last):"
WORDS = (*(sign.words for sign in SIGNS), TRACEBACK)
# What vLLM, SGLang and Python's logging print before a line.
_LOGGED = re.compile(
    r"(?:(?:ERROR|CRITICAL|WARNING|INFO) [\d-]{5,10} [\d:.,]{8,15} \[[\w./-]{1,100}:\d{1,6}\] ?"
    r"|\[\d{4}-\d\d-\d\d[ T][\d:.,]{8,15}[^\]]{0,40}\] ?)"
)
_PARALLEL = re.compile(r"\[[\d-]{10} [\d:]{8} ((?:[DTPE]P\d{1,5} ?)+)\]")  # SGLang: which of its schedulers
# What Ray prints above the traceback of a task: where the task ran.
_RAY_TASK = re.compile(
    r"ray::(?P<role>[\w<>-]{1,100})[\w.<>]{0,200}\(\) \(pid=(?P<pid>\d{1,10}), ip=(?P<host>[\w.:-]{1,100})"
)
# A date and a time: of Python's logging and torchrun's table; of vLLM; of glog, which torch and torchrun write.
_STAMP = re.compile(
    r"(?:\d{4}-(\d\d)-(\d\d)[ T_]|\b(\d\d)-(\d\d) |\[?[IWEF](\d{1,2})(\d\d) )(\d\d):(\d\d):(\d\d(?:[.,]\d{1,9})?)"
)
_STAMP_WITHIN = 60  # characters at the beginning of a line
_GLOG = re.compile(r"\[?[IWEF]\d{3,4} \d\d:")
_RAISED = re.compile(
    r"(?P<type>(?:[A-Za-z_]\w*\.){0,10}[A-Z]\w*(?:Error|Exception|Fault|Timeout))(?::\s*(?P<text>.*))?"
)


@dataclass
class Errors:
    """Takes the lines of a file, in order. `entries`: the errors of all files."""

    entries: list[LogError] = field(default_factory=list)
    _signs: Sequence[Sign] = ()
    _file: str = ""
    _of_file: Name = NOBODY
    _tracebacks: dict[Name, Name] = field(default_factory=dict)  # writer whose traceback goes on -> whose error it is
    _places: dict[Name, str] = field(default_factory=dict)
    _stamps: dict[Name, tuple[int, int, float] | None] = field(default_factory=dict)  # of a writer's previous line
    _later: dict[Name, int] = field(default_factory=dict)  # writer -> lines of work after its error
    _echoed: bool = False

    def begin(self, file: str, text: str) -> None:
        """Begin a file. Only signs that its text has anywhere are looked for in its lines."""
        self._signs = [sign for sign in SIGNS if sign.words in text]
        self._file = file
        self._of_file = of_path(file)
        self._echoed = False
        for table in (self._tracebacks, self._places, self._stamps, self._later):
            table.clear()

    def feed(self, number: int, writer: Name, line: str) -> None:
        """Take a line. `number`: from 1 in its file; `writer`: whom its prefix names."""
        if len(self.entries) >= MAX_ERRORS:
            return
        stamp = stamp_of(line)
        traced = writer in self._tracebacks
        before = self._stamps.get(writer)
        self._echoed |= WATCHDOG in line
        self._stamps[writer] = stamp or (before if traced or TRACEBACK in line else None)
        if place := next((place for words, place in PLACES.items() if words in line), ""):
            parallel = _PARALLEL.match(line)
            self._places[writer] = f"{place} ({parallel[1]})" if parallel else place
        for sign in self._signs:
            if sign.words in line and (match := sign.pattern.search(line)):
                pid = int(match.groupdict().get("pid") or 0)
                self._add(number, writer, line, sign, pid)
                return
        words = _LOGGED.sub("", line, count=1)
        if TRACEBACK in words:
            self._tracebacks[writer] = writer
        elif traced and (task := _RAY_TASK.search(words)):
            self._tracebacks[writer] = Name(None, task["host"], int(task["pid"]), task["role"])
        elif traced and words and not words[0].isspace() and (raised := _RAISED.fullmatch(words.strip())):
            sign = Sign("", f"ended with {raised['type'].rsplit('.', 1)[-1]}", echo=is_echo(words))
            self._add(number, writer, words, sign, message=raised["text"] or "")
        elif not traced and words.strip() and not words[0].isspace() and not _GLOG.match(words):
            self._goes_on(writer)

    def _add(self, number: int, writer: Name, line: str, sign: Sign, pid: int = 0, message: str = "") -> None:
        name = self._tracebacks.pop(writer, writer)
        name = self._of_file if name is NOBODY else name
        place = self._places.pop(writer, "")
        what = f"{sign.what} {place}".strip() + (f": {message}" if message else "")
        self._echoed |= sign.echo
        self._later[writer] = 0
        self.entries.append(
            LogError(
                file=self._file,
                line=number,
                what=redact.text(what[:MAX_TEXT]),
                text=redact.text(line.strip()[:MAX_TEXT]),
                rank=name.rank if name.rank is None or name.rank <= RANKS else None,
                host=name.host,
                pid=pid or name.pid,
                role=name.role,
                fix=sign.fix,
                echo=sign.echo,
                at=self._stamps.get(writer),
            )
        )

    def _goes_on(self, writer: Name) -> None:
        """Count a line of work. What is written once a peer's end has shown proves nothing."""
        if self._echoed or writer not in self._later:
            return
        self._later[writer] += 1
        if self._later[writer] == WENT_ON:
            name = self._of_file if writer is NOBODY else writer
            identity = name.rank, name.host, name.pid, name.role
            for number, error in enumerate(self.entries):
                if error.file == self._file and (error.rank, error.host, error.pid, error.role) == identity:
                    self.entries[number] = replace(error, survived=True)


def stamp_of(line: str) -> tuple[int, int, float] | None:
    """The time at the beginning of a line: month, day and seconds, without the year, which not every writer prints."""
    if not (stamp := _STAMP.search(line[:_STAMP_WITHIN])):
        return None
    month, day = (int(number) for number in stamp.groups()[:6] if number is not None)
    hours, minutes, seconds = stamp.groups()[6:]
    return month, day, int(hours) * 3600 + int(minutes) * 60 + float(seconds.replace(",", "."))
