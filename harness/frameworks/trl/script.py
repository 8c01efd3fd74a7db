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
    nodes = list(ast.walk(tree))
    calls = [(node, _name(node.func)) for node in nodes if isinstance(node, ast.Call)]
    script = Script(calls=_trl_calls(nodes, calls), unread=_why_unread(path, text, calls))
    for name in itertools.chain.from_iterable(map(_set_elsewhere, nodes)):
        script.computed.setdefault(name, f"set again in {path}")
    constants = _constants(tree, nodes)
    for keyword in _config_keywords(calls):
        if keyword.arg is not None:
            _take(script, keyword.arg, _written_out(keyword.value, constants))
    script.flows = _flows(nodes, calls, script)
    return script


def _config_keywords(calls: list[tuple[ast.Call, str]]) -> list[ast.keyword]:
    """The arguments of all calls of configuration classes; `arg` is None of `**settings`."""
    return [keyword for call, name in calls if name.endswith("Config") for keyword in call.keywords]


def _trl_calls(nodes: list[ast.AST], calls: list[tuple[ast.Call, str]]) -> dict[str, list[str]]:
    """TRL's configuration classes -> the names of the arguments that the script gives them."""
    imported = dict(itertools.chain.from_iterable(map(_imported, nodes)))
    arguments: dict[str, list[str]] = {}
    for call, name in calls:
        of_module = name if _name(getattr(call.func, "value", call)) == "trl" else ""  # trl.GRPOConfig(…)
        class_name = imported.get(name, of_module)
        if class_name.endswith(("Config", "Arguments")):
            arguments.setdefault(class_name, []).extend(keyword.arg for keyword in call.keywords if keyword.arg)
    return arguments


def _why_unread(path: str, text: str, calls: list[tuple[ast.Call, str]]) -> str:
    """Why a setting that no call names may still not have its default; empty if it has."""
    parsers = [name for _, name in calls if name.startswith("parse_") and name not in _FROM_WORDS]
    if parsers:
        return f"{path} takes its settings from {parsers[-1]}, which is not read"
    for call, name in calls:
        # `**settings` in a call cannot contain a name that the call also gives.
        if name.endswith("Config") and any(keyword.arg is None for keyword in call.keywords):
            return f"{path} gives {name} settings that are not written in the call"
    if "args=" in text and not any(_configures(name) for _, name in calls):
        return f"{path} takes its configuration from elsewhere, which is not read"
    return ""


def _flows(nodes: list[ast.AST], calls: list[tuple[ast.Call, str]], script: Script) -> dict[str, Flow]:
    """Follow `GRPOConfig(x=args.y)` to `parser.add_argument("--y", type=int)`, where one parser and one name of its
    answer are all that there is, and nothing sets the answer's attributes."""
    answer = _only_answer(nodes, calls)
    if not answer:
        return {}
    options = _options([call for call, name in calls if name == "add_argument"])
    keywords = _config_keywords(calls)
    times_given = Counter(keyword.arg for keyword in keywords)
    flows: dict[str, Flow] = {}
    for keyword in keywords:
        name, value = keyword.arg or "", keyword.value
        if not isinstance(value, ast.Attribute) or not _is_named(value.value, answer):
            continue
        only_here = times_given[keyword.arg] == 1 and script.computed.get(name) == ast.unparse(value)
        if value.attr in options and value.attr not in script.computed and only_here:
            flows[name] = Flow(value.attr, *options[value.attr], value.lineno)
    return flows


def _only_answer(nodes: list[ast.AST], calls: list[tuple[ast.Call, str]]) -> str:
    """The name of the answer of the only parser, which reads the command's words; empty where there are several, or
    where another function may set what it holds."""
    assignments = [node for node in nodes if isinstance(node, ast.Assign)]
    parsers = [line for line in assignments if _calls(line.value, "ArgumentParser")]
    answers = [line for line in assignments if _calls(line.value, "parse_args")]
    if len(parsers) != 1 or len(answers) != 1:
        return ""
    match answers[0]:
        case ast.Assign(targets=[ast.Name(id=name), *_], value=ast.Call(args=[], keywords=[])):
            is_handed_on = any(_is_named(argument, name) for call, _ in calls for argument in call.args)
            is_set_once = sum(_sets(node, name) for node in nodes) == 1
            return name if is_set_once and not is_handed_on else ""
    return ""


def _sets(node: ast.AST, name: str) -> bool:
    """Whether a node assigns a name, or is a parameter of this name."""
    match node:
        case ast.Name(id=bound, ctx=ast.Store()) | ast.arg(arg=bound):
            return bound == name
    return False


def _is_named(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _calls(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and _name(node.func) == name


def _options(calls: list[ast.Call]) -> dict[str, tuple[str, object]]:
    """Option with one long name and one word as its value -> (the type of the value, its default)."""
    options: dict[str, tuple[str, object]] = {}
    destinations: set[str] = set()  # a second option with the same destination leaves neither
    for call in calls:
        arguments = {keyword.arg or "**": keyword.value for keyword in call.keywords}
        if isinstance(dest := arguments.get("dest"), ast.Constant):
            options.pop(str(dest.value), None)
            destinations.add(str(dest.value))
        words = [word.value for word in call.args if isinstance(word, ast.Constant) and isinstance(word.value, str)]
        if len(words) != 1 or not words[0].startswith("--"):
            continue
        name = words[0].removeprefix("--").replace("-", "_")
        kind = _name(arguments["type"]) if "type" in arguments else "str"
        if name in destinations:
            options.pop(name, None)
        elif {*arguments} <= {"type", "default", "help", "required"} and kind in ("int", "float", "str"):
            default = arguments.get("default")
            options[name] = (kind, default.value if isinstance(default, ast.Constant) else None)
        destinations.add(name)
    return options


def _constants(tree: ast.Module, nodes: list[ast.AST]) -> dict[str, ast.expr]:
    """Name -> its number, text or switch, where the module's own level binds it and nothing else in the file does."""
    if any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in nodes):
        return {}  # which names these bind is in another file
    times_bound = Counter(itertools.chain.from_iterable(map(_bound, nodes)))
    assigned = itertools.chain.from_iterable(map(_assigned, tree.body))
    return {name: value for name, value in assigned if times_bound[name] == 1 and _is_plain(value)}


def _assigned(line: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    """Yield (name, value) of each name that an assignment sets."""
    match line:
        case ast.Assign(targets=targets, value=value):
            yield from ((target.id, value) for target in targets if isinstance(target, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
            yield name, value


def _is_plain(value: ast.expr) -> bool:
    """Whether it is a number, a text or a switch as it is written, which nothing can change in its place."""
    negated = isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.USub)
    return isinstance(value.operand if negated else value, ast.Constant)  # type: ignore[attr-defined]


def _bound(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node binds, in whichever scope."""
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
            yield name
        case ast.alias(name=module, asname=asname):
            yield (asname or module).split(".")[0]
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name
        case ast.Global(names=names):
            yield from names


def _written_out(value: ast.expr, constants: dict[str, ast.expr]) -> ast.expr:
    """The value of a constant of the module in the place of its name; any other value as it is."""
    return constants.get(value.id, value) if isinstance(value, ast.Name) else value


def _configures(name: str) -> bool:
    """Whether a call of this name gives a trainer its settings."""
    return name.endswith("Parser") or (name.endswith("Config") and not name.startswith(_OTHERS))


def _imported(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield (the name in the script, TRL's name) of what is imported from TRL."""
    if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "trl":
        yield from ((alias.asname or alias.name, alias.name) for alias in node.names)


def _take(script: Script, name: str, expression: ast.expr) -> None:
    """Add a setting that a call gives."""
    try:
        value = ast.literal_eval(expression)
    except (ValueError, TypeError):
        script.computed[name] = ast.unparse(expression)
        return
    if script.keywords.setdefault(name, value) != value:
        script.computed[name] = f"{script.keywords[name]!r} here and {value!r} there"


def _set_elsewhere(node: ast.AST) -> Iterator[str]:
    """Yield settings that are set outside a configuration's call."""
    match node:
        case ast.Assign(targets=targets):  # args.bf16 = …, args.kwargs["x"] = …
            for target in targets:
                base_target = target.value if isinstance(target, ast.Subscript) else target
                if isinstance(base_target, ast.Attribute):
                    yield base_target.attr
        case ast.ClassDef(bases=bases, body=body) if any(_name(base).endswith("Config") for base in bases):
            for line in body:  # the defaults of a class derived from it
                for target in [line.target] if isinstance(line, ast.AnnAssign) else getattr(line, "targets", ()):
                    if isinstance(target, ast.Name):
                        yield target.id
        case ast.Call() if _name(node.func) in ("replace", "set_defaults"):  # replace(args, bf16=…)
            yield from (keyword.arg for keyword in node.keywords if keyword.arg)


def _name(node: ast.AST) -> str:
    return str(getattr(node, "id", None) or getattr(node, "attr", ""))
