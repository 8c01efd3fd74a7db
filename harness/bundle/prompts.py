"""Prompts replaced by hashes, so that two runs in one bundle are still compared and nobody reads what was asked.

Each id becomes another one, drawn by a keyed hash of all ids up to it: equal prompts stay equal, different ones stay
different from their first different token on, and neither a token nor its frequency can be looked up. Special ids stay
(templates and ends are told by them), and so do lengths. The key is random and is not kept.
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

from harness.parity.subjects.recording.observed_step_consistency import StepTables, batch_digest, prompt_digests
from harness.recordings.store import Recording
from harness.recordings.tables import Rows, Table
from probes.format import Frame, Ragged

_COLUMNS = ("prompt", "prompt_seen")
SIZE = 32_000  # of a vocabulary that no tokenizer event tells: that of the first Llama


class PromptHash:
    """One key, for all recordings of a bundle."""

    def __init__(self, key: bytes = b"") -> None:
        self._key = key or secrets.token_bytes(32)
        self.name = hashlib.sha256(self._key).hexdigest()[:16]
        self.ids = lru_cache(maxsize=4096)(self._drawn)  # each prompt comes several times

    def _drawn(self, prompt: tuple[int, ...], specials: frozenset[int], size: int) -> list[int]:
        """The ids in the place of these, none of them special, all below `size`; an id that is none stays none."""
        state, drawn_ids = hashlib.blake2b(key=self._key, digest_size=8), []
        for token in prompt:
            state.update(int(token).to_bytes(8, "little", signed=True))
            drawn = int.from_bytes(state.digest(), "little") % max(size, 1)
            while drawn in specials and len(specials) < size:
                drawn = (drawn + 1) % size
            drawn_ids.append(token if token in specials or not 0 <= token < size else drawn)
        return drawn_ids


class HashedRun:
    """What becomes of one recording's events and frames, with the digests that speak of its prompts."""

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
            order = next(
                (
                    data_event.get("samples")
                    for data_event in self._recording.all("data")
                    if data_event.get("step") == step
                ),
                None,
            )
            return event | _renewed(
                event, "batch", *(_batch_digests(table, made, order) for table in self._tables(step))
            )
        return event

    def _ids(self, row: Sequence[int]) -> list[int]:
        return self._hash.ids(tuple(row), self._specials, self._size)

    def _ends(self, event: dict[str, Any]) -> dict[str, Any]:
        """The first and last ids of a prompt, hashed as the whole prompt is."""
        first, last = (event.get(name) for name in ("prompt_first", "prompt_last"))
        prompt = self._prompts(event.get("step")).get(event.get("sample"))  # type: ignore[arg-type]
        if not isinstance(first, list) or not isinstance(last, list):
            return {"prompt_first": [], "prompt_last": []}
        if prompt is None or prompt[: len(first)] != first or prompt[len(prompt) - len(last) :] != last:
            return {"prompt_first": self._ids(first), "prompt_last": self._ids(last)}  # a contradiction stays one
        hashed = self._ids(prompt)
        return {"prompt_first": hashed[: len(first)], "prompt_last": hashed[len(hashed) - len(last) :]}

    def _prompts(self, step: Any) -> dict[int, list[int]]:
        """The prompts of a step by sample; of the step last asked for they are kept."""
        if self._kept[0] != step:
            table = self._recording.table("rollout", step) if isinstance(step, int) else None
            rows = table.rows("prompt") if table is not None else None
            prompts = {} if table is None or rows is None else {
                int(sample): rows.row(row).tolist() for row, sample in enumerate(table.sample)
            }  # fmt: skip
            self._kept = (step, prompts)
        return self._kept[1]

    def _tables(self, step: Any) -> tuple[Table | None, Table | None]:
        """The rollouts of a step as they are, and with their prompts hashed."""
        table = self._recording.table("rollout", step) if isinstance(step, int) else None
        rows = table.rows("prompt") if table is not None else None
        if table is None or rows is None:
            return None, None
        hashed = [self._ids(rows.row(row).tolist()) for row in range(len(rows))]
        values = np.array([token for row in hashed for token in row], rows.values.dtype)
        columns: dict[str, np.ndarray | Rows] = {**table.columns, "prompt": Rows(values, rows.offsets)}
        return table, dataclasses.replace(table, columns=columns)


def _renewed(event: dict[str, Any], name: str, old: tuple[str, ...], new: tuple[str, ...]) -> dict[str, Any]:
    """The digest of the hashed prompts in the place of one that was right; any other says nothing of these prompts."""
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
