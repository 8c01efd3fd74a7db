"""Classifies a frame by the place it stands in: a collective, a rendezvous, ray.get, a scheduler's loop, a checkpoint.

There is one table, matched from the top; a new place is one more line in it. Places of an engine or a framework are in
its spec. Frames of C and C++ are matched by entries whose function begins with <native>.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from harness.frameworks.spec import frameworks
from harness.triage.evidence import Frame, Thread
from scenarios.engines.registry import names, specs
from scenarios.engines.spec import FramePattern

# Kinds in which only another process can wake a process up.
WAITING = frozenset({"collective", "p2p", "store", "ray_get", "http_client", "engine_call", "join", "build_lock"})
# Loops that wait for work. They are idle whatever their processor time says, because schedulers poll.
IDLE = frozenset({"scheduler", "orders", "ray_idle", "http_server", "queue", "finished"})


# An engine's work frames lie inside its loop, so patterns of loops come after patterns of work, of whichever engine.
_OF_ENGINES = ("transition", "compute", "orders", "scheduler", "engine_call")
_ENGINES = "|".join(map(re.escape, names(embedded=False)))
_TORCH = r"torch/distributed/"
SPAWNED = "the end of spawned processes"  # torch.multiprocessing joins all of them in one select
_COLLECTIVES = (
    "all_reduce|all_reduce_coalesced|all_gather|all_gather_into_tensor|all_gather_coalesced|all_gather_object"
    "|all_to_all|all_to_all_single|barrier|monitored_barrier|broadcast|broadcast_object_list|gather|gather_object"
    "|reduce|reduce_scatter|reduce_scatter_tensor|scatter|scatter_object_list"
    # under FSDP, and the functional ones, whose result is waited for
    r"|_all_gather_base|_reduce_scatter_base|(all_gather|reduce_scatter)_tensor\w*|wait_tensor"
)
# Threads of a process group itself, which poll and beat for ever: none of them is a wait of the program.
_OF_GROUP = r"(?!.*(watchdog|heartbeat|monitor|runloop|runhookloop|iscompleted))"

TABLE: tuple[FramePattern, ...] = (
    # debuggers come first, since they sit on top of any other place
    FramePattern("debugger", r"interaction|cmdloop|_cmdloop", r"(^|/)(pdb|bdb|cmd|ipdb)\.py|IPython/"),
    FramePattern("debugger", r"wait_for_client|_do_wait_suspend|do_wait_suspend", r"debugpy|pydevd"),
    FramePattern("debugger", r"set_trace", r"ray/util/(rpdb|debugpy)"),
    FramePattern("debugger", r"<native>pydevd.*", ""),
    # groups that form come before collectives, because their frames are in the same files
    FramePattern(
        "store", r"init_process_group|_new_process_group_helper|new_group|_new_group_with_tag|split_group", _TORCH
    ),
    FramePattern(
        "store",
        r"_store_based_barrier|_create_c10d_store|_env_rendezvous_handler|_tcp_rendezvous_handler"
        r"|next_rendezvous|rendezvous",
        _TORCH,
        "rendezvous",
    ),
    FramePattern(
        "store",
        r"init_custom_process_group|stateless_init_torch_distributed_process_group|stateless_init_.*"
        r"|init_weights_update_group|init_weight_update_group",
        "",
        "init_process_group",
    ),
    FramePattern("store", r"<native>.*c10d::(TCPStore|FileStore|PrefixStore|Store)::.*", "", "store"),
    FramePattern("store", r"<native>.*gloo::rendezvous::.*", "", "rendezvous"),
    # collectives
    FramePattern("p2p", r"send|recv|isend|irecv|batch_isend_irecv|send_object_list|recv_object_list", _TORCH),
    FramePattern("collective", _COLLECTIVES, _TORCH),
    FramePattern(
        "collective",
        r"all_reduce|all_gather|broadcast|broadcast_object_list|barrier|reduce_scatter|broadcast_pyobj",
        rf"({_ENGINES}|megatron|deepspeed|verl)/",
    ),
    FramePattern(
        "collective",
        rf"<native>(?i:{_OF_GROUP}.*(c10d::Work::wait|gloo::.*Buffer::wait\w*|ProcessGroup(Gloo|NCCL)::.*))",
        "",
        "wait",
    ),
    FramePattern(
        "collective",
        r"<native>.*(nccl(GroupEnd|AllReduce|Broadcast|AllGather|ReduceScatter|CommInit|CommSplit)|NCCLComm::).*",
        "",
        "wait",
    ),
    FramePattern("collective", r"wait", r"torch/distributed/|torch/_C/_distributed", "wait"),
    # a wait for a device, which spins; `.item()`, `.cpu()` and `.tolist()` have no Python frame
    FramePattern("device", r"synchronize", r"torch/(cuda|accelerator|xpu|mtia|mps)/|torch_npu/", "synchronize"),
    FramePattern(
        "device",
        r"<native>.*((cuda|cu|hip|musa|aclrt)(Stream|Event|Device|Ctx)?Synchronize\w*|_local_scalar_dense_cuda"
        r"|copy_kernel_cuda).*",
        "",
        "synchronize",
    ),
    # inside the driver, which has no symbols; a launch also waits here if a stuck device's queue is full
    FramePattern(
        "device", r"<native>.*", r"(^|/)lib(cuda|amdhip64|hsa-runtime64|ascendcl|musa)[-.\w]*\.so", "synchronize"
    ),
    # Ray
    FramePattern(
        "ray_get", r"get|wait|get_objects|_get_object_refs|wait_object_refs", r"ray/_private/(worker|api)", "ray.get"
    ),
    FramePattern("ray_get", r"<native>.*ray::core::CoreWorker::(Get|Wait).*", "", "ray.get"),
    FramePattern("ray_get", r"wait_for_pg|ready", r"ray/util/placement_group", "placement group"),
    # of the frameworks of users' jobs
    *(pattern for its in frameworks().values() for pattern in its.waits),
    FramePattern("ray_idle", r"main_loop", r"ray/_private/worker", "waits for a task"),
    # work inside an engine's loop, which is not its loop
    FramePattern(
        "compute",
        r"forward\w*|run_batch|execute_model|load_weights\w*|load_model\w*|_call_impl|_wrapped_call_impl|backward"
        r"|(update|receive|reload)_weights?\w*",
    ),
    # engines: their transitions, their work, then their loops
    FramePattern("transition", r"sleep|wake_up\w*|wakeup|go_to_sleep|enter_sleep|exit_sleep", "<user>"),
    *sorted(
        (pattern for spec in specs().values() for pattern in spec.frames),
        key=lambda pattern: _OF_ENGINES.index(pattern.kind) if pattern.kind in _OF_ENGINES else len(_OF_ENGINES),
    ),
    # HTTP
    FramePattern("http_client", r"getresponse|_read_status|begin|urlopen|_make_request", r"http/client\.py|urllib"),
    FramePattern(
        "http_client",
        r"send|request|post|get|_send_single_request|handle_request",
        r"(requests|httpx|httpcore|urllib3"
        r"|aiohttp/client)",
    ),
    FramePattern(
        "http_client", r"_sleep_for_retry|request|_request|_retry_request", r"(openai|anthropic)/_base_client"
    ),
    FramePattern("http_client", r"_blocking|_next", r"grpc/_channel", "request"),
    FramePattern("http_server", r"serve_forever|handle_request_noblock", r"socketserver|http/server"),
    FramePattern("http_server", r"run|serve|main_loop|run_until_complete", r"uvicorn/"),
    # checkpoints and other work of one rank
    FramePattern(
        "checkpoint",
        r"save|_save|save_pretrained|save_file|_legacy_save|save_checkpoint|save_model|save_state_dict"
        r"|dcp_save|async_save|_save_checkpoint|save_hf_model|write_data",
        r"torch/|transformers/|safetensors|deepspeed"
        r"|accelerate|megatron|peft/",
    ),
    # by the name alone. A name may say what kind of hang it is, but never who is to blame (rules/groups.py). Names such
    # as checkpointed_forward, save_experience or validate_batch belong to a step that every rank runs.
    FramePattern(
        "checkpoint",
        r"_*(save|export|write|store|publish)(_and_\w+|_all|_to_disk)?"
        r"|_*(\w+_)?(save|export|write|store|publish)_(\w+_)?"
        r"(checkpoints?|ckpts?|models?|state|states|state_dict|weights|hf|pretrained|adapters?|lora|optimizer)(_\w+)?"
        r"|_*((do|make|run|maybe|take|async)_)?checkpoint",
        "<user>",
        "save",
    ),
    FramePattern(
        "evaluation",
        r"_*(\w+_)?evaluate(_(\w+_)?(model|policy|epoch|step|loop|dataset|set|all|on_\w+))?|_*validate|eval"
        r"|_*((do|run|maybe)_)?(eval|evaluation|validation)(_(epoch|step|loop|set|model|policy))?|run_eval\w*"
        r"|log_metrics|upload\w*|push_to_hub",
        "<user>",
    ),
    # compilers; the process that makes the lock file builds torch's extensions, and the others wait until it is gone
    FramePattern("build_lock", r"wait", r"torch/utils/file_baton", "the lock file of a build"),
    FramePattern(
        "compile",
        r"\w*",
        r"torch/(_inductor|_dynamo)/|triton/(compiler|runtime/build|backends)|torch/utils/cpp_ext",
        "compile",
    ),
    # plain waits
    FramePattern("sleep", r"<native>.*(clock_nanosleep|nanosleep|time_sleep|pysleep|usleep).*", ""),
    FramePattern("finished", r"_shutdown", r"threading\.py", "the end of the interpreter"),
    FramePattern("join", r"join", r"multiprocessing/process"),
    FramePattern("join", r"join", r"torch/multiprocessing/spawn", SPAWNED),
    FramePattern("join", r"wait|_try_wait|communicate|poll", r"subprocess\.py|multiprocessing/popen"),
    FramePattern(
        "queue", r"get|_recv|recv_bytes|recv|poll", r"(^|/)queue\.py|multiprocessing/(queues|connection)|zmq/"
    ),
    FramePattern(
        "lock",
        # a joined thread is of the same process: no other process has to do anything
        r"wait|acquire|__enter__|wait_for|result|join|_wait_for_tstate_lock",
        r"threading\.py|multiprocessing/synchronize|futures/_base",
    ),
    FramePattern("select", r"select|_run_once|run_forever", r"selectors\.py|asyncio/|uvloop"),
    FramePattern(
        "finished",
        r"destroy_process_group|_run_finalizers|_exit_function|shutdown",
        r"torch/distributed|"
        r"multiprocessing/util|weakref",
    ),
)

# Before a short path of a pasted stack, whose folder nobody printed: it is a library's by its name alone.
OF_STANDARD, OF_INSTALLED = "<stdlib>/", "<site-packages>/"
FUTURE = re.compile(r"/concurrent/futures/_base\.py$")  # where a thread waits for a result of another one
_FOREIGN = re.compile(
    r"site-packages/|dist-packages/|/lib/python3[^/]*/|^<|\.so(\.|$)|^lib[^/]*$|/probes/((site|adapters)/)?\w+\.py$"
    r"|^[^/]*$(?<!\.py)"
)
# torch as it was built from source, anywhere: modules of its own that stand in the stacks of jobs.
_SOURCE_BUILT = re.compile(
    r"/torch/(?:_tensor\.py|_ops\.py|_(?:dynamo|inductor)/|cuda/(?:__init__|streams|graphs)\.py"
    r"|multiprocessing/spawn\.py|autograd/(?:__init__|function|graph)\.py|nn/(?:modules|parallel)/"
    r"|optim/(?:optimizer|adam\w*|sgd|lr_scheduler)\.py|utils/(?:_contextlib|checkpoint|_device)\.py|utils/data/"
    r"|distributed/(?:distributed_c10d|c10d_logger|device_mesh|run|rendezvous|_functional_collectives)\.py"
    r"|distributed/(?:fsdp|_composable|elastic|launcher|tensor|checkpoint|algorithms|pipelining|rpc)/)"
)
# An engine that runs from a checkout, as after `pip install -e`: its folder has the engine's name, as `my-vllm/vllm/`,
# or it has the layout of SGLang (`python/NAME/`, `NAME/srt/`) or of vLLM (`NAME/v1/`).
_CHECKED_OUT = re.compile(
    rf"/[\w.-]*(?P<engine>{_ENGINES})[\w.-]*/(?P=engine)/|/python/(?:{_ENGINES})/|/(?:{_ENGINES})/(?:srt|v1)/"
)
# Compiled code: shared objects, the interpreter itself, and source files of compiled code with debug information.
_COMPILED = re.compile(r"\.so(\.[\w.]+)?$|\.(c|cc|cpp|cxx|cu|cuh|h|hh|hpp|rs|pyx|pxd|S)$|(^|/)python[\d.]*$")
# The C library and its sources: a wait ends there, and whoever called it says more.
SYSTEM = re.compile(r"(^|/)(libc|libpthread|ld-linux[\w-]*)[-.\d]*\.so|/(sysdeps|nptl)/|^native$")
_LIBRARY_SHORT = re.compile(rf"^(torch|ray|{_ENGINES}|transformers|threading|socket|selectors|asyncio)(/|\.py$)")


@lru_cache(maxsize=65536)
def match(frame: Frame) -> FramePattern | None:
    """The first entry of TABLE that matches a frame; None without one."""
    native = bool(_COMPILED.search(frame.file)) or (frame.line == 0 and "::" in frame.function)
    function = f"<native>{frame.function}" if native else plain(frame.function)
    mine = not native and users(frame)
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


def printed_file(file: str) -> str:
    """The file of a frame as a tool printed it."""
    return file.removeprefix(OF_STANDARD).removeprefix(OF_INSTALLED)


def users(frame: Frame) -> bool:
    """Whether a frame is of the user's code: not installed, not of the standard library, not compiled, and not ours."""
    if frame.file == "<string>":  # of `python -c`, where it is a function; dataclasses make dunder methods so, too
        return frame.function != "<module>" and not frame.function.startswith("__")
    return _users(frame.file)


def inner_frame(frames: Iterable[Frame]) -> Frame | None:
    """The innermost frame of the user's code; None without one."""
    return next(filter(users, frames), None)


def runs_users(thread: Thread) -> bool:
    """Whether a frame of a thread is of the user's code."""
    return any(map(users, thread.frames))


@lru_cache(maxsize=65536)
def _users(file: str) -> bool:
    foreign = (_FOREIGN, _LIBRARY_SHORT, _SOURCE_BUILT, _CHECKED_OUT, _COMPILED)
    return bool(file) and not any(pattern.search(file) for pattern in foreign)


def plain(function: str) -> str:
    """The last part of a qualified name."""
    return function.rsplit(".", 1)[-1]


@lru_cache(maxsize=1)
def _compiled() -> tuple[tuple[FramePattern, str, re.Pattern[str] | None], ...]:
    return tuple(
        (pattern, pattern.function, re.compile(pattern.file) if pattern.file and pattern.file != "<user>" else None)
        for pattern in TABLE
    )


@lru_cache(maxsize=512)
def _regex(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)
