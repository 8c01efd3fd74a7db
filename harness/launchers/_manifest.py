"""Manifests: readable YAML, optionally on top of a manifest of the user."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from harness.errors import BadInput
from probes import limits

Base = Annotated[
    Path | None,
    typer.Option(help="a manifest of your own to build on; its resources, image, environment and the rest are kept"),
]


_BREAKS = set("\r\x85\u2028\u2029")  # line breaks that a block scalar would not preserve


def text(value: object, checked: str = "") -> str:
    """Return a document. `checked`: the schema that an untested document was validated against."""
    import yaml

    comment = f"# Validated against the schema of {checked}, not run.\n" if checked else ""
    return comment + str(yaml.dump(value, Dumper=_dumper(yaml), sort_keys=False, width=120, allow_unicode=True))


def load(base: Path | None) -> dict[str, Any]:
    """Return the user's manifest; empty without one. Raises BadInput where it is not a manifest."""
    import yaml

    if base is None:
        return {}
    try:
        value = yaml.safe_load(limits.read_text(base))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(getattr(error, "strerror", None) or error).split())
        raise BadInput(f"{base} cannot be read as a manifest: {reason}", fix="--base task.yaml") from error
    if not isinstance(value, dict):
        raise BadInput(f"{base} holds no manifest: it is no mapping of one document", fix="--base task.yaml")
    return value


def part(manifest: dict[str, Any], key: str, kind: type, base: Path | None) -> Any:
    """A copy of what the user's manifest has there, empty where it has nothing. Raises BadInput for another kind."""
    value = manifest.get(key) or kind()
    if not isinstance(value, kind):
        raise BadInput(
            f"{base}: {key} is a {type(value).__name__}, not a {kind.__name__}", fix=f"correct {key} in {base}"
        )
    return kind(value)


def _dumper(yaml: Any) -> Any:
    """Return a dumper without anchors, with empty text for null, and with block scalars for scripts."""

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]
        def ignore_aliases(self, data: Any) -> bool:
            return True

    Dumper.add_representer(type(None), lambda dumper, _: dumper.represent_scalar("tag:yaml.org,2002:null", ""))
    Dumper.add_representer(
        str,
        lambda dumper, text: dumper.represent_scalar(
            "tag:yaml.org,2002:str", text, style="|" if "\n" in text and not _BREAKS & set(text) else None
        ),
    )
    return Dumper
