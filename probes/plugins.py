"""Finds, loads and names what other packages bring through entry points, and contains their failures.

A plug-in is somebody else's code. Whatever it raises, even `SystemExit`, becomes a `PluginError` that names it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from probes.errors import AddressedError


class PluginError(AddressedError):
    """What is wrong with a plug-in, in one sentence that names it and its package.

    `name`: of its entry point. `title`: for a table. `fix`: what to do about its package.
    """

    def __init__(self, message: str, name: str, title: str, fix: str) -> None:
        super().__init__(message, fix)
        self.name, self.title = name, title

    def __reduce__(self) -> tuple[Any, ...]:
        return PluginError, (str(self), self.name, self.title, self.fix)


class Unfit(Exception):
    """What a plug-in brings cannot be used. The message says why."""


@dataclass(frozen=True)
class Plugin:
    """An entry point of another package."""

    entry: EntryPoint

    @property
    def distribution(self) -> str:
        """Return the package's name and version; empty for a class that was named without an entry point."""
        return f"{self.entry.dist.name} {self.entry.dist.version}" if self.entry.dist else ""

    @property
    def kind(self) -> str:
        """Return check, cause, engine, framework or renderer."""
        return self.entry.group.rpartition(".")[2].removesuffix("s")

    def __str__(self) -> str:
        if self.entry.name == self.entry.value:
            return f"the {self.kind} {self.entry.value}"
        package = self.distribution or "an unnamed package"
        return f"the {self.kind} plug-in {self.entry.name!r} of {package} ({self.entry.value})"

    def error(self, what: str, title: str = "") -> PluginError:
        """Return an error that says what is wrong. `title`: the part of the plug-in, where it brings several."""
        named = f"plug-in {self.distribution or self.entry.name} ({title or self.entry.value})"
        package = self.entry.dist.name if self.entry.dist else "its package"
        return PluginError(
            f"{self} {what}", self.entry.name, named, f"upgrade or uninstall {package}, or tell its authors"
        )

    @contextlib.contextmanager
    def guarded(self, doing: str = "raised", *, allowed: tuple[type[BaseException], ...] = ()) -> Iterator[None]:
        """Raise PluginError for whatever the plug-in's code raises. `allowed`: exceptions that it may raise."""
        try:
            yield
        except BaseException as error:  # SystemExit and others too
            if isinstance(error, (KeyboardInterrupt, BrokenPipeError, PluginError, *allowed)):
                raise
            raise self.error(f"{doing} {_described(error)}") from error

    def guard(
        self, function: Callable[..., Any], *, allowed: tuple[type[BaseException], ...] = ()
    ) -> Callable[..., Any]:
        """Return the plug-in's function, run under `guarded`."""

        def call(*arguments: Any, **named: Any) -> Any:
            with self.guarded(allowed=allowed):
                return function(*arguments, **named)

        return call

    def load(self) -> Any:
        with self.guarded("cannot be loaded:"):
            return self.entry.load()


def installed(group: str) -> list[Plugin]:
    """Return every plug-in of a group, sorted by name."""
    return sorted(map(Plugin, entry_points(group=group)), key=lambda plugin: (plugin.entry.name, plugin.distribution))


def load(group: str, take: Callable[[Plugin, Any], None]) -> tuple[PluginError, ...]:
    """Pass the value of each plug-in of a group to `take`, and return the errors of those that failed.

    `take` raises Unfit for a value that it cannot use.
    """
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
    """Return the error for a plug-in whose name is taken already."""
    return Unfit(f"the name {name!r} is taken by {home}")


def _described(error: BaseException) -> str:
    try:
        message = " ".join(str(error).split())[:500]
    except Exception:  # its own text may be broken, too
        message = ""
    if isinstance(error, Unfit):
        return message
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
