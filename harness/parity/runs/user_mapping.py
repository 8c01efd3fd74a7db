"""A user's own parameter mapping, `--mapping FILE.py`: checked before anything starts, executed by the engines only."""

from __future__ import annotations

import ast
import shlex
from pathlib import Path
from typing import Any

from harness.errors import BadInput
from harness.other_paths import nearest_folder, similar_path
from probes import limits
from scenarios.engines.mapping import NAMES


def load(path: str, engine: str) -> dict[str, Any]:
    """Return the file as `scenarios.engines.mapping.ParameterMap` takes it, with its text, so that a recording holds
    it.

    Raises BadInput, with one sentence, for what is no mapping for `engine`. The file is parsed here and not executed.
    """
    check = f"harness mapping {shlex.quote(path)} --engine {engine}   # checks the file in seconds, without a run: "
    fix = f"{check}first define def {engine}_sampling(asked, ours): return dict(ours), changed where yours differs"
    file = _existing(path)
    source = _text(file, path)
    try:
        functions = _functions(ast.parse(source, str(file)))
    except (SyntaxError, ValueError) as error:
        line = error.lineno if isinstance(error, SyntaxError) else None
        where, place = (f"{path}:{line}", f"line {line}") if line else (path, "the file")
        message = f"the mapping {where} is not Python: {error.args[0]}"
        raise BadInput(message, fix=f"{check}first correct {place}") from error
    mine = sorted({f"{engine}_engine", f"{engine}_sampling"} & set(functions))
    if not mine:
        other_names = sorted(set(functions) & set(NAMES))
        has = f"only {', '.join(other_names)}" if other_names else "no function of a mapping"
        raise BadInput(
            f"the mapping {path} defines {has}; for {engine} it must define {engine}_engine or {engine}_sampling, each "
            "(asked, ours) -> a dict of native arguments",
            fix=fix,
        )
    for name in mine:
        arguments = functions[name].args
        most = len(arguments.posonlyargs) + len(arguments.args)
        needed = most - len(arguments.defaults)
        if arguments.vararg is None and not needed <= 2 <= most:
            raise BadInput(
                f"the mapping {path}:{functions[name].lineno}: {name} takes {most} arguments; it is called with "
                "two, what was asked and what the harness would give",
                fix=fix,
            )
    return {"file": str(file), "source": source}


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
