"""Each plant around an engine changes what it says it changes, and nothing else: shown on the embedded engine."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from ppo_support import random_models, scenario

from scenarios import models, prompts
from scenarios.engines.engine_interface import Completion, Part, Request, SyncGroup, SyncReport, WeightMeta
from scenarios.engines.hf.engine import HFEngine
from scenarios.planted.differences.faulty_engine import FaultyEngine, Wrapper, wrap
from scenarios.planted.differences.request import PlantedRequest
from scenarios.settings import Sampling

pytestmark = pytest.mark.slow  # it imports Transformers, which takes 2 s

SCENARIO = scenario()
SAMPLING = Sampling(max_tokens=8)


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> str:
    return random_models(tmp_path_factory.mktemp("models"))["policy"]


@pytest.fixture(scope="module")
def engine(policy: str) -> Iterator[HFEngine]:
    torch.set_num_threads(1)  # idle OpenMP threads spin
    made = HFEngine(policy, SCENARIO, mode="coupled", device="cpu")
    yield made
    made.close()


@pytest.fixture(scope="module")
def requests(policy: str) -> list[Request]:
    batch = prompts.load(SCENARIO, models.load_tokenizer(policy)).batch(0)
    return [Request(sample, ids, max_tokens=8) for sample, ids in batch]


@pytest.fixture(scope="module")
def sound(engine: HFEngine, requests: list[Request]) -> list[Completion]:
    return engine.generate(requests, SAMPLING, seed=0)


def faulty(engine: Any, policy: str, **plants: Any) -> FaultyEngine:
    return FaultyEngine(engine, model_path=policy, scenario=SCENARIO, **plants)


def drawn(engine: Any, policy: str, requests: list[Request], *, by: Sampling = SAMPLING, **plants: Any) -> list[Any]:
    return faulty(engine, policy, **plants).generate(requests, by, seed=0)


def parts(completions: list[Completion], *names: str) -> list[Any]:
    return [tuple(getattr(one, name) for name in names) for one in completions]


TOLD = ("sample", "prompt_seen", "output_ids", "finish_reason", "logprobs")


def same(one: list[Completion], two: list[Completion]) -> list[str]:
    """Names of what is equal in both."""
    return [name for name in TOLD if parts(one, name) == parts(two, name)]


def test_without_plants_nothing_changes(
    engine: HFEngine, policy: str, requests: list[Request], sound: list[Completion]
) -> None:
    assert same(drawn(engine, policy, requests), sound) == list(TOLD)


def test_log_probabilities_move_by_one_and_ids_stay(
    engine: HFEngine, policy: str, requests: list[Request], sound: list[Completion]
) -> None:
    for by in (1, -1):
        late = drawn(engine, policy, requests, shift=by)
        assert same(late, sound) == ["sample", "prompt_seen", "output_ids", "finish_reason"]
        assert all(a.logprobs == b.logprobs[-by:] + b.logprobs[:-by] for a, b in zip(late, sound, strict=True))


def test_noise_stays_within_its_size_and_differs_at_every_call(
    engine: HFEngine, policy: str, requests: list[Request], sound: list[Completion]
) -> None:
    noisy = faulty(engine, policy, noise=1e-3)
    one, two = (noisy.generate(requests, SAMPLING, seed=0) for _ in range(2))
    assert same(one, sound) == ["sample", "prompt_seen", "output_ids", "finish_reason"]
    assert parts(one, "logprobs") != parts(two, "logprobs")
    pairs = [(x, y) for a, b in zip(one, sound, strict=True) for x, y in zip(a.logprobs, b.logprobs, strict=True)]
    assert 0 < max(abs(x - y) for x, y in pairs) <= 1e-3


def test_earlier_samples_are_spared(
    engine: HFEngine, policy: str, requests: list[Request], sound: list[Completion]
) -> None:
    late = drawn(engine, policy, requests, shift=1, first_sample=4)
    assert same(late[:4], sound[:4]) == list(TOLD)
    assert "logprobs" not in same(late[4:], sound[4:])


@pytest.mark.parametrize(("side", "kept"), [("left", slice(-20, None)), ("right", slice(0, 20))])
def test_prompts_are_cut_and_the_cut_is_seen(
    engine: HFEngine, policy: str, requests: list[Request], side: str, kept: slice
) -> None:
    cut = drawn(engine, policy, requests, truncate={"side": side, "keep": 20})
    assert [one.prompt_seen for one in cut] == [request.prompt_ids[kept] for request in requests]


def test_a_cut_spares_the_tokens_that_were_drawn_already(
    engine: HFEngine, policy: str, requests: list[Request]
) -> None:
    ids = requests[0].prompt_ids
    begun = [dataclasses.replace(requests[0], prompt_ids=(*ids, 9, 10), offset=2, max_tokens=6)]
    cut = drawn(engine, policy, begun, truncate={"side": "left", "keep": 20})
    assert cut[0].prompt_seen == (*ids[-20:], 9, 10)


def test_text_is_sent_for_the_named_samples_only(engine: HFEngine, policy: str, requests: list[Request]) -> None:
    spy = Spy(engine)
    drawn(spy, policy, requests, text_samples=[1, 3])
    assert [one.sample for one in spy.sent if one.text is not None] == [1, 3]
    text = models.load_tokenizer(policy).decode(list(requests[1].prompt_ids))
    assert spy.sent[1].text == text and text.startswith("<|bos|>")
    drawn(spy, policy, requests, text_samples="all")
    assert all(one.text is not None for one in spy.sent)


def test_the_generation_prompt_is_left_out(engine: HFEngine, policy: str, requests: list[Request]) -> None:
    ends = tuple(prompts.described(models.load_tokenizer(policy))["generation_prompt"])
    seen = drawn(engine, policy, requests, no_generation_prompt=True)
    assert ends and [one.prompt_seen + ends for one in seen] == [request.prompt_ids for request in requests]


def test_a_lost_bos_is_not_sent_and_not_said_to_be_lost(
    engine: HFEngine, policy: str, requests: list[Request], sound: list[Completion]
) -> None:
    spy = Spy(engine)
    seen = drawn(spy, policy, requests, bos_lost=True)
    assert [one.prompt_ids for one in spy.sent] == [request.prompt_ids[1:] for request in requests]
    assert [one.prompt_seen for one in seen] == [request.prompt_ids for request in requests]
    assert [one.output_ids for one in seen] != [one.output_ids for one in sound]


def test_the_end_token_is_dropped_from_stopped_samples_only(
    engine: HFEngine, policy: str, sound: list[Completion]
) -> None:
    stopped = dataclasses.replace(sound[0], finish_reason="stop", output_ids=(7, 8, 2), logprobs=(-1.0, -2.0, -3.0))
    cut = dataclasses.replace(sound[1], finish_reason="length")
    answers = [stopped, cut]
    requests = [Request(one.sample, one.prompt_seen, max_tokens=8) for one in answers]
    found = drawn(Canned(engine, answers), policy, requests, drop_end=True)
    assert (found[0].output_ids, found[0].logprobs) == ((7, 8), (-1.0, -2.0))
    assert found[1] == cut


def test_a_limit_that_is_tested_first_takes_the_reason_of_full_samples_only(
    engine: HFEngine, policy: str, sound: list[Completion]
) -> None:
    full = dataclasses.replace(sound[0], finish_reason="stop", output_ids=(7, 8, 2), logprobs=(-1.0, -2.0, -3.0))
    shorter = dataclasses.replace(full, sample=sound[1].sample, output_ids=(7, 2), logprobs=(-1.0, -3.0))
    requests = [Request(one.sample, one.prompt_seen, max_tokens=3) for one in (full, shorter)]
    found = drawn(Canned(engine, [full, shorter]), policy, requests, limit_first=True)
    assert found == [dataclasses.replace(full, finish_reason="length"), shorter]


def test_a_short_context_ends_long_prompts_earlier(
    engine: HFEngine, policy: str, requests: list[Request], sound: list[Completion]
) -> None:
    lengths = [len(request.prompt_ids) for request in requests]
    context = max(lengths) + 2 + 3  # the longest prompt keeps three tokens
    found = drawn(engine, policy, requests, short_context=context)
    for own, other, length in zip(found, sound, lengths, strict=True):
        room = context - length - 2
        assert own.output_ids == other.output_ids[:room] and own.logprobs == other.logprobs[:room]
    assert parts(found, "output_ids") != parts(sound, "output_ids")


@pytest.mark.parametrize(("what", "seen_moves"), [("responses", False), ("answers", True)])
def test_responses_go_to_the_next_sample(
    engine: HFEngine, policy: str, requests: list[Request], sound: list[Completion], what: str, seen_moves: bool
) -> None:
    moved = drawn(engine, policy, requests, permute=what)
    assert parts(moved, "sample") == parts(sound, "sample")
    assert [one.output_ids for one in moved] == [one.output_ids for one in sound[1:] + sound[:1]]
    assert (parts(moved, "prompt_seen") == parts(sound, "prompt_seen")) is not seen_moves


def test_an_id_beyond_the_tokenizer(
    engine: HFEngine, policy: str, requests: list[Request], sound: list[Completion]
) -> None:
    found = drawn(engine, policy, requests, foreign_id=4)
    size = len(models.load_tokenizer(policy))
    foreign = [one.sample for one in found if max(one.output_ids) >= size]
    assert foreign == [0, 4]
    rest = [one for one in found if one.sample % 4]
    assert same(rest, [one for one in sound if one.sample % 4]) == list(TOLD)


def test_a_nan_is_called_a_stop(
    engine: HFEngine, policy: str, requests: list[Request], sound: list[Completion]
) -> None:
    found = drawn(engine, policy, requests, nan_stop={"every": 4, "position": 1})
    for own, other in zip(found, sound, strict=True):
        if own.sample % 4:
            assert own == other
        elif len(other.output_ids) > 1:
            assert own.output_ids == other.output_ids[:2] and own.finish_reason == "stop"
            assert own.logprobs[0] == other.logprobs[0] and math.isnan(own.logprobs[1])


def test_responses_encoded_again_are_scored_by_the_engine(
    engine: HFEngine, policy: str, requests: list[Request], sound: list[Completion]
) -> None:
    tokenizer = models.load_tokenizer(policy)
    found = drawn(engine, policy, requests, encoded_again=True)
    changed = 0
    for request, own, other in zip(requests, found, sound, strict=True):
        ids = tuple(tokenizer.encode(tokenizer.decode(list(other.output_ids)), add_special_tokens=False))[:8]
        assert own.output_ids == (ids or other.output_ids)
        if own.output_ids != other.output_ids:
            changed += 1
            row = engine.rescore([request.prompt_ids + ids])[0][len(request.prompt_ids) - 1 :]
            assert own.logprobs == tuple(row)
    assert changed


def test_another_seed_and_other_parameters_draw_what_they_would_draw(
    engine: HFEngine, policy: str, requests: list[Request]
) -> None:
    assert drawn(engine, policy, requests, seed_offset=1) == engine.generate(requests, SAMPLING, seed=1)
    cool = dataclasses.replace(SAMPLING, temperature=0.5)
    assert drawn(engine, policy, requests, sampling={"temperature": 0.5}) == engine.generate(requests, cool, seed=0)


def test_samples_of_a_prompt_become_clones(engine: HFEngine, policy: str, requests: list[Request]) -> None:
    found = drawn(engine, policy, requests, clones=2)
    assert [one.sample for one in found] == [request.sample for request in requests]
    assert all(a.output_ids == b.output_ids for a, b in zip(found[::2], found[1::2], strict=True))
    sound_pairs = engine.generate(requests, SAMPLING, seed=0)
    assert any(a.output_ids != b.output_ids for a, b in zip(sound_pairs[::2], sound_pairs[1::2], strict=True))


def test_an_engine_draws_with_the_random_numbers_of_another(
    engine: HFEngine, policy: str, requests: list[Request]
) -> None:
    """The engine's samples are those behind the first prompt's; the other one's are the first prompt's."""
    group = SCENARIO.rollout.samples_per_prompt
    own = requests[group : 2 * group]
    found = drawn(engine, policy, own, stream=1)
    as_first = [dataclasses.replace(one, sample=one.sample - group) for one in own]
    assert parts(found, *TOLD[1:]) == parts(engine.generate(as_first, SAMPLING, seed=0), *TOLD[1:])
    assert [one.sample for one in found] == [one.sample for one in own]
    assert "output_ids" not in same(found, engine.generate(own, SAMPLING, seed=0))


def test_tempered_log_probabilities_are_those_of_the_tempered_model(
    engine: HFEngine, policy: str, requests: list[Request]
) -> None:
    cool = dataclasses.replace(SAMPLING, temperature=0.5)
    plain = engine.generate(requests, cool, seed=0)
    found = drawn(engine, policy, requests, by=cool, draw={"reported": "tempered"})
    assert same(found, plain) == ["sample", "prompt_seen", "output_ids", "finish_reason"]
    hot = drawn(engine, policy, requests, draw={"reported": "tempered"})  # at temperature 1 it is the same
    for own, other in zip(hot, engine.generate(requests, SAMPLING, seed=0), strict=True):
        assert own.logprobs == pytest.approx(other.logprobs, abs=1e-5)


def test_renormalised_log_probabilities_are_larger_by_one_amount_a_position(
    engine: HFEngine, policy: str, requests: list[Request]
) -> None:
    nucleus = dataclasses.replace(SAMPLING, top_p=0.5)
    plain = engine.generate(requests, nucleus, seed=0)
    found = drawn(engine, policy, requests, by=nucleus, draw={"reported": "filtered"})
    assert same(found, plain) == ["sample", "prompt_seen", "output_ids", "finish_reason"]
    for own, other in zip(found, plain, strict=True):
        assert all(0.0 <= x - y <= -math.log(0.5) + 1e-6 for x, y in zip(own.logprobs, other.logprobs, strict=True))


def test_joint_filters_draw_otherwise_only_where_both_are_on(
    engine: HFEngine, policy: str, requests: list[Request]
) -> None:
    only = dataclasses.replace(SAMPLING, top_p=0.5)
    assert drawn(engine, policy, requests, by=only, draw={"joint": True}) == engine.generate(requests, only, seed=0)
    both = dataclasses.replace(SAMPLING, top_k=3, top_p=0.5)
    joint = drawn(engine, policy, requests, by=both, draw={"joint": True})
    assert parts(joint, "output_ids") != parts(engine.generate(requests, both, seed=0), "output_ids")


def test_jitter_without_size_changes_nothing_and_a_large_one_does(
    engine: HFEngine, policy: str, requests: list[Request], sound: list[Completion]
) -> None:
    assert drawn(engine, policy, requests, draw={"jitter": 1e-12}) == sound
    assert drawn(engine, policy, requests, draw={"jitter": 5.0}) != sound


def test_a_batch_in_reverse_comes_back_in_order(
    engine: HFEngine, policy: str, requests: list[Request], sound: list[Completion]
) -> None:
    spy = Spy(engine)
    found = drawn(spy, policy, requests, reorder=True)
    assert [one.sample for one in spy.sent] == [request.sample for request in requests][::-1]
    assert same(found, sound) >= ["sample", "prompt_seen", "output_ids", "finish_reason"]


def test_two_plants_at_once(engine: HFEngine, policy: str, requests: list[Request]) -> None:
    both = drawn(engine, policy, requests, truncate={"side": "left", "keep": 20}, shift=1)
    cut = drawn(engine, policy, requests, truncate={"side": "left", "keep": 20})
    assert same(both, cut) == ["sample", "prompt_seen", "output_ids", "finish_reason"]
    assert [one.logprobs for one in both] == [one.logprobs[-1:] + one.logprobs[:-1] for one in cut]


GROUP = SyncGroup("", 0, 2, 1, "", "gloo")
WEIGHTS = [WeightMeta("a", (2,), "float32", "digest of a"), WeightMeta("b", (2,), "float32", "digest of b")]


class Spy(Wrapper):
    """Remembers the requests and the tensors that reach the engine."""

    def generate(self, requests: list[Request], sampling: Sampling, *, seed: int) -> list[Completion]:
        self.sent = requests
        plain = [dataclasses.replace(PlantedRequest.of(one), prompt_text=None) for one in requests]
        return super().generate(plain, sampling, seed=seed)

    def receive(self, group: SyncGroup, weights: list[WeightMeta]) -> SyncReport:
        self.received = [one.name for one in weights]
        return SyncReport(True, "", 0.0, {one.name: f"what arrived for {one.name}" for one in weights})


class Canned(Wrapper):
    """Answers what it was told to."""

    def __init__(self, engine: Any, answers: list[Completion]) -> None:
        super().__init__(engine)
        self._answers = answers

    def generate(self, requests: list[Request], sampling: Sampling, *, seed: int) -> list[Completion]:
        return self._answers


def test_two_tensors_are_loaded_into_each_others_place_from_a_version_on(engine: HFEngine, policy: str) -> None:
    spy = Spy(engine)
    wrong = faulty(spy, policy, names_exchanged={"names": ["a", "b"], "from": 1})
    assert wrong.receive(GROUP, WEIGHTS).received == {"a": "what arrived for a", "b": "what arrived for b"}
    assert spy.received == ["a", "b"]
    report = wrong.receive(GROUP, WEIGHTS)
    assert spy.received == ["b", "a"]
    assert report.received == {"b": "what arrived for a", "a": "what arrived for b"}


def test_digests_that_say_nothing(engine: HFEngine, policy: str) -> None:
    report = faulty(Spy(engine), policy, digests_repeated=True).receive(GROUP, WEIGHTS)
    assert report.received == {"a": "digest of a", "b": "digest of b"}


def test_the_cache_is_kept_during_a_sync_and_a_sleep_and_flushed_otherwise(policy: str, engine: HFEngine) -> None:
    class Caching(Spy):
        flushed = 0

        def sleep(self, level: int) -> None:
            self.flush()

        def flush(self) -> None:
            self.flushed += 1

        def receive(self, group: SyncGroup, weights: list[WeightMeta]) -> SyncReport:
            self.flush()
            return super().receive(group, weights)

    caching = Caching(engine)
    kept = faulty(caching, policy, keep_cache=True)
    kept.sleep(1)
    kept.wake(Part.WEIGHTS)
    kept.receive(GROUP, WEIGHTS)
    assert caching.flushed == 0
    kept.flush()
    assert caching.flushed == 1
    kept.remove()
    caching.sleep(1)
    assert caching.flushed == 2


def test_a_kept_copy_computes_with_old_weights_until_it_is_removed(policy: str, requests: list[Request]) -> None:
    engine = HFEngine(policy, SCENARIO, mode="coupled", device="cpu")
    sequences = [request.prompt_ids for request in requests[:2]]
    before = engine.rescore(sequences)

    class Syncing(Wrapper):
        name = "hf"
        model = engine.model

        def receive(self, group: SyncGroup, weights: list[WeightMeta]) -> SyncReport:
            with torch.no_grad():
                engine.model.get_submodule("model.norm").weight.mul_(1.5)
            return SyncReport(True, "", 0.0)

    kept = faulty(Syncing(engine), policy, kept_copy={"modules": ["model.norm"], "from": 0})
    kept.receive(GROUP, WEIGHTS)
    assert kept.rescore(sequences) == before
    assert sum(1 for name, _ in engine.model.named_parameters() if "norm" in name) == 5  # no parameter of its own
    kept.remove()
    assert kept.rescore(sequences) != before


def test_a_bent_module_is_wrong_until_it_is_removed(policy: str, requests: list[Request]) -> None:
    engine = HFEngine(policy, SCENARIO, mode="coupled", device="cpu")
    ids = requests[0].prompt_ids
    before = engine.layers(ids).layers
    bent = faulty(engine, policy, bent={"modules": ["model.layers.1.mlp.down_proj"], "by": 1.5})
    wrong = [a != b for a, b in zip(before, engine.layers(ids).layers, strict=True)]
    assert wrong == [False, False] + [True] * (len(before) - 2)  # embeddings and one layer are right
    bent.remove()
    assert engine.layers(ids).layers == before


def test_first_tokens_are_drawn_before_the_sync(policy: str, requests: list[Request]) -> None:
    engine = HFEngine(policy, SCENARIO, mode="coupled", device="cpu")

    class Syncing(Wrapper):
        def receive(self, group: SyncGroup, weights: list[WeightMeta]) -> SyncReport:
            with torch.no_grad():
                engine.model.get_submodule("model.norm").weight.mul_(-1.0)
            return SyncReport(True, "", 0.0)

    mixed = faulty(Syncing(engine), policy, drawn_before_sync={"tokens": 3, "from": 1})
    mixed.receive(GROUP, WEIGHTS)
    mixed.generate(requests, SAMPLING, seed=0)  # step 0 says with what the engine draws
    batch = prompts.load(SCENARIO, models.load_tokenizer(policy)).batch(1)
    coming = [Request(sample, ids, max_tokens=8) for sample, ids in batch]
    before = engine.generate(coming, SAMPLING, seed=0)
    mixed.receive(GROUP, WEIGHTS)
    after = engine.generate(coming, SAMPLING, seed=0)
    found = mixed.generate(coming, SAMPLING, seed=0)
    long = [i for i, one in enumerate(before) if len(one.output_ids) > 3]
    assert long and all(found[i].output_ids[:3] == before[i].output_ids[:3] for i in long)
    assert all(found[i].prompt_seen == coming[i].prompt_ids for i in long)
    assert any(found[i].output_ids[:3] != after[i].output_ids[:3] for i in long)
    for i in long:  # the rest is what the new weights draw after those tokens
        rest = dataclasses.replace(
            coming[i], prompt_ids=coming[i].prompt_ids + before[i].output_ids[:3], offset=3, max_tokens=5
        )
        assert found[i].output_ids[3:] == engine.generate([rest], SAMPLING, seed=0)[0].output_ids
    assert parts(mixed.generate(coming, SAMPLING, seed=0), "output_ids") == parts(after, "output_ids")  # only once


def test_a_wrapper_of_somebody_elses_file(
    engine: HFEngine, policy: str, requests: list[Request], tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import dataclasses\n"
        "from scenarios.planted.differences.faulty_engine import Wrapper\n"
        "class Late(Wrapper):\n"
        "    def __init__(self, engine, finish):\n"
        "        super().__init__(engine)\n"
        "        self.finish = finish\n"
        "    def generate(self, requests, sampling, *, seed):\n"
        "        answers = super().generate(requests, sampling, seed=seed)\n"
        "        return [dataclasses.replace(one, finish_reason=self.finish) for one in answers]\n"
    )
    spec = {"wrapper": f"{file}:Late", "settings": {"finish": "late"}}
    wrapped = wrap(engine, spec, model_path=policy, scenario=SCENARIO)
    assert {one.finish_reason for one in wrapped.generate(requests, SAMPLING, seed=0)} == {"late"}


def test_another_rotary_base_turns_until_it_is_removed(policy: str, requests: list[Request]) -> None:
    made = HFEngine(policy, SCENARIO, mode="coupled", device="cpu")
    first = made.model.model.rotary_emb.inv_freq.clone()
    rebased = faulty(made, policy, rebased={"by": 1.5})
    turned = made.model.model.rotary_emb.inv_freq
    assert turned[0] == first[0] == 1.0  # the first frequency is that of any base
    assert torch.allclose(turned[1] / first[1], torch.tensor(1.5 ** (-1 / len(first))))
    rebased.remove()
    assert torch.equal(made.model.model.rotary_emb.inv_freq, first)


def test_a_coarse_module_rounds_in_half_precision_only(policy: str) -> None:
    half = dataclasses.replace(SCENARIO, model=dataclasses.replace(SCENARIO.model, dtype="bfloat16"))
    for plan, differs in ((half, True), (SCENARIO, False)):
        made = HFEngine(policy, plan, mode="coupled", device="cpu")
        before = made.rescore([(1, 5, 9, 11, 3)])
        coarse = FaultyEngine(made, model_path=policy, scenario=plan, coarse={"modules": ["model.norm"], "bits": 3})
        assert (made.rescore([(1, 5, 9, 11, 3)]) != before) is differs
        coarse.remove()
        assert made.rescore([(1, 5, 9, 11, 3)]) == before


def test_an_altered_row_is_one_row_after_each_sync(policy: str) -> None:
    made = HFEngine(policy, SCENARIO, mode="coupled", device="cpu")
    weight = made.model.model.norm.weight
    before = weight.detach().clone()
    altered = faulty(made, policy, row_altered={"module": "model.norm", "row": 2, "by": 2.0})
    made.receive = lambda group, weights: SyncReport(True, "", 0.0)  # type: ignore[method-assign]
    altered.receive(SyncGroup("", 0, 2, 1, "", "gloo"), [])
    expected = before.clone()
    expected[2] *= 2.0
    assert torch.equal(weight, expected)
