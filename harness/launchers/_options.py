"""The options of a launcher as one dataclass, whose fields are annotated as Typer expects of parameters."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable
from typing import Any

import typer


def of_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command whose parameters are the fields of its argument `options`, in order.

    The command may also take the `context`.
    """
    hints = typing.get_type_hints(command)
    kind, has_context = hints["options"], "context" in hints
    annotations = typing.get_type_hints(kind, include_extras=True)

    @functools.wraps(command)
    def of_parameters(**values: Any) -> None:
        context = {"context": values.pop("context")} if has_context else {}
        command(**context, options=kind(**values))

    parameters = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default,
            annotation=annotations[field.name],
        )
        for field in dataclasses.fields(kind)
    ]
    if has_context:
        parameters.insert(0, inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context))
    # Typer reads the signature and the annotations.
    of_parameters.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    of_parameters.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return of_parameters
