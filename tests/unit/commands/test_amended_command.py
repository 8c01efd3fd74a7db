"""A fix that is an option becomes the user's whole command: the option at its place, everything else as it was."""

from __future__ import annotations

import pytest

from harness.amended_command import amended, amended_by_all

CASES = [
    ("mapping m.py", "--engine sglang", "", "harness mapping m.py --engine sglang"),
    ("parity vllm hf --steps many", "--steps 8", "", "harness parity vllm hf --steps 8"),
    ("parity vllm hf --steps=many -v", "--steps 8", "", "harness parity vllm hf --steps 8 -v"),
    ("parity vllm hf --set seed=x --set steps=3", "--set seed=7", "",
     "harness parity vllm hf --set seed=7 --set steps=3"),
    ("parity vllm hf --set steps=3", "--set seed=7", "", "harness parity vllm hf --set steps=3 --set seed=7"),
    ("parity vllm hf --set sampling.topk=3", "--set sampling.top_k=3", "sampling.topk=3",
     "harness parity vllm hf --set sampling.top_k=3"),
    ("parity vllm hf --set=sampling.topk=3 -v", "--set sampling.top_k=3", "sampling.topk=3",
     "harness parity vllm hf --set sampling.top_k=3 -v"),
    ("parity vllm hf --out o -- python t.py --out o", "--out DIR   # another folder", "",
     "harness parity vllm hf --out DIR -- python t.py --out o   # another folder"),
    ("watch --out o python t.py --out o", "--out DIR", "", "harness watch --out DIR python t.py --out o"),
    ("watch --out o", "-- python train.py", "", "harness watch --out o -- python train.py"),
    ("watch FOO=1 python t.py", "-- env FOO=1 python t.py", "",
     "harness watch -- env FOO=1 python t.py"),
    ("parity vllm hf --seed 7", "--framework verl -- python t.py   # yours", "",
     "harness parity vllm hf --seed 7 --framework verl -- python t.py   # yours"),
    ("diff A b", "runs/a", "A", "harness diff runs/a b"),
    ("nightly m.toml --only x --resume", "", "--only", "harness nightly m.toml --resume"),
    ("mapping m.py --ignore x --ignore y", "", "x", "harness mapping m.py --ignore y"),
    ("watch --out o -- true", "mkdir a && --out a/o", "", "mkdir a && harness watch --out a/o -- true"),
    ("env create vllm --device gpu", "--device auto", "", "harness env create vllm --device auto"),
    ("parity vllm hf t.py --seed 7", "-- python t.py", "", "harness parity vllm hf --seed 7 -- python t.py"),
    ("parity vllm hf --seed 7 -- t.py", "   # a scenario", "--", "harness parity vllm hf --seed 7   # a scenario"),
    ("bisect vllm@1..2 --against hf -- --steps many -v", "--steps 8", "",
     "harness bisect vllm@1..2 --against hf -- --steps 8 -v"),
    ("parity vllm hf --prompts 'a b'", "--seed 7", "", "harness parity vllm hf --prompts 'a b' --seed 7"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "fix", "instead", "command"), CASES)
def test_the_fix_is_the_whole_command(line: str, fix: str, instead: str, command: str) -> None:
    import shlex

    assert amended(shlex.split(line), fix, instead) == command


def test_several_changes_make_one_command() -> None:
    changes = [("runs/a   # of two", "A"), ("--cap 1   # of two", ""), ("runs/b", "B")]
    assert amended_by_all(["diff", "A", "B"], changes) == "harness diff runs/a runs/b --cap 1   # of two"
    assert amended_by_all(["diff", "A", "B"], [("runs/a", "A"), ("ls .", "")]) == "ls ."


@pytest.mark.parametrize("fix", ["harness doctor   # first", "choose another --out", "df -h /tmp", ""])
def test_other_fixes_stay_as_they_are(fix: str) -> None:
    assert amended(["parity", "vllm", "hf"], fix) == fix


def test_an_option_that_the_command_does_not_have_is_no_command() -> None:
    assert amended(["nightly", "m.toml"], "--prompts FILE.jsonl") == "give --prompts FILE.jsonl to the command of a run"


def test_a_secret_is_not_repeated() -> None:
    line = amended(["watch", "python", "t.py", "--api-key", "hunter2hunter2"], "--out DIR")
    assert "hunter2" not in line and line.startswith("harness watch --out DIR python t.py --api-key ")
