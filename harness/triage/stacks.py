"""What a process is doing, read from its stack: one table of places, matched from the innermost frame outward.

A thread has one innermost kind (what it is blocked on or busy with) and the kinds of the frames around it: a collective
inside a checkpoint is both. Python frames decide; native ones are read where they are there. A blocking C call
(`time.sleep`, `work.wait()`) leaves no Python frame of its own, so the kernel's wait channel and the native stack help.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from harness.triage.evidence import Frame, Process, Sample, Thread

# A process in one of these can be woken by another process only.
WAITING = frozenset({"collective", "p2p", "store", "ray_get", "http_client", "engine_call", "join"})
# A loop that waits for work: idle, whatever its processor time says (schedulers poll).
IDLE = frozenset({"scheduler", "ray_idle", "http_server", "queue", "finished"})


@dataclass(frozen=True)
class Entry:
    """One place. `function`: of the frame, its last dotted part, fully matched; `file`: found anywhere in its path."""

    kind: str
    function: str
    file: str = ""
    op: str = ""  # what is being waited for; "" takes the function's name


_TORCH = r"torch/distributed/"
_COLLECTIVES = (
    "all_reduce|all_reduce_coalesced|all_gather|all_gather_into_tensor|all_gather_coalesced|all_gather_object"
    "|all_to_all|all_to_all_single|barrier|monitored_barrier|broadcast|broadcast_object_list|gather|gather_object"
    "|reduce|reduce_scatter|reduce_scatter_tensor|scatter|scatter_object_list"
)

TABLE: tuple[Entry, ...] = (
    # debuggers: before everything, since they sit on top of any other place
    Entry("debugger", r"interaction|cmdloop|_cmdloop", r"(^|/)(pdb|bdb|cmd|ipdb)\.py|IPython/"),
    Entry("debugger", r"wait_for_client|_do_wait_suspend|do_wait_suspend", r"debugpy|pydevd"),
    Entry("debugger", r"set_trace", r"ray/util/(rpdb|debugpy)"),
    Entry("debugger", r"<native>pydevd.*", ""),
    # groups that form: before collectives, for their frames lie in the same files
    Entry("store", r"init_process_group|_new_process_group_helper|new_group|_new_group_with_tag|split_group", _TORCH),
    Entry("store", r"_store_based_barrier|_create_c10d_store|_env_rendezvous_handler|_tcp_rendezvous_handler"
          r"|next_rendezvous|rendezvous", _TORCH, "rendezvous"),
    Entry("store", r"init_custom_process_group|stateless_init_torch_distributed_process_group|stateless_init_.*"
          r"|init_weights_update_group|init_weight_update_group", "", "init_process_group"),
    Entry("store", r"<native>.*c10d::(TCPStore|FileStore|PrefixStore|Store)::.*", "", "store"),
    Entry("store", r"<native>.*gloo::rendezvous::.*", "", "rendezvous"),
    # collectives
    Entry("p2p", r"send|recv|isend|irecv|batch_isend_irecv|send_object_list|recv_object_list", _TORCH),
    Entry("collective", _COLLECTIVES, _TORCH),
    Entry("collective", r"all_reduce|all_gather|broadcast|broadcast_object_list|barrier|reduce_scatter|broadcast_pyobj",
          r"(vllm|sglang|megatron|deepspeed|verl)/"),
    Entry("collective", r"<native>.*(c10d::Work::wait|WorkNCCL::wait|gloo::.*Buffer::wait|ProcessGroup(Gloo|NCCL)::.*)",
          "", "wait"),
    Entry("collective", r"<native>.*(ncclGroupEnd|ncclAllReduce|ncclBroadcast|ncclAllGather|ncclReduceScatter).*", "",
          "wait"),
    Entry("collective", r"wait", r"torch/distributed/|torch/_C/_distributed", "wait"),
    # Ray
    Entry("ray_get", r"get|wait|get_objects|_get_object_refs|wait_object_refs", r"ray/_private/(worker|api)", "ray.get"),
    Entry("ray_get", r"<native>.*ray::core::CoreWorker::(Get|Wait).*", "", "ray.get"),
    Entry("ray_get", r"wait_for_pg|ready", r"ray/util/placement_group", "placement group"),
    Entry("ray_idle", r"main_loop", r"ray/_private/worker", "waits for a task"),
    # engines: their transitions, then their loops
    Entry("transition", r"sleep|wake_up|wake_up_async|pause_scheduler|resume_scheduler", r"vllm/"),
    Entry("transition", r"release_memory_occupation|resume_memory_occupation", ""),
    Entry("scheduler", r"event_loop\w*|run_event_loop\w*|dispatch_event_loop|recv_requests", r"", "event loop"),
    Entry("scheduler", r"run_busy_loop|worker_busy_loop|_process_input_queue|scheduler_loop|run_engine_core", r"",
          "busy loop"),
    Entry("engine_call", r"get_output|_recv_output|call_utility|collective_rpc|get_response", r"vllm/"),
    Entry("engine_call", r"\w*", r"sglang/srt/managers/tokenizer_(manager|control_mixin|communicator_mixin)", "request"),
    # HTTP
    Entry("http_client", r"getresponse|_read_status|begin|urlopen|_make_request", r"http/client\.py|urllib"),
    Entry("http_client", r"send|request|post|get|_send_single_request|handle_request", r"(requests|httpx|httpcore|urllib3"
          r"|aiohttp/client)"),
    Entry("http_server", r"serve_forever|handle_request_noblock", r"socketserver|http/server"),
    Entry("http_server", r"run|serve|main_loop|run_until_complete", r"uvicorn/"),
    # checkpoints and other work of one rank
    Entry("checkpoint", r"save|_save|save_pretrained|save_file|_legacy_save|save_checkpoint|save_model|save_state_dict"
          r"|dcp_save|async_save|_save_checkpoint|save_hf_model|write_data", r"torch/|transformers/|safetensors|deepspeed"
          r"|accelerate|megatron|peft/"),
    Entry("checkpoint", r"\w*(save|checkpoint|export)\w*", "<user>", "save"),
    Entry("evaluation", r"\w*(evaluat|validat)\w*|eval|run_eval\w*|log_metrics|upload\w*|push_to_hub", "<user>"),
    # compilers
    Entry("compile", r"\w*", r"torch/(_inductor|_dynamo)/|triton/(compiler|runtime/build|backends)|torch/utils/cpp_ext",
          "compile"),
    # plain waits
    Entry("sleep", r"<native>.*(clock_nanosleep|nanosleep|time_sleep|pysleep|usleep).*", ""),
    Entry("join", r"join|_wait_for_tstate_lock|_shutdown", r"threading\.py|multiprocessing/process"),
    Entry("join", r"wait|_try_wait|communicate|poll", r"subprocess\.py|multiprocessing/popen"),
    Entry("queue", r"get|_recv|recv_bytes|recv|poll", r"(^|/)queue\.py|multiprocessing/(queues|connection)|zmq/"),
    Entry("lock", r"wait|acquire|__enter__|wait_for|result", r"threading\.py|multiprocessing/synchronize|futures/_base"),
    Entry("select", r"select|_run_once|run_forever", r"selectors\.py|asyncio/|uvloop"),
    Entry("finished", r"destroy_process_group|_run_finalizers|_exit_function|shutdown", r"torch/distributed|"
          r"multiprocessing/util|weakref"),
)  # fmt: skip

# Kinds whose frames say around what something else happens, not what it is blocked on.
_AROUND = frozenset({"checkpoint", "evaluation", "scheduler", "transition", "ray_idle", "compile", "engine_call",
                     "http_server", "select"})  # fmt: skip
_FRAMEWORKS = re.compile(r"/(openrlhf|verl|trl|slime|areal|nemo_rl|vllm|sglang)/")
_FOREIGN = re.compile(r"site-packages/|dist-packages/|/lib/python3[^/]*/|^<|\.so(\.|$)|^lib[^/]*$|/probes/(site/)?\w+\.py$"
                      r"|^[^/]*$(?<!\.py)")  # fmt: skip
_LIBRARY_SHORT = re.compile(r"^(torch|ray|vllm|sglang|transformers|threading|socket|selectors|asyncio)(/|\.py$)")


@dataclass(frozen=True)
class Doing:
    """What one thread was doing. `kind`: of TABLE, or user (in the user's code, with nothing known below), or unknown.

    `active`: on a processor when it was sampled.
    """

    kind: str = "unknown"
    op: str = ""
    around: tuple[str, ...] = ()  # kinds of the frames further out, innermost first
    frame: str = ""  # innermost frame of the user's code, "train.py:42 in step"
    thread: str = ""
    active: bool = False
    gil: bool = False

    @property
    def idle(self) -> bool:
        """In a loop that waits for work."""
        return self.kind in IDLE or (self.kind in ("select", "lock", "sleep") and bool(IDLE & set(self.around)))

    @property
    def waiting(self) -> bool:
        """Blocked on something that another process has to do."""
        return self.kind in WAITING

    def within(self, *kinds: str) -> bool:
        """Whether it does one of these, at any depth."""
        return self.kind in kinds or any(kind in kinds for kind in self.around)


UNKNOWN = Doing()


def doing(process: Process, sample: int = -1) -> Doing:
    """What a process does as a whole: its main thread, or another thread when that only waits or says nothing."""
    if not process.samples or not -len(process.samples) <= sample < len(process.samples):
        return UNKNOWN
    look = process.samples[sample]
    natives = {thread.tid: thread for thread in process.native} if sample == -1 else {}
    told = [(_is_main(thread, index, process.pid), classify(thread, look, natives.get(thread.tid)))
            for index, thread in enumerate(look.threads) if not _ours(thread)]  # fmt: skip
    if not told and process.native and sample == -1:
        told = [(_is_main(thread, index, process.pid), classify(thread, look))
                for index, thread in enumerate(process.native)]  # fmt: skip
    mains = [one for main, one in told if main]
    main = mains[0] if mains else told[0][1] if told else UNKNOWN
    if main.waiting or main.kind in ("debugger", "checkpoint", "evaluation", "transition", "compile"):
        return main
    for _, other in told:  # a backward pass, an executor thread or a request handler works beside the main thread
        if other is not main and other.kind == "debugger":
            return other
    for _, other in told:
        if other is not main and (other.waiting and other.kind != "join" or other.kind in ("transition", "checkpoint")):
            return other
    return main


def classify(thread: Thread, sample: Sample | None = None, native: Thread | None = None) -> Doing:
    """One thread's stack as a `Doing`; `native` is the same thread with its C frames, where somebody took them."""
    kinds: list[tuple[str, str]] = []
    for frame in thread.frames:
        entry = match(frame)
        if entry is not None:
            kinds.append((entry.kind, entry.op or _plain(frame.function)))
    if native is not None:
        below = [(entry.kind, entry.op) for entry in map(match, native.frames) if entry and entry.function[0] == "<"]
        if below and (not kinds or kinds[0][0] in _AROUND):
            kinds = below[:1] + kinds
    frame_text = user_frame(thread.frames)
    if not kinds:
        kind = "sleep" if sample is not None and "nanosleep" in sample.wchan and _is_leading(thread) else "user"
        return Doing(kind if thread.frames else "unknown", frame=frame_text, thread=thread.name, active=thread.active,
                     gil=thread.gil)  # fmt: skip
    kind, op = kinds[0]
    if kind == "wait":
        kind = "collective"
    ops = [name for one, name in kinds if one == kind and name != "wait"]
    if kind in ("collective", "p2p", "store") and ops:
        op = ops[-1] if kind == "store" else ops[0]
    around = tuple(dict.fromkeys(one for one, _ in kinds[1:] if one != kind))
    return Doing(kind, op, around, frame_text, thread.name, thread.active, thread.gil)


@lru_cache(maxsize=65536)
def match(frame: Frame) -> Entry | None:
    """The first entry of TABLE that a frame fits."""
    native = frame.file.endswith(".so") or ".so." in frame.file or frame.line == 0 and "::" in frame.function
    function = f"<native>{frame.function}" if native else _plain(frame.function)
    mine = not native and _users(frame)
    for entry, functions, files in _compiled():
        if (functions.startswith("<native>")) is not native:
            continue
        if entry.file == "<user>":
            if not mine:
                continue
        elif files is not None and not files.search(frame.file):
            continue
        if _regex(functions).fullmatch(function):
            return entry
    return None


def user_frame(frames: Iterable[Frame]) -> str:
    """The innermost frame of the user's code; where everything is installed packages, of the RLHF framework or engine;
    else empty."""
    frames = list(frames)
    for frame in frames:
        if _users(frame):
            return said(frame)
    for frame in frames:
        if _FRAMEWORKS.search(frame.file):
            return said(frame)
    return ""


def said(frame: Frame) -> str:
    """A frame in a few words: file, line, function."""
    return f"{frame.file.rsplit('/', 1)[-1]}:{frame.line} in {_plain(frame.function)}"


def trail(threads: Iterable[Thread], pid: int = 0) -> tuple[tuple[str, str, int], ...]:
    """The main thread's stack as comparable data: unequal trails of one process mean that it moved."""
    threads = [thread for thread in threads if not _ours(thread)]
    mains = [thread for index, thread in enumerate(threads) if _is_main(thread, index, pid)]
    chosen = mains[0] if mains else threads[0] if threads else None
    return tuple((frame.function, frame.file, frame.line) for frame in chosen.frames) if chosen else ()


def _users(frame: Frame) -> bool:
    return bool(frame.file) and not _FOREIGN.search(frame.file) and not _LIBRARY_SHORT.search(frame.file)


def _plain(function: str) -> str:
    return function.rsplit(".", 1)[-1]


def _is_main(thread: Thread, index: int, pid: int) -> bool:
    return thread.main or thread.name == "MainThread" or (thread.tid == pid != 0)


def _is_leading(thread: Thread) -> bool:
    return thread.main or thread.name == "MainThread"


def _ours(thread: Thread) -> bool:
    """Our own probe's threads: heartbeat and worker server are no work of the program."""
    inner = [frame.file for frame in thread.frames if not frame.file.endswith(("threading.py", "socketserver.py"))]
    return bool(inner) and all(re.search(r"/probes/(site/)?\w+\.py$", file) for file in inner)


@lru_cache(maxsize=1)
def _compiled() -> tuple[tuple[Entry, str, re.Pattern[str] | None], ...]:
    return tuple((one, one.function, re.compile(one.file) if one.file and one.file != "<user>" else None)
                 for one in TABLE)  # fmt: skip


@lru_cache(maxsize=512)
def _regex(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)
