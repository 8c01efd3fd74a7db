"""YAML files that a command names and that settings come from: read as data, by the rules of who will read them.

TRL: `--config`, whose keys are defaults of its parser. verl: a file of Hydra's that builds on `ppo_trainer`.
accelerate: the number of processes and the mixed precision. What is not read is told, a sentence each.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.doctor.frameworks.options import Option

LARGEST = 1 << 20  # bytes
MOST = 20_000  # settings of one file: more is no configuration, and aliases can make any number of a few lines
_BUILT_ON = "ppo_trainer"  # verl's own, whose defaults are known
_DEEPEST = 8  # files that build on each other


def mapping(path: str | Path) -> tuple[dict[str, Any], str]:
    """(what a YAML file holds, why it is not read): one of the two is empty."""
    import yaml  # type: ignore[import-untyped]

    try:
        if not os.path.isfile(path):
            raise OSError(0, "it is no file" if os.path.exists(path) else "there is no such file")
        if os.path.getsize(path) > LARGEST:
            raise OSError(0, f"it is larger than {LARGEST >> 20} MiB")
        found = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        return {}, f"settings come from {str(path) or 'a file without a name'}, which cannot be read: {error.strerror}"
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        return {}, f"settings come from {path}, which is no YAML that can be read{where}"
    if found is None:
        return {}, ""
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        return {}, f"settings come from {path}, which holds no settings by name"
    return found, ""


def leaves(value: Mapping[str, Any], under: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted name -> value of everything that is no mapping, and of empty ones."""
    for name, one in value.items():
        here = f"{under}.{name}" if under else str(name)
        if isinstance(one, dict) and one:
            yield from leaves(one, here)
        else:
            yield here, one


def hydra(words: Sequence[str], main: Path | None) -> tuple[list[Option], list[str], bool]:
    """(settings, what is not read, whether a file of the user's own is the whole of it) of verl's configuration files.
    `main`: the file with `hydra.main`, beside which Hydra looks for a relative `--config-path`."""
    name = (named(words, "--config-name", "-cn") or _BUILT_ON).removesuffix(".yaml")
    path, more = named(words, "--config-path", "-cp"), named(words, "--config-dir", "-cd")
    if rerun := named(words, "--experimental-rerun"):
        return [], [f"settings come from {rerun}, which is not read"], False
    if not (path or more) and name == _BUILT_ON:
        return [], [], False
    shell = next((one for one in (path, more, name) if "$" in one or "`" in one), "")
    if shell:
        return [], [f"settings come from {shell}, which only the shell knows"], False
    folders = []
    if path and (os.path.isabs(path) or main is not None):
        folders.append(Path(path) if os.path.isabs(path) or main is None else main.parent / path)
    folders += [Path(more)] if more else []
    if path and not folders:
        return [], [f"settings come from {path}, which is not read: Hydra looks for it beside verl's own files"], False
    found = next((one / f"{name}.yaml" for one in folders if (one / f"{name}.yaml").is_file()), None)
    if found is None and name == _BUILT_ON and not path:
        return [], [f"settings come from {more}, which is not read"], False
    if found is None and not folders:
        return [], [f"settings come from {name}, which is not read"], False
    if found is None:
        return [], [f"settings come from {folders[0] / name}.yaml, which cannot be read: there is no such file"], False
    settings: dict[str, Option] = {}
    unread: list[str] = []
    whole = not _built(found, settings, unread, 0)
    return list(settings.values()), unread, whole


def _built(file: Path, settings: dict[str, Option], unread: list[str], depth: int) -> bool:
    """Add what a file says, after what it builds on; whether that is verl's own configuration in the end."""
    held, why = mapping(file)
    if why or depth > _DEEPEST or file.read_text(encoding="utf-8").lstrip().startswith("# @package"):
        unread.append(why or f"settings come from {file}, which is not read")
        return True
    listed = held.pop("defaults", [])
    held.pop("hydra", None)
    listed = listed if isinstance(listed, list) else [listed]
    known = False
    for one in listed if "_self_" in listed else [*listed, "_self_"]:  # Hydra puts itself last where it is not told
        if one == "_self_":
            _overlay(settings, held, file, unread)
        elif one == _BUILT_ON and not (file.stem == _BUILT_ON and depth == 0):
            known = True
        elif isinstance(one, str) and "@" not in one and (file.parent / f"{one}.yaml").is_file():
            known = _built(file.parent / f"{one}.yaml", settings, unread, depth + 1) or known
        else:
            said = ": ".join(f"{key}: {value}" for key, value in one.items()) if isinstance(one, dict) else one
            unread.append(f"settings come from {said} in the defaults of {file}, which is not read")
    if not known and depth == 0 and not unread:
        unread.append(f"{file} does not build on verl's {_BUILT_ON}, whose defaults are known here")
    return known


def _overlay(settings: dict[str, Option], held: Mapping[str, Any], file: Path, unread: list[str]) -> None:
    for count, (name, value) in enumerate(leaves(held)):
        if count >= MOST:
            unread.append(f"settings come from {file}, which holds more than {MOST} of them")
            return
        if value != {}:
            settings[name] = Option("++", name, spelled(value))


def spelled(value: Any) -> str:
    """A value of YAML's as Hydra's command line would have it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def accelerate(words: Sequence[str], given: Sequence[str], environ: Mapping[str, str], trl: Path | None,
               started: bool) -> tuple[dict[str, str], str]:  # fmt: skip
    """(`num_processes` and `mixed_precision` as accelerate will have them, why they cannot be told).

    `words`: before the script, of `accelerate launch`; `given`: of the `trl` command, which hands on what it does not
    know; `started`: accelerate starts the job at all. Without a file it takes the one that `accelerate config` wrote.
    """
    if not started:
        return {}, ""
    file = named(words, "--config_file", "--config-file") or named(given, "--config_file", "--config-file")
    own = named(given, "--accelerate_config")
    if own and not file:
        shipped = trl.parent / "accelerate_configs" / f"{own}.yaml" if trl else None
        file = str(shipped) if shipped and shipped.is_file() and not os.path.isfile(own) else own
    if not file:
        home = environ.get("HF_HOME") or os.path.join(
            environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME", ""), ".cache"), "huggingface"
        )
        names = (os.path.join(home, "accelerate", f"default_config.{end}") for end in ("json", "yaml", "yml"))
        file = next(filter(os.path.isfile, names), "")  # JSON is YAML
    held, why = mapping(file) if file and not re.search(r"[$`]", file) else ({}, "")
    if file and re.search(r"[$`]", file):
        why = f"settings come from {file}, which only the shell knows"
    found = {name: spelled(held[name]) for name in ("num_processes", "mixed_precision") if held.get(name) is not None}
    for name in ("num_processes", "mixed_precision"):
        if told := named(words, f"--{name}", f"--{name.replace('_', '-')}") or named(given, f"--{name}"):
            found[name] = told
    return found, why


def named(words: Sequence[str], *names: str) -> str:
    """The value of the last of these options, `--name value` or `--name=value`; empty where there is none."""
    found = ""
    for place, word in enumerate(words):
        name, joined, value = word.partition("=")
        if name in names:
            found = value if joined else " ".join(words[place + 1 : place + 2])
    return found
