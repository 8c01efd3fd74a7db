"""The learner's reading of native samples: exact under the right sampler, and it names what another one did."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from scenarios.engines.coupling import Draw
from scenarios.engines.sampling import OUTSIDE, Ordered, Reading, Tempered, filtered, untruncated
from scenarios.ppo.batches import Sample
from scenarios.ppo.native_fit import Fit, Fitter
from scenarios.ppo.native_scores import NAMES, Drawn, Hypothesis, punished, read, scores, uniform
from scenarios.settings import Sampling

pytestmark = pytest.mark.usefixtures("one_thread")
VOCABULARY, LENGTH, END = 48, 24, 2


PROMPT = (3, 4, 5, 6, 7, 8, 9, 10)


def support(logits: np.ndarray, how: Hypothesis, seen: list[int]) -> np.ndarray:
    """Probabilities of one position, written out apart from the code under test."""
    s = how.sampling
    score = logits.astype(float).copy()
    for token in set(seen):
        score[token] = score[token] / s.repetition_penalty if score[token] > 0 else score[token] * s.repetition_penalty
    p = np.exp(score / s.temperature - (score / s.temperature).max())
    p /= p.sum()
    order = np.argsort(-p, kind="stable")
    kept = np.ones(len(p), bool)
    if s.top_k > 0:
        kept[order[s.top_k :]] = False
    within = p if how.joint else np.where(kept, p, 0) / np.where(kept, p, 0).sum()
    up_to = np.cumsum(within[order])
    if how.exclusive and s.top_p < 1:
        kept[order[1:][up_to[1:] > s.top_p]] = False
    else:
        kept[order[up_to - within[order] >= s.top_p]] = False
    kept &= p >= s.min_p * p.max()
    return np.where(kept, p, 0) / np.where(kept, p, 0).sum()


def drawn(count: int, how: Hypothesis, seed: int = 0) -> list[tuple[Sample, torch.Tensor]]:
    """Samples of a model whose logits depend on nothing but the position; drawn token by token as `how` says."""
    rng, found = np.random.default_rng(seed), []
    for number in range(count):
        logits = rng.normal(0, 2, (LENGTH, VOCABULARY)).astype(np.float32)
        response: list[int] = []
        for row in logits:
            row = row - np.array(
                [how.presence * (n > 0) + how.frequency * n for n in np.bincount(response, minlength=VOCABULARY)]
                if response
                else [0.0]
            )
            p = support(row, how, [*(() if how.blind else PROMPT), *response])
            if how.passed and rng.random() < how.passed:
                response.append(int(np.argsort(-p)[1]))
                continue
            response.append(int(rng.choice(VOCABULARY, p=p)))
        found.append((Sample(number, PROMPT, tuple(response)), torch.from_numpy(logits)))
    return found


def reading(sample: Sample, logits: torch.Tensor, how: Hypothesis, *ends: int) -> Reading:
    return read(Drawn.of([(sample, logits)], penalty=True), how, ends)


ASKED = {
    "plain": Sampling(),
    "tempered": Sampling(temperature=0.7),
    "top-k and top-p": Sampling(top_k=8, top_p=0.8),
    "min-p": Sampling(min_p=0.1),
    "penalty": Sampling(repetition_penalty=1.3),
}


@pytest.mark.by_day(2)
@pytest.mark.parametrize("sampling", ASKED.values(), ids=ASKED)
def test_under_the_right_sampler_the_surprisal_is_centred_and_the_mass_uniform(sampling: Sampling) -> None:
    rows = [scores(*one, sampling, (END,)) for one in drawn(60, Hypothesis(sampling))]
    total = {name: np.concatenate([row[name] for row in rows]).astype(float) for name in NAMES}
    surplus = -(total["processed_logprob"] + total["entropy"])
    assert abs(surplus.sum() / math.sqrt(total["varentropy"].sum())) < 3
    share = total["mass_before"] + np.random.default_rng(1).random(len(surplus)) * np.exp(total["processed_logprob"])
    assert stats.kstest(share, "uniform").pvalue > 0.01
    assert (total["outside"] <= 1e-6).all()


def test_the_processed_distribution_is_the_canonical_one() -> None:
    """`sampling.filtered` is what coupled runs draw from: one meaning in the whole project."""
    sampling = Sampling(temperature=0.8, top_k=9, top_p=0.7, min_p=0.05)
    for sample, logits in drawn(5, Hypothesis(sampling)):
        draw = Draw(0, 0, temperature=0.8, top_k=9, top_p=0.7, min_p=0.05)
        wanted = filtered(logits, draw).log_softmax(-1).gather(-1, torch.tensor(sample.response)[:, None])[:, 0]
        assert torch.allclose(reading(sample, logits, Hypothesis(sampling)).processed, wanted)


def test_a_token_outside_says_by_how_much() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0]])
    third = Sample(0, (3,), (2,))
    assert reading(third, logits, Hypothesis(Sampling(top_k=2))).outside.tolist() == [0.5]
    assert reading(third, logits, Hypothesis(Sampling(top_k=3))).outside.tolist() == [0.0]
    assert reading(third, logits, Hypothesis(Sampling(min_tokens=2)), 2).outside.tolist() == [float("inf")]
    p = torch.softmax(logits[0], -1)
    edge = float(p[0] + p[1])
    over = reading(third, logits, Hypothesis(Sampling(top_p=edge * 0.99))).outside
    assert over.tolist() == [pytest.approx(-math.log(0.99) / 2, rel=1e-4)]
    assert reading(third, logits, Hypothesis(Sampling(top_p=edge * 1.01))).outside.tolist() == [0.0]


def fits(how: Hypothesis, asked: Sampling, count: int = 40) -> list[Fit]:
    return Fitter(drawn(count, how), (END,)).fits(asked)


@pytest.mark.by_day(2)
@pytest.mark.parametrize(
    "did, change, value",
    [
        (Sampling(temperature=0.6), "temperature", 0.6),
        (Sampling(temperature=1.3), "temperature", 1.3),
        (Sampling(top_p=0.8), "top_p", 0.8),
        (Sampling(top_k=6), "top_k", 6),
        (Sampling(repetition_penalty=1.5), "repetition_penalty", 1.5),
    ],
)
def test_a_parameter_that_nobody_asked_for_is_found_with_its_value(did: Sampling, change: str, value: float) -> None:
    found = fits(Hypothesis(did), Sampling())
    assert [one.change for one in found] == [change]
    assert found[0].value == pytest.approx(value, rel=0.1)
    assert found[0].gain > 10 and abs(found[0].after) < 3.5


@pytest.mark.by_day(1)
@pytest.mark.parametrize(("kind", "value"), [("presence", 1.5), ("presence", -1.0), ("frequency", 1.2)])
def test_a_penalty_of_what_was_drawn_is_found_with_its_value(kind: str, value: float) -> None:
    found = fits(Hypothesis(Sampling(), **{kind: value}), Sampling(), 160)  # type: ignore[arg-type]
    assert [one.change for one in found] == [f"{kind}_penalty"]
    assert found[0].value == pytest.approx(value, abs=0.3) and found[0].over > 4.6


@pytest.mark.by_day(1)
@pytest.mark.parametrize("share", [0.1, 0.2])
def test_the_second_best_token_now_and_then_is_no_parameter(share: float) -> None:
    found = fits(Hypothesis(Sampling(), passed=share), Sampling(), 160)
    assert [one.change for one in found] == ["passed"]
    assert found[0].value == pytest.approx(share, abs=0.04) and found[0].over > 4.6 and abs(found[0].after) < 3


def test_a_small_change_is_found_in_more_samples_without_truncations() -> None:
    held = drawn(400, Hypothesis(Sampling(temperature=0.95)))
    assert Fitter(held[:30], (END,)).fits(Sampling()) == []
    (one,) = Fitter(held, (END,)).fits(Sampling(), filters=False)
    assert one.change == "temperature" and one.value == pytest.approx(0.95, abs=0.02)


def test_a_parameter_that_was_asked_for_and_dropped() -> None:
    assert [one.change for one in fits(Hypothesis(Sampling()), Sampling(top_p=0.7))] == ["top_p"]
    assert [one.change for one in fits(Hypothesis(Sampling()), Sampling(repetition_penalty=1.5))] == [
        "repetition_penalty"
    ]


def test_two_leaks_at_once_are_both_found() -> None:
    found = fits(Hypothesis(Sampling(temperature=0.6, top_p=0.8)), Sampling(), 80)
    assert {one.change for one in found} == {"temperature", "top_p"}


@pytest.mark.night
def test_three_leaks_at_once_are_found_with_their_values() -> None:
    did = Sampling(temperature=0.8, top_k=8, top_p=0.8)
    found = {one.change: one.value for one in fits(Hypothesis(did), Sampling(), 160)}
    assert set(found) == {"temperature", "top_k", "top_p"}
    assert found["temperature"] == pytest.approx(0.8, rel=0.1) and found["top_p"] == pytest.approx(0.8, abs=0.05)


@pytest.mark.parametrize("did", [Sampling(), Sampling(top_k=6, top_p=0.7)], ids=["dropped", "narrower"])
def test_two_filters_that_are_both_others(did: Sampling) -> None:
    found = fits(Hypothesis(did), Sampling(top_k=12, top_p=0.9), 80)
    assert {one.change for one in found} == {"top_k", "top_p"}


@given(
    temperature=st.sampled_from([0.3, 0.9, 1.0, 2.5]),
    top_k=st.sampled_from([-1, 1, 5, VOCABULARY - 1, VOCABULARY, VOCABULARY + 1]),
    top_p=st.sampled_from([0.05, 0.5, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.02, 0.4]),
    penalty=st.sampled_from([1.0, 0.8, 1.5]),
    joint=st.booleans(),
    exclusive=st.booleans(),
    blind=st.booleans(),
    min_tokens=st.sampled_from([0, 6]),
    ties=st.booleans(),
)
def test_what_is_sorted_once_reads_as_what_is_written_out(
    temperature: float, top_k: int, top_p: float, min_p: float, penalty: float, joint: bool, exclusive: bool,
    blind: bool, min_tokens: int, ties: bool,
) -> None:  # fmt: skip
    sampling = Sampling(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=penalty,
        min_tokens=min_tokens,
    )  # fmt: skip
    how = Hypothesis(sampling, joint, blind, exclusive=exclusive)
    held = [(one, logits.round() if ties else logits) for one, logits in drawn(6, Hypothesis(Sampling()))]
    rows = Drawn.of(held, penalty=True)
    wanted = read(rows, how, (END,))
    allowed = torch.where(wanted.processed > float("-inf"), wanted.processed, wanted.tempered)
    scores_ = punished(rows, how, (END,))
    likelihood, outside = Tempered(Ordered.of(scores_, rows.target), temperature).read(sampling, rule=how.top_p_rule)
    assert torch.allclose(likelihood, allowed, rtol=1e-9, atol=1e-9)
    assert torch.equal(outside, wanted.outside > OUTSIDE)
    free = replace(sampling, top_k=-1, top_p=1.0, min_p=0.0)
    likelihood, outside = untruncated(scores_, rows.target, temperature)
    one = read(rows, Hypothesis(free, joint, blind), (END,))
    assert torch.allclose(likelihood, one.tempered) and torch.equal(outside, one.outside > OUTSIDE)


def test_joint_and_sequential_are_told_apart_by_the_support() -> None:
    asked = Sampling(top_k=8, top_p=0.8)
    found = fits(Hypothesis(asked, joint=True), asked)
    assert [one.change for one in found] == ["joint"]
    assert found[0].outside_before > 0 and found[0].outside_after == 0


@pytest.mark.parametrize("asked", [Sampling(top_p=0.8), Sampling(top_k=8, top_p=0.9)], ids=["top-p", "beside top-k"])
def test_a_top_p_without_the_token_that_reaches_its_share_is_told_from_a_narrower_one(asked: Sampling) -> None:
    """The planted fault after transformers#18976, and its look-alike."""
    assert [fit.change for fit in fits(Hypothesis(asked, exclusive=True), asked, 80)] == ["exclusive"]
    narrower = fits(Hypothesis(replace(asked, top_p=asked.top_p - 0.15)), asked, 80)
    assert [fit.change for fit in narrower] == ["top_p"] and abs(narrower[0].value - asked.top_p + 0.15) < 0.02


def test_tokens_behind_all_of_the_mass_are_no_number_out_of_range() -> None:
    """Seen in half precision: rounding let in tokens at the edge of top-p, and 1.1 to the power of 10,000 overflows."""
    sound = torch.linspace(0, 1, 20_000, dtype=torch.float64)
    at_the_edge = sound.clone()
    at_the_edge[-20:] = 1.0
    assert uniform(sound, torch.full_like(sound, 1e-9)) and uniform(at_the_edge, torch.full_like(sound, 0.1)) is False
    assert uniform(at_the_edge, torch.where(at_the_edge == 1.0, 0.1, 1e-9))


def test_a_penalty_blind_to_the_prompt_is_told_from_another_penalty() -> None:
    asked = Sampling(repetition_penalty=1.4)
    assert [one.change for one in fits(Hypothesis(asked, blind=True), asked, 80)] == ["blind"]


@pytest.mark.by_day(2)
@pytest.mark.parametrize("sampling", ASKED.values(), ids=ASKED)
def test_the_right_sampler_is_left_alone(sampling: Sampling) -> None:
    for seed in range(3):
        held = drawn(30, Hypothesis(sampling), seed)
        assert Fitter(held, (END,)).fits(sampling) == []
