"""The floor is measured within one engine, capped, and turned into a tolerance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recordings import FrameRecord, Jagged, Recording, jagged, make, pair, put, scenario

from harness.parity.subjects.precision.observed_floor import CAPS, EngineFloor, Tolerance, measure
from harness.parity.subjects.precision.observed_rounding import Rounding
from harness.recordings.store import Recording as Stored


def floor_of(recording: Recording, tmp_path: Path) -> EngineFloor:
    return measure(Stored(recording.write(tmp_path / "run")))


def small() -> Recording:
    return make("baseline", scenario(steps=1), native=False)


def test_the_largest_difference_before_the_first_difference_of_tokens(tmp_path: Path) -> None:
    recording = small()
    for frame in recording.frames("floor"):
        frame.arrays["logprob"].values[:] = -1.0
    batch = next(recording.frames("floor", variant="batch"))
    longest = int(np.argmax(batch.arrays["output"].lengths))
    start = int(batch.arrays["output"].offsets[longest])
    batch.arrays["logprob"].values[start + 1] = -1.25
    batch.arrays["output"].values[start + 2] += 1  # a flip: what follows is another sample
    batch.arrays["logprob"].values[start + 2 :][:3] = -9.0
    found = floor_of(recording, tmp_path)
    assert found.largest == pytest.approx(0.25)
    assert found.where["variant"] == "batch" and found.where["position"] == 1
    assert found.where["sample"] == int(batch.arrays["sample"][longest])
    assert found.flips == 1 and found.absent == []


def test_one_ill_conditioned_position_is_no_noisy_engine(tmp_path: Path) -> None:
    recording = small()
    batch = next(recording.frames("floor", variant="batch"))
    batch.arrays["logprob"].values[7] += 8e-5
    found = floor_of(recording, tmp_path)
    assert found.largest > 5e-5 and found.level < 1e-5 and not found.exceeds(tolerance(0.0))
    batch.arrays["logprob"].values[7] += 4e-3
    assert floor_of(recording, tmp_path / "far").exceeds(tolerance(0.0))
    batch.arrays["logprob"].values[:12] += 4e-4
    assert floor_of(recording, tmp_path / "many").exceeds(tolerance(0.0))


def test_rows_in_another_order_are_aligned(tmp_path: Path) -> None:
    recording = small()
    order = next(recording.frames("floor", variant="order"))
    order.take(list(reversed(range(len(order.arrays["sample"])))))
    assert floor_of(recording, tmp_path).largest < 1e-5


def test_nothing_recorded_is_not_measured(tmp_path: Path) -> None:
    recording = small()
    recording.drop("floor")
    found = floor_of(recording, tmp_path)
    assert not found.measured and np.isnan(found.largest) and len(found.absent) == 3


def test_a_few_tokens_are_no_floor(tmp_path: Path) -> None:
    recording = small()
    for frame in recording.frames("floor"):
        frame.take([0])
    assert not floor_of(recording, tmp_path).measured


def test_a_nan_in_the_floor_is_counted(tmp_path: Path) -> None:
    recording = small()
    next(recording.frames("floor", variant="prefill")).arrays["logprob"].values[3] = np.nan
    assert floor_of(recording, tmp_path).not_finite == 1


def test_an_engine_that_draws_other_tokens_each_time_is_not_tied(tmp_path: Path) -> None:
    recording = small()
    for frame in recording.frames("floor", variant="batch"):
        frame.arrays["output"] = jagged([row + 1 for row in frame.arrays["output"].rows()])
    found = floor_of(recording, tmp_path)
    assert found.flips == 16
    assert found.implausible_flips(CAPS["float32"], 1.0)
    assert not EngineFloor(0.0, 0.0, tokens=5000, flips=1).implausible_flips(CAPS["float32"], 1.0)
    # In bfloat16 one token in ten may be tied within the cap.
    assert not EngineFloor(0.03, 0.03, tokens=1000, flips=80).implausible_flips(CAPS["bfloat16"], 1.0)


def tolerance(floor: float, dtype: str = "float32", **options: Any) -> Tolerance:
    engine = EngineFloor(floor, floor, tokens=1000) if floor == floor else EngineFloor()
    return Tolerance.of(
        dtype,
        [engine, EngineFloor(0.0, 0.0, tokens=1000)],
        scale=options.get("scale", 8.0),
        temperature=options.get("temperature", 1.0),
        cap=options.get("cap"),
        rounding=options.get("rounding"),
    )


def test_tolerance_is_ten_floors_between_the_resolution_and_the_cap() -> None:
    assert tolerance(0.0).value == pytest.approx(16 * 2**-23 * 8)
    assert tolerance(4e-6).value == pytest.approx(4e-5)
    assert tolerance(5e-5).value == 1e-4
    assert tolerance(float("nan")).value == 1e-4 and np.isnan(tolerance(float("nan")).floor)


def test_in_half_precision_the_measured_rounding_decides_and_not_the_resolution() -> None:
    """Where only engines against themselves were measured, whose kernels round alike, the cap decides and is no
    floor."""
    alone = tolerance(6e-5, "bfloat16")
    assert alone.value == 0.05 and alone.capped and np.isnan(alone.floor)
    assert alone.within == pytest.approx(6e-4)  # what lies between is not known to be rounding
    measured = tolerance(6e-5, "bfloat16", rounding=Rounding(1e-4, 4e-4, 5000))
    assert measured.value == pytest.approx(4e-3) and not measured.capped and np.isnan(measured.within)
    noisy = tolerance(0.02, "bfloat16", rounding=Rounding(1e-3, 4e-3, 5000))
    assert noisy.value == 0.05 and noisy.capped
    assert tolerance(float("nan"), "bfloat16", rounding=Rounding(1e-4, 4e-4, 5000)).value == 0.05


def test_one_token_of_an_engine_against_itself_may_round_beyond_the_cap_in_half_precision() -> None:
    """Seen on SGLang in bfloat16: one token of 1,167 was scored 0.0509 nats from where it was drawn, all others less
    than 0.031."""
    seen = EngineFloor(0.0509, 0.031, tokens=1167)
    assert not seen.exceeds(tolerance(0.0, "bfloat16"))
    assert EngineFloor(0.21, 0.031, tokens=1167).exceeds(tolerance(0.0, "bfloat16"))
    assert EngineFloor(0.06, 0.051, tokens=1167).exceeds(tolerance(0.0, "bfloat16"))
    assert EngineFloor(1.1e-4, 1e-6, tokens=1167).exceeds(tolerance(0.0))


@pytest.mark.parametrize(("spread", "measured"), [(0.008, True), (0.04, False)])
def test_a_learner_far_from_float32_measures_no_rounding(tmp_path: Path, spread: float, measured: bool) -> None:
    recording = make("baseline", scenario(dtype="bfloat16"), native=False)
    rng = np.random.default_rng(0)
    for frame in recording.frames("experience"):
        truth = frame.arrays["actor_logprob"].values
        frame.arrays["exact_logprob"].values = truth + rng.normal(0, spread, len(truth))
    found = Rounding.of(Stored(recording.write(tmp_path / "run")), 0.05)
    assert found.measured == measured and bool(found.refused) != measured


def test_a_broken_number_cannot_widen_its_own_tolerance() -> None:
    assert tolerance(0.0, scale=1e9).value <= 16 * 2**-23 * 20
    assert tolerance(0.0, scale=float("nan")).value > 0


def test_an_unknown_dtype_gets_the_strictest_cap() -> None:
    assert tolerance(1.0, "int4").value == CAPS["float32"]


def test_a_colder_temperature_widens_the_margin_of_a_flip() -> None:
    assert tolerance(4e-6, temperature=0.5).margin == pytest.approx(2 * 4e-5 / 0.5)


def ill_conditioned(rounding: float) -> list[Recording]:
    """A sound pair whose engines score one token of the floor 1.6e-4 nats otherwise than they drew it, and whose
    learner rounds as far at another token."""
    both = list(pair())
    for recording in both:
        base, other = (next(recording.frames("floor", variant=variant)) for variant in ("base", "prefill"))
        column = other.arrays["logprob"]
        assert isinstance(column, Jagged)
        column.values[5] = base.arrays["logprob"].values[5] + 1.6e-4  # type: ignore[union-attr]
        rows = [np.zeros(len(row) + 1, np.float32) for row in column.rows()]
        rows[-1][0] = rounding
        fields = {**base.fields, "variant": "rounding"}
        arrays = {"sample": base.arrays["sample"], "rounding": jagged(rows)}
        recording.logs["trainer"].frames.append(FrameRecord("floor", base.step, fields, arrays))
    return both


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rounding", "verdict"),
    [(6e-5, "EQUIVALENT"), (2e-6, "DIVERGENT"), (0.5, "EQUIVALENT"), (float("nan"), "DIVERGENT")],
)
def test_a_token_may_round_in_float32_as_far_as_the_learners_own(rounding: float, verdict: str, tmp_path: Path) -> None:
    baseline, candidate = ill_conditioned(rounding)
    assert put(tmp_path, baseline, candidate).verdict == verdict


@pytest.mark.slow
def test_no_rounding_of_the_learner_excuses_more_than_ten_caps(tmp_path: Path) -> None:
    both = ill_conditioned(0.5)
    for recording in both:
        for frame in recording.frames("floor", variant="prefill"):
            frame.arrays["logprob"].values[5] += 0.1  # type: ignore[union-attr]
    assert put(tmp_path, *both).verdict == "DIVERGENT"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moved", "tolerance", "verdict"),
    [(None, 2.34e-5, "DIVERGENT"), (5e-6, 5e-5, "EQUIVALENT"), (3e-4, 2.34e-5, "DIVERGENT")],
)
def test_what_tensor_parallelism_changes_belongs_to_the_floor(
    tmp_path: Path, moved: float | None, tolerance: float, verdict: str
) -> None:
    """Engines that are 4e-5 nats apart at some tokens, and a learner whose layers are cut as the candidate's ranks cut
    them: not measured, an eighth of that, and more than rounding can."""
    baseline, candidate = pair(native=False)
    candidate.manifest["scenario"]["engine"]["tensor_parallel"] = 2
    off = candidate.frame("rollout", 2).arrays["logprob"].values
    off[::4] += np.resize(np.array([4e-5, -4e-5], np.float32), len(off[::4]))
    if moved is not None:
        base = next(candidate.frames("floor", variant="base"))
        rows = [np.full(3 + len(row), moved, np.float32) for row in base.arrays["logprob"].rows()]
        fields, arrays = (
            {**base.fields, "variant": "sharding"},
            {"sample": base.arrays["sample"], "sharding": jagged(rows)},
        )
        candidate.logs["trainer"].frames.append(FrameRecord("floor", base.step, fields, arrays))
    found = put(tmp_path, baseline, candidate)
    assert found.parity is not None and found.parity.floor["tolerance"] == pytest.approx(tolerance, rel=0.05)
    assert found.verdict == verdict, found.reason
    assert any("2 tensor-parallel ranks" in one for one in found.missing) == (verdict == "DIVERGENT")
