"""TRL's options and configuration against the classes of the installed version: what no parser and no class takes.

The `trl` command parses by `trl/scripts/NAME.py` and hands what is left to `accelerate launch`; a user's script by the
parser that it makes. What such a script takes from elsewhere cannot be known: it is not checked.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.doctor.frameworks.arguments import arguments, options
from harness.doctor.frameworks.parameters import Parameter, Source, parsed
from harness.doctor.frameworks.plan import Plan
from harness.frameworks.installed import Installation

_OF_DATACLASSES = frozenset({"TrlParser", "HfArgumentParser"})
_CLI = {"accelerate_config": Parameter("accelerate_config", "1")}  # the `trl` command's own


@dataclass
class Taken:
    """What a script's parsers take, by name. `unknown`: why there may be more, empty where there is not. `drops`: a key
    of a configuration file that is in no class is passed over."""

    names: dict[str, Parameter] = field(default_factory=dict)
    unknown: str = ""
    where: str = ""
    drops: bool = False


@dataclass(frozen=True)
class Built:
    """A call of one of TRL's configuration classes: the keywords that it does not take."""

    name: str
    taken: Mapping[str, Parameter]
    unknown: tuple[str, ...]


def replaced(plan: Plan) -> str:
    """Why the script's configuration classes are not TRL's; empty where they are."""
    if re.search(r"^\s*(?:import|from)\s+unsloth\b", plan.source, re.MULTILINE):
        return f"{plan.entry} imports unsloth, which puts configurations of its own in the place of TRL's"
    return ""


def taken(plan: Plan, installed: Installation) -> Taken:
    """What the job's parser takes."""
    if plan.entry.endswith(".py"):
        if not plan.source:
            return Taken(unknown=f"{plan.entry} is not read: which options it takes is not known")
        return _parser(_source(plan.source, plan.entry, installed), plan.entry)
    command = next((word for word in plan.given if not word.startswith("-")), "").replace("-", "_")
    name = plan.entry.rpartition(".")[2] if plan.entry.startswith("trl.scripts.") else command
    file = installed.source(f"trl.scripts.{name}") if name.isidentifier() else None
    if file is None:
        return Taken(
            unknown=f"trl {installed.version} has no script {name or '(none)'} whose options could be looked up"
        )
    found = _parser(Source(parsed(file), file, installed), f"trl {name}")
    if not plan.entry.startswith("trl.scripts."):
        launch = installed.source("accelerate.commands.launch")
        more = arguments(parsed(launch)) if launch else {}
        found.names |= _CLI | {
            key.replace("-", "_"): one for key, one in more.items() if key.replace("-", "_") not in found.names
        }
        if not more:
            found.unknown = found.unknown or "accelerate, which takes what TRL leaves, is not found beside it"
        found.drops = False  # what is left of the file goes to accelerate, too
    return found


def built(plan: Plan, installed: Installation) -> Iterator[Built]:
    """Calls of TRL's own configuration classes in the script."""
    if not plan.source:
        return
    source = _source(plan.source, plan.entry, installed)
    known: dict[str, dict[str, Parameter] | None] = {}
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "id", "") or getattr(node.func, "attr", "")
        of = source.origin(name) or (getattr(getattr(node.func, "value", None), "id", "") if name else "")
        if not name.endswith(("Config", "Arguments")) or of.split(".")[0] != "trl":
            continue
        if name not in known:
            within = source if source.origin(name) else _source(f"from {of} import {name}", "", installed)
            known[name] = within.fields(name)
        fields = known[name]
        if fields:
            given = tuple(one.arg for one in node.keywords if one.arg)
            names = {one: each for one, each in fields.items() if each.values != "0"}
            yield Built(name, names, tuple(one for one in given if one not in names))


def _source(text: str, path: str, installed: Installation) -> Source:
    try:
        return Source(ast.parse(text), Path(path).absolute() if path else None, installed)
    except (SyntaxError, ValueError):
        return Source(ast.Module([], []), None, installed)


def _parser(source: Source, where: str) -> Taken:
    """What the parsers that a source makes take."""
    found = Taken(where=where)
    made, listed = False, _lists(source.tree)
    variables: set[str] = set()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _name(node.value).endswith("Parser"):
            variables |= {one.id for one in node.targets if isinstance(one, ast.Name)}
        if not isinstance(node, ast.Call) or not _name(node).endswith("Parser"):
            continue
        made = True
        if _name(node) == "ArgumentParser":
            continue
        if _name(node) not in _OF_DATACLASSES:
            found.unknown = found.unknown or f"what {where}'s {_name(node)} takes is not known"
            continue
        given = node.args[:1] or [one.value for one in node.keywords if one.arg == "dataclass_types"]
        for one in given:
            for name in _classes(one, listed):
                fields = source.fields(name) if name else None
                if fields is None:
                    found.unknown = (
                        found.unknown or f"the fields of {name or ast.unparse(one)} in {where} are not known"
                    )
                found.names |= fields or {}
    added = options(source.tree)
    found.names |= {key.replace("-", "_"): one for key, one in added.names.items()}
    if added.unknown:
        found.unknown = found.unknown or f"{where} adds an option whose name is not written out ({added.unknown})"
    if not made:
        found.unknown = f"{where} makes no parser that is known here: which options it takes is not known"
    own = {one.name for one in ast.walk(source.tree) if isinstance(one, ast.FunctionDef)}
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Call):
            continue
        if _name(node) == "parse_known_args" or any(one.arg == "return_remaining_strings" for one in node.keywords):
            found.unknown = found.unknown or f"{where} takes options that its parser does not know"
        passed = {one.id for one in node.args if isinstance(one, ast.Name)}
        if passed & variables and _name(node) not in own:
            found.unknown = found.unknown or f"what {_name(node)} adds to the parser of {where} is not known"
        if any(one.arg == "fail_with_unknown_args" for one in node.keywords):
            found.drops = True
    return found


def _lists(tree: ast.AST) -> dict[str, ast.expr]:
    """Names that are given a tuple or a list."""
    return {
        one.id: node.value
        for node in ast.walk(tree) if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple | ast.List)
        for one in node.targets if isinstance(one, ast.Name)
    }  # fmt: skip


def _classes(node: ast.expr, listed: Mapping[str, ast.expr]) -> Iterator[str]:
    """The names of the classes that a parser is made of; an empty one for what is no name."""
    if isinstance(node, ast.Name) and node.id in listed:
        node = listed[node.id]
    for one in node.elts if isinstance(node, ast.Tuple | ast.List) else [node]:
        yield one.id if isinstance(one, ast.Name) else ""


def _name(node: ast.Call) -> str:
    return str(getattr(node.func, "id", "") or getattr(node.func, "attr", ""))
