"""The settings in a Python script for TRL: the calls of configuration classes in its source, which is read and not
run."""

from __future__ import annotations

import ast
import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

# Classes named …Config that have no settings of a trainer.
_OTHERS = ("Lora", "BitsAndBytes", "Auto", "Peft", "Model")
_FROM_WORDS = ("parse_args", "parse_known_args", "parse_args_into_dataclasses", "parse_args_and_config")


@dataclass(frozen=True)
class Flow:
    """A setting that the script takes from an option of its own argparse parser.

    `option`: its name, with underscores. `type`: that of its value. `default`: its literal default; None: not known.
    `line`: where the configuration takes it.
    """

    option: str
    type: str
    default: object
    line: int

    def read(self, text: str) -> object:
        """The value that argparse makes of a word. Raises ValueError where it refuses it."""
        return {"int": int, "float": float}.get(self.type, str)(text)


@dataclass
class Script:
    """The settings of a script.

    `calls`: TRL's configuration classes -> the names of their arguments. `keywords`: settings with a literal value.
    `computed`: settings with any other value, as source text. `unread`: why a setting in neither may still not have its
    default; empty if it has. `flows`: those of `computed` that come from an option of the script.
    """

    calls: dict[str, list[str]] = field(default_factory=dict)
    keywords: dict[str, object] = field(default_factory=dict)
    computed: dict[str, str] = field(default_factory=dict)
    unread: str = ""
    flows: dict[str, Flow] = field(default_factory=dict)


def settings(path: str, text: str) -> Script:
    """The settings in a script, and whether it takes others from places that cannot be read."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):  # of another Python version: the job itself will say so
        return Script(unread=f"{path} cannot be read as Python")
    script, nodes = Script(), list(ast.walk(tree))
    calls = [(node, _name(node.func)) for node in nodes if isinstance(node, ast.Call)]
    constants = _constants(tree, nodes)
    for name in itertools.chain.from_iterable(map(_set_elsewhere, nodes)):
        script.computed.setdefault(name, f"set again in {path}")
    imported = dict(itertools.chain.from_iterable(map(_imported, nodes)))
    for call, name in calls:
        if name.startswith("parse_") and name not in _FROM_WORDS:
            script.unread = f"{path} takes its settings from {name}, which is not read"
        of_trl = imported.get(name, name if _name(getattr(call.func, "value", call)) == "trl" else "")
        if of_trl.endswith(("Config", "Arguments")):
            script.calls.setdefault(of_trl, []).extend(argument.arg for argument in call.keywords if argument.arg)
        if name.endswith("Config"):
            for keyword in call.keywords:
                _keyword(
                    script,
                    _written_out(keyword, constants),
                    f"{path} gives {name} settings that are not written in the call",
                )
    if "args=" in text and not any(_configures(name) for _, name in calls):
        script.unread = script.unread or f"{path} takes its configuration from elsewhere, which is not read"
    script.flows = _flows(nodes, calls, script)
    return script


def _flows(nodes: list[ast.AST], calls: list[tuple[ast.Call, str]], script: Script) -> dict[str, Flow]:
    """Follow `GRPOConfig(x=args.y)` to `parser.add_argument("--y", type=int)`, where one parser and one name of its
    answer are all that there is, and nothing sets the answer's attributes."""
    answer = _only_answer(nodes, calls)
    if not answer:
        return {}
    options = _options([call for call, name in calls if name == "add_argument"])
    flows: dict[str, Flow] = {}
    keywords = [keyword for call, name in calls if name.endswith("Config") for keyword in call.keywords]
    for keyword in keywords:
        value = keyword.value
        if not isinstance(value, ast.Attribute) or not _is_named(value.value, answer):
            continue
        option, name = options.get(value.attr), keyword.arg or ""
        alone = len([other for other in keywords if other.arg == name]) == 1 and value.attr not in script.computed
        if option is not None and alone and script.computed.get(name) == ast.unparse(value):
            flows[name] = Flow(value.attr, *option, value.lineno)
    return flows


def _only_answer(nodes: list[ast.AST], calls: list[tuple[ast.Call, str]]) -> str:
    """The name of the answer of the only parser, which reads the command's words; empty where there are several, or
    where another function may set what it holds."""
    parsers = [node for node in nodes if isinstance(node, ast.Assign) and _calls(node.value, "ArgumentParser")]
    answers = [node for node in nodes if isinstance(node, ast.Assign) and _calls(node.value, "parse_args")]
    if len(parsers) != 1 or len(answers) != 1:
        return ""
    target, parsing = answers[0].targets[0], answers[0].value
    if not isinstance(target, ast.Name) or not isinstance(parsing, ast.Call) or parsing.args or parsing.keywords:
        return ""
    stored = [
        node for node in nodes if _is_named(node, target.id) and isinstance(getattr(node, "ctx", None), ast.Store)
    ]
    parameters = [node for node in nodes if isinstance(node, ast.arg) and node.arg == target.id]
    handed_on = any(_is_named(argument, target.id) for call, _ in calls for argument in call.args)
    return "" if len(stored) != 1 or parameters or handed_on else target.id


def _is_named(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _calls(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and _name(node.func) == name


def _options(calls: list[ast.Call]) -> dict[str, tuple[str, object]]:
    """Option with one long name and one word as its value -> (the type of the value, its default)."""
    options: dict[str, tuple[str, object]] = {}
    seen: set[str] = set()
    for call in calls:
        words = [word.value for word in call.args if isinstance(word, ast.Constant) and isinstance(word.value, str)]
        more = {keyword.arg or "**": keyword.value for keyword in call.keywords}
        if isinstance(dest := more.get("dest"), ast.Constant):
            options.pop(str(dest.value), None)
            seen.add(str(dest.value))
        kind = _name(more["type"]) if "type" in more else "str"
        if len(words) != 1 or not words[0].startswith("--"):
            continue
        name = words[0].removeprefix("--").replace("-", "_")
        plain = not {*more} - {"type", "default", "help", "required"} and kind in ("int", "float", "str")
        if name in seen:
            options.pop(name, None)
        elif plain:
            default = more.get("default")
            options[name] = (kind, default.value if isinstance(default, ast.Constant) else None)
        seen.add(name)
    return options


def _constants(tree: ast.Module, nodes: list[ast.AST]) -> dict[str, ast.expr]:
    """Name -> its number, text or switch, where the module's own level binds it and nothing else in the file does."""
    if any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in nodes):
        return {}  # which names these bind is in another file
    bindings = Counter(itertools.chain.from_iterable(map(_bound, nodes)))
    assigned = [
        (target.id, line.value)
        for line in tree.body
        if isinstance(line, ast.Assign | ast.AnnAssign) and line.value is not None
        for target in (line.targets if isinstance(line, ast.Assign) else [line.target])
        if isinstance(target, ast.Name)
    ]
    return {name: value for name, value in assigned if bindings[name] == 1 and _is_plain(value)}


def _is_plain(value: ast.expr) -> bool:
    """Whether it is a number, a text or a switch as it is written, which nothing can change in its place."""
    negated = isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.USub)
    return isinstance(value.operand if negated else value, ast.Constant)  # type: ignore[attr-defined]


def _bound(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node binds, in whichever scope."""
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.alias):
        yield (node.asname or node.name).split(".")[0]
    elif isinstance(
        node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.ExceptHandler | ast.MatchAs | ast.MatchStar
    ):
        yield from filter(None, [node.name])
    elif isinstance(node, ast.Global):
        yield from node.names


def _written_out(keyword: ast.keyword, constants: dict[str, ast.expr]) -> ast.keyword:
    """The argument with the value of a constant of the module in the place of its name."""
    value = constants.get(keyword.value.id) if isinstance(keyword.value, ast.Name) else None
    return keyword if value is None else ast.keyword(keyword.arg, value)


def _configures(name: str) -> bool:
    """Whether a call of this name gives a trainer its settings."""
    return name.endswith("Parser") or (name.endswith("Config") and not name.startswith(_OTHERS))


def _imported(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield (the name in the script, TRL's name) of what is imported from TRL."""
    if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "trl":
        yield from ((alias.asname or alias.name, alias.name) for alias in node.names)


def _keyword(script: Script, keyword: ast.keyword, opaque: str) -> None:
    if keyword.arg is None:  # **settings: they cannot contain a name that the call also gives
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
    """Yield settings that are set outside a configuration's call: `args.bf16 = …`, a subclass's defaults,
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
