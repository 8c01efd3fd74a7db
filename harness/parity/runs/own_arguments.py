"""Engines' own arguments among the settings of a scenario: the fix gives each side that runs the engine a mapping."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from harness import envs
from harness.config import NeedsMapping
from harness.envs.environment import Environment
from harness.envs.stored_arguments import accepted, of_tables
from harness.errors import BadInput, closest, mistakes_of, nearest
from scenarios.engines import registry


@contextlib.contextmanager
def mapped_on(sides: Mapping[str, str]) -> Iterator[None]:
    """Rewrite each error about an engine's own argument for the command at hand.

    `sides`: option that gives a side a mapping -> the backend of this side; empty for a command without one.
    """
    try:
        yield
    except BadInput as error:
        for mistake in mistakes_of(error):
            if isinstance(mistake, NeedsMapping):
                _rewrite(mistake, sides)
        raise


def _rewrite(mistake: NeedsMapping, sides: Mapping[str, str]) -> None:
    """Say which argument the engine has, and give the mapping to the sides that run it."""
    title = registry.get(mistake.engine).title
    options = [option for option, backend in sides.items() if _engine_of(backend) == mistake.engine]
    if not options:
        why = f"no side here runs {title}" if sides else "engines that are kept up take no mapping"
        mistake.message, mistake.fix = f"{mistake.message.partition(';')[0]}; {why}", ""
        return
    taken = _arguments(mistake.engine, [sides[option] for option in options])
    if not taken or mistake.name in taken:
        mistake.fix = mistake.mapped(options)
        return
    mistake.message = f"{title} has no argument {mistake.name!r}{closest(mistake.name, taken)}"
    near = nearest(mistake.name, taken)
    mistake.fix = mistake.named(near) if near else ""


def _engine_of(backend: str) -> str:
    """Return the engine of a backend; empty for one that is misspelled."""
    with contextlib.suppress(BadInput):
        return envs.parse(backend).engine
    return ""


def _arguments(engine: str, backends: list[str]) -> tuple[str, ...]:
    """Return what the engine takes, by the list of the first environment that has one; empty where none is stored."""
    if registry.get(engine).embedded:
        return of_tables(engine).engine
    names = {envs.parse(backend).environment or engine for backend in backends}
    found_lists = (accepted(environment, ask=False).engine for environment in _environments(engine, names))
    return next(filter(None, found_lists), ())


def _environments(engine: str, names: set[str]) -> list[Environment]:
    """Return the environments of an engine, those of these names first."""
    own = [environment for environment in envs.all_environments() if environment.engine == engine]
    return sorted(own, key=lambda environment: environment.name not in names)
