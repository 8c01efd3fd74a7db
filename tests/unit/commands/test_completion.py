"""A shell completes names that a command takes: engines, and planted faults of the suite that is named."""

from __future__ import annotations

import shlex

import pytest
from typer.testing import CliRunner

from harness import cli, completion
from harness.commands import faults
from harness.planted.differences import files
from harness.planted.hangs import hang_selection
from scenarios.engines import registry


def completed(line: str) -> list[str]:
    """What bash is offered for the last word of the line."""
    words = line.split(" ")
    environ = {"_HARNESS_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    return CliRunner().invoke(cli.app, env=environ, prog_name="harness").output.split()


@pytest.mark.parametrize(
    "line",
    [
        "harness parity ", "harness parity hf ", "harness up ", "harness bisect ",
        "harness run ppo-tiny --backend ", "harness replay runs/mine --backend ", "harness mapping FILE --engine ",
        "harness mapping FILE --from ", "harness faults run --backends ", "harness faults run --backends hf ",
    ],
)  # fmt: skip
@pytest.mark.slow
def test_an_engine_is_completed_wherever_a_command_takes_one(line: str) -> None:
    assert completed(line) == list(registry.names())
    assert completed("harness env create ") == list(registry.names(embedded=False))
    assert completed(f"{line}vl") == [name for name in registry.names() if name.startswith("vl")] != []


@pytest.mark.slow
def test_a_command_is_completed_for_its_help() -> None:
    assert completed("harness help mapp") == ["mapping"]
    assert completed("harness help env cr") == ["create"]
    assert completed("harness help triage ") == []


@pytest.mark.slow
def test_a_name_of_a_report_is_completed_for_its_explanation() -> None:
    assert "K12" in completed("harness explain K1")


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_the_script_of_a_named_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--show-completion", shell]) == 0
    script = capsys.readouterr().out
    assert "_HARNESS_COMPLETE" in script and ("pwsh" in shell or f"complete_{shell}" in script)
    assert cli.main(["--show-completion", "tcsh"]) == 2


@pytest.mark.slow
def test_a_planted_fault_is_completed_from_the_suite_that_is_named() -> None:
    parity, hangs = {fault.name for fault in files.faults()}, {hang.name for hang in hang_selection.hangs()}
    assert {*completed("harness faults run --suite parity ")} == parity
    assert {*completed("harness faults run --suite hang ")} == {*completed("harness faults run ")} == hangs
    begins = completed("harness faults run dumps-")
    assert begins and all(name.startswith("dumps-") for name in begins)


@pytest.mark.parametrize("suite", ["hang", "parity"])
def test_an_option_of_the_other_suite_is_refused_with_a_command_that_works(
    suite: faults.Suite, capsys: pytest.CaptureFixture[str]
) -> None:
    other: faults.Suite = "parity" if suite == "hang" else "hang"
    words = {
        "backends": ["hf", "vllm"],
        "dtype": ["bfloat16"],
        "model": ["builtin:tied"],
        "stall": ["9s"],
        "jobs": ["2"],
    }
    name = "dumps-order" if suite == "hang" else "control"
    for option in faults.OPTIONS[other]:
        for names in ([], [name]):
            given = [*names, f"--{option}", *words.get(option, [])]
            assert cli.main(["faults", "run", "--suite", suite, *given]) == 2
            first, fix = capsys.readouterr().err.splitlines()
            assert f"--{option}" in first
            suggested = shlex.split(fix.removeprefix("  fix: harness "))
            assert suggested[:4] == ["faults", "run", "--suite", suite if names else other]
            context = cli.commands().commands["faults"].commands["run"].make_context("run", suggested[2:])
            faults._refuse_options_of_other_suite(context, context.params["suite"], names)
