"""What starts TRL's processes and in which precision: torchrun, accelerate and its files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.frameworks.argv import Start, option
from harness.frameworks.options import dashed
from harness.frameworks.settings import SHELL
from harness.frameworks.trl.traps import MIXED, PROCESSES

_LARGEST = 1 << 20  # largest YAML file that is read, in bytes
# Words of a command that may start several processes.
_SEVERAL = frozenset({
    "accelerate", "accelerate.commands.launch", "deepspeed", "mpiexec", "mpirun", "srun", "submit",
    "torch.distributed.launch", "torch.distributed.run", "torchrun", "trl",
})  # fmt: skip
_SPAWNS = re.compile(r"\b(?:notebook_launcher|debug_launcher|elastic_launch|start_processes|spawn)\b")
_UNSAID = "the command does not say how many there are"


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


def launched(
    start: Start, is_trl_command: bool, source: str, package: Path | None, environ: Mapping[str, str]
) -> tuple[dict[str, object], dict[str, str]]:
    """What is known about the processes and their precision, and what is not known -> why.

    `is_trl_command`: whether it is the `trl` command, which passes unknown options to accelerate. `source`: text of the
    script. `package`: TRL's own. `environ`: of the job.
    """
    given_words = start.arguments if is_trl_command else ()
    programs = {os.path.basename(word) for word in start.before}
    accelerated = (
        is_trl_command
        or "accelerate" in programs
        or any(word.startswith("accelerate.commands") for word in start.before)
    )
    launch_settings, why = _accelerate(start.before, given_words, environ, package) if accelerated else ({}, "")
    launch_settings = {**_torchrun(start.before), **launch_settings}
    if unknown := next((word for word in start.before if SHELL.match(word)), ""):
        why = why or f"{start.entry} is started by {unknown}, which only the shell knows"
    launch_settings.setdefault("mixed_precision", environ.get("ACCELERATE_MIXED_PRECISION", ""))
    known_values: dict[str, object] = {}
    unsure: dict[str, str] = {}
    if why or SHELL.search(launch_settings["mixed_precision"]):
        unsure[MIXED] = why or f"mixed_precision is {launch_settings['mixed_precision']}, which only the shell knows"
    elif launch_settings["mixed_precision"]:
        known_values[MIXED] = launch_settings["mixed_precision"]
    count = launch_settings.get("num_processes", "")
    several = {*programs, os.path.basename(start.entry)} & _SEVERAL or _SPAWNS.search(source)
    if count.isdigit():
        known_values[PROCESSES] = int(count)
    elif count or several or "WORLD_SIZE" in environ or why:
        unsure[PROCESSES] = _UNSAID
    return known_values, unsure


def _accelerate(
    words: Sequence[str], given_words: Sequence[str], environ: Mapping[str, str], package: Path | None
) -> tuple[dict[str, str], str]:
    """(`num_processes` and `mixed_precision` as accelerate will set them, why they are not known).

    Without a file, accelerate uses the one that `accelerate config` wrote.
    """
    file = option(words, "--config_file", "--config-file") or option(given_words, "--config_file", "--config-file")
    named = option(given_words, "--accelerate_config")
    if named and not file:
        shipped = package.parent / "accelerate_configs" / f"{named}.yaml" if package else None
        file = str(shipped) if shipped and shipped.is_file() and not os.path.isfile(named) else named
    file = file or next(filter(os.path.isfile, _defaults(environ)), "")
    file_settings, why = mapping(file) if file and not SHELL.search(file) else ({}, "")
    if SHELL.search(file):
        why = f"settings come from {file}, which only the shell knows"
    launch_settings = {}
    for name in ("num_processes", "mixed_precision"):
        text = option(words, f"--{name}", f"--{name.replace('_', '-')}") or option(given_words, f"--{name}")
        if text or file_settings.get(name) is not None:
            value = file_settings.get(name)
            launch_settings[name] = text or (str(value).lower() if isinstance(value, bool) else str(value))
            launch_settings[name] = "no" if launch_settings[name] == "false" else launch_settings[name]  # YAML's `no`
    return launch_settings, why


def _defaults(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the files that `accelerate config` may have written."""
    cache = environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME", ""), ".cache")
    home = environ.get("HF_HOME") or os.path.join(cache, "huggingface")
    for end in ("json", "yaml", "yml"):  # JSON is read as YAML
        yield os.path.join(home, "accelerate", f"default_config.{end}")


def _torchrun(before: Sequence[str]) -> dict[str, str]:
    """The number of torchrun's processes, if the command gives it as a number."""
    launch_options = {
        dashed_option.name.replace("-", "_"): dashed_option.value.split(" ")[0] for dashed_option in dashed(before)
    }
    each, nodes = launch_options.get("nproc_per_node", ""), launch_options.get("nnodes", "1")
    modules = ("torch.distributed.run", "torch.distributed.launch")
    started = any(os.path.basename(word) == "torchrun" or word in modules for word in before)
    return {"num_processes": str(int(each) * int(nodes))} if started and each.isdigit() and nodes.isdigit() else {}
