"""The answer stands first and last, and no line is too wide, from 40 columns to 200."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pytest
import reports_examples as examples
import triage_trial as trial
from rich.console import Console

from harness.triage.judge import triage
from reports.doctor_model import Hazard, Passed, Report, Unchecked
from reports.renderers.text import TextRenderer
from reports.sections import answer

FIX = "sudo sysctl -w kernel.yama.ptrace_scope=0 && harness doctor --strict --imports --engines --stall 90s"
REPORT = Report(
    (
        Hazard("memlock", "error", "locked memory is limited", ("this shell",), "64 KiB", "NCCL fails to start", FIX),
        Hazard("clocks", "warning", "clocks differ", ("worker on n1",), "3 s", "timestamps cannot be compared"),
    ),
    (Passed("ports", ("this shell",), "free"),),
    (Unchecked("nodes", ("this shell",), "no Ray worker was asked", "harness doctor --ray"),),
    ("this shell", "worker on n1"),
    2.0,
)
HUNG = triage(*trial.late(8, 3, "main:10 step:44 keep_alive"))
RING = triage(*next(iter(trial.order(4, 1))).built)
SUBJECTS = {example.__name__: example() for example in (examples.equivalent, examples.stale_tensor, examples.torn)}
SUBJECTS |= {"confounded": examples.confounded(), "hung": HUNG, "ring": RING, "doctor": REPORT}


def shown(subject: object, width: int, verbose: bool = False) -> str:
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=True, color_system=None, legacy_windows=False)
    TextRenderer().show(subject, console, verbose=verbose)
    return file.getvalue()


def words(text: str) -> list[str]:
    return text.replace(" \\\n", " ").split()


@pytest.mark.by_day(19)
@pytest.mark.slow
@pytest.mark.parametrize("width", [40, 80, 120, 200])
@pytest.mark.parametrize("name", SUBJECTS)
@pytest.mark.parametrize("verbose", [False, True])
def test_no_line_is_wider_than_the_terminal_and_no_word_is_lost(name: str, width: int, verbose: bool) -> None:
    lines = shown(SUBJECTS[name], width, verbose).splitlines()
    for line in lines:  # only a single word that cannot be broken, such as a path, may be wider
        assert len(line) <= width or max(map(len, line.split())) > width - 16, line
    wide = shown(SUBJECTS[name], 200, verbose)
    missing = {word for word in words(wide) if len(word) > 2 and word.strip("─━")} - {*words("\n".join(lines))}
    assert not missing


def test_a_narrow_page_breaks_text_behind_special_tokens_and_has_a_line_a_cell() -> None:
    verdict = examples.stale_tensor()
    assert verdict.parity is not None and verdict.parity.first_divergence is not None
    context = "in “Is the garden crowded?<|end|><|assistant|>The baker”"
    place = dataclasses.replace(verdict.parity.first_divergence, context=context)
    said = dataclasses.replace(verdict, parity=dataclasses.replace(verdict.parity, first_divergence=place))
    text = shown(said, 40, verbose=True)
    card = [line for line in text.splitlines() if line.startswith("┃")]
    assert any(line.endswith("crowded?<|end|>") for line in card) and max(map(len, card)) <= 40
    checks = verdict.parity.checks
    assert text.count("    state     ") == len(checks)


@pytest.mark.parametrize("name", SUBJECTS)
def test_the_answer_is_first_and_last(name: str) -> None:
    said, lines = answer.of(SUBJECTS[name]), shown(SUBJECTS[name], 200).splitlines()
    top, bottom = "\n".join(lines[:14]), "\n".join(lines[-10:])
    for text in (said.title, said.reason[:60], *(text[:60] for _, text in said.parts)):
        assert text in top and text in bottom


def test_what_the_answer_holds() -> None:
    parts = dict(answer.of(examples.stale_tensor()).parts)
    assert parts["cause"] == "STALE_WEIGHTS(model.layers.2.mlp.down_proj.weight), in the mapping"
    assert "step 3, phase rollout, sample 17, position 5: logprob -1.235 in the baseline" in parts["first"]
    assert parts["fix"] == "send the named tensors in every weight sync"
    assert dict(answer.of(examples.torn()).parts)["missing"] == "steps 4 to 7 of the candidate"
    assert "make ppo.train_batch_size equal" in dict(answer.of(examples.confounded()).parts)["fix"]
    assert dict(answer.of(HUNG).parts)["culprit"].startswith("rank 3 ")
    assert dict(answer.of(RING).parts)["culprit"].startswith("a cycle: ")
    assert dict(answer.of(REPORT).parts)["fix"] == FIX and answer.of(REPORT).title == "WILL FAIL"


def test_a_command_is_broken_only_where_a_shell_reads_on() -> None:
    text = shown(REPORT, 40)
    assert FIX in " ".join(words(text)) and " \\\n" in text
    assert all(len(line) <= 40 for line in text.splitlines())


def test_a_remark_is_never_continued_as_a_command() -> None:
    remark = "or LimitNOFILE=65536 in the service that starts Ray, on every node of the cluster"
    hazard = Hazard("file-limit", "error", "x", ("this shell",), "y", "z", f"ulimit -n 65536   # {remark}")
    lines = shown(Report((hazard,), (), (), ("this shell",), 1.0), 60).splitlines()
    (at,) = [index for index, line in enumerate(lines) if line.startswith("  fix   ulimit -n 65536")]
    assert "\\" not in lines[at] and lines[at + 1].strip().startswith("# or LimitNOFILE")
    assert lines[at + 2].strip().startswith("# ")


def test_a_verdict_that_was_moved_with_its_recordings_finds_them(tmp_path: Path) -> None:
    from harness.verdict_file import _beside

    run = examples.run("baseline", "vllm")
    assert _beside(run, tmp_path) == run
    (tmp_path / "baseline").mkdir()
    assert _beside(run, tmp_path).path == str(tmp_path / "baseline")
