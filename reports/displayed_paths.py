"""Maps displayed paths to readable ones: an unpacked archive is shown by its file, as in `X.zip/baseline`.

The table belongs to this process, like a mount table. Renderers show the displayed names; readers of recordings ask
for the real place.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

_UNPACKED: dict[str, str] = {}  # folder -> the name of the file that was unpacked there


def unpacked(folder: str, name: str) -> None:
    """From now on, show what is in `folder` as being in the file `name`."""
    _UNPACKED[folder] = name


def of(name: str) -> str:
    """Return where to read what is shown as `name`."""
    for folder, file in _UNPACKED.items():
        if name == file or name.startswith(f"{file}{os.sep}"):
            return f"{folder}{name[len(file) :]}"
    return name


def displayed(value: Any) -> Any:
    """Return a value of dictionaries, lists and dataclasses with displayed names instead of folders."""
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
