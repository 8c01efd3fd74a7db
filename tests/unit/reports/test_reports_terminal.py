"""The verdict on a terminal and in a pipe."""

from __future__ import annotations

import dataclasses
import io
import os
import subprocess
import sys

import pytest
import reports_examples as examples
from rich.console import Console

from reports import render
from reports.bisect_model import Bisection
from reports.console import terminal_console
from reports.layout import Page
from reports.model import SUSPICIONS, Finding, RunSummary
from reports.nightly_model import CellResult, Change, Night
from reports.renderers.text import TextRenderer
from reports.sections import answer

print_verdict = TextRenderer().show


def printed(verdict, width=80, encoding="utf-8", verbose=True, **options):
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, write_through=True)
    print_verdict(verdict, Console(file=file, width=width, **options), verbose=verbose)
    return raw.getvalue().decode(encoding)


@pytest.mark.slow
@pytest.mark.parametrize(
    "example", [examples.equivalent, examples.stale_tensor, examples.torn, examples.confounded, examples.triage]
)
@pytest.mark.parametrize("format", ["text", "line"])
def test_the_verdict_is_the_first_word(example, format):
    verdict = example()
    assert render(verdict, format).split()[0].rstrip(",") == verdict.verdict


def test_a_night_and_a_bisection_begin_with_their_answer():
    night = Night(1, "engines", "2026-11-28", (), ())
    bisection = Bisection("releases", "a..b", "FOUND", "b is the first bad one")
    assert render(night, "text").startswith(night.reason)
    assert render(bisection, "text").startswith(f"{bisection.status}: {bisection.reason}")


@pytest.mark.parametrize("example", examples.ALL)
def test_a_line_has_the_cause_and_ends_with_the_fix(example):
    verdict = example()
    parts = dict(answer.of(verdict).parts)
    line = render(verdict, "line")
    assert line.count("\n") == 1
    for label in {"cause", "unequal", "culprit"} & parts.keys():
        assert f"; {label}: {' '.join(parts[label].split())}" in line
    assert "fix" not in parts or line.endswith(f"; fix: {' '.join(parts['fix'].split())}\n")


@pytest.mark.parametrize(("missing", "counted"), [(3, ""), (4, "1 more thing is missing"), (5, "2 more things are")])
def test_a_line_counts_what_it_does_not_name(missing, counted):
    verdict = dataclasses.replace(examples.torn(), missing=[f"part {number}" for number in range(missing)])
    line = render(verdict, "line")
    assert ("more thing" in line) == bool(counted) and counted in line


@pytest.mark.slow
@pytest.mark.parametrize("example", examples.ALL)
def test_the_verdict_with_its_exit_code_is_the_last_line(example):
    verdict = example()
    for verbose in (False, True):
        last = printed(verdict, verbose=verbose).rstrip().splitlines()[-1]
        assert f"(exit code {verdict.exit_code})" in last
        terminal = printed(verdict, verbose=verbose, force_terminal=True, color_system=None).rstrip().splitlines()[-1]
        assert f"exit code {verdict.exit_code}" in terminal


def test_the_answer_comes_first_and_the_tables_only_when_they_are_asked_for():
    verdict = examples.stale_tensor()
    brief, whole = printed(verdict, verbose=False), printed(verdict)
    assert {text.splitlines()[0].split()[0] for text in (brief, whole)} == {verdict.verdict}
    marks = [
        verdict.verdict,
        "Causes",
        "First divergence",
        "The eleven suspicions",
        verdict.reproduce,
        "Not as you asked",
    ]
    places = [brief.index(mark) for mark in marks]
    assert places == sorted(places)
    assert "Metrics" in whole and "Metrics" not in brief and "Coverage" not in brief
    assert all(check.name in brief for check in verdict.parity.checks if check.state == "confirmed")


@pytest.mark.slow
@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("example", [examples.equivalent, examples.torn, examples.confounded])
def test_lines_keep_to_the_width(example, width):
    assert max(map(len, printed(example(), width, force_terminal=True, color_system=None).splitlines())) <= width
    assert max(map(len, printed(example(), width).splitlines()[:-1])) <= width  # the last line is whole, for `tail -1`


@pytest.mark.parametrize("width", [80, 120])
def test_long_paths_and_commands_stay_on_one_line(width):
    verdict = examples.stale_tensor()
    lines = printed(verdict, width).splitlines()
    assert any(line.endswith(verdict.paths["deep"]) for line in lines)
    assert any(line.endswith(verdict.reproduce) for line in lines)


def long_cause() -> str:
    return f"SETTINGS({','.join(f'rope_scaling.original_{index}' for index in range(12))})"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_long_name_is_broken_on_a_terminal_and_whole_in_a_pipe(width):
    name, path = long_cause(), "/" + ",".join(["folder"] * 40)
    change = Change("cause", name, f"cause {name}")
    result = CellResult("hf-vllm/ppo", "REGRESSED", "DIVERGENT", "", new=(change,), reproduce=path)
    night = Night(1, "trial", "2026-11-25", (result,))
    lines = printed(night, width, force_terminal=True, color_system=None).splitlines()
    assert max(len(line) for line in lines if path not in line) <= width
    assert name in "".join(line.strip() for line in lines) and any(path in line for line in lines)
    assert name in printed(night, width)


def test_a_long_path_in_a_row_stays_whole():
    path = "/mnt/" + "a-long-folder/" * 9 + "model"
    runs = [
        RunSummary("baseline", "vllm", "", {"model": path}),
        RunSummary("candidate", "sglang", "", {"model": path + "2"}),
    ]
    verdict = dataclasses.replace(examples.equivalent(), parity=examples.parity(runs=runs))
    lines = printed(verdict).splitlines()
    assert any(line.endswith(" " + path) for line in lines) and any(line.endswith(" " + path + "2") for line in lines)


def test_every_suspicion_is_listed_by_name_and_number():
    text = " ".join(printed(examples.equivalent(), 120).split())
    for number, name in SUSPICIONS.items():
        if number != 10:  # the one name that takes two lines
            assert f"{number} {name} ruled out" in text
    assert "11 ruled out" in text


def test_changed_rows_come_first_and_are_marked():
    lines = printed(examples.confounded()).splitlines()
    rows = [line for line in lines if line.startswith("≠")]
    assert len(rows) == 2 and "train batch, samples" in rows[1] and "64" in rows[1] and "32" in rows[1]
    assert rows[0].split() == ["≠", "backend", "vllm", "sglang"]
    assert lines.index(rows[0]) < next(i for i, line in enumerate(lines) if line.startswith("  scenario"))


def test_what_was_not_as_asked_stands_right_above_the_verdict():
    text = printed(examples.stale_tensor())
    assert text.index("Not as you asked") > max(
        text.index(mark) for mark in ("Findings", "First divergence", "Causes", "reproduce")
    )
    assert text.index("enforce_eager") > text.index("Not as you asked")
    plain = Finding("torch", "differs", "none measured")
    assert "Not as you asked" not in printed(dataclasses.replace(examples.stale_tensor(), findings=[plain]))


def test_the_first_divergence_carries_all_it_must():
    text = printed(examples.stale_tensor())
    for part in (
        "step 3",
        "phase rollout",
        "rank 0",
        "sample 17",
        "position 5",
        "logprob",
        "-1.234567",
        "-1.834567",
        "0.4213 nats",
        "slept",
    ):
        assert part in text


def test_metrics_stand_beside_published_limits():
    text = printed(examples.stale_tensor())
    row = next(line for line in text.splitlines() if "token_mult_prob_error" in line)
    assert row.startswith("!") and "1.096" in row and "≤ 1.05 (NeMo-RL)" in row
    assert "!" not in "".join(line[:1] for line in printed(examples.equivalent()).splitlines())


def test_coverage_says_what_the_harness_replaced():
    text = " ".join(printed(examples.equivalent()).split())
    assert (
        "sglang: sampler (coupled custom processor)" in text
        and "flips beyond margin 0" in text
        and "compared tokens 4,711" in text
    )


@pytest.mark.slow
def test_without_colour_there_are_no_escapes(monkeypatch):
    assert "\x1b" not in printed(examples.stale_tensor()) and "\x1b" not in render(examples.hostile())
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    coloured = printed(examples.stale_tensor(), force_terminal=True)
    assert "\x1b[31m" not in coloured and "DIVERGENT" in coloured


@pytest.mark.slow
@pytest.mark.parametrize("example", examples.ALL)
def test_an_ascii_terminal_gets_ascii(example):
    assert printed(example(), encoding="ascii").isascii()


def test_hostile_text_cannot_drive_the_terminal():
    text = printed(examples.hostile(), force_terminal=True, color_system=None)
    assert "\x1b[31m" not in text and "\x00" not in text and "\u202e" not in text and "[link]" in text


@pytest.mark.slow
@pytest.mark.parametrize("width", [20, 40, 300])
def test_odd_widths(width):
    assert "DIVERGENT" in printed(examples.stale_tensor(), width)


@pytest.mark.slow
def test_a_reader_that_went_away_does_not_change_the_exit_code():
    program = """
import sys
import reports_examples as examples
from rich.console import Console
from reports.nightly_model import CellResult, Change, Night
from reports.renderers.text import TextRenderer
TextRenderer().show(examples.stale_tensor(), Console())
sys.exit(42)
"""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        done = subprocess.run(
            [sys.executable, "-c", program],
            stdout=closed,
            stderr=subprocess.PIPE,
            check=False,
            timeout=60,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
    assert (done.returncode, done.stderr) == (42, b"")


def test_the_console_is_left_as_it_was():
    console = Console(file=io.StringIO())
    print_verdict(examples.torn(), console)
    assert console.on_broken_pipe.__func__ is Console.on_broken_pipe and not console.quiet


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_table_loses_no_cell(width: int, terminal: bool) -> None:
    rows = [[f"name-{row}", "two words", f"/{'long/' * 20}path-{row}", "汉字"] for row in range(3)]
    file = io.StringIO()
    page = Page(Console(file=file, width=width, force_terminal=terminal, color_system=None, legacy_windows=False))
    page.table(("name", "kind", "path", "text"), rows)
    lines = file.getvalue().splitlines()
    assert all(cell in file.getvalue() for row in rows for cell in row)
    for row in rows if not terminal or width == 200 else ():
        assert [line for line in lines if line.startswith(row[0]) and all(cell in line for cell in row)]


@pytest.mark.parametrize(("columns", "width"), [("0", 80), ("00", 80), ("60", 60), ("", 80), ("nonsense", 80)])
def test_a_terminal_of_unknown_width_gets_the_whole_verdict(columns, width, monkeypatch):
    """A runner's pseudo-terminal without a size sets COLUMNS=0; a console that is 0 wide prints nothing."""
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(sys, "__stdout__", None)  # no terminal to ask
    file = io.StringIO()
    made = terminal_console(file=file)
    assert made.width == width
    with Page(made) as page:
        page.line("HUNG")
    assert file.getvalue() == "HUNG\n"


@pytest.mark.parametrize("columns", ["0", "1", "40"])
def test_each_renderer_prints_at_any_width(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", columns)
    for example in (examples.stale_tensor, examples.triage):
        TextRenderer().write(example(), sys.stdout)
        assert capsys.readouterr().out.split()[0] == example().verdict
