"""The embedded engine: Transformers' own forward pass with a plain sampling loop. Unit tests use it by default.

On the bench it is the reference.
"""

from __future__ import annotations

import dataclasses
import os
import secrets
import time
from typing import Any

import torch
import transformers

from scenarios.engines import canonical_request, engine_tensors
from scenarios.engines.canonical import DRAWN
from scenarios.engines.coupling import Draw, adjusted, choose, reported
from scenarios.engines.engine_interface import (
    Completion,
    EngineError,
    EngineInfo,
    Part,
    Request,
    SyncGroup,
    SyncReport,
    WeightMeta,
)
from scenarios.engines.hf import parameters
from scenarios.engines.hidden_states import HiddenStates
from scenarios.engines.layers import hidden_states_of
from scenarios.engines.load import Load
from scenarios.engines.mapping import Mapped, ParameterMap, map_engine, map_sampling
from scenarios.engines.sampling import filtered, ids_of
from scenarios.engines.sync import digest, join, receive
from scenarios.models import saved
from scenarios.models.attention import attention_of
from scenarios.models.wide import multiply_in_float32
from scenarios.settings import Mode, Sampling, Scenario

SEED_BITS = 63  # of a seed that nobody gives: a recording's whole numbers are signed, of 64 bits


@dataclasses.dataclass
class _Response:
    """What has been drawn for one request. `budget`: most tokens it may get. `finish`: "" until it is finished."""

    budget: int
    tokens: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[float] = dataclasses.field(default_factory=list)
    finish: str = ""

    def add(self, token: int, logprob: float, *, ends: bool) -> None:
        """Add a token. `ends`: whether this token may end the response here."""
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if ends:
            self.finish = "stop"
        elif len(self.tokens) >= self.budget:
            self.finish = "length"


class HFEngine:
    """Draws one sample per batch row, in left-padded batches with a KV cache. No prefix cache: `cached_tokens` is 0."""

    name = "hf"

    def __init__(
        self,
        model_path: str,
        scenario: Scenario,
        *,
        mode: Mode,
        device: str,
        pure: bool = False,  # no effect: nothing of ours is loaded into it
        mapping: ParameterMap | None = None,
    ) -> None:
        self._mode = mode
        self._device = torch.device(device)
        self._mapping = mapping = mapping or ParameterMap()
        canonical_request.check_sampling("hf", scenario.sampling, mode, ours=mapping.ours("hf", "sampling"))
        requested = canonical_request.engine_asked(
            model_path, scenario.model.dtype, scenario.engine, device=self._device.type
        )
        self._arguments, self._described = map_engine(mapping, "hf", requested, parameters.engine, lambda _: {})
        dtype = str(self._arguments.get("dtype", "auto"))
        model = self._loaded(model_path, dtype)
        multiply_in_float32(model, model.dtype)
        self._model = model.to(self._device).eval()
        self._model_ends = ids_of(self._model.generation_config.eos_token_id)
        self._defaults = self._model_defaults() if self._described["given"]["generation_config"] else {}
        self._context = int(self._arguments.get("max_model_len") or self._model.config.max_position_embeddings)
        self._batch_size = int(self._arguments.get("max_num_seqs") or scenario.engine.max_num_seqs)
        mapped_seed = self._arguments.get("seed")
        self._seed = secrets.randbits(SEED_BITS) if mapped_seed is None else int(mapped_seed)
        self._group: Any = None
        self.load = Load()

    def _loaded(self, path: str, dtype: str) -> Any:
        wanted = dtype if dtype == "auto" else getattr(torch, dtype)
        return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=wanted, **attention_of(path))

    @property
    def model(self) -> Any:
        """Return the Transformers model itself, for callers that read its logits."""
        return self._model

    def _model_defaults(self) -> dict[str, Any]:
        """Return sampling parameters of the model's generation_config.json, overridden by the mapping's."""
        defaults = {parameter.name: getattr(self._model.generation_config, parameter.name, None) for parameter in DRAWN}
        defaults |= self._arguments.get("override_generation_config") or {}
        return {name: value for name, value in defaults.items() if value is not None}

    def mapped(self, sampling: Sampling) -> Mapped:
        mapped = map_sampling(self._mapping, "hf", sampling, defaults=self._defaults, model_ends=self._model_ends)
        if mapped.canonical.repetition_penalty != 1.0:
            raise canonical_request.ParameterRefused(
                "the embedded Transformers engine has no repetition penalty",
                fix="--set sampling.repetition_penalty=1.0",
            )
        return mapped

    def remap(self, mapping: ParameterMap) -> None:
        self._mapping = mapping

    def generate(self, requests: list[Request], sampling: Sampling, *, seed: int) -> list[Completion]:
        done: list[Completion] = []
        requests = [self._encoded(request) if request.text is not None else request for request in requests]
        mapped = self.mapped(sampling)
        for begin in range(0, len(requests), self._batch_size):
            batch = requests[begin : begin + self._batch_size]
            with self.load.generating():
                self.load.sample(running=len(batch), waiting=len(requests) - begin - len(batch))
                done += self._batch(batch, mapped, seed)
        self.load.add(done)
        return done

    def _encoded(self, request: Request) -> Request:
        """Return the request with its text as ids, special tokens included, as an engine that is given text encodes
        it.
        """
        tokenizer = transformers.AutoTokenizer.from_pretrained(self._model.config._name_or_path)
        return dataclasses.replace(request, prompt_ids=tuple(tokenizer.encode(request.text)))

    @torch.no_grad()
    def _batch(self, requests: list[Request], mapped: Mapped, seed: int) -> list[Completion]:
        if not all(request.prompt_ids for request in requests):
            raise EngineError("hf: a prompt without tokens")
        width = max(len(r.prompt_ids) for r in requests)
        ids = torch.zeros((len(requests), width), dtype=torch.int64, device=self._device)
        mask = torch.zeros_like(ids)
        # Padded on the left: what is drawn follows the last column.
        # tests/cases/parity/patches/right_pad.py rewrites the source of these lines.
        for row, request in enumerate(requests):
            ids[row, width - len(request.prompt_ids) :] = torch.tensor(request.prompt_ids, device=self._device)
            mask[row, width - len(request.prompt_ids) :] = 1
        draws = [draw_of(r, mapped, seed) for r in requests]
        responses = self._responses(requests, mapped)
        # Each sample has a stream of its own, so that what it draws does not depend on the others of its batch.
        seeds = [(self._seed * 1_000_003 + r.sample) % 2**31 for r in requests]
        streams = [torch.Generator().manual_seed(stream_seed) for stream_seed in seeds]
        prompts, outputs = [r.prompt_ids for r in requests], [response.tokens for response in responses]
        # Positions count a prompt's own tokens: padding in front must not move it. A negative one would be no index.
        cache, step_ids = None, ids
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        for step in range(max(response.budget for response in responses)):
            out = self._model(
                input_ids=step_ids,
                attention_mask=mask,
                position_ids=positions if step == 0 else positions[:, -1:] + step,
                past_key_values=cache,
                use_cache=True,
            )
            cache = out.past_key_values
            logits = out.logits[:, -1].float()
            scores = adjusted(logits, draws, prompts, outputs)
            tokens = self._choose(scores, draws, step, mapped.canonical, streams)
            reported_logits = scores if draws[0].reports_adjusted else logits
            raw = reported(reported_logits, draws).gather(-1, tokens[:, None])[:, 0].tolist()
            # Rows that have finished are computed on with the others, and what they draw is dropped.
            for request, response, token, logprob in zip(requests, responses, tokens.tolist(), raw, strict=True):
                if not response.finish:
                    drawn = len(response.tokens) + 1 + request.offset
                    ends = token in mapped.end_ids and drawn > mapped.canonical.min_tokens
                    response.add(token, logprob, ends=ends)
            if all(response.finish for response in responses):
                break
            step_ids = tokens[:, None]
            mask = torch.cat((mask, torch.ones_like(mask[:, :1])), dim=-1)
        answers = zip(requests, responses, seeds, strict=True)
        return [self._completion(request, response, stream_seed) for request, response, stream_seed in answers]

    def _completion(self, request: Request, response: _Response, stream_seed: int) -> Completion:
        return Completion(
            request.sample,
            tuple(request.prompt_ids),
            tuple(response.tokens),
            tuple(response.logprobs),
            response.finish,
            seed=stream_seed if self._mode == "native" else None,
        )

    def _responses(self, requests: list[Request], mapped: Mapped) -> list[_Response]:
        """Return an empty response per request, with the budget that its limit and the context leave. Raises
        EngineError.
        """
        limits = [request.max_tokens or mapped.canonical.max_tokens for request in requests]
        budgets = [
            min(limit, self._context - len(request.prompt_ids)) for limit, request in zip(limits, requests, strict=True)
        ]
        if min(budgets) < 1:
            raise EngineError(f"hf: a prompt leaves no room for a token in a context of {self._context}")
        return [_Response(budget) for budget in budgets]

    def _choose(
        self, logits: torch.Tensor, draws: list[Draw], step: int, sampling: Sampling, streams: list[torch.Generator]
    ) -> torch.Tensor:
        if self._mode == "coupled":
            return choose(logits, draws, [d.offset + step for d in draws])
        if self._mode == "greedy":
            return logits.argmax(dim=-1)
        if sampling.temperature == 0.0:
            return logits.argmax(dim=-1)
        probabilities = torch.softmax(filtered(logits, draws[0]), dim=-1).cpu()
        for row, draw in enumerate(draws):
            probabilities[row] = draw.settled(probabilities[row], step)
        drawn = [
            torch.multinomial(row, 1, generator=stream) for row, stream in zip(probabilities, streams, strict=True)
        ]
        return torch.cat(drawn).to(logits.device)

    @torch.no_grad()
    def rescore(self, sequences: list[tuple[int, ...]]) -> list[list[float]]:
        scores: list[list[float]] = []
        for sequence in sequences:
            ids = torch.tensor([sequence], device=self._device)
            logits = self._model(input_ids=ids).logits[0, :-1].float()
            scores.append(torch.log_softmax(logits, dim=-1).gather(-1, ids[0, 1:, None])[:, 0].tolist())
        return scores

    @torch.no_grad()
    def layers(self, sequence: tuple[int, ...]) -> HiddenStates:
        """Return the hidden states of a forward pass."""
        states = self._model(input_ids=torch.tensor([sequence], device=self._device), output_hidden_states=True)
        return hidden_states_of([layer_states[0] for layer_states in states.hidden_states])

    def held(self, order: bytes) -> list[bytes]:
        """Return what this engine's only worker holds: see `scenarios.engines.engine_tensors.answer`."""
        return [engine_tensors.answer(self._model, order, saved.tensors(self._model))]

    def flush(self) -> None:
        """Do nothing: nothing is cached between calls."""

    def sleep(self, level: int) -> None:
        """Release nothing: the learner's process has no other memory."""

    def wake(self, part: Part) -> None:
        """Do nothing, as `sleep`."""

    def join(self, group: SyncGroup) -> None:
        self._group = join(group, group.rank_offset)

    def receive(self, group: SyncGroup, weights: list[WeightMeta]) -> SyncReport:
        started = time.perf_counter()
        arrived = dict(receive(self._group, weights, self._device))
        received = {name: digest(tensor) for name, tensor in arrived.items()}
        loading = engine_tensors.Loading.of(self._model)
        loading.begin(self._model, {meta.name: meta.shape for meta in weights}, saved.tensors(self._model))
        for name, tensor in arrived.items():
            loading.arrived(name, tensor)
        try:
            saved.restore(self._model, arrived)
        except KeyError as error:
            message = f"hf: the model has no tensor {error.args[0]!r}"
            return SyncReport(False, message, time.perf_counter() - started, received)
        return SyncReport(True, "", time.perf_counter() - started, received)

    def info(self) -> EngineInfo:
        resolved = {
            "dtype": str(self._model.dtype).removeprefix("torch."),
            "seed": self._seed,
            "request_seed": "honoured",
            "max_model_len": self._context,
            "max_num_seqs": self._batch_size,
            "prefix_caching": False,
            "generation_config": bool(self._described["given"]["generation_config"]),
            "default_sampling": self._defaults,
            "device": str(self._device),
            "tf32": self._device.type != "cpu" and torch.backends.cuda.matmul.allow_tf32,
            "end_ids": sorted(self._model_ends),
        }
        replaced = ("sampler",) if self._mode == "coupled" else ()
        version, arguments = transformers.__version__, dict(self._arguments)
        return EngineInfo("hf", version, arguments, resolved, replaced, (os.getpid(),), **self._described)

    def stats(self) -> dict[str, float]:
        return self.load.take(cache=False)

    def close(self) -> None:
        self._model = None


def draw_of(request: Request, mapped: Mapped, seed: int) -> Draw:
    """Return the coupled draw of one request, from what the engine was given."""
    draw = Draw.of(mapped.canonical, seed=seed, sample=request.sample, offset=request.offset, ends=mapped.end_ids)
    return request.drawn_by(draw)
