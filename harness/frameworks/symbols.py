"""Whether a table's symbols exist in the framework's source. Nothing of the framework is imported or run.

A method may be inherited: base classes are followed through the imports of their module, as far as the source of the
installed packages reaches.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from harness.frameworks.installed import Installation, ask
from probes.adapters import Adapter

DEEPEST = 12  # depth to which base classes and re-exports are followed


@dataclass(frozen=True)
class Symbol:
    """One hook of a table. `trouble`: why the hook cannot be placed there; empty if it can."""

    symbol: str
    when: str
    trouble: str


@dataclass(frozen=True)
class Checked:
    """The table of one framework against one installation. `tested`: whether its version is in the tested range."""

    framework: str
    python: str
    version: str
    tested: bool
    range: tuple[str, str]
    symbols: tuple[Symbol, ...]

    @property
    def moved(self) -> tuple[Symbol, ...]:
        return tuple(symbol for symbol in self.symbols if symbol.trouble)

    @property
    def ok(self) -> bool:
        return bool(self.version) and self.tested and not self.moved


def check(adapter: Adapter, python: str) -> Checked:
    """Look up every symbol in what that interpreter has installed. Symbols of an engine that it does not have are left
    out.

    Raises BadInput if the interpreter does not run.
    """
    installed = ask(python, adapter)
    tested = bool(installed.version) and adapter.tested(installed.version)
    source = _Source(installed)
    present_packages = {*adapter.triggers, *installed.places}
    hooks = adapter.hooks_of(installed.version) if installed.version else ()
    hooks = tuple(hook for hook in hooks if hook.module.partition(".")[0] in present_packages)
    symbols = tuple(Symbol(hook.symbol, hook.when, source.trouble(hook.module, hook.path)) for hook in hooks)
    return Checked(adapter.framework, python, installed.version, tested, adapter.versions, symbols)


# What a hook can be put on. An assignment may hold a function: its value is not looked at.
_CALLABLE = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Assign, ast.AnnAssign)


class _Definition(NamedTuple):
    """The statement that defines a name, and the module in which it is."""

    module: str
    node: ast.stmt


class _Source:
    """The installed source, parsed module by module."""

    def __init__(self, installed: Installation) -> None:
        self._installed = installed
        self._parsed: dict[str, ast.Module | None] = {}

    def trouble(self, module: str, path: Sequence[str]) -> str:
        """Why a name cannot be found; empty if it can."""
        tree = self._tree(module)
        if tree is None:
            package = module.split(".")[0]
            where = f"module {module}" if package in self._installed.places else f"package {package}"
            return f"{where} is not installed"
        holder, *members = path
        definition = self._find(module, holder)
        if definition is None:
            return f"{module} has no {holder}"
        if not members:
            return "" if isinstance(definition.node, _CALLABLE) else f"{module}:{holder} is no function"
        if not isinstance(definition.node, ast.ClassDef):
            return f"{module}:{holder} is no class"
        has_member = self._has(definition.module, definition.node, members[0], DEEPEST)
        return "" if has_member else f"{module}:{holder} has no {members[0]}"

    def _tree(self, module: str) -> ast.Module | None:
        if module not in self._parsed:
            file = self._installed.source(module)
            self._parsed[module] = _parsed(file) if file is not None else None
        return self._parsed[module]

    def _find(self, module: str, name: str, depth: int = DEEPEST) -> _Definition | None:
        """What defines a name, followed through imports; None if it is not found."""
        tree = self._tree(module)
        if tree is None or not depth:
            return None
        for node in _statements(tree.body):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and node.name == name:
                return _Definition(module, node)
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return self._find(_absolute(self._package(module), node), alias.name, depth - 1)
        assigned = next((node for node in _statements(tree.body) if name in _targets(node)), None)
        return _Definition(module, assigned) if assigned is not None else None

    def _package(self, module: str) -> str:
        """The package from which relative imports of a module start."""
        file = self._installed.source(module)
        return module if file is not None and file.name == "__init__.py" else module.rpartition(".")[0]

    def _has(self, module: str, node: ast.ClassDef, name: str, depth: int) -> bool:
        """Whether a class has a member, of its own or inherited."""
        for statement in _statements(node.body):
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)) and statement.name == name:
                return True
            if name in _targets(statement):
                return True
        if not depth:
            return False
        bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
        parents = filter(None, (self._find(module, base) for base in bases))
        return any(
            isinstance(parent.node, ast.ClassDef) and self._has(parent.module, parent.node, name, depth - 1)
            for parent in parents
        )


def _parsed(file: Path) -> ast.Module | None:
    try:
        return ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):  # unreadable, or of another Python version: nothing is found in it
        return None


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a body, including those inside if, try and with."""
    for node in body:
        yield node
        for part in ("body", "orelse", "finalbody"):
            if isinstance(node, (ast.If, ast.Try, ast.With)):
                yield from _statements(getattr(node, part, []))
        for handler in getattr(node, "handlers", []):
            yield from _statements(handler.body)


def _targets(node: ast.stmt) -> list[str]:
    match node:
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []


def _absolute(package: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    base = package.split(".")
    base = base[: len(base) - node.level + 1]
    return ".".join(filter(None, [*base, node.module]))
