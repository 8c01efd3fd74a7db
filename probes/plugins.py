"""What other packages bring through entry points: found, loaded and named here, and kept from ending anything else.

A plug-in is somebody else's code. Whatever it raises, `SystemExit` too, becomes a `PluginError` that names it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any


class PluginError(Exception):
    """What is wrong with a plug-in, in one sentence that names it and its package. `name`: of its entry point; `title`:
    in a table; `fix`: what to do about its package."""

    def __init__(self, message: str, name: str, title: str, fix: str) -> None:
        super().__init__(message, name, title, fix)  # all, so that it travels between processes
        self.name, self.title, self.fix = name, title, fix

    def __str__(self) -> str:
        return str(self.args[0])


class Unfit(Exception):
    """What a plug-in brings cannot be used; the message says why."""


@dataclass(frozen=True)
class Plugin:
    """An entry point of another package."""

    entry: EntryPoint

    @property
    def distribution(self) -> str:
        """The package's name and version; empty for a class that was named without an entry point."""
        return f"{self.entry.dist.name} {self.entry.dist.version}" if self.entry.dist else ""

    @property
    def kind(self) -> str:
        """check, cause, engine, framework or renderer."""
        return self.entry.group.rpartition(".")[2].removesuffix("s")

    def __str__(self) -> str:
        if self.entry.name == self.entry.value:
            return f"the {self.kind} {self.entry.value}"
        package = self.distribution or "an unnamed package"
        return f"the {self.kind} plug-in {self.entry.name!r} of {package} ({self.entry.value})"

    def error(self, what: str, title: str = "") -> PluginError:
        """What is wrong with it. `title`: of what it brings, where it brings several."""
        named = f"plug-in {self.distribution or self.entry.name} ({title or self.entry.value})"
        package = self.entry.dist.name if self.entry.dist else "its package"
        return PluginError(
            f"{self} {what}", self.entry.name, named, f"upgrade or uninstall {package}, or tell its authors"
        )

    @contextlib.contextmanager
    def guarded(self, doing: str = "raised", *, allowed: tuple[type[BaseException], ...] = ()) -> Iterator[None]:
        """Raises PluginError for whatever the plug-in's code raises. `allowed`: what it is meant to raise."""
        try:
            yield
        except BaseException as error:  # SystemExit and what else may come
            if isinstance(error, (KeyboardInterrupt, BrokenPipeError, PluginError, *allowed)):
                raise
            raise self.error(f"{doing} {_described(error)}") from error

    def guard(
        self, function: Callable[..., Any], *, allowed: tuple[type[BaseException], ...] = ()
    ) -> Callable[..., Any]:
        """The plug-in's function, `guarded`."""

        def call(*arguments: Any, **named: Any) -> Any:
            with self.guarded(allowed=allowed):
                return function(*arguments, **named)

        return call

    def load(self) -> Any:
        with self.guarded("cannot be loaded:"):
            return self.entry.load()


def installed(group: str) -> list[Plugin]:
    """Every plug-in of a group, in the order of their names."""
    return sorted(map(Plugin, entry_points(group=group)), key=lambda plugin: (plugin.entry.name, plugin.distribution))


def load(group: str, take: Callable[[Plugin, Any], None]) -> tuple[PluginError, ...]:
    """Give to `take` what each plug-in of a group brings, and return why others bring nothing. `take` raises Unfit for
    what it cannot use."""
    refused = []
    for plugin in installed(group):
        try:
            value = plugin.load()
            with plugin.guarded("cannot be used:"):
                take(plugin, value)
        except PluginError as error:
            refused.append(error)
    return tuple(refused)


def name_taken(name: str, home: object) -> Unfit:
    """The name of what a plug-in brings is somebody's already."""
    return Unfit(f"the name {name!r} is taken by {home}")


def _described(error: BaseException) -> str:
    try:
        message = " ".join(str(error).split())[:500]
    except Exception:  # its own text may be broken, too
        message = ""
    if isinstance(error, Unfit):
        return message
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
