"""Writes what an engine drew as frames of a recording (docs/reference/format.md)."""

from __future__ import annotations

from typing import Any

from probes import install
from probes.format import Flat, Ragged
from scenarios.engines.engine_interface import Completion, Request


def samples(
    recorder: install.Recorder,
    kind: str,
    requests: list[Request],
    completions: list[Completion],
    *,
    step: int,
    fields: dict[str, Any],
) -> None:
    """Record one frame of `kind` (rollout, native, repeat) with a row per request. `fields` include the weight
    version.
    """
    # A column has a number for every sample or is left out: only some engines and modes give each sample a seed.
    seeds = [c.seed for c in completions if c.seed is not None]
    seed_array = {"seed": Flat.of(seeds, "i8")} if completions and len(seeds) == len(completions) else {}
    recorder.frame(
        kind,
        step=step,
        fields={**fields, "finish": [c.finish_reason for c in completions]},
        arrays={
            "sample": Flat.of([c.sample for c in completions], "i8"),
            "prompt": Ragged.of([r.prompt_ids for r in requests], "i4"),
            "prompt_seen": Ragged.of([c.prompt_seen for c in completions], "i4"),
            "output": Ragged.of([c.output_ids for c in completions], "i4"),
            "logprob": Ragged.of([c.logprobs for c in completions], "f4"),
            "cached": Flat.of([c.cached_tokens for c in completions], "i4"),
            **seed_array,
        },
    )


def floor(recorder: install.Recorder, rows: list[Completion], *, step: int, variant: str, version: int) -> None:
    """Record the samples of one variant of the floor, such as another batch or order (`EngineSession.floor`)."""
    recorder.frame(
        "floor",
        step=step,
        fields={"variant": variant, "weight_version": version},
        arrays={
            "sample": Flat.of([c.sample for c in rows], "i8"),
            "output": Ragged.of([c.output_ids for c in rows], "i4"),
            "logprob": Ragged.of([c.logprobs for c in rows], "f4"),
        },
    )
