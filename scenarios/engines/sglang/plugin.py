"""What the harness changes inside SGLang in coupled and greedy runs: the draw, log-probabilities, digests of weights.

Loaded in every SGLang process through the entry-point group `sglang.srt.plugins`. It acts only when
`RLHF_HARNESS_SGLANG_PLUGIN` is set: the native stage runs without any of it. SGLang computes log-probabilities after
logit processors (measured: wrong by up to 8 nats under a forced draw), and after penalties and the mask of a minimal
length (measured: 0.37 nats where an end token was likely). So the logits are kept before both, and log-probabilities
are recomputed from them after `Sampler.forward`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from probes.draws import DRAW
from probes.weights import digest
from scenarios.plants import inside

SWITCH = "RLHF_HARNESS_SGLANG_PLUGIN"
DIGESTS = "rlhf_harness_received"
RAW = "_rlhf_harness_raw"  # attribute with the model's own logits, on the output that SGLang then changes in place


def register() -> None:
    """Install the hooks: the entry point. Does nothing without the switch."""
    if not os.environ.get(SWITCH):
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    runner = "sglang.srt.model_executor.model_runner.ModelRunner"
    HookRegistry.register(f"{runner}._preprocess_logits", keep_raw, HookType.AROUND)
    HookRegistry.register("sglang.srt.layers.sampler.Sampler.forward", raw_logprobs, HookType.AROUND)
    updater = "sglang.srt.model_executor.model_runner_components.weight_updater.WeightUpdater"
    HookRegistry.register(f"{updater}.receive_weights_from_distributed", remember_digests, HookType.AFTER)
    scheduler = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
    HookRegistry.register(f"{scheduler}.update_weights_from_distributed", report_digests, HookType.AFTER)
    made = "sglang.srt.managers.scheduler.Scheduler.__init__"
    HookRegistry.register(made, show_layers, HookType.AFTER)
    HookRegistry.register(made, show_held, HookType.AFTER)
    if inside() is not None:
        HookRegistry.register(made, open_to_plants, HookType.AFTER)


def show_layers(result: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    """Add two methods to the scheduler: one starts capturing hidden states, one writes those of some tokens to a
    file.

    A file, because the answer to a call of the scheduler carries no value.
    """
    from scenarios.engines.layers import Capture

    captured: list[Capture] = []

    def capture() -> None:
        captured[:] = [Capture(self.tp_worker.model_runner.model)]

    def write(tokens: int, path: str) -> None:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(captured.pop().take(tokens), file)

    self.harness_capture, self.harness_captured = capture, write


def show_held(result: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    """Add a method to the scheduler that answers what its worker holds. It reads and writes files; its own is named
    by rank.
    """
    from scenarios.engines.engine_tensors import Loading, answer

    rank, workers = self.tp_group.rank_in_group, self.tp_group.world_size
    Loading.of(self.tp_worker.model_runner.model, rank=rank, workers=workers)

    def answer_order(order: str, folder: str) -> None:
        reply = answer(self.tp_worker.model_runner.model, Path(order).read_bytes(), rank=rank, workers=workers)
        Path(folder, str(rank)).write_bytes(reply)

    self.harness_held = answer_order


def open_to_plants(result: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    """Add a method to the scheduler through which a planted fault reaches its model."""
    plants = inside()
    if plants is not None:
        plants.open_scheduler(self)


def keep_raw(preprocess: Any, self: Any, logits_output: Any, *args: Any, **kwargs: Any) -> Any:
    """Keep the model's own logits before `ModelRunner._preprocess_logits`, which applies penalties in place."""
    raw = logits_output.next_token_logits
    setattr(logits_output, RAW, None if raw is None else raw.detach().clone())
    return preprocess(self, logits_output, *args, **kwargs)


def raw_logprobs(
    forward: Any, self: Any, logits_output: Any, sampling_info: Any, return_logprob: bool, *args: Any, **kwargs: Any
) -> Any:
    """Wrap `Sampler.forward` so that it reports log-probabilities of the model's own logits at T = 1."""
    if not return_logprob:
        return forward(self, logits_output, sampling_info, return_logprob, *args, **kwargs)
    raw = getattr(logits_output, RAW, None)
    if raw is None:  # nothing has changed the logits
        raw = logits_output.next_token_logits.detach().clone()
    tokens = forward(self, logits_output, sampling_info, return_logprob, *args, **kwargs)
    top_logprobs_nums, token_ids_logprobs = args[0], args[1]
    result = self.output_logprob_processor.compute_logprobs(
        _reported(raw, getattr(sampling_info, "custom_params", None)), top_logprobs_nums, token_ids_logprobs, tokens
    )
    result.write_output_to(logits_output)
    return tokens


def _reported(raw: Any, params: list[dict[str, Any] | None] | None) -> Any:
    from scenarios.engines.coupling import Draw, reported

    drawn = [(item or {}).get(DRAW) for item in params or []]
    return reported(raw, [Draw.from_json(draw) if draw else Draw(0, 0) for draw in drawn])


_received: dict[str, str] = {}


def remember_digests(result: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    """Take the digest of each tensor as it came out of its broadcast, before it is loaded."""
    from scenarios.engines.engine_tensors import Loading

    _received.clear()
    model = self.get_model()
    loading = Loading.of(model)
    loading.begin(model, {str(name): tuple(tensor.shape) for name, tensor in result})
    for name, tensor in result:
        _received[str(name)] = digest(tensor)
        loading.arrived(str(name), tensor)


def report_digests(result: Any, *args: Any, **kwargs: Any) -> None:
    """Put the digests into the text of the scheduler's answer, as JSON: the answer has only a status and a text."""
    if result.success:
        result.message = json.dumps({"message": result.message, DIGESTS: _received})
