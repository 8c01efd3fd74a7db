"""Errors in a log that end a process, in the words of whoever writes them, and those that only echo another's end.

The words are those of torch 2.13, vLLM 0.32, SGLang 0.5.23 and Ray 2.60 as installed; of the kernel, Slurm and CUDA as
their documentation prints them; of NCCL as in its source and in reports; of HCCL and DeepSpeed as in reports.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from harness.triage.collect import redact
from harness.triage.echoes import HOST_MEMORY, MORE_MEMORY, OUT_OF_MEMORY, is_echo
from harness.triage.evidence import LogError
from harness.triage.pasted.memory_errors import FRAME, Place, holders, phase_of
from harness.triage.pasted.naming import NOBODY, Name, of_path, split
from harness.triage.pasted.text import MAX_TEXT, cut
from probes import limits
from probes.limits import RANKS
from scenarios.engines import registry
from scenarios.engines.last_words import STEPS, steps_in

MAX_ERRORS = 1_000  # of all files
MAX_MEMORY = 1_000  # characters of a line in which the process that Ray killed is looked for
# Lines of a process after its error from which on it went on, also if they tell of no step. What Python, torch and
# wandb print at an end is shorter.
WENT_ON = 20
# By an error's own line, or the next one of its writer, its process caught it and does the same anew, or leaves it out.
# After "try", "by" or "please" such words are advice, as in torch's and vLLM's own messages.
_TRIES_AGAIN = re.compile(
    r"(?i)(?<!try )(?<!by )(?<!please )(?<!consider )\b(?:retrying|will retry"
    r"|(?:now )?trying (?:again|with|batch|an?|\d)|skipping|falling back|attempting to recover"
    r"|(?:reducing|decreasing|halving|lowering) (?:the |micro[- ]?)?batch)"
)
READ_ON = "read the log from that line on"


class Kind(Enum):
    """Whose words a line is.

    OWN: of the process that failed. REPORT: of whoever found it dead, or ended it; once a peer's timeout has shown, it
    may be a consequence. MIXED: of a call that fails by its own fault or by its peer's, which the words tell. ECHO: of
    a process that another one's end or silence stopped.
    """

    OWN = "own"
    REPORT = "report"
    MIXED = "mixed"
    ECHO = "echo"


@dataclass(frozen=True)
class Sign:
    """A line that says that a process failed.

    words: what the line contains.
    pattern: what it matches; its groups `pid`, `rank`, `host` and `role` name the process that failed, `detail` adds to
        what happened, and `stall` is for how many seconds the process had stood still. `missing` are the ranks of other
        processes than the one that writes, which then has an error of its own.
    what: what happened, as the verb of a sentence.
    fix: what to do first.
    kind: whose words the line is.
    of_pod: whether it is of the pod that a line of `kubectl describe` names above it.
    of_memory: whether the phase of its traceback and what each process held are told.
    while_waiting: whether it is written during a wait, which is over once its process does work again.
    of_kernel: whether the kernel writes it, to a log that may have the host and the time before it.
    """

    words: str
    what: str
    fix: str = READ_ON
    pattern: re.Pattern[str] = re.compile("")
    kind: Kind = Kind.OWN
    of_pod: bool = False
    of_memory: bool = False
    while_waiting: bool = False
    of_kernel: bool = False

    @property
    def echo(self) -> bool:
        """Whether it only tells what another process's end or silence did."""
        return self.kind is Kind.ECHO


# A line of NCCL_DEBUG=WARN: host:pid:thread [device] file:line NCCL WARN ...
_OF_NCCL = r"(?::(?P<pid>\d{1,10}):\d{1,10} \[\d{1,5}\] .{0,300})?NCCL WARN "
_NCCL = re.compile(_OF_NCCL)
# The global rank is that in the default group, whose number is 0.
_IN_GROUP = r"(?:\[PG (?:ID )?0 [^\]]{0,120}Rank (?P<rank>\d{1,7})\].{0,200})?"
_KILLED_BY_RAY = "killed due to the node running low on memory"
_CANCELLED = r"\*\*\* (?P<role>(?:JOB|STEP) [\w.+-]{1,40}) ON \S{1,100} CANCELLED AT "
_OF_SRUN = r"srun: error: (?P<host>[\w.-]{1,100}): (?P<role>tasks? \d[\d,-]{0,100}): "
OF_SLURM = ("slurmstepd:", "srun:")  # beginnings of lines that Slurm itself writes
DEFUNCT = "<defunct>"  # in a list of processes, whose order says nothing
_EXACT = "CUDA_LAUNCH_BLOCKING=1 COMMAND   # the line that it names is exact then"
_SIGNAL = "gdb PROGRAM CORE -ex bt   # where it was in C"
_SYSTEM_ERROR = r"(?:\[Errno \d|[Ee]rror|[Ff]ailed).{0,200}%s(?! [a-z])|(?:^|: )%s(?=\W{0,3}(?:$|: ))"
_CUDA_MEMORY = (
    "nvidia-smi --query-compute-apps=pid,used_memory --format=csv   # who holds it: an engine that did not sleep?"
)
# torch's allocator; CUDA's runtime and driver; libraries that allocate by themselves, and tell only by their status.
_OUT_OF_CUDA_MEMORY = (
    "CUDA out of memory", "CUDA error: out of memory", "CUDA driver error: out of memory", "cudaErrorMemoryAllocation",
    "CUDA_ERROR_OUT_OF_MEMORY", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED",
    "CUSOLVER_STATUS_ALLOC_FAILED", "CUSPARSE_STATUS_ALLOC_FAILED",
)  # fmt: skip
_SENDER = "sacct -j JOB -o JobID,State%30,End   # who ended the job: a scheduler, a limit of time, a person"
_HIP_MEMORY = "rocm-smi --showpids   # who holds it: an engine that did not sleep?"
_EVICTED = "kubectl describe node NODE   # which resource was low, and who used it"
_POD = re.compile(r"Name: {2,}(?P<pod>[\w.-]{1,253})")
_OF_A_JOB = rf"python|pt_|ray::|torchrun|(?i:{'|'.join(registry.BUILT_IN)})"  # names of its tasks begin so
_OTHER_TASK = re.compile(rf"Killed process \d{{1,10}} \((?!{_OF_A_JOB})")
SIGNS = (
    *(Sign(words, "ran out of GPU memory", _CUDA_MEMORY, of_memory=True) for words in _OUT_OF_CUDA_MEMORY),
    Sign("NCCL WARN Cuda failure", "ran out of GPU memory", _CUDA_MEMORY,
         re.compile(_OF_NCCL + "Cuda failure .{0,20}out of memory")),
    *(Sign(words, "ran out of GPU memory", _HIP_MEMORY, of_memory=True)
      for words in ("HIP out of memory", "HIP error: out of memory", "hipErrorOutOfMemory")),
    Sign("XPU out of memory", "ran out of GPU memory", "xpu-smi ps   # who holds it", of_memory=True),
    Sign("NPU out of memory", "ran out of NPU memory", "npu-smi info   # who holds it", of_memory=True),
    Sign(
        "ut of memory: Killed process", "was killed by the kernel for memory", MORE_MEMORY,
        re.compile(r"Killed process (?P<pid>\d{1,10})"), of_kernel=True,
    ),
    Sign("oom_kill event", "was killed for memory by its cgroup's limit", MORE_MEMORY),
    Sign("oom-kill event", "was killed for memory by its cgroup's limit", MORE_MEMORY),
    Sign(_KILLED_BY_RAY, "was killed by Ray because its node ran low on memory",
         "ray memory   # what holds it; RAY_memory_usage_threshold moves Ray's limit"),
    Sign("NVRM: Xid", "met a GPU error (Xid)",
         "nvidia-smi -q   # and look the number up in NVIDIA's list of Xid errors",
         re.compile(r"NVRM: Xid \([^)]*\): \d+(?:, pid=(?P<pid>\d{1,10}))?"), of_kernel=True),
    Sign("oom_kill ", "was killed for memory by its cgroup's limit", "ask for more memory, or hold less",
         re.compile(r"^oom_kill (?P<detail>[1-9]\d{0,8})$")),  # a line of memory.events
    Sign("OOMKilled", "was killed for memory by its container's limit (OOMKilled)",
         "kubectl describe pod POD   # limits.memory: ask for more, or hold less",
         re.compile(r"(?:^(?P<role>[\w.-]{1,253}) +\d{1,3}/\d{1,3} +|Reason: +)OOMKilled"), of_pod=True),
    Sign("Evicted", "was evicted by Kubernetes", _EVICTED,
         re.compile(r"(?:^(?P<role>[\w.-]{1,253}) +\d{1,3}/\d{1,3} +|Reason: +)Evicted\b"), of_pod=True),
    Sign(" was low on resource: ", "was evicted by Kubernetes",
         _EVICTED,
         re.compile(r"(?P<detail>low on resource: [\w-]{1,40})"), of_pod=True),
    Sign("Exit Code:", "was killed by SIGKILL (exit code 137)", OUT_OF_MEMORY, re.compile(r"Exit Code: +137$"),
         Kind.REPORT, of_pod=True),
    Sign("PBS: job killed: ", "was killed by PBS for its memory", "qsub -l mem=SIZE SCRIPT   # ask for more memory",
         re.compile(r"PBS: (?P<role>job) killed: (?P<detail>p?v?mem \S{1,20} exceeded limit \S{1,20})")),
    Sign("PBS: job killed: ", "was ended by PBS at the limit of its job", "qsub -l walltime=HH:MM:SS SCRIPT",
         re.compile(r"PBS: (?P<role>job) killed: (?P<detail>(?:walltime|cput|ncpus) \S{1,20} exceeded limit \S{1,20})"),
         Kind.ECHO),
    Sign("TERM_MEMLIMIT", "was killed by LSF for its memory", "bsub -M SIZE SCRIPT   # more memory, or hold less",
         re.compile(r"TERM_MEMLIMIT: (?P<role>job) killed")),
    Sign("TERM_RUNLIMIT", "was ended by LSF at the time limit of its job", "bsub -W HH:MM SCRIPT",
         re.compile(r"TERM_RUNLIMIT: (?P<role>job) killed"), Kind.ECHO),
    Sign("No space left on device", "found a full disk or /dev/shm", "df -h /dev/shm /tmp ."),
    Sign("Disk quota exceeded", "reached its disk quota", "quota -s; df -h .   # of the file system of that path",
         re.compile(_SYSTEM_ERROR % (("Disk quota exceeded",) * 2))),
    Sign("DUE TO TIME LIMIT", "was ended at the time limit of its job",
         "harness render slurm --time 12:00:00 -- COMMAND   # takes evidence before the limit", kind=Kind.ECHO),
    Sign("DUE TO NODE FAILURE", "lost a node, as Slurm says",
         "sinfo -R; sacct -j JOB -o JobID,State,NodeList   # which node, and why", re.compile(_CANCELLED)),
    Sign("DUE TO PREEMPTION", "was preempted by another job of Slurm",
         "sbatch --requeue SCRIPT   # and go on from the last checkpoint", re.compile(_CANCELLED), Kind.ECHO),
    Sign(" CANCELLED AT ", "was cancelled in Slurm",
         "sacct -j JOB -o JobID,State%30,ExitCode,End   # CANCELLED by whom", re.compile(_CANCELLED), Kind.ECHO),
    Sign("NCCL WARN Cuda failure", "met a CUDA error in NCCL",
         _EXACT, _NCCL),
    Sign("Duplicate GPU detected", "shares its GPU with another rank of the communicator",
         "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))   # before init_process_group", _NCCL),
    Sign("Bootstrap : no socket interface found", "has no network interface that NCCL_SOCKET_IFNAME allows",
         "ip -br addr   # then NCCL_SOCKET_IFNAME=NAME, the same network on every node", _NCCL),
    Sign("Got completion from peer", "lost an RDMA connection to a peer", kind=Kind.ECHO, pattern=_NCCL),
    Sign("Got completion with error", "lost an RDMA connection to a peer", kind=Kind.ECHO, pattern=_NCCL),
    Sign("onnection closed by remote peer", "lost a connection to a peer", kind=Kind.ECHO, pattern=_NCCL),
    Sign("attaching to shared memory segment", "could not attach a shared-memory segment of NCCL",
         "df -h /dev/shm; ipcs -lm   # and the lines of its neighbours, which name the segment",
         re.compile(_OF_NCCL + r"Error while attaching to shared memory segment (?P<detail>.{1,80})")),
    Sign("NCCL WARN Call to ", "had a system call of NCCL fail", kind=Kind.MIXED,
         pattern=re.compile(_OF_NCCL + r"Call to (?P<detail>\w{1,40} .{0,40}failed.{0,80})")),
    Sign("DefaultCPUAllocator: ", "could not allocate host memory", HOST_MEMORY,
         re.compile(r"DefaultCPUAllocator: (?:can't allocate|not enough) memory(?:: (?P<detail>you tried to allocate "
                    r"\d{1,20} bytes))?"), of_memory=True),
    Sign("Cannot allocate memory", "could not allocate host memory", HOST_MEMORY,
         re.compile(_SYSTEM_ERROR % (("Cannot allocate memory",) * 2)), of_memory=True),
    Sign("Too many open files", "has too many open files", "ulimit -n 65536 && COMMAND   # ls -l /proc/PID/fd: which",
         re.compile(_SYSTEM_ERROR % (("Too many open files",) * 2))),
    Sign("uncorrectable ECC error", "met an uncorrectable ECC error of its GPU",
         "nvidia-smi -q -d ECC,ROW_REMAPPER   # then drain the node: the memory of that GPU is faulty",
         re.compile(r"(?<![ =:]0 )uncorrectable ECC error(?!s?: 0)")),
    Sign("CUDA error: ", "met a CUDA error", _EXACT, re.compile(r"CUDA error: (?P<detail>.{1,80})")),
    Sign("Node failure on ", "failed, as Slurm says", "sinfo -R; scontrol show node NODE   # why",
         re.compile(r"error: (?P<role>Node) failure on (?P<host>[\w.,\[\]-]{1,200})")),
    # Before the words of a signal alone: it names the node and the task. A hangup or a SIGTERM may be of Slurm itself.
    Sign(": Out Of Memory", "was killed for memory, as Slurm says", MORE_MEMORY, kind=Kind.REPORT,
         pattern=re.compile(_OF_SRUN + "Out Of Memory")),
    Sign("srun: error: ", "failed, as Slurm says", _SIGNAL, re.compile(
         _OF_SRUN + "(?P<detail>Segmentation fault|Floating point exception|Illegal instruction)"),
         Kind.REPORT),
    Sign("srun: error: ", "failed, as Slurm says", kind=Kind.REPORT, pattern=re.compile(
         _OF_SRUN + r"(?P<detail>Exited with exit code [1-9]\d{0,2}|Killed|Aborted|Bus error)")),
    Sign("Segmentation fault", "ended with a segmentation fault", _SIGNAL),
    Sign("Fatal Python error: Bus error", "ended with a bus error (SIGBUS)",
         "df -h /dev/shm .; dmesg | tail   # a page of a mapped file could not be read"),
    Sign("** SIGSEGV received at", "ended with a segmentation fault", _SIGNAL),
    Sign("** SIGBUS received at", "ended with a bus error (SIGBUS)", _SIGNAL),
    Sign("(): double free detected", "ended with a corrupt heap (double free)", _SIGNAL),
    Sign("double free or corruption", "ended with a corrupt heap (double free)", _SIGNAL),
    Sign("(): invalid pointer", "ended with a corrupt heap (invalid pointer)", _SIGNAL,
         re.compile(r"(?:free|realloc|munmap_chunk)\(\): invalid pointer")),
    Sign("** SIGABRT received at", "was aborted (SIGABRT)", kind=Kind.REPORT),
    Sign("Fatal Python error: Aborted", "was aborted (SIGABRT)", kind=Kind.REPORT),
    Sign("is killed by signal: Killed", "died, a worker of a DataLoader", OUT_OF_MEMORY,
         re.compile(r"DataLoader worker \(pid (?P<pid>\d{1,10})\) is (?P<detail>killed by signal: Killed)")),
    Sign("DataLoader worker (pid", "died, a worker of a DataLoader", "df -h /dev/shm   # whether its batches fit there",
         re.compile(r"DataLoader worker \(pid(?:\(s\))? (?P<pid>\d{1,10})[\d, ]{0,200}\) (?:is |exited )"
                    r"(?P<detail>[\w :]{1,60})")),
    Sign("unexpectedly failed with ", "was found dead by SGLang", kind=Kind.REPORT,
         pattern=re.compile(r"failed with (?:an )?(?P<detail>exit ?code[ =]-?\d{1,5})\. pid=(?P<pid>\d{1,10})")),
    Sign("Subprocess ", "was found dead by SGLang", kind=Kind.REPORT,
         pattern=re.compile(r"Subprocess (?P<role>[\w:-]{1,60}) \(pid=(?P<pid>\d{1,10})\) crashed with "
                            r"(?P<detail>exit code -?\d{1,5})")),
    Sign("scheduler died during initialization", "died while it started, as SGLang found", kind=Kind.REPORT,
         pattern=re.compile(r"Rank (?P<rank>\d{1,7}) (?P<role>scheduler) died during initialization "
                            r"\((?P<detail>exit code: -?\d{1,5})")),
    Sign("Received sigquit from a child process", "was told that a child of it failed", kind=Kind.ECHO),
    Sign(" scheduler is dead", "was found dead by SGLang", kind=Kind.REPORT,
         pattern=re.compile(r"Rank (?P<rank>\d{1,7}) (?P<role>scheduler) is dead")),
    Sign(" died from signal ", "was found dead by its launcher", kind=Kind.REPORT,
         pattern=re.compile(r"(?P<host>[\w.-]{1,100}): rank (?P<rank>\d{1,7}) died from (?P<detail>signal \d{1,3})")),
    Sign("Worker exit type: ", "was found dead by Ray", "ls /tmp/ray/session_latest/logs   # its own log: worker-ID",
         re.compile(r"Worker IP address: (?P<host>[\w.:-]{1,100}) .{0,200}?Worker PID: (?P<pid>\d{1,10}) "
                    r"Worker exit type: (?P<detail>\w{1,40})"), Kind.REPORT),
    Sign(DEFUNCT, "has ended and is defunct",
         "tail -n 200 LOG   # of these processes: why they ended is in no process list",
         re.compile(r"^\S{1,40} +(?P<pid>\d{1,10}) .{10,300}?\[?(?P<role>[\w:./-]{1,40})\]? <defunct>"), Kind.REPORT),
    Sign("watchdog got stuck for ", "was ended by its heartbeat monitor: its watchdog stood in a call of NCCL or CUDA",
         "TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 COMMAND   # which operation it was",
         re.compile(_IN_GROUP + r"watchdog got stuck for (?P<detail>\d{1,7} seconds)"), Kind.REPORT),
    Sign("Heartbeat monitor timed out!", "was ended by its heartbeat monitor",
         "TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 COMMAND   # which operation it was",
         re.compile(_IN_GROUP + "Heartbeat monitor timed out!"), Kind.REPORT),
    Sign("blocked for more than ", "is held by the kernel",
         "cat /proc/PID/stack; dmesg | grep -A30 'blocked for more than'   # which file system or device",
         re.compile(rf"task (?P<role>(?:{_OF_A_JOB})\S{{0,60}}):(?P<pid>\d{{1,10}}) "
                    r"blocked for more than (?P<stall>\d{1,7}) seconds")),  # other tasks are not known to be of the job
    # These lines are of the process that found it. `pid` is empty: theirs is not the dead one's.
    Sign("orker", "died, a worker of vLLM", "read its own lines above that one", re.compile(
        r"(?:Worker proc |Ray(?=WorkerProc ))(?P<role>[\w=-]{1,60}|WorkerProc rank=(?P<rank>\d{1,7})) died unexpectedly"
        r"(?P<pid>)(?: \((?P<detail>exit code: -?\d{1,5})\))?"), Kind.REPORT),
    Sign("ngine core proc", "was found dead by vLLM", "read its own lines above that one", re.compile(
        r"[Ee]ngine core proc(?:ess)? (?P<role>[\w-]{1,60}) died unexpectedly(?P<pid>)"), Kind.REPORT),
    Sign("Failed core proc(s): ", "was found dead by vLLM", "read its own lines above that one", re.compile(
        r"Failed core proc\(s\): \{'(?P<role>[\w-]{1,60})': (?P<detail>-?\d{1,5})(?P<pid>)"), Kind.REPORT),
    Sign("atchdog timeout (self.watchdog_timeout=", "made no progress within SGLang's watchdog time",
         "harness triage PID   # of the scheduler, while it stands",
         re.compile(r"[Ww]atchdog timeout \(self\.watchdog_timeout=(?P<stall>\d{1,7})(?![^)]{0,100}soft=True)")),
    Sign("No available shared memory broadcast block found", "waits for a worker, which compiles or stands still",
         "harness triage PID   # of the engine core, while it stands", kind=Kind.ECHO, while_waiting=True),
    Sign("RPC call to ", "had no answer from a worker of vLLM", kind=Kind.ECHO,
         pattern=re.compile(r"RPC call to \w+ timed out")),
    # Whoever sent it is no process of the job: a launcher ends its ranks by their pids.
    Sign("SignalException: ", "was ended by a signal from outside", _SENDER,
         re.compile(r"SignalException: Process (?P<pid>\d{1,10}) got (?P<detail>signal: \d{1,3})"), Kind.ECHO),
    Sign(" death signal, shutting down workers", "was ended by a signal from outside", _SENDER,
         re.compile(r"Received (?P<detail>(?:Signals\.)?\w{1,20}) death signal"), Kind.ECHO),
    Sign("EngineDeadError", "found its engine dead", kind=Kind.ECHO),
    Sign("ChildFailedError", "found a rank dead", kind=Kind.ECHO),
    Sign("ActorDiedError", "found an actor dead", kind=Kind.ECHO),
    Sign("ActorUnavailableError", "could not reach an actor", kind=Kind.ECHO),
    Sign("WorkerCrashedError", "found a worker of Ray dead", kind=Kind.ECHO),
    Sign("client socket has timed out after ", "could not reach the store of its job",
         "ss -ltn   # on that host: does rank 0 listen there, and does the network let its port through?",
         re.compile(r"while trying to connect to \(?(?P<detail>[\w.:-]{1,200}(?:, \d{1,5})?)"), Kind.ECHO),
    Sign(" clients joined", "waited in vain for the clients of its store",
         "srun --label env | grep -E 'RANK|WORLD_SIZE|MASTER'   # were all ranks started, with the same store?",
         re.compile(r"(?P<detail>\d{1,7}/\d{1,7}) clients joined"), Kind.ECHO),
    Sign("failed to pass monitoredBarrier", "missed a monitored barrier",
         "harness triage PID   # of that rank, while it stands",
         re.compile(r"Ranks? (?P<missing>\d{1,7}(?:, \d{1,7}){0,9999}) failed to pass monitoredBarrier")),
    Sign(" monitoredBarrier", "waited in vain at a monitored barrier", kind=Kind.ECHO,
         pattern=re.compile("(?:pass|reached) monitoredBarrier")),
    Sign("The wait execution of the Notify register times out", "waited in vain for a notification of HCCL",
         kind=Kind.ECHO, pattern=re.compile(r"times out(?:.{0,200}from (?P<detail>remote rank \[\d{1,7}\]))?")),
    Sign("NCCL WARN socket", "could not reach a peer over TCP",
         "ip -br addr   # then NCCL_SOCKET_IFNAME=NAME, the same network on every node",
         re.compile(_OF_NCCL + r"socket\w{1,40}: (?P<detail>\w{1,20} (?:to|from) .{1,80})"), Kind.ECHO),
    # The command line before it is that of the last rank that was started, not of the one that failed.
    Sign("exits with return code = ", "was found dead by DeepSpeed's launcher", kind=Kind.REPORT,
         pattern=re.compile(r"launch\.py.{1,4000}exits with (?P<detail>return code = -?[1-9]\d{0,2})")),
    Sign("worker died or was killed while executing a task", "found a worker of Ray dead", kind=Kind.ECHO),
)  # fmt: skip
# What precedes the traceback of an engine's process: where the error was raised.
PLACES = {
    "WorkerProc hit an exception": "in a worker of vLLM",
    "WorkerProc failed to start": "in a worker of vLLM",
    "EngineCore encountered a fatal error": "in vLLM's engine core",
    "DataParallelController hit an exception": "in SGLang's controller",
    "DetokenizerManager hit an exception": "in SGLang's detokenizer",
    "TokenizerManager hit an exception": "in SGLang's tokenizer",
    "Scheduler hit an exception": "in SGLang's scheduler",
}
WATCHDOG = "Watchdog caught collective operation timeout"
TRACEBACK = "Traceback (most recent call last):"
# The prefix that torch's own hook for exceptions writes.
_OF_TORCH = re.compile(r".{0,100}(?=\[rank\d{1,7}\]:)")
WORDS = (*(sign.words for sign in SIGNS), TRACEBACK, "Error: ")
# What vLLM, SGLang and Python's logging print before a line.
LOGGED = re.compile(
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
# What syslog and journald write before a line of the kernel, and what `dmesg -T` does.
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_TIME = r"(?P<hours>\d\d):(?P<minutes>\d\d):(?P<seconds>\d\d(?:\.\d{1,9})?)"
_NAMED_DAY = rf"(?P<month>{'|'.join(_MONTHS)}) {{1,2}}(?P<day>\d{{1,2}}) {_TIME}"
_KERNEL_LOG = re.compile(rf"(?:{_NAMED_DAY}|\d{{4}}-\d\d-\d\dT\S{{8,25}}) (?P<host>[A-Za-z0-9][\w.-]{{0,100}}) kernel:")
_DMESG = re.compile(rf"\[[A-Z][a-z]{{2}} {_NAMED_DAY} \d{{4}}\]")
_STAMP_WITHIN = 60  # characters at the beginning of a line
# The message of Ray's memory monitor: whom it killed, on the line after the error, then who held the memory.
_VICTIM = re.compile(
    r"Memory on the node \(IP: (?P<host>[\w.:-]{1,100}),.{0,300}? where the \w{1,20} \(.{0,400}?pid=(?P<pid>\d{1,10}), "
    r"memory used=(?P<used>[\d.]{1,10} ?[KMGT]?B)"
)
_MEMORY_TABLE = re.compile(r"PID\s{1,20}MEM\(GB\)\s{1,20}COMMAND")
_MEMORY_ROW = re.compile(r"(?P<pid>\d{1,10})\s{1,20}(?P<gib>[\d.]{1,10})\s{1,20}(?P<command>\S{1,100})")
# No work of a process: torch's own log lines, and what a native or a Python stack prints at an end.
_NO_WORK = re.compile(
    r"\[?[IWEF]\d{3,4} \d\d:|frame #\d|#\d{1,4} |Exception raised from |terminate called |Thread |Current thread "
    r"|Stack \(most |Extension modules:|Fatal Python error|PC: @|\*\*\*"
)
# A closed pipe of `multiprocessing` raises it without a word; a file that is too short has some.
_BARE_END = re.compile(r"(?:builtins\.)?EOFError")
_RAISED = re.compile(
    r"(?P<type>(?:[A-Za-z_]\w*\.){0,10}(?:[A-Z]\w*(?:Error|Fault|Timeout)|(?:[A-Z]\w*)?Exception))(?::\s*(?P<text>.*))?"
)
# An exception by any name but those with which somebody ends a program, right below the frames of a traceback.
_NAMED = re.compile(
    r"(?P<type>(?:[A-Za-z_]\w*\.){0,10}(?!SystemExit|KeyboardInterrupt|GeneratorExit)[A-Z]\w*)(?::\s(?P<text>.*))?"
)


@dataclass
class Errors:
    """Takes the lines of a file, in order. `entries`: the errors of all files."""

    entries: list[LogError] = field(default_factory=list)
    _signs: Sequence[Sign] = ()
    _file: str = ""
    _of_file: Name = NOBODY
    _tracebacks: dict[Name, Name] = field(default_factory=dict)  # writer whose traceback goes on -> whose error it is
    _in_frames: dict[Name, bool] = field(default_factory=dict)  # writer -> whether its previous line was indented
    _places: dict[Name, str] = field(default_factory=dict)
    _stamps: dict[Name, tuple[int, int, float] | None] = field(default_factory=dict)  # of a writer's previous line
    _later: dict[Name, int] = field(default_factory=dict)  # writer -> lines of work after its error
    _steps: dict[Name, set[str]] = field(default_factory=dict)  # named writer -> steps that it told after its error
    _last: dict[Name, int] = field(default_factory=dict)  # writer -> place of its last error among all
    _retries: set[Name] = field(default_factory=set)  # writers whose next work shows that they went on
    _echoed: bool = False
    _memory_table: Name | None = None  # who wrote the head of Ray's table of memory users
    _frames: dict[Name, list[Place]] = field(default_factory=dict)  # writer -> frames of its last traceback
    _names: dict[int, str] = field(default_factory=dict)  # pid -> what the prefixes of lines call it
    _pod: str = ""
    _headless: bool = False  # no traceback of the text has its first line: somebody picked lines of it

    def begin(self, file: str, text: str) -> None:
        """Begin a file. Only signs that its text has anywhere are looked for in its lines."""
        self._signs = [sign for sign in SIGNS if sign.words in text]
        self._file = file
        self._of_file = of_path(file)
        self._echoed, self._memory_table, self._pod = False, None, ""
        self._headless = TRACEBACK not in text
        tables = self._tracebacks, self._in_frames, self._places, self._stamps, self._later, self._steps, self._frames
        for table in (*tables, self._last):
            table.clear()
        self._retries.clear()

    def feed(self, number: int, writer: Name, line: str, whole: str) -> None:
        """Take a line. `number`: from 1 in its file; `writer`: whom its prefix names; `whole`: with that prefix, which
        may have the time."""
        if len(self.entries) >= MAX_ERRORS:
            return
        stamp = stamp_of(whole) or (stamp_of(line) if whole is not line else None)
        traced = writer in self._tracebacks
        before = self._stamps.get(writer)
        self._echoed |= WATCHDOG in line
        self._stamps[writer] = stamp or (before if traced or TRACEBACK in line else None)
        self._take_names(writer, line)
        if self._took_memory_of_ray(writer, line):
            return
        of_torch = _OF_TORCH.match(whole) if self._headless else None
        may_raise = traced or of_torch is not None
        if sign := self._took_sign(number, writer, line):
            if "missing" not in sign.pattern.groupindex:
                return
            may_raise = traced
        if of_torch and not traced and writer.rank is None:  # a logger's prefix stands before that of torch
            writer, line = split(whole[of_torch.end() :])
        self._take_line(number, writer, line, may_raise=may_raise, traced=traced)

    def _take_line(self, number: int, writer: Name, line: str, *, may_raise: bool, traced: bool) -> None:
        """Take a line as one of a traceback, as the exception below it, or as work after an error."""
        words = LOGGED.sub("", line, count=1)
        indented, below_frames = words[:1].isspace(), self._in_frames.get(writer, False)
        self._in_frames[writer] = indented
        if TRACEBACK in words:
            self._tracebacks[writer], self._frames[writer] = writer, []
        elif traced and (frame := FRAME.match(words)):
            self._frames.setdefault(writer, []).append(Place(frame["function"], frame["file"]))
        elif traced and (task := _RAY_TASK.search(words)):
            self._tracebacks[writer] = Name(None, task["host"], int(task["pid"]), task["role"])
        elif may_raise and words and not indented and (raised := _exception(words.strip(), below_frames)):
            kind = Kind.ECHO if is_echo(words) or _BARE_END.fullmatch(words.strip()) else Kind.OWN
            name = raised["type"].rpartition(".")[2]
            sign = Sign("", f"ended with {name}", HOST_MEMORY if name == MemoryError.__name__ else READ_ON, kind=kind)
            self._add(number, writer, words, sign, raised)
        elif not traced and words.strip() and not indented and not _NO_WORK.match(words):
            by = scheduler(line, writer)
            self._goes_on(by if by in self._later else writer, line)

    def _take_names(self, writer: Name, line: str) -> None:
        """Take where the next error of a writer is raised, and what the prefix of its lines calls its pid."""
        if place := next((place for words, place in PLACES.items() if words in line), ""):
            parallel = _PARALLEL.match(line)
            self._places[writer] = f"{place} ({parallel[1]})" if parallel else place
        if writer.pid and writer.role:
            self._names[writer.pid] = f"{writer.role}, rank {writer.rank}" if writer.rank is not None else writer.role

    def _took_sign(self, number: int, writer: Name, line: str) -> Sign | None:
        """Take a line that has a sign of an end, and return that sign; None for other lines."""
        if pod := _POD.match(line):
            self._pod = pod["pod"]
        for sign in self._signs:
            if sign.words in line and (match := sign.pattern.search(line)):
                if not (sign.of_pod and self._continues(number)):
                    self._add(number, writer, line, sign, match)
                return sign
        return None

    def _continues(self, number: int) -> bool:
        """Whether a line of `kubectl describe` goes on with the death that the line above it told."""
        return bool(self.entries) and (self.entries[-1].file, self.entries[-1].line) == (self._file, number - 1)

    def _add(self, number: int, writer: Name, line: str, sign: Sign, match: re.Match[str]) -> None:
        fields = match.groupdict()
        name = self._whose(writer, line, sign, fields)
        self._later[name if fields.get("stall") else writer] = 0
        self._await_work(writer, sign, line)
        what = self._what(writer, line, sign, fields)
        echo = sign.echo or (sign.kind is Kind.MIXED and is_echo(what)) or (sign.kind is Kind.REPORT and self._echoed)
        self._echoed |= echo and not sign.while_waiting
        rank = name.rank if fields.get("rank") is None else limits.rank(fields["rank"])
        kernel_host, kernel_stamp = _of_kernel(line) if sign.of_kernel else ("", None)
        further = [limits.rank(number) for number in (fields.get("missing") or "").split(", ")[1:]]
        self.entries.append(
            LogError(
                file=self._file,
                line=number,
                what=redact.text(cut(what, MAX_TEXT)),
                text=redact.text(cut(line.strip(), MAX_TEXT)),
                rank=rank if rank is None or rank <= RANKS else None,
                host=fields.get("host") or kernel_host or name.host,
                pid=name.pid if fields.get("pid") is None else int(fields["pid"] or 0),
                role=fields.get("role") or (self._pod if sign.of_pod else "") or name.role,
                fix=sign.fix,
                echo=echo,
                at=kernel_stamp or self._stamps.get(writer),
                stalled_s=float(fields.get("stall") or 0),
            )
        )
        self.entries += [replace(self.entries[-1], rank=rank) for rank in further[:MAX_ERRORS] if rank is not None]

    def _whose(self, writer: Name, line: str, sign: Sign, fields: Mapping[str, str | None]) -> Name:
        """Whose error a line tells: whoever it names, else whoever called the traceback, else whoever wrote it."""
        if missing := fields.get("missing"):
            name = Name(limits.rank(missing.split(", ")[0]))
        else:
            name = self._tracebacks.pop(writer, writer)
        # What Slurm says stands under the label of a task that is not meant.
        if sign.words == _KILLED_BY_RAY or line.startswith(OF_SLURM):
            name = NOBODY
        name = self._of_file if name is NOBODY else name
        return scheduler(line, name) if fields.get("stall") else name

    def _what(self, writer: Name, line: str, sign: Sign, fields: Mapping[str, str | None]) -> str:
        """Say in words what the error is, and where and in which phase it came, as far as earlier lines showed that."""
        place, frames = self._places.pop(writer, ""), self._frames.pop(writer, [])
        detail = (fields.get("detail") or fields.get("text") or "").strip()
        phase = ""
        if sign.of_memory:
            phase, detail = phase_of(frames), holders(line, self._names) or detail
        return " ".join(filter(None, (sign.what, place, phase))) + (f": {detail}" if detail else "")

    def _await_work(self, writer: Name, sign: Sign, line: str) -> None:
        """Begin to look for work of a writer after the error that is about to be added."""
        self._steps.pop(writer, None)
        self._last[writer] = len(self.entries)
        self._retries.discard(writer)
        if sign.while_waiting or _TRIES_AGAIN.search(line):
            self._retries.add(writer)

    def _took_memory_of_ray(self, writer: Name, line: str) -> bool:
        """Take what Ray's memory monitor says after an error: whom it killed, and who held the most memory."""
        if not self.entries or self.entries[-1].file != self._file or _KILLED_BY_RAY not in self.entries[-1].text:
            return False
        error = self.entries[-1]
        if not error.pid and (victim := _VICTIM.search(line[:MAX_MEMORY])):
            what = f"{error.what}: it had {victim['used']}"
            self.entries[-1] = replace(error, what=what, host=victim["host"], pid=int(victim["pid"]))
        elif _MEMORY_TABLE.fullmatch(line.strip()):
            self._memory_table = writer
        elif self._memory_table == writer and (row := _MEMORY_ROW.match(line.strip())):
            self._memory_table = None  # the first row has the most
            what = f"{error.what}; the most had {row['command']} (pid {row['pid']}), {row['gib']} GB"
            self.entries[-1] = replace(error, what=redact.text(cut(what, MAX_TEXT)))
        else:
            return False
        return True

    def _goes_on(self, writer: Name, line: str) -> None:
        """Count a line of work. What is written once a peer's end has shown proves nothing."""
        if self._echoed or writer not in self._later:
            return
        self._later[writer] += 1
        if writer in self._retries:
            self.entries[self._last[writer]] = replace(self.entries[self._last[writer]], survived=True)
        elif self._later[writer] == 1 and _TRIES_AGAIN.search(line):
            self._retries.add(writer)
        name = self._of_file if writer is NOBODY else writer
        steps = self._steps.setdefault(writer, set())
        if name._replace(host="") != NOBODY:  # other processes may go on in lines that name nobody, or a host alone
            steps |= steps_in(line)
        if self._later[writer] < WENT_ON and len(steps) < STEPS:
            return
        del self._later[writer]
        identity = name.rank, name.host, name.pid, name.role
        for number, error in enumerate(self.entries):
            if error.file == self._file and (error.rank, error.host, error.pid, error.role) == identity:
                self.entries[number] = replace(error, survived=True)


def _exception(words: str, below_frames: bool) -> re.Match[str] | None:
    return _RAISED.fullmatch(words) or (_NAMED.fullmatch(words) if below_frames else None)


def scheduler(line: str, writer: Name) -> Name:
    """The scheduler that SGLang's prefix of a line names; without such a prefix the writer."""
    parallel = _PARALLEL.match(line) if writer.rank is None else None
    return writer._replace(role=parallel[1].strip()) if parallel else writer


def may_be_of_another_job(error: LogError) -> bool:
    """Whether the kernel killed a program of another name than a job's processes have: a machine has other programs."""
    return error.rank is None and not error.role and _OTHER_TASK.search(error.text) is not None


def _of_kernel(line: str) -> tuple[str, tuple[int, int, float] | None]:
    """The host and the time that stand before a line of the kernel; empty and None if they do not."""
    if match := _KERNEL_LOG.search(line) or _DMESG.search(line):
        fields = match.groupdict()
        host = fields.get("host") or ""
        if not fields["month"]:
            return host, stamp_of(line[match.start() :])
        clock = int(fields["hours"]) * 3600 + int(fields["minutes"]) * 60 + float(fields["seconds"])
        return host, (_MONTHS.index(fields["month"]) + 1, int(fields["day"]), clock)
    return "", None


def stamp_of(line: str) -> tuple[int, int, float] | None:
    """The time at the beginning of a line: month, day and seconds, without the year, which not every writer prints."""
    if not (stamp := _STAMP.search(line[:_STAMP_WITHIN])):
        return None
    month, day = (int(number) for number in stamp.groups()[:6] if number is not None)
    hours, minutes, seconds = stamp.groups()[6:]
    return month, day, int(hours) * 3600 + int(minutes) * 60 + float(seconds.replace(",", "."))
