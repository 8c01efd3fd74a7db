"""An option that changes nothing beside the others is refused at once, with the command that works."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from harness import cli

pytestmark = pytest.mark.slow

IDLE = [
    ("watch --serve-after 5m -- true", "watch --serve-after 5m --serve 0 -- true"),
    ("watch --token-file x -- true", "watch --token-file x --serve 0 -- true"),
    ("watch --serve-after 5m --token-file x -- true", "watch --serve-after 5m --token-file x --serve 0 -- true"),
    ("watch --pid 999999999 --serve-after 5m --token-file x", "watch --pid 999999999"),
    ("record --on-stall end -- true", "record --on-stall end --stall 5m -- true"),
    ("record --stall 0 --on-stall end -- true", "record --stall 5m --on-stall end -- true"),
    ("triage 999999999 --token-file x", "triage 999999999"),
    (
        "doctor --against 'python a.py' --no-imports --stall 5m --nodes . --ray --address h:1 -- python b.py",
        "doctor --against 'python a.py' -- python b.py",
    ),
    ("bisect --good a.toml --bad b.toml --keep-envs 2", "bisect --good a.toml --bad b.toml"),
    ("bisect v1..v2 --run true --repo . --keep-envs 2", "bisect v1..v2 --run true --repo ."),
    ("bisect --resume x --out y", "bisect --resume x"),
    ("nightly m.toml --list --budget 5m --out x --dry-run", "nightly m.toml --list"),
    ("env create vllm@0.31 --version 0.32", "env create vllm@0.31"),
    ("render torchrun --early 5 -- python x.py", "render torchrun --early 5 --time 12h -- python x.py"),
    ("render github-job --install x --source y -- true", "render github-job --install x -- true"),
    ("render github m.toml --setup x --source y", "render github m.toml --setup x"),
    ("parity hf hf --repeat both", "parity hf hf --repeat both -- python train.py"),
    ("parity hf hf --steps 3 --no-native -- true", "parity hf hf -- true"),
    ("faults run --suite parity --jobs 2", "faults run --suite hang --jobs 2"),
]


@pytest.mark.parametrize(("command", "fixed"), IDLE)
def test_an_option_that_changes_nothing_is_refused(
    command: str, fixed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.toml").write_text('name = "m"\n[matrix]\npairs = [["hf", "hf"]]\n')
    assert cli.main(shlex.split(command)) == 2
    message, _, fix = capsys.readouterr().err.partition("  fix: ")
    assert shlex.split(fix, comments=True) == ["harness", *shlex.split(fixed)]
    assert message.startswith("harness: ") and not list(tmp_path.glob("runs"))


@pytest.mark.parametrize("command", ["nightly m.toml --list", "render torchrun --early 5 --time 1h -- python x.py"])
def test_the_option_that_works_is_taken(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.toml").write_text('name = "m"\n[matrix]\npairs = [["hf", "hf"]]\n')
    assert cli.main(shlex.split(command)) == 0
