"""Which framework a command starts, in which version, and what in the command would keep the probes out.

The command is read and never run: its words, and the Python and shell scripts that it names.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

from harness import extras
from harness.errors import BadInput, closest, nearest
from harness.frameworks.argv import taken_apart
from harness.frameworks.installed import Installation, ask
from harness.frameworks.leading_imports import leading_imports
from harness.frameworks.spec import Framework, frameworks, names, refused
from harness.program import set_by_env
from probes import limits, redaction
from probes.adapters import DIGESTS, VARIABLE, Adapter

AUTO = "auto"
LARGEST_SCRIPT = 1 << 20  # bytes; a larger file is no script that a person wrote
_SCRIPT = re.compile(r"\.(py|sh|bash|slurm|sbatch)$")
# Words before a command that do not change what it starts.
_PREFIXES = {"env", "nohup", "time", "nice", "stdbuf", "setsid", "timeout", "exec"}
_SHELLS = {"bash", "sh", "zsh", "dash", "srun", "sbatch"}
_LAUNCHERS = {"accelerate", "deepspeed", "torchrun", "trl"}  # programs that start with the interpreter of the job
_OVERRIDES = re.compile(r"(?<![\w$])PYTHONPATH=(?!\S*\$\{?PYTHONPATH)")
_DROPS = re.compile(
    r"\bunset\b[^\n;&|]*\bPYTHONPATH\b"
    r"|\benv\s+(?:(?:-u\s+\w+|-\w+|\w+=\S*)\s+)*?(?:-i\b|--ignore-environment\b|(?:-u\s*|--unset=)PYTHONPATH\b)"
)
# Python switches that keep the probes out -> the reason.
_SWITCHES = {
    "I": "it reads neither PYTHONPATH nor sitecustomize", "E": "it does not read PYTHONPATH",
    "S": "it does not load sitecustomize",
}  # fmt: skip


@dataclass(frozen=True)
class Caution:
    """Something that the user should know before the job starts, in a sentence, and what to do about it."""

    what: str
    fix: str


@dataclass(frozen=True)
class Job:
    """A command of a known framework.

    `python`, `installed`: its interpreter and what is installed there, if the command tells.
    """

    framework: Framework
    python: str
    installed: Installation | None
    cautions: tuple[Caution, ...]

    def variables(self, *, digests: bool = False) -> dict[str, str]:
        """The variables that switch the hooks on in every process that inherits them."""
        variables = {VARIABLE: f"{self.framework.handed}:{','.join(self.framework.adapter.triggers)}"}
        return {**variables, DIGESTS: "1"} if digests else variables


def detect(
    command: Sequence[str],
    framework: str = AUTO,
    environ: Mapping[str, str] = os.environ,
    *,
    fitting: Collection[str] = (),
) -> Job:
    """The job that a command starts. Raises BadInput for a command of no framework, or of several; its fix names one
    of the `fitting`, or any.
    """
    return _job(of(command, framework, fitting=fitting), command, environ)


def of(command: Sequence[str], framework: str = AUTO, *, fitting: Collection[str] = ()) -> Framework:
    """The framework of a command. Raises BadInput as `detect` does."""
    if framework != AUTO:
        return framework_named(framework, fitting=fitting)
    candidates = recognised(command)
    if not candidates:
        raise BadInput(
            _with_refused(f"neither the words of this command nor its scripts name one of: {names()}"),
            fix=_named(fitting or frameworks()),
        )
    if len(candidates) > 1:
        raise BadInput(
            f"this command could start {names(candidates, ' and ')}: more than one adapter matches it",
            fix=_named([candidate.name for candidate in candidates]),
        )
    return candidates[0]


def _named(candidates: Iterable[str]) -> str:
    first, *others = candidates
    return f"--framework {first}" + (f"   # or {' or '.join(others)}" if others else "")


def framework_named(name: str, *, fitting: Collection[str] = ()) -> Framework:
    """The framework of that name. Raises BadInput if there is none."""
    if name not in frameworks():
        message = f"there is no adapter for {name!r} (there are: {names()}){closest(name, frameworks())}"
        near = nearest(name, frameworks())
        raise BadInput(_with_refused(message, name), fix=_named([near] if near else fitting or frameworks()))
    return frameworks()[name]


def _with_refused(message: str, name: str = "") -> str:
    """The message, with the reasons why plug-ins (or those of that name) bring no framework."""
    return "; ".join([message, *(str(error) for error in refused() if name in ("", error.name))])


def recognised(command: Sequence[str]) -> list[Framework]:
    """Every framework that the words of the command or of its scripts name."""
    texts = list(command) + [text for _, text in scripts(command)]
    return [
        framework
        for framework in frameworks().values()
        if any(re.search(pattern, text, re.MULTILINE) for pattern in framework.commands for text in texts)
    ]


def scripts(command: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (path, text) of the files in the command that are Python or shell scripts."""
    for word in command:
        path = Path(word)
        if not _SCRIPT.search(word):
            continue
        try:
            if path.is_file() and path.stat().st_size <= LARGEST_SCRIPT:
                yield word, path.read_text(encoding="utf-8", errors="replace")
        except OSError:  # not readable from here: if it matters, the job itself will say so
            continue


def _job(framework: Framework, command: Sequence[str], environ: Mapping[str, str]) -> Job:
    python = interpreter(command, environ)
    variables = taken_apart(command, framework.starts, environ).variables  # PYTHONPATH may name a checkout
    installed = ask(python, framework.adapter, variables, beside=framework.beside) if python else None
    return Job(framework, python, installed, tuple(_cautions(framework.adapter, python, installed, command)))


def refuse_absent(job: Job, command: Sequence[str], environ: Mapping[str, str] = os.environ) -> None:
    """Raise BadInput if the command's interpreter does not have the module that the command starts, or that its script
    imports at its top.
    """
    if job.installed is None or job.installed.version:
        return
    start = taken_apart(command, job.framework.starts, environ)
    if start.before[-1:] == ("-m",):
        started, needed = start.entry, {start.entry.partition(".")[0]}
    else:
        started = started_script(command)
        needed = {*job.framework.adapter.triggers} & leading_imports(Path(started))
    for package in sorted(needed - job.installed.places.keys()):
        wanted = job.framework.adapter.distribution
        raise BadInput(
            f"No module named {package!r}: {job.python}, with which the command starts {started}, has no {wanted}",
            fix=f"{extras.install_into(job.python, wanted)}   # or name the job's own Python in the command; "
            f"for a checkout: env PYTHONPATH=DIR {shlex.quote(job.python)} ...",
        )


def refuse_unhooked(job: Job, command: Sequence[str], environ: Mapping[str, str] = os.environ) -> None:
    """Raise BadInput if the command starts a trainer that no hook reaches: its recording would be empty."""
    texts = [text for path, text in scripts(command) if path.endswith(".py")]
    start = taken_apart(command, job.framework.starts, environ)
    if trainer := job.framework.unhooked(start, texts, job.installed):
        raise BadInput(
            f"no hook of {job.framework.name} reaches {trainer}: nothing of this job would be recorded",
            fix=f"harness watch -- {shlex.join(redaction.arguments(command))}   # watches any command, without hooks",
        )


def refuse_unknown_option(job: Job, command: Sequence[str], environ: Mapping[str, str] = os.environ) -> None:
    """Raise BadInput for an option that the framework's own parser would refuse only after its imports."""
    start = taken_apart(command, job.framework.starts, environ)
    if unknown := job.framework.unknown_option(start, job.installed):
        words = [*start.before, start.entry, *unknown.mended]
        raise BadInput(unknown.what, fix=f"-- {shlex.join(redaction.arguments(words))}")


def refuse_absent_script(command: Sequence[str]) -> None:
    """Raise BadInput if the command starts a script that does not exist."""
    script = started_script(command)
    if script and not os.path.exists(script):
        folder = os.path.dirname(script) or "."
        raise BadInput(f"{script}: no such file", fix=f"ls {shlex.quote(folder)}   # and name the script that is there")


def started_script(command: Sequence[str]) -> str:
    """The script that an interpreter or a launcher is given, as far as the words tell; empty without one."""
    words = without_prefixes(command)
    name = os.path.basename(words[0]) if words else ""
    is_python = name.startswith("python")
    if not is_python and name not in ("torchrun", "accelerate", "deepspeed", "bash", "sh"):
        return ""
    for before, word in pairwise(words):
        if word in ("-m", "-c", "--module", "--no-python"):
            return ""
        if _SCRIPT.search(word) and "=" not in word and not word.startswith("-"):
            return word
        if is_python and not word.startswith("-") and before not in ("-W", "-X"):
            return ""  # what follows are the program's own arguments
    return ""


def interpreter(command: Sequence[str], environ: Mapping[str, str] = os.environ) -> str:
    """The Python that will run the job, as far as the command tells; empty if it does not."""
    words = without_prefixes(command)
    which = partial(shutil.which, path=environ.get("PATH"))
    path = which(words[0]) if words else None
    if words[:3] == ["ray", "job", "submit"] or path is None:
        return ""
    name = os.path.basename(words[0])
    if name in _SHELLS:  # a script that is given its interpreter, or calls it or a launcher by name
        parts = [part for argument in words[1:] for part in argument.split()]
        programs = ((os.path.basename(part), program) for part in parts if (program := which(part)))
        pythons = (_python_of(name, program) for name, program in programs)
        return next(filter(None, pythons), which("python3") or "")
    return path if name.startswith("python") else _shebang(path)


def without_prefixes(command: Sequence[str]) -> list[str]:
    """Return a command without what comes before its program: variables, `nice`, `env`, and their options."""
    words = list(command)
    while words and (os.path.basename(words[0]) in _PREFIXES or "=" in words[0] or words[0].startswith("-")):
        words = words[2 if words[0] in ("-u", "--unset") else 1 :]  # env -u NAME
        while words and re.fullmatch(r"-?\d+\S*", words[0]):  # nice -n 5, timeout 60
            words = words[1:]
    return words


def _python_of(name: str, program: str) -> str:
    """Return the Python that a word of a shell script runs; empty if it is neither a Python nor a launcher."""
    if name.startswith("python"):
        return program
    return _shebang(program) if name in _LAUNCHERS else ""


def _shebang(path: str) -> str:
    """The Python in a program's first line; empty if it names none."""
    try:
        with limits.open_file(path) as stream:
            first = stream.readline(500).decode(errors="replace")
    except OSError:
        return ""
    match = re.match(r"#!\s*(\S*python\S*)\s*$", first)
    return match[1] if match else ""


def _cautions(
    adapter: Adapter, python: str, installed: Installation | None, command: Sequence[str]
) -> Iterator[Caution]:
    name, (first, end) = adapter.framework, adapter.versions
    look = f"harness adapters check --framework {name} --python"
    if installed is None:
        what = f"the command does not say which Python runs it: the version of {name} is not checked before it starts"
        yield Caution(what, f"{look} PATH   # the Python that runs the job")
    elif not installed.version:
        what = f"{python} has no {adapter.distribution}: if the job runs in another Python, its version is not checked"
        yield Caution(what, f"{look} PATH   # the Python that runs the job")
    elif not adapter.tested(installed.version):
        what = (
            f"{name} {installed.version} is outside the tested range ({first} to before {end}): its hooks are put "
            "where their symbols still are"
        )
        yield Caution(what, f"{look} {shlex.quote(python)}")
    yield from _kept_out(command)


def _kept_out(command: Sequence[str]) -> Iterator[Caution]:
    """Yield what would keep the probes out of the processes: changes of PYTHONPATH, and Python's own switches."""
    keep = "PYTHONPATH=DIR:$PYTHONPATH   # in its place: it keeps what is there"
    for where in _overriding(command):
        yield Caution(f"{where} sets PYTHONPATH itself, so the probes are lost below it", keep)
    for where, text in (("the command", " ".join(command)), *scripts(command)):
        if not where.endswith(".py") and _DROPS.search(text):
            yield Caution(
                f"{where} takes PYTHONPATH away, so the probes are lost below it", "leave PYTHONPATH as it is"
            )
    for word in command:
        if re.fullmatch(r"-[bBdOqsuvxP]*[IES][bBdIEOqsSuvxP]*", word):
            why = next(why for switch, why in _SWITCHES.items() if switch in word)
            yield Caution(f"Python's {word} shuts the probes out: {why}", f"leave {word} out")
        if word == "--":
            break
    words = [word.split("=")[0] for word in command]
    if list(command[:3]) == ["ray", "job", "submit"] and "--runtime-env" in words and "--runtime-env-json" not in words:
        what = (
            "the job's runtime environment is a file, which is not rewritten: the probes reach its processes only if "
            "its env_vars carry RLHF_HARNESS_WATCH, RLHF_HARNESS_ADAPTER and PYTHONPATH"
        )
        yield Caution(what, "write it as --runtime-env-json, which is")


def _overriding(command: Sequence[str]) -> Iterator[str]:
    """Yield each place that sets PYTHONPATH without keeping its old value."""
    mended = {0, *set_by_env(command, "PYTHONPATH")}  # the watch puts the probes before these; no program is called so
    yield from ("the command" for place, word in enumerate(command) if _OVERRIDES.match(word) and place not in mended)
    yield from (path for path, text in scripts(command) if not path.endswith(".py") and _OVERRIDES.search(text))
