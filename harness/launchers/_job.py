"""The job that a launcher starts: its command, the options that all launchers share, and its script.

A launcher adds what is specific to it: how a function runs on every node, and where the harness's output is kept.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from harness.errors import BadInput
from harness.launchers import Recreate
from harness.launchers._templates import rendered
from harness.quantities import seconds

Words = Annotated[list[str], typer.Argument(metavar="COMMAND...", help="the job's command, the same on every node")]
Nodes = Annotated[int, typer.Option(min=1, help="the number of nodes")]
Stall = Annotated[str, typer.Option(help="examine the job when it made no progress for this long: 90s, 5m, 1h")]
Setup = Annotated[str, typer.Option(help="a line of shell to run first on every node, to activate an environment, say")]
Doctor = Annotated[str, typer.Option(help="options for harness doctor, as one quoted text")]
Early = Annotated[int, typer.Option(min=1, help="take evidence this many seconds before the time limit")]
Record = Annotated[
    bool,
    typer.Option("--record", help="use harness record in place of harness watch, for a job of OpenRLHF, verl or TRL"),
]
Name = Annotated[str, typer.Option(help="the name of the job and of its file; default: the command's first word")]
Out = Annotated[Path, typer.Option(help="the directory to write into")]


@dataclass(frozen=True)
class JobOptions:
    """A job and how it is watched: the options that all launchers of jobs share.

    words: the command.
    stall: the time without progress after which the job is examined.
    setup: a line of shell that runs first on every node.
    doctor: options for harness doctor.
    early: how many seconds before the time limit evidence is taken.
    record: whether harness record replaces harness watch.
    name: the name of the job; empty for the command's first word.
    out: the directory of the file.
    recreate: whether a rendered file that has other content is replaced.
    VARIABLES: a pattern of variable names that are expanded on the node where the command runs. Nothing else in the
    command is expanded.
    """

    words: Words
    stall: Stall = "5m"
    setup: Setup = ""
    doctor: Doctor = ""
    early: Early = 300  # before the time limit: a look takes some seconds a node, and a job may still save itself
    record: Record = False
    name: Name = ""
    out: Out = Path(".")
    recreate: Recreate = False
    VARIABLES: ClassVar[str] = ""

    def __post_init__(self) -> None:
        """Raises BadInput for what no script could run."""
        if not self.words[0].strip():
            raise BadInput("the command of the job is empty", fix="-- python train.py")
        if wrong := _not_of_doctor(self.doctor):
            raise BadInput(f"--doctor {self.doctor!r}: {wrong}", fix="--doctor '--strict --no-imports'")
        if wrong := _no_shell(self.setup):
            raise BadInput(
                f"--setup {self.setup!r} is no line of bash: {wrong}", fix="--setup 'source ENV/bin/activate'"
            )

    @property
    def title(self) -> str:
        """The job's name in a form that is valid for a file."""
        return re.sub(r"[^\w.-]", "-", self.name or Path(self.words[0]).name, flags=re.ASCII)[:60] or "job"

    def script(
        self, head: str, directives: str = "", launcher: str = "", doctor: str = "", watch: str = "", before: str = ""
    ) -> str:
        """Return the script.

        head: the launcher's own shell. directives: lines of comment at the top, for its scheduler.
        launcher: words of shell before the command: torchrun and its options, say.
        doctor, watch: further options of these commands, as words of shell.
        before: shell between --setup and the command.
        """
        watch = f" {watch}" if watch else ""
        command = f"{launcher} {' '.join(map(self._word, self.words))}".strip()
        wrapper = "record" if self.record else "watch"
        return rendered(
            "job.sh",
            directives=directives,
            head=head,
            setup=prepared(self.setup),
            before=before,
            early=self.early,
            doctor=f"{doctor} {shlex.join(shlex.split(self.doctor))}".strip(),
            stall_s=f"{seconds(self.stall):g}",
            job=f'{wrapper} --stall {shlex.quote(self.stall)} --on-stall end{watch} --out "$HARNESS_OUT/$NODE" '
            f"-- {command}",
        )

    def _word(self, word: str) -> str:
        if not self.VARIABLES:
            return shlex.quote(word)
        parts = re.split(rf"(\$(?:{self.VARIABLES})(?!\w)|\$\{{(?:{self.VARIABLES})\}})", word)
        return (
            "".join(f'"{part}"' if number % 2 else shlex.quote(part) for number, part in enumerate(parts) if part)
            or "''"
        )


def _not_of_doctor(options: str) -> str:
    """Return the error of the shell or of harness doctor for these options; empty where they are valid."""
    from harness.cli import parsed

    try:
        parsed("doctor", shlex.split(options))
    except (ValueError, BadInput) as error:
        return str(error)
    return ""


def _no_shell(line: str) -> str:
    """Return bash's error for a line; empty where it is valid, or where bash is missing."""
    try:
        read = subprocess.run(["bash", "-n"], input=line, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return read.stderr.strip().splitlines()[0].removeprefix("bash: ") if read.returncode else ""


def prepared(setup: str) -> str:
    """Return lines of shell that run --setup. `set +u` is needed because activation scripts may read unset
    variables.
    """
    return f"set +u; {setup}" if setup else "true"


def command_line(context: typer.Context) -> str:
    """Return the command that writes the same file again, without --out and --recreate."""
    options: list[str] = []
    words: list[str] = []
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if parameter.param_type_name == "argument":
            words = list(value or ())
        elif parameter.name not in ("out", "recreate") and value != parameter.default and value not in (None, "", []):
            values = value if isinstance(value, list | tuple) else [value]
            options += [
                parameter.opts[0] if option_value is True else f"{parameter.opts[0]}={option_value}"
                for option_value in values
            ]
    return " ".join(map(_quoted, ["harness", "render", context.info_name or "", *options, "--", *words]))


def _quoted(word: str) -> str:
    """Return the word quoted for bash, with only those characters that a comment may hold."""
    if word.isprintable():
        return shlex.quote(word)
    return "$'" + "".join(char if char.isprintable() and char not in "\\'" else _escape(char) for char in word) + "'"


def _escape(char: str) -> str:
    if char in "\\'":
        return "\\" + char
    return "".join(f"\\x{byte:02x}" for byte in char.encode())
