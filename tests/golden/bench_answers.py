"""What live engines answered on the bench, kept beside a recorded pair: interventions are judged without engines.

An answers file holds one call a line: the method of `harness.parity.interventions.bench.Bench`, its arguments, and what
it returned or the error that it raised. Calls of equal arguments are answered in the order in which they were recorded.
"""

from __future__ import annotations

import json
import typing
from collections import defaultdict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from harness.errors import HarnessError
from harness.parity.interventions.bench import Bench

NAME = "bench.jsonl"
MATCHED_BY_NAME = ("open",)  # its samples are the judge's own choice, and long


class RecordingBench:
    """A bench that writes down each call and its answer."""

    def __init__(self, bench: Any, path: Path) -> None:
        self._bench, self._path = bench, path

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            line = {"call": _call(method, args, options)}
            try:
                answer = getattr(self._bench, method)(*args, **options)
            except Exception as error:
                self._write({**line, "error": str(error)})
                raise
            self._write({**line, "answer": msgspec.to_builtins(answer, str_keys=True)})
            return answer

        return call

    def _write(self, line: dict[str, Any]) -> None:
        with open(self._path, "a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")


class ReplayedBench:
    """A bench without engines: it gives the answers of a file. HarnessError for a call that was not recorded."""

    def __init__(self, path: Path) -> None:
        self._answers: dict[str, deque[dict[str, Any]]] = defaultdict(deque)
        for text in path.read_text("utf-8").splitlines():
            line = json.loads(text)
            self._answers[json.dumps(line["call"])].append(line)

    def __getattr__(self, method: str) -> Callable[..., Any]:
        kind = typing.get_type_hints(getattr(Bench, method))["return"]

        def call(*args: Any, **options: Any) -> Any:
            lines = self._answers[json.dumps(_call(method, args, options))]
            if not lines:
                raise HarnessError(f"the engines were not asked this when their answers were recorded: {method}")
            line = lines.popleft()
            if "error" in line:
                raise HarnessError(line["error"])
            return msgspec.convert(line["answer"], kind, str_keys=True)

        return call

    @property
    def unused(self) -> int:
        """Answers that nobody has asked for."""
        return sum(map(len, self._answers.values()))


def _call(method: str, args: tuple[Any, ...], options: dict[str, Any]) -> list[Any]:
    if method in MATCHED_BY_NAME:
        return [method]
    return [method, msgspec.to_builtins(args, str_keys=True), msgspec.to_builtins(options, str_keys=True)]
