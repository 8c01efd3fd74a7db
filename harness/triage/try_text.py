"""What the source text says about a `try` that a frame has left: it stands in an `except` or in the `finally` of it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from harness.triage.evidence import Frame
from harness.triage.source import function_of, holds

# Errors with which programs end a loop in good order.
_ENDS = frozenset({"StopIteration", "StopAsyncIteration", "EOFError", "Empty", "queue.Empty", "GeneratorExit"})


@dataclass(frozen=True)
class LeftTry:
    """A `try` that a frame has left. `frame`: it stands in the `except` or `finally`. `inside`: lines of what it left.

    by: "except" or "finally". line: of the `except`, or of the `try` of a `finally`. ends: its `except` catches only
    errors with which a loop ends in good order.
    """

    frame: Frame
    by: str
    line: int
    inside: tuple[range, ...]
    ends: bool = False

    def covers(self, frame: Frame) -> bool:
        """Whether a frame stands where this one left."""
        same = (frame.file, frame.function) == (self.frame.file, self.frame.function)
        return same and any(frame.line in lines for lines in self.inside)


def left_try(frame: Frame) -> LeftTry | None:
    """The innermost `try` of its function that a frame has left; None without one."""
    body = function_of(frame)
    nodes = (node for node in ast.walk(body) if isinstance(node, ast.Try)) if body is not None else ()
    left = (its for node in nodes for its in _left(node, frame))
    return max(left, key=lambda its: its.line, default=None)


def _left(node: ast.Try, frame: Frame) -> Iterator[LeftTry]:
    body = _lines(node.body)
    for handler in node.handlers:
        if any(holds(part, frame.line) for part in handler.body):
            yield LeftTry(frame, "except", handler.lineno, (body,), ends=_caught(handler) <= _ENDS)
    if any(holds(part, frame.line) for part in node.finalbody):
        inner = (_lines(part) for part in (*(handler.body for handler in node.handlers), node.orelse) if part)
        yield LeftTry(frame, "finally", node.lineno, (body, *inner))


def _lines(parts: list[ast.stmt]) -> range:
    return range(parts[0].lineno, (parts[-1].end_lineno or parts[-1].lineno) + 1)


def _caught(handler: ast.ExceptHandler) -> set[str]:
    """The errors that a handler catches; {""} where it catches all."""
    if handler.type is None:
        return {""}
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return {ast.unparse(each) for each in types}


def ends_loop(error: str) -> bool:
    """Whether an error, as "ValueError: text", is one with which a loop ends in good order."""
    return error.partition(":")[0].rpartition(".")[2] in _ENDS
