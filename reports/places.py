"""Where to read what a verdict names: what was unpacked is named by its file, as `X.zip/baseline`, and read elsewhere.

A table of this process, as a mount table is one: renderers show names, and those that read recordings ask for their
place.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

_UNPACKED: dict[str, str] = {}  # folder -> the name of the file that was unpacked there


def unpacked(folder: str, name: str) -> None:
    """From now on what lies in `folder` is shown as lying in the file `name`."""
    _UNPACKED[folder] = name


def of(name: str) -> str:
    """Where to read what is shown as `name`."""
    for folder, file in _UNPACKED.items():
        if name == file or name.startswith(f"{file}{os.sep}"):
            return f"{folder}{name[len(file) :]}"
    return name


def displayed(value: Any) -> Any:
    """The same value, of dictionaries, lists and dataclasses, with the names for the folders."""
    if not _UNPACKED:
        return value
    if isinstance(value, str):
        for folder, file in _UNPACKED.items():
            value = value.replace(folder, file)
        return value
    if isinstance(value, Mapping):
        return {name: displayed(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(map(displayed, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = (field.name for field in dataclasses.fields(value) if field.init)
        return dataclasses.replace(value, **{name: displayed(getattr(value, name)) for name in fields})
    return value
