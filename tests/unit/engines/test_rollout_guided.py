"""Guided rollout against a scripted engine whose choices are a pure function of (sample, position)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes import install
from probes.format import FORMAT_VERSION, write_manifest
from scenarios.engines.engine_interface import Completion, Request
from scenarios.engines.guided import DENSE, MANY_FLIPS, MAX_ROUNDS, rollout
from scenarios.engines.recorded import Recorded
from scenarios.ppo.checkpoint import CheckpointError

END = 0


def engine(choices: dict[int, list[int]], calls: list[int]):
    """Draws choices[sample][position] wherever it starts; stops at END or at max_tokens. Log-probabilities name the
    position."""

    def generate(requests: list[Request]) -> list[Completion]:
        calls.append(len(requests))
        answers = []
        for request in requests:
            row = choices[request.sample][request.offset :][: request.max_tokens]
            if END in row:
                row = row[: row.index(END) + 1]
            reason = "stop" if row and row[-1] == END else "length"
            logprobs = tuple(-float(request.offset + i) for i in range(len(row)))
            answers.append(Completion(request.sample, request.prompt_ids, tuple(row), logprobs, reason))
        return answers

    return generate


def request(sample: int, limit: int = 8) -> Request:
    return Request(sample, (100 + sample,), max_tokens=limit)


def test_equal_engines_need_one_round() -> None:
    calls: list[int] = []
    result = rollout([request(1)], {1: ((5, 6, END), "stop")}, engine({1: [5, 6, END]}, calls))
    assert calls == [1] and result.rounds == 1 and result.uncompared == 0
    assert result.completions[0].output_ids == (5, 6, END)


def test_a_flip_is_kept_and_the_engine_goes_on_from_the_guide() -> None:
    calls: list[int] = []
    result = rollout([request(1)], {1: ((5, 6, 7, END), "stop")}, engine({1: [5, 9, 7, END]}, calls))
    assert result.completions[0].output_ids == (5, 9, 7, END)
    assert result.completions[0].logprobs == (-0.0, -1.0, -2.0, -3.0)
    assert result.completions[0].finish_reason == "stop" and result.rounds == 2


def test_an_engine_that_stops_early_is_compared_to_the_end() -> None:
    result = rollout([request(1)], {1: ((5, 6, 7), "length")}, engine({1: [5, END, 7, 8, 8, 8, 8, 8]}, []))
    assert result.completions[0].output_ids[:3] == (5, END, 7)


def test_an_engine_that_is_cut_short_shows_a_shorter_sample() -> None:
    result = rollout([request(1, limit=2)], {1: ((5, 6, 7), "length")}, engine({1: [5, 6, 7]}, []))
    assert result.completions[0].output_ids == (5, 6) and result.completions[0].finish_reason == "length"


def test_nothing_is_drawn_beyond_the_engines_limit() -> None:
    calls: list[int] = []
    result = rollout([request(1, limit=2)], {1: ((5, 6, 7, 8), "length")}, engine({1: [5, 9, 7, 8]}, calls))
    assert result.completions[0].output_ids == (5, 9) and result.completions[0].finish_reason == "length"
    assert calls == [1] and result.uncompared == 0


def test_a_sample_without_guide_is_drawn_freely() -> None:
    assert rollout([request(2)], {}, engine({2: [4, END]}, [])).completions[0].output_ids == (4, END)


def test_a_broken_engine_is_cut_off_and_the_rest_counts_as_uncompared() -> None:
    guide = {1: (tuple(range(1, 41)), "length")}
    result = rollout([request(1, limit=40)], guide, engine({1: [99] * 40}, []))
    assert result.rounds == MANY_FLIPS and result.uncompared == 40 - MANY_FLIPS
    assert len(result.completions[0].output_ids) == MANY_FLIPS


def test_an_engine_that_flips_now_and_then_is_heard_for_longer_and_beside_a_broken_one() -> None:
    every = int(1 / DENSE) + 1
    size = every * MAX_ROUNDS + 20
    now_and_then = [99 if t % every == every - 1 else t + 1 for t in range(size)]
    guide = {i: (tuple(range(1, size + 1)), "length") for i in (1, 2)}
    result = rollout([request(i, limit=size) for i in guide], guide, engine({1: now_and_then, 2: [99] * size}, []))
    lengths = [len(one.output_ids) for one in result.completions]
    assert lengths == [every * MAX_ROUNDS, MANY_FLIPS] and result.rounds == MAX_ROUNDS
    assert result.uncompared == 2 * size - sum(lengths)


tokens = st.lists(st.integers(1, 4), min_size=1, max_size=7)


@pytest.mark.slow
@given(st.lists(st.tuples(tokens, st.lists(st.integers(0, 4), min_size=8, max_size=8)), min_size=1, max_size=4))
def test_every_position_is_the_engines_own_choice_under_the_guide(rows) -> None:
    guide = {i: (tuple(base), "length") for i, (base, _) in enumerate(rows)}
    result = rollout([request(i) for i in guide], guide, engine({i: choice for i, (_, choice) in enumerate(rows)}, []))
    unreached = 0
    for completion in result.completions:
        base, choice = guide[completion.sample][0], rows[completion.sample][1]
        reached = min(len(completion.output_ids), len(base))
        assert list(completion.output_ids[:reached]) == choice[:reached]
        flips = [t for t in range(reached) if choice[t] != base[t]]
        if len(flips) >= max(MANY_FLIPS, DENSE * reached):
            unreached += len(base) - reached
        # Only a choice equal to the guide's may end the sample before the guide does; END never is (guides hold none).
        elif flips:
            assert reached == len(base)
        assert len(completion.logprobs) == len(completion.output_ids)
    assert result.uncompared == unreached


@pytest.mark.slow
@pytest.mark.parametrize("version", [1, FORMAT_VERSION])
def test_digests_that_another_hash_made_refuse_no_checkpoint_and_part_no_learner(tmp_path: Path, version: int) -> None:
    with install.start(tmp_path, role="trainer") as recorder:
        recorder.weights(step=1, version=2, digests={"w": "aa"}, source="learner")
        recorder.event("learner", step=1, actor="aa", critic="bb", batch="cc")
    write_manifest(tmp_path, {"format_version": version})
    run = Recorded(tmp_path)
    if version == 1:
        run.check_weights(2, {"w": "bb"})
        assert run.parted(1, {"actor": "bb", "critic": "bb", "batch": "cc"}) == []
    else:
        run.check_weights(2, {"w": "aa"})
        with pytest.raises(CheckpointError, match="the first is w"):
            run.check_weights(2, {"w": "bb"})
        assert run.parted(1, {"actor": "bb", "critic": "bb", "batch": "cc"}) == ["actor"]
