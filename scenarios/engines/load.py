"""How busy an engine was while it generated: the peak of each figure, and what its prefix cache served.

Engines are idle again at the end of a batch, so they are sampled while it runs. A figure that an engine did not give
is left out, never written as 0.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scenarios.engines.engine_interface import Completion


class Load:
    """Collects figures from one `take` to the next. Figures outside of generation (rescoring) do not count.

    `now`: the last look, {running, waiting, kv_usage, t_ns}, for readers while the engine hangs.
    """

    def __init__(self) -> None:
        self.now: dict[str, float] = {}
        self._peaks: dict[str, float] = {}
        self._prompt_tokens = self._cached_tokens = self._generated_tokens = 0
        self._generating = False

    @property
    def busy(self) -> bool:
        """Whether a batch is being generated."""
        return self._generating

    @contextmanager
    def generating(self) -> Iterator[None]:
        self._generating = True
        try:
            yield
        finally:
            self._generating = False

    def sample(self, *, running: float | None = None, waiting: float | None = None, kv: float | None = None) -> None:
        """Take one look: running and waiting requests, share of the KV cache in use (0 to 1)."""
        if not self._generating:
            return
        figures = {
            name: float(value)
            for name, value in (("running", running), ("waiting", waiting), ("kv_usage", kv))
            if value is not None
        }
        self.now = figures | {"t_ns": time.monotonic_ns()}
        for name, value in figures.items():
            self._peaks[name] = max(value, self._peaks.get(name, 0.0))

    def add(self, completions: list[Completion]) -> None:
        """Add a finished batch: tokens of its prompts, those of them that were cached, tokens drawn."""
        self._prompt_tokens += sum(len(completion.prompt_seen) for completion in completions)
        self._cached_tokens += sum(completion.cached_tokens for completion in completions)
        self._generated_tokens += sum(len(completion.output_ids) for completion in completions)

    def take(self, *, cache: bool = True) -> dict[str, float]:
        """Return everything since the last call. `cache`: whether the engine has a prefix cache at all."""
        figures = {"prompt_tokens": float(self._prompt_tokens), "generated_tokens": float(self._generated_tokens)}
        if cache:
            figures["cached_tokens"] = float(self._cached_tokens)
            if self._prompt_tokens:
                figures["cache_hit_rate"] = self._cached_tokens / self._prompt_tokens
        figures |= self._peaks
        self._peaks = {}
        self._prompt_tokens = self._cached_tokens = self._generated_tokens = 0
        return figures
