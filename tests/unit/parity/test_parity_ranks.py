"""The ranks of a learner: what they do otherwise than one process is named, with the rank, and nothing else is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from framework_recordings import PLAN, job
from recordings import TENSORS, FrameRecord, Jagged, Recording, causes, check, make, put, scenario

from harness.errors import HarnessError
from harness.parity.runs.recording import check_ranks
from harness.parity.subjects.learner.observed_roles import role_faults
from harness.parity.subjects.ranks.observed import Ranks, Updates
from harness.parity.subjects.ranks.observed_faults import What, _orders, dealt, divided, rank_faults, summed
from harness.recordings.store import Recording as Stored
from probes import weights
from reports.model import Verdict
from scenarios.ppo.advantages import whiten

FROM = 2  # the step from which on a test plants its fault


def run(side: str, world: int = 2, **ppo: Any) -> Recording:
    plan = scenario()
    return make(
        side, dataclasses.replace(plan, ppo=dataclasses.replace(plan.ppo, world_size=world, **ppo)), native=False
    )


def frames(made: Recording, rank: int | None = None, role: str = "actor") -> list[FrameRecord]:
    """Updates of a role from `FROM` on; of one rank, or of all."""
    return [frame for log in made.logs.values() if rank in (None, log.rank) for frame in log.frames
            if frame.kind == "updates" and frame.step >= FROM and frame.fields["role"] == role]  # fmt: skip


def another(made: Recording) -> None:
    """From `FROM` on the learner is another one, as after a fault of its updates."""
    for event in made.events("learner"):
        if event["step"] >= FROM:
            event |= {"actor": f"{event['step']:032}", "critic": f"{event['step']:032}"}
    for event in made.events("weights"):
        if event["version"] > FROM:
            event["digests"] = dict.fromkeys(event["digests"], f"{event['version']:032}")


def judged(folder: Path, plant: Callable[[Recording], None], world: int = 2) -> Verdict:
    candidate = run("candidate", world)
    plant(candidate)
    another(candidate)
    candidate.made = {}
    return put(folder, run("baseline", world), candidate)


def named(verdict: Verdict, what: What, *words: str, ranks: tuple[int, ...] = (1,)) -> None:
    assert verdict.verdict == "DIVERGENT", verdict.reason
    assert causes(verdict) == [f"TRAINER({what})"] and verdict.causes[0].party == "trainer"
    assert verdict.causes[0].details["ranks"] == list(ranks) and verdict.causes[0].details["side"] == "candidate"
    told = verdict.causes[0].summary + verdict.causes[0].evidence
    assert all(word in told for word in words), told
    assert check(verdict, "ranks").state == "confirmed"


def digest_again(made: Recording, step: int, role: str, column: Jagged) -> None:
    """The ranks of this role say that these numbers are what they answered."""
    for event in made.events("share"):
        if event["step"] == step and event["phase"] == f"{role}_forward":
            rows = np.array(event["samples"]) % len(column.lengths)  # samples are numbered on from step to step
            answer = np.ascontiguousarray(column.take(rows).values, np.float32)
            event |= {"digest": weights.digest(answer), "sorted": weights.digest(np.sort(answer))}


def exchanged_pair(values: np.ndarray) -> np.ndarray:
    return values[[1, 0, *range(2, len(values))]]


def larger(values: np.ndarray) -> np.ndarray:
    return values + np.float32(0.5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("column", "change", "faults"),
    [
        ("reward", exchanged_pair, [What.EXCHANGED]),
        ("reward", larger, [What.ALTERED]),
        ("value", exchanged_pair, [What.EXCHANGED]),
        ("value", larger, [What.ALTERED]),
        ("actor_logprob", exchanged_pair, []),  # scored again and compared elsewhere
        ("actor_logprob", larger, []),
    ],
)
def test_an_experience_that_holds_other_numbers_than_were_answered(
    tmp_path: Path, column: str, change: Callable[[np.ndarray], np.ndarray], faults: list[What]
) -> None:
    made = run("candidate")
    experience = next(frame for frame in made.logs["trainer"].frames
                      if frame.kind == "experience" and frame.step == FROM)  # fmt: skip
    numbers = experience.arrays[column]
    values = numbers.values if isinstance(numbers, Jagged) else numbers
    values[:] = change(values)
    made.made = {}
    found = rank_faults(Ranks(Stored(made.write(tmp_path / "run"))))
    assert [(fault.what, fault.steps, fault.ranks) for fault in found] == [(what, (FROM,), ()) for what in faults]


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
def test_sound_ranks_are_ruled_out(tmp_path: Path, world: int) -> None:
    verdict = put(tmp_path, run("baseline", world), run("candidate", world))
    assert verdict.verdict == "EQUIVALENT", verdict.reason
    assert check(verdict, "ranks").state == "ruled out" and f"{world} ranks" in check(verdict, "ranks").evidence


@pytest.mark.slow
def test_a_learner_of_one_rank_has_no_such_check(tmp_path: Path) -> None:
    verdict = put(tmp_path, run("baseline", 1), run("candidate", 1))
    assert verdict.parity is not None and "ranks" not in {one.name for one in verdict.parity.checks}


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["updates", "share"])
def test_ranks_that_recorded_nothing_are_not_tested(tmp_path: Path, lost: str) -> None:
    candidate = run("candidate")
    candidate.drop(lost)
    verdict = put(tmp_path, run("baseline"), candidate)
    assert verdict.verdict == "INCONCLUSIVE" and check(verdict, "ranks").state == "not tested"


@pytest.mark.slow
def test_numbers_of_ranks_that_are_none_are_no_crash(tmp_path: Path) -> None:
    candidate = run("candidate")
    for event in candidate.events("share"):
        event |= {"rank": "inf", "samples": [[0], "nan", None]}
    assert put(tmp_path, run("baseline"), candidate).verdict == "INCONCLUSIVE"


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["updates", "share"])
def test_a_rank_that_did_not_record_one_step_is_not_tested(tmp_path: Path, lost: str) -> None:
    candidate = run("candidate")
    log = candidate.logs["critic 1"]
    log.frames = [one for one in log.frames if one.kind != lost or one.step != 3]
    log.events = [one for one in log.events if one[0] != lost or one[1]["step"] != 3]
    verdict = put(tmp_path, run("baseline"), candidate)
    assert verdict.verdict == "INCONCLUSIVE" and "step 3" in check(verdict, "ranks").evidence


@pytest.mark.slow
def test_the_ranks_of_one_frameworks_job_are_not_the_others(tmp_path: Path) -> None:
    plan = dataclasses.replace(PLAN, ppo=dataclasses.replace(PLAN.ppo, world_size=2))
    runs = job("baseline", plan=plan), job("candidate", plan=plan)
    assert check(put(tmp_path / "sound", *runs), "ranks").state == "ruled out"
    runs[1].drop("updates", "share")
    assert check(put(tmp_path / "silent", *runs), "ranks").state == "not tested"


@pytest.mark.slow
def test_a_rank_that_trains_on_anothers_samples(tmp_path: Path) -> None:
    def plant(made: Recording) -> None:
        for own, other in zip(frames(made, 1), frames(made, 0), strict=True):
            own.fields |= {name: other.fields[name] for name in ("samples", "tokens")}

    named(judged(tmp_path, plant), What.DEALT, "rank 1", "from step 2 on", "did something else than in the other run")


@pytest.mark.slow
def test_ranks_that_are_dealt_other_samples_of_a_batch_are_confounded(tmp_path: Path) -> None:
    def exchanged(made: Recording) -> None:
        for role in ("actor", "critic"):
            for own, other in zip(frames(made, 1, role), frames(made, 0, role), strict=True):
                for mine, its in zip(own.fields["samples"], other.fields["samples"], strict=True):
                    mine[0], its[-1] = its[-1], mine[0]

    verdict = judged(tmp_path, exchanged)
    assert verdict.verdict == "CONFOUNDED" and verdict.causes == [], verdict.reason
    [confounder] = verdict.confounders
    assert confounder.name == "samples of the ranks" and "step 2 rank 0" in confounder.summary


@pytest.mark.slow
def test_nobody_is_blamed_for_a_sample_of_two_ranks_where_the_other_run_has_no_ranks(tmp_path: Path) -> None:
    candidate = run("candidate")
    for own, other in zip(frames(candidate, 1), frames(candidate, 0), strict=True):
        own.fields |= {name: other.fields[name] for name in ("samples", "tokens")}
    another(candidate)
    candidate.made = {}
    named(put(tmp_path, run("baseline", 1), candidate), What.DEALT, ranks=())


@pytest.mark.slow
def test_a_rank_that_trains_on_one_sample_twice(tmp_path: Path) -> None:
    def plant(made: Recording) -> None:
        for own in frames(made, 1):
            own.fields["samples"] = [[one[0], *one[:-1]] for one in own.fields["samples"]]

    named(judged(tmp_path, plant), What.DEALT, "rank 1", "sample")


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "words"), [(2, "by the number of ranks as well"), (3, "ranks 0 and 1 by")])
def test_a_loss_that_the_number_of_ranks_divides(tmp_path: Path, factor: int, words: str) -> None:
    def plant(made: Recording) -> None:
        for own in frames(made):
            own.fields["divisors"] = [factor * one for one in own.fields["divisors"]]

    named(judged(tmp_path, plant), What.DIVISOR, words, ranks=())


@pytest.mark.slow
def test_losses_that_are_means_of_each_ranks_own_tokens(tmp_path: Path) -> None:
    def plant(made: Recording) -> None:
        for own in frames(made):
            own.fields["divisors"] = list(own.fields["tokens"])

    named(judged(tmp_path, plant), What.DIVISOR, "each rank divides by its own", ranks=())


@pytest.mark.slow
def test_a_loss_that_one_rank_divides_otherwise(tmp_path: Path) -> None:
    def plant(made: Recording) -> None:
        for own in frames(made, 1):
            own.fields["divisors"] = [one + 1 for one in own.fields["divisors"]]

    named(judged(tmp_path, plant), What.DIVISOR, "rank 1 by")


def gradients(made: Recording) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The first tensor's (own, applied) numbers of each rank, of one step."""
    each = [next(frame for frame in frames(made, rank) if frame.step == FROM).arrays for rank in (0, 1)]
    return [one["own"] for one in each], [one["summed"] for one in each]  # type: ignore[misc]


@pytest.mark.slow
def test_a_rank_that_applies_its_own_gradient(tmp_path: Path) -> None:
    def plant(made: Recording) -> None:
        own, applied = gradients(made)
        applied[1][0] = own[1][0]

    named(judged(tmp_path, plant), What.GRADIENT, "rank 1", TENSORS[0], "applied its own")


@pytest.mark.slow
def test_a_rank_whose_gradient_is_missing_in_the_sum(tmp_path: Path) -> None:
    def plant(made: Recording) -> None:
        own, applied = gradients(made)
        for one in applied:
            one[3] = own[0][3]

    named(judged(tmp_path, plant), What.GRADIENT, "rank 1", TENSORS[3], "lacks that of rank 1")


@pytest.mark.slow
def test_gradients_that_are_averaged_where_losses_are_made_for_the_sum(tmp_path: Path) -> None:
    def plant(made: Recording) -> None:
        for one in gradients(made)[1]:
            one /= 2

    named(judged(tmp_path, plant), What.GRADIENT, "the mean", "and 5 more", ranks=())


@pytest.mark.parametrize("share", [0.4, 3.0])
def test_a_sum_that_only_rounds_otherwise_is_one(share: float) -> None:
    own = np.array([[[1.0, -2.0]], [[3.0, 5.0]]])
    size = np.full((1, 2), 1e3)
    off = share * 2.0**-23 * 2 * 2e3

    def updates(rank: int, applied: np.ndarray) -> Updates:
        return Updates(rank, ("a", "b"), ((1,),), (1,), (1,), "", own[rank], size, applied, np.ones(1), np.zeros(2))

    group = {rank: updates(rank, own.sum(axis=0) + off) for rank in (0, 1)}
    assert bool(list(summed("actor", 0, group))) == (share > 1)


@pytest.mark.slow
def test_a_rank_that_does_not_apply_an_update(tmp_path: Path) -> None:
    def plant(made: Recording) -> None:
        for own in frames(made, 1):
            own.arrays["weights"] = own.arrays["weights"] - 1.0 if own.step > FROM else own.arrays["weights"][[0, 0]]  # type: ignore[index, operator]
            own.fields["digest"] = "0" * 32

    named(judged(tmp_path, plant), What.UPDATE, "rank 1", "in step 2", "did not move those of rank 1")


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_weights_that_part_between_two_updates_are_told_by_the_other_run(tmp_path: Path, rank: int) -> None:
    def plant(made: Recording) -> None:
        for own in frames(made, rank):
            own.arrays["weights"] = own.arrays["weights"] + 0.5  # type: ignore[operator]
            own.fields["digest"] = "0" * 32

    named(judged(tmp_path, plant), What.APART, f"rank {rank}", "before the first update of step 2", ranks=(rank,))


@pytest.mark.slow
def test_samples_that_one_ranks_weights_scored_are_explained_and_others_are_not(tmp_path: Path) -> None:
    def plant(made: Recording) -> None:
        for own in frames(made, 1):
            own.fields["digest"] = "0" * 32
        for frame in made.frames("experience"):
            if frame.step > FROM:
                column = frame.arrays["actor_logprob"]
                assert isinstance(column, Jagged)
                column.values[column.offsets[8] :] -= 0.3  # those of rank 1

    named(judged(tmp_path / "own", plant), What.APART, "rank 1")

    def more(made: Recording) -> None:
        plant(made)
        column = made.frame("experience", 4).arrays["actor_logprob"]
        assert isinstance(column, Jagged)
        column.values[: column.offsets[8]] -= 0.3

    verdict = judged(tmp_path / "more", more)
    assert "UNEXPLAINED" in causes(verdict) and f"TRAINER({What.APART})" in causes(verdict)


@pytest.mark.slow
@pytest.mark.parametrize("column", ["reward", "value"])
def test_answers_that_are_put_together_in_another_order_of_ranks(tmp_path: Path, column: str) -> None:
    def plant(made: Recording) -> None:
        for frame in made.frames("experience"):
            if frame.step >= FROM:
                own = frame.arrays[column]
                order = np.roll(np.arange(16), 8)
                if isinstance(own, Jagged):  # as many numbers a sample as its response has tokens
                    values = np.concatenate(own.take(order).rows())
                    frame.arrays[column] = Jagged(values, own.lengths)
                else:
                    frame.arrays[column] = own[order]

    named(judged(tmp_path, plant), What.ANSWERS, "in the order 1, 0", ranks=())


@pytest.mark.slow
def test_advantages_that_are_normalised_by_rank(tmp_path: Path) -> None:
    runs = [run(side, normalize_advantages=True) for side in ("baseline", "candidate")]
    for made, parts in zip(runs, (1, 2), strict=True):
        for frame in made.frames("experience"):
            returns, value, told = (frame.arrays[name] for name in ("return", "value", "advantage"))
            assert isinstance(returns, Jagged) and isinstance(value, Jagged) and isinstance(told, Jagged)
            raw = Jagged((returns.values - value.values).astype(np.float32), returns.lengths).rows()
            size = len(raw) // parts
            shares = [whiten(raw[first : first + size]) for first in range(0, len(raw), size)]
            told.values = np.concatenate([row for share in shares for row in share])
        made.made = {}
    another(runs[1])
    verdict = put(tmp_path, *runs)
    named(verdict, What.ADVANTAGES, "in every step", ranks=())


@pytest.mark.slow
def test_a_role_of_which_one_rank_answers_otherwise(tmp_path: Path) -> None:
    def plant(made: Recording, samples: slice) -> None:
        for frame in made.frames("experience"):
            column = frame.arrays["reference_logprob"]
            assert isinstance(column, Jagged)
            column.values[column.offsets[samples.start] : column.offsets[samples.stop]] -= 0.2
            digest_again(made, frame.step, "reference", column)
        made.made = {}

    for name, samples, ranks in (("one", slice(8, 16), [1]), ("both", slice(4, 12), None)):
        candidate = run("candidate")
        plant(candidate, samples)
        another(candidate)
        verdict = put(tmp_path / name, run("baseline"), candidate)
        assert verdict.verdict == "DIVERGENT"
        cause = next((one for one in verdict.causes if one.name == "TRAINER(answers of a rank)"), None)
        assert (cause and cause.details["ranks"]) == ranks


@pytest.mark.slow
def test_two_runs_with_the_same_fault_are_both_named(tmp_path: Path) -> None:
    runs = [run(side) for side in ("baseline", "candidate")]
    for made in runs:
        for own in frames(made):
            own.fields["divisors"] = [2 * one for one in own.fields["divisors"]]
    verdict = put(tmp_path, *runs)
    assert verdict.verdict == "DIVERGENT"
    assert [one.details["side"] for one in verdict.causes] == ["baseline", "candidate"]


def test_epochs_deal_each_sample_anew() -> None:
    def updates(rank: int, *batches: tuple[int, ...]) -> Updates:
        empty = np.zeros((len(batches), 0))
        counts = tuple(map(len, batches))
        return Updates(rank, (), batches, counts, counts, "", empty, empty, empty, np.zeros(len(batches)), np.zeros(1))

    sound = {0: updates(0, (1,), (4,)), 1: updates(1, (2,), (3,))}
    assert not list(dealt("actor", 0, sound, [1, 2, 3, 4], 1))
    anew = {0: updates(0, (1, 2), (2, 3)), 1: updates(1, (3, 4), (4, 1))}
    assert not list(dealt("actor", 0, anew, [1, 2, 3, 4], 2)) and not list(dealt("actor", 0, anew, [1, 2, 3, 4], 0))
    assert [one.ranks for one in dealt("actor", 0, anew, [1, 2, 3, 4], 1)] == [()]
    assert [one.ranks for one in dealt("actor", 0, sound, [1, 2, 3, 4, 5], 1)] == [()]
    assert [one.ranks for one in divided("actor", 0, sound)] == [()]


def test_orders_of_ranks_begin_with_their_own() -> None:
    assert list(_orders(2)) == [(0, 1), (1, 0)]
    assert next(_orders(6)) == (0, 1, 2, 3, 4, 5) and (5, 4, 3, 2, 1, 0) in set(_orders(6))


def normed(made: Recording, norm: float) -> None:
    for event in made.events("step"):
        event["metrics"]["grad_norm"] = norm


@pytest.mark.by_day(3)
@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize(("factor", "right"), [(0.5, True), (2.0, True), (0.52, False), (1.0, False)])
def test_gradients_that_are_as_many_times_the_others_as_there_are_ranks(
    tmp_path: Path, world: int, factor: float, right: bool
) -> None:
    baseline, candidate = run("baseline", world), run("candidate")
    normed(baseline, 3.0)
    normed(candidate, 3.0 * factor)
    another(candidate)
    verdict = put(tmp_path, baseline, candidate)
    if right:
        assert causes(verdict) == [f"TRAINER({What.DIVISOR})"]
        assert "times: the number of ranks" in verdict.causes[0].evidence
        assert verdict.verdict == "DIVERGENT" and verdict.causes[0].details["steps"] == [FROM]
    else:
        assert verdict.verdict == ("CONFOUNDED" if world == 1 else "DIVERGENT")
        assert causes(verdict) == ([] if world == 1 else ["UNEXPLAINED"])


def times_own(made: Recording, by: float, *, ranks: tuple[int, ...] = (0, 1), exchanged: bool = False) -> None:
    """Divide what each rank made by its own tokens, times `by`, instead of by all of the first mini-batch."""
    first = [next(frame.fields["tokens"][0] for frame in frames(made, rank)) for rank in (0, 1)]
    for rank in ranks:
        for own in frames(made, rank):
            own.arrays["size"] = own.arrays["size"] * (sum(first) / (by * first[1 - rank if exchanged else rank]))


@pytest.mark.slow
@pytest.mark.parametrize(("by", "how"), [(2.0, "mean"), (1.0, "sum")])
@pytest.mark.parametrize("side", ["baseline", "candidate"])
def test_gradients_of_a_loss_that_each_rank_divides_by_its_own_tokens(
    tmp_path: Path, side: str, by: float, how: str
) -> None:
    """What divisors were recorded is right, and not what was divided by."""
    baseline, candidate = run("baseline"), run("candidate")
    another(candidate)
    candidate.made = {}
    times_own(baseline if side == "baseline" else candidate, by)
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "DIVERGENT" and causes(verdict) == [f"TRAINER({What.DIVISOR})"]
    named = verdict.causes[0]
    assert named.details["side"] == side and named.party == "trainer" and named.details["steps"] == [FROM]
    assert f"the {side} applies the {how} of its ranks' means" in named.evidence


@pytest.mark.slow
@pytest.mark.parametrize("how", [{"ranks": (0,)}, {"exchanged": True}, {"ranks": ()}])
def test_gradients_that_no_ranks_own_tokens_explain(tmp_path: Path, how: dict[str, Any]) -> None:
    baseline, candidate = run("baseline"), run("candidate")
    another(candidate)
    candidate.made = {}
    times_own(candidate, 2.0, **how)
    assert causes(put(tmp_path, baseline, candidate)) == ["UNEXPLAINED"]


@pytest.mark.slow
def test_gradients_on_another_batch_are_no_sign_of_ranks(tmp_path: Path) -> None:
    baseline, candidate = run("baseline"), run("candidate")
    normed(baseline, 3.0)
    normed(candidate, 1.5)
    another(candidate)
    next(candidate.events("learner", step=FROM))["batch"] = "0" * 32
    candidate.made = {}
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict != "EQUIVALENT" and f"TRAINER({What.DIVISOR})" not in causes(verdict)


@pytest.mark.slow
def test_a_single_run_whose_ranks_part_ends_in_an_error(tmp_path: Path) -> None:
    check_ranks(run("baseline").write(tmp_path / "sound"))
    check_ranks(run("baseline", 1).write(tmp_path / "alone"))
    candidate = run("candidate")
    for own in frames(candidate, 1):
        own.fields["digest"] = "0" * 32
    with pytest.raises(HarnessError, match="the actor's ranks hold other weights; the run was recorded in"):
        check_ranks(candidate.write(tmp_path / "parted"))


def scored(made: Recording, step: int, role: str, samples: int, tokens: int) -> None:
    made.logs[role].event("shapes", step=step, phase=f"{role}_forward", tensors={}, samples=samples, real_tokens=tokens)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fewer_samples", "fewer_tokens", "faults"),
    [(0, 0, []), (0, 3, [(What.TOKENS, "actor", (FROM,))]), (1, 3, [])],  # the last: its recording was cut short
)
def test_a_role_that_scores_other_tokens_than_the_prompts_and_responses_have(
    tmp_path: Path, fewer_samples: int, fewer_tokens: int, faults: list[Any]
) -> None:
    made = run("candidate", 1)
    whole = next(made.events("shapes", phase="experience", step=FROM))
    samples, tokens = whole["samples"] - fewer_samples, whole["real_tokens"] - fewer_tokens
    scored(made, FROM, "actor", 1, 9)
    scored(made, FROM, "actor", samples - 1, tokens - 9)
    scored(made, FROM, "reference", whole["samples"], whole["real_tokens"])
    found = role_faults(Ranks(Stored(made.write(tmp_path / "run"))))
    assert [(fault.what, fault.role, fault.steps) for fault in found] == faults


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "tokens", "faults"),
    [(FROM, 500, [(What.FOLLOWED, "reference", (FROM,))]), (FROM, 50, []), (0, 500, [])],
)
def test_a_reference_that_answers_as_the_trained_actor_does(
    tmp_path: Path, step: int, tokens: int, faults: list[Any]
) -> None:
    made = run("candidate")
    answers = (made.events("share", phase=f"{role}_forward", step=step) for role in ("actor", "reference"))
    for actor, reference in zip(*answers, strict=True):
        reference |= {"digest": actor["digest"], "sorted": actor["sorted"]}
    whole = next(made.events("shapes", phase="experience", step=step))
    whole["real_tokens"] = tokens
    scored(made, step, "actor", whole["samples"], tokens)
    found = role_faults(Ranks(Stored(made.write(tmp_path / "run"))))
    assert [(fault.what, fault.role, fault.steps) for fault in found] == faults
