"""Consoles of the terminal's width. A width of 0 means that nobody knows it, as in a pseudo-terminal of a CI runner
that was given no size; Rich takes COLUMNS=0 at its word and then prints nothing at all.
"""

from __future__ import annotations

import shutil
from typing import Any

from rich.console import Console


def terminal_console(**options: Any) -> Console:
    """Return Rich's console with these options, at least one column wide."""
    made = Console(**options)
    if made.width < 1:
        made.width = shutil.get_terminal_size().columns
    return made
