"""What the source text says about a wait for a result that an event loop makes: is it the loop of the same thread?

`asyncio.run_coroutine_threadsafe(coroutine, loop).result()` is for another thread than the loop's. In the loop's own
thread the result never comes, because the loop goes on only when the wait has ended.
"""

from __future__ import annotations

import ast
from enum import Enum

from harness.triage.evidence import Frame
from harness.triage.source import function_of, holds, pairs, tree_of

_THREADSAFE = frozenset({"asyncio.run_coroutine_threadsafe", "run_coroutine_threadsafe"})
_RUNNING = frozenset({"asyncio.get_running_loop", "get_running_loop"})
_NEW = frozenset({"asyncio.new_event_loop", "new_event_loop"})


class Loop(Enum):
    """Whose the event loop is that makes the awaited result."""

    OWN = "of the thread that runs this function: its text asks for the running loop"
    MADE_HERE = "one that this file made or asked for, once"
    UNKNOWN = "not known"


def awaited_loop(frame: Frame) -> Loop:
    """Whose event loop makes the result that the line of a frame waits for without a limit; UNKNOWN also for a line
    that waits for something else."""
    body, tree = function_of(frame), tree_of(frame.file)
    if body is None or tree is None:
        return Loop.UNKNOWN
    waits = (node for node in ast.walk(body) if _is_result(node) and holds(node, frame.line))
    for wait in waits:
        future = _value(wait.func.value, body)  # type: ignore[attr-defined]
        if _function(future) not in _THREADSAFE:
            continue
        loop = _of_call(future)
        if loop is None:
            return Loop.UNKNOWN
        if not isinstance(body, ast.Module) and _function(_value(loop, body)) in _RUNNING:
            return Loop.OWN
        made = [_function(value) for value in _bound(loop, tree)]
        return Loop.MADE_HERE if len(made) == 1 and made[0] in _RUNNING | _NEW else Loop.UNKNOWN
    return Loop.UNKNOWN


def _is_result(node: ast.AST) -> bool:
    """Whether it is a call of `result()` or `exception()` without a time limit."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("result", "exception")
        and not node.args
        and not node.keywords
    )


def _of_call(call: ast.expr) -> ast.expr | None:
    """The loop that a call of `run_coroutine_threadsafe(coroutine, loop)` names."""
    if not isinstance(call, ast.Call):
        return None
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    return call.args[1] if len(call.args) > 1 else named.get("loop")


def _function(call: ast.expr) -> str:
    return ast.unparse(call.func) if isinstance(call, ast.Call) else ""


def _value(expression: ast.expr, body: ast.AST) -> ast.expr:
    """What a name stands for, where the function binds it once; else the expression itself."""
    bound = _bound(expression, body)
    return bound[0] if isinstance(expression, ast.Name) and len(bound) == 1 else expression


def _bound(name: ast.expr, body: ast.AST) -> list[ast.expr]:
    """The values that are assigned to a name or an attribute anywhere in `body`. Whatever binds a name otherwise, as a
    parameter or a loop does, is a value that says nothing."""
    text = ast.unparse(name)
    values: list[ast.expr] = []
    bindings = 0
    for node in ast.walk(body):
        if isinstance(node, ast.Assign):
            both = (pair for target in node.targets for pair in pairs(target, node.value))
            values += [value for target, value in both if ast.unparse(target) == text]
        elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            bindings += ast.unparse(node) == text
        elif isinstance(node, ast.arg):
            bindings += node.arg == text
    return values + [name] * (bindings - len(values))
