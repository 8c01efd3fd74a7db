"""What the source text says about locks: which one a line takes, with a time limit or without, in which `with` a frame
stands, whether it ever leaves that, and which names mean one lock throughout a file."""

from __future__ import annotations

import ast
from functools import lru_cache

from harness.triage.evidence import Frame
from harness.triage.source import Loop, any_holds, function_of, holds, innermost_loop, loop_around, pairs, tree_of


@lru_cache(maxsize=4096)
def lock_of(frame: Frame) -> str:
    """The text of the lock that the line of a frame takes, in a `with` or by `acquire`; empty without one."""
    body = function_of(frame)
    for node in ast.walk(body) if body is not None else ():
        if isinstance(node, ast.With) and (items := [its for its in node.items if holds(its.context_expr, frame.line)]):
            return ast.unparse(items[0].context_expr)
        if (owner := _acquired(node)) is not None and holds(node, frame.line):
            return ast.unparse(owner)
    return ""


def makes_lock(frame: Frame) -> bool:
    """Whether the function of a frame itself makes the lock that its line takes."""
    body, lock = function_of(frame), lock_of(frame)
    if body is None or isinstance(body, ast.Module) or not lock:
        return False
    assigned = (target for node in ast.walk(body) if isinstance(node, ast.Assign) for target in node.targets)
    return any(isinstance(target, ast.Name) and target.id == lock for target in assigned)


def _acquired(node: ast.AST) -> ast.expr | None:
    """The lock of a call of `acquire`; None for anything else."""
    acquires = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "acquire"
    return node.func.value if acquires else None  # type: ignore[attr-defined]


def gives_up(frame: Frame) -> bool:
    """Whether the line of a frame takes a lock by an `acquire` that waits for a limited time, and does not only begin
    it anew for ever."""
    body = function_of(frame)
    calls = [node for node in ast.walk(body) if _acquired(node) and holds(node, frame.line)] if body is not None else []
    if not any(isinstance(call, ast.Call) and _has_limit(call) for call in calls):
        return False
    loop = innermost_loop(frame)
    if not isinstance(loop, ast.While):
        return True
    left = any(isinstance(node, (ast.Break, ast.Return, ast.Raise)) for part in loop.body for node in ast.walk(part))
    again = isinstance(loop.test, ast.Constant) or any(map(_acquired, ast.walk(loop.test)))
    return left or not again


def _has_limit(acquire: ast.Call) -> bool:
    """Whether a call of `acquire(blocking, timeout)` ends although nobody releases the lock."""
    arguments = dict(zip(("blocking", "timeout"), acquire.args, strict=False))
    arguments |= {word.arg: word.value for word in acquire.keywords if word.arg}
    blocks = ast.unparse(arguments["blocking"]) not in ("False", "0") if "blocking" in arguments else True
    return not blocks or ("timeout" in arguments and ast.unparse(arguments["timeout"]) not in ("-1", "None"))


def keeps_lock(frame: Frame, lock: str) -> bool:
    """Whether a frame stands where the lock of that text is kept: see `locks_kept`."""
    return lock in locks_kept(frame)


@lru_cache(maxsize=4096)
def locks_kept(frame: Frame) -> tuple[str, ...]:
    """The texts of what a frame keeps at its line, the outermost first: the names of a `with` in whose body it stands,
    and those that a `finally` releases."""
    body = function_of(frame)
    kept: list[ast.expr] = []
    for node in ast.walk(body) if body is not None else ():
        if isinstance(node, ast.With) and any_holds(node.body, frame.line):
            kept += [item.context_expr for item in node.items]
        elif isinstance(node, ast.Try) and any_holds(node.body, frame.line):
            kept += [owner for part in node.finalbody for call in ast.walk(part) if (owner := _released(call))]
    names = dict.fromkeys(ast.unparse(each) for each in kept if not isinstance(each, ast.Call))
    return tuple(name for name in names if name != lock_of(frame))


def keeps_for_good(frame: Frame, lock: str) -> bool:
    """Whether a frame stands in a loop without an end inside a `with` of the lock of that text, which it never
    leaves."""
    loop = innermost_loop(frame)
    if loop is None or loop_around(frame) is not Loop.ENDLESS:
        return False
    return any(
        ast.unparse(item.context_expr) == lock
        for node in _withs(frame) if node.lineno < loop.lineno and any_holds(node.body, frame.line)
        for item in node.items
    )  # fmt: skip


def _released(node: ast.AST) -> ast.expr | None:
    """The lock of a call of `release`; None for anything else."""
    releases = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "release"
    return node.func.value if releases else None  # type: ignore[attr-defined]


def sole_locks_taken(frame: Frame) -> set[str]:
    """Of the locks that the line of a frame takes with `with`, those whose name means one object: see `sole_locks`."""
    return {lock for node in _withs(frame) for lock in _locks_at(node, frame.line)} & sole_locks(frame.file)


def sole_locks_kept(frame: Frame, *, takes: bool = False) -> set[str]:
    """Of the locks whose `with` a frame stands in, those whose name means one object. `takes`: its line takes a lock,
    so that it is not inside a `with` whose body stands on that line as well: `with lock: pass`."""
    inside = [node for node in _withs(frame) if any_holds(node.body, frame.line)]
    if takes:
        inside = [node for node in inside if not _locks_at(node, frame.line)]
    return {ast.unparse(item.context_expr) for node in inside for item in node.items} & sole_locks(frame.file)


def _withs(frame: Frame) -> list[ast.With]:
    body = function_of(frame)
    return [node for node in ast.walk(body) if isinstance(node, ast.With)] if body is not None else []


def _locks_at(node: ast.With, line: int) -> list[str]:
    return [ast.unparse(item.context_expr) for item in node.items if holds(item.context_expr, line)]


def sole_locks(file: str) -> frozenset[str]:
    """The names in a file that mean one lock of threads throughout: a module's own, bound once, in the module, to a new
    lock, and released by nothing but the end of a `with`."""
    return _bound_once(file, _PLAIN_LOCKS | _REENTRANT_LOCKS)


def sole_plain_locks(file: str) -> frozenset[str]:
    """Those of `sole_locks` that a thread cannot take twice."""
    return _bound_once(file, _PLAIN_LOCKS)


@lru_cache(maxsize=64)
def _bound_once(file: str, constructors: frozenset[str]) -> frozenset[str]:
    """The names that `sole_locks` describes, of locks that one of these functions makes."""
    tree = tree_of(file)
    nodes = list(ast.walk(tree)) if tree is not None else []
    bound = [node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)]
    bound += [node.arg for node in nodes if isinstance(node, ast.arg)]
    made = {
        name.id
        for node in (tree.body if tree is not None else ())
        if isinstance(node, ast.Assign)
        for target in node.targets
        for name, value in pairs(target, node.value)
        if isinstance(name, ast.Name) and isinstance(value, ast.Call) and ast.unparse(value.func) in constructors
    }
    released = {ast.unparse(node.value) for node in nodes if isinstance(node, ast.Attribute) and node.attr == "release"}
    return frozenset(name for name in made - released if bound.count(name) == 1)


_PLAIN_LOCKS = frozenset({"threading.Lock", "Lock"})
_REENTRANT_LOCKS = frozenset({"threading.RLock", "RLock"})
