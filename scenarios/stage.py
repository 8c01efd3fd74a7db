"""The learner's side of an experiment as one actor: makes models, checks prompts, drives PPO step by step, and scores
the native stage.

The controller decides what runs when; everything that needs torch happens here, in the learner's interpreter.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from probes import install
from probes.format import Flat, Frame, Ragged, Run
from scenarios import models, prompts
from scenarios.ppo.batches import Sample
from scenarios.ppo.trainer import Trainer
from scenarios.remote import Actor, call
from scenarios.rollout import parameters
from scenarios.rollout.engine import EngineError, Request
from scenarios.rollout.guided import Guide
from scenarios.settings import Scenario

# The floor needs extremes, not means: so many samples of the last step are drawn again in each variant.
FLOOR_SAMPLES = 32


class Stage:
    """One process for a whole experiment: the trainers of both runs live here one after the other."""

    def __init__(self, home: str) -> None:
        self._home = Path(home)
        self._trainer: Trainer | None = None
        self._session: Actor | None = None
        self._scenario = Scenario()
        self._policy = ""
        self._guide_run = ""
        self._guide_frames: Iterator[Frame] = iter(())

    def prepare(self, scenario: dict[str, Any]) -> dict[str, Any]:
        """Make or find the models, encode every prompt, refuse a context that cannot hold them; returns where the
        models are."""
        settings = Scenario.from_json(scenario)
        policy = models.policy_path(settings.model.path, seed=settings.seed, home=self._home)
        reward = (
            models.reward_path(settings.model.reward, seed=settings.seed, home=self._home) if settings.train else Path()
        )
        tokenizer = models.load_tokenizer(policy)
        batch = prompts.load(settings, tokenizer)
        parameters.check_room(batch.longest, settings.sampling, settings.engine)
        from transformers import AutoConfig

        limit = int(
            getattr(AutoConfig.from_pretrained(policy), "max_position_embeddings", settings.engine.max_model_len)
        )
        if settings.engine.max_model_len > limit:
            raise parameters.ParameterRefused(
                f"engine.max_model_len = {settings.engine.max_model_len} exceeds the {limit} positions that "
                f"{settings.model.path} was made for"
            )
        return {
            "policy": str(policy),
            "reward": str(reward),
            "prompts": len(batch.ids),
            "longest_prompt": batch.longest,
        }

    def open(
        self,
        scenario: dict[str, Any],
        roles: dict[str, list[Actor]],
        session: Actor,
        run_dir: str,
        *,
        policy: str,
        omit_tensors: dict[int, tuple[str, ...]] | None = None,
        resume: str | None = None,
        sync_backend: str = "gloo",
    ) -> int:
        """Begin one run: fresh learners (or those of a checkpoint), the recordings, the first weight sync. Returns the
        first step."""
        self._scenario = Scenario.from_json(scenario)
        self._session, self._policy = session, policy
        call(session, "record_to", run_dir)
        self._trainer = Trainer(
            scenario, roles, session, run_dir, policy=policy, omit_tensors=omit_tensors, sync_backend=sync_backend
        )
        if resume is not None:
            self._trainer.resume(resume)
        self._trainer.start()
        return self._trainer.version

    def step(self, index: int, guide_run: str | None = None) -> dict[str, float]:
        """One step of the open run, under the guide of a recorded run when one is named. Returns the step's metrics."""
        guide = None if guide_run is None else self._guide(guide_run, index)
        metrics: dict[str, float] = self._open.step(index, guide=guide)
        return metrics

    def floor(self) -> None:
        """Let the engine draw the last step's samples again, at the final weights, against itself; and the learner
        round against itself."""
        trainer = self._open
        assert self._session is not None
        batch = trainer.prompts.batch(self._scenario.steps - 1)[:FLOOR_SAMPLES]
        requests = [Request(number, ids) for number, ids in batch]
        drawn = call(self._session, "floor", requests, step=self._scenario.steps - 1, version=trainer.version)
        trainer.floor(
            [r.prompt_ids + ids for r, ids in zip(requests, drawn, strict=True)], [r.sample for r in requests]
        )

    def finish(self) -> str:
        """Save the last state and close the recordings; returns the directory of the final policy."""
        trainer = self._open
        path = trainer.finish()
        assert self._session is not None
        call(self._session, "end_recording")
        self._trainer = None
        if not self._scenario.train:
            return self._policy
        return str(path / "policy")

    def native(
        self,
        scenario: dict[str, Any],
        roles: dict[str, list[Actor]],
        session: Actor,
        run_dir: str,
        policy: str,
        version: int,
    ) -> None:
        """Draw with the engine's own sampler at the weights in `policy`, score with the learner at the same weights,
        record both."""
        settings = Scenario.from_json(scenario)
        batch = prompts.load(settings, models.load_tokenizer(policy))
        wanted = settings.native.samples
        # Steps beyond the run's own, so that the native stage never sees a prompt-and-number pair of the coupled one.
        numbered = [pair for step in range(settings.steps, settings.steps + wanted) for pair in batch.batch(step)][
            :wanted
        ]
        call(session, "record_to", run_dir)
        completions = call(session, "native", [Request(number, ids) for number, ids in numbered], version=version)
        call(session, "end_recording")
        samples = [Sample(c.sample, ids, c.output_ids) for c, (_, ids) in zip(completions, numbered, strict=True)]
        call(roles["actor"][0], "adopt", policy)
        scored = call(roles["actor"][0], "score", -1, samples)
        rewards = (
            call(roles["reward"][0], "rewards", -1, samples) if roles.get("reward") else np.zeros(0, dtype=np.float32)
        )
        with install.start(run_dir, role="trainer", rank=1) as recorder:
            arrays: dict[str, Flat | Ragged] = {
                "sample": Flat.of([s.number for s in samples], "i8"),
                "learner_logprob": Ragged.of(scored.logprob, "f4"),
            }
            if len(rewards):
                arrays["reward"] = Flat.of(rewards, "f4")
            recorder.frame("native_score", step=-1, fields={"weight_version": version}, arrays=arrays)

    def _guide(self, run_dir: str, step: int) -> Guide:
        """What the recorded run drew in `step`. Frames come in the order of the steps, so one pass over the file serves
        a run."""
        if self._guide_run != run_dir or step == 0:
            self._guide_run, self._guide_frames = run_dir, Run(run_dir, strict=False).frames(kind="rollout")
        for frame in self._guide_frames:
            if frame.step == step:
                rows = zip(
                    frame.arrays["sample"].tolist(), frame.arrays["output"].rows(), frame.fields["finish"], strict=True
                )
                return {int(sample): (tuple(ids), str(finish)) for sample, ids, finish in rows}
        raise EngineError(
            f"the guiding run {run_dir} holds no rollout of step {step}: record it again, or compare with --free"
        )

    @property
    def _open(self) -> Trainer:
        if self._trainer is None:
            raise RuntimeError("no run is open")
        return self._trainer
