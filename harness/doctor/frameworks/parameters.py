"""The options that a parser takes and the arguments of a configuration class, read in their source and not run.

Dataclasses as the parser of Transformers makes options of them (`transformers.hf_argparser`, of which TRL has a copy);
calls of argparse's are read in `arguments`. A class whose bases or source are not found is None: nobody can say what it
takes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from harness.frameworks.installed import Installation

# Where a package that loads its parts late keeps a class that it exports.
_KEPT = {"TrainingArguments": "transformers.training_args"}
_PLAIN = frozenset({"object", "Generic", "ABC", "Protocol"})
_DEEPEST = 12  # classes above each other


@dataclass(frozen=True)
class Parameter:
    """`values`: how many words follow, as argparse's nargs: 0, 1, ?, + or *; empty where that is not known."""

    name: str
    values: str = ""


@dataclass(frozen=True)
class Source:
    """A Python file and where what it imports lies. `installed`: of the interpreter that will run it."""

    tree: ast.Module
    file: Path | None
    installed: Installation

    def fields(self, name: str, depth: int = 0) -> dict[str, Parameter] | None:
        """The fields of a dataclass of that name, its bases' first, with the options that stand for them; None where
        they cannot be known. `no_x` stands beside an `x` that is on by default, as an option only (`values` 0)."""
        if name in _PLAIN:
            return {}
        made = next((one for one in ast.walk(self.tree) if isinstance(one, ast.ClassDef) and one.name == name), None)
        if made is None:
            there, original = self._imported(name) if depth < _DEEPEST else (None, name)
            return there.fields(original, depth + 1) if there else None
        found: dict[str, Parameter] = {}
        for base in made.bases:
            base = base.value if isinstance(base, ast.Subscript) else base
            above = self.fields(base.id, depth + 1) if isinstance(base, ast.Name) and depth < _DEEPEST else None
            if above is None:
                return None
            found |= above
        if any(isinstance(line, ast.FunctionDef) and line.name == "__init__" for line in made.body):
            return None
        if any("dataclass" in ast.unparse(one) for one in made.decorator_list):
            for line in made.body:
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                    for dropped in (line.target.id, f"no_{line.target.id}"):
                        found.pop(dropped, None)
                    found |= {one.name: one for one in _field(line)}
        return found

    def origin(self, name: str) -> str:
        """The module that a name of this source is imported from; empty for one of its own, or of nowhere."""
        return self._origin(name)[0]

    def _origin(self, name: str) -> tuple[str, str]:
        """(that module, the name that it has there)."""
        for node in ast.walk(self.tree):
            for one in node.names if isinstance(node, ast.ImportFrom) else ():
                if (one.asname or one.name) == name:
                    assert isinstance(node, ast.ImportFrom)
                    return "." * node.level + (node.module or ""), one.name
        return "", name

    def _imported(self, alias: str) -> tuple[Source | None, str]:
        module, name = self._origin(alias)
        file = None
        if module.startswith("."):
            base = self.file
            for _ in range(len(module) - len(module.lstrip("."))):
                base = base.parent if base else None
            inner = base.joinpath(*module.lstrip(".").split(".")) if base else None
            file = next((one for one in _files(inner) if one.is_file()), None)
        elif module:
            file = self.installed.source(_KEPT[name] if module == "transformers" and name in _KEPT else module)
        if file is not None and not _defines(file, name) and file.name == "__init__.py" and module.startswith("trl"):
            file = next((one for one in sorted(file.parent.rglob("*.py")) if _defines(one, name)), None)
        found = Source(parsed(file), file, self.installed) if file is not None and file.is_file() else None
        return found, name


@lru_cache(maxsize=64)
def parsed(file: Path) -> ast.Module:
    """A file's tree; an empty one where this Python cannot read it."""
    try:
        return ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ast.Module([], [])


def _files(module: Path | None) -> tuple[Path, ...]:
    return (module.with_name(module.name + ".py"), module / "__init__.py") if module else ()


def _defines(file: Path, name: str) -> bool:
    try:
        return bool(re.search(rf"^class {name}\b", file.read_text(encoding="utf-8", errors="replace"), re.M))
    except OSError:
        return False


def _field(line: ast.AnnAssign) -> Iterator[Parameter]:
    """One field as the options that the parser of Transformers makes of it (`_parse_dataclass_field`)."""
    assert isinstance(line.target, ast.Name)
    name, kind = line.target.id, ast.unparse(line.annotation).strip("'\"")
    if kind.startswith(("ClassVar", "typing.ClassVar", "KW_ONLY")):
        return
    told: dict[str | None, ast.expr] = {}
    default: object = ...
    if isinstance(line.value, ast.Call) and ast.unparse(line.value.func) in ("field", "dataclasses.field", "HfArg"):
        told = {one.arg: one.value for one in line.value.keywords}
        if constant(told.get("init")) is False:
            return
        default = constant(told["default"]) if "default" in told else ...
    elif line.value is not None:
        default = constant(line.value)
    metadata = told.get("metadata")
    more = {constant(key): constant(one) for key, one in zip(metadata.keys, metadata.values, strict=True)
            if key is not None} if isinstance(metadata, ast.Dict) else {}  # fmt: skip
    optional = re.fullmatch(r"(?:typing\.)?Optional\[(.+)\]|(.+?) ?\| ?None|None ?\| ?(.+)", kind)
    plain = next(filter(None, optional.groups()), kind) if optional else kind
    switch = plain == "bool"
    if more.get("nargs") in ("?", "+", "*"):
        values = str(more["nargs"])
    elif switch:
        values = "?" if not optional or default not in (None, ...) else "1"
    else:
        lists = re.match(r"(typing\.)?[Ll]ist\b", plain) and "|" not in plain
        values = "+" if lists else "" if plain.count("|") or "Union" in plain or "List" in plain else "1"
    yield Parameter(name, values)
    for alias in (more.get("aliases"),):
        if isinstance(alias, str) and alias.startswith("--"):
            yield Parameter(alias[2:].replace("-", "_"), values)
    if switch and default is True:
        yield Parameter(f"no_{name}", "0")


def constant(node: ast.expr | None) -> object:
    """A literal's value; `...` of what is none."""
    try:
        return ast.literal_eval(node) if node is not None else None
    except (ValueError, TypeError, SyntaxError):
        return ...
