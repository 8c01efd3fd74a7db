"""Which of TRL's trainers a command uses, and whether the hooks reach it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from harness.frameworks.argv import Start
from harness.frameworks.installed import Installation
from probes.adapters.trl import TRAINER

_HOOKED = TRAINER.partition(":")[2]


def unhooked(start: Start, texts: Sequence[str], installed: Installation | None) -> str:
    """Return the trainer that a job uses where the hooks do not reach it; "" where they do, or where it is not known.

    `texts`: of the Python scripts that the command names. Of the `trl` command its own script is read. A trainer that
    inherits from the one with hooks is reached.
    """
    package = installed.source("trl") if installed else None
    if installed is None or package is None:
        return ""
    texts = [*texts, *_own_script(start, installed)]
    trainers = sorted({name for text in texts for name in _used(text)})
    for name in trainers:
        if _reaches(name, package.parent) is not False:  # the job may use this one
            return ""
    return next(iter(trainers), "")


def _own_script(start: Start, installed: Installation) -> list[str]:
    """The text of the script of TRL's that the `trl` command runs; none for a script of the user's."""
    if start.entry.endswith(".py") or not start.arguments:
        return []
    module = installed.source(f"trl.scripts.{start.arguments[0].replace('-', '_')}")
    return [] if module is None else [module.read_text(encoding="utf-8", errors="replace")]


def _used(text: str) -> Iterator[str]:
    """Yield TRL's name of each of its trainers that a script makes or derives its own from."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError):  # of another Python version: the job itself will say so
        return
    imported: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and _is_of_trl(node):
            imported |= {alias.asname or alias.name: alias.name for alias in node.names}
    for node in nodes:
        for expression in _used_as_classes(node):
            name = _trl_name(expression, imported)
            if name.endswith("Trainer"):
                yield name


def _is_of_trl(node: ast.ImportFrom) -> bool:
    """Whether names are imported from TRL: by its name, or by a relative import, as in its own scripts."""
    return node.level > 0 or (node.module or "").split(".")[0] == "trl"


def _used_as_classes(node: ast.AST) -> list[ast.expr]:
    """What a node calls, or what its class inherits from."""
    match node:
        case ast.Call(func=called):
            return [called]
        case ast.ClassDef(bases=bases):
            return bases
    return []


def _trl_name(expression: ast.expr, imported: Mapping[str, str]) -> str:
    """Return the name that an expression has in TRL; "" where it is not of TRL. `imported`: local name -> TRL's."""
    if isinstance(expression, ast.Name):
        return imported.get(expression.id, "")
    if isinstance(expression, ast.Attribute) and ast.unparse(expression).startswith("trl."):
        return expression.attr
    return ""


def _reaches(name: str, package: Path) -> bool | None:
    """Whether a trainer of the installed TRL is the one with hooks or inherits from it; None where it is not found."""
    if name == _HOOKED:
        return True
    for file in sorted(package.rglob("*.py")):
        definition = re.search(rf"^class {name}\(([^)]*)\)", file.read_text(encoding="utf-8", errors="replace"), re.M)
        if definition:
            bases = [base.strip() for base in definition[1].split(",")]
            return any(_reaches(base, package) for base in bases if base.isidentifier())
    return None
