"""A framework's words in whatever starts it: every launcher and shell gives the same settings, and none of its own."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.frameworks.argv import Start, taken_apart
from harness.frameworks.detection import interpreter, recognised
from harness.frameworks.options import dashed
from harness.frameworks.spec import frameworks

ENTRY = {"verl": ["-m", "verl.trainer.main_ppo"], "openrlhf": ["-m", "openrlhf.cli.train_ppo_ray"],
         "trl": ["grpo.py"]}  # fmt: skip
R = "actor_rollout_ref.rollout"
SETTING = {"verl": [f"{R}.name=sglang", f"{R}.n=4"], "openrlhf": ["--vllm.num_engines", "2", "--train.colocate_all"],
           "trl": ["--use_vllm", "True", "--beta", "0.1"]}  # fmt: skip
# What stands before the framework's own start, none of which is an option of the framework's.
BEFORE = [
    ["python"], ["FOO=1", "python"], ["env", "FOO=1", "python"], ["env", "-u", "BAR", "FOO=1", "python"],
    ["torchrun", "--nproc_per_node", "2", "--master_port=29501"], ["nice", "-n", "5", "python", "-u"],
    ["accelerate", "launch", "--num_processes", "4", "--config_file", "nowhere.yaml"],
    ["deepspeed", "--num_gpus", "8", "--module"], ["srun", "--nodes=2", "python"],
    ["ray", "job", "submit", "--address=http://127.0.0.1:8265", "--runtime-env-json={\"working_dir\": \".\"}", "--",
     "python3"],
]  # fmt: skip


def apart(framework: str, command: list[str], **variables: str) -> Start:
    return taken_apart(command, frameworks()[framework].starts, variables)


@pytest.mark.parametrize("framework", sorted(ENTRY))
@pytest.mark.parametrize("before", BEFORE, ids=lambda words: " ".join(words[:2]))
def test_the_same_words_by_every_launcher(framework: str, before: list[str]) -> None:
    start = apart(framework, [*before, *ENTRY[framework], *SETTING[framework]], BAR="1", HOME="/h")
    assert (start.entry, list(start.arguments), start.script) == (ENTRY[framework][-1], SETTING[framework], "")
    assert start.variables["HOME"] == "/h" and ("FOO" in start.variables) == ("FOO=1" in before)
    assert ("BAR" in start.variables) != ("BAR" in before)


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        (["env", "-u", "ROCR", "X=1"], {"HOME": "/h", "X": "1"}), (["env", "-uROCR", "--unset=HOME"], {}),
        (["env", "-i", "X=1"], {"X": "1"}), (["X=1"], {"HOME": "/h", "ROCR": "0", "X": "1"}),
    ],
)  # fmt: skip
def test_variables_as_the_start_has_them(before: list[str], expected: dict[str, str]) -> None:
    assert apart("verl", [*before, "python", *ENTRY["verl"]], HOME="/h", ROCR="0").variables == expected


@pytest.mark.parametrize(
    ("command", "script"),
    [
        (["bash", "a/run.sh", "--x"], "a/run.sh"), (["./run.sh"], "./run.sh"), (["bash", "-c", "trl grpo"], "bash"),
        (["ray", "job", "submit", "--", "sh", "run.sh"], "run.sh"), (["sbatch", "job.slurm"], "job.slurm"),
    ],
)  # fmt: skip
def test_a_shell_script_is_not_opened(command: list[str], script: str) -> None:
    for framework in sorted(ENTRY):
        start = apart(framework, command)
        assert (start.entry, start.script, start.arguments) == ("", script, ())


@pytest.mark.parametrize(
    ("command", "entry"),
    [
        (["conda", "run", "-n", "trl", "python", "train.py", "--a", "1"], "train.py"), (["trl", "grpo"], "trl"),
        (["/opt/bin/trl", "sft"], "/opt/bin/trl"), (["python", "-m", "trl.scripts.grpo"], "trl.scripts.grpo"),
        (["pip", "install", "trl"], ""),
    ],
)  # fmt: skip
def test_the_word_that_starts_trl(command: list[str], entry: str) -> None:
    assert apart("trl", command).entry == entry


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--train.colocate_all", ("", True)), ("--train.colocate_all=False", ("False", False)),
        ("--train.colocate_all False", ("False", False)), ("--train.colocate_all=", ("", False)),
        ("--train.colocate_all ''", ("", False)), ("--train.colocate_all --x", ("", True)),
        ("--train.colocate_all -0.5", ("-0.5", False)), ("--train.colocate_all 'a b' c", ("a b c", False)),
    ],
)  # fmt: skip
def test_a_switch_and_a_value(words: str, expected: tuple[str, bool]) -> None:
    first = next(dashed(shlex.split(words)))
    assert (first.value, first.bare) == expected


@pytest.mark.slow
@given(
    names=st.lists(st.from_regex(r"[a-z]{1,6}(\.[a-z_]{1,6}){1,3}", fullmatch=True), min_size=1, max_size=4),
    values=st.lists(st.text("abc019 ,'\"{}[]:|<>;&#()\\", max_size=12), min_size=4, max_size=4),
)
def test_whatever_is_written_as_words_is_read_as_it_was_meant(names: list[str], values: list[str]) -> None:
    words = [f"--{name}={value}" for name, value in zip(names, values, strict=False)]
    command = ["python", *ENTRY["openrlhf"], *words]
    read = dashed(apart("openrlhf", command).arguments)
    assert [(one.name, one.value) for one in read] == list(zip(names, values, strict=False))


def test_the_interpreter_of_a_text_and_of_a_launcher_in_it(tmp_path: Path) -> None:
    program = tmp_path / "trl"
    program.write_text(f"#!{sys.executable}\n")
    program.chmod(0o755)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    text = f"cd /; exec {sys.executable} -m verl.trainer.main_ppo"
    assert interpreter(["bash", "-c", text], environ) == sys.executable
    assert interpreter(["bash", "-c", "trl grpo --config x.yaml"], environ) == sys.executable
    assert interpreter(["trl", "grpo"], environ) == sys.executable


def test_a_trl_command_in_a_shells_text_is_one_of_trls() -> None:
    assert [one.name for one in recognised(["bash", "-c", "set -e; trl grpo --config x.yaml"])] == ["trl"]
    assert not recognised(["bash", "-c", "pip install trl && echo control dpo"])
