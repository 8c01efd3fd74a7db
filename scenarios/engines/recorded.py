"""A recorded run as the input of another one: the guide of a guided run, or the rollouts of a replay.

Both use what the recorded engine drew. A run that was guided itself trained on its guide's tokens, which it recorded;
its replay uses those.
"""

from __future__ import annotations

import os
from typing import Any

from probes import weights
from probes.format import Run
from scenarios.engines.engine_interface import EngineError, Request
from scenarios.engines.guided import Guide
from scenarios.ppo.checkpoint import CheckpointError
from scenarios.prompts import PromptError


class Recorded:
    """The recorded run in the directory `path`. Damage raises only when frames of a requested step are missing."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = str(path)
        self._run = Run(path, strict=False)
        self._comparable = self._run.hashed_by == weights.HASH

    def guide(self, step: int) -> Guide:
        """Return what the engine drew in `step`. Raises EngineError where the run has no rollout of it."""
        guide: Guide = {}
        for frame in self._run.frames(kind="rollout", step=step):
            rows = zip(
                frame.arrays["sample"].tolist(), frame.arrays["output"].rows(), frame.fields["finish"], strict=True
            )
            guide |= {int(sample): (tuple(ids), str(finish)) for sample, ids, finish in rows}
        if not guide:
            raise EngineError(
                f"the guiding run {self.path} holds no rollout of step {step}: record it again, or compare with --free"
            )
        return guide

    def rollout(self, step: int, requests: list[Request], max_tokens: int) -> Guide:
        """Return the responses that the run trained on in `step`, for `requests` with today's prompts.

        Raises PromptError where these are not the recorded prompts, EngineError where a response was not recorded.
        """
        prompts, drawn = self._prompts(step), self.guide(step)
        followed = self._followed(step)
        responses: Guide = {}
        for request in requests:
            if request.sample not in drawn or request.sample not in prompts:
                raise EngineError(f"the run {self.path} holds no rollout of sample {request.sample} in step {step}")
            if prompts[request.sample] != request.prompt_ids:
                raise PromptError(
                    f"the prompt of sample {request.sample} in step {step} is not the one that {self.path} recorded: "
                    "the prompts, or the tokenizer, have changed since",
                    fix="--prompts FILE.jsonl   # those of the recorded run",
                )
            ids, reason = drawn[request.sample]
            ids = followed.get(request.sample, ids)
            if reason not in ("stop", "length"):  # "flip": cut by its guide, and only that knows how it ended
                reason = "length" if len(ids) >= max_tokens else "stop"
            responses[request.sample] = (ids, reason)
        return responses

    def check_weights(self, version: int, digests: dict[str, str]) -> None:
        """Raise CheckpointError when the learner's weights are not those that the run recorded as `version`.

        A run of format version 1 used another hash for its digests and passes unchecked.
        """
        recorded = self._weights(version) if self._comparable else {}
        wrong = sorted(name for name in digests if recorded and digests[name] != recorded.get(name))
        if wrong:
            raise CheckpointError(
                f"the checkpoint after {version} steps does not belong to the run {self.path}: {len(wrong)} tensors "
                f"are not those that the run recorded then, the first is {wrong[0]}",
                fix="record the run again, with its checkpoints",
            )

    def parted(self, step: int, learner: dict[str, Any]) -> list[str]:
        """Return which digests of a `learner` event differ from the recorded ones of that step: batch, actor,
        critic.
        """
        if not self._comparable:
            return []
        recorded = next((event for event in self._run.events(kind="learner") if event.get("step") == step), {})
        return [
            name for name in ("batch", "actor", "critic") if name in recorded and recorded[name] != learner.get(name)
        ]

    def _prompts(self, step: int) -> dict[int, tuple[int, ...]]:
        prompts: dict[int, tuple[int, ...]] = {}
        for frame in self._run.frames(kind="rollout", step=step):
            rows = zip(frame.arrays["sample"].tolist(), frame.arrays["prompt"].rows(), strict=True)
            prompts |= {int(sample): tuple(ids) for sample, ids in rows}
        return prompts

    def _followed(self, step: int) -> dict[int, tuple[int, ...]]:
        """Return the tokens on which a guided run was trained, which are its guide's; {} for a run without a guide."""
        if not any(frame.fields.get("guided") for frame in self._run.frames(kind="rollout", step=step)):
            return {}
        trained_tokens: dict[int, tuple[int, ...]] = {}
        for frame in self._run.frames(kind="experience", step=step):
            rows = zip(frame.arrays["sample"].tolist(), frame.arrays["tokens"].rows(), strict=True)
            trained_tokens |= {int(sample): tuple(ids) for sample, ids in rows}
        return trained_tokens

    def _weights(self, version: int) -> dict[str, str]:
        digests: dict[str, str] = {}
        for event in self._run.events(kind="weights"):
            if event.get("source") == "learner" and event.get("version") == version:
                digests |= event["digests"]
        return digests
