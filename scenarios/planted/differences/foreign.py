"""Imports a Python file of another author as a module, in the controller and in an engine's process."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def module_name(path: Path) -> str:
    """Return the name under which the file is imported, the same in every process."""
    return "from_a_file_" + "".join(letter if letter.isalnum() else "_" for letter in str(path.resolve()))


def imported(path: Path) -> ModuleType:
    """Return the module in the file `path`, executed again. Raises whatever its execution raises."""
    name = module_name(path)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it is executed: dataclasses look their module up there
    try:
        spec.loader.exec_module(module)
    finally:
        sys.modules.pop(name, None)
    return module
