"""What a loop looks for again and again, by its source text: addresses that it asks, and files.

No stack shows the value of a variable, and values may be secrets. So the text is followed: from the calls in the loop
into functions of the same file, and from a name to its only assignment, to the argument of the call in the frame
outside, or to an attribute that its class sets. Constants, `os.environ` and the command line of the process give the
values. What cannot be followed is unknown: of an address or a path with an unknown part, nothing is reported but the
folder before that part.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeVar

from harness.triage import source
from harness.triage.evidence import Frame
from harness.triage.places import plain, users

UNKNOWN = "\0"  # stands for a part of a text that cannot be followed
MAX_DEPTH = 12  # names and calls that are followed from one place
MAX_SOUGHT = 8  # addresses and files of one process
MAX_VISITED = 200  # calls that are looked at in one loop
_URL = re.compile(r"(?:https?|tcp|redis|wss?|grpc)://(?:[^/\0@]*@)?(\[[^\]\0]+\]|[^/:\0]+):(\d+)(?=[/?#]|$)")
_ROUTE = re.compile(r"(?:https?://[^/]*|\0+)?(/\w[\w./-]*)")
_HOST = re.compile(r"[\w.-]+|\[[\da-fA-F:]+\]")
# Functions and methods that look at a file or a folder.
_LOOKS = frozenset({
    "exists", "lexists", "isfile", "is_file", "isdir", "is_dir", "stat", "getmtime", "getsize", "access", "listdir",
    "scandir", "iterdir", "glob", "iglob", "open", "read_text", "read_bytes", "load",
})  # fmt: skip
Node = TypeVar("Node", bound=ast.AST)
_PATHS = frozenset({"Path", "PurePath", "PosixPath", "str", "int", "fspath", "abspath", "realpath", "join", "joinpath",
                    "resolve", "absolute"})  # fmt: skip


@dataclass(frozen=True)
class Start:
    """With what a process was started: its variables, its command line and its folder."""

    environ: Mapping[str, str] = field(default_factory=dict)
    argv: Sequence[str] = ()
    folder: str = ""


@dataclass(frozen=True)
class _Scope:
    """A function, the arguments of its call, each with the scope of the call, and the file's module."""

    body: ast.AST
    module: ast.Module
    arguments: Mapping[str, tuple[ast.expr, _Scope]] = field(default_factory=dict)


def sought(frames: Sequence[Frame], start: Start) -> tuple[str, ...]:
    """The addresses ("127.0.0.1:80"), files ("/a/b") and folders ("/a/") at which the innermost loop of the user's code
    in these frames looks. `frames` are innermost first."""
    mine = [frame for frame in frames if users(frame)]
    loops = (source.Loop.UNTIL, source.Loop.ROUNDS)
    at = next((at for at, frame in enumerate(mine) if source.loop_around(frame) in loops), None)
    if at is None or (scope := _scope_of(mine[at:])) is None or (loop := source.innermost_loop(mine[at])) is None:
        return ()
    reader = _Reader(start)
    return tuple(dict.fromkeys(reader.looked_at(loop, scope)))[:MAX_SOUGHT]


def route(frames: Sequence[Frame]) -> str:
    """The path of the address that the calls ask for in which these frames of the user's code stand: "/generate".

    `frames` are innermost first. Empty if the text does not tell exactly one.
    """
    mine = [frame for frame in frames if users(frame)]
    for at, frame in enumerate(mine):
        if (scope := _scope_of(mine[at:])) is None:
            continue
        reader = _Reader(Start())
        calls = (call for call in _of(ast.Call, scope.body) if source.holds(call, frame.line))
        values = (reader.value(argument, scope) for call in calls for argument in call.args)
        paths = {match[1] for value in values if (match := _ROUTE.fullmatch(value))}
        if paths:
            return paths.pop() if len(paths) == 1 else ""
    return ""


def _scope_of(frames: Sequence[Frame], depth: int = 0) -> _Scope | None:
    """The scope of the first of these frames, with the arguments that the frame outside it passes."""
    body, module = source.function_of(frames[0]), source.tree_of(frames[0].file)
    if body is None or module is None:
        return None
    outer = _scope_of(frames[1:], depth + 1) if len(frames) > 1 and depth < MAX_DEPTH else None
    calls = [
        node
        for node in (_of(ast.Call, outer.body) if outer is not None else ())
        if source.holds(node, frames[1].line) and _name(node) == plain(frames[0].function)
    ]
    if outer is None or len(calls) != 1:
        return _Scope(body, module)
    return _Scope(body, module, _passed(body, calls[0], outer))


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _passed(body: ast.AST, call: ast.Call, scope: _Scope) -> dict[str, tuple[ast.expr, _Scope]]:
    """Parameter -> the argument of a call and its scope, or the default."""
    if not isinstance(body, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return {}
    names = [argument.arg for argument in (*body.args.posonlyargs, *body.args.args)]
    inside = _Scope(body, scope.module)
    defaults = body.args.defaults
    passed = {
        name: (default, inside)
        for name, default in zip(names[len(names) - len(defaults) :], defaults, strict=True)
    }  # fmt: skip
    if names[:1] in (["self"], ["cls"]):
        names = names[1:]
    if any(isinstance(argument, ast.Starred) for argument in call.args):
        return passed
    passed |= {name: (argument, scope) for name, argument in zip(names, call.args, strict=False)}
    return passed | {word.arg: (word.value, scope) for word in call.keywords if word.arg}


@dataclass
class _Reader:
    """Follows names and calls of one process. `visited`: calls that were looked at so far."""

    start: Start
    visited: int = 0

    def looked_at(self, node: ast.AST, scope: _Scope, depth: int = 0) -> Iterator[str]:
        """Yield the addresses and files of the calls below a node, and of the functions of its file that they call."""
        for call in _of(ast.Call, node):
            self.visited += 1
            if depth > MAX_DEPTH or self.visited > MAX_VISITED:
                return
            function = _called(call, scope)
            if function is not None:
                inside = _Scope(function, scope.module, _passed(function, call, scope))
                yield from self.looked_at(function, inside, depth + 1)
                continue
            yield from self._addresses(call, scope)
            yield from self._files(call, scope)

    def _addresses(self, call: ast.Call, scope: _Scope, depth: int = 0) -> Iterator[str]:
        """The addresses among the arguments of a call, and of the call that made the object whose method it is."""
        words = {word.arg: word.value for word in call.keywords}
        pairs = [(words["host"], words["port"])] if {"host", "port"} <= words.keys() else []
        pairs += [tuple(part.elts[:2]) for part in call.args if isinstance(part, ast.Tuple) and len(part.elts) == 2]  # type: ignore[misc]
        pairs += [(call.args[0], call.args[1])] if len(call.args) > 1 else []
        for host, port in pairs:
            its_host, its_port = self.value(host, scope), self.value(port, scope)
            # A server binds to port 0, and the kernel chooses one: nobody can look for it.
            if its_port.isdigit() and int(its_port) and not its_host.isdigit() and _HOST.fullmatch(its_host):
                yield f"{its_host}:{its_port}"
        for part in (*call.args, *words.values()):
            if match := _URL.match(self.value(part, scope)):
                yield f"{match[1]}:{match[2]}"
        if isinstance(call.func, ast.Attribute) and depth < MAX_DEPTH:
            maker, its = self._defined(call.func.value, scope)
            if isinstance(maker, ast.Call) and maker is not call:
                yield from self._addresses(maker, its, depth + 1)

    def _files(self, call: ast.Call, scope: _Scope) -> Iterator[str]:
        if _name(call) not in _LOOKS or _writes(call):
            return
        texts = [self.value(call.args[0], scope)] if call.args else []
        if isinstance(call.func, ast.Attribute):  # of a Path; of a module it is unknown
            receiver = self.value(call.func.value, scope)
            joined = f"{receiver}/{texts[0]}" if _name(call) == "glob" and texts else receiver
            texts = [joined] if receiver.strip(UNKNOWN) else texts
        for text in texts:
            whole = text if text.startswith(UNKNOWN) else os.path.join(self.start.folder, text)
            known, star, _ = re.sub(r"[*?\[]", UNKNOWN, whole).partition(UNKNOWN)
            folder = star or _name(call) in ("listdir", "scandir", "iterdir")
            path = (known.rpartition("/")[0] if star else known.rstrip("/")) + "/" if folder else known
            if path.startswith("/") and path.strip("/"):
                yield os.path.normpath(path) + ("/" if folder else "")

    def value(self, expression: ast.AST, scope: _Scope, depth: int = 0) -> str:
        """The value of an expression as a text, with UNKNOWN for each part that cannot be followed."""
        if depth > MAX_DEPTH:
            return UNKNOWN
        match expression:
            case ast.Constant(value=str() | int() as constant):
                return str(constant)
            case ast.JoinedStr(values=parts):
                return "".join(self.value(part, scope, depth + 1) for part in parts)
            case ast.FormattedValue(value=inner, format_spec=None):
                return self.value(inner, scope, depth + 1)
            case ast.BinOp(left=left, op=ast.Add() | ast.Div() as operator, right=right):
                first, second = self.value(left, scope, depth + 1), self.value(right, scope, depth + 1)
                if first.isdigit() and second.isdigit():
                    return UNKNOWN  # a sum, or two texts
                return first + ("/" if isinstance(operator, ast.Div) else "") + second
            case ast.Subscript(value=container, slice=key):
                return self._item(ast.unparse(container), self.value(key, scope, depth + 1))
            case ast.Call():
                return self._result(expression, scope, depth)
            case ast.Name() | ast.Attribute():
                definition, its = self._defined(expression, scope)
                return UNKNOWN if definition is expression else self.value(definition, its, depth + 1)
        return UNKNOWN

    def _item(self, container: str, key: str) -> str:
        if container.endswith("environ"):
            return self.start.environ.get(key, UNKNOWN)
        arguments = list(self.start.argv)
        script = next((at for at, word in enumerate(arguments) if word.endswith(".py")), None)
        if container.endswith("argv") and key.isdigit() and script is not None:
            return next(iter(arguments[script + int(key) : script + int(key) + 1]), UNKNOWN)
        return UNKNOWN

    def _result(self, call: ast.Call, scope: _Scope, depth: int) -> str:
        """The result of a call that reads a variable or makes a path, or of a function of the file with one return."""
        texts = [self.value(argument, scope, depth + 1) for argument in call.args]
        name, text = _name(call), ast.unparse(call.func)
        if text.endswith(("environ.get", "getenv")) and texts:
            return self.start.environ.get(texts[0], texts[1] if len(texts) > 1 else UNKNOWN)
        if (function := _called(call, scope)) is not None:
            returns = [node.value for node in _of(ast.Return, function) if node.value]
            inside = _Scope(function, scope.module, _passed(function, call, scope))
            return self.value(returns[0], inside, depth + 1) if len(returns) == 1 else UNKNOWN
        if name not in _PATHS or call.keywords:
            return UNKNOWN
        of_path = name in ("joinpath", "resolve", "absolute") and isinstance(call.func, ast.Attribute)
        first = [self.value(call.func.value, scope, depth + 1)] if of_path else []  # type: ignore[attr-defined]
        return "/".join([*first, *texts]) or UNKNOWN

    def _defined(self, expression: ast.AST, scope: _Scope) -> tuple[ast.AST, _Scope]:
        """The expression that a name or an attribute of `self` stands for, and its scope; the same one if it is not
        certain."""
        if isinstance(expression, ast.Name):
            if expression.id in scope.arguments:
                return scope.arguments[expression.id]
            for around in _around(scope):
                bindings = _bindings(around, expression.id)
                if len(bindings) == 1 and bindings[0] is not None:
                    inside = scope if around is scope.body else _Scope(around, scope.module)
                    return bindings[0], inside
                if bindings:
                    break
        if isinstance(expression, ast.Attribute) and _is_self(expression.value):
            return _attribute(expression, scope)
        return expression, scope


def _is_self(expression: ast.expr) -> bool:
    return isinstance(expression, ast.Name) and expression.id == "self"


def _of(kind: type[Node], tree: ast.AST) -> Iterator[Node]:
    """Yield the nodes of one kind in a tree."""
    return (node for node in ast.walk(tree) if isinstance(node, kind))


def _functions_around(line: int, module: ast.Module) -> list[ast.AST]:
    """The functions of a module that hold a line, innermost first, and the module."""
    functions = [*_of(ast.FunctionDef, module), *_of(ast.AsyncFunctionDef, module)]
    return [*sorted((node for node in functions if source.holds(node, line)), key=lambda node: -node.lineno), module]


def _writes(call: ast.Call) -> bool:
    """Whether a call opens a file for writing, by its mode."""
    modes = [*call.args[1:2], *(word.value for word in call.keywords if word.arg == "mode")]
    return _name(call) == "open" and any(
        isinstance(mode, ast.Constant) and "r" not in str(mode.value) for mode in modes
    )


def _around(scope: _Scope) -> list[ast.AST]:
    """The function of a scope, the functions around it, and the module."""
    return list(dict.fromkeys([scope.body, *_functions_around(getattr(scope.body, "lineno", 0), scope.module)]))


@lru_cache(maxsize=4096)
def _bindings(body: ast.AST, name: str) -> list[ast.expr | None]:
    """What a function or module assigns to a name, outside the functions in it; None for anything but a plain
    assignment, such as a parameter or a loop's variable."""
    bound: list[ast.expr | None] = []
    if isinstance(body, (ast.FunctionDef, ast.AsyncFunctionDef)):
        parameters = (*body.args.posonlyargs, *body.args.args, *body.args.kwonlyargs)
        bound += [None for parameter in parameters if parameter.arg == name]
    pending = list(ast.iter_child_nodes(body))
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            continue
        pending += ast.iter_child_nodes(node)
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
            bound.append(None)
        if isinstance(node, ast.Assign):
            for target in node.targets:
                bound += _unpacked(target, node.value, name)
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and getattr(node.target, "id", "") == name and node.value:
            bound.append(node.value)
    values: list[ast.expr | None] = [value for value in bound if value is not None]
    return values if 2 * len(values) == len(bound) else [*bound, None]  # else a store has no value of its own


def _unpacked(target: ast.expr, value: ast.expr, name: str) -> list[ast.expr | None]:
    if isinstance(target, ast.Name):
        return [value] if target.id == name else []
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        return [its for part, each in zip(target.elts, value.elts, strict=True) for its in _unpacked(part, each, name)]
    return []


def _class_around(scope: _Scope) -> ast.ClassDef | None:
    line = getattr(scope.body, "lineno", 0)
    classes = [node for node in _of(ast.ClassDef, scope.module) if source.holds(node, line)]
    return max(classes, key=lambda node: node.lineno) if line and classes else None


def _attribute(expression: ast.Attribute, scope: _Scope) -> tuple[ast.AST, _Scope]:
    """What the class of a method assigns to an attribute of `self`, if it does so once."""
    owner = _class_around(scope)
    stores = [
        (value, method)
        for method in (owner.body if owner is not None else ())
        if isinstance(method, ast.FunctionDef)
        for node in _of(ast.Assign, method)
        for target in node.targets
        for value in _stored(target, node.value, expression.attr)
    ]
    if len(stores) != 1 or owner is None:
        return expression, scope
    value, method = stores[0]
    made = [node for node in _of(ast.Call, scope.module) if _name(node) == owner.name]
    if method.name != "__init__" or len(made) != 1:
        return value, _Scope(method, scope.module)
    maker = _Scope(_functions_around(made[0].lineno, scope.module)[0], scope.module)
    return value, _Scope(method, scope.module, _passed(method, made[0], maker))


def _stored(target: ast.expr, value: ast.expr, attribute: str) -> Iterator[ast.expr]:
    if isinstance(target, ast.Attribute) and target.attr == attribute and _is_self(target.value):
        yield value
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for part, its in zip(target.elts, value.elts, strict=True):
            yield from _stored(part, its, attribute)


def _called(call: ast.Call, scope: _Scope) -> ast.FunctionDef | None:
    """The function of the same file that a call by name, or of a method of `self`, runs; None for any other."""
    functions: list[ast.FunctionDef] = []
    if isinstance(call.func, ast.Name):
        functions = list(_of(ast.FunctionDef, scope.module))
    elif isinstance(call.func, ast.Attribute) and _is_self(call.func.value):
        owner = _class_around(scope)
        functions = [node for node in (owner.body if owner else ()) if isinstance(node, ast.FunctionDef)]
    named = [function for function in functions if function.name == _name(call)]
    return named[0] if len(named) == 1 else None
