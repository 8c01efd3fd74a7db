"""Which packages a Python script imports before it could bring one itself: such an import needs the interpreter's."""

from __future__ import annotations

import ast
from pathlib import Path


def leading_imports(script: Path) -> frozenset[str]:
    """Return the top-level packages that a script imports at its top. Empty for a file that is no Python.

    The top ends at the first statement that might change where packages are found: any but an import of an installed
    package, a plain assignment, and a change of os.environ.
    """
    try:
        statements = ast.parse(script.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return frozenset()
    packages: set[str] = set()
    for statement in statements:
        imported = _imported(statement)
        is_own = any((script.parent / name).exists() or (script.parent / f"{name}.py").exists() for name in imported)
        if is_own or not (imported or _is_plain(statement)):
            break
        packages |= imported
    return frozenset(packages)


def _imported(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.Import):
        return {alias.name.partition(".")[0] for alias in statement.names}
    if isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
        return {statement.module.partition(".")[0]}
    return set()


def _is_plain(statement: ast.stmt) -> bool:
    text = ast.unparse(statement)
    calls = any(isinstance(node, ast.Call) for node in ast.walk(statement))
    is_simple = isinstance(statement, ast.Expr | ast.Assign | ast.AnnAssign) and not calls and "sys.path" not in text
    return is_simple or text.startswith("os.environ")
