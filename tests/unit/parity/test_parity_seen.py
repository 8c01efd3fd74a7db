"""Prompts that an engine's own process recorded, by request: the check of prompts is tested with them, and can fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recordings import TYPES, FrameRecord, Jagged, Log, Recording, causes, check, jagged, pair, put

from reports.model import SUSPICIONS

PROMPTS = SUSPICIONS[10]


@pytest.fixture(autouse=True)
def typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TYPES, "request", "i8")


def apart(recording: Recording, *, ranks: int = 1) -> list[list[FrameRecord]]:
    """What the engine saw goes from the samples' frames to frames of its own processes, one a request; those."""
    opening = next(fields for kind, fields in recording.logs["rollout"].events if kind == "open")
    found = []
    for rank in range(ranks):
        log = Log("rollout", 500 + rank, rank)
        log.event("open", **{**opening, "role": "rollout", "rank": rank, "pid": log.pid})
        recording.logs[f"engine {rank}"] = log
        found.append(log.frames)
    rng = np.random.default_rng(0)
    for frame in recording.frames("rollout"):
        seen = frame.arrays["prompt_seen"]
        assert isinstance(seen, Jagged)
        keys = rng.integers(0, 1 << 62, len(frame.arrays["sample"]))  # random ids: of no order
        frame.arrays["request"] = keys
        for frames in found:
            for key, row in zip(keys, seen.rows(), strict=True):
                frames.append(FrameRecord("seen", -1, {}, {"request": np.array([key]), "prompt_seen": jagged([row])}))
        del frame.arrays["prompt_seen"]
    return found


def plain() -> tuple[Recording, Recording]:
    return pair(native=False)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_prompts_of_the_engines_process_are_joined_to_their_samples(tmp_path: Path, ranks: int) -> None:
    baseline, candidate = plain()
    for side in (baseline, candidate):
        apart(side, ranks=ranks)
    verdict = put(tmp_path, baseline, candidate)
    found = check(verdict, PROMPTS)
    assert found.state == "ruled out" and "96 of 96 and 96 of 96" in found.evidence, found.evidence
    assert verdict.verdict == "EQUIVALENT", verdict.reason


def cut(frames: list[FrameRecord], at: int) -> None:
    prompts: Any = frames[at].arrays["prompt_seen"]
    frames[at].arrays["prompt_seen"] = jagged([prompts.rows()[0][2:]])


@pytest.mark.slow
@pytest.mark.parametrize("ranks, rank", [(1, 0), (2, 0), (2, 1)])
def test_a_prompt_that_one_process_of_the_engine_saw_cut_is_found_there(tmp_path: Path, ranks: int, rank: int) -> None:
    baseline, candidate = plain()
    apart(baseline)
    step, row = 2, 5
    cut(apart(candidate, ranks=ranks)[rank], step * 16 + row)
    sample = int(candidate.frame("rollout", step).arrays["sample"][row])  # type: ignore[arg-type]
    verdict = put(tmp_path, baseline, candidate)
    found = check(verdict, PROMPTS)
    assert found.state == "confirmed" and "truncated left" in found.evidence
    assert verdict.parity is not None and verdict.parity.first_divergence is not None
    place = verdict.parity.first_divergence
    assert (place.step, place.phase, place.sample, place.field) == (step, "prompt", sample, "prompt_seen")
    assert verdict.verdict == "DIVERGENT" and causes(verdict)


@pytest.mark.slow
def test_a_request_that_comes_again_is_judged_by_its_first(tmp_path: Path) -> None:
    """A second turn under the same id: its prompt goes on where the first one ended."""
    baseline, candidate = plain()
    apart(baseline)
    [frames] = apart(candidate)
    first: Any = frames[0].arrays["prompt_seen"]
    longer = jagged([np.concatenate([first.rows()[0], [3]])])
    frames.append(FrameRecord("seen", -1, {}, {"request": frames[0].arrays["request"], "prompt_seen": longer}))
    assert check(put(tmp_path, baseline, candidate), PROMPTS).state == "ruled out"


@pytest.mark.slow
def test_a_sample_whose_request_nobody_saw_is_not_tested(tmp_path: Path) -> None:
    baseline, candidate = plain()
    apart(baseline)
    [frames] = apart(candidate)
    del frames[7]
    found = check(put(tmp_path, baseline, candidate), PROMPTS)
    assert found.state == "not tested" and "95 of 96" in found.evidence


@pytest.mark.slow
def test_an_engine_that_recorded_nothing_is_not_tested(tmp_path: Path) -> None:
    baseline, candidate = plain()
    apart(baseline)
    apart(candidate)[0].clear()
    assert check(put(tmp_path, baseline, candidate), PROMPTS).state == "not tested"
