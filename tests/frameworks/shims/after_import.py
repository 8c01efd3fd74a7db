"""Calls a function on a module right after it was imported, so that a shim need not import anything by itself."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


class _Finder:
    def __init__(self) -> None:
        self.wanted: dict[str, list[Callable[[Any], None]]] = {}
        self.busy = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self.wanted or self.busy:
            return None
        self.busy = True
        try:
            for finder in list(sys.meta_path):
                spec = None if finder is self else finder.find_spec(name, path, target)
                if spec is not None and spec.loader is not None:
                    self._follow(name, spec.loader)
                    return spec
            return None
        finally:
            self.busy = False

    def _follow(self, name: str, loader: Any) -> None:
        run = loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            for call in self.wanted.pop(name, ()):
                call(module)

        loader.exec_module = exec_module


_finder = _Finder()


def after(name: str) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """Decorator: run the function with that module once it is there, now when it is."""

    def take(call: Callable[[Any], None]) -> Callable[[Any], None]:
        if name in sys.modules:
            call(sys.modules[name])
            return call
        if _finder not in sys.meta_path:
            sys.meta_path.insert(0, _finder)
        _finder.wanted.setdefault(name, []).append(call)
        return call

    return take
