"""Calls a function for each module of interest right after it ran, before other modules can import names from it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class Finder:
    """A finder on `sys.meta_path` that finds nothing itself: it calls `imported` after each module of interest has
    run.
    """

    def __init__(self, modules: Iterable[str], imported: Callable[[ModuleType], None]) -> None:
        self.modules, self.imported = set(modules), imported
        self._busy: set[str] = set()

    def install(self) -> None:
        """Start, and report the modules that are imported already."""
        sys.meta_path.insert(0, self)
        for name in sorted(self.modules & set(sys.modules)):
            module = sys.modules[name]
            if not getattr(getattr(module, "__spec__", None), "_initializing", False):
                self._report_import(module)

    def remove(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in self.modules or name in self._busy:
            return None
        self._busy.add(name)
        try:
            for finder in list(sys.meta_path):
                find = None if finder is self else getattr(finder, "find_spec", None)
                spec: ModuleSpec | None = None if find is None else find(name, path, target)
                if spec is not None:
                    self._follow(spec.loader)
                    return spec
            return None
        finally:
            self._busy.discard(name)

    def _follow(self, loader: Any) -> None:
        if isinstance(loader, type):  # a loader class of built-in modules: one for all of them
            return
        try:
            run, before = loader.exec_module, vars(loader).get("exec_module")  # another finder may have replaced it too
        except (AttributeError, TypeError):  # a namespace package has no loader; some loaders do not allow it
            return

        def exec_module(module: ModuleType) -> None:
            if before is None:
                vars(loader).pop("exec_module", None)
            else:
                loader.exec_module = before
            run(module)
            self._report_import(module)

        with contextlib.suppress(AttributeError, TypeError):
            loader.exec_module = exec_module

    def _report_import(self, module: ModuleType) -> None:
        self.modules.discard(module.__name__)
        self.imported(module)
        if not self.modules:
            self.remove()
