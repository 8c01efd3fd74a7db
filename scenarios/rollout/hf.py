"""The embedded engine: Transformers' own forward pass with a plain sampling loop. The default of unit tests, and a
third opinion."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
import transformers

from scenarios.rollout import parameters
from scenarios.rollout.coupling import Draw, choose, filtered
from scenarios.rollout.engine import Completion, EngineError, EngineInfo, Request, SyncGroup, SyncReport, WeightMeta
from scenarios.rollout.load import Load
from scenarios.rollout.sync import digest, join, receive
from scenarios.settings import Mode, Sampling, Scenario


class HFEngine:
    """One sample at a time per batch row, left-padded batches with a KV cache. No prefix cache: `cached_tokens` is
    0."""

    name = "hf"

    def __init__(self, model_path: str, scenario: Scenario, *, mode: Mode, device: str) -> None:
        self._mode = mode
        self._device = torch.device(device)
        self._scenario = scenario
        parameters.check_sampling("hf", scenario.sampling, mode)
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            model_path, dtype=getattr(torch, scenario.model.dtype)
        )
        self._model = model.to(self._device).eval()
        self._end_ids = end_ids(self._model.generation_config.eos_token_id, scenario.sampling)
        self._generator = torch.Generator(device="cpu").manual_seed(scenario.engine.seed)
        self._group: Any = None
        self._load = Load()

    def generate(self, requests: list[Request], sampling: Sampling, *, seed: int) -> list[Completion]:
        done: list[Completion] = []
        for start in range(0, len(requests), self._scenario.engine.max_num_seqs):
            batch = requests[start : start + self._scenario.engine.max_num_seqs]
            with self._load.generating():
                self._load.sample(running=len(batch), waiting=len(requests) - start - len(batch))
                done += self._batch(batch, sampling, seed)
        self._load.add(done)
        return done

    @torch.no_grad()
    def _batch(self, requests: list[Request], sampling: Sampling, seed: int) -> list[Completion]:
        if any(not request.prompt_ids for request in requests):
            raise EngineError("hf: a prompt without tokens")
        width = max(len(r.prompt_ids) for r in requests)
        ids = torch.zeros((len(requests), width), dtype=torch.int64, device=self._device)
        mask = torch.zeros_like(ids)
        for row, request in enumerate(requests):
            ids[row, width - len(request.prompt_ids) :] = torch.tensor(request.prompt_ids, device=self._device)
            mask[row, width - len(request.prompt_ids) :] = 1
        draws = [draw_of(r, sampling, seed, self._end_ids) for r in requests]
        budget = [r.max_tokens or sampling.max_tokens for r in requests]
        outputs: list[list[int]] = [[] for _ in requests]
        logprobs: list[list[float]] = [[] for _ in requests]
        finish = [""] * len(requests)
        cache, step_ids = None, ids
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        for step in range(max(budget)):
            out = self._model(
                input_ids=step_ids,
                attention_mask=mask,
                position_ids=positions if step == 0 else positions[:, -1:] + step,
                past_key_values=cache,
                use_cache=True,
            )
            cache = out.past_key_values
            logits = out.logits[:, -1].float()
            tokens = self._choose(logits, draws, step, sampling)
            raw = torch.log_softmax(logits, dim=-1).gather(-1, tokens[:, None])[:, 0].tolist()
            for row, token in enumerate(tokens.tolist()):
                if finish[row]:
                    continue
                outputs[row].append(token)
                logprobs[row].append(raw[row])
                if token in self._end_ids and len(outputs[row]) + requests[row].offset > sampling.min_tokens:
                    finish[row] = "stop"
                elif len(outputs[row]) >= budget[row]:
                    finish[row] = "length"
            if all(finish):
                break
            step_ids = tokens[:, None]
            mask = torch.cat((mask, torch.ones_like(mask[:, :1])), dim=-1)
        return [
            Completion(r.sample, tuple(r.prompt_ids), tuple(outputs[i]), tuple(logprobs[i]), finish[i], 0)
            for i, r in enumerate(requests)
        ]

    def _choose(self, logits: torch.Tensor, draws: list[Draw], step: int, sampling: Sampling) -> torch.Tensor:
        if self._mode == "coupled":
            return choose(logits, draws, [d.offset + step for d in draws])
        if self._mode == "greedy":
            return logits.argmax(dim=-1)
        if sampling.temperature == 0.0:
            return logits.argmax(dim=-1)
        probabilities = torch.softmax(filtered(logits, draws[0]), dim=-1).cpu()
        return torch.multinomial(probabilities, 1, generator=self._generator)[:, 0].to(logits.device)

    @torch.no_grad()
    def rescore(self, sequences: list[tuple[int, ...]]) -> list[list[float]]:
        scores: list[list[float]] = []
        for sequence in sequences:
            ids = torch.tensor([sequence], device=self._device)
            logits = self._model(input_ids=ids).logits[0, :-1].float()
            scores.append(torch.log_softmax(logits, dim=-1).gather(-1, ids[0, 1:, None])[:, 0].tolist())
        return scores

    def flush(self) -> None:
        """Nothing is cached between calls."""

    def join(self, group: SyncGroup) -> None:
        self._group = join(group, group.rank_offset)

    def receive(self, group: SyncGroup, weights: list[WeightMeta]) -> SyncReport:
        started = time.perf_counter()
        state = self._model.state_dict()
        received: dict[str, str] = {}
        for name, tensor in receive(self._group, weights, self._device):
            if name not in state:
                return SyncReport(
                    False, f"hf: the model has no tensor {name!r}", time.perf_counter() - started, received
                )
            received[name] = digest(tensor)
            state[name].copy_(tensor)
        return SyncReport(True, "", time.perf_counter() - started, received)

    def info(self) -> EngineInfo:
        engine = self._scenario.engine
        resolved = {
            "dtype": str(self._model.dtype).removeprefix("torch."),
            "seed": engine.seed,
            "max_model_len": engine.max_model_len,
            "max_num_seqs": engine.max_num_seqs,
            "prefix_caching": False,
            "device": str(self._device),
            "end_ids": sorted(self._end_ids),
        }
        replaced = ("sampler",) if self._mode == "coupled" else ()
        return EngineInfo(
            "hf", transformers.__version__, {"dtype": self._scenario.model.dtype}, resolved, replaced, (os.getpid(),)
        )

    def stats(self) -> dict[str, float]:
        return self._load.take(cache=False)

    def close(self) -> None:
        self._model = None


def end_ids(eos: int | list[int] | None, sampling: Sampling) -> frozenset[int]:
    """Token ids that end a sample: the model's end-of-sequence set unless ignored, and the explicit stops."""
    model = () if eos is None or sampling.ignore_eos else ((eos,) if isinstance(eos, int) else tuple(eos))
    return frozenset(model) | frozenset(sampling.stop_token_ids)


def draw_of(request: Request, sampling: Sampling, seed: int, ends: frozenset[int]) -> Draw:
    """The coupled draw of one request."""
    return Draw(
        seed=seed,
        sample=request.sample,
        offset=request.offset,
        temperature=sampling.temperature or 1.0,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        min_tokens=sampling.min_tokens,
        end_ids=tuple(sorted(ends)) if sampling.min_tokens else (),
    )
