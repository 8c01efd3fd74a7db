"""Replace prompts by hashes, so that two runs in one bundle can still be compared but their prompts cannot be read.

Each token id is replaced by one that a keyed hash of all ids up to it selects. So equal prompts stay equal, and
different prompts differ from their first different token on. Neither a token nor its frequency can be recovered.
Special ids and lengths are unchanged, because the checks identify templates and ends by them. The key is random and
is not stored.
"""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from harness.parity.subjects.prompts.observed_digests import prompt_digests
from harness.parity.subjects.recording.observed_step_consistency import StepTables, batch_digest
from harness.recordings.store import Recording
from harness.recordings.tables import Rows, Table
from probes.format import Frame, Ragged

_COLUMNS = ("prompt", "prompt_seen")
SIZE = 32_000  # the vocabulary's size where no tokenizer event gives it: that of the first Llama


class PromptHash:
    """A key for all recordings of a bundle. `name` identifies the key without revealing it."""

    def __init__(self, key: bytes = b"") -> None:
        self._key = key or secrets.token_bytes(32)
        self.name = hashlib.sha256(self._key).hexdigest()[:16]
        self.ids = lru_cache(maxsize=4096)(self._drawn)  # cached because each prompt occurs several times

    def _drawn(self, prompt: tuple[int, ...], specials: frozenset[int], size: int) -> list[int]:
        """Return the replacement ids, which are below `size` and not special.

        Special ids and ids outside the vocabulary are unchanged.
        """
        state, drawn_ids = hashlib.blake2b(key=self._key, digest_size=8), []
        for token in prompt:
            state.update(int(token).to_bytes(8, "little", signed=True))
            drawn = int.from_bytes(state.digest(), "little") % max(size, 1)
            while drawn in specials and len(specials) < size:
                drawn = (drawn + 1) % size
            drawn_ids.append(token if token in specials or not 0 <= token < size else drawn)
        return drawn_ids


class HashedRun:
    """Replaces the prompts in the events and frames of one recording, and the digests that are computed from
    prompts.
    """

    def __init__(self, run: Path, key: PromptHash) -> None:
        self._recording = Recording(run)
        self._hash = key
        self._kept: tuple[Any, dict[int, list[int]]] = (None, {})
        tokenizer_events = self._recording.all("tokenizer")
        tokenizer = tokenizer_events[0] if tokenizer_events else {}
        size = tokenizer.get("size")
        self._size = size if isinstance(size, int) and size > 0 else SIZE
        named = [tokenizer.get(name) for name in ("bos", "eos", "pad")]
        lists = [tokenizer.get(name) or [] for name in ("specials", "generation_prompt")]
        self._specials = frozenset(token for token in (*named, *lists[0], *lists[1]) if isinstance(token, int))

    def frame(self, frame: Frame) -> Frame:
        arrays = {
            name: Ragged.of([self._ids(row) for row in array.rows()], array.dtype)
            for name, array in frame.arrays.items()
            if name in _COLUMNS and isinstance(array, Ragged)
        }
        return dataclasses.replace(frame, arrays={**frame.arrays, **arrays}) if arrays else frame

    def event(self, event: dict[str, Any]) -> dict[str, Any]:
        kind, step = event["kind"], event.get("step")
        if kind == "boundaries":
            return event | self._ends(event) | {"text_first": "", "text_seam": ""}
        if kind == "data":
            samples = event.get("samples")
            return event | _renewed(
                event, "prompts", *(_prompt_digests(table, samples) for table in self._tables(step))
            )
        if kind == "learner":
            made = self._recording.table("experience", step) if isinstance(step, int) else None
            orders = (data.get("samples") for data in self._recording.all("data") if data.get("step") == step)
            order = next(orders, None)
            return event | _renewed(
                event, "batch", *(_batch_digests(table, made, order) for table in self._tables(step))
            )
        return event

    def _ids(self, row: Sequence[int]) -> list[int]:
        return self._hash.ids(tuple(row), self._specials, self._size)

    def _ends(self, event: dict[str, Any]) -> dict[str, Any]:
        """Return the first and last ids of a prompt, hashed as in the whole prompt."""
        first, last = (event.get(name) for name in ("prompt_first", "prompt_last"))
        prompt = self._prompts(event.get("step")).get(event.get("sample"))  # type: ignore[arg-type]
        if not isinstance(first, list) or not isinstance(last, list):
            return {"prompt_first": [], "prompt_last": []}
        if prompt is None or prompt[: len(first)] != first or prompt[len(prompt) - len(last) :] != last:
            return {"prompt_first": self._ids(first), "prompt_last": self._ids(last)}  # inconsistent ids remain so
        hashed = self._ids(prompt)
        return {"prompt_first": hashed[: len(first)], "prompt_last": hashed[len(hashed) - len(last) :]}

    def _prompts(self, step: Any) -> dict[int, list[int]]:
        """Return the prompts of a step by sample. Those of the last step are cached."""
        if self._kept[0] != step:
            prompts: dict[int, list[int]] = {}
            if (of_step := self._rollouts(step)) is not None:
                table, rows = of_step
                prompts = {int(sample): rows.row(row).tolist() for row, sample in enumerate(table.sample)}
            self._kept = (step, prompts)
        return self._kept[1]

    def _rollouts(self, step: Any) -> tuple[Table, Rows] | None:
        """Return the rollouts of a step and their prompts; None where either is missing."""
        table = self._recording.table("rollout", step) if isinstance(step, int) else None
        rows = table.rows("prompt") if table is not None else None
        return None if table is None or rows is None else (table, rows)

    def _tables(self, step: Any) -> tuple[Table | None, Table | None]:
        """Return the rollouts of a step, unchanged and with hashed prompts."""
        of_step = self._rollouts(step)
        if of_step is None:
            return None, None
        table, rows = of_step
        hashed = [self._ids(rows.row(row).tolist()) for row in range(len(rows))]
        values = np.array([token for row in hashed for token in row], rows.values.dtype)
        columns: dict[str, np.ndarray | Rows] = {**table.columns, "prompt": Rows(values, rows.offsets)}
        return table, dataclasses.replace(table, columns=columns)


def _renewed(event: dict[str, Any], name: str, old: tuple[str, ...], new: tuple[str, ...]) -> dict[str, Any]:
    """Return the digest of the hashed prompts for a digest that was correct. A wrong digest is kept as it is."""
    return {name: dict(zip(old, new, strict=False)).get(event.get(name, ""), event.get(name))}


def _prompt_digests(table: Table | None, samples: Any) -> tuple[str, ...]:
    rows = table.rows("prompt") if table is not None else None
    if table is None or rows is None or not isinstance(samples, list):
        return ()
    place = {int(sample): row for row, sample in enumerate(table.sample)}
    wanted = [place[sample] for sample in samples if isinstance(sample, int) and sample in place]
    return tuple(prompt_digests(rows, np.array(wanted, np.int64)))


def _batch_digests(rollout: Table | None, experience: Table | None, order: Any) -> tuple[str, ...]:
    made = batch_digest(StepTables(-1, rollout, experience), order)
    return () if made is None else (made,)
