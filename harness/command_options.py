"""A command's options, declared once: the fields of a frozen dataclass whose annotations Typer reads.

- `of_options` makes a command's parameters of the fields.
- `command_options` turns options back into words for `command_line`, which a recording keeps to name the command that
  repeats it.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import shlex
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from probes import redaction

T = TypeVar("T")


def option(
    default: Any,
    name: str = "",
    *,
    parameter: Any = None,
    read: Callable[[Any], Any] | None = None,
    written: Callable[[Any], str | Path] | None = None,
    repeated: bool = True,
) -> Any:
    """Return a field of options whose parameter has another name, or holds another type than the field.

    `name`: of the parameter; default: the field's. `parameter`: the parameter's type. `read` gives the field's value of
    the parameter's, and `written` the reverse. `repeated`: whether a command that repeats a run names the option.
    """
    metadata = {"name": name, "parameter": parameter, "read": read, "written": written, "repeated": repeated}
    return dataclasses.field(default=default, metadata=metadata)


class _Parameters:
    """The fields of one dataclass as parameters. Fields that are not annotated for Typer are none."""

    def __init__(self, kind: type) -> None:
        hints = typing.get_type_hints(kind, include_extras=True)
        declared = {field.name: field for field in dataclasses.fields(kind)}
        # A class's own options come before those that it shares with others.
        names = dict.fromkeys(name for base in kind.__mro__ for name in inspect.get_annotations(base))
        self.kind = kind
        self.fields = {
            name: declared[name] for name in names if name in declared and typing.get_origin(hints[name]) is Annotated
        }
        self.parameters = [_parameter(field, hints[field.name]) for field in self.fields.values()]

    def options(self, values: Mapping[str, Any]) -> Any:
        """Return the options that a user gave. An empty text stands for an option that has no default."""
        chosen = {}
        for field in self.fields.values():
            value = values[field.metadata.get("name") or field.name]
            if value == "" and field.default is None:
                value = None
            read = field.metadata.get("read")
            chosen[field.name] = read(value) if read else value
        return self.kind(**chosen)


def _parameter(field: dataclasses.Field[Any], hint: Any) -> inspect.Parameter:
    default, written = field.default, field.metadata.get("written")
    if default is dataclasses.MISSING:
        default = inspect.Parameter.empty
    elif field.metadata.get("read") and written:
        default = written(default)
    if parameter := field.metadata.get("parameter"):
        hint = Annotated[parameter, *hint.__metadata__]
    name = field.metadata.get("name") or field.name
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def options_of(kind: type[T], values: Mapping[str, Any]) -> T:
    """Return options of the values that a command line gave its parameters. Raises BadInput for a wrong value."""
    return _Parameters(kind).options(values)  # type: ignore[no-any-return]


def of_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that has the fields of its argument `options` as parameters, at that argument's place."""
    hints = typing.get_type_hints(command, include_extras=True)
    group = _Parameters(hints["options"])

    @functools.wraps(command)
    def of_parameters(**values: Any) -> None:
        plain = {name: values[name] for name in hints if name in values and name != "options"}
        command(**plain, options=group.options(values))

    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        if parameter.name == "options":
            parameters += group.parameters
        else:
            annotation = hints[parameter.name]
            parameters.append(parameter.replace(annotation=annotation, kind=inspect.Parameter.KEYWORD_ONLY))
    # Typer reads the signature and the annotations.
    of_parameters.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    of_parameters.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return of_parameters


def command_options(options: Any) -> dict[str, Any]:
    """Return the options that differ from their defaults, as `command_line` takes them."""
    arguments: dict[str, Any] = {}
    for field in _Parameters(type(options)).fields.values():
        value, written = getattr(options, field.name), field.metadata.get("written")
        if value == field.default or value == "" or not field.metadata.get("repeated", True):
            continue
        name = field.metadata.get("name") or field.name
        if value is False:
            arguments[f"no_{name}"] = True
        else:
            arguments[name] = written(value) if written else value
    return arguments


def command_line(*words: str | Path, **options: Any) -> str:
    """Return `harness WORDS --option value ...`, quoted for a shell, without secrets."""
    return shlex.join(redaction.arguments(["harness", *map(_text, words), *option_words(options)]))


def option_words(options: Mapping[str, Any]) -> list[str]:
    """Return options as words of a command.

    None and False leave an option out, True makes it a flag, a list repeats it. A Path is written in full, so that the
    command does the same from every folder.
    """
    line: list[str] = []
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if value is None or value is False:
            continue
        if value is True:
            line.append(option)
        else:
            for item in value if isinstance(value, (list, tuple)) else (value,):
                line += [option, _text(item)]
    return line


def scenario_word(name: str) -> str | Path:
    """Return a scenario as `command_line` takes it: a name of the catalog, or a file."""
    return Path(name) if name.endswith(".toml") else name


def _text(value: Any) -> str:
    return os.path.abspath(value.expanduser()) if isinstance(value, Path) else str(value)


def duration(seconds: float) -> str:
    """Return seconds as `--stall` reads them."""
    return f"{seconds:.3f}".rstrip("0").rstrip(".") + "s" if seconds else "0"
