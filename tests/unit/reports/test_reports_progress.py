"""Live progress: lines in a pipe, a view on a terminal, and never the end of a run."""

from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from reports.progress import ProgressEvent, progress


class Broken(io.StringIO):
    def write(self, text):
        raise BrokenPipeError("nobody reads this")


def lines(*events, encoding="utf-8"):
    raw = io.BytesIO()
    with progress(Console(file=io.TextIOWrapper(raw, encoding=encoding, write_through=True), width=80)) as shown:
        for event in events:
            shown.update(event)
    return raw.getvalue().decode(encoding).splitlines()


def test_one_line_a_step_in_a_pipe():
    assert lines(
        ProgressEvent("baseline", "vllm", message="starting"),
        ProgressEvent("baseline", "vllm", 0, 8, "rollout"),
        ProgressEvent("baseline", "vllm", 0, 8, "train"),
        ProgressEvent("baseline", "vllm", 0, 8, "sync", {"length_mean": 17.25, "kl_mean": 0.0, "reward_mean": 0.125}),
        ProgressEvent("candidate", "sglang@new", 7, 8, "sync", {"reward": 0.5, "kl": 0.01}, "weights proven"),
    ) == [
        "baseline vllm  starting",
        "baseline vllm  step 0 (1/8)  reward 0.125  KL 0  length_mean 17.25",
        "candidate sglang@new  step 7 (8/8)  reward 0.5  KL 0.01  weights proven",
    ]


def test_phases_around_the_steps_get_a_line_each():
    waiting, step = "waiting for the engine", ProgressEvent("a", "b", 0, 1, "step")
    events = [ProgressEvent("a", "b", 0, 1, waiting), ProgressEvent("a", "b", 0, 1, waiting), step]
    assert lines(*events, ProgressEvent("a", "b", 0, 1, "floor")) == [f"a b  {waiting}", "a b  floor"]


def test_a_message_about_the_whole_belongs_to_no_side():
    events = [ProgressEvent("a", "b", 0, 2, "floor"), ProgressEvent("", "", message="rank 1 is slow")]
    assert lines(*events) == ["a b  floor", "rank 1 is slow"]


def test_a_line_holds_the_first_figures_only():
    metrics = {"z": 1.0, "kl_mean": 2.0, "entropy": 3.0, "reward_mean": 4.0, "seconds": 5.0, "y": 6.0, "x": 7.0}
    assert lines(ProgressEvent("a", "b", 0, 1, "", metrics)) == [
        "a b  step 0 (1/1)  reward 4  KL 2  seconds 5  z 1  entropy 3  y 6"
    ]


def test_long_and_hostile_messages_stay_on_one_line_each():
    path = "/mnt/" + "x/" * 200
    assert lines(ProgressEvent("a", "b", message=path + "\n\x1b[2J")) == [f"a b  {path}\\n\\x1b[2J"]
    assert lines(ProgressEvent("a", "Δ", message="≤")) == ["a Δ  ≤"] and lines(
        ProgressEvent("a", "Δ", message="≤"), encoding="ascii"
    ) == ["a d  <="]


def test_the_live_view_shows_backend_step_phase_reward_and_kl():
    console = Console(file=io.StringIO(), width=120, force_terminal=True)
    with progress(console) as shown:
        for step in range(3):
            shown.update(
                ProgressEvent("baseline", "vllm", step, 8, "sync", {"reward": 0.1 * step, "kl": 0.02}, "proven")
            )
        shown.update(ProgressEvent("baseline", "vllm", 3, 8, "experience"))
        view = Console(file=io.StringIO(), width=120)
        view.print(shown._view())
    text = view.file.getvalue()
    for part in ("baseline vllm", "3/8", "experience", "reward 0.2", "KL 0.02", "▁", "█", "proven"):
        assert part in text


def test_a_finished_run_says_so():
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    with progress(console) as shown:
        shown.update(ProgressEvent("baseline", "vllm", 7, 8, "sync", {"reward": 1.0}))
        assert shown._sides["baseline"].done


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_the_terminal_is_clean_after_an_interrupt(error):
    file = io.StringIO()
    with pytest.raises(error), progress(Console(file=file, width=80, force_terminal=True)) as shown:
        shown.update(ProgressEvent("baseline", "vllm", 0, 8, "rollout"))
        raise error
    text = file.getvalue()
    assert text.count("\x1b[?25l") == 1 and text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    assert shown._live is None


@pytest.mark.parametrize("terminal", [True, False])
def test_a_broken_pipe_ends_the_drawing_and_not_the_run(terminal):
    with progress(Console(file=Broken(), width=80, force_terminal=terminal)) as shown:
        for step in range(3):
            shown.update(ProgressEvent("baseline", "vllm", step, 3, "sync", {"reward": 1.0}))


@pytest.mark.parametrize(
    "event",
    [
        ProgressEvent("", ""),
        ProgressEvent("a", "b", -1, 0, "", {"reward": math.nan, "kl": math.inf}),
        ProgressEvent("a", "b", 9, 3, "x", {"reward": None}),  # type: ignore[dict-item]
        ProgressEvent("a", "b", 0, 1, "x", {"": "text"}),  # type: ignore[dict-item]
        ProgressEvent("\x1b[2J", "[red]b[/red]", metrics={"[bold]": 1.0}, message="[/]"),
        ProgressEvent(None, None, None, None, None, {"x": 1}, None),
    ],
)
@pytest.mark.parametrize("terminal", [True, False])
def test_no_event_breaks_it(event, terminal):
    with progress(Console(file=io.StringIO(), width=80, force_terminal=terminal)) as shown:
        shown.update(event)
        shown.update(ProgressEvent("a", "b", 0, 1, "rollout", {"reward": 1.0}))
        shown.update(event)
