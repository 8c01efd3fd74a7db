"""Turns pydantic's error about a user's file or option into one sentence."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from harness.errors import closest

if TYPE_CHECKING:
    import pydantic
    from pydantic_core import ErrorDetails

# Beginning of a pydantic error type -> what was expected.
_EXPECTED = {
    "string": "text", "int": "a whole number", "float": "a number", "bool": "true or false", "tuple": "a list",
    "list": "a list", "dict": "a table", "model": "a table", "dataclass": "a table",
}  # fmt: skip


def key(error: pydantic.ValidationError) -> str:
    """The key of the first error, with its section."""
    return _key(error.errors()[0])


def _key(detail: ErrorDetails) -> str:
    return ".".join(str(part) for part in detail["loc"])


def sentence(error: pydantic.ValidationError, where: str) -> str:
    """A sentence about the first error. `where`: the file that was read."""
    return sentences(error, where)[0]


def sentences(error: pydantic.ValidationError, where: str, valid_keys: Iterable[str] = ()) -> list[str]:
    """A sentence about each error. `where`: the file that was read. `valid_keys`: all known keys; the nearest are
    named."""
    return [_sentence(detail, where, {*valid_keys}) for detail in error.errors()]


def _sentence(detail: ErrorDetails, where: str, valid_keys: set[str]) -> str:
    name, kind = _key(detail), detail["type"]
    if kind == "missing":
        return f"{where}: {name} is missing"
    if kind == "extra_forbidden":
        last = str(detail["loc"][-1])  # the key may be known in another section
        return f"{where}: unknown key {name}{closest(last, sorted(valid_keys - {last}))}"
    return f"{where}: {name} = {_problem(detail)}"


def problem(error: pydantic.ValidationError) -> str:
    """The value that the first error is about, and what was expected in its place."""
    return _problem(error.errors()[0])


def _problem(detail: ErrorDetails) -> str:
    expected = _EXPECTED.get(detail["type"].partition("_")[0])
    wanted = f"{expected} was expected" if expected else detail["msg"].replace("Input should be", "it should be")
    return f"{detail['input']!r}: {wanted}"
