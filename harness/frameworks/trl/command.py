"""TRL's command: `trl grpo --flags`, or a Python script with its flags, a YAML file, and literals in its source."""

from __future__ import annotations

import enum
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.doctor.outcome import Fine, Outcome, Unseen
from harness.frameworks.argv import Start
from harness.frameworks.detection import LARGEST_SCRIPT
from harness.frameworks.installed import Installation
from harness.frameworks.launcher import mapping
from harness.frameworks.options import (
    DESCRIBE,
    Option,
    Parser,
    UnknownOption,
    against,
    called,
    dashed,
    first_unknown,
    from_shell,
    nearest,
    refused,
    values,
)  # fmt: skip
from harness.frameworks.settings import SHELL, Settings
from harness.frameworks.spec import Examined
from harness.frameworks.stored_answers import is_release, query_once
from harness.frameworks.trl.launch import launched
from harness.frameworks.trl.script import Script, settings
from harness.frameworks.trl.traps import LOADED, TRAINER

_LOADS = re.compile(r"Model\w*\.from_pretrained\(")
_UNSLOTH = re.compile(r"^\s*(?:import|from)\s+unsloth\b", re.MULTILINE)
# Describes the parser of one of TRL's scripts, accelerate's parser behind it, and the arguments of TRL's configuration
# classes.
_PARSERS = f"""
import importlib, inspect
{DESCRIBE}
script, accelerated, *classes = sys.argv[1:]
found = {{}}
if accelerated:
    from accelerate.commands.launch import launch_command_parser
    found |= described(launch_command_parser()) | {{"accelerate_config": ["1", None]}}
if script:
    found |= described(importlib.import_module("trl.scripts." + script).make_parser())
import trl
taken = {{one: list(inspect.signature(getattr(trl, one)).parameters) for one in classes if hasattr(trl, one)}}
answer(options=found, classes=taken)
"""


class _Form(enum.Enum):
    """How TRL is started."""

    SCRIPT = enum.auto()  # a Python script, which makes a parser of its own
    MODULE = enum.auto()  # `python -m trl.scripts.NAME`
    COMMAND = enum.auto()  # `trl NAME`, which passes what it does not know to accelerate

    @staticmethod
    def of(start: Start) -> _Form:
        if start.entry.endswith(".py"):
            return _Form.SCRIPT
        return _Form.MODULE if start.entry.startswith("trl.scripts.") else _Form.COMMAND

    def script(self, start: Start) -> str:
        """The name of TRL's own script that starts; empty where it is the user's."""
        if self is _Form.SCRIPT:
            return ""
        return start.entry.rpartition(".")[2] if self is _Form.MODULE else next(iter(start.arguments), "")


def examine(start: Start, installed: Installation | None) -> Examined:
    """The settings of a command. Its options are checked against the installed parser if one of TRL's own scripts
    starts."""
    form = _Form.of(start)
    source = _source(start.entry) if form is _Form.SCRIPT else ""
    options = list(dashed(start.arguments, hyphens=True))
    option_values, unknown = values(options)
    read = settings(start.entry, source) if source else Script()
    reasons = [read.unread, from_shell(start.arguments)]
    if form is _Form.SCRIPT and not source:
        reasons.append(f"settings come from {start.entry}, which is not read")
    files = _files(start, source, options, read)
    unread = next(filter(None, [*reasons, *files.reasons]), "")
    followed, places = _followed(start.entry, options, read)
    for name, text in read.computed.items():
        if name not in followed and name not in option_values:
            unknown[name] = f"{name} is {text}, which only the script knows"
    for name in [switch for switch in option_values if switch.startswith("no_")]:  # turns off a switch that is on
        option_values[name.removeprefix("no_")] = False
    package = installed.source("trl") if installed else None
    launch = launched(start, form is _Form.COMMAND, source, package, files.variables)
    if form is _Form.COMMAND:
        for name in ("num_processes", "num_machines", "mixed_precision"):
            option_values.pop(name, None)  # accelerate's, which `launch` holds
    unsure = {**launch.unknown, **_unsure(start, source, unread)}
    judged = tuple(_judged(start, options, files.settings, read, installed, unsure.get(TRAINER, "")))
    all_values = {**followed, **read.keywords, **files.merged, **option_values, **launch.values}
    places |= launch.places
    return Examined(Settings(all_values, {**unknown, **unsure}, unread, files.variables, places=places), judged)


def unknown_option(start: Start, installed: Installation | None) -> UnknownOption | None:
    """The first option that the parser of TRL's own script does not have. A user's script has a parser of its own."""
    form = _Form.of(start)
    name = form.script(start)
    if not name or installed is None or not installed.version or not is_release(installed):
        return None  # nothing is stored of a checkout, and its parser would be asked before each job
    described = _parsers(installed, form, name).get("options") or {}
    if not described:  # it could not be asked
        return None
    parser = Parser.of(f"trl {name}", {**described, "config": ("1", None)}, hyphens=True)
    return first_unknown(start.arguments, parser, f"{called('trl', installed)} {name}")


def _parsers(installed: Installation, form: _Form, name: str, classes: Sequence[str] = ()) -> dict[str, Any]:
    """What the installed parser of a script takes, with accelerate's behind the `trl` command."""
    accelerated = "1" if form is _Form.COMMAND else ""
    return query_once(installed, _PARSERS, name.replace("-", "_"), accelerated, *classes)


def _unsure(start: Start, source: str, unread: str) -> dict[str, str]:
    """Whether the trainer is GRPO's own, and the dtype of its model: what is not known -> why."""
    unsure: dict[str, str] = {}
    if _UNSLOTH.search(source):
        unsure[TRAINER] = f"{start.entry} imports unsloth, which puts configurations of its own in the place of TRL's"
    elif "GRPOConfig" not in source and start.arguments[:1] != ("grpo",) and not start.entry.endswith(".grpo"):
        unsure[TRAINER] = unread or "the command does not show that it is a job of GRPO's"
    if _LOADS.search(source):
        unsure[LOADED] = f"{start.entry} may load the model itself, in a dtype that is not known here"
    return unsure


def _followed(entry: str, options: Sequence[Option], read: Script) -> tuple[dict[str, object], dict[str, str]]:
    """(setting -> its value, where it is set) of what the script takes from its own options as they are."""
    followed: dict[str, object] = {}
    places: dict[str, str] = {}
    for name, flow in read.flows.items():
        # argparse takes the beginning of an option's name for the option.
        written = [option for option in options if flow.option.startswith(option.name)]
        where = f"{entry}:{flow.line}"
        if not written and flow.default is not None:
            followed[name], places[name] = flow.default, f"default of --{flow.option}, by {where}"
        elif written and all(option.name == flow.option for option in written) and not SHELL.search(written[-1].value):
            try:
                followed[name] = flow.read(written[-1].value)
            except ValueError:
                continue
            places[name] = f"--{flow.option} {written[-1].value} in the command, by {where}"
    return followed, places


def _source(entry: str) -> str:
    """The text of a script; empty if it cannot be read."""
    try:
        path = Path(entry)
        small = path.is_file() and path.stat().st_size <= LARGEST_SCRIPT
        return path.read_text(encoding="utf-8", errors="replace") if small else ""
    except OSError:
        return ""


@dataclass(frozen=True)
class _Files:
    """What the files of `--config FILE` say.

    `settings`: file -> its settings. `variables`: the environment with the files' variables. `reasons`: why settings
    are not read, where they are not.
    """

    settings: Mapping[str, Mapping[str, object]]
    variables: Mapping[str, str]
    reasons: Sequence[str]

    @property
    def merged(self) -> dict[str, object]:
        return {key: value for settings in self.settings.values() for key, value in settings.items()}


def _files(start: Start, source: str, options: Sequence[Option], read: Script) -> _Files:
    """Read the files. A setting that differs from the script's own becomes a computed one of `read`."""
    by_file: dict[str, dict[str, object]] = {}
    variables, reasons = dict(start.variables), []
    unread = _Form.of(start) is _Form.SCRIPT and "parse_args_and_config" not in source
    for file in (option.value for option in options if option.name == "config"):
        if unread or SHELL.search(file):
            reasons.append(f"settings come from {file}, which is not read")
            continue
        file_settings, why = mapping(file)
        if why:
            reasons.append(why)
            continue
        environment = file_settings.pop("env", None)
        if isinstance(environment, dict):
            variables |= {str(key): str(value) for key, value in environment.items()}
        for key, value in file_settings.items():
            if key in read.keywords and read.keywords[key] != value:
                read.computed[key] = f"{read.keywords[key]!r} in the script and {value!r} in {file}"
        by_file[file] = file_settings
    return _Files(by_file, variables, reasons)


def _unknown_keys(
    settings_by_file: Mapping[str, Mapping[str, object]], parser: Parser, version: str, *, dropped: bool
) -> Iterator[Outcome]:
    """Yield keys of a file that are no options. `dropped`: the parser ignores them."""
    for file, file_settings in settings_by_file.items():
        for key in file_settings:
            if key in parser.names:
                continue
            if dropped:
                yield Unseen(f"{key} of {file} is no option of {parser.where}, which drops it")
            else:
                what = f"{parser.where} has no such option{nearest(key, parser.names)}"
                yield refused(version, f"{key}: of {file}", what, "it ends the job before it starts")


def _unknown_arguments(
    calls: Mapping[str, Sequence[str]], classes: Mapping[str, Sequence[str]], version: str
) -> Iterator[Outcome]:
    """Yield arguments of a script's own calls that the class does not have: they raise a TypeError there."""
    why = "the script ends with a TypeError where it builds its configuration"
    for call, arguments in calls.items():
        accepted = classes.get(call, ())
        for argument in arguments:
            if accepted and argument not in accepted:
                what = f"{call} has no such argument{nearest(argument, accepted)}"
                yield refused(version, f"{argument}=…", what, why)


def _judged(
    start: Start, options: Sequence[Option], by_file: Mapping[str, Mapping[str, object]], read: Script,
    installed: Installation | None, replaced: str,
) -> Iterator[Outcome]:  # fmt: skip
    """Options, keys of a file and arguments of a configuration class that the installed version does not accept."""
    if installed is None or not installed.version:
        return
    if "unsloth" in replaced:
        yield Unseen(replaced)
        return
    version, form = called("trl", installed), _Form.of(start)
    if form is _Form.SCRIPT and not read.calls:
        yield Unseen(f"{start.entry} makes a parser of its own, which refuses what it does not know when it starts")
        return
    name = form.script(start)
    answer = _parsers(installed, form, name, sorted(read.calls))
    if "unknown" in answer:
        yield Unseen(str(answer["unknown"]))
        return
    problems = list(_unknown_arguments(read.calls, answer["classes"], version))
    counted = f"{len(read.calls)} configurations"
    if form is not _Form.SCRIPT:
        parser = Parser.of(f"trl {name}", answer["options"], hyphens=True)
        own_options = [option for option in options if option.name != "config"]
        problems = [
            *against(own_options, parser, version),
            *_unknown_keys(by_file, parser, version, dropped=form is _Form.MODULE),
            *problems,
        ]
        counted = f"{len(options)} options"
    yield from problems
    if not problems:
        yield Fine(f"{' and '.join([counted, *map(os.path.basename, by_file)])} are as {version} takes them")
