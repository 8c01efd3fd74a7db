"""A user's own parameter mapping, `--mapping FILE.py`: checked before anything starts, executed by the engines only.

Where the file has other functions than those that the engines call, a process of its own finds out, as `harness
mapping` does, whether they are mappings too: a user who gave them another name takes them for called.
"""

from __future__ import annotations

import ast
import shlex
from pathlib import Path
from typing import Any

from harness.errors import BadInput
from harness.mapping.file import Asked, mapping_functions
from harness.other_paths import nearest_folder, similar_path
from probes import limits
from scenarios.engines import registry
from scenarios.engines.mapping import NAMES, PARTS

TIMEOUT_S = 20.0  # a choice: a file that only defines answers in half a second


def load(path: str, engine: str) -> dict[str, Any]:
    """Return the file as `scenarios.engines.mapping.ParameterMap` takes it, with its text, so that a recording holds
    it.

    "uncalled": its functions that map and that no engine calls, with the names under which one would. Raises BadInput,
    with one sentence, for what is no mapping for `engine`.
    """
    check = f"harness mapping {shlex.quote(path)} --engine {engine}   # checks the file in seconds, without a run: "
    file = _existing(path)
    source = _text(file, path)
    try:
        tree = ast.parse(source, str(file))
    except (SyntaxError, ValueError) as error:
        line = error.lineno if isinstance(error, SyntaxError) else None
        where, place = (f"{path}:{line}", f"line {line}") if line else (path, "the file")
        message = f"the mapping {where} is not Python: {error.args[0]}"
        raise BadInput(message, fix=f"{check}first correct {place}") from error
    functions, own = _functions(tree), [f"{engine}_{part}" for part in PARTS]
    mine = [name for name in own if name in functions]
    uncalled = _uncalled(tree, file, engine)
    if not mine:
        other_names = sorted(set(functions) & set(NAMES))
        has = f"only {', '.join(other_names)}" if other_names else "no function of a mapping"
        raise BadInput(
            f"the mapping {path} defines {has}; for {engine} it must define {engine}_engine or {engine}_sampling, each "
            "(asked, ours) -> a dict of native arguments",
            fix=check + _first_define(_to_define(own, uncalled)),
        )
    for name in mine:
        arguments = functions[name].args
        most = len(arguments.posonlyargs) + len(arguments.args)
        needed = most - len(arguments.defaults)
        if arguments.vararg is None and not needed <= 2 <= most:
            raise BadInput(
                f"the mapping {path}:{functions[name].lineno}: {name} takes {most} arguments; it is called with "
                "two, what was asked and what the harness would give",
                fix=check + _first_define([name]),
            )
    return {"file": str(file), "source": source} | ({"uncalled": uncalled} if uncalled else {})


def _to_define(own: list[str], uncalled: list[dict[str, Any]]) -> list[str]:
    """Return the functions to define: those that functions of another name seem to be meant for, else all of them."""
    meant = {name for function in uncalled for name in function["called_as"]}
    return [name for name in own if name in meant] or own


def _first_define(names: list[str]) -> str:
    definitions = " and ".join(f"def {name}(asked, ours): return dict(ours)" for name in names)
    return f"first define {definitions}, changed where yours differs"


def uncalled_lines(spec: dict[str, Any]) -> list[str]:
    """Return a line on each function of a mapping that maps and is not called."""
    return [
        f"{Path(spec['file']).name}: {function['name']} is not called; "
        f"{' and '.join(f'{name}(asked, ours)' for name in function['called_as'])} would be"
        for function in spec.get("uncalled", ())
    ]


def _uncalled(tree: ast.Module, file: Path, engine: str) -> list[dict[str, Any]]:
    """Return the functions and tables of the file that map to the engine, and that no engine reaches."""
    definitions = _definitions(tree)
    reached = _reached(definitions)
    unreached = [name for name in definitions if name not in reached and not name.startswith("_")]
    if not unreached:
        return []
    source = next(name for name in registry.names(embedded=False) if name != engine)
    unclear = ""
    try:
        parts_by_name = mapping_functions(Asked(str(file), engine, source, timeout_s=TIMEOUT_S), without=reached)
    except BadInput as error:  # it cannot be executed: then any function that is not called may be a mapping
        unclear = str(error)
        parts_by_name = {name: [*PARTS] for name in _functions(tree)}
    return [
        {"name": name, "called_as": [f"{engine}_{part}" for part in parts_by_name[name]], "unclear": unclear}
        for name in unreached
        if name in parts_by_name
    ]


def _reached(definitions: dict[str, set[str]]) -> set[str]:
    """Return the names that an engine reaches: the functions that it calls, and all that their definitions mention."""
    reached: set[str] = set()
    waiting = set(NAMES) & definitions.keys()
    while waiting:
        name = waiting.pop()
        reached.add(name)
        waiting |= (definitions[name] & definitions.keys()) - reached
    return reached


def _definitions(tree: ast.Module) -> dict[str, set[str]]:
    """Return each name that the file defines, with the names that its definition mentions."""
    definitions: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
        else:
            continue
        mentioned = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        for name in names:
            definitions.setdefault(name, set()).update(mentioned)
    return definitions


def _existing(path: str) -> Path:
    file = Path(path).expanduser().resolve()
    if file.exists():
        return file
    message = f"the mapping {path} does not exist"
    near = similar_path(file, file.parent.glob("*.py"))
    if near is None:
        raise BadInput(message, fix=f"ls {shlex.quote(str(nearest_folder(file)))}   # and name the file")
    right = shlex.quote(str(Path(path).with_name(near.name)))
    raise BadInput(f"{message}; did you mean {near.name}?", fix=right, instead=path)


def _text(file: Path, path: str) -> str:
    try:
        return limits.read_text(file)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        fix = f"ls -ld {shlex.quote(path)}   # a mapping is a file of Python that you may read"
        raise BadInput(f"the mapping {path} cannot be read: {why}", fix=fix) from error


def defines(spec: dict[str, Any], name: str) -> bool:
    """Whether a mapping that `load` returned has a function of that name."""
    return name in _functions(ast.parse(spec.get("source", "")))


def _functions(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
