"""Each cause that recordings can prove: planted it is named, with its party and its proof; a control is not.

What a cause does not explain stays open: pairs of faults are both named, and what is left is UNEXPLAINED.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recordings import (
    BOS,
    EOS,
    GENERATE,
    TENSORS,
    VOCABULARY,
    FrameRecord,
    Jagged,
    Log,
    Recording,
    batch_digest,
    cause,
    causes,
    check,
    jagged,
    learn_again,
    pair,
    put,
    scenario,
)

from harness.parity.attribution.case import LATEST, OFFENDING, choose
from harness.parity.explain import explain, find
from harness.parity.facts.divergence import Kind
from harness.parity.facts.evidence import Learned
from harness.parity.subjects.prompts.causes_retokenization import read_aloud
from harness.parity.verdict import judged_pair
from reports.model import Verdict

STEPS = 4
LONG, FROM_PROMPT = 15, 20  # tokens of a long prompt; a position that is counted from the first token of the prompt


def plain(**options: Any) -> tuple[Recording, Recording]:
    return pair(plan=scenario(steps=STEPS, **options), native=False)


def rolled(recording: Recording, first: int = 0) -> list[FrameRecord]:
    return [frame for frame in recording.frames("rollout") if frame.step >= first]


def change(frame: FrameRecord, name: str, how: Any) -> None:
    """Replace each row of a column by `how(row number, row)`."""
    frame.arrays[name] = jagged([how(number, row) for number, row in enumerate(frame.arrays[name].rows())])


def cut(frame: FrameRecord, lengths: dict[int, int], reason: str = "length") -> None:
    """Let these rows end after so many tokens."""
    for name in ("output", "logprob"):
        change(frame, name, lambda i, row: row[: lengths.get(i, len(row))])
    frame.fields["finish"] = [reason if i in lengths else one for i, one in enumerate(frame.fields["finish"])]


def go_on(frame: FrameRecord, row: int, tokens: list[int], reason: str) -> None:
    """Let a row go on with these tokens."""
    change(frame, "output", lambda i, ids: np.concatenate([ids, tokens]) if i == row else ids)
    change(frame, "logprob", lambda i, ids: np.concatenate([ids, [-1.0] * len(tokens)]) if i == row else ids)
    frame.fields["finish"][row] = reason


def flip(frame: FrameRecord, row: int, position: int, token: int) -> None:
    at = int(frame.arrays["output"].offsets[row]) + position
    frame.arrays["output"].values[at] = token
    frame.arrays["logprob"].values[at] -= 1.0


def proven(verdict: Verdict, name: str) -> tuple[float, float]:
    """(before, after) of the first proof of a cause."""
    proof = cause(verdict, name).proofs[0]
    assert proof.on == "recordings" and proof.before > proof.after
    return proof.before, proof.after


def settled(verdict: Verdict, name: str, party: str = "candidate") -> None:
    """DIVERGENT with exactly this cause, proven."""
    assert verdict.verdict == "DIVERGENT", verdict.reason
    assert causes(verdict) == [name], [vars(one) for one in verdict.causes]
    assert verdict.causes[0].party == party
    proven(verdict, name)


# --- prompts ----------------------------------------------------------------------------------------


@pytest.mark.by_day(4)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("become", "name"),
    [
        (lambda row: row[: -len(GENERATE)], "TEMPLATE(no generation prompt)"),
        (lambda row: row[: -len(GENERATE) - 1], "TRUNCATION(right)"),
        (lambda row: row[:-1], "TRUNCATION(right)"),
        (lambda row: row[1:], "TOKENIZATION(no BOS)"),
        (lambda row: row[2:], "TRUNCATION(left)"),
        (lambda row: np.concatenate([row[:3], row[5:]]), "TRUNCATION(middle)"),
        (lambda row: np.concatenate([[BOS], row]), "TOKENIZATION(double BOS)"),
        (lambda row: np.concatenate([[9, 9], row]), "TOKENIZATION(ids added in front)"),
        (lambda row: np.concatenate([row, GENERATE]), "TEMPLATE(generation prompt twice)"),
        (lambda row: np.concatenate([row, [EOS]]), "TOKENIZATION(ids added at the end)"),
    ],
)
def test_what_became_of_a_prompt(tmp_path: Path, become: Any, name: str) -> None:
    baseline, candidate = plain()
    for frame in rolled(candidate, 1):
        change(frame, "prompt_seen", lambda i, row: become(row))
        frame.arrays["logprob"].values -= 0.2
    verdict = put(tmp_path, baseline, candidate)
    settled(verdict, name)
    assert "from step 1 on" in verdict.causes[0].summary
    assert [proof.unit for proof in verdict.causes[0].proofs] == ["prompts", "samples"]
    assert verdict.causes[0].proofs[1].after == 0


@pytest.mark.slow
def test_a_template_without_a_generation_prompt_knows_no_template_fault(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for recording in (baseline, candidate):
        for event in recording.events("tokenizer"):
            event["generation_prompt"] = []
    change(candidate.frame("rollout", 0), "prompt_seen", lambda i, row: row[:-2])
    assert causes(put(tmp_path, baseline, candidate)) == ["TRUNCATION(right)"]


@pytest.mark.slow
@pytest.mark.parametrize("same_text", [True, False])
def test_other_ids_of_the_same_text_were_encoded_again(tmp_path: Path, same_text: bool) -> None:
    """Ids 1..8 became others; only what they decode to tells a tokenizer's other way from another prompt."""
    baseline, candidate = plain()
    frame = candidate.frame("rollout", 1)
    change(frame, "prompt_seen", lambda i, row: np.concatenate([row[:2], [700, 701], row[3:]]))
    for event in candidate.events("boundaries", step=1):
        ids = event["prompt_first"]
        words = event["text_first"].split(" ")
        event["prompt_first"] = [*ids[:2], 700, 701, *ids[3:7]]
        if same_text:  # one word was cut into two ids
            event["text_first"] = " ".join(words[:8])
        else:
            event["text_first"] = " ".join([*words[:3], "w700", "w701", *words[4:8]])
    name = "RETOKENIZATION" if same_text else "TOKENIZATION(other ids)"
    verdict = put(tmp_path, baseline, candidate)
    assert causes(verdict) == [name], verdict.causes


# --- weights ----------------------------------------------------------------------------------------


def leave_out(recording: Recording, tensors: list[str], versions: range) -> None:
    for sync in recording.events("sync"):
        if sync["version"] in versions:
            sync.update(absent=tensors, proof_max_delta=0.08, proof_mean_delta=0.01)
    for received in recording.events("weights", source="received"):
        if received["version"] in versions:
            for name in tensors:
                received["digests"].pop(name)
    rng = np.random.default_rng(3)
    for frame in recording.frames("rollout"):
        if frame.fields["weight_version"] in versions:
            frame.arrays["logprob"].values = frame.arrays["logprob"].values + rng.normal(
                0, 0.05, len(frame.arrays["logprob"].values)
            )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tensors", "names"),
    [
        (TENSORS[:2], [f"STALE_WEIGHTS({name})" for name in sorted(TENSORS[:2])]),
        (TENSORS[:5], ["STALE_WEIGHTS(5 tensors)"]),
        (TENSORS, ["STALE_WEIGHTS(all tensors)"]),
    ],
)
def test_several_stale_tensors_and_all(tmp_path: Path, tensors: list[str], names: list[str]) -> None:
    baseline, candidate = plain()
    leave_out(candidate, tensors, range(2, STEPS + 1))
    assert causes(put(tmp_path, baseline, candidate)) == names


@pytest.mark.slow
def test_a_stale_tensor_explains_the_steps_drawn_with_it_and_no_others(tmp_path: Path) -> None:
    baseline, candidate = plain()
    leave_out(candidate, TENSORS[:1], range(1, 2))
    candidate.frame("rollout", 3).arrays["logprob"].values[:] -= 0.05
    verdict = put(tmp_path, baseline, candidate)
    assert causes(verdict) == [f"STALE_WEIGHTS({TENSORS[0]})", "UNEXPLAINED"]
    assert "step 3" in cause(verdict, "UNEXPLAINED").evidence


# --- ends -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_samples_that_go_on_after_the_end_token(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for frame in rolled(candidate):
        for row, reason in enumerate(list(frame.fields["finish"])):
            if reason == "stop":
                length = int(frame.arrays["output"].lengths[row])
                go_on(frame, row, list(range(300, 300 + 24 - length)), "length")
    settled(put(tmp_path, baseline, candidate), "STOP(ignore_eos)")


@pytest.mark.slow
def test_an_ignored_end_that_undoes_the_stops_as_well_is_one_cause(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for recording in (baseline, candidate):
        recording.manifest["scenario"]["sampling"]["stop_token_ids"] = [EOS + 1]
    for event in candidate.events("sampling"):
        event["canonical"]["stop_token_ids"] = [EOS + 1]
        event["native"] = {"stop_token_ids": [EOS + 1], "ignore_eos": True}
        event["given"] = {**event["canonical"], "stop_token_ids": [], "ignore_eos": True, "end_ids": []}
        event["moves"] = {"stop_token_ids": ["stop_token_ids"], "ignore_eos": []}
    for one, two in zip(rolled(baseline), rolled(candidate), strict=True):
        for row, reason in enumerate(list(one.fields["finish"])):
            if reason == "stop":
                length = int(one.arrays["output"].lengths[row])
                if row % 2:
                    for frame in (one, two):
                        frame.arrays["output"].values[int(frame.arrays["output"].offsets[row]) + length - 1] = EOS + 1
                go_on(two, row, list(range(300, 300 + 24 - length)), "length")
    verdict = put(tmp_path, baseline, candidate)
    assert "STOP(ignore_eos)" in causes(verdict) and "STOP(other end set)" not in causes(verdict)
    assert cause(verdict, "STOP(ignore_eos)").party == "mapping"


@pytest.mark.slow
@pytest.mark.parametrize(("side", "said"), [("candidate", "length"), ("baseline", "length"), ("candidate", "stop")])
def test_a_reason_that_the_sample_itself_contradicts(side: str, said: str, tmp_path: Path) -> None:
    pair = dict(zip(("baseline", "candidate"), plain(), strict=True))
    for step in range(STEPS):
        frame = pair[side].frame("rollout", step)
        frame.fields["finish"] = [said] * len(frame.fields["finish"])
    verdict = put(tmp_path, *pair.values())
    assert causes(verdict) == ["STOP(finish reason)"], verdict.reason
    assert cause(verdict, "STOP(finish reason)").party == side


def end_at_the_limit(recording: Recording, token: int, said: str) -> int:
    """Let the samples that the limit cut have this last token and this reason; returns how many."""
    limit = recording.manifest["scenario"]["sampling"]["max_tokens"]
    count = 0
    for step in range(STEPS):
        frame = recording.frame("rollout", step)
        rows = np.flatnonzero(frame.arrays["output"].lengths == limit)
        frame.arrays["output"].values[frame.arrays["output"].offsets[1:][rows] - 1] = token
        for row in rows:
            frame.fields["finish"][row] = said
        trained = recording.frame("experience", step)
        trained.arrays["tokens"].values[:] = frame.arrays["output"].values
        count += len(rows)
    return count


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["baseline", "candidate"])
def test_a_limit_that_is_tested_before_the_end_tokens(wrong: str, tmp_path: Path) -> None:
    pair = dict(zip(("baseline", "candidate"), plain(), strict=True))
    for side, recording in pair.items():
        count = end_at_the_limit(recording, EOS, "length" if side == wrong else "stop")
    verdict = put(tmp_path, *pair.values())
    assert causes(verdict) == ["STOP(finish reason)"], verdict.reason
    found = cause(verdict, "STOP(finish reason)")
    assert found.party == wrong and "the last that the limit of 24 allows" in found.evidence
    assert [(one.before, one.after) for one in found.proofs] == [(count, 0)] and count > STEPS
    assert check(verdict, "sampling-parameter-map").state == "not tested"  # it is none of the parameters


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["given", "resolved"])
def test_a_limit_at_an_end_token_that_is_ignored_names_nobody(ends: str, tmp_path: Path) -> None:
    baseline, candidate = plain()
    for recording, said in ((baseline, "stop"), (candidate, "length")):
        end_at_the_limit(recording, EOS, said)
        recording.manifest["scenario"]["sampling"]["ignore_eos"] = True
        for event in recording.events("sampling"):
            event["canonical"]["ignore_eos"] = True
            if ends == "given":
                event["given"] = {**event["canonical"], "end_ids": []}
    named = [(one.name, one.party) for one in put(tmp_path, baseline, candidate).causes]
    assert ("STOP(finish reason)", "candidate") not in named, named


@pytest.mark.slow
def test_a_limit_at_no_end_token_is_no_end(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for recording, said in ((baseline, "abort"), (candidate, "length")):
        end_at_the_limit(recording, EOS + 1, said)
    assert causes(put(tmp_path, baseline, candidate)) == ["UNEXPLAINED"]


@pytest.mark.slow
def test_engines_that_both_test_the_limit_first_agree(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for recording in (baseline, candidate):
        end_at_the_limit(recording, EOS, "length")
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "EQUIVALENT", verdict.reason


@pytest.mark.slow
def test_a_baseline_that_ignores_the_end_is_the_baselines_fault(tmp_path: Path) -> None:
    """Guided, the candidate stops at the first end token of the baseline's response; the baseline had gone on."""
    baseline, candidate = plain()
    for step in range(STEPS):
        frame, other = baseline.frame("rollout", step), candidate.frame("rollout", step)
        frame.fields["finish"] = ["length"] * len(frame.fields["finish"])
        for row, reason in enumerate(list(other.fields["finish"])):
            if reason == "stop":
                go_on(frame, row, [300] * 3, "length")
        for name in ("tokens", "actor_logprob"):
            for recording in (baseline, candidate):
                experience = recording.frame("experience", step)
                longer = frame.arrays["output" if name == "tokens" else "logprob"]
                experience.arrays[name] = longer.copy()
    verdict = put(tmp_path, baseline, candidate)
    assert "STOP(ignore_eos)" in causes(verdict)
    assert cause(verdict, "STOP(ignore_eos)").party == "baseline"


@pytest.mark.slow
@pytest.mark.parametrize(("told", "party"), [(False, "candidate"), (True, "baseline")])
def test_another_set_of_end_tokens(tmp_path: Path, told: bool, party: str) -> None:
    """The candidate stops at a token from which the baseline goes on, and is at fault unless both say that they have
    it."""
    baseline, candidate = plain()
    for event in [*baseline.events("sampling"), *candidate.events("sampling")] * told:
        event["given"] = {**event.get("given", {}), "end_ids": [2, 777]}
    stop = 777
    for step in range(STEPS):
        for recording in (baseline, candidate):
            for name, column in (("rollout", "output"), ("experience", "tokens")):
                rows = recording.frame(name, step).arrays[column]
                rows.values[rows.offsets[:-1][rows.lengths > 8] + 4] = stop
        frame = candidate.frame("rollout", step)
        lengths = {i: 5 for i, n in enumerate(frame.arrays["output"].lengths) if n > 8}
        cut(frame, lengths, "stop")
    verdict = put(tmp_path, baseline, candidate)
    settled(verdict, "STOP(other end set)", party)
    assert cause(verdict, "STOP(other end set)").details["tokens"] == [stop]


@pytest.mark.slow
def test_samples_that_stop_at_any_token_are_no_other_end_set(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for frame in rolled(candidate):
        cut(frame, {i: 3 for i, n in enumerate(frame.arrays["output"].lengths) if n > 8}, "stop")
    assert causes(put(tmp_path, baseline, candidate)) == ["UNEXPLAINED"]


@pytest.mark.slow
def test_a_context_that_ends_at_one_total(tmp_path: Path) -> None:
    """The context counts the prompt: long prompts leave less room, and each sample misses another number of tokens."""
    baseline, candidate = plain()
    limit = 26
    for frame in rolled(candidate):
        prompts, lengths = frame.arrays["prompt"].lengths, frame.arrays["output"].lengths
        cut(frame, {i: int(limit - p) for i, (p, n) in enumerate(zip(prompts, lengths, strict=True)) if p + n > limit})
    verdict = put(tmp_path, baseline, candidate)
    settled(verdict, "LENGTH(context)")
    assert "26 tokens, prompt included" in verdict.causes[0].summary


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "limit", "named"),
    [(-2, 26, ["TRUNCATION(left)", "LENGTH(context)"]), (1, 0, ["TOKENIZATION(double BOS)"])],
)
def test_a_limit_beside_another_prompt_is_named_unless_the_prompt_is_longer_by_as_much(
    tmp_path: Path, more: int, limit: int, named: list[str]
) -> None:
    """A shorter prompt cuts nothing short; one that is longer by a token takes that token of the response's room."""
    baseline, candidate = plain()
    for frame in rolled(candidate):
        change(frame, "prompt_seen", lambda i, row: row[2:] if more < 0 else np.concatenate([[BOS], row]))
        frame.arrays["logprob"].values -= 0.2
        lengths = frame.arrays["output"].lengths
        seen = frame.arrays["prompt_seen"].lengths
        ended = zip(seen, lengths, frame.fields["finish"], strict=True)
        room = {
            i: int(limit - p) if limit else int(n - 1)
            for i, (p, n, reason) in enumerate(ended)
            if (p + n > limit if limit else reason == "length")
        }
        cut(frame, room)
    verdict = put(tmp_path, baseline, candidate)
    assert causes(verdict) == named
    assert not limit or f"{limit} tokens, prompt included" in cause(verdict, "LENGTH(context)").summary


@pytest.mark.slow
@pytest.mark.parametrize(("reason", "named"), [("length", "LENGTH(context)"), ("abort", "UNEXPLAINED")])
def test_samples_that_an_engine_gave_up_hit_no_context(tmp_path: Path, reason: str, named: str) -> None:
    baseline, candidate = plain()
    for frame in rolled(candidate):
        ended = frame.fields["finish"]
        lengths = {i: n - 3 for i, n in enumerate(frame.arrays["output"].lengths) if ended[i] == "length" and n > 3}
        cut(frame, lengths, reason)
    assert causes(put(tmp_path, baseline, candidate)) == [named]


def some_cut(candidate: Recording) -> None:
    """Every third sample that was cut by its limit misses another number of tokens."""
    for frame in rolled(candidate):
        rows = [i for i, reason in enumerate(frame.fields["finish"]) if reason == "length"]
        cut(frame, {i: 20 - number for number, i in enumerate(rows)})


@pytest.mark.slow
@pytest.mark.parametrize("record", ["usage", "pool", "none"])
def test_a_kv_pool_that_clips(tmp_path: Path, record: str) -> None:
    baseline, candidate = plain()
    some_cut(candidate)
    for event in candidate.events("engine_stats") if record == "usage" else ():
        event["kv_usage"] = 0.99
    for event in candidate.events("engine_info") if record == "pool" else ():
        event["resolved"]["kv_cache_tokens"] = 128
    verdict = put(tmp_path, baseline, candidate)
    expected = "UNEXPLAINED" if record == "none" else "CAPACITY(kv pool)"
    assert causes(verdict) == [expected]


@pytest.mark.slow
def test_a_kv_pool_that_ends_every_sample_at_one_total_is_proven_by_cutting_there(tmp_path: Path) -> None:
    baseline, candidate = plain()
    limit = 26
    for frame in rolled(candidate):
        prompts, lengths = frame.arrays["prompt"].lengths, frame.arrays["output"].lengths
        cut(frame, {i: int(limit - p) for i, (p, n) in enumerate(zip(prompts, lengths, strict=True)) if p + n > limit})
    for event in candidate.events("engine_info"):
        event["resolved"]["kv_cache_tokens"] = limit + 2
    settled(put(tmp_path, baseline, candidate), "CAPACITY(kv pool)")


@pytest.mark.slow
def test_ends_before_the_least_number_of_tokens(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for recording in (baseline, candidate):
        recording.manifest["scenario"]["sampling"]["min_tokens"] = 6
    for frame in rolled(candidate, 1):
        for row in range(3):
            flip(frame, row, min(2, int(frame.arrays["output"].lengths[row]) - 1), EOS)
    verdict = put(tmp_path, baseline, candidate)
    name = "SAMPLING_PARAM(min_tokens)"
    assert name in causes(verdict)
    assert proven(verdict, name)[1] == 0


@pytest.mark.slow
@pytest.mark.parametrize("asked", [0, 2])
def test_early_ends_that_nobody_forbade_are_unexplained(tmp_path: Path, asked: int) -> None:
    baseline, candidate = plain()
    for recording in (baseline, candidate):
        recording.manifest["scenario"]["sampling"]["min_tokens"] = asked
    frame = candidate.frame("rollout", 1)
    row = int(np.argmax(frame.arrays["output"].lengths))
    flip(frame, row, 3, EOS)
    assert causes(put(tmp_path, baseline, candidate)) == ["UNEXPLAINED"]


# --- tokens -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_id_that_the_tokenizer_does_not_know(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for row in (2, 7):
        flip(candidate.frame("rollout", 2), row, 0, VOCABULARY + 3)
    settled(put(tmp_path, baseline, candidate), "VOCAB")


@pytest.mark.slow
def test_an_unknown_id_that_the_learner_draws_as_well_is_no_fault_of_the_engine_that_drew_it(tmp_path: Path) -> None:
    """A model whose vocabulary is padded draws such ids now and then. The other engine is the one that did not."""
    baseline, candidate = plain()
    for row in (2, 7):
        flip(baseline.frame("rollout", 2), row, 0, VOCABULARY + 3)
        for recording in (baseline, candidate):
            tokens = recording.frame("experience", 2).arrays["tokens"]
            tokens.values[int(tokens.offsets[row])] = VOCABULARY + 3
    assert "VOCAB" not in causes(put(tmp_path, baseline, candidate))


@pytest.mark.slow
def test_unknown_ids_that_both_engines_draw_are_the_models_own(tmp_path: Path) -> None:
    """Of a model with spare rows, as of another seed: each engine draws some, at places of its own."""
    baseline, candidate = plain()
    for recording, rows in ((baseline, (1, 5, 6)), (candidate, (2, 7))):
        for row in rows:
            flip(recording.frame("rollout", 2), row, 0, VOCABULARY + 3)
    assert "VOCAB" not in causes(put(tmp_path, baseline, candidate))


@pytest.mark.slow
def test_the_last_id_that_the_tokenizer_knows_is_none(tmp_path: Path) -> None:
    baseline, candidate = plain()
    flip(candidate.frame("rollout", 2), 2, 0, VOCABULARY - 1)
    assert causes(put(tmp_path, baseline, candidate)) == ["UNEXPLAINED"]


def clone(frame: FrameRecord, guide: FrameRecord, group: int = 4) -> None:
    """Guided clones: every sample of a group chooses what the first one would, where their contexts are equal."""
    first = guide.arrays["output"].values[guide.arrays["output"].offsets[:-1]]
    for row in range(len(first)):
        if first[row] != first[row - row % group]:
            flip(frame, row, 0, int(first[row - row % group]))


@pytest.mark.slow
def test_clones_in_the_rollouts(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for frame in rolled(candidate):
        clone(frame, baseline.frame("rollout", frame.step))
    settled(put(tmp_path, baseline, candidate), "RNG_COLLISION")


@pytest.mark.slow
def test_groups_that_begin_alike_because_the_model_is_sure_are_no_clones(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for recording in (baseline, candidate):
        for kind, tokens, numbers in (("rollout", "output", "logprob"), ("experience", "tokens", "actor_logprob")):
            for frame in recording.frames(kind):
                starts = frame.arrays[tokens].offsets[:-1]
                frame.arrays[tokens].values[starts] = 40
                frame.arrays[numbers].values[starts] = -1e-3
    flip(candidate.frame("rollout", 1), 0, int(candidate.frame("rollout", 1).arrays["output"].lengths[0]) - 1, 99)
    assert causes(put(tmp_path, baseline, candidate)) == ["UNEXPLAINED"]


@pytest.mark.slow
def test_prompts_that_are_another_samples_are_permuted(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for frame in rolled(candidate, 1):
        order = list(np.roll(np.arange(16), -1))
        for name in ("output", "logprob", "prompt_seen"):
            frame.arrays[name] = frame.arrays[name].take(order)
        frame.fields["finish"] = [frame.fields["finish"][i] for i in order]
    settled(put(tmp_path, baseline, candidate), "ORDER")


@pytest.mark.by_day(3)
@pytest.mark.slow
@pytest.mark.parametrize("guided", [True, False])
@pytest.mark.parametrize("paired", ["with other prompts", "with their prompts", "and changed"])
def test_samples_that_are_trained_on_with_the_responses_of_others(tmp_path: Path, guided: bool, paired: str) -> None:
    """Engines recorded their own responses. With their prompts they are under other numbers only, which no learner
    minds; of a response that nobody drew another cause is to be found."""
    baseline, candidate = plain()
    if not guided:
        for frame in rolled(candidate):
            frame.fields["guided"] = False
    order = [0, 2, 1, *range(4, 16), 3]
    for frame in candidate.frames("experience"):
        for name, column in frame.arrays.items():
            if hasattr(column, "take") and name not in ("sample", "reward"):
                frame.arrays[name] = column.take(order)
        if paired == "with their prompts":
            prompts = candidate.frame("rollout", frame.step).arrays["prompt"].take(order)
            next(candidate.events("learner", step=frame.step))["batch"] = batch_digest(prompts, frame.arrays)
            candidate.made = {}
        if paired == "and changed":
            change(frame, "tokens", lambda i, row: [*row[:-1], 77] if i == 1 else row)
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "DIVERGENT", verdict.reason
    assert ("ORDER" in causes(verdict)) == (paired == "with other prompts")
    if paired == "with other prompts":
        named = cause(verdict, "ORDER")
        assert named.party == "candidate" and "after its engines recorded them" in named.evidence
        assert causes(verdict) == ["ORDER"] and named.proofs[0].after == 0


def first_tokens_exchanged(frame: FrameRecord) -> None:
    """Neighbours of a group give each other's first token, and nothing more of each other can be seen."""
    output, logprob = frame.arrays["output"], frame.arrays["logprob"]
    starts = output.offsets[:-1]
    for row in range(0, len(starts), 2):
        pair = [starts[row], starts[row + 1]]
        if output.values[pair[0]] != output.values[pair[1]]:
            for column in (output, logprob):
                column.values[pair] = column.values[pair[::-1]]


@pytest.mark.slow
@pytest.mark.parametrize("shown", [True, False])
def test_a_permutation_that_one_step_shows_is_believed_of_steps_that_show_less(shown: bool, tmp_path: Path) -> None:
    """One token that is another sample's may be so by chance: in every step, that is no permutation."""
    baseline, candidate = plain()
    for frame in rolled(candidate, 1):
        first_tokens_exchanged(frame)
    if shown:
        frame = candidate.frame("rollout", 1)
        order = [row ^ 1 for row in range(16)]
        for name in ("output", "logprob"):
            frame.arrays[name] = baseline.frame("rollout", 1).arrays[name].take(order)
        frame.fields["finish"] = [baseline.frame("rollout", 1).fields["finish"][i] for i in order]
    found = causes(put(tmp_path, baseline, candidate))
    assert found == ["ORDER"] if shown else "ORDER" not in found


@pytest.mark.slow
def test_a_floor_that_is_permuted_as_the_responses_are_is_no_noise(tmp_path: Path) -> None:
    """Free runs part: responses are compared in the first step, the floor is taken in the last."""
    for name, rolls, expected in (
        ("permuted", True, ["ORDER"]),
        ("noisy", False, ["ORDER", "candidate-itself(decoding)"]),
    ):
        baseline, candidate = pair(plan=scenario(steps=1), native=False)
        order = list(np.roll(np.arange(16), -1))
        frame = candidate.frame("rollout", 0)
        for column in ("output", "logprob"):
            frame.arrays[column] = frame.arrays[column].take(order)
        frame.fields["finish"] = [frame.fields["finish"][i] for i in order]
        for other in candidate.frames("floor"):
            other.step = 3  # no step of the responses that were compared
            if other.fields["variant"] == "prefill":
                other.arrays["logprob"].values[:] -= 0.5
            if other.fields["variant"] == "order" and rolls:
                rows = list(np.roll(np.arange(len(other.arrays["sample"])), 1))
                for column in ("output", "logprob"):
                    other.arrays[column] = other.arrays[column].take(rows)
        assert causes(put(tmp_path / name, baseline, candidate)) == expected


@pytest.mark.slow
@pytest.mark.parametrize("each, expected", [(1, "DIVERGENT"), (16, "INCONCLUSIVE")])
def test_tokens_outside_of_the_filters_differ_where_rounding_cannot_have_let_them_in(
    each: int, expected: str, tmp_path: Path
) -> None:
    """The learner bars what the baseline drew. One in a step may lie at the edge of top-p; one a sample may not."""
    baseline, candidate = plain()
    for step in range(STEPS):
        frame = candidate.frame("rollout", step)
        for row in range(0, 16, each):
            flip(frame, row, 1, 99)
            for recording in (baseline, candidate):
                margin = recording.frame("experience", step).arrays["margin"]
                margin.values[int(margin.offsets[row]) + 1] = -np.inf
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == expected, verdict.reason
    if expected == "DIVERGENT":
        assert [one.party for one in verdict.causes] == ["baseline"]


# --- numbers ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_nan_that_ends_as_a_stop(tmp_path: Path) -> None:
    baseline, candidate = plain()
    frame = candidate.frame("rollout", 1)
    rows = [i for i, n in enumerate(frame.arrays["output"].lengths) if n > 6][:3]
    cut(frame, dict.fromkeys(rows, 4), "stop")
    frame.arrays["logprob"].values[frame.arrays["logprob"].offsets[1:][rows] - 1] = np.nan
    verdict = put(tmp_path, baseline, candidate)
    settled(verdict, "NUMERIC_FATAL")
    assert verdict.causes[0].details["stopped"] == 3


def split(frame: FrameRecord, position: int, by: float = 0.05, ahead: bool = True, spread: int = 1) -> None:
    """`spread`: samples change at so many positions from this one on, in turn."""
    rows = frame.arrays["logprob"]
    at = np.arange(len(rows.values)) - np.repeat(rows.offsets[:-1], rows.lengths)
    own = position + np.repeat(np.arange(len(rows.lengths)) % spread, rows.lengths)
    rows.values[(at < own) == ahead] -= by


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [True, False])
def test_weights_that_change_in_mid_generation(tmp_path: Path, ahead: bool) -> None:
    baseline, candidate = plain()
    for frame in rolled(candidate, 2):
        split(frame, 3, ahead=ahead, spread=9)
    verdict = put(tmp_path, baseline, candidate)
    settled(verdict, "MIXED_VERSION")
    assert "from step 2 on" in verdict.causes[0].summary


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [True, False])
def test_a_change_at_one_position_of_all_samples_may_be_a_fault_of_the_position(tmp_path: Path, ahead: bool) -> None:
    baseline, candidate = plain()
    for frame in rolled(candidate, 2):
        split(frame, 6, ahead=ahead)
    (named,) = put(tmp_path, baseline, candidate).causes
    assert named.name == "MIXED_VERSION" and not named.proofs
    assert "not told apart from a fault of the position" in named.evidence


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [True, False])
def test_a_change_at_one_position_of_prompt_and_response_may_be_a_fault_of_the_position(
    tmp_path: Path, ahead: bool
) -> None:
    """A row of the rotary table, a sliding window: responses change at positions of their own, for prompts differ in
    length."""
    baseline, candidate = plain()
    for frame in rolled(candidate, 2):
        rows, prompts = frame.arrays["logprob"], frame.arrays["prompt"].lengths
        at = np.arange(len(rows.values)) - np.repeat(rows.offsets[:-1], rows.lengths) + np.repeat(prompts, rows.lengths)
        rows.values[(at < FROM_PROMPT) == ahead] -= 0.05
    found = [one for one in put(tmp_path, baseline, candidate).causes if one.name == "MIXED_VERSION"]
    assert not any(one.proofs for one in found)


@pytest.mark.slow
def test_a_difference_everywhere_is_no_mixed_version(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for frame in rolled(candidate, 2):
        frame.arrays["logprob"].values -= 0.05
    assert causes(put(tmp_path, baseline, candidate)) == ["UNEXPLAINED"]


@pytest.mark.slow
def test_differences_here_and_there_are_no_mixed_version(tmp_path: Path) -> None:
    baseline, candidate = plain()
    rng = np.random.default_rng(5)
    for frame in rolled(candidate, 2):
        values = frame.arrays["logprob"].values
        values[rng.random(len(values)) < 0.3] -= 0.05
    assert causes(put(tmp_path, baseline, candidate)) == ["UNEXPLAINED"]


def tempered(values: np.ndarray, temperature: float) -> np.ndarray:
    """Of tokens of these raw log-probabilities, over a vocabulary whose other mass lies on ten tokens."""
    a, p = 1 / temperature, np.exp(values.astype(np.float64))
    return a * values - np.log(p**a + 10 * ((1 - p) / 10) ** a)


@pytest.mark.slow
def test_log_probabilities_reported_after_temperature(tmp_path: Path) -> None:
    baseline, candidate = plain(temperature=0.7)
    for frame in rolled(candidate):
        frame.arrays["logprob"].values = tempered(frame.arrays["logprob"].values, 0.7)
    verdict = put(tmp_path, baseline, candidate)
    assert causes(verdict) == ["LOGPROB_SEMANTICS(tempered)"]
    assert verdict.causes[0].proofs == []  # bounds remove nothing; a live engine proves it


@pytest.mark.slow
def test_log_probabilities_of_another_temperature_are_not_those_of_this_one(tmp_path: Path) -> None:
    baseline, candidate = plain(temperature=0.7)
    for frame in rolled(candidate):
        frame.arrays["logprob"].values = tempered(frame.arrays["logprob"].values, 1.6)
    assert "LOGPROB_SEMANTICS(tempered)" not in causes(put(tmp_path, baseline, candidate))


@pytest.mark.slow
def test_log_probabilities_renormalised_over_the_nucleus(tmp_path: Path) -> None:
    baseline, candidate = plain()
    rng = np.random.default_rng(7)
    for recording in (baseline, candidate):
        recording.manifest["scenario"]["sampling"]["top_p"] = 0.8
    for frame in rolled(candidate):
        values = frame.arrays["logprob"].values
        frame.arrays["logprob"].values = np.minimum(values - np.log(rng.uniform(0.8, 0.99, len(values))), 0)
    assert causes(put(tmp_path, baseline, candidate)) == ["LOGPROB_SEMANTICS(renormalised)"]


@pytest.mark.slow
def test_a_factor_that_fits_a_few_samples_of_a_step_is_no_factor_of_it(tmp_path: Path) -> None:
    """Renormalised numbers of a few samples happen to be one factor times the learner's."""
    baseline, candidate = plain()
    rng = np.random.default_rng(7)
    for recording in (baseline, candidate):
        recording.manifest["scenario"]["sampling"]["top_p"] = 0.8
    for frame in rolled(candidate):
        rows, column = frame.arrays["logprob"].rows(), []
        for number, row in enumerate(rows):
            drawn = np.minimum(row - np.log(rng.uniform(0.8, 0.99, len(row))), 0)
            column.append(np.maximum(row * 0.95, row + 1e-3) if number % 4 == 0 else drawn)
        frame.arrays["logprob"] = jagged(column)
    assert "LOGPROB_SEMANTICS(scaled)" not in causes(put(tmp_path, baseline, candidate))


@pytest.mark.slow
def test_what_a_cause_of_a_step_does_to_a_short_sample_is_explained_too(tmp_path: Path) -> None:
    """Of half precision: too few tokens to speak against their learner, and more than that against the other run."""
    plan = scenario(steps=STEPS, dtype="bfloat16", temperature=0.7)
    baseline, candidate = pair(plan=plan, native=False)
    for frame in rolled(candidate):
        frame.arrays["logprob"].values = tempered(np.minimum(frame.arrays["logprob"].values, -0.01), 0.7)
    found = judged_pair(baseline.write(tmp_path / "one"), candidate.write(tmp_path / "two"), native=False)
    assert causes(found.verdict) == ["LOGPROB_SEMANTICS(tempered)"]
    # As a short sample is: its few tokens beyond the tolerance do not decide.
    e = found.evidence
    assert e is not None
    key = Kind.ENGINE.of("candidate")
    short = {**e.items, key: e.items[key][e.items[key][:, 1] % 16 != 3]}
    assert [one.name for one in find(replace(e, items=short), found.kinds)] == ["LOGPROB_SEMANTICS(tempered)"]


@pytest.mark.slow
@pytest.mark.parametrize(("margin", "named"), [(1e-5, ["STOP(end token dropped)"]), (0.5, None)])
def test_a_sample_that_ended_at_a_tie_has_lost_its_end_token_too(
    margin: float, named: list[str] | None, tmp_path: Path
) -> None:
    baseline, candidate = plain()
    for frame in rolled(candidate):
        for name in ("output", "logprob"):
            rows = zip(frame.arrays[name].rows(), frame.fields["finish"], strict=True)
            frame.arrays[name] = jagged([row[:-1] if reason == "stop" else row for row, reason in rows])
    frame = candidate.frame("rollout", 1)
    row = int(np.argmax(frame.arrays["output"].lengths))
    cut(frame, {row: 4}, "stop")
    for recording in (baseline, candidate):
        experience = recording.frame("experience", 1)
        at = int(experience.arrays["tokens"].offsets[row]) + 4
        experience.arrays["margin"].values[at] = margin
        experience.arrays["runner_up"].values[at] = EOS
    found = causes(put(tmp_path, baseline, candidate))
    assert found == named if named else len(found) > 1 and "STOP(end token dropped)" in found


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 2])
def test_a_trainer_whose_numbers_are_scaled_from_a_step_on(tmp_path: Path, first: int) -> None:
    baseline, candidate = plain()
    for frame in candidate.frames("experience"):
        if frame.step >= first:
            frame.arrays["actor_logprob"].values = frame.arrays["actor_logprob"].values / np.float32(0.7)
    verdict = put(tmp_path, baseline, candidate)
    settled(verdict, "TRAINER(log-probabilities scaled)", "trainer")
    assert ("in every step" if first == 0 else "from step 2 on") in verdict.causes[0].summary


@pytest.mark.slow
def test_a_trainer_whose_numbers_are_shifted_is_the_trainers_fault(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for frame in candidate.frames("experience"):
        change(frame, "actor_logprob", lambda i, row: np.roll(row, 1))
    settled(put(tmp_path, baseline, candidate), "ALIGNMENT", "trainer")


@pytest.mark.slow
@pytest.mark.parametrize("second", ["value", "reference_logprob", "reward"])
def test_a_second_fault_beside_a_trainer_whose_numbers_are_scaled_stays_open(tmp_path: Path, second: str) -> None:
    baseline, candidate = plain()
    for frame in candidate.frames("experience"):
        frame.arrays["actor_logprob"].values = frame.arrays["actor_logprob"].values / np.float32(0.7)
        column = frame.arrays[second]
        (column.values if isinstance(column, Jagged) else column)[:5] += 0.5
        learn_again(scenario(), frame)
    found = causes(put(tmp_path, baseline, candidate))
    assert found == ["TRAINER(log-probabilities scaled)", "UNEXPLAINED"]


# --- an engine against itself -----------------------------------------------------------------------


@pytest.mark.slow
def test_other_tokens_at_equal_seeds_are_a_seed_ignored(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for frame in candidate.frames("floor", variant="order"):
        rows = frame.arrays["output"]
        rows.values[rows.offsets[:-1][:8]] += 1
    verdict = put(tmp_path, baseline, candidate)
    assert causes(verdict) == ["RNG(seed ignored)"] and verdict.causes[0].party == "candidate"


# --- pairs, and faults that begin later -------------------------------------------------------------


def shift(frame: FrameRecord, by: int = 1) -> None:
    change(frame, "logprob", lambda i, row: np.roll(row, by))


@pytest.mark.slow
def test_a_shift_that_begins_at_a_step_says_so(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for frame in rolled(candidate, 2):
        shift(frame)
    verdict = put(tmp_path, baseline, candidate)
    settled(verdict, "ALIGNMENT")
    assert "from step 2 on" in verdict.causes[0].summary


@pytest.mark.slow
def test_tokens_of_its_own_do_not_make_any_reading_right(tmp_path: Path) -> None:
    """Half of the tokens are the candidate's own: what is left after a shift must not be put down to them."""
    baseline, candidate = plain()
    rng = np.random.default_rng(9)
    for frame in rolled(candidate):
        rows = frame.arrays["output"]
        rows.values[rng.random(len(rows.values)) < 0.5] = 901
        frame.arrays["logprob"].values -= 0.3
    assert "ALIGNMENT" not in causes(put(tmp_path, baseline, candidate))


@pytest.mark.slow
def test_a_shift_in_one_step_and_a_scale_in_another_are_two_causes(tmp_path: Path) -> None:
    baseline, candidate = plain()
    shift(candidate.frame("rollout", 1))
    numbers = candidate.frame("rollout", 3).arrays["logprob"]
    numbers.values = numbers.values / 0.8
    verdict = put(tmp_path, baseline, candidate)
    assert set(causes(verdict)) == {"ALIGNMENT", "LOGPROB_SEMANTICS(scaled)"}
    assert "in step 1" in cause(verdict, "ALIGNMENT").summary


@pytest.mark.slow
@pytest.mark.parametrize(("last", "proven_by"), [(2, True), (STEPS, False)], ids=["fixed", "to the end"])
def test_a_stale_tensor_that_a_later_sync_mends_is_proven_by_leaving_its_steps_out(
    tmp_path: Path, last: int, proven_by: bool
) -> None:
    """Where it stays stale to the end, any fault that begins with it would go with those steps too: no proof."""
    baseline, candidate = plain()
    leave_out(candidate, TENSORS[:1], range(2, last + 1))
    (named,) = put(tmp_path, baseline, candidate).causes
    assert named.name == f"STALE_WEIGHTS({TENSORS[0]})"
    if proven_by:
        (proof,) = named.proofs
        assert proof.intervention == "leave out the steps drawn with weight version 2"
        assert (proof.before, proof.after, proof.unit) == (16, 0, "samples")
    else:
        assert not named.proofs


@pytest.mark.slow
def test_a_shift_beside_a_stale_tensor_is_not_hidden_by_it(tmp_path: Path) -> None:
    baseline, candidate = plain()
    leave_out(candidate, TENSORS[:1], range(1, STEPS + 1))
    for frame in rolled(candidate):
        shift(frame)
    verdict = put(tmp_path, baseline, candidate)
    assert set(causes(verdict)) == {f"STALE_WEIGHTS({TENSORS[0]})", "ALIGNMENT"}


@pytest.mark.slow
@pytest.mark.parametrize("crossed", [False, True])
def test_a_cache_is_told_from_the_place_in_the_group_by_samples_that_are_first_in_theirs(
    tmp_path: Path, crossed: bool
) -> None:
    """Where the first sample of each prompt fills the cache for the others, a fault of the others looks the same."""
    baseline, candidate = plain()
    for recording in (baseline, candidate):
        for frame in rolled(recording):
            prompts = [tuple(row) for row in frame.arrays["prompt"].rows()]
            first = np.array([prompts.index(ids) == row for row, ids in enumerate(prompts)])
            frame.arrays["cached"][:] = np.where(first, 0, 4)
            if crossed:  # prompts of earlier steps that come again
                frame.arrays["cached"][: len(first) // 2] = 4
    for frame in rolled(candidate, 1):  # a cache is stale only after a sync
        warm = frame.arrays["cached"] > 0
        frame.arrays["logprob"].values[np.repeat(warm, frame.arrays["logprob"].lengths)] -= 0.05
    (named,) = put(tmp_path, baseline, candidate).causes
    assert named.name == "STALE_KV" and bool(named.proofs) is crossed
    assert ("not told apart from a fault of the place in the group" in named.evidence) is not crossed


@pytest.mark.slow
@pytest.mark.parametrize("crossed", [False, True])
def test_a_cache_is_told_from_the_length_of_prompts_by_long_ones_without_cached_tokens(
    tmp_path: Path, crossed: bool
) -> None:
    """Short prompts fill no block of a cache."""
    baseline, candidate = plain()
    for recording in (baseline, candidate):
        for frame in rolled(recording):
            lengths = frame.arrays["prompt"].lengths
            long = lengths >= LONG
            frame.arrays["cached"][:] = np.where(long, 4, 0)
            if crossed:
                frame.arrays["cached"][np.flatnonzero(long)[::2]] = 0
    for frame in rolled(candidate, 1):  # a cache is stale only after a sync
        warm = frame.arrays["cached"] > 0
        frame.arrays["logprob"].values[np.repeat(warm, frame.arrays["logprob"].lengths)] -= 0.05
    (named,) = put(tmp_path, baseline, candidate).causes
    assert named.name == "STALE_KV" and bool(named.proofs) is crossed
    assert ("not told apart from a fault of long prompts" in named.evidence) is not crossed


@pytest.mark.slow
def test_a_stale_cache_beside_a_double_bos(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for frame in rolled(candidate, 1):
        warm = frame.arrays["cached"] > 0
        frame.arrays["logprob"].values[np.repeat(warm, frame.arrays["logprob"].lengths)] -= 0.05
    for frame in rolled(candidate, 1):
        change(frame, "prompt_seen", lambda i, row: np.concatenate([[BOS], row]) if i == 0 else row)
        rows = frame.arrays["logprob"]
        rows.values[: rows.lengths[0]] -= 0.1  # not cached, and explained by its prompt
    verdict = put(tmp_path, baseline, candidate)
    assert set(causes(verdict)) == {"TOKENIZATION(double BOS)", "STALE_KV"}


@pytest.mark.slow
def test_a_few_cached_samples_that_differ_may_be_chance(tmp_path: Path) -> None:
    """Three quarters of the samples are cached: that three differing ones are says nothing."""
    baseline, candidate = plain()
    frame = candidate.frame("rollout", 1)
    for row in (1, 2, 3):
        rows = frame.arrays["logprob"]
        rows.values[rows.offsets[row] : rows.offsets[row + 1]] -= 0.05
    assert causes(put(tmp_path, baseline, candidate)) == ["UNEXPLAINED"]


@pytest.mark.slow
def test_another_parameter_does_not_explain_log_probabilities(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for sampling in candidate.events("sampling"):
        sampling["canonical"]["temperature"] = 0.9
    flip(candidate.frame("rollout", 1), 3, 0, 99)
    for frame in rolled(candidate, 2):
        frame.arrays["logprob"].values -= 0.05
    verdict = put(tmp_path, baseline, candidate)
    assert causes(verdict) == ["SAMPLING_PARAM(temperature)", "UNEXPLAINED"]
    assert "step 2" in cause(verdict, "UNEXPLAINED").evidence


def floors(recording: Any, *variants: str) -> list[Any]:
    return [frame for frame in recording.frames("floor") if frame.fields["variant"] in variants]


@pytest.mark.slow
def test_a_nan_in_the_floor_is_no_noise_as_well(tmp_path: Path) -> None:
    baseline, candidate = plain()
    candidate.frame("rollout", 1).arrays["logprob"].values[5] = np.nan
    for frame in floors(candidate, "batch", "order"):
        frame.arrays["logprob"].values[7] = np.nan
    assert causes(put(tmp_path, baseline, candidate)) == ["NUMERIC_FATAL"]


@pytest.mark.slow
def test_noise_in_the_floor_beside_a_nan_is_noise(tmp_path: Path) -> None:
    baseline, candidate = plain()
    candidate.frame("rollout", 1).arrays["logprob"].values[5] = np.nan
    for frame in floors(candidate, "batch", "order"):
        frame.arrays["logprob"].values += np.where(np.arange(len(frame.arrays["logprob"].values)) % 2, 0.05, -0.05)
    assert set(causes(put(tmp_path, baseline, candidate))) == {"NUMERIC_FATAL", "candidate-itself"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "expected"), [("prefill", ["STALE_KV"]), ("batch", ["STALE_KV", "candidate-itself"])]
)
def test_a_stale_cache_shows_between_drawing_and_scoring(tmp_path: Path, variant: str, expected: list[str]) -> None:
    baseline, candidate = plain()
    for frame in rolled(candidate, 1):
        warm = frame.arrays["cached"] > 0
        frame.arrays["logprob"].values[np.repeat(warm, frame.arrays["logprob"].lengths)] -= 0.05
    for frame in floors(candidate, variant):
        frame.arrays["logprob"].values += 0.05
    assert causes(put(tmp_path, baseline, candidate)) == expected


def warmed(recording: Recording, *, cold: int = 0) -> None:
    """Every sample but the first `cold` of a step came after a cached prompt."""
    for frame in rolled(recording):
        frame.arrays["cached"][:] = 8
        frame.arrays["cached"][:cold] = 0


@pytest.mark.slow
@pytest.mark.parametrize("variants", [("prefill",), ("prefill", "batch")], ids=["scored otherwise", "noisy"])
def test_an_engine_is_not_blamed_for_what_its_cache_may_have_done(tmp_path: Path, variants: tuple[str, ...]) -> None:
    """Every sample has cached tokens: to leave those out, which would tell, leaves nothing to compare with."""
    baseline, candidate = plain()
    for recording in (baseline, candidate):
        warmed(recording)
    for frame in rolled(candidate):
        frame.arrays["logprob"].values -= 0.05
    for frame in floors(candidate, *variants):
        frame.arrays["logprob"].values += 0.05
    verdict = put(tmp_path, baseline, candidate)
    (named,) = verdict.causes
    assert named.party == "candidate" and not named.proofs
    if "batch" in variants:  # control: an engine that does not repeat a draw is noisy, whatever it caches
        assert named.name == "candidate-itself" and "STALE_KV" not in named.evidence
    else:
        assert named.name == "UNEXPLAINED" and "out leaves 0 of the same steps" in named.evidence
        assert "suspected, not proven: a stale prefix cache (STALE_KV)" in named.evidence


@pytest.mark.slow
def test_a_cache_is_not_suspected_where_samples_without_cached_tokens_differ_too(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for recording in (baseline, candidate):
        warmed(recording, cold=2)
    for frame in rolled(candidate):
        frame.arrays["logprob"].values -= 0.05
    for frame in floors(candidate, "prefill"):
        frame.arrays["logprob"].values += 0.05
    verdict = put(tmp_path, baseline, candidate)
    (named,) = verdict.causes
    assert named.name == "candidate-itself(decoding)" and "it does not draw as it scores" in named.evidence


@pytest.mark.slow
def test_a_nan_beside_a_shift(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for frame in rolled(candidate):
        shift(frame)
    candidate.frame("rollout", 2).arrays["logprob"].values[5] = np.nan
    assert set(causes(put(tmp_path, baseline, candidate))) == {"ALIGNMENT", "NUMERIC_FATAL"}


@pytest.mark.slow
def test_a_fault_next_to_a_benign_flip(tmp_path: Path) -> None:
    baseline, candidate = plain()
    for recording in (baseline, candidate):
        recording.frame("experience", 1).arrays["margin"].values[7] = 3e-7
    frame, truth = candidate.frame("rollout", 1), baseline.frame("experience", 1).arrays
    frame.arrays["output"].values[7] = truth["runner_up"].values[7]
    for one in rolled(candidate):
        shift(one)
    verdict = put(tmp_path, baseline, candidate)
    settled(verdict, "ALIGNMENT")
    assert verdict.coverage["benign_flips"] == 1 and check(verdict, "tokens").state == "ruled out"


# --- responses that were encoded again, ranks, what a place shows --------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("read", ["same", "other", "unrecorded"])
def test_responses_that_were_encoded_again(tmp_path: Path, read: str) -> None:
    """Two ids of one text, as bytes of a broken character are: the text that was recorded says so."""
    baseline, candidate = plain()
    for frame in rolled(candidate, 1):
        for row in (0, 5, 9):
            flip(frame, row, 0, 900)
    for event in candidate.events("boundaries"):
        if event["step"] >= 1 and event["sample"] % 16 in (0, 5, 9):
            event["output_first"] = [900, *event["output_first"][1:]]
            if read == "other":
                event["text_seam"] += "!"
    for recording in (baseline, candidate) if read == "unrecorded" else ():
        for event in recording.events("boundaries"):
            event["text_seam"] = event["text_last"] = ""
    verdict = put(tmp_path, baseline, candidate)
    if read == "same":
        settled(verdict, "RETOKENIZATION")
    else:
        assert causes(verdict) == ["UNEXPLAINED"]


def shares(recording: Recording, samples: tuple[int, int]) -> None:
    """Two ranks of the actor with so many samples each."""
    for rank, share in enumerate(samples):
        log = Log("actor", 7000 + rank + 10 * (recording.manifest["side"] == "baseline"), rank)
        log.event(
            "open", host="node-1", pid=log.pid, role="actor", rank=rank, wall_ns=log.pid, packages={"torch": "2.13.0"}
        )
        for step in range(STEPS):
            log.event(
                "shapes",
                step=step,
                phase="actor_forward",
                tensors={},
                padded_tokens=40 * share,
                real_tokens=30 * share,
                longest=40,
                samples=share,
            )
        recording.logs[f"actor-{rank}"] = log


@pytest.mark.slow
@pytest.mark.parametrize("samples", [(8, 8), (9, 8), (12, 4)])
def test_ranks_with_unequal_shares(tmp_path: Path, samples: tuple[int, int]) -> None:
    baseline, candidate = plain()
    shares(baseline, (8, 8))
    shares(candidate, samples)
    next(candidate.events("learner", step=2))["actor"] = "f" * 32
    verdict = put(tmp_path, baseline, candidate)
    unequal = samples == (12, 4)
    assert causes(verdict) == (["SHAPE"] if unequal else ["UNEXPLAINED"])
    assert verdict.causes[0].party == "trainer"
    other = samples != (8, 8)  # a sample more than the baseline's rank got is no skew, but another batch
    assert check(verdict, "experience-matrix-shapes").state == ("confirmed" if other else "ruled out")


@pytest.mark.slow
def test_unequal_shares_that_change_nothing_are_a_finding(tmp_path: Path) -> None:
    baseline, candidate = plain()
    shares(baseline, (8, 8))
    shares(candidate, (12, 4))
    verdict = put(tmp_path, baseline, candidate)
    assert verdict.verdict == "EQUIVALENT", verdict.reason
    assert any("12 samples" in finding.summary for finding in verdict.findings)


@pytest.mark.slow
def test_the_first_divergence_shows_its_ids_and_the_text_around_them(tmp_path: Path) -> None:
    baseline, candidate = plain()
    row = int(np.argmax(candidate.frame("rollout", 1).arrays["output"].lengths))
    flip(candidate.frame("rollout", 1), row, 2, 900)
    context = put(tmp_path, baseline, candidate).parity.first_divergence.context
    assert "[900]" in context and "“" in context and "w6" in context


@pytest.mark.slow
def test_the_first_divergence_says_where_no_text_was_recorded(tmp_path: Path) -> None:
    baseline, candidate = plain()
    row = int(np.argmax(candidate.frame("rollout", 1).arrays["output"].lengths))
    flip(candidate.frame("rollout", 1), row, 12, 900)
    context = put(tmp_path, baseline, candidate).parity.first_divergence.context
    assert "[900]" in context and "first and last eight ids only" in context


@pytest.mark.slow
@pytest.mark.parametrize("party", ["candidate", "baseline"])
def test_ids_of_another_encoding_are_told_by_their_text_where_a_tokenizer_is_at_hand(
    party: str, tmp_path: Path
) -> None:
    """One id in the middle of two responses covers the text of two; no text was recorded there."""
    baseline, candidate = plain()
    spelled = {700: "ab", 701: "a", 702: "b"}
    for step in (1, 2):
        frame, other = baseline.frame("rollout", step), candidate.frame("rollout", step)
        row = int(np.argmax(frame.arrays["output"].lengths))
        at = int(frame.arrays["output"].offsets[row]) + 10
        ids = (701, 702) if party == "candidate" else (700, 703)
        for recording in (baseline, candidate):
            recording.frame("rollout", step).arrays["output"].values[at : at + 2] = ids
            experience = recording.frame("experience", step)
            experience.arrays["tokens"].values[at : at + 2] = ids
            experience.arrays["margin"].values[at] = 3.0 if party == "candidate" else -3.0
        flip(other, row, 10, 700 if party == "candidate" else 701)
    baseline.write(tmp_path / "baseline")
    candidate.write(tmp_path / "candidate")
    found = judged_pair(tmp_path / "baseline", tmp_path / "candidate", native=False)
    assert "RETOKENIZATION" not in causes(found.verdict) and found.evidence is not None

    def texts(rows: list[list[int]]) -> list[str]:
        return ["".join(spelled.get(one, f"<{one}>") for one in row) for row in rows]

    aloud = Learned(read_aloud(found.evidence, explain(found.evidence, found.kinds), texts))
    named = find(replace(found.evidence, learned=aloud), found.kinds)
    assert [(one.name, one.party) for one in named] == [("RETOKENIZATION", party)]
    # Control: tokens that read otherwise.
    spelled[700] = "x"
    aloud = Learned(read_aloud(found.evidence, explain(found.evidence, found.kinds), texts))
    assert [one.name for one in find(replace(found.evidence, learned=aloud), found.kinds)] == ["UNEXPLAINED"]


@pytest.mark.slow
def test_the_case_holds_samples_in_which_something_else_began_late(tmp_path: Path) -> None:
    """Every prompt has a second BOS, a few tokens differ in each step, many in the last: those are drawn again too."""
    baseline, candidate = plain()
    for frame in rolled(candidate):
        change(frame, "prompt_seen", lambda i, row: np.concatenate([[BOS], row]))
        for row in range(OFFENDING // 2 if frame.step < STEPS - 1 else len(frame.arrays["sample"])):
            flip(frame, row, 0, 777)
    baseline.write(tmp_path / "baseline")
    candidate.write(tmp_path / "candidate")
    found = judged_pair(tmp_path / "baseline", tmp_path / "candidate", native=False)
    assert found.evidence is not None
    offending = {one.number for one in choose(explain(found.evidence, found.kinds), found.kinds) if one.offends}
    late = set(rolled(candidate, STEPS - 1)[0].arrays["sample"].tolist())
    assert len(offending) == OFFENDING and len(offending & late) >= LATEST
