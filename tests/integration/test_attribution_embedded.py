"""Each live intervention on an embedded engine with a planted fault, and its control; what a verdict makes of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from bench_lab import Lab
from cause_keys import key, of
from recorded_words import recording_of

from harness.parity.attribution import live, merged, reference
from harness.parity.attribution.merge import same_cause
from harness.parity.attribution.outcome import Attribution
from harness.parity.attribution.put_back import engine_parameters
from harness.parity.attribution.reference import _by_chance
from harness.parity.causes.family import Seen
from harness.parity.facts.divergence import Kind
from harness.parity.interventions.situation import Named, Situation, Tried, improves, settled
from harness.parity.interventions.trial import Trial
from harness.parity.subjects.order.causes import other_sample_numbers
from harness.parity.subjects.precision.observed_floor import Tolerance
from harness.parity.subjects.prefix_cache.causes import past_cache
from harness.parity.subjects.sampling.causes import parameters
from harness.parity.subjects.weights.observed_sync_record import SyncRecord
from harness.parity.verdict import Judged
from harness.recordings.records.engine_info import SamplingRequest
from reports.model import Cause, Proof, Verdict
from scenarios import models
from scenarios.bench.case import Alteration, HeadReport, HeldReport, Symptoms
from scenarios.engines.engine_interface import EngineError
from scenarios.engines.hf.engine import HFEngine
from scenarios.engines.mapping import ParameterMap
from scenarios.models.quiet import quiet
from scenarios.settings import Sampling, Scenario

TENSOR = "model.layers.1.mlp.down_proj.weight"


ASKED = Sampling(max_tokens=12)
COOL = dataclasses.replace(ASKED, temperature=0.7)


def test_an_engine_without_a_fault_has_no_symptom(lab: Lab) -> None:
    found = lab.situation(ASKED).symptoms
    assert (found.total, found.noise) == (0, 0)
    assert found.compared["tokens"] == found.compared["scores"] > 50 and found.compared["prompts"] == 8


@pytest.mark.parametrize("method", ["generate", "rescore"])
def test_a_mistake_in_the_engines_code_is_not_the_references_too(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """The embedded engine changes whatever model it computes with, and it draws the guide of the reference, too."""
    original = getattr(HFEngine, method)

    def changed(self: HFEngine, *args: Any, **options: Any) -> Any:
        self.model.model.layers[1].self_attn.scaling = 0.5  # twice the right one
        return original(self, *args, **options)

    monkeypatch.setattr(HFEngine, method, changed)
    s = lab.situation(ASKED)
    assert s.symptoms.of("scores") > 0
    assert "first in layer 1" in live.narrowest(s)[0]


@pytest.mark.by_day(3)
@pytest.mark.parametrize(
    ("asked", "plants", "cause"),
    [
        (ASKED, {"shift": 1}, "ALIGNMENT"),
        (ASKED, {"shift": -1}, "ALIGNMENT"),
        (ASKED, {"shift": 2}, "ALIGNMENT"),
        (ASKED, {"bos_lost": True}, "TOKENIZATION(no BOS)"),
        (ASKED, {"seed_offset": 7}, "RNG(seed ignored)"),
        (ASKED, {"sampling": {"temperature": 0.93}}, "SAMPLING_PARAM(temperature)"),
        (ASKED, {"sampling": {"min_p": 0.07}}, "SAMPLING_PARAM(min_p)"),
        (ASKED, {"truncate": {"side": "left", "keep": 3}}, "TRUNCATION(left)"),
        (ASKED, {"truncate": {"side": "right", "keep": 4}}, "TRUNCATION(right)"),
        (ASKED, {"clones": 2}, "RNG_COLLISION"),
        (ASKED, {"seed_offset": 1}, "RNG(seed ignored)"),
        (ASKED, {"sampling": {"temperature": 0.8}}, "SAMPLING_PARAM(temperature)"),
        (ASKED, {"sampling": {"top_p": 0.8}}, "SAMPLING_PARAM(top_p)"),
        (COOL, {"draw": {"reported": "tempered"}}, "LOGPROB_SEMANTICS(tempered)"),
        (ASKED, {"draw": {"reported": "tempered:0.8"}}, "LOGPROB_SEMANTICS(tempered)"),
        (COOL, {"draw": {"reported": "tempered:0.8"}}, "LOGPROB_SEMANTICS(tempered)"),
        (ASKED, {"truncate": {"side": "left", "keep": 3, "unsaid": True}}, "TRUNCATION(left)"),
        (ASKED, {"truncate": {"side": "right", "keep": 4, "unsaid": True}}, "TRUNCATION(right)"),
        (dataclasses.replace(ASKED, top_p=0.6), {"draw": {"reported": "filtered"}}, "LOGPROB_SEMANTICS(renormalised)"),
        (dataclasses.replace(ASKED, top_k=20, top_p=0.6), {"draw": {"joint": True}}, "SAMPLER(joint top-k/top-p)"),
    ],
    ids=str,
)
def test_the_reference_makes_the_same_mistake(lab: Lab, asked: Sampling, plants: dict[str, Any], cause: str) -> None:
    s = lab.situation(asked, engine=plants)
    before = s.symptoms.total
    assert before >= 3 and not s.symptoms.of("scores")
    reference.search(s)
    assert [str(one.cause) for one in s.named] == [cause]
    assert s.symptoms.total <= 0.02 * before
    assert (s.named[0].proof.before, s.named[0].proof.on) == (before, "live engines")


def test_an_engine_draws_with_the_random_numbers_of_another(lab: Lab) -> None:
    s = lab.situation(ASKED, engine={"stream": 1, "first_sample": 4}, engines=2)
    assert s.symptoms.total >= 3 and min(s.symptoms.by_sample) >= 4
    reference.search(s)
    assert [str(one.cause) for one in s.named] == ["RNG_COLLISION(engines)"] and not s.symptoms.total
    assert "engine 1 of the candidate draws with the random numbers of engine 0" in s.named[0].summary
    other = lab.situation(ASKED, engine={"clones": 2}, engines=2)  # control: clones are no engine's
    reference.search(other)
    assert [str(one.cause) for one in other.named] == ["RNG_COLLISION"]


@pytest.mark.night
def test_what_a_noisy_engine_chooses_is_explained_all_the_same(lab: Lab) -> None:
    s = lab.situation(ASKED, engine={"noise": 3e-4, "sampling": {"top_k": 3}})
    assert s.symptoms.noise and s.symptoms.restless and not s.symptoms.of("logprobs", "scores")
    reference.search(s)
    assert [str(one.cause) for one in s.named] == ["SAMPLING_PARAM(top_k)"]
    quiet = lab.situation(ASKED, engine={"noise": 3e-4})  # control: nothing but noise
    assert quiet.symptoms.noise and not quiet.symptoms.restless and quiet.symptoms.of("logprobs")


LOG2 = """
import dataclasses, math
from scenarios.planted.differences.faulty_engine import Wrapper

class Log2(Wrapper):
    def generate(self, requests, sampling, *, seed):
        drawn = super().generate(requests, sampling, seed=seed)
        return [dataclasses.replace(one, logprobs=tuple(x / math.log(2) for x in one.logprobs)) for one in drawn]

    def rescore(self, sequences):
        return [[x / math.log(2) for x in row] for row in super().rescore(sequences)]
"""


def test_another_base_of_the_logarithm_is_in_the_scores_too(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "log2.py").write_text(LOG2)
    s = lab.situation(ASKED, engine={"wrapper": f"{tmp_path / 'log2.py'}:Log2"})
    assert s.symptoms.of("scores") and s.symptoms.of("logprobs")
    reference.search(s)
    assert [(str(one.cause), one.party) for one in s.named] == [("LOGPROB_SEMANTICS(scaled)", "candidate")]
    assert s.symptoms.total == 0


def test_a_parameter_that_a_side_asked_for_is_its_own(lab: Lab) -> None:
    s = lab.situation(ASKED, given=COOL)
    reference.search(s)
    assert [(str(one.cause), one.party) for one in s.named] == [("SAMPLING_PARAM(temperature)", "candidate")]


def test_parameters_that_only_explain_it_together_are_each_proven_beside_the_others(lab: Lab) -> None:
    s = lab.situation(ASKED, engine={"sampling": {"temperature": 0.6, "top_p": 0.9}})
    before = s.symptoms.total
    reference.search(s)
    assert [str(one.cause) for one in s.named] == ["SAMPLING_PARAM(temperature)", "SAMPLING_PARAM(top_p)"]
    assert s.symptoms.total <= 0.02 * before
    for one in s.named:
        assert one.proof.before > one.proof.after == s.symptoms.total and "beside" in one.proof.intervention


def test_two_mistakes_at_once_are_both_named(lab: Lab) -> None:
    s = lab.situation(ASKED, engine={"sampling": {"temperature": 0.8}, "truncate": {"side": "left", "keep": 3}})
    before = s.symptoms.total
    reference.search(s)
    assert {str(one.cause) for one in s.named} == {"TRUNCATION(left)", "SAMPLING_PARAM(temperature)"}
    assert s.symptoms.total <= 0.02 * before


def test_a_temperature_that_a_shift_hides_is_proven_once_the_shift_is_removed(lab: Lab) -> None:
    """Drawing cooler, as it says, and reporting one position late: with the temperature alone every number differs."""
    s = lab.situation(ASKED, given=dataclasses.replace(ASKED, temperature=0.9), engine={"shift": 1})
    before = s.symptoms
    assert before.of("tokens") and before.of("logprobs")
    reference.search(s)
    assert [(str(one.cause), one.proof.before > one.proof.after) for one in s.named] == [
        ("ALIGNMENT", True),
        ("SAMPLING_PARAM(temperature)", True),
    ]
    assert s.symptoms.total <= 0.02 * before.total


@pytest.mark.night
def test_unsaid_parameters_under_another_prompt(lab: Lab) -> None:
    """Beside each choice that is another a log-probability is too, until the parameters are known."""
    plants = {"truncate": {"side": "left", "keep": 3}, "sampling": {"temperature": 0.7, "top_p": 0.9}}
    s = lab.situation(dataclasses.replace(ASKED, max_tokens=32), engine=plants)
    before = s.symptoms.total
    reference.search(s)
    assert {str(one.cause) for one in s.named} == {
        "TRUNCATION(left)",
        "SAMPLING_PARAM(temperature)",
        "SAMPLING_PARAM(top_p)",
    }
    assert s.symptoms.total <= 0.02 * before


def test_the_reference_goes_on_with_the_prompt_that_the_engine_went_on_with(lab: Lab) -> None:
    """After each choice that is not the guide's the engine has the prompt that it was sent, though the reference, which
    does not know its parameters, would still choose as the guide."""
    plants = {"text_samples": "all", "sampling": {"temperature": 0.9}}
    s = lab.situation(dataclasses.replace(ASKED, max_tokens=32), engine=plants)
    seen = tuple(sorted(s.bench.prompts_seen("candidate").items()))
    left = s.bench.compare("candidate", Alteration(prompts=seen))
    assert s.symptoms.of("prompts") and left.of("tokens") > 3 and left.compared["logprobs"] > 100
    assert not left.of("prompts", "logprobs")


def test_a_context_ends_long_prompts_earlier_than_short_ones(lab: Lab) -> None:
    """Every sample misses another number of tokens, so that no smaller limit of the response explains them."""
    s = lab.situation(ASKED, engine={"short_context": 20}, longer=1)
    assert s.symptoms.of("lengths") >= 3 and s.symptoms.total == s.symptoms.of("lengths")
    reference.search(s)
    assert [(str(one.cause), one.proof.after) for one in s.named] == [("LENGTH(context)", 0)] and not s.symptoms.total
    assert s.named[0].proof.intervention == "the reference ends at 18 tokens, prompt included"


def test_a_limit_that_a_mapping_gave_is_put_back_and_not_guessed(lab: Lab) -> None:
    s = lab.situation(ASKED, engine={"short_context": 20}, longer=1)
    info = {"canonical": {"kv_cache_tokens": 4096}, "given": {"kv_cache_tokens": 20}, "mapping": "edited"}
    info |= {"file": "rollout"}
    recording: Any = s.evidence.baseline.recording
    recording.records = recording_of(recording.scenario, {"engine_info": [info]}).records
    reference.search(s)
    assert s.changed and not s.named and s.symptoms.total
    s.last_put_back = ["kv_cache_tokens"]  # it made no difference
    reference.search(s)
    assert [str(one.cause) for one in s.named] == ["LENGTH(context)"]


def test_permuted_responses_are_found_under_other_numbers(lab: Lab) -> None:
    s = lab.situation(ASKED, engine={"permute": "responses"})
    other_sample_numbers(s)
    assert [str(one.cause) for one in s.named] == ["ORDER"] and not s.symptoms.total
    sound = lab.situation(ASKED, engine={"sampling": {"temperature": 0.8}})
    other_sample_numbers(sound)
    assert not sound.named and sound.symptoms.total


def test_prompts_of_permuted_answers_are_a_matter_of_order(lab: Lab) -> None:
    s = lab.situation(ASKED, engine={"permute": "answers"})
    assert s.symptoms.of("prompts")
    reference.search(s)
    assert not s.named
    other_sample_numbers(s)
    assert [str(one.cause) for one in s.named] == ["ORDER"]


def test_other_batches_tell_a_noisy_engine_from_a_sound_one(lab: Lab) -> None:
    s = lab.situation(ASKED)
    live.regroup(s)
    assert s.tried[-1].after == 0 < s.tried[-1].before and str(s.tried[-1].cause) == "candidate-itself"
    s = lab.situation(ASKED, engine={"noise": 1e-2})
    live.regroup(s)
    assert 3 < s.tried[-1].after <= s.tried[-1].before


@pytest.mark.parametrize(
    ("engine", "resolved", "refused"),
    [
        ("hf", {"max_model_len": 12}, 12),
        ("sglang", {"max_model_len": 16, "context_length": 18, "kv_cache_tokens": 4096}, 12),  # 90 of 96, measured
        ("sglang", {"max_model_len": 64, "context_length": 72, "kv_cache_tokens": 17}, 11),  # 82 of 88, measured
    ],
    ids=["context", "SGLang's context", "SGLang's pool"],
)
def test_a_sequence_that_an_engine_refuses_to_score_is_scored_as_far_as_it_goes(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, engine: str, resolved: dict[str, int], refused: int
) -> None:
    s = lab.situation(ASKED)
    bench = s.bench
    session = bench._stands["candidate"].session._target  # type: ignore[attr-defined]
    asked: list[int] = []
    rescore, layers, snapshot = session.rescore, session.layers, session.snapshot

    def strict(sequences: list[tuple[int, ...]]) -> list[list[float]]:
        asked.extend(map(len, sequences))
        if max(asked) >= refused:
            raise EngineError(f"Input length ({max(asked)} tokens) exceeds the maximum allowed length")
        return rescore(sequences)  # type: ignore[no-any-return]

    def shown(sequence: tuple[int, ...]) -> Any:
        strict([sequence])
        return layers(sequence)

    monkeypatch.setattr(session, "rescore", strict)
    monkeypatch.setattr(session, "layers", shown)
    monkeypatch.setattr(session, "snapshot", lambda: {**snapshot(), "engine": engine, "resolved": resolved})
    bench._longest.clear()  # type: ignore[attr-defined]
    found = bench.read("candidate")
    assert found.total == 0 and max(asked) == refused - 1 == found.longest
    lengths = [6 + len(ids) for ids, _ in bench._references["candidate"].guide.values()]  # type: ignore[attr-defined]
    assert found.cut == sum(one >= refused for one in lengths) > 0
    assert bench.first_layer("candidate", 0) == (2, 0.0)
    # Control: where everything fits, nothing is cut.
    assert s.symptoms.cut == 0 < s.symptoms.compared["scores"] - found.compared["scores"]


def test_a_stop_that_another_parameter_undoes_is_not_named_beside_it() -> None:
    def trials(native: dict[str, Any]) -> list[Trial]:
        said = {
            "canonical": {"stop_token_ids": [20], "ignore_eos": False},
            "given": {"stop_token_ids": [], "ignore_eos": True},
            "native": native,
            "moves": {"stop_token_ids": ["stop_token_ids"]},
        }
        request = SamplingRequest.of(said)
        s: Any = SimpleNamespace(
            side="candidate", run_sampling=request.requested, request=request, given_sampling=request.received
        )
        return list(parameters(s))

    only = trials({"stop_token_ids": [20], "ignore_eos": True})[0]
    assert only.cause == key("STOP(ignore_eos)")
    assert dict(only.change["sampling"]) == {"ignore_eos": True, "stop_token_ids": []}
    # Control: a mapping that drops the stops as well did two things.
    both = trials({"ignore_eos": True})
    assert {str(one.cause) for one in both[:2]} == {"STOP(ignore_eos)", "STOP(other end set)"}


def garbled(paths: dict[str, str], folder: Path, by: Mapping[str, float] = MappingProxyType({TENSOR: 1.5})) -> str:
    """The policy with tensors times a factor: what an engine holds that missed a sync of them."""
    model = models.load_policy(paths["policy"])
    with torch.no_grad():
        for name, factor in by.items():
            dict(model.named_parameters())[name].mul_(factor)
    with quiet():
        model.save_pretrained(folder)
        models.load_tokenizer(paths["policy"]).save_pretrained(folder)
    return str(folder)


def test_a_stale_tensor_is_named_by_its_own_sync_and_no_other_is(
    lab: Lab, paths: dict[str, str], tmp_path: Path
) -> None:
    s = lab.situation(ASKED, policy=garbled(paths, tmp_path))
    assert s.symptoms.of("scores")
    reference.search(s)
    assert not s.named  # control: no change of the reference explains other weights
    live.search(s, restarts=False)
    assert [(str(one.cause), one.party) for one in s.named] == [(f"STALE_WEIGHTS({TENSOR})", "candidate")]
    assert s.named[0].proof.after == 0 and not s.symptoms.total


def test_vllm_is_sent_whole_modules(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = lab.situation(ASKED).bench
    assert all(len(group) == 1 for group in bench.tensors("candidate"))
    session = bench._stands["candidate"].session._target  # type: ignore[attr-defined]
    monkeypatch.setattr(session, "snapshot", lambda: {"engine": "vllm"})
    groups = bench.tensors("candidate")
    attention = next(group for group in groups if "model.layers.1.self_attn.k_proj.bias" in group)
    assert sorted({name.split(".")[4] for name in attention}) == ["k_proj", "q_proj", "v_proj"] and len(attention) == 6
    assert [TENSOR] in groups


def test_what_stays_unexplained_is_narrowed_to_a_layer(lab: Lab, paths: dict[str, str], tmp_path: Path) -> None:
    s = lab.situation(ASKED, policy=garbled(paths, tmp_path))
    said, place = live.narrowest(s)
    assert "differ first in layer 1" in said and not place  # the tensor's own: it holds another one
    assert s.bench.first_layer("candidate", 0)[0] == 1  # type: ignore[index]
    sound = lab.situation(ASKED)
    assert sound.bench.first_layer("candidate", 0) == (2, 0.0)


@pytest.mark.parametrize(
    ("by", "of_the_head", "of_the_states", "place"),
    [
        ({TENSOR: 1.5}, False, True, "layer 1"),
        ({"lm_head.weight": 1.5}, True, False, "head"),
        ({TENSOR: 1.5, "lm_head.weight": 1.5}, True, True, "layer 1 and head"),
    ],
    ids=["layer", "head", "both"],
)
def test_a_head_is_told_from_the_states_that_enter_it(
    lab: Lab, paths: dict[str, str], tmp_path: Path,
    by: dict[str, float], of_the_head: bool, of_the_states: bool, place: str
) -> None:  # fmt: skip
    s = lab.situation(ASKED, policy=garbled(paths, tmp_path, by))
    number = max(s.remaining.by_sample, key=lambda sample: s.remaining.by_sample[sample])
    head = s.bench.head("candidate", number)
    assert head is not None and head.before > 3
    assert (head.after > 0, head.by_states > 0) == (of_the_head, of_the_states)
    first_layer = s.bench.first_layer("candidate", number)
    assert first_layer is not None
    layer, apart = first_layer
    assert live._place(number, layer, apart, head)[0] == place


def test_states_that_part_by_too_little_to_matter_are_no_place() -> None:
    """They differ in layer 0 by more than they round, and in the reference's head give the reference's numbers."""
    assert live._place(0, 0, 6e-4, HeadReport(before=40, after=40, by_states=0))[0] == "head"
    assert live._place(0, 0, 6e-4, HeadReport(before=40, after=0, by_states=40))[0] == "layer 0"
    assert live._place(0, 0, 6e-4, HeadReport(before=2, after=2, by_states=0))[0] == "layer 0"


def test_two_causes_of_which_one_is_in_the_weights(lab: Lab, paths: dict[str, str], tmp_path: Path) -> None:
    s = lab.situation(ASKED, policy=garbled(paths, tmp_path), given=COOL)
    reference.search(s)
    live.search(s, restarts=False, then=reference.search)
    assert not s.symptoms.total
    assert {str(one.cause) for one in s.named} == {f"STALE_WEIGHTS({TENSOR})", "SAMPLING_PARAM(temperature)"}


def test_an_engine_that_keeps_what_it_made_of_earlier_weights(lab: Lab) -> None:
    s = lab.situation(ASKED)
    bench = Derived(s.bench)
    s.bench, s.symptoms = bench, bench.read("candidate")
    live.restart(s)
    assert [str(one.cause) for one in s.named] == ["STALE_DERIVED"] and not s.symptoms.total
    s = lab.situation(ASKED)
    bench = Derived(s.bench, spoils=True)
    s.bench, s.symptoms = bench, bench.read("candidate")
    live.restart(s)
    assert [str(one.cause) for one in s.named] == ["WEIGHTS(loading)"]


@pytest.mark.parametrize("fixed", [True, False])
def test_a_tensor_that_was_sent_already_is_not_what_a_fresh_engine_fixes(lab: Lab, fixed: bool) -> None:
    """Beside a stale tensor an engine may keep what it made of earlier weights: after all were sent that is left."""
    s = lab.situation(ASKED)
    bench = Derived(s.bench)
    s.bench, s.symptoms = bench, bench.read("candidate")
    sync = {"version": 2, "absent": [TENSOR], "mismatched": []}
    recording: Any = s.evidence.baseline.recording
    recording.records = recording_of(recording.scenario, {"sync": [sync]}).records
    stale = f"STALE_WEIGHTS({TENSOR})"
    if fixed:
        s.named.append(Named(key(stale), "candidate", "candidate", "", PROOF))
    live.restart(s)
    assert [str(one.cause) for one in s.named] == ([stale, "STALE_DERIVED"] if fixed else [stale])


class Derived:
    """A bench whose engine reads wrong until it starts anew; `spoils`: and again after a sync."""

    WRONG = Symptoms({"tokens": 9, "scores": 40}, by_sample={1: 49})

    def __init__(self, bench: Any, spoils: bool = False) -> None:
        self._bench, self._spoils, self._wrong = bench, spoils, True

    def read(self, side: str) -> Symptoms:
        return self.compare(side)

    def compare(self, side: str, alteration: Alteration = Alteration()) -> Symptoms:  # noqa: B008
        return self.WRONG if self._wrong else self._bench.compare(side, alteration)

    def restart(self, side: str) -> float:
        self._wrong = False
        return self._bench.restart(side)

    def sync(self, side: str) -> float:
        self._wrong = self._spoils
        return 0.0

    def hold(self, side: str, names: list[str]) -> None:
        assert not names

    def held(self, side: str) -> HeldReport:
        return HeldReport(unreadable={"every tensor": "the engine does not show what it holds"})


def test_a_stale_cache_goes_without_the_cache_whatever_an_order_to_flush_does(lab: Lab) -> None:
    s = lab.situation(ASKED)

    class Cached(Derived):
        def __init__(self, bench: Any, *, follows: bool) -> None:
            super().__init__(bench)
            self._follows, self._stale = follows, True

        def past_cache(self, side: str, on: bool) -> None:
            self._wrong = self._stale and not on

        def flush(self, side: str) -> None:
            self._wrong = self._stale = self._stale and not self._follows

    for follows in (True, False):
        bench = Cached(s.bench, follows=follows)
        situation = dataclasses.replace(s, bench=bench, symptoms=dataclasses.replace(bench.WRONG, cached=30), named=[])
        past_cache(situation)
        assert [str(one.cause) for one in situation.named] == ["STALE_KV"] and not situation.symptoms.total
        assert situation.named[0].details["a flush removes it"] is follows
        assert ("does not follow it" in situation.named[0].summary) is not follows
    s.symptoms = Derived.WRONG  # nothing came from a cache: not the cache's fault, and said so
    past_cache(s)
    assert not s.named and "STALE_KV" in s.notes[-1]


class Started(Derived):
    """A bench whose engine reads wrong as long as one of `guilty` is not put back; `stale`: or until it starts anew."""

    def __init__(self, guilty: set[str], *, stale: bool = False) -> None:
        super().__init__(None)
        self._guilty, self._stale, self.starts = guilty, stale, []  # type: ignore[var-annotated]

    def put_back(self, side: str, names: list[str]) -> float:
        self.starts.append(names)
        self._wrong = not self._stale and not self._guilty <= set(names)
        return 0.0

    def compare(self, side: str, alteration: Alteration = Alteration()) -> Symptoms:  # noqa: B008
        return self.WRONG if self._wrong else Symptoms()


def started(bench: Started, *, first: bool, given: dict[str, Any], takes: float = 1e-3) -> Situation:
    asked = {"dtype": "float32", "max_model_len": 128, "enforce_eager": True, "chunked_prefill": True}
    info = {"canonical": asked, "given": {**asked, **given}, "mapping": "edited", "file": "rollout"}
    events = {"engine_info": [info], "sampling": []}
    side = SimpleNamespace(recording=recording_of({}, events), sync=SyncRecord())
    found = np.array([[0 if first else 1, 5]])
    evidence: Any = SimpleNamespace(side=lambda name: side, mode="coupled", steps=[0, 1], found=lambda kind: found)
    clock = iter(range(10**9))
    return Situation(bench, evidence, "candidate", bench.WRONG, lambda: next(clock) * takes, 1e9, [])  # type: ignore[arg-type]


ALL = {"dtype": "bfloat16", "max_model_len": 96, "enforce_eager": False, "chunked_prefill": False}


@pytest.mark.parametrize(
    ("guilty", "names"),
    [
        ("dtype", ["CONFIG(dtype)"]),
        ("max_model_len", ["LENGTH(context)"]),
        ("dtype chunked_prefill", ["CONFIG(chunked_prefill)", "CONFIG(dtype)"]),
    ],
    ids=str,
)
def test_of_several_parameters_of_the_engine_the_guilty_ones_are_told(guilty: str, names: list[str]) -> None:
    s = started(Started(set(guilty.split())), first=True, given=ALL)
    engine_parameters(s)
    assert sorted(str(one.cause) for one in s.named) == names and {one.party for one in s.named} == {"mapping"}
    assert not s.symptoms.total and s.named[0].proof.after == 0


def test_without_time_to_tell_them_apart_parameters_of_the_engine_are_named_together() -> None:
    s = started(Started({"dtype"}), first=True, given=ALL, takes=9.0)
    engine_parameters(s)
    assert [str(one.cause) for one in s.named] == ["CONFIG(chunked_prefill, dtype, enforce_eager, max_model_len)"]
    assert "apart" in s.notes[-1]
    s = started(Started({"dtype"}), first=True, given=ALL, takes=9.0)
    s.recorded = frozenset({key("CONFIG(dtype)")})
    engine_parameters(s)
    assert [str(one.cause) for one in s.named] == ["CONFIG(dtype)"]  # the one that a recording names


def test_a_reserve_beyond_what_was_asked_is_no_change() -> None:
    assert set(started(Started(set()), first=True, given={**ALL, "max_model_len": 134}).changed) == {*ALL} - {
        "max_model_len"
    }


def test_parameters_of_the_engine_that_remove_nothing_are_not_named() -> None:
    s = started(Started({"other"}), first=True, given={"dtype": "bfloat16"})
    engine_parameters(s)
    assert not s.named and s.symptoms.total and not s.tried[-1].removed
    bench = Started(set())
    engine_parameters(started(bench, first=True, given={}))  # nothing was given otherwise than asked
    assert not bench.starts


def test_a_fresh_engine_that_agrees_by_itself_speaks_for_no_parameter() -> None:
    """The difference came after the first step: something old in the engine may have made it."""
    s = started(Started(set(), stale=True), first=False, given={"dtype": "bfloat16"})
    engine_parameters(s)
    assert not s.named and s.symptoms.total
    bench = Started({"dtype"})
    s = started(bench, first=False, given={"dtype": "bfloat16"})
    engine_parameters(s)
    assert [str(one.cause) for one in s.named] == ["CONFIG(dtype)"] and bench.starts == [["dtype"], [], ["dtype"]]


def test_a_parameter_put_back_is_what_our_mapping_passes_on() -> None:
    edited = ParameterMap.of({"edits": {"engine": {"dtype": "bfloat16", "max_model_len": 86}}})
    ours = {"dtype": "float32", "max_model_len": 128, "seed": 0}
    assert edited.apply("hf", "engine", {}, ours) == {"dtype": "bfloat16", "max_model_len": 86, "seed": 0}
    restored = dataclasses.replace(edited, restored=("dtype",))
    assert restored.apply("hf", "engine", {}, ours) == {"dtype": "float32", "max_model_len": 86, "seed": 0}


def test_an_engine_is_given_its_parameters_as_asked(lab: Lab, paths: dict[str, str]) -> None:
    """The embedded engine in another type, on the bench: the type is put back, and the difference goes."""
    s = lab.situation(ASKED, mapping={"edits": {"engine": {"dtype": "bfloat16"}}})
    assert s.symptoms.of("scores")
    asked, given = {"dtype": "float32"}, {"dtype": "bfloat16"}
    info = {"canonical": asked, "given": given, "mapping": "edited", "file": "rollout"}
    recording = recording_of({}, {"engine_info": [info]})
    side = SimpleNamespace(recording=recording, sync=SyncRecord())
    s.evidence = SimpleNamespace(  # type: ignore[assignment]
        side=lambda name: side, mode="coupled", steps=[0], found=lambda kind: np.array([[0, 1]])
    )
    engine_parameters(s)
    assert [(str(one.cause), one.party) for one in s.named] == [("CONFIG(dtype)", "mapping")] and not s.symptoms.total
    # The native stage is none of the bench: it gets what the mapping makes of the parameters.
    session = s.bench._stands["candidate"].session  # type: ignore[attr-defined]
    assert session._target.snapshot()["given"]["dtype"] == "float32"
    session._target.become_pure(paths["policy"])
    assert session._target.snapshot()["given"]["dtype"] == "bfloat16"


@pytest.mark.parametrize("alone", [True, False], ids=["only the limit", "and the type"])
def test_a_limit_of_the_engine_is_put_back_with_one_start(lab: Lab, alone: bool) -> None:
    """Where ending at its total explains everything, no second engine need show that a fresh one ends there too."""
    given = {"max_model_len": 18} | ({} if alone else {"dtype": "bfloat16"})
    s = lab.situation(ASKED, mapping={"edits": {"engine": given}}, longer=1)
    assert s.ended_at == [18]
    asked = {"max_model_len": Scenario().engine.max_model_len, "dtype": "float32"}
    info = {"canonical": asked, "given": {**asked, **given}, "mapping": "edited", "file": "rollout"}
    recording = recording_of({}, {"engine_info": [info]})
    side = SimpleNamespace(recording=recording, sync=SyncRecord())
    nothing = np.empty((0, 2), np.int64)
    s.evidence = SimpleNamespace(  # type: ignore[assignment]
        side=lambda name: side, mode="coupled", steps=[0, 1], found=lambda kind: nothing
    )
    session = s.bench._stands["candidate"].session._target  # type: ignore[attr-defined]
    engine_parameters(s)
    names = ["LENGTH(context)"] if alone else ["CONFIG(dtype)", "LENGTH(context)"]
    assert sorted(str(one.cause) for one in s.named) == names and not s.symptoms.total
    assert session.starts()[0] == 2 if alone else session.starts()[0] > 3
    assert any(one.intervention == "the reference ends at 18 tokens, prompt included" for one in s.tried) == alone


def test_a_healthy_sample_that_gets_worse_speaks_against_an_intervention() -> None:
    before = Symptoms({"tokens": 20}, by_sample={1: 20})
    assert improves(before, Symptoms())
    assert not improves(before, Symptoms({"tokens": 1}, {"tokens": 1}, by_sample={9: 1}))
    assert not improves(before, Symptoms({"tokens": 1, "logprobs": 4}, by_sample={1: 5}))
    assert not improves(Symptoms({"tokens": 2}, by_sample={1: 2}), Symptoms())
    assert improves(Symptoms({"tokens": 2}, by_sample={1: 2}), Symptoms(), recorded=True)


def test_what_an_intervention_only_puts_out_of_sight_it_does_not_remove() -> None:
    """A sample is cut at its first flip, a reference that ends early says nothing of what comes after."""
    before = Symptoms({"tokens": 40, "lengths": 6}, compared={"tokens": 200, "lengths": 8}, by_sample={1: 23, 2: 23})
    ended = Symptoms({"tokens": 18, "lengths": 1}, compared={"tokens": 90, "lengths": 8}, by_sample={1: 19})
    flipped = Symptoms({"tokens": 40, "lengths": 2}, compared={"tokens": 200, "lengths": 4}, by_sample={1: 42})
    assert not improves(before, ended) and not improves(before, flipped)
    # Controls: as many gone and still looked at; and one number of each sample that a shift leaves without a partner.
    assert improves(before, dataclasses.replace(ended, compared=before.compared))
    late = Symptoms({"logprobs": 180}, compared={"logprobs": 200}, by_sample={1: 90, 2: 90})
    assert improves(late, Symptoms(compared={"logprobs": 184}))


def test_what_a_guess_is_nearer_to_by_chance_it_does_not_prove() -> None:
    """Of 18 seeds one leaves fewest; of a prompt that is another, some numbers are back within the tolerance."""
    before = Symptoms({"tokens": 80, "logprobs": 20}, by_sample=dict.fromkeys(range(10), 10))
    seed = Trial(key("RNG(seed ignored)"), "seed 7 in the reference", "", {"seed": 7})
    assert _by_chance(seed, before, Symptoms({"tokens": 70, "logprobs": 20}))
    assert not _by_chance(seed, before, Symptoms({"tokens": 3, "logprobs": 40}))
    prompts = Trial(key("TEMPLATE"), "prompts", "", {"prompts": tuple((one, (1, 2)) for one in range(10))})
    few = Symptoms({"tokens": 78}, by_sample={**before.by_sample, 3: 9, 4: 9})
    assert _by_chance(prompts, before, few) and not _by_chance(dataclasses.replace(prompts, recorded=True), before, few)
    assert not _by_chance(prompts, before, Symptoms({"tokens": 40}, by_sample=dict.fromkeys(range(10), 4)))


def test_a_few_outliers_are_no_symptom() -> None:
    tolerance = Tolerance("float32", 1e-4, 1e-6, 1e-6, 1.0)
    few = Symptoms({"scores": 1}, by_sample={3: 1}, compared={"scores": 200}, sizes={"scores": [(3, 5e-5)]})
    assert settled(few, tolerance).total == 0 and settled(few, tolerance).compared == few.compared
    extreme = dataclasses.replace(few, sizes={"scores": [(3, 0.5)]})
    assert settled(extreme, tolerance) == extreme
    tokens = Symptoms({"tokens": 1}, by_sample={3: 1})
    assert settled(tokens, tolerance) == tokens
    # Beside a fault they are none either; more than rounding leaves are.
    both = Symptoms({"tokens": 9, "scores": 1}, by_sample={3: 2, 4: 8}, compared={"scores": 200}, sizes=few.sizes)
    assert settled(both, tolerance).counts == {"tokens": 9} and settled(both, tolerance).by_sample == {3: 1, 4: 8}
    many = Symptoms({"scores": 9}, by_sample={3: 9}, compared={"scores": 200}, sizes={"scores": [(3, 5e-5)] * 9})
    assert settled(many, tolerance) == many


# --- what the verdict makes of it ---------------------------------------------------------------------------------


def judged(*causes: Cause) -> Judged:
    verdict = Verdict("parity", "DIVERGENT", 1, "a difference that nothing recorded explains", causes=list(causes))
    evidence: Any = SimpleNamespace(
        alone=False, sides=(), earliest=lambda *kinds: None, steps=(), found=lambda kind: np.zeros((0, 2), np.int64)
    )
    return Judged(verdict, evidence, [Kind.FLIP.of()])


NOT_SENT = str(Seen.NOT_SENT)
WRONG = Symptoms({"tokens": 12}, by_sample={1: 12})
PROOF = Proof("temperature 0.9 in the reference", 12, 0, "differences", "live engines", 0.1)


def test_a_live_proof_confirms_what_was_recorded() -> None:
    recorded = of("SAMPLING_PARAM(temperature)", "candidate", "another temperature")
    named = Named(recorded.key, "mapping", "candidate", "", PROOF, seen=(Seen.GIVEN,))
    verdict = merged(judged(recorded), Attribution({"candidate": WRONG}, {"candidate": Symptoms()}, [named]))
    assert [(one.name, one.proofs) for one in verdict.causes] == [(recorded.name, [PROOF])]


def test_a_live_proof_of_several_parameters_proves_each_and_names_the_one_that_no_recording_named() -> None:
    named = Named(key("SAMPLING_PARAM(min_tokens, top_p)"), "mapping", "candidate", "", PROOF, seen=(Seen.GIVEN,))
    found = Attribution({"candidate": WRONG}, {"candidate": Symptoms()}, [named])
    recorded = [of(f"SAMPLING_PARAM({name})", "mapping", "") for name in ("top_p", "min_tokens")]
    verdict = merged(judged(*recorded), found)
    assert [(one.name, one.proofs) for one in verdict.causes] == [(one.name, [PROOF]) for one in recorded]
    verdict = merged(judged(recorded[0]), found)
    assert [one.name for one in verdict.causes] == ["SAMPLING_PARAM(top_p)", "SAMPLING_PARAM(min_tokens)"]


def test_a_count_of_tensors_is_dropped_once_each_of_them_is_named_live() -> None:
    counted = Cause.of(key("WEIGHTS(4 tensors)"), "candidate", "4 tensors", details={"tensors": [*"abcd"]})
    proven = [Named(key(f"WEIGHTS({tensor})"), "candidate", "candidate", "", PROOF) for tensor in "abcd"]
    verdict = merged(judged(counted), Attribution({"candidate": WRONG}, {"candidate": Symptoms()}, proven))
    assert [cause.name for cause in verdict.causes] == [f"WEIGHTS({tensor})" for tensor in "abcd"]
    elsewhere = [dataclasses.replace(named, party="baseline", side="baseline") for named in proven]
    for named_live in (proven[:3], elsewhere):
        verdict = merged(judged(counted), Attribution({"candidate": WRONG}, {"candidate": Symptoms()}, named_live))
        assert counted.name in [cause.name for cause in verdict.causes]


def test_unexplained_is_replaced_by_what_live_interventions_name() -> None:
    named = Named(key("STALE_DERIVED"), "candidate", "candidate", "kept", PROOF)
    found = Attribution({"candidate": WRONG}, {"candidate": Symptoms()}, [named])
    verdict = merged(judged(of("UNEXPLAINED", "candidate", "tokens differ")), found)
    assert [one.name for one in verdict.causes] == ["STALE_DERIVED"] and "kept" in verdict.account
    half = dataclasses.replace(WRONG, counts={"tokens": 6})
    verdict = merged(
        judged(of("UNEXPLAINED", "candidate", "tokens differ")),
        Attribution({"candidate": WRONG}, {"candidate": half}, [named]),
    )
    assert [one.name for one in verdict.causes] == ["STALE_DERIVED", "UNEXPLAINED"]


@pytest.mark.parametrize("left", [0, 2, 6])
def test_what_proven_causes_leave_is_unexplained(left: int) -> None:
    """Of a cause that explains every sample in the recordings the engine may still do something else."""
    recorded = of("TOKENIZATION(double BOS)", "candidate", "other prompt ids")
    named = Named(recorded.key, "candidate", "candidate", "", PROOF)
    rest = Symptoms({"tokens": left}, by_sample={1: left}) if left else Symptoms()
    verdict = merged(judged(recorded), Attribution({"candidate": WRONG}, {"candidate": rest}, [named]))
    names = [one.name for one in verdict.causes]
    assert names == [recorded.name, *(["UNEXPLAINED"] if left >= 3 else [])]
    if left >= 3:
        assert "6 of 12 differences are left" in verdict.causes[1].summary
    unproven = merged(judged(recorded), Attribution({"candidate": WRONG}, {"candidate": rest}, []))
    assert [one.name for one in unproven.causes] == [recorded.name]  # the bench may have no intervention for it


def test_a_recorded_cause_that_removes_nothing_while_another_removes_all_is_withdrawn() -> None:
    recorded = of("SAMPLING_PARAM(temperature)", "candidate", "another temperature")
    named = Named(key("STALE_KV"), "candidate", "candidate", "stale", PROOF)
    tried = Tried("temperature 0.9 in the reference", recorded.key, "candidate", 12, 12, 0.1, False)
    gone = Attribution({"candidate": WRONG}, {"candidate": Symptoms()}, [named], [tried])
    verdict = merged(judged(recorded), gone)
    assert [one.name for one in verdict.causes] == ["STALE_KV"]
    assert any(one.name == f"withdrawn: {recorded.name}" for one in verdict.findings)
    # Control: as long as something is left, it stays, with what the bench says.
    verdict = merged(judged(recorded), Attribution({"candidate": WRONG}, {"candidate": WRONG}, [], [tried]))
    assert [one.name for one in verdict.causes] == [recorded.name]
    assert "temperature 0.9 in the reference: 12 differences before, 12 after" in verdict.causes[0].evidence


def test_a_cause_without_a_proof_says_what_its_best_intervention_did_or_why_none_was_made() -> None:
    def told(cause: Cause, found: Attribution) -> str:
        return merged(judged(cause), found).causes[0].evidence

    context = of("LENGTH(context)", "candidate", "ends at 82")
    tried = [
        Tried(f"{less} tokens less in the reference", context.key, "candidate", 3, after, 0.1, False)
        for less, after in ((1, 4), (2, 3))
    ]
    worse = Attribution({"candidate": WRONG}, {"candidate": WRONG}, [], tried)
    assert told(context, worse) == "live: 2 tokens less in the reference: 3 differences before, 3 after"
    noisy = Attribution({"candidate": dataclasses.replace(WRONG, noise=9)}, {"candidate": WRONG})
    itself = of("candidate-itself", "candidate", "")
    assert "no intervention was tried: the candidate's engine does not repeat itself" in told(itself, noisy)
    stale = of("STALE_WEIGHTS(a)", "candidate", "")
    gone = Attribution({"candidate": WRONG}, {"candidate": Symptoms()})
    assert "nothing of the difference was left when its turn came" in told(stale, gone)
    absent = Attribution({"baseline": WRONG}, {"baseline": WRONG})
    assert "the engine of the candidate was not on the bench" in told(stale, absent)
    ended = Attribution({"candidate": WRONG}, {"candidate": WRONG}, broken="its engine failed")
    assert "attribution ended before its turn" in told(stale, ended)
    shapes = of("SHAPE", "trainer", "", "24 and 8", {"side": "candidate"})
    passed = Attribution({"candidate": Symptoms()}, {"candidate": Symptoms()})
    assert told(shapes, passed).startswith("24 and 8; live: no intervention was tried: the bench does not make")
    # Control: what recordings prove needs no excuse.
    proven = dataclasses.replace(stale, proofs=[Proof("leave out", 9, 0, "samples")], observed=(NOT_SENT,))
    assert told(proven, gone) == f"not WEIGHTS: {NOT_SENT}; not STALE_DERIVED: {NOT_SENT}"


def test_noise_that_another_cause_explains_is_withdrawn() -> None:
    recorded = of("candidate-itself", "candidate", "the candidate differs from itself")
    named = Named(key("STALE_KV"), "candidate", "candidate", "stale", PROOF)

    def causes_with(apart: int, left: Symptoms) -> list[str]:
        tried = [Tried(live.REGROUP, recorded.key, "candidate", 300, apart, 0.1, False)]
        found = Attribution({"candidate": WRONG}, {"candidate": left}, [named], tried)
        return [one.name for one in merged(judged(recorded), found).causes]

    assert causes_with(0, Symptoms()) == ["STALE_KV"]
    assert causes_with(2, Symptoms()) == ["candidate-itself", "STALE_KV"]
    assert causes_with(300, Symptoms()) == ["candidate-itself", "STALE_KV"]  # an engine of which nothing repeats
    assert causes_with(0, WRONG) == ["candidate-itself", "STALE_KV"]


def test_unexplained_goes_with_a_recorded_cause_only_where_its_samples_were_drawn_again() -> None:
    recorded = of("ORDER", "candidate", "permuted")
    open_ = of("UNEXPLAINED", "candidate", "log-probabilities differ")
    named = Named(key("ORDER"), "candidate", "candidate", "permuted", PROOF)
    found = Attribution({"candidate": WRONG}, {"candidate": Symptoms()}, [named])
    assert [one.name for one in merged(judged(recorded, open_), found).causes] == ["ORDER", "UNEXPLAINED"]
    found.reproduced = True
    assert [one.name for one in merged(judged(recorded, open_), found).causes] == ["ORDER"]


@pytest.mark.parametrize(("place", "name"), [("layer 2", "COMPUTATION(layer 2)"), ("", "UNEXPLAINED")])
def test_an_engine_that_holds_what_the_learner_does_computes_otherwise(place: str, name: str) -> None:
    found = Attribution(
        {"candidate": WRONG}, {"candidate": WRONG}, layers={"candidate": "they differ first in layer 2"}
    )
    found.computes |= {"candidate": place} if place else {}
    verdict = merged(judged(of("UNEXPLAINED", "unknown", "log-probabilities differ")), found)
    assert [(one.name, one.party) for one in verdict.causes] == [(name, "candidate")]
    assert "differ first in layer 2" in verdict.causes[0].evidence and not verdict.causes[0].proofs


@pytest.mark.parametrize(("party", "passed"), [("candidate", True), ("unknown", False)])
def test_a_fault_of_an_engine_that_has_passed_is_said_to_have_passed(party: str, passed: bool) -> None:
    """Of whom nobody knows, nothing says up to which step it was wrong."""
    found = Attribution({"baseline": Symptoms(), "candidate": Symptoms()})
    verdict = merged(judged(of("UNEXPLAINED", party, "tokens differ", "narrowest place: step 2")), found)
    assert verdict.causes[0].name == "UNEXPLAINED" and ("has passed" in verdict.causes[0].evidence) is passed


@pytest.mark.parametrize(
    ("live_name", "recorded", "same"),
    [
        ("STALE_WEIGHTS(a)", "STALE_WEIGHTS(a)", True), ("STALE_WEIGHTS(a)", "STALE_WEIGHTS(b)", False),
        ("STALE_WEIGHTS(a)", "WEIGHTS(a)", True), ("STALE_WEIGHTS(a)", "WEIGHTS(b)", False),
        ("SAMPLING_PARAM(temperature)", "CONFIG(generation_config)", True),
        ("SAMPLING_PARAM(top_p)", "SAMPLING_PARAM(temperature)", False), ("ORDER", "ORDER", True),
        ("STALE_KV", "STALE_DERIVED", False),
        ("SAMPLING_PARAM(min_tokens, top_p)", "SAMPLING_PARAM(top_p)", True),
        ("SAMPLING_PARAM(min_tokens, top_p)", "SAMPLING_PARAM(temperature)", False),
        ("SAMPLING_PARAM(top_p)", "SAMPLING_PARAM(min_tokens, top_p)", False),
        ("STALE_WEIGHTS(40 of 51 tensors)", "STALE_WEIGHTS(40 tensors)", True),
    ],
)  # fmt: skip
def test_when_two_names_mean_one_cause(live_name: str, recorded: str, same: bool) -> None:
    assert same_cause(key(live_name), key(recorded)) is same
