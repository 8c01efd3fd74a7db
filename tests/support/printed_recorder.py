"""Holds every fix that a test makes, whoever raises or returns it, against what `printed_judge` accepts.

Errors and findings are recorded as they are made. At a test's end each new text is judged; an error that the command
line prints is also held against the words that it failed with: a fix is not the command that just failed.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.errors import Interrupted
from scenarios.engines.engine_interface import EngineError

ROOT = Path(__file__).parents[2]
ROOMS = tuple(f"{ROOT / room}{os.sep}" for room in ("harness", "reports", "scenarios", "probes"))
# What has a fix, by where it is defined.
CLASSES = (
    "harness.errors:HarnessError", "harness.doctor.outcome:Problem", "harness.doctor.outcome:Unseen",
    "harness.envs.checking:Check", "reports.doctor_model:Hazard", "reports.doctor_model:Unchecked",
    "probes.errors:FormatError",
    "probes.plugins:PluginError", "scenarios.prompts:PromptError", "scenarios.engines.engine_interface:EngineError",
    "scenarios.engines.engine_interface:ParameterRefused", "reports.model:Cause",
)  # fmt: skip


_SILENT = (KeyboardInterrupt, Interrupted, EngineError)  # who stopped it knows, or the engine's own words are all


@dataclass(frozen=True)
class Made:
    text: str
    where: str
    folder: str


class Recorder:
    def __init__(self) -> None:
        self.made: dict[str, Made] = {}
        self.wrong: list[str] = []
        self.judged: set[str] = set()
        self.commands: list[Sequence[str]] = []

    def take(self, fix: object) -> None:
        if isinstance(fix, str) and fix and fix not in self.judged and (where := _place()):
            with contextlib.suppress(OSError):
                self.made.setdefault(fix, Made(fix, where, os.getcwd()))

    def print(self, error: BaseException, fix: str) -> None:
        """The command line prints an error of the words that run."""
        words = self.commands[-1] if self.commands else ()
        command = shlex.join(["harness", *words])
        if not fix and not isinstance(error, _SILENT) and not _of_a_test(error):
            self.wrong.append(f"{command}: {type(error).__name__} is printed without a fix: {error}")
        elif words and is_circular(fix, words):
            self.wrong.append(f"{command} failed, and its fix is the same: {fix}")
        elif fix.startswith("-"):
            self.wrong.append(f"{command} failed, and its fix is no whole command: {fix}")

    def faults(self) -> list[str]:
        """What is wrong with the texts since the last call."""
        from printed_judge import wrong

        made, printed = [*self.made.values()], self.wrong
        self.made, self.wrong = {}, []
        self.judged.update(item.text for item in made)
        return [
            f"{item.where}: fix: {item.text}: {fault}" for item in made for fault in wrong(item.text, item.where)
        ] + printed


def _of_a_test(error: BaseException) -> bool:
    """Whether a test raised it by itself, to see what is printed."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(files) and files[-1].startswith(str(ROOT / "tests"))


def is_circular(fix: str, words: Sequence[str]) -> bool:
    """Whether typing the fix only starts again what has just failed."""
    with contextlib.suppress(ValueError):
        return shlex.split(re.sub(r"\s{2,}#\s.*$", "", fix)) == ["harness", *words]
    return False


def _place() -> str:
    """Where in the rooms a fix was made; empty for one that a test made by itself."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(str(ROOT / "tests")) and not name.startswith(str(Path(__file__))):
            return ""
        if (
            name.startswith(ROOMS)
            and not name.endswith(("errors.py", "plugins.py"))
            and frame.f_code.co_name != "__init__"
        ):
            return f"{Path(name).relative_to(ROOT)}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def start(recorder: Recorder, patch: pytest.MonkeyPatch) -> None:
    for name in CLASSES:
        module, _, kind = name.partition(":")
        _observe(getattr(__import__(module, fromlist=[kind]), kind), recorder, patch)
    from harness import cli

    patch.setattr(cli, "main", _with_words(cli.main, recorder))
    addressed = cli._addressed

    @functools.wraps(addressed)
    def addressing(error: BaseException, words: Sequence[str]) -> Any:
        message = addressed(error, words)
        recorder.print(error, message.fix)
        return message

    patch.setattr(cli, "_addressed", addressing)


def _observe(kind: Any, recorder: Recorder, patch: pytest.MonkeyPatch) -> None:
    make = kind.__init__

    @functools.wraps(make)
    def making(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        recorder.take(getattr(self, "fix", None))

    patch.setattr(kind, "__init__", making)


def _with_words(main: Callable[..., int], recorder: Recorder) -> Callable[..., int]:
    @functools.wraps(main)
    def running(arguments: Sequence[str] | None = None) -> int:
        recorder.commands.append(arguments or ())
        try:
            return main(arguments)
        finally:
            recorder.commands.pop()

    return running


@contextlib.contextmanager
def recording() -> Iterator[Recorder]:
    recorder = Recorder()
    with pytest.MonkeyPatch.context() as patch:
        start(recorder, patch)
        yield recorder
