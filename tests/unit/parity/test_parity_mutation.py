"""The mutation trial of the judge: a sound pair, tampered with, must not stay EQUIVALENT where its meaning changed.

`tampering` holds the catalogue, docs/measurements/tampering.md what each of it ends as. By day every tampering is tried
once, and every deception that once passed and every control wherever it can be; at night the whole product, and other
seeds.
"""

from __future__ import annotations

import copy
import dataclasses
import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tampering
from hypothesis import given
from hypothesis import strategies as st
from recordings import Jagged, Recording, make, pair, put, scenario
from tampered_runs import (
    BOTH,
    FILTERED,
    FOREIGN,
    GREEDY,
    HALF,
    KEPT,
    ONE,
    OWN,
    PAIRS,
    STOPPED,
    SWAPPED,
    TOLD,
    Runs,
    judged,
    own,
    sound,
)
from tampering_catalogue import CASES, CATALOGUE

NIGHT = os.environ.get("TEST_PROFILE") == "nightly"
TABLE = Path(__file__).parents[3] / "docs" / "measurements" / "tampering.md"

Case = tuple[str, str, str]  # kind of pair, tampering, place

EVERYWHERE = (*ONE, BOTH)
# Each of these was EQUIVALENT once.
DECEPTIONS: list[Case] = [
    (OWN, "engine_info: no dtype", "candidate"),
    (FOREIGN, "engine_info: no dtype", "candidate"),
    (OWN, "engine_info: dropped", BOTH),
    (OWN, "weights: one tensor of eight, sent and received", BOTH),
    (FOREIGN, "weights: one tensor of eight, sent and received", BOTH),
    (OWN, "weights: one tensor of eight, and the actor's digest of it", BOTH),
    (FOREIGN, "weights: one tensor of eight, and the actor's digest of it", BOTH),
    (FOREIGN, "scenario: temperature 0 though coupled", BOTH),
    (OWN, "logprob of rollout: the learner's bits but one", "candidate"),
    (FOREIGN, "logprob of rollout: the learner's bits but one", BOTH),
    *((OWN, "proof of sync: as near to the version before, a tensor left out", where) for where in ONE),
    (OWN, "native: copied from the other run", "candidate"),
    (OWN, "margin of experience: infinite", BOTH),
    *((GREEDY, f"margin of experience: {what}", where) for what in ("zero", "constant") for where in EVERYWHERE),
    *((FILTERED, "margin of experience: infinite", where) for where in EVERYWHERE),
    (OWN, "margin of experience: permuted", "candidate"),
    (FOREIGN, "logprob of rollout: the learner's bits in three of four tokens", "candidate"),
    (FOREIGN, "logprob of rollout: the learner's bits, of an unknown engine", "candidate"),
    (OWN, "rollout: the token file of the other run", "candidate"),
    (FOREIGN, "rollout: the token file of the other run", "candidate"),
    (OWN, "prompt of rollout: others under the old digest", BOTH),
    (FOREIGN, "prompt of rollout: others under the old digest", BOTH),
]


def _holds(kind: str, name: str, place: str, seed: int = 0) -> None:
    verdict = tampering.verdict(kind, name, place, seed)
    if verdict is None:
        return
    one = CATALOGUE[name]
    expected = one.expected(kind, place)
    if expected == STOPPED:
        assert verdict.verdict != "EQUIVALENT", f"{name}, {kind}, {place}: passed"
    elif expected == KEPT:
        assert verdict.verdict == "EQUIVALENT", f"{name}, {kind}, {place}: {verdict.reason}"
    elif verdict.verdict == "EQUIVALENT":
        assert verdict.parity is not None
        state = next(check.state for check in verdict.parity.checks if check.name == one.check)
        assert state != "ruled out", f"{name}, {kind}, {place}: {one.check} is still ruled out"
    if seed == 0 and place in tampering.PLACES and kind in PAIRS:
        assert tampering.cell(verdict) == _table()[name][kind, place], f"{TABLE.name} says otherwise"


@cache
def _table() -> dict[str, dict[tuple[str, str], str]]:
    return tampering.read_table(TABLE.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*PAIRS, HALF, GREEDY, FILTERED])
def test_the_pairs_are_sound(kind: str) -> None:
    verdict = judged(sound(kind, native=True))
    assert verdict.verdict == "EQUIVALENT", verdict.reason


@pytest.mark.parametrize(("kind", "name", "place"), DECEPTIONS)
def test_a_deception_that_once_passed_must_be_stopped(kind: str, name: str, place: str) -> None:
    assert CATALOGUE[name].expected(kind, place) == STOPPED


def _of_the_day() -> list[Case]:
    """Every tampering in one of its cases, in turn another, so that all kinds of pairs and places occur, half precision
    where no other pair has it; and every deception, every control and every exchange in all of theirs."""
    once = []
    for turn, name in enumerate(CATALOGUE):
        its = [case for case in CASES if case[1] == name]
        quick = [case for case in its if case[0] != HALF] or its  # two stages take twice as long to judge
        once.append(quick[turn % len(quick)])
    always = [  # the controls of bfloat16 in turn only
        case for case in CASES if (case[1].startswith("control") and case[0] != HALF) or case[2] == SWAPPED
    ]
    return list(dict.fromkeys([*DECEPTIONS, *always, *once]))


@pytest.mark.by_day(24)
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name", "place"), CASES if NIGHT else _of_the_day())
def test_a_tampering_ends_as_its_page_says(kind: str, name: str, place: str) -> None:
    _holds(kind, name, place)


@pytest.mark.skipif(not NIGHT, reason="at night: by day seed 0 only")
@given(case=st.sampled_from(CASES), seed=st.integers(1, 3))
def test_no_tampering_that_changes_the_meaning_stays_equivalent(case: Case, seed: int) -> None:
    _holds(*case, seed)


def test_by_day_every_tampering_is_tried() -> None:
    day = _of_the_day()
    assert {name for _, name, _ in day} == set(CATALOGUE)
    assert {(kind, place) for kind, _, place in day} == {(kind, place) for kind, _, place in CASES}


def test_the_catalogue_is_as_long_as_its_page_says() -> None:
    assert set(_table()) == set(CATALOGUE)
    assert sum(one.ends != KEPT for one in CATALOGUE.values()) >= 40
    assert {one.ends for one in CATALOGUE.values()} == {STOPPED, TOLD, KEPT}


# --- what no single field can show ----------------------------------------------------------------------


def _parted_early(run: Recording, share: float) -> None:
    """Ties near the beginning of so many samples, after each of which the sample is another one."""
    rng = np.random.default_rng(3)
    for frame in run.frames("rollout"):
        made = run.frame("experience", frame.step).arrays
        output, margin, second = frame.arrays["output"], made["margin"], made["runner_up"]
        assert isinstance(output, Jagged) and isinstance(margin, Jagged) and isinstance(second, Jagged)
        for row in np.flatnonzero(rng.random(len(output.lengths)) < share):
            start, end = output.offsets[row], output.offsets[row + 1]
            drawn, output.values[start] = output.values[start], second.values[start]
            second.values[start] = drawn  # of the token trained on, the best other one
            output.values[start + 1 : end] = rng.integers(3, 2048, end - start - 1)
        same = second.values == output.values  # by chance: the best other token is another one
        second.values[same] += 1
        made["tokens"] = output.copy()  # a run that is not guided goes on from its own


@pytest.mark.slow
@pytest.mark.parametrize(("share", "seen"), [(0.0, "EQUIVALENT"), (0.05, "EQUIVALENT"), (0.8, "INCONCLUSIVE")])
def test_tokens_after_a_first_flip_are_not_passed(tmp_path: Path, share: float, seen: str) -> None:
    """In bfloat16 ties are common, and what follows the first one of a sample that is not guided is not compared."""
    plan = dataclasses.replace(scenario(dtype="bfloat16", train=False, max_tokens=64), guided=False)
    baseline, candidate = make("baseline", plan, native=False), make("candidate", plan, native=False, noise=1e-5)
    for run in (baseline, candidate):
        for frame in run.frames("rollout"):
            frame.fields["guided"] = False
            first = np.concatenate([[0], np.cumsum(frame.arrays["output"].lengths)[:-1]])  # type: ignore[union-attr]
            run.frame("experience", frame.step).arrays["margin"].values[first] = 0.01  # type: ignore[union-attr]
    _parted_early(candidate, share)
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == seen, verdict.reason
    assert ("tokens drawn were compared" in verdict.account) == (seen == "INCONCLUSIVE")


@pytest.mark.slow
@pytest.mark.parametrize("what", ["rollout", "native", "floor"])
def test_one_engine_twice_may_draw_alike_in_every_bit(tmp_path: Path, what: str) -> None:
    """Two runs of one engine have the same kernels, seeds and draws: nothing of it is a copy."""
    baseline, candidate = make("baseline"), make("candidate")
    candidate.manifest["backend"] = "vllm"
    for info in candidate.events("engine_info"):
        info.update(engine="vllm", version="0.32.0")
    for mine, theirs in zip(candidate.frames(what), baseline.frames(what), strict=True):
        mine.arrays = copy.deepcopy(theirs.arrays)
    if what == "native":
        for mine, theirs in zip(candidate.frames("native_score"), baseline.frames("native_score"), strict=True):
            mine.arrays = copy.deepcopy(theirs.arrays)
        for mine, theirs in zip(candidate.frames("repeat"), baseline.frames("repeat"), strict=True):
            mine.arrays = copy.deepcopy(theirs.arrays)
        for mine, theirs in zip(candidate.frames("native"), baseline.frames("native"), strict=True):
            mine.fields["finish"] = copy.deepcopy(theirs.fields["finish"])
    assert put(tmp_path, baseline, candidate).verdict == "EQUIVALENT"


@pytest.mark.slow
def test_margins_may_be_without_bound_where_filters_leave_one_token(tmp_path: Path) -> None:
    runs = [make("baseline", native=False), make("candidate", native=False)]
    for run in runs:
        run.manifest["scenario"]["sampling"]["top_p"] = 0.5
        for event in run.events("sampling"):
            event["canonical"]["top_p"] = 0.5
        for frame in run.frames("experience"):
            frame.arrays["margin"].values[::3] = np.inf  # type: ignore[union-attr]
            frame.arrays["runner_up"].values[::3] = -1  # type: ignore[union-attr]
    assert put(tmp_path, *runs).verdict == "EQUIVALENT"


def _second_best(run: Recording, share: float) -> int:
    """The engine draws the learner's second best in this share of the tokens that are not a sample's last."""
    rng, flips = np.random.default_rng(0), 0
    for frame in run.frames("rollout"):
        output, second = frame.arrays["output"], run.frame("experience", frame.step).arrays["runner_up"]
        assert isinstance(output, Jagged) and isinstance(second, Jagged)
        chosen = rng.random(len(output.values)) < share
        chosen[output.offsets[1:] - 1] = False
        output.values[chosen] = second.values[chosen]
        flips += int(chosen.sum())
    return flips


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "margin", "seen", "why"),
    [
        (GREEDY, None, "DIVERGENT", "flips"),
        (GREEDY, 0.0, "INCONCLUSIVE", "one and the same number"),
        (FILTERED, None, "DIVERGENT", "flip"),
        (FILTERED, np.inf, "INCONCLUSIVE", "without bound"),
    ],
)
def test_margins_that_say_nothing_excuse_no_flip(
    kind: str, margin: float | None, seen: str, why: str, tmp_path: Path
) -> None:
    runs = Runs(*pair(plan=own(kind), native=False))
    share = 0.3 if kind == GREEDY else 0.003
    assert _second_best(runs.candidate, share)
    for run in (runs.baseline, runs.candidate) if margin is not None else ():
        for frame in run.frames("experience"):
            frame.arrays["margin"].values[:] = margin  # type: ignore[union-attr]
    verdict = judged(runs)
    assert verdict.verdict == seen and why in verdict.account, verdict.reason


@pytest.mark.slow
def test_greedy_gaps_are_held_against_the_probability_of_the_choice(tmp_path: Path) -> None:
    """Ties of many sizes at the tokens that were flipped: no two are the same, and likely choices have none."""
    runs = Runs(*pair(plan=own(GREEDY), native=False))
    assert _second_best(runs.candidate, 0.3)
    for run in (runs.baseline, runs.candidate):
        for frame in run.frames("experience"):
            margin, flipped = frame.arrays["margin"], runs.candidate.frame("rollout", frame.step).arrays["output"]
            assert isinstance(margin, Jagged) and isinstance(flipped, Jagged)
            chosen = flipped.values != frame.arrays["tokens"].values  # type: ignore[union-attr]
            ties = np.random.default_rng(frame.step).uniform(0, 1e-6, len(chosen))
            margin.values = np.where(chosen, ties, margin.values)
    verdict = judged(runs)
    assert verdict.verdict == "INCONCLUSIVE"
    assert "smaller than the choice is likely" in verdict.account


@pytest.mark.slow
def test_greedy_samples_of_one_prompt_may_be_the_same(tmp_path: Path) -> None:
    """Sixteen times one sample has each margin sixteen times: no number is common."""
    runs = Runs(*pair(plan=own(GREEDY), native=False))
    for run in (runs.baseline, runs.candidate):
        for kind in ("rollout", "experience"):
            for frame in run.frames(kind):
                longest = int(np.argmax(frame.arrays["output" if kind == "rollout" else "tokens"].lengths))  # type: ignore[union-attr]
                sample = frame.arrays["sample"].copy()  # type: ignore[union-attr]
                frame.take([longest] * len(sample))
                frame.arrays["sample"] = sample
    assert "one and the same number" not in judged(runs).reason
