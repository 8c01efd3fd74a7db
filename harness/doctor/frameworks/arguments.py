"""The long options that a source adds to parsers of argparse, read and not run.

A name may be written out, or made by an f-string or a sum of strings over a loop's literals or a function's literal
arguments. One that is made otherwise is not known, and neither is whether the list is whole.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from harness.doctor.frameworks.parameters import Parameter, constant

_ALONE = frozenset({"store_true", "store_false", "store_const", "append_const", "count", "help", "version"})
_MOST = 2000  # calls that loops may make of one
Values = Mapping[str, object]  # names in the source -> literals


@dataclass
class Options:
    """`names`: without their dashes; `unknown`: the first name that cannot be read, as it is written."""

    names: dict[str, Parameter] = field(default_factory=dict)
    unknown: str = ""


def arguments(tree: ast.AST) -> dict[str, Parameter]:
    """The options of a source by name."""
    return options(tree).names


@lru_cache(maxsize=16)
def options(tree: ast.AST) -> Options:
    """The options of a source."""
    found = Options()
    for count, (call, values) in enumerate(_calls(tree, {}, tree, ())):
        if count == _MOST:
            found.unknown = found.unknown or "more than can be counted"
            break
        _add(found, call, values)
    return found


def _add(found: Options, call: ast.Call, values: Values) -> None:
    told = {one.arg: one.value for one in call.keywords if one.arg}
    action, nargs = constant(told.get("action")), told.get("nargs")
    paired = "action" in told and ast.unparse(told["action"]).endswith("BooleanOptionalAction")
    odd = "action" in told and not paired and not isinstance(action, str)
    if odd or any(one.arg is None for one in call.keywords):
        takes = ""
    elif paired or action in _ALONE:
        takes = "0"
    else:
        takes = "1" if nargs is None else str(constant(nargs)) if constant(nargs) in ("?", "+", "*") else ""
    for one in call.args:
        word = _text(one, values)
        if word is None:
            found.unknown = found.unknown or ast.unparse(one)
        elif word.startswith("--"):
            found.names[word[2:]] = Parameter(word[2:], takes)
            if paired:
                found.names[f"no-{word[2:]}"] = Parameter(f"no-{word[2:]}", "0")


def _text(node: ast.expr, values: Values) -> str | None:
    """A string as it will be; None where that is not known."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.Name):
        return str(values[node.id]) if isinstance(values.get(node.id), str) else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _text(node.left, values), _text(node.right, values)
        return left + right if left is not None and right is not None else None
    if isinstance(node, ast.JoinedStr):
        parts = [_text(one, values) for one in node.values]
        return "".join(part or "" for part in parts) if None not in parts else None
    if isinstance(node, ast.FormattedValue) and node.conversion < 0 and node.format_spec is None:
        return _text(node.value, values)
    return None


def _calls(node: ast.AST, values: Values, whole: ast.AST, within: tuple[str, ...]) -> Iterator[tuple[ast.Call, Values]]:
    """Each call of add_argument, with the literals that names have there, once for each turn of the loops around it."""
    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
        yield node, values
        return
    if isinstance(node, ast.For):
        turns = list(_turns(node, values))
        for turn in turns or [_without(values, _bound(node))]:
            for line in (*node.body, *node.orelse):
                yield from _calls(line, turn, whole, within)
        return
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name not in within:
        for given in _given(node, whole):
            for line in node.body:
                yield from _calls(line, given, whole, (*within, node.name))
        return
    if isinstance(node, ast.comprehension | ast.Lambda | ast.ListComp | ast.GeneratorExp):
        values = {}
    for child in ast.iter_child_nodes(node):
        yield from _calls(child, values, whole, within)


def _turns(loop: ast.For, values: Values) -> Iterator[Values]:
    """The names of a loop over literals, for each of its turns; nothing for any other loop."""
    over = constant(loop.iter)
    if isinstance(loop.iter, ast.Tuple | ast.List):  # of pairs with a type, whose names are literals
        over = [tuple(map(constant, one.elts)) if isinstance(one, ast.Tuple | ast.List) else constant(one)
                for one in loop.iter.elts]  # fmt: skip
    names = loop.target.elts if isinstance(loop.target, ast.Tuple) else [loop.target]
    if not isinstance(over, list | tuple | dict) or not all(isinstance(one, ast.Name) for one in names):
        return
    shown = [one.id for one in names if isinstance(one, ast.Name)]
    inside = {name for line in loop.body for name in _bound(line)}
    for item in over:
        parts = item if isinstance(loop.target, ast.Tuple) and isinstance(item, list | tuple) else (item,)
        if len(parts) == len(shown):
            yield _without({**values, **dict(zip(shown, parts, strict=True))}, inside)


def _given(function: ast.FunctionDef | ast.AsyncFunctionDef, whole: ast.AST) -> list[Values]:
    """The literals that a function is called with, for each call; an empty one where there is none to be seen."""
    names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    inside = {name for line in function.body for name in _bound(line)}
    found: list[Values] = []
    for call in ast.walk(whole):
        if not isinstance(call, ast.Call) or getattr(call.func, "id", "") != function.name:
            continue
        told = {name: constant(one) for name, one in zip(names, call.args, strict=False)}
        told |= {one.arg: constant(one.value) for one in call.keywords if one.arg}
        starred = any(isinstance(one, ast.Starred) for one in call.args)
        found.append({} if starred else _without(told, inside))
    return found or [{}]


def _bound(node: ast.AST) -> set[str]:
    """Names that a piece of source gives a value."""
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}


def _without(values: Values, names: set[str]) -> Values:
    return {name: value for name, value in values.items() if name not in names}
