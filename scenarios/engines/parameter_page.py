"""Writes the tables of docs/reference/parameters.md from the canonical table: `python -m
scenarios.engines.parameter_page`.

Run it at the root of the repository after a change of the table or of an engine's names. It rewrites the page in
place.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

from scenarios.engines import registry
from scenarios.engines.canonical import CARRIED, ENGINE, SAMPLING, Parameter
from scenarios.settings import Engine, Sampling

PAGE = Path("docs/reference/parameters.md")
COMMAND = "python -m scenarios.engines.parameter_page"


def table(parameters: tuple[Parameter, ...]) -> str:
    engines = [spec for spec in map(registry.get, registry.BUILT_IN) if not spec.embedded]
    settings = () if parameters is CARRIED else ("canonical", "default", "values")  # no scenario has the carried ones
    head = ["concept", *settings, *(spec.title for spec in engines), "the trap"]
    rows = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for parameter in parameters:
        cells = [
            parameter.concept,
            *((f"`{parameter.name}`", _default(parameter), _values(parameter)) if settings else ()),
            *(_cell(parameter, spec.name) for spec in engines),
        ]
        rows.append(f"| {' | '.join([*cells, parameter.trap])} |")
    return "\n".join(rows)


def rewritten(page: str) -> str:
    """Return the page with its tables made again."""
    for part, parameters in (("engine", ENGINE), ("sampling", SAMPLING), ("carried", CARRIED)):
        block = f"<!-- made by {COMMAND}: {part} -->\n{table(parameters)}\n<!-- end -->"
        old = re.search(rf"<!-- made by [^\n]*: {part} -->.*?<!-- end -->", page, flags=re.S)
        assert old is not None, f"{PAGE} has no table of the {part}"
        page = page.replace(old.group(), block)
    return page


def _default(parameter: Parameter) -> str:
    settings: Any = Engine() if parameter.part == "engine" else Sampling()
    value = dataclasses.asdict(settings).get(parameter.name)
    return "" if value is None else f"`{list(value) if isinstance(value, tuple) else value}`"


def _values(parameter: Parameter) -> str:
    words = ["above 0"] if parameter.positive else []
    if parameter.low is not None:
        words.append(f"at least {parameter.low}" if parameter.high is None else f"{parameter.low} to {parameter.high}")
    if parameter.off is not None:
        words.append(f"{parameter.off} is off")
    if parameter.place:
        words.append(f"filter {parameter.place}")
    if parameter.draws:
        words.append("the coupled draw applies it" if parameter.coupled else "refused in coupled mode")
    return "; ".join(words)


def _cell(parameter: Parameter, engine: str) -> str:
    return ": ".join(
        filter(None, (f"`{parameter.native(engine)}`" if parameter.native(engine) else "", parameter.note(engine)))
    )


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
