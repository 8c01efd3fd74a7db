"""A job's configuration as far as it is known, which is what the traps judge.

It is read from a plain command before the start, and from the `configuration` event once the job has resolved it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

SHELL = re.compile(r"[$`]")  # a value with one of these is known only to the shell


@dataclass(frozen=True)
class Settings:
    """A job's settings.

    `values`: by the framework's own names; an absent setting has its default. `unknown`: setting -> why its value is
    not known. `unread`: why an absent setting may not have its default; empty if it has. `variables`: of the
    environment. `seed`: of the prompts' order, if the harness gives one. `places`: setting -> where it is set, in
    words, if the reader knows.
    """

    values: Mapping[str, object] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)
    unread: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    seed: int | None = None
    places: Mapping[str, str] = field(default_factory=dict)

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a setting; `default` if it is absent or null."""
        value = self.values.get(name)
        return default if value is None else value

    def number(self, name: str, default: int) -> int | None:
        """A setting as a whole number; None if it is not one."""
        value = self.get(name, default)
        return int(value) if re.fullmatch(r"-?\d+", str(value)) else None

    def on(self, name: str) -> bool:
        """Whether a switch is on."""
        return str(self.get(name, False)).lower() in ("true", "1", "yes", "on", "t", "y")

    def why_unknown(self, *names: str) -> str:
        """Why one of these settings is not known; empty if each is given or has its default."""
        for name in names:
            for unknown_name, why in self.unknown.items():
                if unknown_name == name or name.startswith(f"{unknown_name}.") or unknown_name.startswith(f"{name}."):
                    return why
            if name not in self.values and self.unread:
                return self.unread
        return ""


def leaves(value: Mapping[str, Any], under: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value) of everything that is not a mapping, and of empty mappings."""
    for name, child in value.items():
        here = f"{under}.{name}" if under else str(name)
        if isinstance(child, dict) and child:
            yield from leaves(child, here)
        else:
            yield here, child


def parsed(text: str) -> Any:
    """The value that a word of a command spells in YAML; the word itself if it spells none."""
    import yaml

    word = unquoted(text)
    if word in ("None", "none"):
        return None
    try:  # Hydra writes {a:1}, YAML {a: 1}
        return yaml.safe_load(re.sub(r"(?<=[\w}\]\"']):(?=[^\s/])", ": ", word) if word[:1] in "{[" else word)
    except (yaml.YAMLError, ValueError, RecursionError):
        return word


def unquoted(value: str) -> str:
    """A value without quotes around the whole of it."""
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value
