"""What the source text says about the process group of a collective: which value of which function it is.

A wrapper gets its group as an argument, so the text is followed through the callers. Two collectives of one rank are
in one group if both groups are the same name of the same function, and nothing binds that name twice.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.triage.evidence import Frame
from harness.triage.source import BEFORE_GROUP, function_of, holds, names_in

_OF_DEFAULT = frozenset({"None", "dist.group.WORLD", "torch.distributed.group.WORLD", "group.WORLD"})
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class GroupArgument:
    """A group: its text, and the function in which this text stands. Of the default group both are empty."""

    text: str = ""
    file: str = ""
    function: str = ""


def group_argument(frames: Sequence[Frame], function: str) -> GroupArgument | None:
    """The group in which the innermost of these frames waits in this collective of torch.distributed; None if the text
    does not tell.

    `frames` are innermost first, all of the user's code.
    """
    texts = list(_followed(frames, function))
    if not texts:
        return None
    frame, argument = texts[-1]
    if argument is None or ast.unparse(argument) in _OF_DEFAULT:
        return GroupArgument()
    body, text = function_of(frame), ast.unparse(argument)
    if body is None or not isinstance(argument, (ast.Name, ast.Attribute)):
        return None
    is_own = _position(body, text) is None and _bound_once(body, text)
    return GroupArgument(text, frame.file, frame.function) if is_own else None


def looped_group(frames: Sequence[Frame], function: str) -> str:
    """The text of the group in which the innermost of these frames waits, if a loop of the program or of a caller goes
    through several groups with it; else empty."""
    for frame, argument in _followed(frames, function):
        body = function_of(frame)
        loops = (node for node in (ast.walk(body) if body is not None else ()) if isinstance(node, ast.For))
        names = names_in(argument) if argument is not None else set()
        if any(names & names_in(loop.target) and any(holds(part, frame.line) for part in loop.body) for loop in loops):
            return ast.unparse(argument) if argument is not None else ""
    return ""


def _followed(frames: Sequence[Frame], function: str) -> Iterator[tuple[Frame, ast.expr | None]]:
    """Yield the group of a collective as the innermost frame names it, then as each caller gives it whose value is
    passed on, with the frame. None is a group that is not given."""
    before_group, call = BEFORE_GROUP.get(function), _only_call(frames[0], function)
    if before_group is None or call is None or _is_asynchronous(call):
        return
    argument = _argument(call, "group", before_group)
    for at, frame in enumerate(frames):
        yield frame, argument
        body = function_of(frame)
        text = ast.unparse(argument) if isinstance(argument, ast.Name) else ""
        if at + 1 == len(frames) or not isinstance(body, _Function) or _stores(body, text):
            return
        position = _position(body, text)
        if position is None:
            return
        call = _only_call(frames[at + 1], body.name)
        if call is None:
            return
        is_method = bool(body.args.args) and body.args.args[0].arg in ("self", "cls")
        passed = _argument(call, text, position - is_method)
        argument = passed if passed is not None else _default(body, text)
        if argument is None:
            return


def _only_call(frame: Frame, function: str) -> ast.Call | None:
    """The only call of this function at the line of a frame; None without one, or if its arguments are starred."""
    body = function_of(frame)
    calls = [
        node
        for node in (ast.walk(body) if body is not None else ())
        if isinstance(node, ast.Call) and holds(node, frame.line)
        and ast.unparse(node.func).rpartition(".")[2] == function
    ]  # fmt: skip
    if len(calls) != 1:
        return None
    starred = any(isinstance(argument, ast.Starred) for argument in calls[0].args)
    return None if starred or any(keyword.arg is None for keyword in calls[0].keywords) else calls[0]


def _is_asynchronous(call: ast.Call) -> bool:
    return any(keyword.arg == "async_op" and ast.unparse(keyword.value) != "False" for keyword in call.keywords)


def _argument(call: ast.Call, name: str, position: int) -> ast.expr | None:
    named = next((keyword.value for keyword in call.keywords if keyword.arg == name), None)
    return named if named is not None else call.args[position] if 0 <= position < len(call.args) else None


def _position(body: ast.AST, name: str) -> int | None:
    """Where a parameter of this name stands; None if the function has none. One that is only named is far behind."""
    if not isinstance(body, _Function):
        return None
    positional = [each.arg for each in (*body.args.posonlyargs, *body.args.args)]
    if name in positional:
        return positional.index(name)
    return 1 << 16 if name in [each.arg for each in body.args.kwonlyargs] else None


def _default(body: ast.AST, name: str) -> ast.expr | None:
    """The default value of a parameter."""
    assert isinstance(body, _Function)
    positional = [*body.args.posonlyargs, *body.args.args]
    defaults = dict(zip((each.arg for each in positional[::-1]), body.args.defaults[::-1], strict=False))
    named = zip((each.arg for each in body.args.kwonlyargs), body.args.kw_defaults, strict=True)
    return {**defaults, **dict(named)}.get(name)


def _bound_once(body: ast.AST, text: str) -> bool:
    """Whether nothing in a function gives a name or an attribute a second value, and no loop gives it a value a
    round."""
    loops = (node for node in ast.walk(body) if isinstance(node, (ast.For, ast.AsyncFor, ast.While)))
    return _stores(body, text) < 2 and not any(_stores(loop, text) for loop in loops)


def _stores(body: ast.AST, text: str) -> int:
    nodes = (node for node in ast.walk(body) if isinstance(node, (ast.Name, ast.Attribute)))
    return sum(isinstance(node.ctx, ast.Store) and ast.unparse(node) == text for node in nodes)
