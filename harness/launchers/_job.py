"""The job that a launcher starts: its command, the options that all launchers share, and its script.

A launcher adds what is specific to it: how a function runs on every node, and where the harness's output is kept.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Protocol

import typer

from harness.errors import BadInput
from harness.quantities import seconds

EARLY_S = 300  # before the time limit: a look takes some seconds a node, and a job may still save itself
STALL = "5m"

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


class JobOptions(Protocol):
    """The options that all launchers of jobs share."""

    @property
    def words(self) -> list[str]: ...
    @property
    def stall(self) -> str: ...
    @property
    def setup(self) -> str: ...
    @property
    def doctor(self) -> str: ...
    @property
    def early(self) -> int: ...
    @property
    def record(self) -> bool: ...
    @property
    def name(self) -> str: ...


@dataclass(frozen=True)
class Job:
    """A command and how it is watched.

    words: the command.
    stall: the time without progress after which the job is examined.
    setup: a line of shell that runs first on every node.
    doctor: options for harness doctor.
    early: how many seconds before the time limit evidence is taken.
    record: whether harness record replaces harness watch.
    name: the name of the job; empty for the command's first word.
    variables: a pattern of variable names that are expanded on the node where the command runs. Nothing else in the
    command is expanded.
    """

    words: Sequence[str]
    stall: str = STALL
    setup: str = ""
    doctor: str = ""
    early: int = EARLY_S
    record: bool = False
    name: str = ""
    variables: str = ""

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

    @staticmethod
    def of(options: JobOptions, variables: str = "") -> Job:
        """Return the job that a user requests of a launcher."""
        return Job(
            words=options.words,
            stall=options.stall,
            setup=options.setup,
            doctor=options.doctor,
            early=options.early,
            record=options.record,
            name=options.name,
            variables=variables,
        )

    @property
    def title(self) -> str:
        """The job's name in a form that is valid for a file."""
        return re.sub(r"[^\w.-]", "-", self.name or Path(self.words[0]).name, flags=re.ASCII)[:60] or "job"

    def script(
        self, head: str, directives: str = "", launcher: str = "", doctor: str = "", watch: str = "", before: str = ""
    ) -> str:
        """The script. `head`: what is the launcher's own, in the shell. `launcher`: words of shell before the command,
        torchrun and its options say; `doctor`, `watch`: of their options. `before`: lines
        of shell between --setup and the command."""
        watch = f" {watch}" if watch else ""
        command = f"{launcher} {' '.join(map(self._word, self.words))}".strip()
        wrapper = "record" if self.record else "watch"
        return _SCRIPT.format(
            directives=directives, head=head, setup=prepared(self.setup), early=self.early,
            before=before,
            doctor=f"{doctor} {shlex.join(shlex.split(self.doctor))}".strip(), stall_s=f"{seconds(self.stall):g}",
            job=f'{wrapper} --stall {shlex.quote(self.stall)} --on-stall end{watch} --out "$HARNESS_OUT/$NODE" '
            f"-- {command}",
        )  # fmt: skip

    def _word(self, word: str) -> str:
        if not self.variables:
            return shlex.quote(word)
        parts = re.split(rf"(\$(?:{self.variables})(?!\w)|\$\{{(?:{self.variables})\}})", word)
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
    """Return the command that writes the same file again, without --out."""
    options: list[str] = []
    words: list[str] = []
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if parameter.param_type_name == "argument":
            words = list(value or ())
        elif parameter.name != "out" and value != parameter.default and value not in (None, "", []):
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


# A launcher's head defines NODES, HARNESS_OUT and four functions. `first` and `start` run look_first and job on every
# node, `look_everywhere` runs look there, and `stop` ends what a hang has left. NODE is set wherever those run.
_SCRIPT = """\
#!/bin/bash
{directives}
set -u

refuse() {{ # CODE SENTENCE
    echo "harness: $2" >&2
    exit "$1"
}}

look_first() {{
    {setup}
    code=$?
    [ "$code" = 0 ] || echo "harness: $NODE: the last command of --setup ended with $code" >&2
    harness doctor --nodes "$HARNESS_OUT" {doctor} > "$HARNESS_OUT/doctor-$NODE.txt" 2>&1 && return
    code=$?
    [ "$code" = 127 ] && echo "no harness is in PATH: its environment is not active here; fix: give harness" \
        "render --setup 'source ENVIRONMENT/bin/activate'" >> "$HARNESS_OUT/doctor-$NODE.txt"
    sed "s/^/$NODE: /" "$HARNESS_OUT/doctor-$NODE.txt" >&2
    exit "$code"
}}

job() {{
    {setup}
    {before}exec harness {job}
}}

look() {{
    {setup}
    harness triage --out "$LOOK/$NODE" "$HARNESS_OUT/$NODE" > /dev/null
}}
export -f look_first job look

judge() ( # FOLDER EVIDENCE...
    {setup}
    harness triage --out "$1" "${{@:2}}" > "$1/verdict.txt"
)

look_together() {{ # at the job on all nodes at one time; its exit code is 1 where it hangs
    export LOOK="$HARNESS_OUT/$1"
    mkdir -p "$LOOK"
    look_everywhere
    judge "$LOOK" "$LOOK"/*/
}}

hangs() {{
    look_together "look-$1"
    local code=$? look="$HARNESS_OUT/look-$1"
    [ -e "$look/verdict.json" ] || return
    [ "$code" != 3 ] || say_unclear "$look"
    [ "$code" = 1 ]
}}

said=
say_unclear() {{ # FOLDER of a look that cannot say whether the job hangs: why, and which nodes gave no evidence; once
    local silent why
    why=$(sed -n 's/^  "reason": "\\(.*\\)",$/\\1/; T; s/\\\\"/"/g; p' "$1/verdict.json")
    [[ "$why" == *"gave no evidence"* ]] ||
        while read -r silent; do why+="; $silent"; done < <(grep -o 'no evidence from http[^"]*' "$1/verdict.json")
    [[ "$said" == *"<$why>"* ]] && return
    said+="<$why>"
    echo "harness: INSUFFICIENT evidence of all nodes ($1/verdict.json): $why" >&2
}}

await() {{ # PID: its exit code. A signal ends a wait; bash keeps the code of a process that has ended
    while kill -0 "$1" 2> /dev/null; do
        wait "$1"
    done
    wait "$1"
}}

pause() {{ # which a signal can end
    sleep "$1" &
    sleeper=$!
    wait "$sleeper"
}}

end_across_nodes() {{ # a hang whose culprit is on another node; it is told twice, as in harness watch
    sleeper=
    trap 'kill $sleeper 2> /dev/null; exit' TERM
    [ "$NODES" = 1 ] && return
    looked=$(echo "$HARNESS_OUT"/*/evidence/*/verdict.json) number=0
    while pause 5; do # until a watch has looked: what it left is not of one moment, so all nodes are looked at again
        seen=$(echo "$HARNESS_OUT"/*/evidence/*/verdict.json)
        [ "$seen" = "$looked" ] && continue
        looked=$seen number=$((number + 2))
        if hangs $((number - 1)) && pause {stall_s} && hangs "$number"; then
            cat "$HARNESS_OUT/look-$number/verdict.txt" >&2
            kill -USR2 $$
            return
        fi
    done
}}

tell_others() {{ :; }} # that the job hangs, where they do not learn it by themselves

at_the_limit() {{
    echo "harness: the time limit is {early} s away; evidence is taken in $HARNESS_OUT" >&2
    look_together at-the-limit
    cat "$HARNESS_OUT/at-the-limit/verdict.txt" >&2
}}

trap 'refuse 1 "the time limit is {early} s away, and the job has not started: see $HARNESS_OUT"' USR1
{head}
if ! first; then
    refuse 1 "the job was not started: see $HARNESS_OUT/doctor-*.txt"
fi
trap at_the_limit USR1
trap 'trap "" USR1 USR2; echo "harness: the job hangs and is ended" >&2; code=86; tell_others; exit 86' USR2

start &
step=$!
end_across_nodes &
judge=$!
trap 'kill "$judge" 2> /dev/null; stop' EXIT
await "$step"
code=$?
exit "$code"
"""
