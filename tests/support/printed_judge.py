"""What is wrong with a text that tells somebody what to type: `wrong(text)` names it, or nothing.

1. Every `harness ...` in it goes through the real command line's parser: commands, options, values, required arguments.
   What that parser leaves to the command is asked where it is decided: engines, settings, planted faults, names.
2. A line that begins with an option is completed with the arguments of the commands that have it.
3. `pip install` names only what an index has; this distribution is not on one.
4. A line of shell is read by bash, and run where it only looks (`ls`, `df`, `ps`).
5. Placeholders are words of a vocabulary, with a value each that stands in for them.
"""

from __future__ import annotations

import functools
import itertools
import re
import shlex
import subprocess
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

# What a user puts in, with a value that the command takes. A word in capitals that is not here is refused.
PLACEHOLDERS = {
    "A": "vllm",
    "ADDRESS": "127.0.0.1:6379",
    "AGAINST": "hf",
    "B": "sglang",
    "BACKEND": "vllm",
    "BAD": "0.32",
    "BASELINE": "runs/a",
    "BUNDLE": "runs/x.zip",
    "CANDIDATE": "runs/b",
    "CAUSE": "STALE_WEIGHTS",
    "CELL": "hf-vllm",
    "VERSION": "0.31.0",
    "CHECKPOINT": "runs/x/checkpoint",
    "KEY": "key",
    "MODE": "coupled",
    "CHECKOUT": "checkout",
    "CMD": "true",
    "COMMAND": "true",
    "DATABASE": "nights",
    "DIR": "runs/x",
    "DIRECTORY": "runs/x",
    "END": "end.toml",
    "ENGINE": "vllm",
    "ENV": "env",
    "ENVIRONMENT": "env",
    "FILE": "file",
    "FILE.db": "file.db",
    "FILE.jsonl": "file.jsonl",
    "FILE.parquet": "file.parquet",
    "FILE.py": "file.py",
    "FOLDER": "runs/x",
    "HEAD": "10.0.0.1",
    "HOST": "10.0.0.1",
    "IMAGE": "python:3.12",
    "INTERFACE": "eth0",
    "K": "1",
    "LIMIT": "04:00:00",
    "LOOK": "runs/look",
    "MATRIX.toml": "matrix.toml",
    "MODULE": "module",
    "N": "2",
    "GOOD": "0.29",
    "NAME": "mine",
    "ONE": "0.31.0",
    "OTHER": "runs/other",
    "OUT": "runs/out",
    "PAIR": "runs/x",
    "PARENT": "runs",
    "PATH": "/usr/bin/python3",
    "PID": "4711",
    "PORT": "6379",
    "PROGRAM": "python",
    "RANGE": "0.29..0.32",
    "RUN": "runs/x",
    "S": "ppo-tiny",
    "SCENARIO": "ppo-tiny",
    "SEED": "7",
    "SHARED": "shared",
    "SOURCE": ".",
    "TRACKER": "wandb",
    "TIME": "90",
    "NODE": "node7",
    "NUMBER": "2",
    "NUMBERS": "0,1",
    "SECRET": "secret",
    "SECONDS": "60",
    "TWO": "0.32.0",
    "URL": "https://example.org/it",
    "VALUE": "1",
    "WHAT": "4711",
    "WHEEL": "./rlhf_harness-0.1.0-py3-none-any.whl",
    "WORD": "word",
}
# A placeholder of an f-string, by what its expression ends with; the first that matches. Others stand for a word.
EXPRESSIONS = (
    (r"near\[0\]", "seed"),
    (r"^words\[(?::begin|end:)\]$", ""),
    (r"\[\*path, \*arguments", "doctor"),
    (r"is_engine\(word\)", "vllm sglang"),
    (r"^positions$|max_model_len\)$", "128"),  # of a context, which a prompt and a response fit into
    (r"changed_words", "doctor"),
    (r"^(?:comment|note)$", ""),
    (r"rollout\.mode$", "coupled"),
    (r"\*backends", "vllm sglang"),
    (r"engines$", "2"),
    (r"^prefix$", ""),
    (r"^(?:suite|other)$", "hang"),
    (r"^shlex\.join\(names\)$", "dumps-order"),
    (r"^title$", "HUNG"),
    (r"^one\.name$", "top_k"),
    (r"\bformat$", "html"),
    (r"json\.dumps", "5"),
    (r"_installer(?:_of)?\(", "pip install"),
    (r"next\(versioned", "py-spy"),
    (r"removeprefix\('--set", "seed=7"),
    (r"/ 100", "0.4"),
    (r"_example\(\)", "vllm@0.29..0.32 --against sglang"),
    (r"self\.what", "v0.31..v0.32"),
    (r"pid|living|_pids|state\.descriptor|os\.pread", "4711"),
    (r"pairs\[0\]", "vllm sglang"),
    (r"^two\[", "vllm"),
    (r"framework\b|framework\.name|candidates\[0\]\.name|^name$", "verl"),
    (r"engine$|engine\b.*|wanted\.recipe\.engine", "vllm"),
    (r"rebuild|wanted\.command", "harness env create vllm"),
    (r"run_dir|evidence|path|run\b|named|folder|given|file|state\.LOG|out\b|Path\(|tempfile", "runs/x"),
    (
        r"size|ranks|version|number|len\(|low|high|steps|limit|stop|MiB|int\(|max\(|min\(|math|minutes",
        "2",
    ),
    (r"host", "10.0.0.1"),
)
WORD = "word"
_FRAMEWORKS = ("harness/frameworks/openrlhf", "harness/frameworks/trl", "harness/frameworks/verl")
OTHERS = frozenset({"theirs"})  # engines of examples
# Whose options a room's fixes name, where that is not the command of the same name.
ROOM_COMMANDS = {
    "triage": ("triage", "watch", "record"),
    "launchers": ("render",),
    "parity": ("parity", "run", "replay", "diff", "audit"),
    "nightly": ("nightly", "history"),
    "warm": ("up", "parity", "run"),
    "frameworks": ("parity", "record", "doctor"),
    "cluster": ("parity", "run"),
}
LOOKS = frozenset({"ls", "df", "ps", "du", "command", "hostname", "id"})  # they change nothing, and end at once
SHELL = LOOKS | {
    "apt-get",
    "bash",
    "chmod",
    "chown",
    "command",
    "curl",
    "docker",
    "dstack",
    "echo",
    "env",
    "export",
    "find",
    "fuser",
    "git",
    "head",
    "kill",
    "kubectl",
    "ldd",
    "mkdir",
    "mv",
    "nvidia-smi",
    "rocm-smi",
    "pgrep",
    "pip",
    "pipx",
    "py-spy",
    "python",
    "ray",
    "rm",
    "sbatch",
    "scontrol",
    "sky",
    "srun",
    "sudo",
    "tail",
    "ulimit",
    "unset",
    "unzip",
    "uv",
    "uvx",
    "which",
}
_PLACE = re.compile(r"(?<![\w.$/{=-])(?:[A-Z][A-Z_]*(?:\.(?:toml|jsonl|parquet|py|db))?)(?![\w./(-])")
_REDIRECTION = re.compile(r"(?<!')<[a-z][a-z ]*>")
_COMMENT = re.compile(r"\s{2,}#\s.*$|\s#\s.*$")


def wrong(text: str, where: str = "") -> list[str]:
    """What is wrong with a fix. `where`: FILE:LINE that makes it, for the commands that its options belong to."""
    whole = _filled(text)
    line = _COMMENT.sub("", whole).strip()
    line = re.sub(r"^(?:[A-Z_]+=\S+ )+(?=harness )", "", line)
    if line.startswith("harness "):
        faults = of_harness(_first(line.removeprefix("harness ")))
        rest = whole.partition(line)[2]
    else:
        faults, rest = [], whole
    if line.partition(" ")[0] in {"harness", *SHELL} and _REDIRECTION.search(text):
        faults.append(f"{line!r}: a shell reads <word> as a file; a placeholder is a word in capitals")
    faults += [fault for command in commands(rest) for fault in of_harness(command, mention=True)]
    if not line.startswith("harness "):
        faults += [fault for words in _installs(whole) for fault in _not_installable(words)]
    if line.startswith("-") and not where.startswith(_FRAMEWORKS):
        faults += _of_an_option(line, where)
    elif (program := line.partition(" ")[0].lstrip("(").rstrip(";")) in SHELL:
        faults += _of_the_shell(line, program)
    return [*faults, *_unknown_options(whole, where)]


def _first(line: str) -> str:
    """The first command of a line of shell: `harness up A && harness run B`, `harness report DIR > FILE`."""
    lexer = shlex.shlex(line, posix=False, punctuation_chars="|&;>")
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        words = list(itertools.takewhile(lambda word: word[0] not in "|&;>", lexer))
    except ValueError:
        return line
    return " ".join(words)


def commands(text: str) -> list[str]:
    """Every `harness COMMAND ...` within a sentence."""
    names = "|".join(sorted(_tree().commands))
    lines = [_first(line) for line in re.findall(r"`harness ([a-z][^`]*)`", text)]
    for match in re.finditer(rf"(?<![\w./'`-])harness ((?:{names})(?![\w-])[^`\n;:)]*)", text):
        words = re.split(
            r",\s|\s\s+|\s#\s|\s(?:or|and|which|shows?|it|lists?|prints?|in|of|for|to|by|says?|waits|examines)\s",
            match[1],
        )[0]
        if words.count("'") % 2:  # within a quoted word: --on-push 'make && harness parity hf vllm'
            words = words.partition("'")[0]
        lines.append(words.strip(" .,"))
    return lines


def of_harness(line: str, mention: bool = False) -> list[str]:
    """What the command line says of the words behind `harness`. `mention`: they stand in a sentence, which may name a
    command or an option without the words that it needs."""
    try:
        words = shlex.split(line.replace("…", " ").replace(" ... ", " ").removesuffix(" ..."))
    except ValueError as error:
        return [f"`harness {line}`: no shell reads it: {error}"]
    command, path = _tree(), []
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        if words[0] in {PLACEHOLDERS["NAME"], WORD}:  # `harness render NAME`, `harness ‹command›`
            return []
        if words[0] not in command.commands:
            return [f"`harness {line}`: there is no command {' '.join([*path, words[0]])!r}"]
        path.append(words.pop(0))
        command = command.commands[path[-1]]
    if {"--help", "--version"} & {*words} or hasattr(command, "commands"):
        return []
    try:
        context = command.make_context(path[-1], [*words])
    except Exception as error:
        if not hasattr(error, "format_message") and not hasattr(error, "fix"):
            raise
        refusal = str(error.format_message() if hasattr(error, "format_message") else error)
        lacking = re.search(r"Missing argument|requires (?:an|\d+) argument", refusal)
        return [] if mention and lacking else [f"`harness {line}`: {refusal}"]
    if path == ["watch"] and not (context.params["command"] or context.params["pid"]):
        return [] if mention else [f"`harness {line}`: there is no command to watch"]
    unknown = [word for word in words if re.fullmatch(r"[A-Z][A-Z_]{2,}", word) and path[0] != "explain"]
    faults = [*_meant(" ".join(path), context.params), *(f"nobody knows what {word} stands for" for word in unknown)]
    return [f"`harness {line}`: {fault}" for fault in faults]


def _meant(path: str, parameters: dict[str, Any]) -> Iterator[str]:
    """What is left to the command when its words are parsed."""
    if path in {"watch", "record"}:
        first = str((parameters.get("command") or parameters.get("words") or [""])[0])
        if first.isdigit() or (first and Path(first).is_dir()):
            yield f"{first} is no command to start"
    yield from _of_settings([*(parameters.get("set") or ()), *(parameters.get("candidate_set") or ())])
    for key in ("baseline", "candidate", "backend"):
        if path in {"parity", "run", "up"} and (engine := str(parameters.get(key) or "")):
            yield from _of_an_engine(engine)
    if path == "explain":
        for name in {*(parameters.get("names") or ())} - {PLACEHOLDERS["NAME"]}:
            yield from _refused(_explain, name)


def _of_settings(settings: Sequence[str]) -> Iterator[str]:
    """What is refused of the settings of one command: some fit together only."""
    from harness import config

    settings = [setting for setting in settings if setting != "section.key=value"]
    yield from _refused(lambda: config.load("ppo-tiny", settings))


def _of_an_engine(name: str) -> Iterator[str]:
    from scenarios.engines import registry

    if name.partition("@")[0] not in {*registry.names(), *OTHERS}:
        yield f"there is no engine {name!r}"


def _explain(name: str) -> None:
    from harness import glossary

    glossary.find(name)


def _refused(call: Callable[..., object], *words: str) -> Iterator[str]:
    from harness.errors import BadInput

    try:
        call(*words)
    except BadInput as error:
        yield error.message


def _of_an_option(line: str, where: str) -> list[str]:
    """A line of options to add to a command: at least one of the commands it can be meant for takes it."""
    faults: list[str] = []
    for path, command in _contexts(where):
        needed = [] if line.startswith("-- ") else [_value(item) for item in command.params
                  if item.param_type_name == "argument" and item.required]  # fmt: skip
        needed += [word for item in command.params if item.param_type_name == "option" and item.required
                   for word in (item.opts[0], "word")]  # fmt: skip
        words = f"{path} {line}" if line.startswith("-- ") else f"{path} {' '.join(needed)} {line}"
        if path == "watch" and " -- " not in words:  # its command is optional for the sake of --pid
            words += " -- true"
        fault = of_harness(re.sub(r"(?<= )-- word", "-- true", words))
        if not fault:
            return []
        faults = faults or fault
    return faults or [f"{line!r}: no command has this option"]


def _value(argument: Any) -> str:
    return {"baseline": "vllm", "candidate": "sglang", "engine": "vllm"}.get(argument.name, WORD)


def _contexts(where: str) -> list[tuple[str, Any]]:
    """The commands that a place in the source belongs to: its own, or all."""
    every = dict(_leaves(_tree(), ""))
    parts = Path(where.partition(":")[0]).parts
    for words in (("harness", "commands"), ("harness", "launchers"), ("harness",)):
        if parts[: len(words)] == words and len(parts) > len(words):
            name = Path(parts[len(words)]).stem.replace("_", "-")
            names = ROOM_COMMANDS.get(name, (name,))
            chosen = [(path, command) for path, command in every.items() if {*names} & {*path.split()}]
            if chosen:
                return chosen
    return list(every.items())


def _leaves(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name, inner in getattr(command, "commands", {}).items():
        yield from _leaves(inner, f"{path} {name}".strip())
    if not hasattr(command, "commands"):
        yield path, command


def _unknown_options(text: str, where: str) -> list[str]:
    """Options in a sentence, outside commands of others, that no command of the harness has."""
    if where.startswith("harness/frameworks/") or any(word in text.split() for word in SHELL):
        return []
    mentioned = {*re.findall(r"(?<![\w'=-])--[a-z][a-z-]+", re.sub(r"\s-- .*", " ", text))}
    every = [_tree(), *(command for _, command in _leaves(_tree(), ""))]
    options = {name for command in every for item in command.params
             for name in (*item.opts, *item.secondary_opts)} | {"--help", "--version"}  # fmt: skip
    return [f"no command has the option {name}" for name in sorted(mentioned - options)]


def _tree() -> Any:
    from harness.cli import commands

    return commands()


def _filled(text: str) -> str:
    """The text with a value for each placeholder."""
    text = re.sub(r"‹([^›]*)›", lambda match: _expression(match[1]), text)
    text = re.sub(r"<[a-z][^<>]*>", WORD, text)
    return _PLACE.sub(lambda match: PLACEHOLDERS.get(match[0], match[0]), text)


def _expression(source: str) -> str:
    return next((value for pattern, value in EXPRESSIONS if re.search(pattern, source)), WORD)


# --- the shell


def _of_the_shell(line: str, program: str) -> list[str]:
    line = line.replace("…", " ")
    read = subprocess.run(["bash", "-n"], input=line, capture_output=True, text=True, timeout=30)
    if read.returncode:
        return [f"{line!r}: {read.stderr.strip()}"]
    return []


# --- packages


def _installs(text: str) -> list[list[str]]:
    """The words behind every `pip install`, `uv tool install`, `pipx install`."""
    installs = []
    for match in re.finditer(
        r"\b(?:pip|tool|pipx) install ([^\n`;]*?)(?=$|\n|`|;|   | \|\||,? (?:and|or|in|beside) |\s#\s|\s&&\s)", text
    ):
        try:
            installs.append(shlex.split(match[1]))
        except ValueError:
            installs.append(match[1].split())
    return installs


def _not_installable(words: Sequence[str]) -> list[str]:
    faults = []
    value = False  # of the option before
    for word in words:
        if value or word.startswith("-"):
            value = word in {"-r", "-c", "--python", "--constraint", "--index-url", "--with", "--with-editable"}
            continue
        name = re.split(r"[\[=<>!~ @]", word)[0]
        if word in {WORD, "it"} or word.startswith((".", "/", "runs/", "git+", "$")) or " @ " in word:
            continue
        if name.replace("_", "-").lower() == "rlhf-harness" and not word.endswith(".whl"):
            faults.append(f"pip install {word}: this distribution is on no index; name a checkout or a wheel")
        elif name.lower() not in packages() and not word.endswith(".whl"):
            faults.append(f"pip install {word}: not a package of this project's metadata, engines or frameworks")
    return faults


@functools.cache
def packages() -> frozenset[str]:
    """Distributions that are on an index: what this one needs, the engines, the frameworks and what they need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [
        *project["dependencies"],
        *(item for extra in project["optional-dependencies"].values() for item in extra),
    ]
    locked = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    names = {re.split(r"[\[=<>!~; ]", item)[0].lower() for item in (*wanted, *locked)}
    return frozenset(
        names - {"rlhf-harness", ""} | {"vllm", "sglang", "verl", "openrlhf", "trl", "sglang-router", "pip"}
    )
