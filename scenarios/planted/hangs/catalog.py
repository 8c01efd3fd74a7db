"""The hangs of the lab and its controls: what to start, and the right verdict.

A hang is plain data; `harness faults run --from FILE.py` runs those of any file (docs/measurements/hang-lab.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).resolve().parent / "programs"
# Conditions of scenarios/planted/hangs/conditions: activity in a hanging process that must not be taken for progress.
CONDITIONS = {
    "spin": "waiting for its device in a compiled function that spins",
    "helper": "beside a thread that computes",
    "logger": "beside a thread that writes",
}


@dataclass(frozen=True)
class Dumps:
    """Flight recorder dumps of a job that never ran, with one planted fault of `harness.triage.flight.synthesis`."""

    fault: str
    rank: int = 0
    at: int = 0  # operation of that rank's program at which the fault strikes
    entries: int = 256
    ahead: int = 6  # unfinished operations that a host may have enqueued


@dataclass(frozen=True)
class Network:
    """Hosts on which a program of ranks runs under torchrun, and what happens to one of them.

    The job is watched on each host and judged from all evidence directories together.
    """

    hosts: int = 2
    event: str = ""  # cut or dies, once the job is running; slow (every link) or bridge, from the start
    host: int = 1  # the host to which it happens
    env: dict[str, str] = field(default_factory=dict)  # extra environment of that host


@dataclass(frozen=True)
class Hang:
    """One program and its right verdict.

    A party is a rank, or a word that names a process without one: its role, or an argument of its command line.
    """

    name: str
    kind: str  # K1 ... K13; empty where none need be named
    summary: str
    program: str = ""  # path of a script, or a module's dotted name
    arguments: tuple[str, ...] = ()  # "{stall}" becomes the stall threshold in seconds
    world: int = 0  # processes that the lab's launcher starts as ranks; 0: the program is run as it is
    culprits: frozenset[int | str] = frozenset()  # exactly these; empty: no process may be named
    verdict: str = "HUNG"  # a control has SLOW or HEALTHY, either of which is accepted, or INSUFFICIENT
    cycle: frozenset[int | str] = frozenset()  # parties that the cycle must contain
    frame: str = ""  # function that a culprit's frame must name; empty for any
    launcher: tuple[str, ...] = ()  # options of the lab's launcher
    engine: str = ""  # environment that the program needs (sglang, vllm); such programs run only on request
    env: dict[str, str] = field(default_factory=dict)
    condition: str = ""  # one of CONDITIONS: activity beside the hang in each of its processes
    network: Network | None = None  # where the ranks run; None: on this host, started by the lab's launcher
    reason: str = ""  # words that the verdict's reason must contain, where no process is to be named
    looks: int = 0  # 0: the watch looks at it; else `harness triage PID` looks this often while it runs
    dumps: Dumps | None = None  # judged instead of running a program; `world` is then the number of ranks

    @property
    def control(self) -> bool:
        return self.verdict != "HUNG"


def _of(*parties: int | str) -> frozenset[int | str]:
    return frozenset(parties)


def _program(name: str) -> str:
    return str(PROGRAMS / f"{name}.py")


def _hang(name: str, kind: str, summary: str, **fields: Any) -> Hang:
    """Make a hang. `fields`: of `Hang`; its parties may be in any collection."""
    parties: dict[str, Any] = {role: frozenset(fields.pop(role, ())) for role in ("culprits", "cycle")}
    return Hang(name, kind, summary, **parties, **fields)


def _training(
    name: str, kind: str, summary: str, program: str, phase: str, *, rank: int | None = None, **fields: Any
) -> Hang:
    """Make a hang of a program that runs as ranks, by default two. Its culprit is `rank` by default. `fields`: of
    `Hang`.
    """
    arguments = ("--phase", phase, *(("--rank", str(rank)) if rank is not None else ()))
    usual = {"world": 2, "culprits": () if rank is None else (rank,)}
    return _hang(name, kind, summary, program=_program(program), arguments=arguments, **usual | fields)


def _alone(name: str, kind: str, summary: str, program: str, phase: str, **fields: Any) -> Hang:
    """Make a hang of a program that starts its other processes itself. `fields`: of `Hang`."""
    arguments = ("--phase", phase) if program == "ray_cycle" else ("--role", "trainer", "--phase", phase)
    return _hang(name, kind, summary, program=_program(program), arguments=arguments, **fields)


def _control(name: str, summary: str, phase: str, *, kind: str = "", rank: int = 1, verdict: str = "SLOW") -> Hang:
    arguments = ("--phase", phase, "--rank", str(rank), "--stall", "{stall}")
    return Hang(name, kind, summary, _program("controls"), arguments, world=2, verdict=verdict)


TRIP_COUNT = (
    _training("trip-micro", "K1", "one rank packs one microbatch more", "trip_count", "micro", rank=1, world=3,
              frame="average_gradients"),
    _training("trip-micro-first", "K1", "the same on rank 0", "trip_count", "micro", rank=0, world=3,
              frame="average_gradients"),
    _training("trip-two", "K1", "the same of two ranks: who is right cannot be told", "trip_count", "micro", rank=1,
              culprits=()),
    _training("trip-short", "K1", "one rank's shard ends a batch early", "trip_count", "short", rank=2, world=3,
              frame="gathered"),
    _training("trip-publish", "K1", "one rank leaves its loop early and waits for a file", "trip_count", "publish",
              rank=1, frame="publish"),
    _training("trip-sharded", "K1", "one batch less, with sharded gradients", "trip_count", "sharded", rank=1, world=3,
              frame="gathered"),
    _training("trip-backward", "K1", "one rank skips its backward pass because its loss is not finite", "backward",
              "nan", rank=1, world=3, frame="gathered"),
)  # fmt: skip

ORDER = (
    _training("order-pair", "K2", "two groups in opposite orders", "order", "pair", cycle=(0, 1)),
    _training("order-sync", "K2", "weights on one group against metrics on the other", "order", "sync", cycle=(0, 1)),
    _training("order-ring", "K2", "three groups of two, in a ring", "order", "ring", world=3, cycle=(0, 1, 2)),
    _training(
        "order-backward",
        "K2",
        "backward passes of actor and critic in opposite orders",
        "backward",
        "towers",
        cycle=(0, 1),
    ),
    _training("replica-more", "K2", "one rank of two replicas calls its group once more", "replicas", "more", rank=3,
              world=4, frame="layer"),
    _training("replica-less", "K2", "one rank of two replicas leaves out a call of its group", "replicas", "less",
              rank=1, world=4, frame="average_gradients"),
    _training("replica-elsewhere", "K1", "one rank of two replicas calls the default group in place of its own",
              "replicas", "elsewhere", rank=2, world=4, frame="layer"),
    _training("replica-evaluation", "K2", "one rank misses an evaluation: what the others do is new, and nobody is "
              "named", "replicas", "evaluation", rank=2, world=4, culprits=(), cycle=(2, 3)),
)  # fmt: skip

PAIRS = (
    _training("pair-short", "K1", "one trainer rank of two has a batch less, and waits at the end", "pairs", "short",
              rank=3, world=4, frame="rounds"),
    _training("pair-long", "K1", "one trainer rank of two has a batch more, and all others wait at the end", "pairs",
              "long", rank=2, world=4, frame="rounds"),
    _training("pair-swallowed", "K2", "one engine rank of two swallows an error and waits for the next order", "pairs",
              "swallowed", rank=1, world=4, frame="serve"),
    _training("pair-apart", "K2", "a batch less, where only the two trainer ranks share a loop: either may be wrong, "
              "and nobody is named", "pairs", "apart", rank=3, world=4, culprits=(), cycle=(0, 2, 3)),
    _training("pair-cut", "K2", "one engine rank of two decides that it is done, which may be right: nobody is named",
              "pairs", "cut", rank=1, world=4, culprits=(), cycle=(0, 1)),
    _training("pair-both", "K2", "one engine rank of two swallows an error, and its peer does something new: nobody is "
              "named", "pairs", "both", rank=1, world=4, culprits=(), cycle=(0, 1)),
)  # fmt: skip

BRANCH = (
    _training("branch-timeout", "K3", "one scheduler's clock gives a batch up that its peer runs", "engine_tp",
              "timeout", rank=1, frame="event_loop"),
    _training("branch-timeout-first", "K3", "the same on rank 0 of three", "engine_tp", "timeout", rank=0, world=3,
              frame="event_loop"),
    _training("branch-batch", "K3", "one scheduler's clock closes a batch before its peers", "engine_tp", "batch",
              rank=2, world=3, frame="forward"),
)  # fmt: skip

DEAD = (
    _training("dead-thread", "K4", "a prefetch thread died, its main thread waits for batches", "dead_peer", "thread",
              rank=1, frame="next_batch"),
    _training("dead-thread-first", "K4", "the same on rank 0 of three", "dead_peer", "thread", rank=0, world=3,
              frame="next_batch"),
    _training("dead-keepalive", "K4", "a step failed, the process is kept alive", "dead_peer", "keepalive", rank=1,
              frame="keep_alive"),
    _training("dead-exit", "K4", "a rank ended with 0, its peer waits at the store", "dead_peer", "exit", rank=1),
    _training("dead-killed", "K4", "a rank was killed, its peers wait at the store", "dead_peer", "killed", rank=2,
              world=3, launcher=("--tolerate",)),
)  # fmt: skip

RENDEZVOUS = (
    _training("join-absent", "K5", "one rank waits for a lock before it joins", "rendezvous", "absent", rank=1,
              frame="wait_for_lock"),
    replace(_control("join-polls", "one rank looks for a file before it joins", "polls", verdict="INSUFFICIENT"),
            program=_program("rendezvous"), reason="in a loop"),
    _training("join-world", "K5", "the world is one rank larger than what was started", "rendezvous", "world", world=2,
              rank=7, culprits=(2,), launcher=("--claim", "3")),
    _training("join-subgroup", "K5", "one rank does not make the group that its peers make", "rendezvous", "subgroup",
              rank=2, world=3, frame="main"),
    _training("join-sync-twice", "K5", "two engines claim one rank of a weight sync's group: either may be wrong",
              "sync_group", "twice", rank=2, world=3, culprits=()),
)  # fmt: skip

CONTROL_PLANE = (
    _alone("ray-pair", "K6", "trainer and engine wait for each other in ray.get", "ray_cycle", "pair",
           cycle=("Trainer", "Engine")),
    _alone("ray-ring", "K6", "trainer, engine and reward model in a ring of ray.get", "ray_cycle", "ring",
           cycle=("Trainer", "Engine", "Reward")),
    _alone("ray-self", "K6", "an actor asks itself", "ray_cycle", "self", cycle=("Trainer",)),
    _alone("http-pair", "K6", "trainer and engine wait for each other's HTTP answer", "http_cycle", "pair",
           cycle=("trainer", "engine")),
    _alone("http-plain", "K6", "the same between processes that never import torch", "http_cycle", "plain",
           cycle=("trainer", "engine")),
    _alone("http-ring", "K6", "trainer, engine and reward server in a ring", "http_cycle", "ring",
           cycle=("trainer", "engine", "reward")),
)  # fmt: skip

ANSWERS = tuple(
    Hang(f"answer-{phase}", "", summary, _program("answers"),
         ("--role", "driver", "--phase", phase, "--stall", "{stall}"), verdict=verdict, reason=reason)
    for phase, summary, verdict, reason in (
        ("lost", "one of two engines forgets a request, and its driver waits for the answer: either may be wrong",
         "INSUFFICIENT", "processes read from each other"),
        ("buffered", "the answer lies in the engine's own buffer", "INSUFFICIENT", "processes read from each other"),
        ("rests", "two engines wait for orders while their driver does something else", "HEALTHY", ""),
        ("thread", "the engine waits for requests, and a thread of it takes long to answer", "INSUFFICIENT", ""),
    )
)  # fmt: skip

POLLS = (
    *(replace(_control(f"poll-{phase}", summary, phase, rank=0, verdict=verdict), arguments=(
        "--phase", phase, "--rank", "0", "--stall", "{stall}"), program=_program("polls"), reason=reason)
      for phase, summary, verdict, reason in (
          ("file", "rank 0 looks for a file that comes after three thresholds", "INSUFFICIENT",
           "in a loop"),
          ("buffer", "rank 0 asks a slow collector for its size", "INSUFFICIENT", "in a loop"),
          ("died", "the same, and the collector's thread died: nobody is provable", "INSUFFICIENT",
           "in a loop"),
          ("pieces", "rank 0 reads an answer that comes in pieces for three thresholds", "SLOW", ""),
          ("job", "rank 0 looks for a file that a shell beside the job makes after three thresholds", "SLOW", ""),
          ("reported", "rank 0 looks at a list that a slow thread fills; another thread has died", "INSUFFICIENT",
           "in a loop"),
      )),
    _training("poll-thread", "K4", "rank 0 looks at a list that its own thread filled, which died", "polls", "thread",
              rank=0, frame="all"),
    _training("poll-join", "K6", "rank 0 joins its child before it reads the queue that the child fills", "polls",
              "join", rank=0, frame="rewards"),
    *(Hang(f"ring-{phase}", "", summary, _program("shared_ring"), ("--phase", phase, "--stall", "{stall}"),
           verdict=verdict, reason=reason)
      for phase, summary, verdict, reason in (
          ("lost", "the answer of one of two workers is lost in shared memory that is polled: nobody is provable",
           "INSUFFICIENT", "in a loop"),
          ("idle", "an engine without requests, whose workers poll for orders", "HEALTHY", ""),
      )),
)  # fmt: skip

SLEEP = (
    _alone("sleep-wake", "K8", "wake_up waits for a lock that a failed call kept", "engine_sleep", "wake",
           culprits=("rollout",), frame="wake_up"),
    _alone("sleep-drain", "K8", "sleep waits for a request that was never counted out", "engine_sleep", "sleep",
           culprits=("rollout",), frame="sleep"),
    _alone("sleep-scheduler", "K9", "wake_up asks a scheduler process that is stopped and records nothing",
           "engine_sleep", "scheduler", culprits=("scheduler",)),
    _training("sleep-tp", "K8", "one of two engine ranks stands in its wake_up", "engine_sleep", "tp", culprits=(1,),
              frame="wake_up"),
)  # fmt: skip

STATE = (
    _training("state-gil", "K9", "a C call keeps the interpreter lock", "process_state", "gil", rank=1,
              frame="tokenize_natively"),
    _training("state-gil-thread", "K9", "a C call in another thread keeps it", "process_state", "gil-thread", rank=0),
    _training("state-stopped", "K9", "SIGSTOP", "process_state", "stopped", rank=1),
    _training("state-stopped-first", "K9", "SIGSTOP on rank 0 of three", "process_state", "stopped", rank=0, world=3),
    _training("state-disk", "K9", "uninterruptible sleep", "process_state", "disk", rank=1,
              frame="read_from_dead_disk"),
    _training("state-spawn", "K9", "uninterruptible sleep with the interpreter lock held", "process_state", "spawn",
              rank=1, frame="spawn_helper"),
)  # fmt: skip

STOPPED_CHILD = (
    _training("child-stopped", "K9", "a rank reads the answer of its tokenizer process, which is stopped",
              "stopped_child", "asked", rank=1, culprits=("tokenizer",)),
    _training("child-behind-shell", "K9", "the same, and a shell is between the two", "stopped_child", "shell",
              rank=0, culprits=("tokenizer",)),
    _training("child-aside", "K4", "a rank has failed and stays; a child of its peer is stopped, and nobody waits "
              "for it", "stopped_child", "aside", rank=1, culprits=(0,), frame="keep_alive"),
    replace(_control("child-elsewhere", "a rank opens a named pipe that a shell beside the job writes to after three "
                     "thresholds; its child is stopped, and the rank does not wait for it", "elsewhere", rank=1,
                     verdict="INSUFFICIENT"),
            program=_program("stopped_child"), arguments=("--phase", "elsewhere", "--stall", "{stall}"),
            reason="for whoever opens"),
)  # fmt: skip

RANK_ZERO = (
    _training("zero-save", "K10", "a barrier inside rank 0's checkpoint", "rank_zero", "save", culprits=(0,),
              frame="save_checkpoint"),
    _training("zero-gather", "K10", "the full state gathered on rank 0 alone", "rank_zero", "gather", culprits=(0,),
              world=3, frame="save_full_state"),
    _training("zero-evaluate", "K10", "a gathered metric in rank 0's evaluation", "rank_zero", "evaluate",
              culprits=(0,), world=3, frame="evaluate"),
)  # fmt: skip

REFUSED = (
    _training("refused-begin", "K13", "an update without begin_weight_update", "weight_sync", "begin", culprits=(1,)),
    _training("refused-tensor", "K13", "the engine knows no tensor of that name", "weight_sync", "tensor",
              culprits=(1,)),
    _training("refused-running", "K13", "both engine ranks refuse while requests run", "weight_sync", "closed",
              world=3, culprits=(1, 2)),
    *(Hang(f"refused-{engine}", "K13", summary, _program("engine_refusal"),
           ("--engine", engine, "--python", "{engine}"), culprits=_of("rollout"), engine=engine)
      for engine, summary in (("sglang", "the real SGLang refuses an update without begin_weight_update"),
                              ("vllm", "the real vLLM raises in load_weights on a CPU"))),
)  # fmt: skip

CONTROLS = (
    _control("healthy", "a short run", "healthy", verdict="HEALTHY"),
    _control("slow-rank", "one rank is slow in every step", "straggler", kind="K7"),
    _control("slow-shards", "one rank reads many small files, longer than the threshold", "shards", kind="K7"),
    _control("slow-uneven", "one rank computes longer than the threshold", "uneven", kind="K7", rank=0),
    _control("slow-compile", "a long compile in Python before the first collective", "compile", kind="K7"),
    _control("slow-compile-child", "a long compile in a child process", "compile-child", kind="K7", rank=0),
    _control("slow-starved", "one rank has next to no processor time on a busy host", "starved", kind="K7"),
    _control("long-pause", "all ranks idle longer than the threshold, nothing pending", "pause", verdict="HEALTHY"),
    _control("long-checkpoint", "all ranks write a checkpoint for longer than the threshold", "checkpoint"),
    replace(_control("slow-kernel", "one rank's kernel runs longer than the threshold, and ends", "kernel", kind="K7"),
            condition="spin"),
    Hang("slow-beside-stopped", "K7", "one rank is slow, and its child, for which nobody waits, is stopped",
         _program("stopped_child"), ("--phase", "slow", "--stall", "{stall}"), 2, verdict="SLOW"),
    Hang("slow-stage", "K7", "a driver collects its children in order: the last ones are done, the first one works",
         _program("stages"), ("--stall", "{stall}"), verdict="SLOW"),
    _control("breakpoint", "one rank sits in the debugger", "breakpoint", verdict="HEALTHY"),
    *(Hang(f"slow-rollout-{phase}", "K7", f"the trainer waits for a long rollout over {title}",
           _program("long_rollout"), ("--phase", phase, "--stall", "{stall}"), verdict="SLOW")
      for phase, title in (("http", "HTTP"), ("ray", "Ray"))),
)  # fmt: skip

ASYNC = tuple(
    Hang(f"async-{phase}", kind, summary, _program("async_tools"), ("--phase", phase, "--stall", "{stall}"), 2,
         verdict=verdict)
    for phase, kind, summary, verdict in (
        ("rated", "K7", "event loops await a rate-limited tool that answers every quarter of the threshold", "SLOW"),
        ("crowd", "K7", "the same with three hundred pending tasks", "SLOW"),
        ("poll", "K7", "event loops await long polls of most of the threshold", "SLOW"),
        ("judge", "", "rank 0's event loop awaits a judge for longer than the threshold", "INSUFFICIENT"),
        ("ticks", "", "a request of rank 0's event loop is lost beside a task that wakes it", "INSUFFICIENT"),
        ("lost", "", "rank 0's event loop awaits an event that nobody sets: in no stack", "INSUFFICIENT"),
        ("socket", "", "rank 0 asks a judge outside the job in a blocking call, on its own host", "INSUFFICIENT"),
        ("pool", "", "the same in the threads of a pool", "INSUFFICIENT"),
    )
)  # fmt: skip

TASKS = tuple(
    Hang(f"tasks-{phase}", kind, summary, _program("async_tasks"),
         ("--phase", phase, "--stall", "{stall}"), 2, culprits=frozenset(culprits), verdict=verdict, frame=frame)
    for phase, kind, summary, culprits, verdict, frame in (
        ("locks", "K6", "two tasks of rank 0 take two locks in opposite orders", (0,), "HUNG", "use"),
        ("result", "K6", "a task of rank 0 keeps a lock and awaits a task that wants it", (0,), "HUNG", ""),
        ("died", "K4", "the task that fills a queue of rank 0 has died", (0,), "HUNG", "died"),
        ("writer", "K4", "a server's update waits for a request that waits for what comes after it", ("engine",),
         "HUNG", "update"),
        ("asked", "K6", "two requests, awaited by tasks of rank 0, take two locks in opposite orders", ("engine",),
         "HUNG", "use"),
        ("idle", "", "a server of asyncio idles while the ranks rest", (), "HEALTHY", ""),
        ("sleeper", "K7", "a task of rank 0 sleeps again and again", (), "SLOW", ""),
        ("empty", "", "a task of rank 0 waits for an item whose producer sleeps", (), "INSUFFICIENT", ""),
        ("outside", "", "a request waits for an event that a process beside the job asks for", (), "INSUFFICIENT", ""),
    )
)  # fmt: skip


def _looks(phase: str, summary: str, *, world: int = 2, verdict: str = "HEALTHY", kind: str = "",
           culprits: Iterable[int] = ()) -> Hang:  # fmt: skip
    return Hang(
        name=f"look-{phase}" + (f"-{world}" if world > 2 else ""),
        kind=kind,
        summary=summary,
        program=_program("balanced"),
        arguments=("--phase", phase, "--seconds", "600"),
        world=world,
        culprits=frozenset(culprits),
        verdict=verdict,
        looks=10 if verdict != "HUNG" else 2,
    )


LOOKS = (
    _looks("steps", "nobody watches a balanced job of short steps"),
    _looks("steps", "the same of four ranks", world=4),
    _looks("sleeps", "nobody watches a balanced job that sleeps in each step"),
    _looks("computes", "nobody watches a balanced job that computes in each step"),
    _looks("loads", "nobody watches a balanced job that loads its batches"),
    _looks("backward", "nobody watches a balanced job of torch's data parallelism"),
    _looks("late", "nobody watches a job whose rank 1 computes for longer in each step: no look tells that"),
    _looks(
        "stands",
        "nobody watches a job to whose collective rank 1 comes no more",
        verdict="HUNG",
        kind="K4",
        culprits=(1,),
    ),
)


def _hosts(
    name: str, kind: str, summary: str, network: Network, phase: str = "works", steps: int = 100_000, **fields: Any
) -> Hang:  # fmt: skip
    """Make a hang of a program of four ranks on the hosts of `network`. `fields`: of `Hang`."""
    arguments, usual = ("--phase", phase, "--steps", str(steps)), {"verdict": "INSUFFICIENT"}
    return _hang(
        name, kind, summary, program=_program("across_hosts"), arguments=arguments, world=4, network=network,
        **usual | fields,
    )  # fmt: skip


HOSTS = (
    _hosts("hosts-stops", "K4", "a rank on the second host stops", Network(), "stops", culprits=(3,), verdict="HUNG"),
    _hosts("hosts-stops-four", "K4", "the same of four hosts", Network(4, host=3), "stops", culprits=(3,),
           verdict="HUNG"),
    # The network is cut between two operations, so that every rank still has to send.
    _hosts("hosts-cut", "K12", "the network of one host is cut: no rank is named", Network(event="cut", host=0),
           "rests", verdict="HUNG", reason="the network between hosta and hostb"),
    _hosts("hosts-cut-four", "K12", "the same of four hosts", Network(4, "cut", 2), "rests", verdict="HUNG",
           reason="the network of hostc"),
    _hosts("hosts-dead", "", "a host dies: its ranks are not named", Network(event="dies"),
           reason="no evidence was taken on hostb"),
    _hosts("hosts-wrong-nic", "K5", "gloo is told a bridge of the second host that the first one does not reach",
           Network(event="bridge", env={"GLOO_SOCKET_IFNAME": "cni0"}), culprits=(2, 3), verdict="HUNG"),
    _hosts("hosts-right-nic", "", "such a bridge is there, and the interface between the hosts is named",
           Network(event="bridge"), steps=50, verdict="HEALTHY"),
    _hosts("hosts-loopback", "", "gloo of one host is told lo, which does: its ranks connect to those of the other",
           Network(env={"GLOO_SOCKET_IFNAME": "lo"}), steps=50, verdict="HEALTHY"),
    _hosts("hosts-one-loopback", "", "one host alone, where lo is sound",
           Network(1, host=0, env={"GLOO_SOCKET_IFNAME": "lo"}), steps=50, verdict="HEALTHY"),
    _hosts("hosts-sound", "", "a short run over two hosts", Network(), steps=50, verdict="HEALTHY"),
    _hosts("hosts-slow-link", "K7", "100 ms and one packet in a hundred lost on the way between the hosts",
           Network(event="slow"), steps=15, verdict="SLOW"),
)  # fmt: skip

DUMPS = (
    Hang("dumps-wedge", "K12", "all ranks in one operation, frozen", world=64, dumps=Dumps("wedge", at=200)),
    Hang("dumps-wedge-1024", "K12", "the same on 1,024 ranks", world=1024, dumps=Dumps("wedge", at=200)),
    Hang("dumps-extra-1024", "K1", "one of 1,024 ranks runs an operation more", world=1024, culprits=_of(700),
         dumps=Dumps("extra", 700, 150)),
    Hang("dumps-dead-1024", "", "one of 1,024 ranks enqueues nothing more", world=1024, culprits=_of(3),
         dumps=Dumps("dead", 3, 150)),
    Hang("dumps-order", "K2", "one of 64 ranks swaps two operations of different groups", world=64,
         dumps=Dumps("abba", 5, 102, ahead=1)),
    Hang("dumps-missing", "", "the culprit's own dump is lost", world=8, verdict="INSUFFICIENT",
         dumps=Dumps("missing", 2, 100)),
    Hang("dumps-healthy", "", "64 ranks between two operations", world=64, verdict="INSUFFICIENT",
         dumps=Dumps("healthy")),
)  # fmt: skip


def under(hang: Hang, condition: str) -> Hang:
    """Return the same program with other activity in its processes."""
    name, summary = f"{hang.name}+{condition}", f"{hang.summary}, {CONDITIONS[condition]}"
    return replace(hang, name=name, summary=summary, condition=condition)


def conditions(hangs: Iterable[Hang]) -> tuple[Hang, ...]:
    """Return every program under every condition that it can have: `spin` needs a program that runs collectives."""
    programs = [hang for hang in hangs if not (hang.dumps or hang.engine or hang.network or hang.looks)]
    return tuple(
        under(hang, condition) for hang in programs for condition in CONDITIONS if hang.world or condition != "spin"
    )


HANGS: tuple[Hang, ...] = (
    *TRIP_COUNT, *ORDER, *PAIRS, *BRANCH, *DEAD, *RENDEZVOUS, *CONTROL_PLANE, *ANSWERS, *POLLS, *SLEEP, *STATE,
    *STOPPED_CHILD, *RANK_ZERO, *REFUSED, *CONTROLS, *LOOKS, *ASYNC, *TASKS, *HOSTS, *DUMPS,
)  # fmt: skip
VARIANTS = conditions(hang for hang in HANGS if not hang.condition)
