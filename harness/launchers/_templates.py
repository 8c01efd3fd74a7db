"""The shell of the scripts: what runs on a node stands in `templates/`, what a user chose is filled in here."""

from __future__ import annotations

from functools import lru_cache
from typing import Any


def rendered(name: str, **values: object) -> str:
    """Return the template `<name>.j2` with these values. A value that is missing raises `jinja2.UndefinedError`."""
    text: str = _environment().get_template(f"{name}.j2").render(values)
    return text


@lru_cache(maxsize=1)
def _environment() -> Any:
    """Jinja2 with brackets that bash does not have: `@{ value }@` and `@% if %@`."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("harness.launchers", "templates"),
        undefined=StrictUndefined,
        autoescape=False,  # shell: values are quoted by shlex where they are made
        variable_start_string="@{",
        variable_end_string="}@",
        block_start_string="@%",
        block_end_string="%@",
        comment_start_string="@{#",
        comment_end_string="#}@",
        trim_blocks=True,
        keep_trailing_newline=True,
    )
