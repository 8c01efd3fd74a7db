"""What a Python script of TRL's asks for: the calls of a configuration class in it, read and not run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

# Classes named …Config that hold no setting of a trainer.
_OTHERS = ("Lora", "BitsAndBytes", "Auto", "Peft", "Model")
_FROM_WORDS = ("parse_args", "parse_known_args", "parse_args_into_dataclasses", "parse_args_and_config")


@dataclass
class Script:
    """`calls`: of TRL's configuration classes -> the names of their arguments. `keywords`: settings that are literals;
    `computed`: those that are not, as they are written; `unread`: why a setting that is in neither may still not be its
    default, empty where it is."""

    calls: dict[str, list[str]] = field(default_factory=dict)
    keywords: dict[str, object] = field(default_factory=dict)
    computed: dict[str, str] = field(default_factory=dict)
    unread: str = ""


def settings(path: str, text: str) -> Script:
    """The settings that a script writes down, and whether it takes others from where they cannot be seen."""
    script = Script()
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):  # another Python's: the job will say so itself
        return Script(unread=f"{path} cannot be read as Python")
    configured = False
    imported = {
        alias.asname or alias.name: alias.name
        for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "trl"
        for alias in node.names
    }  # fmt: skip
    for node in ast.walk(tree):
        for name in _set_elsewhere(node):
            script.computed.setdefault(name, f"set again in {path}")
        if not isinstance(node, ast.Call):
            continue
        name = _name(node.func)
        if name.startswith("parse_") and name not in _FROM_WORDS:
            script.unread = f"{path} takes its settings from {name}, which is not read"
        if name.endswith("Parser"):
            configured = True
        of_trl = imported.get(name) or (name if getattr(getattr(node.func, "value", None), "id", "") == "trl" else "")
        if of_trl.endswith(("Config", "Arguments")):
            script.calls.setdefault(of_trl, []).extend(argument.arg for argument in node.keywords if argument.arg)
        if not name.endswith("Config"):
            continue
        configured = configured or not name.startswith(_OTHERS)
        for keyword in node.keywords:
            _keyword(script, keyword, f"{path} gives {name} settings that are not written in the call")
    if not configured and "args=" in text:
        script.unread = script.unread or f"{path} takes its configuration from elsewhere, which is not read"
    return script


def _keyword(script: Script, keyword: ast.keyword, opaque: str) -> None:
    if keyword.arg is None:  # **settings: a name that stands in the call cannot be among them
        script.unread = script.unread or opaque
        return
    try:
        value = ast.literal_eval(keyword.value)
    except (ValueError, TypeError):
        script.computed[keyword.arg] = ast.unparse(keyword.value)
        return
    if script.keywords.setdefault(keyword.arg, value) != value:
        script.computed[keyword.arg] = f"{script.keywords[keyword.arg]!r} here and {value!r} there"


def _set_elsewhere(node: ast.AST) -> Iterator[str]:
    """Names of settings given otherwise than in a configuration's call: `args.bf16 = …`, a subclass's defaults,
    `replace(args, bf16=…)`."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            base_target = target.value if isinstance(target, ast.Subscript) else target
            if isinstance(base_target, ast.Attribute):
                yield base_target.attr
    elif isinstance(node, ast.ClassDef) and any(_name(base).endswith("Config") for base in node.bases):
        for line in node.body:
            for assigned in [line.target] if isinstance(line, ast.AnnAssign) else getattr(line, "targets", ()):
                if isinstance(assigned, ast.Name):
                    yield assigned.id
    elif isinstance(node, ast.Call) and _name(node.func) in ("replace", "set_defaults"):
        yield from (keyword.arg for keyword in node.keywords if keyword.arg)


def _name(node: ast.AST) -> str:
    return str(getattr(node, "id", None) or getattr(node, "attr", ""))
