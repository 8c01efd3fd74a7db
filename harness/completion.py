"""What a shell completes: names from the registries, read when the user asks for them."""

from __future__ import annotations

import typer


def engines(incomplete: str) -> list[str]:
    """Names of engines."""
    from scenarios.engines import registry

    return [name for name in registry.names() if name.startswith(incomplete)]


def engines_with_environments(incomplete: str) -> list[str]:
    """Names of engines for which an environment can be made."""
    from scenarios.engines import registry

    return [name for name in registry.names(embedded=False) if name.startswith(incomplete)]


def faults(context: typer.Context, incomplete: str) -> list[str]:
    """Names of planted faults, of the suite that the command line names so far; without one, of that by default."""
    if context.params.get("suite") == "parity":
        from harness.planted.differences import files

        names = [fault.name for fault in files.faults()]
    else:
        from harness.planted.hangs import hang_selection

        names = [hang.name for hang in hang_selection.hangs()]
    return sorted(name for name in dict.fromkeys(names) if name.startswith(incomplete))
