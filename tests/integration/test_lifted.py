"""The lifted stage on the embedded engine: it finds what bfloat16 hides, and a sound pair stays equivalent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.parity.verdict import judged_pair
from probes.format import Run, write_manifest
from reports.model import Check, Verdict
from scenarios.engines.make import EngineOptions
from scenarios.lifted import FOLDER, lifted, steps
from scenarios.planted.differences.fault import Fault
from scenarios.ppo.beginning import Beginning
from scenarios.ppo.roles import ActorRole
from scenarios.remote import Actor, Local, call
from scenarios.session import EngineSession
from scenarios.settings import Lifted, Model, Rollout, Sampling, Scenario
from scenarios.stage import Stage

HALF = Scenario(
    steps=1,
    train=False,
    model=Model(dtype="bfloat16"),
    rollout=Rollout(prompts_per_step=8, samples_per_prompt=4),
    sampling=Sampling(max_tokens=16),
    lifted=Lifted(samples=64),
)
NORM = "model.layers.1.post_attention_layernorm"
TENSOR = "model.layers.1.mlp.down_proj.weight"


@pytest.fixture(scope="module")
def actor(paths: dict[str, str]) -> Iterator[Actor]:
    made = Local(ActorRole, HALF.to_json(), dict(paths), urgent=("abort_sync",))
    yield made
    made.stop()


class Pair:
    """Both sides of a run in half precision, each with its lifted stage, in this process."""

    def __init__(self, folder: Path, paths: dict[str, str], actor: Actor) -> None:
        self.folder, self._paths, self._actor = folder, paths, actor
        self._stage = Stage(str(folder / "models"))

    def record(self, side: str, engine: dict[str, Any] | None = None, trainer: dict[str, Any] | None = None) -> None:
        plants = Fault(engine=engine or {}, trainer=trainer or {}).plants()
        policy, roles, own = self._paths["policy"], {"actor": [self._actor]}, lifted(HALF)
        session = Local(EngineSession, "hf", policy, HALF.to_json(), EngineOptions("cpu"), wrap=plants.engine)
        guide = str(self.folder / "baseline") if side == "candidate" else None
        run, window = self.folder / side, steps(HALF)
        try:
            self._manifest(run, HALF, side)
            call(self._actor, "configure", HALF.to_json())
            beginning = Beginning(policy=policy, plants=plants.trainer)
            self._stage.open(HALF.to_json(), roles, session, str(run), beginning)
            self._stage.step(0, guide)
            self._stage.floor()
            self._stage.finish()
            self._manifest(run / FOLDER, own, side, lifted={"first_step": window.start, "stop": window.stop})
            call(self._actor, "configure", own.to_json())
            call(session, "configure", own.to_json(), plants.engine)
            self._stage.lift(
                own.to_json(), roles, session, str(run / FOLDER), beginning,
                guide_run=None if guide is None else f"{guide}/{FOLDER}",
            )  # fmt: skip
        finally:
            session.stop()

    def verdict(self) -> Verdict:
        return judged_pair(self.folder / "baseline", self.folder / "candidate", native=False).verdict

    @staticmethod
    def _manifest(run: Path, scenario: Scenario, side: str, **more: Any) -> None:
        facts = {"scenario": scenario.to_json(), "backend": "hf", "side": side, "sampling_mode": "coupled"}
        write_manifest(run, {**facts, "guided": side == "candidate", **more})


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory, paths: dict[str, str], actor: Actor) -> Pair:
    made = Pair(tmp_path_factory.mktemp("pair"), paths, actor)
    made.record("baseline")
    return made


@pytest.fixture
def pair(sound: Pair, tmp_path: Path, paths: dict[str, str], actor: Actor) -> Pair:
    """A pair whose baseline was recorded already."""
    (tmp_path / "baseline").symlink_to(sound.folder / "baseline")
    return Pair(tmp_path, paths, actor)


def of(verdict: Verdict, name: str) -> Check:
    assert verdict.parity is not None
    return next(check for check in verdict.parity.checks if check.name == name)


def test_a_sound_pair_is_equivalent_at_the_floor_of_float32(pair: Pair) -> None:
    pair.record("candidate")
    verdict = pair.verdict()
    assert verdict.verdict == "EQUIVALENT", verdict.reason
    found = of(verdict, "lifted-precision")
    assert found.state == "ruled out" and found.details["tolerance"] < 1e-4
    assert found.details["candidate against learner"] < 1e-5 < 1e-3 < verdict.parity.floor["tolerance"]  # type: ignore[union-attr]


def test_the_stage_holds_the_runs_own_weights_and_is_sent_them_in_their_type(pair: Pair) -> None:
    run = Run(pair.folder / "baseline")
    stage = Run(pair.folder / "baseline" / FOLDER)
    sent, again = (
        [e["digests"] for e in one.events("weights") if e["source"] == "learner"][-1] for one in (run, stage)
    )
    assert sent == again and sent
    [info] = [event["resolved"]["dtype"] for event in stage.events("engine_info")]
    assert info == "float32"


@pytest.mark.by_day(1)
@pytest.mark.parametrize(
    "engine",
    [
        {"bent": {"modules": ["model.norm"], "by": 1.002}},
        {"row_altered": {"module": NORM, "row": 3, "by": 1.02}},
        {"rebased": {"by": 1.002}},
        {"sampling": {"temperature": 0.99}},
    ],
    ids=["logits scaled", "a row altered", "rotary base", "temperature"],
)
def test_a_fault_that_bfloat16_hides_is_found_in_float32(engine: dict[str, Any], pair: Pair) -> None:
    pair.record("candidate", engine)
    verdict = pair.verdict()
    assert verdict.verdict == "DIVERGENT"
    confirmed = {check.name for check in verdict.parity.checks if check.state == "confirmed"}  # type: ignore[union-attr]
    assert "lifted-precision" in confirmed
    # What a worker holds is read back in any precision; what it computes shows in none of the others.
    assert not confirmed & {"tokens", "logprobs", "engine-against-learner"}, "bfloat16 alone saw it"
    assert ("weight-sync" in confirmed) == ("row_altered" in engine)
    named = f"WEIGHTS({NORM}.weight)" if "row_altered" in engine else "UNEXPLAINED"
    assert {(cause.name, cause.party) for cause in verdict.causes} == {(named, "candidate")}


@pytest.mark.night
def test_a_tensor_that_arrives_as_something_else_is_one_in_the_stage_too(pair: Pair) -> None:
    pair.record("candidate", trainer={"alter": {TENSOR: "revision"}})
    stage = judged_pair(pair.folder / "baseline" / FOLDER, pair.folder / "candidate" / FOLDER, native=False).verdict
    assert [(cause.name, cause.party) for cause in stage.causes] == [(f"WEIGHTS({TENSOR})", "candidate")]
    verdict = pair.verdict()
    assert [(cause.name, cause.party) for cause in verdict.causes] == [(f"WEIGHTS({TENSOR})", "candidate")]
