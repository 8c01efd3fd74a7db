"""What a shell completes: names of engines, of commands and of what `harness explain` knows, read when the user asks
for them; and the script that makes a shell ask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer

from harness.errors import BadInput

SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")
_VARIABLE = "_HARNESS_COMPLETE"  # by which Typer's scripts ask


def of_named_shell(words: Sequence[str]) -> bool:
    """Print or install the script of the shell that is named: --show-completion zsh. False for any other words; Typer
    itself takes the options alone, for the shell that runs."""
    if len(words) != 2 or words[0] not in ("--show-completion", "--install-completion"):
        return False
    option, shell = words
    if shell not in SHELLS:
        raise BadInput(f"there is no completion for {shell!r}; there is one for: {', '.join(SHELLS)}",
                       fix=f"harness {option} bash")  # fmt: skip
    from typer.completion import get_completion_script, install

    if option == "--show-completion":
        print(get_completion_script(prog_name="harness", complete_var=_VARIABLE, shell=shell))
        return True
    _, path = install(shell=shell, prog_name="harness", complete_var=_VARIABLE)
    print(f"{shell} completion is installed in {path}; it works in a new shell")
    return True


def commands(context: typer.Context, incomplete: str) -> list[str]:
    """Names of commands below those that `harness help` was given."""
    group: Any = context.find_root().command
    for word in context.params.get("words") or ():
        group = getattr(group, "commands", {}).get(word)
    return [name for name in getattr(group, "commands", ()) if name.startswith(incomplete)]


def explained(incomplete: str) -> list[str]:
    """Names that `harness explain` knows and a shell takes as one word."""
    from harness import glossary

    names = dict.fromkeys(word for entry in glossary.entries() for word in entry.name.split(" ")[:1])
    return [name for name in names if name.startswith(incomplete) and name.replace("-", "").replace("_", "").isalnum()]


def engines(incomplete: str) -> list[str]:
    """Names of engines."""
    from scenarios.engines import registry

    return [name for name in registry.names() if name.startswith(incomplete)]


def engines_with_environments(incomplete: str) -> list[str]:
    """Names of engines for which an environment can be made."""
    from scenarios.engines import registry

    return [name for name in registry.names(embedded=False) if name.startswith(incomplete)]
