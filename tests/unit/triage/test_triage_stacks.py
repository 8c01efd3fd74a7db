"""What a process is doing, from its stack: every place of the table by an example, and what a user's frame is."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from triage_evidence import rank, samples

from harness.triage import copied_frames, directory
from harness.triage.evidence import Evidence, Frame, Process, Sample, Thread
from harness.triage.places import TABLE, match
from harness.triage.stacks import Doing, classify, doing, trail, user_frame

SITE = "/venv/lib/python3.11/site-packages"
EXAMPLES = [  # function, file, line, kind
    ("interaction", "/usr/lib/python3.11/pdb.py", "debugger"),
    ("cmdloop", "/usr/lib/python3.11/cmd.py", "debugger"),
    ("_do_wait_suspend", f"{SITE}/debugpy/_vendored/pydevd/pydevd.py", "debugger"),
    ("set_trace", f"{SITE}/ray/util/rpdb.py", "debugger"),
    ("init_process_group", f"{SITE}/torch/distributed/distributed_c10d.py", "store"),
    ("_new_group_with_tag", f"{SITE}/torch/distributed/distributed_c10d.py", "store"),
    ("_create_c10d_store", f"{SITE}/torch/distributed/rendezvous.py", "store"),
    ("_store_based_barrier", f"{SITE}/torch/distributed/distributed_c10d.py", "store"),
    ("init_custom_process_group", f"{SITE}/sglang/srt/utils/common.py", "store"),
    ("stateless_init_torch_distributed_process_group", f"{SITE}/vllm/distributed/utils.py", "store"),
    ("c10d::TCPStore::doWait", f"{SITE}/torch/lib/libtorch_cpu.so", "store"),
    ("all_reduce", f"{SITE}/torch/distributed/distributed_c10d.py", "collective"),
    ("barrier", f"{SITE}/torch/distributed/distributed_c10d.py", "collective"),
    ("monitored_barrier", f"{SITE}/torch/distributed/distributed_c10d.py", "collective"),
    ("broadcast_pyobj", f"{SITE}/sglang/srt/utils/common.py", "collective"),
    ("c10d::Work::wait", f"{SITE}/torch/lib/libtorch_cpu.so", "collective"),
    ("c10d::ProcessGroupNCCL::WorkNCCL::wait", f"{SITE}/torch/lib/libtorch_cuda.so", "collective"),
    ("recv", f"{SITE}/torch/distributed/distributed_c10d.py", "p2p"),
    ("get", f"{SITE}/ray/_private/worker.py", "ray_get"),
    ("get_objects", f"{SITE}/ray/_private/worker.py", "ray_get"),
    ("main_loop", f"{SITE}/ray/_private/worker.py", "ray_idle"),
    ("_call_impl", f"{SITE}/torch/nn/modules/module.py", "compute"),
    ("load_weights", f"{SITE}/vllm/model_executor/loader.py", "compute"),
    ("allocate_kv_cache", f"{SITE}/vllm/v1/worker/utils.py", "compute"),
    ("init_memory_pool", f"{SITE}/sglang/srt/model_executor/model_runner.py", "compute"),
    ("wake_up", f"{SITE}/vllm/v1/worker/gpu_worker.py", "transition"),
    ("release_memory_occupation", f"{SITE}/sglang/srt/managers/scheduler.py", "transition"),
    ("recv_requests", f"{SITE}/sglang/srt/managers/scheduler.py", "orders"),
    ("event_loop_overlap", f"{SITE}/sglang/srt/managers/scheduler.py", "scheduler"),
    ("run_busy_loop", f"{SITE}/vllm/v1/engine/core.py", "scheduler"),
    ("event_loop", "/job/engine.py", "scheduler"),
    ("get_output", f"{SITE}/vllm/v1/engine/core_client.py", "engine_call"),
    ("getresponse", "/usr/lib/python3.11/http/client.py", "http_client"),
    ("handle_request", f"{SITE}/httpcore/_sync/http11.py", "http_client"),
    ("serve_forever", "/usr/lib/python3.11/socketserver.py", "http_server"),
    ("save", f"{SITE}/torch/serialization.py", "checkpoint"),
    ("save_pretrained", f"{SITE}/transformers/modeling_utils.py", "checkpoint"),
    ("save_file", f"{SITE}/safetensors/torch.py", "checkpoint"),
    ("save_checkpoint", "/job/train.py", "checkpoint"),
    ("evaluate", "/job/train.py", "evaluation"),
    ("wait", f"{SITE}/torch/utils/file_baton.py", "build_lock"),
    ("load", f"{SITE}/torch/utils/cpp_extension.py", "compile"),
    ("compile_fx", f"{SITE}/torch/_inductor/compile_fx.py", "compile"),
    ("clock_nanosleep", "/usr/lib/libc.so.6", "sleep"),
    ("synchronize", f"{SITE}/torch/cuda/__init__.py", "device"),
    ("synchronize", f"{SITE}/torch/cuda/streams.py", "device"),
    ("cudaStreamSynchronize", "/usr/local/cuda/lib64/libcudart.so.12", "device"),
    ("cuEventSynchronize", "/usr/lib/libcuda.so.1", "device"),
    ("at::native::_local_scalar_dense_cuda", f"{SITE}/torch/lib/libtorch_cuda.so", "device"),
    ("join", "/usr/lib/python3.11/threading.py", "lock"),
    ("communicate", "/usr/lib/python3.11/subprocess.py", "join"),
    ("get", "/usr/lib/python3.11/queue.py", "queue"),
    ("wait", "/usr/lib/python3.11/threading.py", "lock"),
    ("select", "/usr/lib/python3.11/selectors.py", "select"),
    ("destroy_process_group", f"{SITE}/torch/distributed/distributed_c10d.py", "finished"),
]
OTHERS = [  # look like one of those, and are not
    ("all_reduce", "/job/metrics.py"),
    ("get", "/job/train.py"),
    ("save", "/job_data/loader.so"),
    ("step", "/job/train.py"),
    ("wait", "/job/train.py"),
]


@pytest.mark.parametrize(("function", "file", "kind"), EXAMPLES)
def test_a_place_is_known_by_its_frame(function, file, kind):
    line = 0 if file.endswith(".so") or ".so." in file else 12
    found = match(Frame(function, file, line))
    assert found is not None and found.kind == kind


def test_every_kind_of_the_table_has_an_example():
    assert {entry.kind for entry in TABLE} <= {kind for _, _, kind in EXAMPLES}


@pytest.mark.parametrize(("function", "file"), OTHERS)
def test_the_same_name_elsewhere_is_no_such_place(function, file):
    assert match(Frame(function, file, 12)) is None


def stack(*names):
    """Innermost first."""
    return Thread("MainThread", 1, tuple(Frame(name, file, line) for name, file, line in names), main=True)


TORCH = f"{SITE}/torch/distributed/distributed_c10d.py"


def test_the_innermost_place_decides_and_the_outer_ones_are_kept():
    thread = stack(
        ("all_gather", TORCH, 3251),
        ("_exception_logger.<locals>.wrapper", f"{SITE}/torch/distributed/c10d_logger.py", 83),
        ("all_gather_object", TORCH, 3300),
        ("save_full_state", "/job/train.py", 26),
        ("main", "/job/train.py", 50),
    )
    found = classify(thread)
    assert (found.kind, found.op, found.around) == ("collective", "all_gather", ("checkpoint",))
    assert found.frame == "train.py:26 in save_full_state" and found.waiting and found.within("checkpoint")


def test_a_native_stack_names_what_python_cannot_show():
    python = stack(("step", "/job/train.py", 15))
    native = Thread(
        "MainThread",
        1,
        (
            Frame("pthread_cond_wait", "/lib/libc.so.6", 0),
            Frame("c10d::Work::wait", "/x/libtorch_cpu.so", 0),
            Frame("step", "/job/train.py", 15),
        ),
        native=True,
    )
    assert classify(python).kind == "user"
    assert classify(python, None, native).kind == "collective"
    assert classify(python, Sample(0.0, "S", wchan="hrtimer_nanosleep")).kind == "sleep"


@pytest.mark.parametrize(
    ("frames", "said"),
    [
        ([("all_reduce", TORCH, 9), ("step", "/job/a.py", 4)], "a.py:4 in step"),
        (
            [("wait", "/usr/lib/python3.11/threading.py", 9), ("update", f"{SITE}/verl/workers/actor.py", 7)],
            "actor.py:7 in update",
        ),
        (
            [("run", f"{SITE}/vllm/v1/engine/core.py", 2), ("fit", f"{SITE}/openrlhf/trainer/ppo.py", 7)],
            "core.py:2 in run",
        ),
        ([("main_loop", f"{SITE}/ray/_private/worker.py", 2)], ""),
        ([("poll", "/repo/probes/heartbeat.py", 2), ("main", "/job/a.py", 1)], "a.py:1 in main"),
        ([], ""),
    ],
)
def test_the_users_frame(frames, said):
    assert user_frame([Frame(*one) for one in frames]) == said


def test_another_thread_speaks_when_the_main_one_only_waits():
    main = stack(("wait", "/usr/lib/python3.11/threading.py", 9), ("main", "/job/a.py", 4))
    worker = Thread("Thread-1", 2, (Frame("all_reduce", TORCH, 9), Frame("hook", "/job/a.py", 40)))
    idle = Thread(
        "beat", 3, (Frame("wait", "/usr/lib/python3.11/threading.py", 9), Frame("run", "/repo/probes/heartbeat.py", 9))
    )
    seen = Process("h", 1, samples=(Sample(0.0, "S", threads=(main, idle, worker)),))
    assert doing(seen).kind == "collective" and doing(seen).frame == "a.py:40 in hook"
    assert doing(Process("h", 1, samples=(Sample(0.0, "S", threads=(main, idle)),))).kind == "lock"
    assert doing(Process("h", 1)) == Doing()


@pytest.mark.parametrize(
    ("function", "kind"), [("write", "queue"), ("_store", "queue"), ("save_checkpoint", "checkpoint")]
)
def test_a_thread_that_writes_metrics_saves_no_checkpoint(function: str, kind: str) -> None:
    main = stack(("_recv", "/usr/lib/python3.11/multiprocessing/connection.py", 9), ("wait_for_wake", "/job/a.py", 4))
    beside = Thread("metrics", 2, (Frame(function, "/job/log.py", 9),))
    assert doing(Process("h", 1, samples=(Sample(0.0, "S", threads=(main, beside)),))).kind == kind


def test_a_trail_is_the_main_threads():
    first, last = samples("main:1 step:2", "main:1 step:3")
    assert trail(first.threads) != trail(last.threads)
    assert doing(rank(0, "main event_loop receive")).idle
    assert not doing(rank(0, "main event_loop forward all_reduce")).idle


def test_a_loop_around_a_task_that_is_worked_on_is_not_idle() -> None:
    loop = Frame("main_loop", "/env/site-packages/ray/_private/worker.py", 1)
    executor = Frame("actor_method_executor", "/env/site-packages/ray/_private/function_manager.py", 2)
    user = Frame("decode", "/home/me/rollout.py", 3)
    serve = Frame("serve_forever", "/usr/lib/python3.11/socketserver.py", 4)

    def idle(*frames: Frame) -> bool:
        return classify(Thread("MainThread", 1, frames, main=True)).idle

    assert idle(loop) and idle(serve)
    assert not idle(user, executor, loop) and not idle(executor, loop) and not idle(user, serve)


@pytest.mark.parametrize(
    ("frames", "kind"),
    [
        (("select selectors.py", "_run_once asyncio/base_events.py", "run_forever asyncio/base_events.py"), "ray_idle"),
        (("run threading.py", "_bootstrap threading.py"), "ray_idle"),  # uvloop: its frames are in C
        (("step /job/actor.py", "_run asyncio/events.py", "_run_once asyncio/base_events.py"), "user"),
        (("step /job/actor.py", "run threading.py", "_bootstrap threading.py"), "user"),
    ],
)
def test_what_an_asyncio_actor_does_is_what_its_event_loop_calls(frames: tuple[str, ...], kind: str) -> None:
    def place(text: str) -> Frame:
        function, file = text.split()
        return Frame(function, file if file[0] == "/" else f"/usr/lib/python3.11/{file}", 1)

    idle = Thread("MainThread", 7, (Frame("main_loop", f"{SITE}/ray/_private/worker.py", 1069),), main=True)
    for name, expected in (("AsyncIO Thread: default", kind), ("Thread-1", "ray_idle")):
        other = Thread(name, 8, tuple(map(place, frames)))
        assert doing(Process("host", 7, samples=(Sample(0.0, "S", 0.0, threads=(idle, other)),))).kind == expected


def test_a_forked_child_has_no_frames_of_its_parent() -> None:
    library = "/usr/lib/python3.11/multiprocessing"
    own = (Frame("work", "/job/train.py", 3), Frame("run", f"{library}/process.py", 108),
           Frame("_bootstrap", f"{library}/process.py", 314))  # fmt: skip
    copied = (Frame("_launch", f"{library}/popen_fork.py", 71), Frame("start", f"{library}/process.py", 121),
              Frame("main", "/job/train.py", 9))  # fmt: skip
    child = Thread("MainThread", 7, (*own, *copied), main=True)
    forks = Thread("MainThread", 7, copied, main=True)
    assert copied_frames.since_fork([child, forks]) == (dataclasses.replace(child, frames=own), forks)
    assert copied_frames.forked_at([child]) == "train.py:9 in main" and not copied_frames.forked_at([forks])


def test_evidence_that_was_taken_with_frames_of_the_parent_is_read_without_them(tmp_path: Path) -> None:
    library = "/usr/lib/python3.11/multiprocessing"
    run = Frame("run", f"{library}/process.py", 108)
    copied = (Frame("_launch", f"{library}/popen_fork.py", 71), Frame("main", "/job/train.py", 9))
    kept = Process("host", 7, samples=(Sample(0.0, "S", threads=(Thread("MainThread", 7, (run, *copied)),)),))
    directory.write(Evidence(str(tmp_path), "live", "", 0.0, (kept,)), tmp_path)
    (process,) = directory.read(tmp_path).processes
    assert (process.threads[0].frames, process.forked_at) == ((run,), "train.py:9 in main")


FORKS = """
def start():
    pid = os.fork()
    if pid == 0:
        work()

def twice():
    if os.fork():
        return
    if os.fork() == 0:
        work()

def behind():
    work()
    os.fork()

def starts_later():
    def later():
        os.fork()
    work()
"""


@pytest.mark.parametrize(
    ("function", "line", "forked", "place"),
    [
        ("start", 5, True, "job.py:3 in start"),
        ("start", 5, False, ""),  # the parent itself
        ("twice", 11, True, ""),  # which of the two is not known
        ("behind", 14, True, ""),
        ("starts_later", 20, True, ""),  # in a function of its own
    ],
)
def test_the_text_says_where_a_process_was_forked(
    tmp_path: Path, function: str, line: int, forked: bool, place: str
) -> None:
    path = tmp_path / "job.py"
    path.write_text(FORKS)
    frames = (Frame("work", "/nowhere/work.py", 3), Frame(function, str(path), line), Frame("<module>", str(path), 21))
    look = Sample(0.0, "S", threads=(Thread("MainThread", 7, frames, main=True),))
    process = Process("host", 7, samples=(look,), forked=forked)
    assert copied_frames.fork_place(process) == place
    by_multiprocessing = dataclasses.replace(process, forked_at="train.py:9 in main")
    assert copied_frames.fork_place(by_multiprocessing) == "train.py:9 in main"
