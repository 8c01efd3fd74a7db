"""The command line: registers the commands, and turns every error into one sentence and an exit code.

Each command is in `harness/commands`: it parses, calls one function, renders and exits. Heavy imports stay inside the
commands: `harness --help` imports no pandas, torch, ray or pydantic.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shlex
import shutil
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from errno import EACCES, EDQUOT, ENAMETOOLONG, ENOSPC, EPERM, EROFS
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from harness import completion, exit_cleanup, extras, misplaced_words, missing_words, pydantic_errors
from harness.amended_command import amended, amended_by_all
from harness.aside import print_aside
from harness.commands import (
    adapters,
    audit,
    bisect,
    bundle,
    diff,
    doctor,
    env,
    explain,
    faults,
    help,
    history,
    mapping,
    nightly,
    parity,
    record,
    render,
    replay,
    report,
    run,
    stacks,
    triage,
    up,
    watch,
)
from harness.commands.doors import DOORS
from harness.commands.typed_options import WORDS
from harness.errors import ERROR_FILE, STARTER, BadInput, HarnessError, Interrupted, Terminated, mistakes_of, near_names
from harness.other_paths import disk_of, nearest_folder
from harness.similar_names import similar
from probes import redaction
from probes.errors import AddressedError, RecordingError
from probes.files import write_whole
from probes.signal_codes import exit_code_of
from reports import displayed_paths
from reports.text import clean_lines

MOST_OF_A_NAME, MOST_OF_A_PATH = 255, 4_095  # bytes: NAME_MAX and PATH_MAX of Linux, without the closing NUL
BEGINNING = 40  # chosen, in characters: of a longer name that is printed


class _Formatter(TyperGroup.context_class.formatter_class):  # type: ignore[name-defined, misc]
    """Formats help in the terminal's width. On a narrow terminal a description is placed below its name."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__(width=max(30, min(shutil.get_terminal_size().columns, 100) - 2))

    def write_dl(self, rows: Any, col_max: int = 30, col_spacing: int = 2) -> None:
        super().write_dl(rows, col_max if self.width > 60 else 4, col_spacing)

    def write_text(self, text: str) -> None:
        """Continue an example that is wider than the terminal on the next line, in the shell's syntax."""
        room = self.width - self.current_indent
        paragraphs = [
            re.sub(r"^( *)(harness .*)$", lambda line: _continued(line[1], line[2], room), part, flags=re.M)
            if part.startswith("\b")
            else part
            for part in text.split("\n\n")
        ]
        super().write_text("\n\n".join(paragraphs))


def _continued(indent: str, command: str, room: int) -> str:
    """The command in lines of at most this width, broken between words only, each but the last ending with \\."""
    if len(indent + command) <= room:
        return indent + command
    lines = [indent]
    for word in re.findall(r"(?:'[^']*'|\"[^\"]*\"|\S)+", command):
        if lines[-1].strip() and len(f"{lines[-1]}{word} \\") > room:
            lines.append(f"{indent}  ")
        lines[-1] += f"{word} "
    return "\\\n".join(lines).rstrip()


TyperGroup.context_class.formatter_class = _Formatter  # this applies to every command: their contexts have this class


class _Commands(TyperGroup):
    def get_command(self, *args: Any) -> Any:
        command = super().get_command(*args)
        if command is not None:  # show the whole first paragraph in the list of commands, not only its first words
            command.short_help = " ".join((command.help or "").split("\n\n")[0].split())
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except Exception as error:
            click_error: Any = error
            message = getattr(click_error, "message", None)  # an error of click or of Typer
            if isinstance(message, str) and message.startswith("No such command"):
                names = self.list_commands(ctx)
                near = near_names(args[0], names)[:1]
                click_error.option_name, click_error.possibilities = args[0], near  # as of an unknown option
                if not near:
                    click_error.message = f"{message} There are: {', '.join(names)}."
            raise


class _Group(_Commands):
    def list_commands(self, ctx: Any) -> list[str]:
        return [name for names in DOORS.values() for name in names]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands below the question that brings a user to them, with all names in one column."""
        width = max(map(len, self.list_commands(ctx)))
        for title, names in DOORS.items():
            commands = [self.get_command(ctx, name) for name in names]
            with formatter.section(title):
                rows = zip(names, commands, strict=True)
                formatter.write_dl([(name.ljust(width), command.short_help) for name, command in rows])

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _scrubbed():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        try:
            with _scrubbed():
                return super().invoke(ctx)
        except KeyboardInterrupt as error:  # Typer would exit with 1, which is a verdict's exit code
            raise Interrupted.by(error) from error
        except BrokenPipeError as error:
            _mute()
            raise typer.Exit(exit_code_of(signal.SIGPIPE)) from error


@contextlib.contextmanager
def _scrubbed() -> Iterator[None]:
    """Remove secrets and terminal control characters from the parser's message about a wrong argument, which quotes
    it."""
    try:
        yield
    except Exception as error:
        click_error: Any = error
        is_of_parser = hasattr(click_error, "format_message")  # an error of click or of Typer
        if is_of_parser and isinstance(getattr(click_error, "message", None), str):
            redaction.learn(os.environ)
            click_error.message = clean_lines(_without_pydantic(click_error))
        raise


def _without_pydantic(click_error: Any) -> str:
    """The message with the value that pydantic refused, and what it expected; its prefix of our own text is removed."""
    refusal = click_error.__cause__
    if hasattr(refusal, "errors") and refusal.errors()[0]["type"] not in ("value_error", "assertion_error"):
        return pydantic_errors.problem(refusal)
    return str(click_error.message).removeprefix("Value error, ")


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # Rich's tables cut text that is wider than a column, even in a pipe
    help="Diagnostics and reproducibility harness for RLHF runs: why two rollout backends differ, and who is stuck.\n\n"
    "\b\nExample:\n  harness triage 7461\n  harness parity vllm sglang",
    epilog="harness help COMMAND says more. harness --install-completion [bash|zsh|fish] completes in your shell.",
)
app.command()(parity.parity)
app.command()(run.run)
app.command()(replay.replay)
app.command()(mapping.mapping)
app.command()(diff.diff)
app.command()(audit.audit)
app.command()(report.report)
app.command()(explain.explain)
app.command()(bundle.bundle)
app.command(context_settings={"allow_interspersed_args": False})(watch.watch)
app.command(context_settings={"allow_interspersed_args": False})(record.record)
app.command()(triage.triage)
app.command()(stacks.stacks)
app.command()(doctor.doctor)
app.command()(nightly.nightly)
app.command()(bisect.bisect)
app.command()(up.up)
app.command()(up.ps)
app.command()(up.down)
app.command()(help.help)
app.add_typer(history.app, name="history", cls=_Commands)
app.add_typer(faults.app, name="faults", cls=_Commands)
app.add_typer(env.app, name="env", cls=_Commands)
app.add_typer(adapters.app, name="adapters", cls=_Commands)
app.add_typer(render.app, name="render", cls=_Commands)


def _version(wants_version: bool) -> None:
    if wants_version:
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"harness {version('rlhf-harness')}")
        except PackageNotFoundError:
            print("harness (not installed: run from a checkout)")
        raise typer.Exit()


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@functools.cache
def commands() -> Any:
    """The parser of the command line. It is built of all signatures once per process: 65 ms of CPU time."""
    group = typer.main.get_command(app)
    _refuse_empty_words(group)
    _refuse_repeated_options(group)
    return group


# What to propose for options without a default.
VALUES = {"--on-verdict": "cat >> verdicts.jsonl", "--out": "runs/mine", "--serve": "0"}
SETTINGS = ("--set", "--candidate-set")  # options that take KEY=VALUE
OF_A_JOB = ("command", "words")  # parameters that take the user's own command


def _refuse_empty_words(command: Any) -> None:
    """Refuse an empty argument or option, of a variable that is not set say: as a path it would be the current
    directory, and an option would count as not given. A command behind -- may have empty words."""
    for child in getattr(command, "commands", {}).values():
        _refuse_empty_words(child)
    for parameter in command.params:
        if parameter.name not in (*OF_A_JOB, "options"):
            parameter.callback = functools.partial(_nonempty, parameter.callback)


def _nonempty(further: Any, context: Any, parameter: Any, value: Any) -> Any:
    of_option = parameter.param_type_name == "option"
    if of_option and further is not None:  # it may know what to give instead
        further(context, parameter, value)
    source = context.get_parameter_source(parameter.name)
    words = value if isinstance(value, (list, tuple)) else [value]
    if source is not None and source.name == "COMMANDLINE" and "" in words:
        what = f"the option {parameter.opts[0]}" if of_option else f"the argument {parameter.name!r}"
        raise BadInput(f"{what} is empty: is a variable not set?", fix=f"{context.command_path} --help")
    return further(context, parameter, value) if further is not None else value


def _refuse_repeated_options(command: Any) -> None:
    """Refuse an option that takes one value and is given twice: the last would win, and nothing would say so."""
    for child in getattr(command, "commands", {}).values():
        _refuse_repeated_options(child)
    command.make_parser = functools.partial(_parser_of_single_options, command.make_parser)


def _parser_of_single_options(make_parser: Any, context: Any) -> Any:
    parser = make_parser(context)
    parse = parser.parse_args

    def parse_once(args: list[str]) -> Any:
        typed = [*args]
        context.meta[WORDS] = typed
        if not context.resilient_parsing:
            _refuse_parted_settings(context, typed)
        values, rest, order = parse(args=args)
        options = [parameter for parameter in order if parameter.param_type_name == "option"]
        single = [option for option in options if not (option.multiple or option.count or option.is_flag)]
        for option, times in Counter(single).items():
            if times > 1 and not context.resilient_parsing:
                name = max(option.opts, key=len)
                raise BadInput(
                    f"{name} is given {times} times and takes one value",
                    fix=f"{name} {shlex.quote(str(values[option.name]))}",
                )
            if values[option.name] == "--" and not context.resilient_parsing:
                raise _without_value(context, option, typed[typed.index("--") + 1 :])
        return values, rest, order

    parser.parse_args = parse_once
    return parser


def _refuse_parted_settings(context: Any, words: list[str]) -> None:
    """Refuse a setting whose value stands behind a blank: the value would be taken for an argument, or for a job."""
    own = words[: words.index("--")] if "--" in words else words
    names = {name for item in context.command.params for name in item.opts if name in SETTINGS}
    for at, (option, key, value) in enumerate(zip(own, own[1:], own[2:], strict=False)):
        if option in names and not key.startswith("-") and "=" not in key and not value.startswith("--"):
            mended = [*words[: at + 1], f"{key}={value}", *words[at + 3 :]]
            raise BadInput(
                f"{option} takes KEY=VALUE, and {key} and {value} are two words",
                fix=shlex.join([*context.command_path.split(), *redaction.arguments(mended)]),
            )


def _without_value(context: Any, option: Any, job: list[str]) -> BadInput:
    """The error for an option that took the -- before the job's command as its value."""
    name = max(option.opts, key=len)
    value = VALUES.get(name) or str(option.default or "")
    return BadInput(
        f"{name} takes a value, and -- stands in its place",
        fix=shlex.join([name, value, "--", *job]) + "   # or another value"
        if value
        else f"{context.command_path} --help",
    )


def parsed(command: str, words: Sequence[str]) -> Any:
    """The parsed context of `harness COMMAND WORDS`, without running it.

    Raises BadInput with the parser's message about words that it refuses.
    """
    try:
        return commands().commands[command].make_context(command, [*words])
    except Exception as error:  # an error of click, or of the copy of click in Typer
        if not hasattr(error, "format_message"):
            raise
        raise BadInput(str(error.format_message()), fix=f"harness {command} --help") from error


def parsed_line(words: Sequence[str]) -> Any:
    """The parsed context of the innermost command of `harness WORDS`, without running it.

    Raises BadInput with what a user who types it is told, whose fix is the whole command.
    """
    try:
        context = commands().make_context("harness", [*words])
        while hasattr(context.command, "commands"):
            name, command, rest = context.command.resolve_command(context, [*context._protected_args, *context.args])
            context = command.make_context(name, rest, parent=context)
    except Exception as error:  # an error of click, of the copy of click in Typer, or of a check of a word
        if not hasattr(error, "format_message") and not isinstance(error, HarnessError):
            raise
        printed = _refused_words(error, [*words]) if hasattr(error, "format_message") else _addressed(error, words)
        raise BadInput(printed.message, fix=printed.fix) from error
    return context


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. A traceback is shown only with `HARNESS_DEBUG=1`."""
    signal.signal(signal.SIGTERM, _terminated)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:  # `nohup` ignores it
        signal.signal(signal.SIGHUP, _terminated)
    if starter := os.environ.pop(STARTER, ""):
        exit_cleanup.with_parent(int(starter))
    code = _run(arguments)
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # `harness ... | head`: the reader has gone; Python would complain when it closes stdout
        _mute()
    except OSError as error:
        _mute()
        return _tell(error, sys.argv[1:] if arguments is None else arguments)
    return code


def _run(arguments: Sequence[str] | None) -> int:
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        if completion.of_named_shell(words):
            return 0
        code = commands()(args=words, prog_name="harness", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except SystemExit as leave:
        if leave.code is None:
            return 0
        return leave.code if isinstance(leave.code, int) else 2  # a text, which Python would print and exit with 1
    except KeyboardInterrupt as error:
        return _tell(Interrupted.by(error), words)
    except BrokenPipeError:  # of what is printed outside of a command
        _mute()
        return exit_code_of(signal.SIGPIPE)
    except Exception as error:  # the only place that catches all errors: Python's exit code 1 would read as a verdict
        if isinstance(error, OSError) and error.filename is None:  # of the output: what waits there would raise again
            _mute()
        return _tell(error, words)


def _tell(error: BaseException, words: Sequence[str] = ()) -> int:
    """Print the error of the command line `words` for the user, and return the exit code."""
    if type(error).__name__ == "NoArgsIsHelpError":  # a group without a command; both copies of click call it so
        print_aside(clean_lines(str(error)))
        return 2
    redaction.learn(os.environ)
    if os.environ.get("HARNESS_DEBUG", "") not in ("", "0"):
        print_aside(redaction.text("".join(traceback.format_exception(error)), 0).rstrip("\n"))
    printed = _refused_words(error, [*words]) if hasattr(error, "format_message") else _addressed(error, words)
    message, fix = (clean_lines(displayed_paths.displayed(text)) for text in (printed.message, printed.fix))
    lines = message.replace("\n", "\nharness: ")
    print_aside(f"harness: {lines}" + (f"\n  fix: {fix}" if fix else ""))
    if file := os.environ.get(ERROR_FILE):
        with contextlib.suppress(OSError):
            write_whole(file, json.dumps({"message": message, "fix": fix}).encode())
    return printed.code


class _Message(NamedTuple):
    """An error as the user reads it, and the exit code."""

    message: str
    fix: str
    code: int = 2


def _refused_words(error: Any, words: list[str]) -> _Message:
    """The parser's message about these words. Its fix is the same command with the nearest option or command, else
    the help of the command."""
    path = _command_of(words)
    help_command = f"{path} --help"
    if type(error).__name__ == "MissingParameter" and error.param is not None and error.param.name in OF_A_JOB:
        lacking = BadInput(f"there is no command to {path.split()[1]}", fix="-- python train.py   # your command")
        return _addressed(lacking, words)
    named = getattr(error, "possibilities", None) or ()
    of_letters = _near(getattr(error, "option_name", ""), [*named, *_options_beside(error)])
    if misplaced := _misplaced(error, path, words):
        return misplaced
    near = list(dict.fromkeys([*of_letters, *_of_the_same_kind(error)]))[:2]
    if not near:
        message = error.message if getattr(error, "possibilities", None) else error.format_message()
        is_missing = type(error).__name__ == "MissingParameter"
        groups = path.split()[1:]
        whole = missing_words.shortest(groups, words[len(groups) :]) if is_missing else _with_default(error, words)
        return _Message(message, whole or help_command, error.exit_code)
    message = f"{error.message.partition('. Did you mean')[0].rstrip('.')}; did you mean {' or '.join(near)}?"
    fix = _with_instead(words, error.option_name, near[0], needs_value=_takes_value(error, near[0]))
    nearest, *_ = near
    if words == [error.option_name] and _needs_words(nearest):
        fix = f"harness {nearest} --help"
    return _Message(message, fix or help_command, error.exit_code)


def _needs_words(name: str) -> bool:
    """Whether a command alone is not enough: it needs an argument, looks for one, or is a group."""
    command = commands().commands.get(name)
    arguments = [item for item in getattr(command, "params", ()) if item.param_type_name == "argument"]
    looks = any(item.name == "what" or (item.name in OF_A_JOB and name != "doctor") for item in arguments)
    return looks or any(item.required for item in arguments) or bool(getattr(command, "commands", None))


def _misplaced(error: Any, path: str, words: Sequence[str]) -> _Message | None:
    """The message about an argument that was typed as an option, about an engine that was typed as an argument, about
    a scenario that is missing, about words behind a command that takes none, or about a number with a dash; None if it
    is about anything else."""
    context = getattr(error, "ctx", None)
    if context is None:
        return None
    groups = path.split()[1:]
    if (number := _dashed_number(error)) and any(each.param_type_name == "argument" for each in context.command.params):
        behind = [word for word in words[len(groups) :] if word != number]
        number = number if groups == ["explain"] else number.lstrip("-")  # an exit code may be negative
        dashes = ["--"] if number.startswith("-") else []
        fix = shlex.join([*path.split(), *redaction.arguments(behind), *dashes, number])
        return _Message(error.format_message(), fix, error.exit_code)
    fix = misplaced_words.in_place(context.command, groups, words[len(groups) :])
    option = getattr(error, "option_name", "") or ""
    if option and (argument := misplaced_words.argument_called(context.command, option)):
        message = f"{path} has no option {option}: its {argument} is an argument, which is typed without a name"
        return _Message(message, fix or f"{path} --help", error.exit_code)
    lacking = getattr(getattr(error, "param", None), "param_type_name", "") == "argument"
    moved = (type(error).__name__ == "MissingParameter" and lacking) or "extra argument" in error.format_message()
    if option or not fix or not moved:
        return None
    return _Message(error.format_message(), fix, error.exit_code)


def _dashed_number(error: Any) -> str:
    """The number that was typed with a dash in front of it, which makes an option of it; empty for any other word."""
    option = getattr(error, "option_name", "") or ""
    return option if re.fullmatch(r"-\d+", option) else ""


def _takes_value(error: Any, name: str) -> bool:
    """Whether this is an option, and no flag, of the command that refused a word."""
    context = getattr(error, "ctx", None)
    params = context.command.params if context is not None else []
    return any(name in item.opts and not getattr(item, "is_flag", False) for item in params)


def _of_the_same_kind(error: Any) -> list[str]:
    """The options of the command that end in the same word as a wrong one, the shortest first: they take the same kind
    of value.
    """
    wrong = str(getattr(error, "option_name", ""))
    ending = _last_word(wrong)
    if not ending:
        return []
    return sorted((name for name in _options_beside(error) if _last_word(name) == ending), key=len)


def _options_beside(error: Any) -> list[str]:
    """The options of the command whose parser raised the error."""
    context = getattr(error, "ctx", None)
    params = context.command.params if context is not None else []
    return [name for item in params if item.param_type_name == "option" for name in item.opts]


def _with_default(error: Any, words: Sequence[str]) -> str:
    """The command line with an option's default in place of a value that it does not take; empty where it has none."""
    option = getattr(error, "param", None)
    if option is None or option.param_type_name != "option" or option.multiple or option.is_flag:
        return ""
    default = option.default
    if option.name == "pid":  # no process can be proposed
        return "pgrep -af python   # the pid of a process of the job"
    if default is None and option.type_descriptor.annotation is int:
        default = option.min or 1
    fix = amended(words, shlex.join([option.opts[0], str(default)]))
    return fix if default is not None and fix.startswith("harness ") else ""


def _last_word(option: str) -> str:
    return option.lstrip("-").rpartition("-")[2]


def _near(wrong: str, names: Sequence[str]) -> list[str]:
    """The names most like a wrong one; the dashes of options do not make them alike."""
    by_letters = {name.lstrip("-"): name for name in names}
    return [by_letters[letters] for letters in similar(wrong.lstrip("-"), by_letters)]


def _command_of(words: list[str]) -> str:
    """The command that a command line names, with its groups: harness env create."""
    path, group = ["harness"], commands()
    of_help = words[:1] == ["help"] and not "".join(words[1:2]).startswith("-")
    for word in words[of_help:]:  # `harness help env` is about `harness env`
        if word in getattr(group, "commands", ()):
            path.append(word)
            group = group.commands[word]
    return " ".join(path)


def _with_instead(words: Sequence[str], wrong: str, right: str, *, needs_value: bool) -> str:
    """The command line with another word in place of the first that is, or begins with, the wrong one; "" where it
    needs a value and none follows."""
    at = next((index for index, word in enumerate(words) if word.partition("=")[0] == wrong), None)
    if at is None or (needs_value and words[at] == wrong and "".join(words[at + 1 : at + 2])[:1] in ("", "-")):
        return ""
    mended = [*words[:at], right + words[at].removeprefix(wrong), *words[at + 1 :]]
    return shlex.join(["harness", *redaction.arguments(mended)])


def _addressed(error: BaseException, words: Sequence[str]) -> _Message:
    if isinstance(error, HarnessError):
        fix = amended_by_all(words, [(mistake.fix or "", mistake.instead) for mistake in mistakes_of(error)])
        return _Message(error.message, fix, error.exit_code)
    if isinstance(error, (AddressedError, RecordingError)):
        # Ray wraps an actor's error in one of the same type, whose text is a traceback.
        fix = amended(words, getattr(error, "fix", None) or "")
        return _Message(str(getattr(error, "cause", None) or error), fix)
    if isinstance(error, ModuleNotFoundError) and (needed := extras.of_command("".join(words[:1]), _module(error))):
        return _Message(f"this needs {_module(error)}, which is not installed here", extras.install_command(*needed))
    if isinstance(error, MemoryError):
        fix = "ulimit -v; free -m   # how much there is"
        return _Message("the memory that this command may use is not enough for what it was given", fix)
    where = f"HARNESS_DEBUG=1 {_command_line()}   # shows where"
    if isinstance(error, OSError) and error.strerror and error.filename:  # about a path that the user gave
        return _Message(f"{_shortened(str(error.filename))}: {_why(error)}", _fix_of(error) or where)
    if isinstance(error, OSError) and error.errno in (ENOSPC, EDQUOT):  # about the file that the output goes to
        return _Message(
            f"the output: {error.strerror}", f"{_command_line()} > FILE   # FILE on a disk with free space (df -h)"
        )
    return _Message(f"a defect of the harness: {type(error).__name__}: {error}", f"{where}, for a bug report")


def _why(error: OSError) -> str:
    if error.errno == ENAMETOOLONG:
        return f"no file can be called so: a name has at most {MOST_OF_A_NAME} bytes, and a path {MOST_OF_A_PATH:,}"
    return error.strerror or ""


def _shortened(path: str) -> str:
    """The path with the beginnings of names that no file can have, for a line that can be read."""
    if len(os.fsencode(path)) > MOST_OF_A_PATH:
        return f"{path[:BEGINNING]}…"
    names = path.split("/")
    return "/".join(f"{name[:BEGINNING]}…" if len(os.fsencode(name)) > MOST_OF_A_NAME else name for name in names)


def _fix_of(error: OSError) -> str:
    if error.errno == ENAMETOOLONG:
        return f"ls {shlex.quote(str(nearest_folder(Path(str(error.filename)))))}   # what is there: name one of these"
    if error.errno in (ENOSPC, EDQUOT):
        return f"{disk_of(error.filename)}   # free some space there, or give a path on another disk"
    if error.errno in (EACCES, EPERM, EROFS):
        file = Path(str(error.filename))
        path = file if os.path.lexists(file) else nearest_folder(file)
        return f"ls -ld {shlex.quote(str(path))}   # who may read and write it; or give another path"
    return ""


def _module(error: ModuleNotFoundError) -> str:
    return (error.name or "-").partition(".")[0]


def _mute() -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _command_line() -> str:
    return shlex.join(["harness", *redaction.arguments(sys.argv[1:])])


def _terminated(signum: int, frame: FrameType | None) -> None:
    repeated = signum == Terminated.arrived == signal.SIGHUP and not Terminated.lost
    Terminated.arrived = signum  # Ray turns any exception of a handler inside its calls into a plain KeyboardInterrupt
    Terminated.lost = False
    if not repeated:  # the shell and the kernel each send a SIGHUP, and the second would end the cleaning up
        raise Terminated()


if __name__ == "__main__":
    sys.exit(main())
