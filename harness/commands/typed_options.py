"""Which options a user typed, and the refusal of those that would change nothing beside the others.

A job of hours must not run without what was asked of it.
"""

from __future__ import annotations

from collections.abc import Iterable

import typer

from harness.errors import BadInput, refuse

WORDS = "harness.words"  # in a context's meta: the words of the command, which the parser takes apart


def begins_a_job(context: typer.Context) -> bool:
    """Whether the user typed the -- before a job's command."""
    return "--" in context.meta.get(WORDS, ())


def typed(context: typer.Context) -> list[str]:
    """Return the names of the parameters that were typed, not left at a default or taken from the environment."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]


def spelled(context: typer.Context, name: str) -> str:
    """Return an option as the user typed it: --no-imports of `imports`, which is false."""
    parameter = next(item for item in context.command.params if item.name == name)
    negated = context.params[name] is False and parameter.secondary_opts
    return max(parameter.secondary_opts if negated else parameter.opts, key=len)


def refuse_idle(context: typer.Context, names: Iterable[str], why: str, fix: str = "") -> None:
    """Raise BadInput for those of the options that were typed: `why` they would change nothing.

    fix: the option that they need; without one, the fix leaves them out.
    """
    options = [spelled(context, name) for name in typed(context) if name in names]
    message = f"{', '.join(options)}: {why}"
    refuse([BadInput(message, fix=fix, instead="" if fix else option) for option in options])
