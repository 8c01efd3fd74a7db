"""What the source text says about how a line is reached: the branches, loops, caught errors and exits before it."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from harness.triage.evidence import Frame
from harness.triage.source import any_holds, asks_for_rank, function_of, holds


@dataclass(frozen=True)
class Gate:
    """What decides whether a line is reached: a branch, a loop, an error that is caught, or an exit before the line.

    `statement`: the line at which its whole statement begins, which is the `try` of an `except`. `asks_for_rank`: it is
    a condition on the rank.
    """

    line: int
    words: str
    statement: int
    asks_for_rank: bool = False

    @property
    def in_handler(self) -> bool:
        return self.words == _IN_EXCEPT

    def excludes(self, other: Gate) -> bool:
        """Whether no run of their statement reaches both lines: they are in its two branches, or one of them behind a
        branch that leaves."""
        exclusive = self.in_handler or other.in_handler or "`if " in self.words
        return exclusive and self.statement == other.statement and self != other


_IN_EXCEPT = "in an `except`"


_LOOPS = (ast.For, ast.While, ast.AsyncFor)
_EXITS = (ast.Return, ast.Break, ast.Continue)


@lru_cache(maxsize=4096)
def gates(frame: Frame) -> frozenset[Gate] | None:
    """The gates of a frame's line within its function, each with its line; None if the text cannot be read."""
    body = function_of(frame)
    if body is None:
        return None
    return frozenset(
        Gate(
            _deciding_line(node, frame.line),
            words,
            node.lineno,
            isinstance(node, ast.If) and asks_for_rank(node.test, frame.file),
        )
        for node in ast.walk(body)
        if isinstance(node, (ast.If, ast.Try, *_LOOPS)) and (words := _gate(node, frame.line))
    )


def _deciding_line(node: ast.stmt, line: int) -> int:
    """The line of the `except` in which a line is; of any other statement its own."""
    handlers = node.handlers if isinstance(node, ast.Try) else []
    return next((handler.lineno for handler in handlers if any_holds(handler.body, line)), node.lineno)


def branches(frame: Frame) -> list[Gate]:
    """The gates of a frame's line that are conditions, outermost first."""
    body = function_of(frame)
    conditions = [node for node in ast.walk(body) if isinstance(node, ast.If)] if body is not None else []
    reached = (
        Gate(node.lineno, _gate_of_condition(node, frame.line), node.lineno, asks_for_rank(node.test, frame.file))
        for node in conditions
    )
    return sorted((gate for gate in reached if gate.words), key=lambda gate: gate.line)


def _gate(node: ast.If | ast.Try | ast.For | ast.While | ast.AsyncFor, line: int) -> str:
    """How a statement decides whether a line is reached, in words; empty if it does not."""
    if isinstance(node, ast.If):
        return _gate_of_condition(node, line)
    if not holds(node, line):
        return ""
    if isinstance(node, ast.Try):
        return _gate_of_try(node, line)
    return f"in the loop `while {ast.unparse(node.test)}`" if isinstance(node, ast.While) else "in a `for` loop"


def _gate_of_condition(node: ast.If, line: int) -> str:
    condition = f"`if {ast.unparse(node.test)}`"
    if any_holds(node.body, line):
        return f"under {condition}"
    if any_holds(node.orelse, line):
        return f"in the else of {condition}"
    leaves = any(isinstance(part, _EXITS) for part in node.body)
    return f"only if {condition} does not leave before" if leaves and (node.end_lineno or 0) < line else ""


def _gate_of_try(node: ast.Try, line: int) -> str:
    if any_holds(node.finalbody, line):
        return "in a `finally`"
    if any(any_holds(handler.body, line) for handler in node.handlers):
        return _IN_EXCEPT
    return "in a `try`" if node.handlers else ""


def in_every_ranks_way(frames: Sequence[Frame]) -> bool:
    """Whether the text of all these frames can be read, and no condition on the way asks for more than the round of a
    loop, such as `step % 10 == 0`. Then a rank is not there for what it alone does."""
    bodies = [(function_of(frame), frame) for frame in frames]
    return bool(bodies) and all(
        body is not None and _in_each_round(body, frame.line, frame.file) for body, frame in bodies
    )


def _in_each_round(body: ast.AST, line: int, file: str) -> bool:
    """Whether a line of a function is reached under no condition but the number of a loop's round."""
    nodes = list(ast.walk(body))
    counted = {ast.unparse(name) for node in nodes if isinstance(node, (ast.For, ast.AsyncFor))
               for name in ast.walk(node.target) if isinstance(name, ast.Name)}  # fmt: skip
    conditions = [node.test for node in nodes if isinstance(node, ast.If) and _gate_of_condition(node, line)]
    asks = any(asks_for_rank(condition, file) for condition in conditions)
    in_handler = any(isinstance(node, ast.Try) and _gate_of_try(node, line) == _IN_EXCEPT for node in nodes)
    return not (asks or in_handler) and all(_asks_for_round(condition, counted) for condition in conditions)


def _asks_for_round(condition: ast.expr, counted: set[str]) -> bool:
    """Whether a condition asks only for the round of a loop. `counted`: what the loops of its function count."""
    if isinstance(condition, ast.BoolOp):
        return all(_asks_for_round(part, counted) for part in condition.values)
    nodes = list(ast.walk(condition))
    if any(isinstance(node, ast.Call) for node in nodes):
        return False
    periodic = any(isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) for node in nodes)
    return periodic or {node.id for node in nodes if isinstance(node, ast.Name)} <= counted
