"""What the source text says about a call in which all ranks wait at one line, and why none of them goes on."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache

from harness.triage.evidence import Frame
from harness.triage.group_argument import GroupArgument, group_argument
from harness.triage.source import any_holds, asks_for_rank, function_of, holds, tree_of

# Calls of torch.distributed that need one rank of all, by the position of that argument behind the tensors.
_ROOTED = {
    "broadcast": ("src", 1), "broadcast_object_list": ("src", 1), "scatter": ("src", 2),
    "scatter_object_list": ("src", 2), "reduce": ("dst", 1), "gather": ("dst", 2), "gather_object": ("dst", 2),
}  # fmt: skip
_OWN_RANK = frozenset({"rank", "local_rank", "global_rank", "my_rank"})  # names that no program gives another rank
_LOCAL = "use_local_synchronization"  # of new_group: only its members call it


def root_by_rank(frame: Frame) -> str:
    """The source or destination of the collective on the line of a frame, where each rank computes another one, such as
    "src=(rank + 1) % size"; empty where they agree, or the text does not say.

    Of the world's own group alone: in a group of some ranks, the rank may say which group it is.
    """
    for call in _calls(frame):
        function = ast.unparse(call.func).rpartition(".")[2]
        if function not in _ROOTED or group_argument((frame,), function) != GroupArgument():
            continue
        name, place = _ROOTED[function]
        roots = [word.value for word in call.keywords if word.arg == name] or call.args[place : place + 1]
        if roots and _is_of_own_rank(roots[0], frame.file):
            return f"{name}={ast.unparse(roots[0])}"
    return ""


def group_in_a_branch(frame: Frame) -> tuple[int, str]:
    """The line of a group that the function of a frame makes before the one on the frame's line, and the condition on
    the rank under which alone it does; (0, "") without one."""
    body = function_of(frame)
    conditions = [node for node in ast.walk(body) if isinstance(node, ast.If)] if body is not None else []
    for node in conditions:
        # Where the other branch makes a group as well, each rank calls new_group.
        if asks_for_rank(node.test, frame.file) and not any_holds([node], frame.line) and not _makers(node.orelse):
            for call in _makers(node.body):
                if call.lineno < frame.line:
                    return call.lineno, f"under `if {ast.unparse(node.test)}`"
    return 0, ""


def _calls(frame: Frame) -> list[ast.Call]:
    body = function_of(frame)
    nodes = ast.walk(body) if body is not None else ()
    return [node for node in nodes if isinstance(node, ast.Call) and holds(node, frame.line)]


def _makers(statements: list[ast.stmt]) -> list[ast.Call]:
    """The calls of new_group in these statements, without those that only members make."""
    nodes = (node for statement in statements for node in ast.walk(statement) if isinstance(node, ast.Call))
    made = [node for node in nodes if ast.unparse(node.func).rpartition(".")[2] == "new_group"]
    return [node for node in made if all(word.arg != _LOCAL for word in node.keywords)]


def _is_of_own_rank(value: ast.expr, file: str) -> bool:
    """Whether a value is computed from the rank of the process itself."""
    return any(name in _OWN_RANK or name in _bound_to_rank(file) for name in _last_names(value)) or _asks(value)


@lru_cache(maxsize=256)
def _bound_to_rank(file: str) -> frozenset[str]:
    """The names that a file binds to an expression with `get_rank()`."""
    tree = tree_of(file)
    nodes = (node for node in (ast.walk(tree) if tree is not None else ()) if isinstance(node, ast.Assign))
    return frozenset(
        target.id for node in nodes if _asks(node.value) for target in node.targets if isinstance(target, ast.Name)
    )


def _asks(value: ast.expr) -> bool:
    """Whether an expression asks for the rank in the world."""
    calls = (node for node in ast.walk(value) if isinstance(node, ast.Call))
    return any(ast.unparse(node.func).rpartition(".")[2] == "get_rank" and not node.args for node in calls)


def _last_names(value: ast.expr) -> Iterator[str]:
    """The names in an expression, of an attribute its last part."""
    for node in ast.walk(value):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Name):
            yield node.id
