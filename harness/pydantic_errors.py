"""Turns pydantic's error about a user's file or option into one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

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


def sentences(error: pydantic.ValidationError, where: str, schema: Mapping[str, Any] | None = None) -> list[str]:
    """A sentence about each error. `where`: the file that was read. `schema`: of what the file may hold, as
    `model_json_schema` returns it; with it, the sentence about an unknown key says which ones there are."""
    return [_sentence(detail, where, schema or {}) for detail in error.errors()]


def _sentence(detail: ErrorDetails, where: str, schema: Mapping[str, Any]) -> str:
    name, kind = _key(detail), detail["type"]
    if kind == "missing":
        return f"{where}: {name} is missing"
    if kind == "extra_forbidden":
        *sections, last = detail["loc"]
        tables = [schema, *schema.get("$defs", {}).values()]
        anywhere = {key for table in tables for key in table.get("properties", ())}
        there = _keys(schema, sections)
        near = closest(str(last), there)
        listed = f"; known keys: {', '.join(there)}" if there else closest(str(last), sorted(anywhere - {last}))
        return f"{where}: unknown key {name}{near or listed}"
    return f"{where}: {name} = {_problem(detail)}"


def _keys(schema: Mapping[str, Any], sections: Sequence[int | str]) -> list[str]:
    """The keys of a section. `sections`: the names on the way to it, and the places in lists."""
    table = schema
    for section in sections:
        table = table.get("items", {}) if isinstance(section, int) else table.get("properties", {}).get(section, {})
        table = schema.get("$defs", {}).get(table.get("$ref", "").rpartition("/")[2], table)
    return list(table.get("properties", ()))


def problem(error: pydantic.ValidationError) -> str:
    """The value that the first error is about, and what was expected in its place."""
    return _problem(error.errors()[0])


def _problem(detail: ErrorDetails) -> str:
    expected = _EXPECTED.get(detail["type"].partition("_")[0])
    wanted = f"{expected} was expected" if expected else detail["msg"].replace("Input should be", "it should be")
    return f"{detail['input']!r}: {wanted}"
