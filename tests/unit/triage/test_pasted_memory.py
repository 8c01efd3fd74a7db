"""Where memory ran out: the phase, by the traceback, and who held it, by the message."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.triage.pasted import evidence
from probes import redaction

FULL = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB "
    "of which 1.10 GiB is free."
)
TORCH = "/opt/venv/lib/python3.12/site-packages/torch"
VLLM = "/opt/venv/lib/python3.12/site-packages/vllm/v1"
SGLANG = "/opt/venv/lib/python3.12/site-packages/sglang/srt"
Frames = tuple[tuple[str, str], ...]  # file and function, outermost first

TRAIN: Frames = (("/job/train.py", "<module>"), ("/job/train.py", "main"))
BACKWARD: Frames = ((f"{TORCH}/_tensor.py", "backward"), (f"{TORCH}/autograd/__init__.py", "backward"))
FORWARD: Frames = ((f"{TORCH}/nn/modules/module.py", "_call_impl"), ("/job/model.py", "forward"))
STEP: Frames = ((f"{TORCH}/optim/adamw.py", "step"), (f"{TORCH}/optim/adam.py", "_init_group"))
PHASES: dict[str, Frames] = {
    "while it ran forward": (*TRAIN, *FORWARD),
    "while it ran backward": (*TRAIN, *BACKWARD),
    "in the optimizer step": (*TRAIN, *STEP),
    "while it generated": ((f"{VLLM}/worker/gpu_model_runner.py", "execute_model"), *FORWARD),
    "while it synchronised weights": ((f"{SGLANG}/managers/tp_worker.py", "update_weights_from_tensor"),
                                      (f"{SGLANG}/models/llama.py", "load_weights")),
    "while it woke up": ((f"{VLLM}/worker/gpu_worker.py", "wake_up"),),
    "while it loaded a model": ((f"{VLLM}/worker/gpu_worker.py", "load_model"), *FORWARD),
    "while it allocated its KV cache": ((f"{VLLM}/worker/gpu_worker.py", "initialize_from_config"),
                                        (f"{VLLM}/worker/gpu_model_runner.py", "initialize_kv_cache")),
    "while it captured CUDA graphs": ((f"{VLLM}/worker/gpu_model_runner.py", "capture_model"), *FORWARD),
    "while it measured its memory": ((f"{VLLM}/worker/gpu_model_runner.py", "profile_run"), *FORWARD),
    "while it computed log-probabilities": (("/job/actor.py", "compute_log_prob"), *FORWARD),
}  # fmt: skip


def trace(frames: Frames, prefix: str = "", error: str = FULL) -> str:
    lines = ["Traceback (most recent call last):"]
    for file, function in frames:
        lines += [f'  File "{file}", line 7, in {function}', "    call()", "    ^^^^^^"]
    return "\n".join(prefix + line for line in (*lines, error))


def words_of(folder: Path, text: str) -> str:
    (folder / "job.log").write_text(text + "\n")
    read = evidence([str(folder / "job.log")])
    assert read is not None
    [error] = read.errors
    return error.what


@pytest.mark.parametrize("phase", PHASES)
def test_the_frames_of_the_traceback_name_the_phase(tmp_path: Path, phase: str) -> None:
    assert words_of(tmp_path, trace(PHASES[phase])) == f"ran out of GPU memory {phase}"


@pytest.mark.parametrize("prefix", ["[rank3]: ", "(EngineCore_DP0 pid=812) ", "ERROR 11-28 04:17:31 [core.py:517] "])
def test_behind_a_prefix_too(tmp_path: Path, prefix: str) -> None:
    assert "while it ran backward" in words_of(tmp_path, trace((*TRAIN, *BACKWARD), prefix))


def test_a_forward_pass_that_a_backward_pass_repeats_is_of_the_backward_pass(tmp_path: Path) -> None:
    assert "backward" in words_of(tmp_path, trace((*TRAIN, *BACKWARD, *FORWARD)))


def test_of_two_chained_tracebacks_the_last_counts(tmp_path: Path) -> None:
    first = trace((*TRAIN, *BACKWARD), error="KeyError: 'x'")
    text = f"{first}\n\nDuring handling of the above exception, another exception occurred:\n\n{trace((*TRAIN, *STEP))}"
    (tmp_path / "job.log").write_text(text + "\n")
    read = evidence([str(tmp_path / "job.log")])
    assert read is not None and read.errors[-1].what == "ran out of GPU memory in the optimizer step"


def test_two_ranks_that_write_in_turn_are_not_mixed(tmp_path: Path) -> None:
    texts = trace((*TRAIN, *BACKWARD), "[rank0]: "), trace((*TRAIN, *FORWARD), "[rank1]: ")
    pairs = zip(*(text.splitlines() for text in texts), strict=True)
    (tmp_path / "job.log").write_text("\n".join(line for pair in pairs for line in pair))
    read = evidence([str(tmp_path / "job.log")])
    assert read is not None
    assert [(error.rank, error.what.rpartition("memory ")[2]) for error in read.errors] == [
        (0, "while it ran backward"),
        (1, "while it ran forward"),
    ]


@pytest.mark.parametrize(
    "frames",
    [
        TRAIN,
        (("/job/train.py", "step"),),  # a step of the job, not of an optimizer
        (("/job/generate_report.py", "write"),),
    ],
)
def test_frames_that_name_no_phase_say_none(tmp_path: Path, frames: Frames) -> None:
    assert words_of(tmp_path, trace(frames)) == "ran out of GPU memory"


def test_an_error_without_a_traceback_has_no_phase(tmp_path: Path) -> None:
    assert words_of(tmp_path, FULL) == "ran out of GPU memory"


def test_another_error_of_a_backward_pass_is_told_without_a_phase(tmp_path: Path) -> None:
    assert "backward" not in words_of(tmp_path, trace((*TRAIN, *BACKWARD), error="ValueError: x"))


def test_each_process_that_held_the_device_is_told_with_its_role(tmp_path: Path) -> None:
    held = (
        f"{FULL} Process 812 has 40.00 GiB memory in use. Process 77 has 30.12 GiB memory in use. Including "
        "non-PyTorch memory, this process has 7.50 GiB memory in use. Of the allocated memory 6.0 GiB is PyTorch's."
    )
    words = words_of(tmp_path, "(EngineCore_DP0 pid=812) INFO started\n" + trace((*TRAIN, *STEP), error=held))
    assert words == (
        "ran out of GPU memory in the optimizer step: Process 812 (EngineCore_DP0) has 40.00 GiB, Process 77 has "
        "30.12 GiB, this process has 7.50 GiB"
    )


def test_host_memory_has_a_phase_too(tmp_path: Path) -> None:
    error = "OSError: [Errno 12] Cannot allocate memory"
    loading = (("/job/load.py", "load_checkpoint"),)
    assert words_of(tmp_path, trace(loading, error=error)) == "could not allocate host memory while it loaded a model"


@pytest.mark.parametrize("error", [
    "RuntimeError: CUDA error: out of memory", "RuntimeError: CUDA driver error: out of memory",
    "torch.AcceleratorError: CUDA error: out of memory", "RuntimeError: CUDA error: cudaErrorMemoryAllocation",
    "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "RuntimeError: HIP error: out of memory",
])  # fmt: skip
def test_each_library_says_in_its_words_that_memory_ran_out(tmp_path: Path, error: str) -> None:
    assert words_of(tmp_path, trace(PHASES["while it ran backward"], error=error)).startswith(
        "ran out of GPU memory while"
    )


def test_nccl_says_that_memory_ran_out(tmp_path: Path) -> None:
    line = "n1:71:90 [0] misc/utils.cc:12 NCCL WARN Cuda failure 2 'out of memory'"
    assert words_of(tmp_path, line) == "ran out of GPU memory"


@pytest.mark.parametrize("error", [
    "RuntimeError: CUDA error: an illegal memory access was encountered",
    "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`",
])  # fmt: skip
def test_another_cuda_error_is_not_about_memory(tmp_path: Path, error: str) -> None:
    assert words_of(tmp_path, error).startswith("met a CUDA error")


def test_no_phase_reads_like_the_name_of_a_secret() -> None:
    """`pass: pid 8123` is a password and its value for the scrubber."""
    for phase in PHASES:
        assert redaction.text(f"ran out of GPU memory {phase}: process 8123 has 41 GiB").endswith(
            "process 8123 has 41 GiB"
        )
