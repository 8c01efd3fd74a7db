"""Couples the sampling of verl's own engines: every request brings its draw, and the processors of our engines obey
it.

verl imports this module in each of its processes through the entry-point group `verl.plugins`. It acts only where
RLHF_HARNESS_COUPLED sets a seed. Classes are changed right after their module was imported: verl's agent loop adds
the draw to a sample's parameters; SGLang's request names the processor (vLLM's is named when the engine starts);
verl's synchronous replay buffer passes samples on in the order in which their prompts were taken from the data,
instead of the order in which they were finished.

A sample is identified by its step, its row in the data and its position in the group, so two runs agree on it in
whatever order their engines answer. A row that occurs twice in a step draws the same twice.
"""

from __future__ import annotations

import functools
import os
from types import ModuleType
from typing import Any

from probes.adapters.imports import Finder
from probes.draws import COUPLED, DRAW

LOOPS = "verl.experimental.agent_loop.agent_loop"
REQUESTS = "sglang.srt.managers.io_struct"
TRAINER = "verl.trainer.ppo.v1.trainer_base"
BUFFER = "verl.trainer.ppo.v1.replay_buffer"
# A sample's number has 64 bits: step, row in the data, position in the group.
_STEP, _ROW = 44, 12


def drawn(
    seed: int, config: Any, sampling_params: dict[str, Any], trajectory: dict[str, Any], session: int
) -> dict[str, Any]:
    """Return the sampling parameters of one sample with its draw. Raises ValueError for what a coupled draw cannot
    do.
    """
    if sampling_params.get("repetition_penalty", 1.0) != 1.0:
        raise ValueError("coupled sampling has no repetition penalty: set rollout.repetition_penalty=1.0")
    if sampling_params.get("temperature") == 0:  # greedy: nothing to draw
        return sampling_params
    sample = (int(trajectory["step"]) << _STEP) + (int(trajectory["sample_index"]) << _ROW) + session
    draw = {
        "seed": seed, "sample": sample, "temperature": sampling_params.get("temperature", 1.0),
        "top_k": sampling_params.get("top_k", -1), "top_p": sampling_params.get("top_p", 1.0),
    }  # fmt: skip
    # The processors leave one token, which the engine's own sampler then takes. So it gets no filters.
    plain = {**sampling_params, "temperature": 1.0, "top_k": -1, "top_p": 1.0}
    name = "custom_params" if config.actor_rollout_ref.rollout.name == "sglang" else "extra_args"
    return {**plain, name: {**(sampling_params.get(name) or {}), DRAW: draw}}


def _imported(module: ModuleType) -> None:
    if module.__name__ == LOOPS:
        worker = module.AgentLoopWorker
        worker._run_agent_loop = _coupling(worker._run_agent_loop)
    elif module.__name__ == TRAINER:
        module.PPOTrainer._next_train_batch = _numbered(module.PPOTrainer._next_train_batch)
    elif module.__name__ == BUFFER:
        module.ReplayBuffer.sample = _sorted(module.ReplayBuffer.sample)
    else:
        request = module.GenerateReqInput
        request.normalize_batch_and_arguments = _processed(request.normalize_batch_and_arguments)


def _numbered(original: Any) -> Any:
    """Tell the replay buffer the order in which prompts were taken, because verl names them at random."""

    @functools.wraps(original)
    def _next_train_batch(self: Any, *args: Any, **kwargs: Any) -> Any:
        batch = original(self, *args, **kwargs)
        places = self.replay_buffer.__dict__.setdefault("_rlhf_harness_places", {})
        for uid in batch["uid"]:
            places.setdefault(str(uid), len(places))
        return batch

    return _next_train_batch


def _sorted(original: Any) -> Any:
    @functools.wraps(original)
    def sample(self: Any, *args: Any, **kwargs: Any) -> Any:
        batch, *remaining = original(self, *args, **kwargs)
        places = self.__dict__.get("_rlhf_harness_places", {})
        parts = [key.rsplit("_", 2) for key in batch.keys]  # prompt, position in the group, part of the answer
        if all(len(key_fields) == 3 and key_fields[0] in places for key_fields in parts):
            numbers = [(places[uid], int(session), int(part)) for uid, session, part in parts]
            batch.reorder(sorted(range(len(numbers)), key=numbers.__getitem__))
        return (batch, *remaining)

    return sample


# Ray pickles an actor's methods by value, so what they need is imported inside.


def _coupling(original: Any) -> Any:
    @functools.wraps(original)
    async def _run_agent_loop(self: Any, sampling_params: Any, trajectory: Any, *args: Any, **kwargs: Any) -> Any:
        import os

        from scenarios.jobs import verl as own

        if not trajectory["validate"]:
            sampling_params = own.drawn(
                int(os.environ[COUPLED]), self.config, sampling_params, trajectory, int(kwargs.get("session_id", 0))
            )
        return await original(self, sampling_params, trajectory, *args, **kwargs)

    return _run_agent_loop


def _processed(original: Any) -> Any:
    @functools.wraps(original)
    def normalize_batch_and_arguments(self: Any, *args: Any, **kwargs: Any) -> Any:
        sampling_params = self.sampling_params
        if isinstance(sampling_params, dict) and DRAW in (sampling_params.get("custom_params") or {}):
            from scenarios.engines.sglang.coupled import Coupled

            self.custom_logit_processor = Coupled.to_str()
        return original(self, *args, **kwargs)

    return normalize_batch_and_arguments


if os.environ.get(COUPLED):
    Finder({LOOPS, REQUESTS, TRAINER, BUFFER}, _imported).install()
