"""What a process said before it died, from its own output."""

import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from scenarios.engines import engine_processes, last_words

SGLANG = """\
[2026-11-23 02:00:00] Scheduler hit an exception: Traceback (most recent call last):
  File "scheduler.py", line 4310, in run_scheduler_process
    scheduler = Scheduler(
AttributeError: 'Gemma2Config' object has no attribute 'hidden_act'

[2026-11-23 02:00:01] Received sigquit from a child process. It usually means the child failed.
"""
VLLM = """\
\x1b[0;36m(EngineCore pid=31)\x1b[0;0m ERROR 11-23 02:00:00 [core.py:1100] Traceback (most recent call last):
(Worker_TP1 pid=33) ERROR 11-23 02:00:00 [executor.py:800]   File "cpu_worker.py", line 92
(Worker_TP1 pid=33) ERROR 11-23 02:00:00 [multiproc_executor.py:800] AssertionError: not enough cores for 2 ranks
(EngineCore pid=31) ERROR 11-23 02:00:01 [core.py:9] Exception: WorkerProc initialization failed. See stack trace.
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""


TRACED = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    f()\n'


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (SGLANG, "AttributeError: 'Gemma2Config' object has no attribute 'hidden_act'"),
        (VLLM, "AssertionError: not enough cores for 2 ranks"),
        ("Fatal Python error: Segmentation fault\n\nThread 0x01:\n", "Fatal Python error: Segmentation fault"),
        ("torch.OutOfMemoryError: CUDA out of memory.\n", "torch.OutOfMemoryError: CUDA out of memory."),
        (TRACED + 'Exception: boom. This\n', "Exception: boom. This"),
        ("Exception: boom\n", "Exception: boom"),
        (TRACED + "Stuck\n", "Stuck"),
        (TRACED + "_queue.Empty\n", "_queue.Empty"),
        (TRACED + "mine.Stuck: boom\nof two lines\n", "mine.Stuck: boom"),
        (TRACED + "Loading weights: 3 of 4\n", ""),
        ("  indented\nStuck: no traceback\n", ""),
        ("loading weights\nready\n", ""),
        ("The error: of its ways\nNo Exception here\n", ""),
    ],
)  # fmt: skip
def test_the_cause_is_the_exception_that_others_point_at(text: str, cause: str, tmp_path: Path) -> None:
    (tmp_path / "worker.err").write_text(text)
    assert last_words.root_cause({tmp_path / "worker.err": 0}) == cause


def test_what_was_said_before_the_start_is_not_its_cause(tmp_path: Path) -> None:
    log = tmp_path / "worker.err"
    log.write_text("ValueError: of the engine before\n")
    begun = last_words.sizes([log, tmp_path / "absent"])
    assert last_words.root_cause(begun) == ""
    with log.open("a") as more:
        more.write("ValueError: of this one\n")
    assert last_words.root_cause(begun) == "ValueError: of this one"


@pytest.mark.slow
def test_a_process_finds_the_files_of_its_own_output(tmp_path: Path) -> None:
    program = (
        "import subprocess, sys; from scenarios.engines import last_words;"
        "begun = last_words.sizes(last_words.own_output());"
        "subprocess.run([sys.executable, '-c', 'raise LookupError(1)']);"
        "print(sorted(file.name for file in begun), last_words.root_cause(begun))"
    )
    with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as err:
        subprocess.run([sys.executable, "-c", program], stdout=out, stderr=err, check=True)
    assert (tmp_path / "out").read_text() == "['err', 'out'] LookupError: 1\n"


# SGLang 0.5.23 with two ranks and cores for one (SGLANG_CPU_OMP_THREADS_BIND=0), as it was logged, shortened.
SGLANG_RANKS = """\
[2026-11-25 00:58:44 TP1] Scheduler hit an exception: Traceback (most recent call last):
  File "numa_utils.py", line 492, in init_threads_binding
    assert 0 <= numa_index < len(threads_bind_list), (
AssertionError: NUMA index 1 (derived from the worker's global device id / gpu_id) is out of range for the 1 ...

[2026-11-25 00:58:44] Received sigquit from a child process. It usually means the child failed.
"""


@pytest.mark.parametrize("ended", [None, -9, 1])
def test_the_rank_that_failed_is_the_cause(ended: int | None, tmp_path: Path) -> None:
    assert cause_of(SGLANG_RANKS, ended, tmp_path).startswith("AssertionError: NUMA index 1 (derived")


HARMLESS = """\
INFO 11-23 02:00:00 [loader.py:1] loading
Traceback (most recent call last):
  File "probe.py", line 3, in look
ModuleNotFoundError: No module named 'flash_attn'
INFO 11-23 02:00:09 [loader.py:9] flash_attn is not there, going on without
step 17 done
"""
LONG = "ValueError: max seq len (8192) needs 1.0 GiB of KV cache,\nwhich is more than there is (0.5 GiB).\n"


def cause_of(text: str, ended: int | None, folder: Path) -> str:
    (folder / "worker.err").write_text(text)
    return last_words.root_cause({folder / "worker.err": 0}, ended)


@pytest.mark.parametrize("ended", [-9, None])
def test_an_exception_that_a_process_survived_is_not_its_cause(ended: int | None, tmp_path: Path) -> None:
    assert not cause_of(HARMLESS, ended, tmp_path).startswith("ModuleNotFoundError")
    assert cause_of(HARMLESS, 1, tmp_path) == "ModuleNotFoundError: No module named 'flash_attn'"


def test_a_kill_is_told_as_one(tmp_path: Path) -> None:
    assert cause_of(HARMLESS, -9, tmp_path) == (
        "killed by signal 9, which the kernel's OOM killer also sends; last lines of the log: INFO 11-23 02:00:09 "
        "[loader.py:9] flash_attn is not there, going on without | step 17 done; an earlier error in its log, which it "
        "outlived: ModuleNotFoundError: No module named 'flash_attn'"
    )  # fmt: skip
    assert cause_of("ready\n", -15, tmp_path) == "killed by signal 15; last lines of the log: ready"
    assert cause_of("", -9, tmp_path) == "killed by signal 9, which the kernel's OOM killer also sends"
    assert cause_of("ready\n", None, tmp_path) == ""


@pytest.mark.parametrize("ended", [None, -9, 1])
def test_a_process_that_is_killed_for_its_exception_has_that_cause(ended: int | None, tmp_path: Path) -> None:
    """SGLang's parent kills the scheduler that told it of an exception."""
    assert cause_of(SGLANG, ended, tmp_path).startswith("AttributeError: 'Gemma2Config'")
    assert cause_of(VLLM, ended, tmp_path) == "AssertionError: not enough cores for 2 ranks"


def test_lines_of_other_processes_do_not_show_that_it_went_on(tmp_path: Path) -> None:
    more = "(Worker_TP0 pid=32) INFO 11-23 02:00:02 [worker.py:7] still here\n"
    assert cause_of(VLLM + more, None, tmp_path) == "AssertionError: not enough cores for 2 ranks"
    assert cause_of(VLLM + more.replace("32", "33"), None, tmp_path) == ""


TORCHRUN = """\
Traceback (most recent call last):
  File "train.py", line 2, in <module>
    import verl
ModuleNotFoundError: No module named 'verl'
E1129 13:23:41.836000 25267 api.py:1002] failed (exitcode: 1) local_rank: 1 (pid: 25387) of binary: python
Traceback (most recent call last):
  File "launcher/api.py", line 383, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
"""


def test_torchruns_echo_is_not_the_cause(tmp_path: Path) -> None:
    assert cause_of(TORCHRUN, 1, tmp_path) == "ModuleNotFoundError: No module named 'verl'"
    killed = TORCHRUN[TORCHRUN.index("E1129") :]
    assert "ChildFailedError:" not in cause_of(killed, 1, tmp_path) and "====" not in cause_of(killed, 1, tmp_path)


def test_a_message_of_several_lines_is_one_message(tmp_path: Path) -> None:
    assert cause_of(LONG, None, tmp_path) == "ValueError: max seq len (8192) needs 1.0 GiB of KV cache,"


def test_the_code_that_a_parent_wrote_counts(tmp_path: Path) -> None:
    said = (
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'Core_0': -9}\n"
    )
    assert cause_of(HARMLESS + said, 1, tmp_path).startswith("killed by signal 9, which")


def test_a_fault_of_its_own_is_no_kill(tmp_path: Path) -> None:
    fatal = 'Fatal Python error: Segmentation fault\n\nThread 0x01:\n  File "a.py", line 1\nready\n'
    assert cause_of(fatal, -11, tmp_path) == "Fatal Python error: Segmentation fault"


def test_the_process_that_ends_first_is_told_with_its_exit_code_where_nobody_collected_it() -> None:
    with ExitStack() as stack:
        children = [stack.enter_context(subprocess.Popen(["sleep", "60"])) for _ in range(3)]
        for child in children:
            stack.callback(child.kill)
        pids = [child.pid for child in children]
        children[1].kill()
        assert engine_processes.first_to_end(pids, threading.Event()) == (pids[1], -9)
        children[1].wait()
        assert engine_processes.first_to_end(pids, threading.Event()) == (pids[1], None)
        closing = threading.Event()
        closing.set()
        assert engine_processes.first_to_end([pids[0]], closing) is None


ERROR = "ValueError: bad batch 17, skipped\n"
BARS = "".join(f"\r  {step}%|###   | {step}/1000" for step in range(1, 9)) + "\n"


@pytest.mark.parametrize("ended", [-15, 143, -2, 130, 137])
def test_an_error_long_before_a_signal_is_not_its_cause(ended: int, tmp_path: Path) -> None:
    """Somebody ended the job; a shell passes that on as 128 + n."""
    log = tmp_path / "worker.err"
    log.write_text(ERROR)
    assert last_words.root_cause({log: 0}, ended, {log: 0}) == ERROR.strip(), "it was printed at the end"
    early = last_words.root_cause({log: 0}, ended, {log: len(ERROR)})
    assert early.startswith("killed by signal ") and not last_words.is_error(early)


@pytest.mark.parametrize("ended", [-15, 143, 1])
@pytest.mark.parametrize(("after", "outlived"), [
    (BARS, True), ("step 18 loss 0.1\nstep 19 loss 0.1\nstep 20 loss 0.1\n", True), ("step 18 loss 0.1\n" * 8, False),
])  # fmt: skip
def test_an_error_that_a_job_outlived_by_several_steps_is_not_its_cause(
    ended: int, after: str, outlived: bool, tmp_path: Path
) -> None:
    """Eight ranks may still print the step at which one of them failed."""
    cause = cause_of(ERROR + after, ended, tmp_path)
    if ended == 1:
        assert (cause == ERROR.strip()) is not outlived
    assert ("outlived" in cause) is (outlived or ended != 1)


def test_where_only_pointers_are_left_the_last_lines_are_told(tmp_path: Path) -> None:
    pointer = "RuntimeError: Engine core initialization failed. See root cause above.\n"
    log = tmp_path / "worker.err"
    log.write_text(f"loading\n/opt/engine.so: undefined symbol: cblas_gemm\n{pointer}")
    assert last_words.root_cause({log: 0}, ended=1) == (
        "no exception at the end of its log, which ends: loading | /opt/engine.so: undefined symbol: cblas_gemm"
    )
    log.write_text(pointer)
    assert last_words.root_cause({log: 0}, ended=1) == ""


# vLLM 0.32.0 started with dtype="float33", and its parallel settings with tensor_parallel_size=0, as they were raised.
TWO_WAYS = """\
2 validation errors for ModelConfig
dtype.literal['auto','half','float16','bfloat16','float','float32']
  Input should be 'auto', 'half', 'float16', 'bfloat16', 'float' or 'float32' [type=literal_error, \
input_value='float33', input_type=str]
    For further information visit https://errors.pydantic.dev/2.14/v/literal_error
dtype.is-instance[dtype]
  Input should be an instance of dtype [type=is_instance_of, input_value='float33', input_type=str]
    For further information visit https://errors.pydantic.dev/2.14/v/is_instance_of"""
TWO_WAYS_SENTENCE = (
    "ModelConfig: dtype='float33': Input should be 'auto', 'half', 'float16', 'bfloat16', 'float' or 'float32'"
)
BELOW = """\
1 validation error for ParallelConfig
tensor_parallel_size
  Input should be greater than or equal to 1 [type=greater_than_equal, input_value=0, input_type=int]
    For further information visit https://errors.pydantic.dev/2.14/v/greater_than_equal"""
BELOW_SENTENCE = "ParallelConfig: tensor_parallel_size=0: Input should be greater than or equal to 1"
OF_THE_WHOLE = """\
1 validation error for ModelConfig
  Value error, Invalid repository ID or local directory specified: '/nonexistent'.
Please verify the following requirements:
1. Provide a valid Hugging Face repository ID.
 [type=value_error, input_value=ArgsKwargs((), {'model': ...existent', 'seed': '1'}), input_type=ArgsKwargs]
    For further information visit https://errors.pydantic.dev/2.14/v/value_error"""
OF_THE_WHOLE_SENTENCE = (
    "ModelConfig: Value error, Invalid repository ID or local directory specified: '/nonexistent'. Please verify the "
    "following requirements: 1. Provide a valid Hugging Face repository ID."
)
VALIDATIONS = [(TWO_WAYS, TWO_WAYS_SENTENCE), (BELOW, BELOW_SENTENCE), (OF_THE_WHOLE, OF_THE_WHOLE_SENTENCE)]


@pytest.mark.parametrize(("text", "sentence"), VALIDATIONS)
def test_a_validation_error_is_told_by_what_is_wrong(text: str, sentence: str, tmp_path: Path) -> None:
    log = tmp_path / "worker.err"
    log.write_text("Triton is installed, but doesn't include CPU backend. Disabling Triton.\n")
    assert last_words.explain(text, {log: 0}, ended=1) == sentence
    log.write_text(f"Traceback (most recent call last):\npydantic_core._pydantic_core.ValidationError: {text}\n")
    assert last_words.root_cause({log: 0}, ended=1) == f"ValidationError: {sentence}"[: last_words.LONGEST]


def test_a_validation_error_of_another_process_is_read_without_its_prefixes(tmp_path: Path) -> None:
    prefix = "(EngineCore pid=31) ERROR 11-23 02:00:00 [core.py:1100] "
    log = tmp_path / "worker.err"
    raised = f"pydantic_core._pydantic_core.ValidationError: {BELOW}"
    log.write_text("".join(f"{prefix}{line}\n" for line in raised.splitlines()) + f"{prefix}[INFO] shutting down\n")
    assert last_words.root_cause({log: 0}, ended=1) == f"ValidationError: {BELOW_SENTENCE}"


def test_a_validation_error_in_another_form_is_handed_on(tmp_path: Path) -> None:
    text = "1 validation error for ModelConfig\nof a later version"
    assert last_words.explain(text, {}, ended=1) == text
