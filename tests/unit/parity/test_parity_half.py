"""Half precision: what a tolerance on single tokens lets pass, means find; what they cannot find is said."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from recordings import FrameRecord, Jagged, Recording, causes, check, jagged, pair, put, scenario

from harness.parity.facts.align import Grid
from harness.parity.facts.divergence import Kind
from harness.parity.subjects.log_probabilities import observed_systematic as systematic
from harness.parity.subjects.log_probabilities.observed_clusters import Clusters, Mean
from harness.parity.subjects.log_probabilities.observed_pairs import LogprobPairs
from harness.parity.subjects.weights.observed_lag import Updates, sides
from harness.parity.verdict import judged_pair
from probes.format import SIDES
from reports import render

pytestmark = pytest.mark.slow

HALF = scenario(dtype="bfloat16")
ENGINES = systematic.Means(systematic.Compared.ENGINES)


def coarse(recording: Recording, size: float) -> None:
    """An engine whose floor is this small, however it rounds against others."""
    rng = np.random.default_rng(5)
    base = next(recording.frames("floor", variant="base")).arrays["logprob"].values
    for frame in recording.frames("floor"):
        frame.arrays["logprob"].values = base + rng.normal(0, size / 3, len(base))


def without(recording: Recording, *columns: str) -> None:
    for frame in recording.frames("experience"):
        for name in columns:
            frame.arrays.pop(name, None)


EXACT = ("exact_logprob", "behind_logprob", "behind_exact_logprob")


# --- holes ------------------------------------------------------------------------------------------


@pytest.mark.by_day(3)
@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("by", [0.045, -0.045, 0.01])
def test_a_bias_of_every_token_is_no_rounding(tmp_path: Path, by: float, recorded: bool) -> None:
    """+0.045 nats on every token was EQUIVALENT, beside a measured floor of 6e-5 and a tolerance of 0.05."""
    baseline, candidate = pair(plan=HALF, native=False, noise=1e-4)
    for recording in (baseline, candidate):
        coarse(recording, 6e-5)
        if not recorded:
            without(recording, *EXACT)
    for frame in candidate.frames("rollout"):
        frame.arrays["logprob"].values += by
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "DIVERGENT", verdict.reason
    assert causes(verdict) == ["UNEXPLAINED"] and verdict.causes[0].party == "candidate"
    assert check(verdict, "systematic").state == "confirmed"


def test_a_bias_of_one_step_is_found_in_that_step(tmp_path: Path) -> None:
    plan = scenario(dtype="bfloat16", prompts=16)
    baseline, candidate = pair(plan=plan, native=False)
    candidate.frame("rollout", 3).arrays["logprob"].values += 0.03
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "DIVERGENT", verdict.reason
    assert "step 3" in check(verdict, "systematic").evidence


def test_an_engine_that_rounds_much_more_than_the_learner_is_found(tmp_path: Path) -> None:
    """Zero-mean, and below the cap token by token: three times the learner's rounding of 0.008 nats."""
    baseline, candidate = pair(plan=HALF, native=False)
    rng = np.random.default_rng(8)
    for frame in candidate.frames("rollout"):
        frame.arrays["logprob"].values += rng.choice([-0.03, 0.03], len(frame.arrays["logprob"].values))
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "DIVERGENT", verdict.reason
    assert "times the learner's own rounding" in check(verdict, "systematic").evidence


def test_a_trainer_away_from_float32_of_its_own_weights_is_found(tmp_path: Path) -> None:
    baseline, candidate = pair(plan=HALF, native=False)
    for recording in (baseline, candidate):
        for frame in recording.frames("experience"):
            frame.arrays["actor_logprob"].values += np.float32(0.03)
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "DIVERGENT", verdict.reason
    assert "learner against float32" in check(verdict, "systematic").evidence


def behind(recording: Recording) -> None:
    """The engine computes with the weights before the last update, and every digest is right."""
    rng = np.random.default_rng(6)
    for frame in recording.frames("rollout"):
        trained = recording.frame("experience", frame.step)
        if "behind_exact_logprob" in trained.arrays:
            truth = trained.arrays["behind_exact_logprob"].values
            frame.arrays["logprob"].values = truth + rng.normal(0, 0.008, len(truth))


def slowed(recording: Recording, share: float) -> None:
    """As at a smaller learning rate: an update moves log-probabilities by this share of what it did."""
    for frame in recording.frames("experience"):
        if "behind_exact_logprob" in frame.arrays:
            exact, then = frame.arrays["exact_logprob"].values, frame.arrays["behind_exact_logprob"].values
            moved = share * (then - exact)
            rounding = frame.arrays["behind_logprob"].values - then
            frame.arrays["behind_exact_logprob"].values = (exact + moved).astype(np.float32)
            frame.arrays["behind_logprob"].values = (exact + moved + rounding).astype(np.float32)


@pytest.mark.parametrize(("share", "expected"), [(1.0, "DIVERGENT"), (0.03, "DIVERGENT"), (0.001, "INCONCLUSIVE")])
def test_one_update_behind_is_found_or_not_tested(tmp_path: Path, share: float, expected: str) -> None:
    """Updates of 0.1 nats, of 3e-3 and of 1e-4 under rounding of 0.008."""
    plan = scenario(dtype="bfloat16", prompts=16, steps=8)
    baseline, candidate = pair(plan=plan, native=False)
    for recording in (baseline, candidate):
        slowed(recording, share)
    behind(candidate)
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == expected, verdict.reason
    told = check(verdict, "weights-in-use")
    if expected == "DIVERGENT":
        assert told.state == "confirmed" and causes(verdict) == ["STALE_WEIGHTS(one update behind)"]
        assert verdict.causes[0].party == "candidate"
    else:
        assert told.state == "not tested" and "standard errors" in told.evidence and "weights-in-use" in verdict.account


@pytest.mark.parametrize("side", SIDES)
def test_a_step_that_nobody_scored_before_its_update_rules_nothing_out(tmp_path: Path, side: str) -> None:
    """An engine that loads nothing any more from then on was ruled out by the steps before."""
    plan = scenario(dtype="bfloat16", prompts=16, steps=8)
    runs = dict(zip(SIDES, pair(plan=plan, native=False), strict=True))
    for name in ("behind_logprob", "behind_exact_logprob"):
        del runs[side].frame("experience", 7).arrays[name]
    told = check(put(tmp_path, runs["baseline"], runs["candidate"]), "weights-in-use")
    assert told.state == "not tested" and f"the {side}'s samples of step 7" in told.evidence


@pytest.mark.parametrize(
    ("dtype", "columns", "lacking"),
    [("float32", ("actor_logprob",), "engine"), ("bfloat16", EXACT, "learner against float32")],
)
def test_means_of_one_side_are_not_the_other_s(
    tmp_path: Path, dtype: str, columns: tuple[str, ...], lacking: str
) -> None:
    baseline, candidate = pair(plan=scenario(dtype=dtype), native=False)
    without(candidate, *columns)
    told = check(put(tmp_path, baseline, candidate), "systematic")
    assert told.state == "not tested" and told.evidence == f"the candidate's {lacking} was not compared"


def test_what_the_whole_run_tells_is_told_by_the_step_that_shows_it() -> None:
    rng, updates = np.random.default_rng(3), Updates()
    for step in range(1, 7):
        now, moved = -rng.exponential(1.2, 200), rng.normal(0, 0.1, 200)
        versions = (now, now), (now + moved, now + moved)
        updates.add(step, np.arange(200) // 10, versions[step >= 3][0] + rng.normal(0, 0.008, 200), *versions)
    told = [one for one in sides({"candidate": updates})["candidate"].behind if one.where == systematic.RUN]
    assert told and all(one.step >= 3 for one in told)


@pytest.mark.by_day(3)
@pytest.mark.parametrize(
    ("rounds", "at", "elsewhere", "state"),
    [
        (0.15, 5, 0.005, "ruled out"),
        (5.0, 5, 0.07, "ruled out"),  # a learner that trained itself far off rounds by more than the cap here and there
        (0.05, 5, 0.005, "confirmed"),
        (0.15, 7, 0.005, "confirmed"),
        (0.15, 5, 0.2, "confirmed"),  # a learner that rounds everywhere accounts for nothing
        (None, 5, 0.0, "confirmed"),
    ],
)
def test_a_token_that_the_learner_rounds_as_far_is_not_the_engine_s(
    tmp_path: Path, rounds: float | None, at: int, elsewhere: float, state: str
) -> None:
    """0.3 nats at one token of the engine against itself; its learner rounds by so much at that token, or another."""
    baseline, candidate = pair(plan=HALF, native=False)
    again = next(candidate.frames("floor", variant="prefill"))
    again.arrays["logprob"].values[5] += 0.3
    if rounds is not None:
        sizes = again.arrays["logprob"].copy()
        sizes.values = np.full(len(sizes.values), elsewhere, np.float32)
        sizes.values[at] = rounds
        sizes = jagged([np.concatenate([[9.0] * 3, row]).astype(np.float32) for row in sizes.rows()])  # of prompts
        fields = {**again.fields, "variant": "rounding"}
        arrays = {"sample": again.arrays["sample"].copy(), "rounding": sizes}
        candidate.logs["rollout"].frames.append(FrameRecord("floor", again.step, fields, arrays))
    assert check(put(tmp_path, baseline, candidate), "candidate-itself").state == state


@pytest.mark.parametrize(("wrong", "more"), [("learner", []), ("engine", ["UNEXPLAINED"]), ("choice", ["UNEXPLAINED"])])
def test_a_token_that_the_learner_alone_rounds_far_is_not_the_engine_s(
    tmp_path: Path, wrong: str, more: list[str]
) -> None:
    """A trainer that divides by the temperature, and one token: its learner is 7 nats off in bfloat16, and would not
    have drawn it; by float32 the engine is right. Controls: it is the engine that is off there, and its choice."""
    baseline, candidate = pair(plan=HALF, native=False)
    for frame in candidate.frames("experience"):
        learner = frame.arrays["actor_logprob"]
        learner.values = learner.values / np.float32(0.7)
        if frame.step == 2:
            if wrong == "learner":
                learner.values[30] -= 10.0
            frame.arrays["margin"].values[30] = -6.5 if wrong != "engine" else 1.0
    if wrong == "engine":
        candidate.frame("rollout", 2).arrays["logprob"].values[30] -= 10.0
    found = put(tmp_path, baseline, candidate)
    assert causes(found) == ["TRAINER(log-probabilities scaled)", *more], [vars(one) for one in found.causes]


@pytest.mark.parametrize(("off", "named"), [(0.09, ["ALIGNMENT"]), (3.0, ["ALIGNMENT", "UNEXPLAINED"])])
def test_a_short_sample_that_rounds_beside_a_shift_is_the_shift_s(tmp_path: Path, off: float, named: list[str]) -> None:
    """One of two tokens of a sample is 0.09 nats off after the shift, as rounding may be; 3 nats are a fault."""
    baseline, candidate = pair(plan=HALF, native=False)
    for frame in candidate.frames("rollout"):
        values = frame.arrays["logprob"]
        rows = [np.concatenate([row[1:], row[:1]]) for row in values.rows()]
        if frame.step == 1:
            short = next(at for at, row in enumerate(rows) if len(row) == 3)
            rows[short][0] += off
        values.values = np.concatenate(rows).astype(np.float32)
    assert causes(put(tmp_path, baseline, candidate)) == named


def test_an_update_that_nobody_scored_before_rules_nothing_out(tmp_path: Path) -> None:
    baseline, candidate = pair(plan=HALF, native=False)
    for recording in (baseline, candidate):
        without(recording, "behind_logprob", "behind_exact_logprob")
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "INCONCLUSIVE", verdict.reason
    assert check(verdict, "weights-in-use").state == "not tested"


@pytest.mark.parametrize(("alone", "expected"), [(True, "INCONCLUSIVE"), (False, "EQUIVALENT")])
def test_a_sound_engine_is_known_after_small_updates_where_it_rounds_like_its_learner(
    tmp_path: Path, alone: bool, expected: str
) -> None:
    """What an update of 1e-4 nats moved drowns in rounding; which weights rounded so does not."""
    baseline, candidate = pair(plan=HALF, native=False)
    rng = np.random.default_rng(9)
    for recording in (baseline, candidate):
        slowed(recording, 0.001)
        for frame in recording.frames("rollout") if alone else ():
            exact = recording.frame("experience", frame.step).arrays["exact_logprob"].values
            frame.arrays["logprob"].values = exact + rng.normal(0, 0.008, len(exact))
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == expected and not verdict.causes, verdict.reason


@pytest.mark.by_day(3)
@pytest.mark.parametrize(
    ("now", "before", "expected", "state"),
    [
        (8e-6, 1e-6, "DIVERGENT", "confirmed"),  # an update of 8e-6 nats, at a learning rate of 1e-6
        (1e-6, 8e-6, "EQUIVALENT", "ruled out"),
        (1.0e-6, 1.5e-6, "INCONCLUSIVE", "not tested"),  # an update as small as float32 rounds
        (1e-6, None, "INCONCLUSIVE", "not tested"),
        (1e-6, float("nan"), "INCONCLUSIVE", "not tested"),
    ],
)
def test_in_float32_the_proofs_tell_two_versions_apart(
    tmp_path: Path, now: float, before: float | None, expected: str, state: str
) -> None:
    """Within every tolerance, and each was EQUIVALENT: the proof was held against its tolerance only."""
    baseline, candidate = pair(native=False)
    for sync in candidate.events("sync"):
        if sync["version"]:
            own = 1 + sync["version"] / 100  # no proof is another one, to the last bit
            sync |= {"proof_max_delta": 2 * own * now, "proof_mean_delta": own * now, "proof_behind": before}
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == expected, verdict.reason
    assert check(verdict, "weights-in-use").state == state
    if expected == "DIVERGENT":
        assert causes(verdict) == ["STALE_WEIGHTS(one update behind)"] and verdict.causes[0].party == "candidate"
        assert verdict.causes[0].proofs


@pytest.mark.by_day(3)
@pytest.mark.parametrize(
    ("now", "before", "expected"),
    [(8e-6, 1e-6, "DIVERGENT"), (1e-6, 1.5e-6, "INCONCLUSIVE"), (1e-6, 8e-6, "EQUIVALENT")],
)
@pytest.mark.parametrize("side", SIDES)
def test_the_proofs_of_one_side_are_not_the_other_s(
    tmp_path: Path, side: str, now: float, before: float, expected: str
) -> None:
    """Each sync leaves a tensor out which moves nothing. Its proof holds, was not held against the version before, and
    each was EQUIVALENT by the proofs of the other side."""
    runs = dict(zip(SIDES, pair(native=False), strict=True))
    for sync in runs[side].events("sync"):
        sync["absent"] = ["lm_head.weight"]
        if sync["version"]:
            own = 1 + sync["version"] / 100
            sync |= {"proof_max_delta": 2 * own * now, "proof_mean_delta": own * now, "proof_behind": before}
    verdict = put(tmp_path, runs["baseline"], runs["candidate"])
    assert verdict.verdict == expected, verdict.reason
    if expected == "DIVERGENT":
        assert causes(verdict) == ["STALE_WEIGHTS(one update behind)"] and verdict.causes[0].party == side


@pytest.mark.by_day(2)
@pytest.mark.parametrize("versions", [range(1, 7), (3,)])
@pytest.mark.parametrize("side", SIDES)
def test_each_update_of_each_side_needs_a_proof(tmp_path: Path, side: str, versions: Iterable[int]) -> None:
    runs = dict(zip(SIDES, pair(native=False), strict=True))
    log = runs[side].logs["trainer"]
    log.events = [one for one in log.events if one[0] != "sync" or one[1]["version"] not in versions]
    told = check(put(tmp_path, runs["baseline"], runs["candidate"]), "weights-in-use")
    first = next(iter(versions))
    assert told.state == "not tested" and f"weight version {first} of the {side} from the one before" in told.evidence


def test_an_update_that_moves_nothing_needs_no_proof(tmp_path: Path) -> None:
    """A learning rate of 0 in the first step, as a warm-up begins."""
    runs = pair(native=False)
    for run in runs:
        first = {one["source"]: one["digests"] for one in run.events("weights", version=0)}
        for event in run.events("weights", version=1):
            event["digests"] = first[event["source"]]
        for sync in run.events("sync", version=1):
            sync["proof_behind"] = sync["proof_mean_delta"]
    verdict = put(tmp_path, *runs)
    assert verdict.verdict == "EQUIVALENT", verdict.reason


def test_a_replay_from_a_checkpoint_needs_no_proof_of_what_it_does_not_cover(tmp_path: Path) -> None:
    baseline, candidate = pair(native=False)
    for log in candidate.logs.values():
        weights = [one for one in log.events if one[0] in ("weights", "sync") and one[1]["version"] >= 2]
        others = [one for one in log.events if one[0] not in ("weights", "sync") and one[1].get("step", 2) >= 2]
        log.events = [*others, *weights]
        log.frames = [one for one in log.frames if one.kind == "floor" or one.step >= 2]
    for frame in candidate.frames("rollout"):
        frame.fields.update(mode="replay", guided=False)
    candidate.manifest |= {"sampling_mode": "replay", "replay": {"of": "x", "first_step": 2, "stop": 6}}
    candidate.made = {}
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "EQUIVALENT", verdict.reason


@pytest.mark.by_day(2)
@pytest.mark.parametrize(
    ("held", "expected"),
    [
        ((0, 0, 1, 2, 3, 4), "one update behind"),
        ((0, 1, 2, 2, 2, 2), "frozen at version 2"),
        ((0, 1, 1, 1, 4, 5), "frozen at version 1"),  # and is sound again
        ((0, 1, 1, 3, 3, 5), "one update behind"),  # of every second version
        ((0, 1, 1, None, None, None), "earlier versions"),
    ],
)
def test_in_float32_the_proofs_tell_a_frozen_engine_from_one_that_is_behind(
    tmp_path: Path, held: tuple[int | None, ...], expected: str
) -> None:
    """The learner moves by a tenth of a nat with each update. `held`: what the engine computes with at each version;
    None: with something that no version is."""
    baseline, candidate = pair(native=False)
    for version, sync in enumerate(candidate.events("sync")):
        own, last = (held[min(at, len(held) - 1)] if at >= 0 else 0 for at in (version, version - 1))
        away = [0.1 * abs(at - (0.37 * version if one is None else one)) + 1e-7
                for at, one in ((version, own), (version - 1, own), (version, last))]  # fmt: skip
        sync |= {"proof_max_delta": 2 * away[0], "proof_mean_delta": away[0]}
        sync |= {"proof_behind": away[1], "proof_stale": away[2]} if version else {}
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "DIVERGENT", verdict.reason
    assert causes(verdict) == [f"STALE_WEIGHTS({expected})"] and verdict.causes[0].party == "candidate"


@pytest.mark.by_day(2)
@pytest.mark.parametrize("by", [0.04, 0.001])
@pytest.mark.parametrize("column", ["reward", "value", "advantage", "return", "reference_logprob"])
def test_what_must_be_bit_identical_is_compared_bit_by_bit(tmp_path: Path, column: str, by: float) -> None:
    """All rewards + 0.04 were EQUIVALENT in bfloat16, for the tolerance of log-probabilities."""
    baseline, candidate = pair(plan=HALF, native=False)
    for frame in candidate.frames("experience"):
        array = frame.arrays[column]
        if column == "reward":
            frame.arrays[column] = array + np.float32(by)
        else:
            array.values = array.values + np.float32(by)
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "DIVERGENT", verdict.reason
    name = "rewards" if column == "reward" else "experience"
    assert check(verdict, name).state == "confirmed" and verdict.parity.first_divergence.step == 0


@pytest.mark.by_day(3)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("column", ["reward", "value", "advantage"])
def test_the_last_bit_of_one_number_is_found(tmp_path: Path, column: str, dtype: str) -> None:
    baseline, candidate = pair(plan=scenario(dtype=dtype), native=False)
    frame = candidate.frame("experience", 2)
    numbers = frame.arrays[column] if column == "reward" else frame.arrays[column].values
    numbers[5] = np.nextafter(numbers[5], np.float32(9))
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "DIVERGENT" and verdict.parity.first_divergence.step == 2, verdict.reason
    assert check(verdict, "rewards" if column == "reward" else "experience").state == "confirmed"


@pytest.mark.parametrize(("by", "expected"), [(0.04, "confirmed"), (0.005, "ruled out")])
def test_rewards_of_a_framework_may_round_and_no_more(tmp_path: Path, by: float, expected: str) -> None:
    baseline, candidate = pair(plan=HALF, native=False)
    for recording in (baseline, candidate):
        recording.manifest["framework"] = "verl"
    for frame in candidate.frames("experience"):
        # On average nothing: a shift of all of them is no rounding.
        away = np.where(np.arange(len(frame.arrays["reward"])) % 2, by, -by)
        frame.arrays["reward"] = frame.arrays["reward"] + away.astype(np.float32)
    verdict = put(tmp_path, baseline, candidate)
    assert check(verdict, "rewards").state == expected


# --- what was measured, and what it is called -----------------------------------------------------------


def test_a_cap_that_decided_is_not_called_a_floor(tmp_path: Path) -> None:
    verdict = put(tmp_path / "half", *pair(plan=HALF, native=False))
    assert verdict.verdict == "EQUIVALENT", verdict.reason
    assert "cap, not floor" in verdict.account and "within the floor" not in verdict.account
    assert verdict.parity.floor["decided by"] == "the cap, not a floor"
    single = put(tmp_path / "single", *pair(native=False))
    assert "within the floor" in single.account and single.parity.floor["decided by"] == "the floor"


def test_between_a_small_floor_and_the_cap_nothing_is_ruled_out_unmeasured(tmp_path: Path) -> None:
    """Engines that round alike each time have no floor; how others round was measured by nobody here."""
    baseline, candidate = pair(plan=HALF, native=False)
    for recording in (baseline, candidate):
        coarse(recording, 6e-5)
        without(recording, *EXACT)
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "INCONCLUSIVE", verdict.reason
    assert "between ten floors" in check(verdict, "logprobs").evidence


def test_figures_beyond_a_published_limit_are_told_above_an_equivalent_verdict(tmp_path: Path) -> None:
    """Both engines are as far from the learner as it rounds itself: equivalent, and bad by what others publish."""
    plan = scenario(dtype="bfloat16", prompts=8)
    baseline, candidate = pair(plan=plan, native=False, noise=0.001)
    rng = np.random.default_rng(4)
    for step in range(plan.steps):
        truth = baseline.frame("experience", step).arrays["actor_logprob"].values
        moved = rng.choice([-0.045, 0.045], len(truth)).astype(np.float32)
        for recording in (baseline, candidate):
            recording.frame("rollout", step).arrays["logprob"].values += moved
            trained = recording.frame("experience", step).arrays
            for name in ("exact_logprob", "behind_exact_logprob", "behind_logprob"):
                if name in trained:
                    trained[name].values += moved * np.float32(0.5)
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "EQUIVALENT", verdict.reason
    assert "mean_delta_logprob" in verdict.account
    for name in ("text", "md", "html", "junit"):
        shown = render(verdict, name)
        at = shown.lower().index("beyond published limits")
        assert name == "junit" or at < shown.rindex("EQUIVALENT"), name
        assert at < shown.index("every check is within"), name


# --- controls ---------------------------------------------------------------------------------------


@pytest.mark.by_day(2)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("noise", [None, 0.002, 0.01])
def test_rounding_with_mean_zero_is_no_alarm(tmp_path: Path, seed: int, noise: float | None) -> None:
    plan = scenario(dtype="bfloat16", seed=seed)
    baseline, candidate = pair(plan=plan, native=False, noise=noise)
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "EQUIVALENT", verdict.reason
    told = check(verdict, "systematic")
    assert told.state == "ruled out" and "would be found" in told.evidence
    assert told.details["smallest"]["logprob"]["bias of the run"] < 0.01


def test_the_false_alarms_are_those_that_are_stated() -> None:
    """Rounding that the samples of a prompt share in part, with heavy tails: 1,000 verdicts."""
    rng, alarms, naive = np.random.default_rng(0), 0, 0
    trials, steps, prompts, tokens = 1000, 4, 8, 40
    for _ in range(trials):
        drift = systematic.Drift()
        for step in range(steps):
            cluster = np.arange(prompts) + 100 * step
            shared = np.repeat(rng.normal(0, 0.004, prompts), tokens)
            delta = shared + 0.004 * rng.standard_t(3, prompts * tokens)
            grid = Grid(np.full(prompts, tokens))
            drift.add(step, cluster, LogprobPairs(grid, np.ones(grid.size, bool), np.zeros(grid.size), delta, cluster))
        found = systematic.tested({ENGINES: drift}, systematic.Null(1.0, systematic.RESOLVED, None))[ENGINES]
        alarms += any(one.found for one in found)
        table = next(drift.tables())[2]
        every = table[:, 0].sum()
        naive += abs(table[:, 1].sum() / every) > 4 * np.sqrt(table[:, 2].sum()) / every
    assert alarms <= 10 * systematic.FALSE_ALARM * trials
    assert naive > 50 * systematic.FALSE_ALARM * trials  # of tokens that were taken for independent


def test_a_mean_of_clusters_has_the_error_of_clusters() -> None:
    clusters = Clusters()
    clusters.add(np.array([7, 7, 9, 9]), np.array([1.0, 1.0, 3.0, 3.0]))
    clusters.add(np.array([7]), np.array([1.0]))
    table = clusters.table()
    assert sorted(table[:, 0]) == [2, 3]
    found = Mean.of(table, table[:, 1])
    assert found.value == pytest.approx(9 / 5) and found.clusters == 2 and found.tokens == 5
    assert found.error == pytest.approx(np.sqrt(2 * (2.4**2 + 2.4**2)) / 5)
    assert np.isinf(Mean.of(table[:1], table[:1, 1]).error)


# --- choices that rounding turns ----------------------------------------------------------------------


@pytest.mark.by_day(2)
@pytest.mark.parametrize(
    ("flips", "margin", "second", "found"),
    [(1, 0.13, True, 0), (12, 0.13, True, 12), (1, 0.9, True, 1), (1, 0.13, False, 1)],
)
def test_one_choice_turned_by_a_token_that_rounds_far_is_no_difference(
    flips: int, margin: float, second: bool, found: int, tmp_path: Path
) -> None:
    """vLLM against SGLang in bfloat16: 1 of 2,937 choices was turned over a margin of 0.104 nats, 0.1 was allowed."""
    baseline, candidate = pair(plan=scenario(dtype="bfloat16", prompts=16), native=False)
    frame, other = (one.frame("rollout", 2).arrays["output"] for one in (baseline, candidate))
    experience = baseline.frame("experience", 2)
    for row in range(flips):
        at, place = int(frame.offsets[row]) + 2, int(experience.arrays["tokens"].offsets[row]) + 2
        other.values[at] = frame.values[at] + 1
        experience.arrays["margin"].values[place] = margin
        experience.arrays["runner_up"].values[place] = frame.values[at] + (1 if second else 2)
    e = judged_pair(
        baseline.write(tmp_path / "baseline"), candidate.write(tmp_path / "candidate"), native=False
    ).evidence
    assert e is not None and len(e.found(Kind.FLIP.of())) == found
    assert len(e.flips.table) == found and e.counts.flips_beyond_margin == found


@pytest.mark.by_day(2)
@pytest.mark.parametrize(
    ("choices", "edge", "found"), [(1, 0.1, 0), (12, 0.1, 12), (1, 0.4, 1), (1, float("nan"), 1), (1, None, 1)]
)
def test_one_choice_that_the_far_edge_of_a_filter_turns_is_no_difference(
    choices: int, edge: float | None, found: int, tmp_path: Path
) -> None:
    """vLLM and SGLang in bfloat16 at top-k 20 and top-p 0.8: 1 of 2,937 choices, 2.7 nats below the learner's."""
    baseline, candidate = pair(plan=scenario(dtype="bfloat16", prompts=16), native=False)
    for run in (baseline, candidate):
        experience = run.frame("experience", 2)
        tokens = experience.arrays["tokens"]
        if edge is not None:
            experience.arrays["edge"] = Jagged(np.zeros(len(tokens.values), np.float32), tokens.lengths)
        for row in range(choices):
            place = int(tokens.offsets[row]) + 2
            experience.arrays["margin"].values[place] = -2.7
            if edge is not None:
                experience.arrays["edge"].values[place] = edge
    e = judged_pair(
        baseline.write(tmp_path / "baseline"), candidate.write(tmp_path / "candidate"), native=False
    ).evidence
    assert e is not None
    assert [len(e.found(Kind.CHOICE.of(side))) for side in SIDES] == [found, found]


@pytest.mark.by_day(2)
@pytest.mark.parametrize(
    ("flips", "edge", "found"), [(1, 0.1, 0), (12, 0.1, 12), (1, 0.4, 1), (1, float("nan"), 1), (1, None, 1)]
)
def test_one_flip_that_the_far_edge_of_a_filter_turns_is_no_difference(
    flips: int, edge: float | None, found: int, tmp_path: Path
) -> None:
    """vLLM and SGLang in bfloat16 at top-k 20 and top-p 0.8: 1 of 3,053 tokens, 0.73 nats behind the learner's."""
    baseline, candidate = pair(plan=scenario(dtype="bfloat16", prompts=16), native=False)
    frame, other = (run.frame("rollout", 2).arrays["output"] for run in (baseline, candidate))
    experience = baseline.frame("experience", 2).arrays
    lengths = experience["tokens"].lengths
    drawn = candidate.frame("experience", 2).arrays
    if edge is not None:
        drawn["drawn_edge"] = Jagged(np.full(len(experience["tokens"].values), np.nan, np.float32), lengths)
    for row in range(flips):
        at, place = int(frame.offsets[row]) + 2, int(experience["tokens"].offsets[row]) + 2
        other.values[at] = frame.values[at] + 1
        experience["margin"].values[place] = 0.73
        experience["runner_up"].values[place] = frame.values[at] + 2
        if edge is not None:
            drawn["drawn_edge"].values[place] = edge
    e = judged_pair(
        baseline.write(tmp_path / "baseline"), candidate.write(tmp_path / "candidate"), native=False
    ).evidence
    assert e is not None and len(e.found(Kind.FLIP.of())) == found
