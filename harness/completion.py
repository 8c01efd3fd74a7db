"""What a shell completes: names of engines, from their registry, read when the user asks for them."""

from __future__ import annotations


def engines(incomplete: str) -> list[str]:
    """Names of engines."""
    from scenarios.engines import registry

    return [name for name in registry.names() if name.startswith(incomplete)]


def engines_with_environments(incomplete: str) -> list[str]:
    """Names of engines for which an environment can be made."""
    from scenarios.engines import registry

    return [name for name in registry.names(embedded=False) if name.startswith(incomplete)]
