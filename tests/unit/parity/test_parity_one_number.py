"""One number changed in a pair that `harness parity` recorded: no cause is named that says more than the number.

By day every sixth column and every eleventh value of an event are changed once; at night all are, in every way, on
either side.
"""

from __future__ import annotations

import math
import os
import shutil
from pathlib import Path

import pytest
from recorded_pairs import recorded_pair
from resealed import change_column, change_leaf, columns, leaves

from harness.parity import judge
from probes.format import SIDES
from reports.model import Verdict

NIGHT = os.environ.get("TEST_PROFILE") == "nightly"
EVERY = 1 if NIGHT else 6
WHOLE: list[float | str] = ["+1", 10**9]
FRACTIONS: list[float | str] = ["+0.5", "-3", math.nan, "-20", "-0.3"]
# Causes that are the number itself: an id that no tokenizer has, a log-probability that is none, a digest of a tensor.
FACTS = {"output": "VOCAB", "logprob": "NUMERIC_FATAL", "digests": "WEIGHTS"}
ITS_ONLY_RECORD = {"environment"}  # nothing else says on what a process ran, so what it says may confound


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a lifted stage, a native stage and an index."""
    return recorded_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture
def copy(pair: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pair, tmp_path / "pair"))


def judged(pair: Path) -> Verdict:
    return judge(pair / "baseline", pair / "candidate")


def restored(pair: Path, copy: Path, side: str) -> Path:
    """The run of a copy of the pair, as it was recorded."""
    shutil.rmtree(copy / side, ignore_errors=True)
    return Path(shutil.copytree(pair / side, copy / side))


def overstated(verdict: Verdict, name: str, kind: str) -> list[str]:
    """The causes and confounders that say more than a change of this field of this kind of record shows."""
    allowed = {"UNEXPLAINED", FACTS.get(name, "UNEXPLAINED")}
    confounders = [] if kind in ITS_ONLY_RECORD or verdict.verdict != "CONFOUNDED" else verdict.confounders
    causes = [cause.name for cause in verdict.causes if cause.key.family not in allowed]
    return [*causes, *(finding.name for finding in confounders)]


@pytest.mark.slow
@pytest.mark.parametrize("side", SIDES if NIGHT else SIDES[1:])
def test_no_number_of_a_frame_is_explained(pair: Path, copy: Path, side: str) -> None:
    wrong: dict[tuple[str, float | str], list[str]] = {}
    tried = columns(pair / side)
    for number, column in enumerate(tried[::EVERY]):
        changes = WHOLE if column.whole else FRACTIONS
        for new in changes if NIGHT else changes[number % len(changes) :][:1]:
            change_column(restored(pair, copy, side), column, new)
            if causes := overstated(judged(copy), column.name, column.kind):
                wrong[str(column), new] = causes
    assert not wrong and len(tried) > 60


@pytest.mark.night
@pytest.mark.slow
@pytest.mark.parametrize("side", SIDES if NIGHT else SIDES[1:])
def test_no_value_of_an_event_is_explained(pair: Path, copy: Path, side: str) -> None:
    wrong: dict[str, list[str]] = {}
    tried = leaves(pair / side)
    for leaf in tried[:: 2 * EVERY - 1]:
        change_leaf(restored(pair, copy, side), leaf)
        if causes := overstated(judged(copy), str(leaf.path[0]), leaf.kind):
            wrong[str(leaf)] = causes
    assert not wrong and len(tried) > 200


@pytest.mark.by_day(4)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "new"),
    [
        *(("rollout logprob", new) for new in ("-0.3", "-1", "-8", "-20", math.nan, 0.5)),
        *(("experience actor_logprob", new) for new in ("-0.3", "-3", "-20", math.nan, 0.5)),
        *(("native logprob", new) for new in ("-3", "-20", math.nan)),
        ("native_score learner_logprob", "-3"),
        *((f"{kind} {name}", "+1") for kind in ("native", "repeat") for name in ("prompt", "prompt_seen")),
        *((f"floor {variant} logprob", new) for variant in ("base", "prefill") for new in ("-3", math.nan)),
        *((f"{stage}rollout prompt_seen", "+1") for stage in ("", "lifted ")),
    ],
)
def test_a_number_that_says_nothing_of_an_engine_is_unexplained(name: str, new: float | str, copy: Path) -> None:
    """In bfloat16, rounding cannot make these log-probabilities; no tokenizer changes one id of one request; an engine
    that is noisy is so in more than one sample."""
    run = copy / "candidate"
    change_column(run, next(column for column in columns(run) if str(column) == name), new)
    verdict = judged(copy)
    families = {cause.key.family for cause in verdict.causes}
    assert verdict.verdict == "DIVERGENT" and families <= {"UNEXPLAINED", "NUMERIC_FATAL"}, verdict.causes


@pytest.mark.by_day(1)
@pytest.mark.slow
@pytest.mark.parametrize("new", [0.5, math.nan, math.inf])
def test_a_value_that_no_log_probability_has_is_said(new: float, copy: Path) -> None:
    run = copy / "candidate"
    change_column(run, next(column for column in columns(run) if str(column) == "native logprob"), new * 20)
    [cause] = judged(copy).causes
    assert cause.key.family == "UNEXPLAINED" and "is no log-probability" in cause.evidence
    assert "arithmetic" not in cause.evidence


@pytest.mark.slow
@pytest.mark.parametrize("name", ["floor base sample", "native cached", "experience runner_up"])
@pytest.mark.parametrize("new", [-5.0, 2.0**31 - 1])
def test_a_number_that_a_column_cannot_hold_is_refused_in_one_sentence(name: str, new: float, copy: Path) -> None:
    run = copy / "candidate"
    column = next(column for column in columns(run) if str(column) == name)
    if new > 0 and column.name == "sample":
        new = 2.0**62
    change_column(run, column, int(new))
    verdict = judged(copy)
    assert verdict.verdict == "INCONCLUSIVE" and column.name in " ".join(verdict.missing), verdict.reason


@pytest.mark.slow
def test_a_digest_that_its_own_frames_contradict_is_damage(copy: Path) -> None:
    run = copy / "candidate"
    change_leaf(run, next(leaf for leaf in leaves(run) if str(leaf) == "data prompts"))
    verdict = judged(copy)
    assert verdict.verdict == "INCONCLUSIVE" and not verdict.confounders
    assert any("step 0" in line for line in verdict.missing)
