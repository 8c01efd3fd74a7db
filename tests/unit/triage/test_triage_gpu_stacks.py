"""Stacks of jobs on GPUs, as py-spy shows them with and without native frames: what each process does by them.

Modelled on dumps in public reports of hangs: vLLM's workers and engine core, SGLang's schedulers, verl, OpenRLHF, NCCL.
"""

from __future__ import annotations

import dataclasses
import time

import pytest
from triage_evidence import HOST, compared, evidence, group, process, rank

from harness.triage import stacks
from harness.triage.evidence import Frame, Gpu, OpenSpan, Process, Sample, Thread
from harness.triage.judge import triage
from harness.triage.places import match, users

SITE = "/venv/lib/python3.12/site-packages/"
LIB = "/usr/lib/python3.12/"


def stack(*frames: str, tid: int = 100, name: str = "MainThread", **more: object) -> Thread:
    """Frames innermost first, "function (file:line)"; a library has no line."""
    found = []
    for text in frames:
        function, _, rest = text.partition(" (")
        file, _, line = rest.rstrip(")").partition(":")
        where = file if file.startswith(("/", "lib")) else f"{SITE if '/' in file else LIB}{file}"
        found.append(Frame(function, where, int(line or 0)))
    return Thread(name, tid, tuple(found), main=name == "MainThread", **more)  # type: ignore[arg-type]


def of(*frames: str, native: tuple[str, ...] = (), others: tuple[Thread, ...] = (),
       natives: tuple[Thread, ...] = ()) -> stacks.Doing:  # fmt: skip
    look = Sample(0.0, "S", threads=(stack(*frames), *others))
    deep = (stack(*native), *natives) if native or natives else ()
    return stacks.doing(Process(HOST, 100, samples=(look,), native=deep))


WORKER = ("worker_busy_loop (vllm/v1/executor/multiproc_executor.py:973)",
          "worker_main (vllm/v1/executor/multiproc_executor.py:879)")  # fmt: skip
SCHEDULER = ("event_loop_overlap (sglang/srt/managers/scheduler.py:1010)",
             "run_scheduler_process (sglang/srt/managers/scheduler.py:2769)")  # fmt: skip
TRAIN = ("train_step (/job/train.py:42)", "main (/job/train.py:10)")
WRAPPER = "wrapper (torch/distributed/c10d_logger.py:83)"


@pytest.mark.parametrize(
    ("frames", "kind", "idle"),
    [
        (("poll (zmq/sugar/poll.py:106)", "wait (vllm/distributed/device_communicators/shm_broadcast.py:198)",
          "acquire_read (vllm/distributed/device_communicators/shm_broadcast.py:698)",
          "dequeue (vllm/distributed/device_communicators/shm_broadcast.py:779)", *WORKER), "queue", True),
        (("acquire_read (vllm/distributed/device_communicators/shm_broadcast.py:698)",
          "dequeue (vllm/distributed/device_communicators/shm_broadcast.py:779)", *WORKER), "scheduler", True),
        (("sched_yield (vllm/distributed/utils.py:60)",
          "acquire_read (vllm/distributed/device_communicators/shm_broadcast.py:698)",
          "dequeue (vllm/distributed/device_communicators/shm_broadcast.py:779)", *WORKER), "scheduler", True),
        (("poll (zmq/sugar/poll.py:106)", "recv (vllm/distributed/device_communicators/shm_broadcast.py:802)",
          "dequeue (vllm/distributed/device_communicators/shm_broadcast.py:794)",
          "get_response (vllm/v1/executor/multiproc_executor.py:387)",
          "result (vllm/v1/executor/multiproc_executor.py:90)",
          "step_with_batch_queue (vllm/v1/engine/core.py:591)",
          "run_busy_loop (vllm/v1/engine/core.py:1100)"), "engine_call", False),
        (("wait (threading.py:355)", "get (queue.py:171)", "_process_input_queue (vllm/v1/engine/core.py:760)",
          "run_busy_loop (vllm/v1/engine/core.py:740)"), "lock", True),
        (("synchronize (torch/cuda/streams.py:231)", "get_output (vllm/v1/worker/gpu_model_runner.py:250)",
          *WORKER), "device", False),
        (("broadcast (vllm/distributed/device_communicators/pynccl.py:330)",
          "update_weight (openrlhf/trainer/ray/vllm_worker_wrap.py:60)", *WORKER), "collective", False),
        (("all_reduce (torch/distributed/distributed_c10d.py:2501)", WRAPPER,
          "all_reduce (vllm/distributed/parallel_state.py:120)", "forward (vllm/model_executor/models/llama.py:90)",
          *WORKER), "collective", False),
        (("synchronize (torch/cuda/__init__.py:1083)", *TRAIN), "device", False),
        (("synchronize (torch/cuda/streams.py:231)", "resolve_last_batch_result (sglang/srt/managers/scheduler.py:9)",
          *SCHEDULER), "device", False),
        (("broadcast (torch/distributed/distributed_c10d.py:2772)", WRAPPER,
          "broadcast_pyobj (sglang/srt/utils/common.py:1300)",
          "recv_requests (sglang/srt/managers/scheduler.py:1177)", *SCHEDULER), "collective", False),
        (("get_objects (ray/_private/worker.py:974)", "get (ray/_private/worker.py:2849)",
          "wrapper (ray/_private/client_mode_hook.py:104)", "func (verl/single_controller/ray/base.py:49)",
          "update_actor (verl/trainer/ppo/ray_trainer.py:1291)"), "ray_get", False),
        (("broadcast (torch/distributed/distributed_c10d.py:2772)", WRAPPER,
          "_broadcast_param (openrlhf/trainer/ray/ppo_actor.py:300)",
          "broadcast_to_vllm (openrlhf/trainer/ray/ppo_actor.py:320)",
          "actor_method_executor (ray/_private/function_manager.py:740)",
          "main_loop (ray/_private/worker.py:1066)"), "collective", False),
        (("_all_gather_base (torch/distributed/distributed_c10d.py:3900)", *TRAIN), "collective", False),
        (("_reduce_scatter_base (torch/distributed/distributed_c10d.py:4400)", *TRAIN), "collective", False),
        (("wait_tensor (torch/distributed/_functional_collectives.py:130)", *TRAIN), "collective", False),
        (("all_gather_tensor (torch/distributed/_functional_collectives.py:200)", *TRAIN), "collective", False),
        (("poll (multiprocessing/connection.py:257)", "get (multiprocessing/queues.py:113)",
          "_try_get_data (torch/utils/data/dataloader.py:1284)", *TRAIN), "queue", True),
    ],
)  # fmt: skip
def test_python_frames_alone(frames: tuple[str, ...], kind: str, idle: bool) -> None:
    found = of(*frames)
    assert (found.kind, found.idle) == (kind, idle), found


@pytest.mark.parametrize(
    ("native", "kind"),
    [
        (("cudaStreamSynchronize (libcudart.so.12)", "c10::cuda::CUDAStream::synchronize (libc10_cuda.so)"), "device"),
        (("0x7f01 (libcuda.so.1)", "0x7f02 (libcuda.so.1)", "cuStreamSynchronize (libcuda.so.1)"), "device"),
        (("cuCtxSynchronize (libcuda.so.1)", "cudaDeviceSynchronize (libcudart.so.12)"), "device"),
        (("0x7f01 (libc.so.6)", "0x7f02 (libcuda.so.535.104.05)", "0x7f03 (libcudart.so.12)"), "device"),
        (("cuMemcpyDtoHAsync_v2 (libcuda.so.1)", "at::native::_local_scalar_dense_cuda (libtorch_cuda.so)"), "device"),
        (("cuLaunchKernel (libcuda.so.1)", "cudaLaunchKernel (libcudart.so.12)"), "device"),
        (("hsa_signal_wait_scacquire (libhsa-runtime64.so.1)",), "device"),
        (("0x7fa2 (libc.so.6)", "pthread_cond_timedwait (libc.so.6)",
          "gloo::transport::tcp::UnboundBuffer::waitRecv (libtorch_cpu.so)",
          "c10d::ProcessGroupGloo::RecvWork::wait (libtorch_cpu.so)"), "collective"),
        (("0x7fa2 (libc.so.6)", "gloo::transport::tcp::UnboundBuffer::waitSend (libtorch_cpu.so)"), "collective"),
        (("c10d::ProcessGroupNCCL::WorkNCCL::synchronizeInternal (libtorch_cuda.so)",), "collective"),
        (("ncclCommInitRankConfig (libnccl.so.2)", "c10d::NCCLComm::create (libtorch_cuda.so)"), "collective"),
        (("clock_nanosleep (/build/glibc/sysdeps/unix/sysv/linux/clock_nanosleep.c:78)",
          "time_sleep (/usr/local/src/conda/python-3.12.13/Modules/timemodule.c:410)"), "sleep"),
    ],
)  # fmt: skip
def test_native_frames_say_what_python_does_not(native: tuple[str, ...], kind: str) -> None:
    assert of(*TRAIN, native=(*native, *TRAIN)).kind == kind


@pytest.mark.parametrize(
    "native",
    [
        ("pthread_cond_timedwait (libc.so.6)", "c10d::ProcessGroupNCCL::heartbeatMonitor (libtorch_cuda.so)"),
        ("cudaEventQuery (libcudart.so.12)", "c10d::ProcessGroupNCCL::WorkNCCL::isCompleted (libtorch_cuda.so)",
         "c10d::ProcessGroupNCCL::Watchdog::runLoop (libtorch_cuda.so)"),
        ("pthread_cond_wait (libc.so.6)", "c10d::ProcessGroupNCCL::watchdogHandler (libtorch_cuda.so)"),
        ("pthread_cond_wait (libc.so.6)", "c10d::ProcessGroupGloo::runLoop (libtorch_cpu.so)"),
        ("poll (libc.so.6)", "ncclProxyService (libnccl.so.2)"),
        ("0x7f (libnccl.so.2)", "ncclProxyProgress (libnccl.so.2)"),
        ("poll (libc.so.6)", "0x7f03 (libcuda.so.1)"),
    ],
)  # fmt: skip
def test_a_watchdog_or_proxy_thread_is_no_wait_of_its_process(native: tuple[str, ...]) -> None:
    """py-spy lists it once it has held the interpreter lock: without a Python frame."""
    beside = stack(tid=7, name="")
    found = of("keep_alive (/job/train.py:44)", *TRAIN, others=(beside,), natives=(stack(*native, tid=7, name=""),))
    assert found.kind == "user", found


@pytest.mark.parametrize(
    "frame",
    [
        "select_poll_poll_impl (/usr/local/src/conda/python-3.12.13/Modules/selectmodule.c:678)",
        "at::native::copy_ (/pytorch/aten/src/ATen/native/Copy.cpp:300)",
        "_raylet_task_execution_handler (/ray/python/ray/_raylet.pyx:1900)",
        "launch (/src/csrc/kernels/attention.cu:33)",
        "run (/rustc/tokio/src/runtime.rs:3)",
    ],
)  # fmt: skip
def test_source_lines_of_compiled_code_are_no_code_of_the_user(frame: str) -> None:
    assert not users(stack(frame).frames[0])
    assert match(Frame("save_checkpoint", "/src/csrc/io.cpp", 3)) is None


# --- what follows


def late(one: Process, *, world: int = 4, **more: object) -> tuple[str, str, set[int | None]]:
    ranks = [rank(n, "main:10 step:42 all_reduce", world=world) for n in range(1, world)]
    at = compared(group("0", {0: 16, **dict.fromkeys(range(1, world), (17, "all_reduce"))}))
    found = triage(evidence(one, *ranks, **more), at)  # type: ignore[arg-type]
    assert found.triage is not None
    return found.verdict, found.triage.hang, {party.rank for party in found.triage.culprits}


def test_threads_of_nccl_and_cuda_that_poll_are_no_progress() -> None:
    """A proxy thread has a core for itself while any operation is on its way."""
    one = rank(0, "main:10 step:44 keep_alive")
    looks = tuple(
        dataclasses.replace(look, cpu_s=1.5 * at, main_cpu_s=0.0, main_io_bytes=0, service_cpu_s=1.5 * at)
        for at, look in enumerate(one.samples)
    )
    assert late(dataclasses.replace(one, samples=looks)) == ("HUNG", "K4", {0})


def in_device(number: int, *, world: int = 2, engine: str = "vllm") -> Process:
    one = rank(number, world=world, engine=engine, title="VLLM::Worker_TP")
    main = stack("synchronize (torch/cuda/streams.py:231)", "get_output (vllm/v1/worker/gpu_model_runner.py:250)",
                 *WORKER, tid=100 + number, active=True)  # fmt: skip
    looks = tuple(
        dataclasses.replace(look, threads=(main,), state="R", cpu_s=1.5 * at, main_cpu_s=1.5 * at)
        for at, look in enumerate(one.samples or (Sample(0.0, "R"), Sample(1.5, "R")))
    )
    return dataclasses.replace(one, samples=looks)


def test_an_engine_whose_collectives_no_recorder_holds_names_none_of_its_ranks() -> None:
    """CUDA graphs and pynccl: a stuck device is as likely a peer that did not come."""
    core = process(9, "engine", engine="vllm")
    call = stack(
        "get_response (vllm/v1/executor/multiproc_executor.py:387)", "run_busy_loop (vllm/v1/engine/core.py:1)", tid=9
    )
    core = dataclasses.replace(core, samples=tuple(Sample(1.5 * n, "S", threads=(call,)) for n in range(2)))
    workers = [dataclasses.replace(in_device(n), ppid=9) for n in range(2)]
    recorded = compared(group("0", {0: 16, 1: 16}))
    found = triage(evidence(core, *workers, stall_s=400.0), recorded)
    assert not found.triage.culprits and found.verdict in ("INSUFFICIENT", "HUNG"), found.reason  # type: ignore[union-attr]


def test_an_idle_engine_whose_ranks_wait_for_orders_is_not_hung() -> None:
    """SGLang with --sleep-on-idle: rank 0 polls for requests, the others stand in the broadcast of what it has got."""
    first = stack("poll (zmq/sugar/poll.py:106)", "recv_requests (sglang/srt/managers/scheduler.py:1150)", *SCHEDULER)
    other = stack("broadcast (torch/distributed/distributed_c10d.py:2772)", WRAPPER,
                  "broadcast_pyobj (sglang/srt/utils/common.py:1300)",
                  "recv_requests (sglang/srt/managers/scheduler.py:1177)", *SCHEDULER, tid=101)  # fmt: skip
    ranks = [
        dataclasses.replace(rank(n, world=2, engine="sglang"), samples=tuple(
            Sample(1.5 * at, "S", threads=(threads,)) for at in range(2)))
        for n, threads in enumerate((first, other))
    ]  # fmt: skip
    found = triage(evidence(*ranks), compared(group("cpu", {0: 80, 1: (81, "broadcast")})))
    assert found.verdict == "HEALTHY" and not found.triage.culprits, found.reason  # type: ignore[union-attr]


def test_a_rank_that_waits_for_orders_of_one_that_does_not_come_back_is_no_idle_engine() -> None:
    stuck = rank(0, "main event_loop_normal forward lock.wait", world=2, engine="sglang")
    other = stack("broadcast (torch/distributed/distributed_c10d.py:2772)", WRAPPER,
                  "broadcast_pyobj (sglang/srt/utils/common.py:1300)",
                  "recv_requests (sglang/srt/managers/scheduler.py:1177)", *SCHEDULER, tid=101)  # fmt: skip
    waits = dataclasses.replace(rank(1, world=2, engine="sglang"), samples=tuple(
        Sample(1.5 * at, "S", threads=(other,)) for at in range(2)))  # fmt: skip
    found = triage(evidence(stuck, waits), compared(group("cpu", {0: 80, 1: (81, "broadcast")})))
    assert found.verdict == "HUNG" and {one.rank for one in found.triage.culprits} == {0}, found.reason  # type: ignore[union-attr]


@pytest.mark.parametrize("source", ["float(loss)", "bool(done)", "logits.to('cpu')", "mask.nonzero()"])
def test_lines_that_wait_for_a_device_by_their_text(source: str, tmp_path: object) -> None:
    file = f"{tmp_path}/step.py"
    with open(file, "w") as text:
        text.write(f"def step(loss, done, logits, mask):\n    return {source}\n")
    one = rank(0, "main:10")
    main = Thread("MainThread", 100, (Frame("step", file, 2),), main=True, active=True)
    looks = tuple(
        dataclasses.replace(look, threads=(main,), state="R", cpu_s=1.5 * at, main_cpu_s=1.5 * at)
        for at, look in enumerate(one.samples)
    )
    one = dataclasses.replace(one, samples=looks)
    assert late(one, stall_s=301.0, gpus=(Gpu(HOST, 0, "H100", 1, 2, 1.0),)) == ("HUNG", "K9", {0})


# --- a thousand processes


def timed(seconds: float, *ranks: Process, at: object = None) -> str:
    began = time.process_time()
    found = triage(evidence(*ranks), at)  # type: ignore[arg-type]
    assert time.process_time() - began < seconds, found.reason
    return f"{found.verdict} {found.triage.hang}"  # type: ignore[union-attr]


WORLD = 1000


@pytest.mark.slow
def test_a_group_of_a_thousand_that_never_forms() -> None:
    span = (OpenSpan("init_process_group", 20.0, {"world_size": WORLD}),)
    ranks = [rank(n, "main init_process_group", world=WORLD, spans=span) for n in range(WORLD - 1)]
    assert timed(10.0, *ranks, rank(WORLD - 1, "main wait_for_lock", world=WORLD)) == "HUNG K5"


@pytest.mark.slow
def test_a_thousand_ranks_one_of_which_has_not_come() -> None:
    ranks = [rank(n, "main:10 step:42 all_reduce", world=WORLD) for n in range(1, WORLD)]
    at = compared(group("0", {0: 16, **dict.fromkeys(range(1, WORLD), (17, "all_reduce"))}))
    assert timed(10.0, rank(0, "main:10 step:44 keep_alive", world=WORLD), *ranks, at=at) == "HUNG K4"


@pytest.mark.slow
def test_a_thousand_ranks_without_a_recorder() -> None:
    ranks = [rank(n, "main:10 step:42 all_reduce", world=WORLD) for n in range(1, WORLD)]
    assert timed(10.0, rank(0, "main:10 step:44 keep_alive", world=WORLD), *ranks).startswith("HUNG")
