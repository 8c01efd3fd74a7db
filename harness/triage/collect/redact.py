"""What evidence takes from a process's command line, variables and messages: the scrubber's, by the names used here."""

from __future__ import annotations

from collections.abc import Mapping

from probes import environment
from probes.redaction import WITHHELD, fields, learn, text
from probes.redaction import line as command

__all__ = ["WITHHELD", "command", "fields", "text", "variables"]


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that say who the process is in the job. Values of its secret ones are withheld from now on."""
    learn(environ)
    return environment.variables(environ, environment.PLACE, limit=500)
