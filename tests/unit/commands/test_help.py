"""The list of commands, `harness help`, `python -m harness`, completion in a shell."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness import cli
from harness.commands.doors import DOORS

ROOT = Path(__file__).parents[3]


def test_every_command_stands_behind_one_door() -> None:
    listed = [name for names in DOORS.values() for name in names]
    group: Any = cli.commands()
    assert sorted(listed) == sorted(group.commands)


def test_the_list_names_the_doors_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    page = capsys.readouterr().out
    places = [page.index(f"{title}:") for title in DOORS]
    assert places == sorted(places)


def test_the_list_and_the_readme_have_the_same_doors_in_the_same_order() -> None:
    titles, texts = [], []
    for section in re.split(r"^## ", (ROOT / "README.md").read_text("utf-8"), flags=re.M)[1:]:
        title, _, text = section.partition("\n")
        titles.append(title)
        texts.append(text)
    assert titles[: len(DOORS)] == list(DOORS)
    for (title, names), text in zip(DOORS.items(), texts[: len(DOORS)], strict=True):
        code = re.findall(
            r"^```.*?^```|`[^`\n]+`", text, flags=re.M | re.S
        )  # commands stand in blocks and in backquotes
        words = re.findall(r"(?:(?<=harness )|(?<=`))[a-z]+\b", "\n".join(code))
        named = [word for word in dict.fromkeys(words) if word in names]
        assert named == [name for name in names if name in named], title
        assert names[0] in named, title


@pytest.mark.parametrize("words", [[], ["triage"], ["env"], ["env", "create"]])
def test_help_prints_what_the_option_prints(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*words, "--help"]) == 0
    expected = capsys.readouterr().out
    assert cli.main(["help", *words]) == 0
    assert capsys.readouterr().out == expected and "Usage: harness" in expected


def test_help_of_an_unknown_command_names_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["help", "triag"]) == 2
    assert "triage" in capsys.readouterr().err


@pytest.mark.slow
def test_the_package_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "harness", "help", "triage"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "Usage: harness triage" in done.stdout


@pytest.mark.by_day(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "words"),
    [("harness pari", {"parity"}), ("harness env ", {"create", "add", "arguments", "check", "list", "path", "remove"}),
     ("harness parity --candidate-", {"--candidate-set"})],
)  # fmt: skip
def test_bash_completes_commands_and_options(typed: str, words: set[str], tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    harness = tmp_path / "harness"
    harness.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(ROOT))} exec {sys.executable} -m harness "$@"\n')
    harness.chmod(0o755)
    script = (
        'eval "$(harness --show-completion bash)"; IFS=" " read -ra COMP_WORDS <<< "$TYPED"; '
        '[[ $TYPED == *" " ]] && COMP_WORDS+=(""); COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 )); '
        "_harness_completion harness; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    done = subprocess.run(
        [bash, "-c", script], env={**os.environ, "PATH": path, "TYPED": typed}, capture_output=True, text=True
    )
    assert set(done.stdout.split()) == words, done.stderr
