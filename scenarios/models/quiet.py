"""Silences Transformers' progress bars and load reports; what matters in them becomes an error of ours."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from transformers.utils import logging


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Show errors only, and no progress bars, inside the context; restore the caller's settings afterwards."""
    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()
