"""A framework's words in whatever starts it: every launcher and shell gives the same settings, and none of its own."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.doctor.frameworks.plan import Plan, read
from harness.doctor.frameworks.shell import commands
from harness.frameworks.detection import Job, interpreter, recognised
from probes.adapters import ADAPTERS

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


def plan(framework: str, command: list[str], **variables: str) -> Plan:
    return read(Job(ADAPTERS[framework], "", None, ()), command, variables)


def told(found: Plan) -> list[tuple[str, str, str]]:
    return [(one.sign, one.name, one.value) for one in found.options]


@pytest.mark.parametrize("framework", sorted(ENTRY))
@pytest.mark.parametrize("before", BEFORE, ids=lambda words: " ".join(words[:2]))
@pytest.mark.parametrize("way", ["words", "bash -c", "bash -lc with an end", "script", "script in a pipe"])
def test_the_same_options_by_every_way(tmp_path: Path, framework: str, before: list[str], way: str) -> None:
    plainly = told(plan(framework, ["python", *ENTRY[framework], *SETTING[framework]]))
    assert len(plainly) == 2
    words = [*before, *ENTRY[framework], *SETTING[framework]]
    text = shlex.join(words)
    if before[:1] == ["FOO=1"]:
        text = text.replace("'FOO=1'", "FOO=1", 1)
    file = tmp_path / "run.sh"
    if way == "bash -c":
        words = ["bash", "-c", text]
    elif way == "bash -lc with an end":
        words = ["bash", "-lc", f"cd /tmp && ray start --head --num-cpus 4; {text} 2>&1 | tee log --append; ray stop"]
    elif way == "script":
        file.write_text(f'set -x\nray start --head --num-gpus 8\n{text} "$@"\npip install --upgrade a.b=c\n')
        words = ["bash", str(file)]
    elif way == "script in a pipe":
        file.write_text(f"if true; then\n  {text} >log 2>&1 &&\n  echo --done a.b=c\nfi\n")
        words = ["sh", str(file)]
    found = plan(framework, words)
    assert told(found) == plainly
    assert found.entry == ENTRY[framework][-1]
    if "FOO=1" in before:
        assert found.variables["FOO"] == "1"


def test_an_array_is_put_in_where_it_stands(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text(f"""A=({R}.name=sglang  # which engine
  '{R}.n=2')
B=({R}.dtype=half)
A+=({R}.n=4)
python -m verl.trainer.main_ppo "${{A[@]}}" a.b="(c)" "${{C[@]}}"
""")
    found = plan("verl", ["bash", str(file)])
    assert [(one.name, one.value) for one in found.options] == [
        (f"{R}.name", "sglang"), (f"{R}.n", "2"), (f"{R}.n", "4"), ("a.b", "(c)"),
    ]  # fmt: skip
    assert found.unread == ("${C[@]} may hold settings, which only the shell knows",)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("a b  'c d' \"e 'f'\"", [["a", "b", "c d", "e 'f'"]]),
        ("a > log 2>&1 b", [["a", "b"]]),
        ("a &> log; b <in", [["a"], ["b"]]),
        ("a 2>log b2 >x", [["a", "b2"]]),
        ("a '>' \";\" b", [["a", ">", ";", "b"]]),
        ("a && b || c | d & e ; f # g", [["a"], ["b"], ["c"], ["d"], ["e"], ["f"]]),
        ('a=$(dirname "$(dirname "$b")")/x c', [['a=$(dirname "$(dirname "$b")")/x', "c"]]),
        ('a="$(dirname "$(echo \')\' "$b")")/x" c', [['a=$(dirname "$(echo \')\' "$b")")/x', "c"]]),
        ("${A[@]} ${B:-c d} `e f` $g", [["${A[@]}", "${B:-c d}", "`e f`", "$g"]]),
        ("a ''  \"\" b#c", [["a", "", "", "b#c"]]),
        ("a\\ b \\; c", [["a b", ";", "c"]]),
        ("", []),
        ("# a", []),
    ],
)
def test_a_line_of_a_shells(line: str, expected: list[list[str]]) -> None:
    assert commands(line) == expected


@pytest.mark.parametrize("line", ["a 'b", 'a "b', "a $(b", "a ${b", 'a "$(b"'])
def test_a_line_that_does_not_end(line: str) -> None:
    with pytest.raises(ValueError):
        commands(line)


@given(st.lists(st.text(min_size=0, max_size=8).filter(lambda text: "\n" not in text and "\r" not in text), max_size=5))
def test_quoted_words_come_back(words: list[str]) -> None:
    assert commands(shlex.join(words)) == ([words] if words else [])


def test_what_a_script_is_called_with_comes_last_and_its_text_is_no_option(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text(f'python -m verl.trainer.main_ppo {R}.n=2 "$@"\n')
    command = ["srun", "--export=A.b=c", "bash", str(file), f"{R}.n=4"]
    assert [one.value for one in plan("verl", command).options] == ["2", "4"]
    text = f'python -m verl.trainer.main_ppo {R}.n=2 "$@"'
    assert [one.value for one in plan("verl", ["bash", "-c", text, "name=x", f"{R}.n=8"]).options] == ["2", "8"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--train.colocate_all", ("", True)), ("--train.colocate_all=False", ("False", False)),
        ("--train.colocate_all False", ("False", False)), ("--train.colocate_all=", ("", False)),
        ("--train.colocate_all ''", ("", False)), ("--train.colocate_all --x", ("", True)),
        ("--train.colocate_all -0.5", ("-0.5", False)), ("--train.colocate_all 'a b' c", ("a b c", False)),
        ("--train.colocate_all ${A[@]}", ("", True)), ("--train.colocate_all $@", ("", True)),
    ],
)  # fmt: skip
def test_a_switch_and_a_value(words: str, expected: tuple[str, bool]) -> None:
    found = plan("openrlhf", ["python", *ENTRY["openrlhf"], *shlex.split(words)])
    first = found.options[0]
    assert (first.value, first.bare) == expected


@pytest.mark.parametrize(
    ("words", "sign", "value", "has", "on"),
    [
        (f"{R}.x=True", "", "True", True, True), (f"{R}.x=False", "", "False", True, False),
        (f"{R}.x=null", "", "null", False, False), (f"+{R}.x=1", "+", "1", True, True),
        (f"++{R}.x=1", "++", "1", True, True), (f"~{R}.x", "~", "", False, False),
        (f"~{R}.x=1", "~", "1", False, False), (f"{R}.x='a b'", "", "a b", True, False),
        (f"{R}.x=\"it's\"", "", "it's", True, False), (f"{R}.x=[1,2]", "", "[1,2]", True, False),
        (f"{R}.x=1 ~{R}.x", "~", "", False, False), (f"~{R}.x ++{R}.x=1", "++", "1", True, True),
        (f"{R}.x=", "", "", True, True),
    ],
)  # fmt: skip
def test_an_override_of_hydras(words: str, sign: str, value: str, has: bool, on: bool) -> None:
    given_words = words.split(" ") if " ~" in words or " ++" in words else [words]
    found = plan("verl", ["python", *ENTRY["verl"], *given_words])
    last = found.last(f"{R}.x")
    assert last is not None and (last.sign, last.value) == (sign, value)
    assert (found.has(f"{R}.x"), found.on(f"{R}.x")) == (has, on)
    assert bool(found.untold(f"{R}.x")) is (sign == "~")


@given(
    names=st.lists(st.from_regex(r"[a-z]{1,6}(\.[a-z_]{1,6}){1,3}", fullmatch=True), min_size=1, max_size=4),
    values=st.lists(st.text("abc019 ,'\"{}[]:|<>;&#()\\", max_size=12), min_size=4, max_size=4),
    shell=st.booleans(),
)
def test_whatever_is_written_as_words_is_read_as_it_was_meant(names: list[str], values: list[str], shell: bool) -> None:
    words = [f"--{name}={value}" for name, value in zip(names, values, strict=False)]
    command = ["python", *ENTRY["openrlhf"], *words]
    command = ["bash", "-c", shlex.join(command)] if shell else command
    found = plan("openrlhf", command)
    assert told(found) == [("--", name, value) for name, value in zip(names, values, strict=False)]


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
    assert [one.framework for one in recognised(["bash", "-c", "set -e; trl grpo --config x.yaml"])] == ["trl"]
    assert not recognised(["bash", "-c", "pip install trl && echo control dpo"])
