"""The words of two commands of a framework's job, and searches over them with comparisons that a script plays."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from bisect_support import play
from hypothesis import given
from hypothesis import strategies as st

from harness import cli
from harness.bisect.job_command import Command
from harness.errors import BadInput

GOOD = "SEED=1 python -m verl.trainer algorithm.kl=0.1 data.batch=8 --epochs 1"
BAD = "SEED=2 python -m verl.trainer algorithm.kl=0.2 data.batch=8 +actor.lr=1e-4 --epochs 3"
OVER = ["bisect", "sglang", "--against", "vllm", "--framework", "verl", "--good", GOOD, "--bad", BAD, "--out", "out"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cause", "told"),
    [
        (["algorithm.kl=0.2"], ["algorithm.kl: 0.1 → 0.2"]),
        (["+actor.lr=1e-4", "3"], ["+actor.lr: not set → 1e-4", "--epochs: 1 → 3"]),
        (["SEED=2"], ["SEED: 1 → 2"]),
    ],
)
def test_what_makes_it_bad_is_told(cause: list[str], told: list[str], folder: Path) -> None:
    play(folder, cause)
    assert cli.main(OVER) == 0
    result = json.loads((folder / "out" / "bisect.json").read_text())
    assert result["status"] == "FOUND" and [sorted(one) for one in result["results"]] == [told]
    words = json.loads((folder / "played").read_text().splitlines()[0])
    assert words[:3] == ["parity", "vllm", "sglang"] and words[words.index("--framework") + 1] == "verl"
    assert words[words.index("--") + 1 :][:3] == ["python", "-m", "verl.trainer"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--good", "python a.py", "--bad", "python a.py"], "the two commands do not differ"),
        (["--good", "python 'a.py", "--bad", "python b.py"], "is not a command: No closing quotation"),
        (["--good", "A=1", "--bad", "python b.py"], "names no program"),
    ],
)
def test_bad_ends_are_told(words: list[str], sentence: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bisect", "vllm", "--against", "sglang", "--framework", "verl", *words, "--out", "out"]) == 2
    assert sentence in capsys.readouterr().err


def test_both_backends_are_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bisect", "--framework", "trl", "--good", "python a", "--bad", "python b"]) == 2
    assert "--framework" in capsys.readouterr().err
    assert cli.main(["bisect", "vllm@1..2", "--against", "hf", "--framework", "trl"]) == 2
    assert "--framework" in capsys.readouterr().err


WORDS = st.lists(st.sampled_from(["a=1", "a=2", "+b=x", "--c", "--c=1", "--d", "1", "2", "e.py", "-m", ""]), max_size=8)


@pytest.mark.slow
@given(WORDS, WORDS, st.data())
def test_parts_are_exchanged_and_no_word_is_lost(one: list[str], two: list[str], data: st.DataObject) -> None:
    good, bad = (Command.read(shlex.join(["python", *words])) for words in (one, two))
    assert good.changed(bad, ()) == ["python", *one]
    every = {key for key in {*good.parts, *bad.parts} if good.parts.get(key) != bad.parts.get(key)}
    assert sorted(good.changed(bad, every)) == sorted(["python", *two])
    some = set(data.draw(st.lists(st.sampled_from(sorted(every))) if every else st.just([])))
    expected = [word for key in {*good.parts, *bad.parts}
                for word in (bad if key in some else good).parts.get(key, ())]  # fmt: skip
    assert sorted(good.changed(bad, some)) == sorted(expected)


def test_what_is_only_in_one_comes_where_it_is_there() -> None:
    good, bad = Command.read("torchrun train.py --lr 1"), Command.read("torchrun --nproc-per-node=2 train.py --lr 1")
    assert good.changed(bad, {("--nproc-per-node", 0), ("torchrun", 0), ("train.py", 0)}) == bad.changed(bad, ())
    with pytest.raises(BadInput, match="names no program"):
        Command.read("")
