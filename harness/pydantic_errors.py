"""Turns pydantic's error about a user's file or option into one sentence."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from harness.errors import closest

if TYPE_CHECKING:
    import pydantic

# Beginning of a pydantic error type -> what was expected.
_EXPECTED = {
    "string": "text", "int": "a whole number", "float": "a number", "bool": "true or false", "tuple": "a list",
    "list": "a list", "dict": "a table", "model": "a table", "dataclass": "a table",
}  # fmt: skip


def key(error: pydantic.ValidationError) -> str:
    """The key of the first error, with its section."""
    return ".".join(str(part) for part in error.errors()[0]["loc"])


def sentence(error: pydantic.ValidationError, where: str, valid_keys: Iterable[str] = ()) -> str:
    """A sentence about the first error. `where`: the file that was read. `valid_keys`: all known keys; the nearest
    are named."""
    first = error.errors()[0]
    name, kind = key(error), first["type"]
    if kind == "missing":
        return f"{where}: {name} is missing"
    if kind == "extra_forbidden":
        last = str(first["loc"][-1])  # the key may be known in another section
        return f"{where}: unknown key {name}{closest(last, sorted({*valid_keys} - {last}))}"
    return f"{where}: {name} = {problem(error)}"


def problem(error: pydantic.ValidationError) -> str:
    """The value that the first error is about, and what was expected in its place."""
    first = error.errors()[0]
    expected = _EXPECTED.get(first["type"].partition("_")[0])
    wanted = f"{expected} was expected" if expected else first["msg"].replace("Input should be", "it should be")
    return f"{first['input']!r}: {wanted}"
