"""What is printed works when it is typed: every fix of the source, every command of the documentation.

`printed_fixes` collects what the source can print, `printed_judge` reads it with the real command line. What tests
raise is held to the same by `printed_recorder`, in every test.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from printed_fixes import ROOMS, Fix, Source
from printed_judge import commands, of_harness, wrong
from printed_recorder import Recorder, is_circular

from harness.errors import BadInput

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / ".github").rglob("*.md")])
TARGETS = {*re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M)}


@pytest.fixture(scope="module")
def source() -> Source:
    return Source()


@pytest.fixture(scope="module")
def fixes(source: Source) -> list[Fix]:
    return [*source.fixes()]


def test_every_fix_of_the_source_works(fixes: list[Fix]) -> None:
    faults = {fix: wrong(fix.text, fix.where) for fix in dict.fromkeys(fixes)}
    assert not [f"{fix.where}: {fix.text}: {fault}" for fix, wrongs in faults.items() for fault in wrongs]


REFUSALS = {
    "BadInput",
    "EnvironmentUnusable",
    "HistoryUnusable",
    "NoHistory",
    "StartFailed",
    "ParameterRefused",
    "UnknownEngine",
    "PromptError",
    "ModelError",
    "CheckpointError",
    "DivergedError",
}


def test_every_refusal_has_a_fix(source: Source) -> None:
    assert not [*source.without(REFUSALS)]


def test_an_error_without_a_fix_is_seen(source: Source) -> None:
    assert [*source.without({"FlightError"})], "they become findings, and the rest of the dumps is judged"


def test_fixes_are_collected_by_name_by_place_and_from_the_shell(fixes: list[Fix]) -> None:
    texts, files = {fix.text for fix in fixes}, {fix.where.partition(":")[0] for fix in fixes}
    assert len(texts) > 400 and {name.partition("/")[0] for name in files} == {*ROOMS}
    assert "harness explain   # lists them" in texts, "of a keyword"
    assert "sudo sysctl kernel.yama.ptrace_scope=0" in texts, "of a place, through an alternative"
    assert "sbatch $0" in texts, "of a launcher's shell"
    assert any(text.startswith("kill -CONT ‹") for text in texts), "of a table"
    assert any(text.startswith("harness adapters check --framework ‹job.framework.name›") for text in texts), (
        "of a line"
    )
    assert {"harness/triage/rules/pauses.py", "harness/triage/rules/absence.py", "harness/triage/archive.py"} <= files


@pytest.mark.parametrize(
    "text",
    [
        "harness parity vllm sglang --format junitt",
        "harness partiy vllm sglang",
        "harness parity vllm",
        "harness parity vllm sglang --steps many",
        "harness parity vllm nosuch",
        "harness parity vllm sglang --set sampling.topp=1",
        "harness explain NO_SUCH_CAUSE",
        "run it under `harness watch 4711`",
        "harness watch PID",
        "pip install 'rlhf-harness[parity]'",
        "pip install rlhf-harnes",
        "--no-such-option 1",
        "lower it with --nosuch",
        "echo 'half a quote",
        "harness triage NOBODY_KNOWS_THIS_PLACEHOLDER",
        "harness doctor --address <head>:6379",
        "export CUDA_VISIBLE_DEVICES=<those of one kind>",
    ],
)
def test_a_fix_that_fails_when_it_is_typed_is_refused(text: str) -> None:
    assert wrong(text)


@pytest.mark.parametrize(
    "text",
    [
        "harness parity vllm sglang --format github --out runs/push",
        "harness watch --stall 60s -- COMMAND",
        "harness triage PID",
        "harness doctor",
        "--out DIR   # another folder",
        "--set engine.tensor_parallel=2",
        "pip install '.[parity]'   # in a checkout of rlhf-harness",
        "pip install torch",
        "df -h ‹path›   # free some space",
        "choose another --out",
    ],
)
def test_a_fix_that_works_is_not(text: str) -> None:
    assert not wrong(text)


def test_a_fix_is_not_the_command_that_failed() -> None:
    words = ["env", "create", "vllm"]
    assert is_circular("harness env create vllm   # again", words)
    assert not is_circular("harness env create vllm --recreate", words)


def test_an_error_that_is_printed_without_a_fix_or_with_the_same_command_is_seen() -> None:
    recorder = Recorder()
    recorder.commands.append(["env", "list"])
    for fix in ("", "harness env list   # again", "--name mine", "harness env create vllm"):
        recorder.print(BadInput("there is no environment"), fix)
    assert len(recorder.faults()) == 3


# --- the documentation


BEGINS = re.compile(r"(?:\.venv/bin/)?(?:harness|pip|uv|pipx|make|python -m pip) ")


def _lines(text: str) -> list[str]:
    """Lines of fenced blocks that somebody types."""
    blocks = re.findall(r"^```(?:console|bash|sh|text|)\n(.*?)^```", text, re.M | re.S)
    lines = (
        re.sub(r"\s{3,}.*|\s+#\s.*", "", line.strip().removeprefix("$ "))
        for block in blocks
        for line in block.splitlines()
    )
    return [part.strip() for line in lines for part in re.split(r"\s;\s|\s&&\s", line) if BEGINS.match(part.strip())]


def _spans(text: str) -> list[str]:
    """Commands that a sentence names."""
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))
    return [span for span in spans if BEGINS.match(span)]


def _wrong(line: str, mention: bool = False) -> list[str]:
    words = line.removeprefix(".venv/bin/")
    if words.startswith("make "):
        names = [word for word in words.split()[1:] if "=" not in word and re.fullmatch("[a-z-]+", word)]
        return [f"make has no target {name!r}" for name in names if name not in TARGETS]
    if words.startswith("harness "):
        words = re.sub(r"\[([^][]*)\](?=\s|$)", r"\1", words)  # what may be left out
        words = re.sub(r"(?<=\w)(?:\|[\w:]+)+", "", words)  # the first of several
        return wrong(f"`{words}`" if mention or "…" in words else words)
    return wrong(words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_a_page_works(page: Path) -> None:
    text = page.read_text("utf-8")
    faults = [fault for line in dict.fromkeys(_lines(text)) for fault in _wrong(line)]
    assert not faults + [fault for span in dict.fromkeys(_spans(text)) for fault in _wrong(span, mention=True)]


def test_every_command_of_a_docstring_works() -> None:
    faults = []
    for path in sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py")):
        text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
        faults += [
            f"{path.relative_to(ROOT)}: {fault}" for span in _spans(text) for fault in _wrong(span, mention=True)
        ]
    assert not faults


def test_commands_are_found_in_pages_and_sentences() -> None:
    texts = [page.read_text("utf-8") for page in PAGES]
    lines = [line for text in texts for line in (*_lines(text), *_spans(text))]
    assert len(lines) > 200 and {line.split()[0] for line in lines} >= {"harness", "pip", "make"}
    assert commands("run `harness doctor` first, or harness triage PID") == ["doctor", "triage PID"]
    assert of_harness("triage 4711") == []
