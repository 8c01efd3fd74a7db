"""How many processes a command starts, on how many nodes: torchrun, deepspeed, accelerate and their modules.

All frameworks share this reader, because what starts a job is not a part of the framework. Sources: torch 2.11
(distributed/run.py), DeepSpeed (launcher/runner.py), accelerate (commands/launch.py).
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.frameworks.argv import Start, option
from harness.frameworks.options import Option
from harness.frameworks.settings import SHELL, Settings
from harness.frameworks.shared_meanings import Meaning

PROCESSES, NODES = "launch.processes_per_node", "launch.nodes"
MEANINGS: Mapping[str, Meaning] = {PROCESSES: Meaning("processes of a node", 1), NODES: Meaning("nodes", 1)}
# Options of launchers that bear on no number: where processes meet and write.
ASIDE = tuple(f"launch.{name}" for name in (
    "master_addr", "master_port", "main_process_ip", "main_process_port", "rdzv_", "log_dir", "tee", "redirects",
    "local_addr", "node_rank", "machine_rank", "standalone", "config_file",
))  # fmt: skip
_LARGEST = 1 << 20  # largest YAML file that is read, in bytes
_COMMAND = "in the command"


@dataclass(frozen=True)
class _Launcher:
    """One launcher.

    `processes`, `nodes`: its options for the two numbers. `total`: whether its `processes` are those of all nodes.
    `default`: the processes of a node without the option; empty: what the machine has. `hosts`: options that name the
    nodes and their devices in its place. `variables`: prefix of the variables that replace an option's default.
    """

    processes: str
    nodes: str
    total: bool = False
    default: str = ""
    hosts: tuple[str, ...] = ()
    variables: str = ""


_TORCHRUN = _Launcher("nproc_per_node", "nnodes", default="1", variables="PET_")
_DEEPSPEED = _Launcher("num_gpus", "num_nodes", hosts=("include", "exclude", "hostfile"))
_ACCELERATE = _Launcher("num_processes", "num_machines", total=True)
_LAUNCHERS = {
    "torchrun": _TORCHRUN, "torch.distributed.run": _TORCHRUN, "torch.distributed.launch": _TORCHRUN,
    "deepspeed": _DEEPSPEED, "deepspeed.launcher.runner": _DEEPSPEED,
    "accelerate": _ACCELERATE, "accelerate.commands.launch": _ACCELERATE,
    "accelerate.commands.accelerate_cli": _ACCELERATE,
}  # fmt: skip
# They start what follows several times. Launcher -> another form of an option -> its name.
_PARALLEL: Mapping[str, Mapping[str, str]] = {
    "mpiexec": {"np": "n", "c": "n"}, "mpirun": {"n": "np", "c": "np"}, "srun": {"n": "ntasks", "N": "nodes"},
}  # fmt: skip
_SPLITS = re.compile(r"--?[A-Za-z][\w-]*(?:=.*)?", re.DOTALL)


@dataclass(frozen=True)
class _Written:
    """An option of a launcher as it is written, and where."""

    text: str
    where: str


@dataclass(frozen=True)
class _LauncherCall:
    """A launcher in a command: its name there, its options by name, and the words in front of it."""

    name: str
    launcher: _Launcher
    options: Mapping[str, _Written]
    before: Sequence[str]


@dataclass(frozen=True)
class Launch:
    """What is known about a job's processes: settings, why others are not known, and where each is set.

    `accelerate`: further settings of accelerate, from its options and its file. `trouble`: why they are not known.
    """

    values: Mapping[str, object] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)
    accelerate: Mapping[str, str] = field(default_factory=dict)
    trouble: str = ""

    def added_to(self, settings: Settings) -> Settings:
        """The settings with what the framework itself does not say about its processes."""
        own = {*settings.values, *settings.unknown}
        values = {name: value for name, value in self.values.items() if name not in own}
        unknown = {name: why for name, why in self.unknown.items() if name not in own}
        places = {name: where for name, where in self.places.items() if name not in own}
        return replace(
            settings,
            values={**settings.values, **values},
            unknown={**settings.unknown, **unknown},
            places={**places, **settings.places},
        )


def processes(settings: Settings) -> tuple[int, str]:
    """(The processes of all nodes, why they are not known): a job that no launcher starts is one process."""
    why = settings.unknown.get(PROCESSES) or settings.unknown.get(NODES) or ""
    each, nodes = settings.number(PROCESSES, 1), settings.number(NODES, 1)
    return (each or 1) * (nodes or 1), why


def launched(
    start: Start, environ: Mapping[str, str], *, accelerated: Sequence[str] | None = None, package: Path | None = None
) -> Launch:
    """What starts a job's processes. Nothing is run, and of files only accelerate's own is read.

    `environ`: of the job. `accelerated`: words behind the entry that accelerate gets, as from the `trl` command; None:
    none. `package`: of TRL, whose folder has the files that `--accelerate_config` names.
    """
    call = _launcher_call(start.before, accelerated)
    if call is None:
        return _without_launcher(start.before, environ)
    written, trouble = dict(call.options), ""
    accelerate: dict[str, str] = {}
    if call.launcher is _ACCELERATE:
        from_file, trouble = _accelerate_file(start.before, accelerated or (), environ, package)
        written = {**from_file, **written}
        accelerate = {key: item.text for key, item in written.items()}
    written |= _from_variables(call.launcher, written, environ)
    if shell := next((word for word in start.before if SHELL.match(word)), ""):
        trouble = trouble or f"{start.entry} is started by {shell}, which only the shell knows"
    counted = _counted(call.launcher, call.name, written, trouble)
    # The words that the `trl` command gives accelerate are the framework's own options too.
    further = {} if accelerated is not None else _further(call.launcher, written, counted)
    outer = _parallel(call.before)
    return Launch(
        {**{key: item.text for key, item in further.items()}, **outer.values, **counted.values},
        counted.unknown,
        {**outer.places, **{key: item.where for key, item in further.items()}, **counted.places},
        accelerate,
        trouble,
    )


def _launcher_call(words: Sequence[str], accelerated: Sequence[str] | None) -> _LauncherCall | None:
    """The launcher among the words in front of a framework's entry; None without one."""
    place = _place_of(words, _LAUNCHERS)
    if accelerated is not None:
        name, launcher, options = "accelerate", _ACCELERATE, _options((*words, *accelerated))
    elif place is not None:
        name = os.path.basename(words[place])
        launcher, options = _LAUNCHERS[name], _options(words[place + 1 :])
    else:
        return None
    written = {
        item.name: _Written(item.value or str(item.bare), f"{name} {word}, {_COMMAND}") for item, word in options
    }
    return _LauncherCall(name, launcher, written, words[:place])


def _without_launcher(words: Sequence[str], environ: Mapping[str, str]) -> Launch:
    """A job that only MPI, Slurm or nobody starts several times. WORLD_SIZE says that somebody does."""
    parallel = _parallel(words)
    world = {PROCESSES: f"WORLD_SIZE is {environ['WORLD_SIZE']}"} if "WORLD_SIZE" in environ else {}
    return replace(parallel, unknown={**world, **parallel.unknown})


def _further(launcher: _Launcher, written: Mapping[str, _Written], counted: Launch) -> dict[str, _Written]:
    """The launcher's options, under the names of settings, but for those that gave one of the two numbers."""
    numbers = {launcher.processes: PROCESSES, launcher.nodes: NODES}
    return {f"launch.{key}": item for key, item in written.items() if numbers.get(key) not in counted.values}


def _place_of(words: Sequence[str], programs: Container[str]) -> int | None:
    """The place of the first word that names one of these programs; None without one."""
    return next((at for at, word in enumerate(words) if os.path.basename(word) in programs), None)


def _from_variables(
    launcher: _Launcher, written: Mapping[str, _Written], environ: Mapping[str, str]
) -> dict[str, _Written]:
    """The two numbers that no option gives, from the variables that replace an option's default."""
    values: dict[str, _Written] = {}
    for key in (launcher.processes, launcher.nodes):
        variable = f"{launcher.variables}{key.upper()}"
        if launcher.variables and key not in written and variable in environ:
            values[key] = _Written(environ[variable], f"the variable {variable}")
    return values


def _counted(launcher: _Launcher, name: str, written: Mapping[str, _Written], trouble: str) -> Launch:
    """The two numbers."""
    values: dict[str, int] = {}
    unknown: dict[str, str] = {}
    places: dict[str, str] = {}
    hosts = ", ".join(f"--{key} {written[key].text}" for key in launcher.hosts if key in written)
    several = f"{name} takes the processes that {hosts or 'the machine'} has"
    defaults = {launcher.nodes: ("" if hosts else "1"), launcher.processes: launcher.default}
    for setting, key in ((NODES, launcher.nodes), (PROCESSES, launcher.processes)):
        item = written.get(key, _Written(defaults[key], f"{name}'s default"))
        low, _, high = item.text.partition(":")  # torchrun's form of a number of nodes that may change
        text = low if low == high else item.text
        if text.isdigit() and (key in written or not trouble):
            values[setting], places[setting] = int(text), item.where
        elif text or trouble:
            unknown[setting] = trouble or f"{key} is {text}, which is no number"
        else:
            unknown[setting] = several
    if launcher.total and {PROCESSES, NODES} <= values.keys():
        each, rest = divmod(values[PROCESSES], values[NODES] or 1)
        if rest:
            unknown[PROCESSES] = f"{values.pop(PROCESSES)} processes are no whole number for each of {values[NODES]}"
        else:
            values[PROCESSES] = each
    return Launch(values, unknown, places)


def _parallel(words: Sequence[str]) -> Launch:
    """What MPI or Slurm is told: its options as they are written, and no number."""
    place = _place_of(words, _PARALLEL)
    if place is None:
        return Launch()
    name = os.path.basename(words[place])
    end = next((at for at, word in enumerate(words) if at > place and "python" in os.path.basename(word)), len(words))
    values: dict[str, str] = {}
    places: dict[str, str] = {}
    for each, word in _options(words[place + 1 : end]):
        setting = f"launch.{name}.{_PARALLEL[name].get(each.name, each.name)}"
        values[setting], places[setting] = each.value, f"{word}, {_COMMAND}"
    why = f"{name} decides how many there are: {' '.join(words[place:end])}"
    return Launch(values, {PROCESSES: why}, places)


def _options(words: Sequence[str]) -> Iterator[tuple[Option, str]]:
    """Yield (option, its words) of a launcher: -n 4, --nnodes=2. Hyphens are treated as underscores.

    `-m` and `--module` say only what follows.
    """
    rest = deque(words)
    while rest:
        word = rest.popleft()
        if not _SPLITS.fullmatch(word) or word in ("-m", "--module"):
            continue
        name, joined, value = word.lstrip("-").partition("=")
        has_value = bool(rest) and not joined and not rest[0].startswith("-")
        following = rest.popleft() if has_value else ""
        bare = not joined and not following
        yield Option(name.replace("-", "_"), value or following, bare=bare), f"{word} {following}".strip()


def _accelerate_file(
    words: Sequence[str], accelerated: Sequence[str], environ: Mapping[str, str], package: Path | None
) -> tuple[dict[str, _Written], str]:
    """(Setting of accelerate's file -> its value, why it is not known).

    Without a file, accelerate uses the one that `accelerate config` wrote.
    """
    names = ("--config_file", "--config-file")
    file = option(words, *names) or option(accelerated, *names)
    named = option(accelerated, "--accelerate_config")
    if named and not file:
        shipped = package.parent / "accelerate_configs" / f"{named}.yaml" if package else None
        file = str(shipped) if shipped and shipped.is_file() and not os.path.isfile(named) else named
    file = file or next(filter(os.path.isfile, _defaults(environ)), "")
    if SHELL.search(file):
        return {}, f"settings come from {file}, which only the shell knows"
    file_settings, why = mapping(file) if file else ({}, "")
    switches = {False: "no", True: "true"}  # YAML reads accelerate's `no` as false
    written: dict[str, _Written] = {}
    for name, value in file_settings.items():
        if value is not None:
            text = switches[value] if isinstance(value, bool) else str(value)
            written[name] = _Written(text, f"{name} of {file}")
    return written, why


def _defaults(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the files that `accelerate config` may have written."""
    cache = environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME", ""), ".cache")
    home = environ.get("HF_HOME") or os.path.join(cache, "huggingface")
    for end in ("json", "yaml", "yml"):  # JSON is read as YAML
        yield os.path.join(home, "accelerate", f"default_config.{end}")


def mapping(path: str) -> tuple[dict[str, Any], str]:
    """(content of a YAML file, why it cannot be read): one of the two is empty."""
    import yaml

    try:
        if not os.path.isfile(path):
            raise OSError(0, "it is not a file" if os.path.exists(path) else "there is no such file")
        if os.path.getsize(path) > _LARGEST:
            raise OSError(0, f"it is larger than {_LARGEST >> 20} MiB")
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        return {}, f"settings come from {path or 'a file without a name'}, which cannot be read: {error.strerror}"
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        return {}, f"settings come from {path}, which is no YAML that can be read{where}"
    if content is None:
        return {}, ""
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        return {}, f"settings come from {path}, which holds no settings by name"
    return content, ""
