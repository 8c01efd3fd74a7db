"""What a framework's command asks for: its options by name, from its words and from the files that they name.

Nothing is run and nothing of a framework imported. verl takes Hydra's overrides (`a.b=c`), OpenRLHF and `trl` take
`--a.b c`; a script of TRL's is Python, whose calls of a configuration class are read, and YAML files are data. What
only a shell knows, and what may come from a file that is not read, is told apart from a default: nobody can say what it
is.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from harness.doctor.frameworks import files, words
from harness.doctor.frameworks.options import Option, dashed, overrides
from harness.doctor.frameworks.script import settings
from harness.frameworks.detection import Job, scripts

__all__ = ["Option", "Plan", "read"]


_OPENRLHF = re.compile(r"(?:^|[./])openrlhf[./]cli[./]")


@dataclass(frozen=True)
class Plan:
    """A job's options (the last of a name holds), keyword arguments of TRL's configuration, environment variables.

    `entry`: the word that starts the framework; `words`: all words of its start; `filed`: settings of the user's own
    configuration file, which options override. `computed`: keyword arguments that are not literals, as they are
    written; `unsure`: options of a branch that may not be taken, and why each is. `source`: of the Python script that
    starts TRL; `yamls`: file -> the settings that it names; `launch`: what accelerate is told, as far as
    `launch_unread` does not say that it cannot be. `unread`: why a setting that is given nowhere may still not be its
    default, a sentence each; `removed`: words of the commands that remove files."""

    job: Job
    options: tuple[Option, ...] = ()
    keywords: Mapping[str, object] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    computed: Mapping[str, str] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    entry: str = ""
    given: tuple[str, ...] = ()
    filed: tuple[Option, ...] = ()
    source: str = ""
    yamls: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    launch: Mapping[str, str] = field(default_factory=dict)
    launch_unread: str = ""
    unsure: Mapping[str, str] = field(default_factory=dict)
    removed: tuple[str, ...] = ()

    def last(self, name: str) -> Option | None:
        """The option of that name that holds."""
        return next((one for one in reversed((*self.filed, *self.options)) if one.name == name), None)

    def get(self, name: str, default: str = "") -> str:
        """The value of an option; empty lists and quotes as written, `default` where it is not given."""
        found = self.last(name)
        return default if found is None or found.sign == "~" else found.value

    def has(self, name: str) -> bool:
        """Is it given, and neither taken out again nor nothing (`null`)?"""
        found = self.last(name)
        return found is not None and found.sign != "~" and (found.sign == "--" or found.value not in ("null", "None"))

    def number(self, name: str, default: int) -> int | None:
        """An option as a whole number; None where it cannot be told, as from a shell variable."""
        text = self.get(name, str(default))
        return int(text) if re.fullmatch(r"-?\d+", text) else None

    def on(self, name: str) -> bool:
        """Is a switch on? A bare `--switch` counts as on."""
        return self.has(name) and self.get(name).lower() in ("", "true", "1", "yes", "on", "t", "y")

    @property
    def foreign(self) -> str:
        """Why it is not known that a module of OpenRLHF's own starts; empty where one does."""
        return "" if _OPENRLHF.search(self.entry) else self.unread[0]

    def untold(self, *names: str) -> str:
        """Why one of these settings cannot be told; empty where each is a literal, or its default."""
        for name in names:
            short = name.removeprefix("actor_rollout_ref.")
            whole = next((one.name for one in (*self.filed, *self.options) if name.startswith(f"{one.name}.")), "")
            found = self.last(name)
            for perhaps, why in self.unsure.items():
                if perhaps == name or name.startswith(f"{perhaps}.") or perhaps.startswith(f"{name}."):
                    return why
            if whole:
                return f"{whole} is given as a whole, which is not taken apart"
            if name in self.computed:
                return f"{short} is {self.computed[name]}, which only the script knows"
            if found is not None and found.sign == "~":
                return f"{short} is taken out (~{short}), and what the job does without it is not known here"
            if found is not None:
                if words.SHELL.search(found.value):
                    knows = "Hydra" if found in self.filed else "the shell"
                    return f"{short} is {found.value}, which only {knows} knows"
            elif name not in self.keywords and self.unread:
                return self.unread[0]
        return ""


def read(job: Job, command: Sequence[str], environ: Mapping[str, str]) -> Plan:
    """The plan of a command's first start of its framework."""
    return plans(job, command, environ)[0]


def plans(job: Job, command: Sequence[str], environ: Mapping[str, str]) -> list[Plan]:
    """The plan of each start of the framework by a command, by the shell and Python files among its words, with their
    YAML files: one at least."""
    name = job.adapter.framework
    texts = dict(scripts(command))
    said = words.read(name, command, texts, environ)
    return [dataclasses.replace(_plan(job, start, environ, texts, said.unread), removed=tuple(said.removed))
            for start in said.starts]  # fmt: skip


def _plan(
    job: Job, said: words.Start, environ: Mapping[str, str], texts: Mapping[str, str], more: Sequence[str]
) -> Plan:
    name = job.adapter.framework
    unread = [*more, *said.unread]
    variables = {key: value for key, value in ({} if said.bare else environ).items() if key not in said.variables}
    variables |= {key: value for key, value in said.variables.items() if value is not None}
    if not said.entry:
        unread.append(f"neither the command nor its shell scripts start {name}: what does, and its settings, "
                      "are not read")  # fmt: skip
    perhaps = overrides(said.maybe) if name == "verl" else dashed(said.maybe, hyphens=name == "trl")
    unsure: dict[str, str] = {}
    for one in perhaps:
        why = f"{one.name.removeprefix('actor_rollout_ref.')} is set in a branch of the script, which may not be taken"
        unsure |= dict.fromkeys((one.name, one.name.removeprefix("no_")), why)
    if name == "verl":
        found = _verl(job, said, variables, unread)
    elif name == "trl":
        found = _trl(job, said, variables, unread, tuple(dashed(said.after, hyphens=True)), texts)
    else:
        if said.entry and not _OPENRLHF.search(said.entry):
            unread.append(f"{said.entry} is no module of openrlhf.cli: what it takes and does is not known here")
        found = Plan(job, tuple(dashed(said.after)), {}, variables, tuple(said.all), {}, tuple(unread), said.entry,
                     tuple(said.after))  # fmt: skip
    return dataclasses.replace(found, unsure=unsure)


def _verl(job: Job, said: words.Start, variables: Mapping[str, str], unread: list[str]) -> Plan:
    main = job.installed.source("verl.trainer.main_ppo") if job.installed else None
    filed, untold, _ = files.hydra(said.after, main)
    options = tuple(overrides(said.after))
    unread += [*untold, *(f"settings come from {one.name}={one.value}, which is not read"
                          for one in options if _brings_file(one))]  # fmt: skip
    return Plan(job, options, {}, variables, tuple(said.all), {}, tuple(unread), said.entry,
                tuple(said.after), tuple(filed))  # fmt: skip


def _brings_file(one: Option) -> bool:
    """A choice of one of Hydra's groups."""
    return "/" in one.name or "@" in one.name or (one.sign == "+" and "." not in one.name and "{" not in one.value)


def _trl(
    job: Job, said: words.Start, variables: Mapping[str, str], unread: list[str],
    options: tuple[Option, ...], texts: Mapping[str, str],
) -> Plan:  # fmt: skip
    keywords: dict[str, object] = {}
    computed: dict[str, str] = {}
    yamls: dict[str, tuple[str, ...]] = {}
    for path, text in texts.items():
        if path.endswith(".py"):
            made = settings(path, text)
            keywords |= made.keywords
            computed |= made.computed
            unread += [made.unread] if made.unread else []
    entry = said.entry
    own = bool(entry) and not entry.endswith(".py")  # the `trl` command's own parser
    if entry and not own and entry not in texts:
        unread.append(f"settings come from {entry}, which is not read")
    environment = dict(variables)
    for file in (one.value for one in options if one.name == "config"):
        if words.SHELL.search(file) or (not own and "parse_args_and_config" not in texts.get(entry, "")):
            unread.append(f"settings come from {file}, which is not read")
            continue
        held, why = files.mapping(file)
        unread += [why] if why else []
        more = held.pop("env", None)
        environment |= {str(key): str(value) for key, value in more.items()} if isinstance(more, dict) else {}
        for key, value in held.items():
            if key in keywords and keywords[key] != value:
                computed[key] = f"{keywords[key]!r} in the script and {value!r} in {file}"
            keywords[key] = value
        if not why:
            yamls[file] = tuple(held)
    package = job.installed.source("trl") if job.installed else None
    launched = [os.path.basename(word) for word in said.before]
    by = own or "accelerate" in launched or any(word.startswith("accelerate.commands") for word in said.before)
    launch, why = files.accelerate(said.before, said.after if own else (), variables, package, bool(entry) and by)
    launch = {**_torchrun(said.before), **launch}
    unknown = next((word for word in said.before if words.SHELL.match(word)), "")
    why = why or (f"{entry} is started by {unknown}, which only the shell knows" if unknown else "")
    if "ACCELERATE_MIXED_PRECISION" in environment and "mixed_precision" not in launch:
        launch["mixed_precision"] = environment["ACCELERATE_MIXED_PRECISION"]
    return Plan(
        job, options, keywords, environment, tuple(said.all), computed, tuple(unread), entry, tuple(said.after), (),
        texts.get(entry, ""), yamls, launch, why,
    )  # fmt: skip


def _torchrun(before: Sequence[str]) -> dict[str, str]:
    """The number of processes of torchrun, on one node; nothing where it cannot be told."""
    told = {one.name.replace("-", "_"): one.value.split(" ")[0] for one in dashed(before)}
    each, nodes = told.get("nproc_per_node", ""), told.get("nnodes", "1")
    modules = ("torch.distributed.run", "torch.distributed.launch")
    started = any(os.path.basename(word) == "torchrun" or word in modules for word in before)
    if started and each.isdigit() and nodes.isdigit():
        return {"num_processes": str(int(each) * int(nodes))}
    return {}
