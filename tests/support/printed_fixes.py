"""Every fix that the source can print, read from its syntax trees: an f-string's placeholders stay as ‹expression›.

A fix is what a parameter or a field called `fix` gets, by its name or by its place, each thing that triage says to try
next, and what stands behind "; fix: " in the shell that a launcher writes. Names, alternatives and functions of the
source that make a fix are followed.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("harness", "reports", "scenarios", "probes")
NONE = "‹None›"  # no fix, and in an f-string what its author excludes
SHELL = re.compile(r"; fix: ([^\n]+?)\"(?:$|\n| >&2|;)")  # in a script that a launcher writes
MOST = 24  # alternatives of one expression
PARAMETER = re.compile(r"(?:^|_)fix$|^next$")  # next: what to try, of triage


@dataclass(frozen=True)
class Fix:
    """A text that is printed as a fix, and where it is made: FILE:LINE."""

    where: str
    text: str


STEPS = "harness.triage."  # where a function whose result is spread over `next` returns steps


@dataclass
class Module:
    name: str
    path: Path
    tree: ast.Module
    constants: dict[str, ast.expr] = field(default_factory=dict)
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)  # a name here -> its dotted name
    # Every node that may matter, in the order of the text, with the function that it is in. Walked once: the source has
    # a million nodes.
    nodes: list[tuple[ast.FunctionDef | None, ast.AST]] = field(default_factory=list)


def modules() -> dict[str, Module]:
    read = {}
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            read[name] = _module(name, path)
    return read


def _module(name: str, path: Path) -> Module:
    module = Module(name, path, ast.parse(path.read_text(encoding="utf-8")))
    for node in module.tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        for target in targets:
            if isinstance(target, ast.Name) and node.value is not None:
                module.constants[target.id] = node.value
    _walk(module.tree, None, module.nodes)
    for _, node in module.nodes:
        if isinstance(node, ast.FunctionDef):
            module.functions.setdefault(node.name, node)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                module.imports[alias.asname or alias.name] = alias.name
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                module.imports[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return module


class Source:
    """The source's modules, and which callables take a fix at which place."""

    def __init__(self) -> None:
        self.modules = modules()
        self.places: dict[str, int] = {}  # of positional arguments, by the callable's name
        for module in self.modules.values():
            for _, node in module.nodes:
                if isinstance(node, ast.ClassDef):
                    fields = [item.target.id for item in node.body
                              if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)]  # fmt: skip
                    self._take(node.name, fields)
                elif isinstance(node, ast.FunctionDef):
                    names = [argument.arg for argument in node.args.args]
                    self._take(node.name, names[1:] if names[:1] in (["self"], ["cls"]) else names)

    def _take(self, name: str, parameters: list[str]) -> None:
        for place, parameter in enumerate(parameters):
            if PARAMETER.search(parameter):
                self.places[name] = place

    def fixes(self) -> Iterator[Fix]:
        for module in self.modules.values():
            yield from self._of(module)
        for path in sorted((ROOT / "harness/launchers/templates").iterdir()):
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                for text in SHELL.findall(line):
                    yield Fix(f"{path.relative_to(ROOT)}:{number}", re.sub(r"@\{ (\w+) \}@", r"‹\1›", text))

    def without(self, kinds: Container[str]) -> Iterator[str]:
        """FILE:LINE of every error of these kinds that is made without a fix."""
        for module in self.modules.values():
            for _, node in module.nodes:
                if isinstance(node, ast.Call) and _last(node.func) in kinds and not any(self._expressions(node)):
                    yield f"{module.path.relative_to(ROOT)}:{node.lineno}"

    def _of(self, module: Module) -> Iterator[Fix]:
        for function, node in module.nodes:
            for expression in self._expressions(node):
                where = f"{module.path.relative_to(ROOT)}:{expression.lineno}"
                for text in dict.fromkeys(self.texts(expression, module, function)):
                    if text and NONE not in text:
                        yield Fix(where, text)
            if isinstance(node, ast.JoinedStr):
                yield from self._said(node, module, function)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and "; fix: " in node.value:
                for text in SHELL.findall(node.value):
                    yield Fix(f"{module.path.relative_to(ROOT)}:{node.lineno}", text)

    def _said(self, node: ast.JoinedStr, module: Module, function: ast.FunctionDef | None) -> Iterator[Fix]:
        """What stands behind "; fix: " in a line that is said while a command goes on."""
        ends = [
            at
            for at, part in enumerate(node.values)
            if isinstance(part, ast.Constant) and part.value.endswith("; fix: ")
        ]
        for at in ends:
            for text in dict.fromkeys(_joined([self.texts(rest, module, function) for rest in node.values[at + 1 :]])):
                yield Fix(f"{module.path.relative_to(ROOT)}:{node.lineno}", text)

    def _expressions(self, node: ast.AST) -> Iterator[ast.expr]:
        if isinstance(node, ast.Call):
            yield from (keyword.value for keyword in node.keywords if keyword.arg and PARAMETER.search(keyword.arg))
            place = self.places.get(_last(node.func))
            if (
                place is not None
                and len(node.args) > place
                and not any(isinstance(item, ast.Starred) for item in node.args[: place + 1])
            ):
                yield node.args[place]
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name | ast.Attribute) and PARAMETER.search(_last(target).lower()):
                    yield node.value

    def texts(self, node: ast.expr, module: Module, function: ast.FunctionDef | None, depth: int = 0) -> list[str]:
        """What the expression can be, at most MOST texts."""
        made = self._texts(node, module, function, depth + 1) if depth < 8 else None
        return list(itertools.islice(made, MOST)) if made is not None else [f"‹{ast.unparse(node)}›"]

    def _texts(self, node: ast.expr, module: Module, function: ast.FunctionDef | None, depth: int) -> list[str] | None:
        def inner(expression: ast.expr) -> list[str]:
            return self.texts(expression, module, function, depth)

        match node:
            case ast.Constant(value=None):
                return [NONE]
            case ast.Constant(value=value):
                return [str(value)]
            case ast.JoinedStr(values=values):
                return _joined([inner(value) for value in values])
            case ast.FormattedValue(value=value):
                return inner(value)
            case ast.BinOp(left=before, op=ast.Add(), right=after):
                return _joined([inner(before), inner(after)])
            case ast.IfExp(body=body, orelse=orelse):
                return [*inner(body), *inner(orelse)]
            case ast.BoolOp(values=values):
                return [text for value in values for text in inner(value)]
            case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Dict(values=items):
                return [text for item in items for text in inner(item)]
            case ast.Subscript(value=ast.Name(id=name)) if (table := _table(name, module, function)) is not None:
                return inner(table)  # any value of it
            case ast.Call(func=ast.Attribute(value=ast.Name() as table, attr="values")):
                return inner(table)
            case ast.Call(func=ast.Name(id="tuple" | "list" | "Live" | "Watching" | "Native"), args=[value]):
                return inner(value)
            case ast.Starred(value=value) if _is_steps(value, module):
                return inner(value)
            case ast.Name(id=name):
                return self._named(name, module, function, depth)
            case ast.Attribute():
                return self._imported(ast.unparse(node), module, depth)
            case ast.Call():
                return self._called(node, module, function, depth)
        return None

    def _named(self, name: str, module: Module, function: ast.FunctionDef | None, depth: int) -> list[str] | None:
        if function is not None:
            values = [value for item in ast.walk(function) if (value := _assigned(item, name)) is not None]
            if values:
                return [text for value in values for text in self.texts(value, module, function, depth)]
        if name in module.constants and (function is None or name not in _arguments(function)):
            return self.texts(module.constants[name], module, None, depth)
        return self._imported(name, module, depth)

    def _imported(self, dotted: str, module: Module, depth: int) -> list[str] | None:
        definition = self._definition(dotted, module)
        if definition is None:
            return None
        where, name = definition
        return self.texts(where.constants[name], where, None, depth) if name in where.constants else None

    def _definition(self, dotted: str, module: Module) -> tuple[Module, str] | None:
        head, _, rest = dotted.partition(".")
        full = f"{module.imports.get(head, head)}{'.' if rest else ''}{rest}"
        room, _, name = full.rpartition(".")
        where = self.modules.get(room)
        if where is not None and name in where.imports and name not in where.constants and name not in where.functions:
            return self._definition(where.imports[name], where)
        return (where, name) if where is not None else None

    def _called(self, node: ast.Call, module: Module, function: ast.FunctionDef | None, depth: int) -> list[str] | None:
        name = ast.unparse(node.func).removeprefix("self.")
        if name == "shlex.join" and isinstance(node.args[0], ast.List):
            parts = [self.texts(item, module, function, depth) for item in node.args[0].elts]
            return _joined([part if not number else [f" {text}" for text in part] for number, part in enumerate(parts)])
        if name in {"str", "shlex.quote"} and len(node.args) == 1:
            return self.texts(node.args[0], module, function, depth)
        where, called = (module, name) if name in module.functions else self._definition(name, module) or (module, "")
        definition = where.functions.get(called)
        if definition is None:
            return None
        returned = [item.value for item in ast.walk(definition) if isinstance(item, ast.Return) and item.value]
        return [text for value in returned for text in self.texts(value, where, definition, depth)]


_NODES = (
    ast.ClassDef, ast.FunctionDef, ast.Import, ast.ImportFrom, ast.Call, ast.Assign, ast.AnnAssign, ast.JoinedStr,
    ast.Constant,
)  # fmt: skip


def _walk(node: ast.AST, function: ast.FunctionDef | None, nodes: list[tuple[ast.FunctionDef | None, ast.AST]]) -> None:
    """Put the nodes below a node into the list. Names and operators, which have nothing below, are most of them."""
    for name in node._fields:
        value = getattr(node, name, None)
        for child in value if isinstance(value, list) else (value,):
            if not isinstance(child, ast.AST) or isinstance(child, ast.Name | ast.expr_context | ast.operator):
                continue
            within = child if isinstance(child, ast.FunctionDef) else function
            if isinstance(child, _NODES):
                nodes.append((within, child))
            _walk(child, within, nodes)


def _assigned(node: ast.AST, name: str) -> ast.expr | None:
    """What a statement or a walrus gives to a local name."""
    if isinstance(node, ast.NamedExpr) and node.target.id == name:
        return node.value
    if isinstance(node, ast.Assign) and any(getattr(target, "id", "") == name for target in node.targets):
        return node.value
    if isinstance(node, ast.Call) and ast.unparse(node.func) == f"{name}.append":
        return node.args[0]
    return None


def _table(name: str, module: Module, function: ast.FunctionDef | None) -> ast.Dict | None:
    """The dictionary that a name stands for, where the source spells it out."""
    local = [_assigned(item, name) for item in ast.walk(function)] if function is not None else []
    values = [*local, module.constants.get(name)]
    return next((value for value in values if isinstance(value, ast.Dict)), None)


def _arguments(function: ast.FunctionDef) -> set[str]:
    return {item.arg for item in (*function.args.args, *function.args.kwonlyargs)}


def _joined(parts: list[list[str]]) -> list[str]:
    return ["".join(row) for row in itertools.islice(itertools.product(*parts), MOST)]


def _last(node: ast.expr) -> str:
    if isinstance(node, ast.Name | ast.Attribute):
        return node.id if isinstance(node, ast.Name) else node.attr
    return ast.unparse(node).rpartition(".")[2]


def _is_steps(value: ast.expr, module: Module) -> bool:
    """Whether what is spread over a place of fixes holds whole ones, not the words of one."""
    return not isinstance(value, ast.Call) or _last(value.func) == "values" or module.name.startswith(STEPS)
