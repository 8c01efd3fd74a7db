"""What the source text says about a queue from which a line gets an item: its name, and which functions fill it; about
the call in which a line waits; and about functions that threads run, which a program starts once."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence

from harness.triage.evidence import Frame
from harness.triage.places import plain
from harness.triage.source import function_of, holds, tree_of

_PUTS = frozenset({"put", "put_nowait"})
_WAITS = frozenset({"wait", "wait_for", "join"})
_STARTS = frozenset({"Thread", "Process", "submit"})  # calls that run a function beside their caller


def awaited_queue(frame: Frame) -> str:
    """The text of the queue from which the line of a frame gets an item; empty without exactly one."""
    body = function_of(frame)
    calls = (node for node in (ast.walk(body) if body is not None else ()) if isinstance(node, ast.Call))
    queues = {
        ast.unparse(call.func.value)
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "get" and holds(call, frame.line)
    }
    return queues.pop() if len(queues) == 1 else ""


def waiting_call(frame: Frame) -> str:
    """What the line of a frame waits in, as "ready.wait"; empty where the text does not show one such call."""
    body = function_of(frame)
    calls = {
        ast.unparse(node.func)
        for node in (ast.walk(body) if body is not None else ())
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and holds(node, frame.line)
        and node.func.attr in _WAITS
    }  # fmt: skip
    return calls.pop() if len(calls) == 1 else ""


def fillers(file: str, queue: str) -> dict[str, int]:
    """The functions of a file that put something into the queue of that text, each with the line of its first `put`.

    Empty unless each of them is run by a thread or process of its own that the file starts, and the queue is handed to
    nobody else: then nothing but these fills it.
    """
    tree = tree_of(file)
    if tree is None or not queue:
        return {}
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    puts = {function.name: line for function in functions if (line := _first_put(function, queue))}
    started = dict(_started(tree))
    in_functions = sum(len(list(_puts(function, queue))) for function in functions)
    elsewhere = len(list(_puts(tree, queue))) > in_functions or puts.keys() - started.keys()
    return {} if elsewhere or _handed_on(tree, queue, list(started.values())) else puts


def started_once(file: str, functions: Iterable[str], main: Sequence[Frame]) -> bool:
    """Whether threads alone run these functions of a file, and each of their starts lies behind the main thread: in the
    module itself, or in a function in which the frames `main` stand past that line."""
    tree = tree_of(file)
    names, calls = set(functions), [node for node in (ast.walk(tree) if tree else ()) if isinstance(node, ast.Call)]
    if tree is None or any(ast.unparse(call.func).rpartition(".")[2] in names for call in calls):
        return False
    starts = [(name, call) for name, call in _started(tree) if name in names]
    past = all(_is_past(tree, call, [frame for frame in main if frame.file == file]) for _, call in starts)
    return {name for name, _ in starts} == names and past


def _is_past(tree: ast.AST, call: ast.Call, frames: Sequence[Frame]) -> bool:
    around = [node for node in ast.walk(tree)
              if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and holds(node, call.lineno)]  # fmt: skip
    inner = max(around, key=lambda node: node.lineno, default=None)
    return inner is None or any(
        plain(frame.function) == inner.name and holds(inner, frame.line) and frame.line > call.lineno
        for frame in frames
    )


def _first_put(function: ast.AST, queue: str) -> int:
    return min((call.lineno for call in _puts(function, queue)), default=0)


def _puts(node: ast.AST, queue: str) -> Iterator[ast.Call]:
    for call in ast.walk(node):
        puts = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in _PUTS
        if puts and ast.unparse(call.func.value) == queue:  # type: ignore[attr-defined]
            yield call  # type: ignore[misc]


def _started(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """The names of functions that a thread, a process or a pool runs, each with the call that starts it."""
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2] in _STARTS:
            targets = [word.value for word in call.keywords if word.arg == "target"] or call.args[:1]
            yield from ((ast.unparse(target).rpartition(".")[2], call) for target in targets)


def _handed_on(tree: ast.AST, queue: str, starts: list[ast.Call]) -> bool:
    """Whether the queue is an argument of a call that starts none of its fillers, or gets another name."""
    inside = {id(node) for start in starts for node in ast.walk(start)}
    for node in ast.walk(tree):
        values: list[ast.expr] = []
        if isinstance(node, ast.Call) and id(node) not in inside:
            values = [*node.args, *(word.value for word in node.keywords)]
        elif isinstance(node, (ast.Return, ast.Assign, ast.AnnAssign, ast.Yield)) and node.value is not None:
            values = [node.value]
        if any(ast.unparse(part) == queue for value in values for part in _parts(value)):
            return True
    return False


def _parts(value: ast.expr) -> list[ast.expr]:
    return list(value.elts) if isinstance(value, (ast.List, ast.Tuple, ast.Set)) else [value]
